"""The journals of a scenario: files that a source of the rig reads, or a broker's journals of messages.

In both cases, files keep everything that was appended, for the oracle.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gazette_spark import Client, LedgerEntry
from gazette_spark._planning.states import StateFiles
from gazette_spark.client import journal_spec
from gazette_spark.message import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, Clock, ProducerId, build_uuid
from gazette_spark.protocol import protocol_pb2 as pb
from tests.rig.upkeep import create_over_fragments, delete_journal, suspend_journal

RAW_WITH_ORIGIN = "journal STRING, offset BIGINT, value BINARY, _journal STRING, _ack_offset BIGINT"
"""Columns of committed messages."""

FIRST_CLOCK = 1 << 62

FIRST_STEP = 1000
"""Clock of a producer's first message, relative to ``FIRST_CLOCK``; it may go back."""

FRAGMENT_BYTES = 1024
"""Bytes per fragment: the minimum, so that stores soon contain some."""

PRODUCERS = 4
"""Number of concurrent producers."""


class FileJournalSet:
    """Journals that are files with numbered records, for :mod:`tests.rig.file_source`."""

    format = "file_journals"
    schema: str | None = None
    batch_bytes = 40
    """Bytes per batch: a few records of each journal, so that a step has several batches."""

    def __init__(self, root: Path, *, names: tuple[str, ...] = ("a", "b")) -> None:
        self._files = root / "journals"
        self._files.mkdir(parents=True)
        self._written = 0
        for name in names:
            self.create(name)

    def names(self) -> list[str]:
        return sorted(file.name for file in self._files.iterdir())

    def create(self, name: str) -> None:
        (self._files / name).touch()

    def append(self, records: int) -> None:
        names = self.names()
        lines: dict[str, bytes] = {}
        for _ in range(records):
            name = names[self._written % len(names)]
            lines[name] = lines.get(name, b"") + self._line(name)
            self._written += 1
        for name, content in lines.items():
            self._write(name, content)

    def truth(self) -> dict[str, bytes]:
        return {self.full_name(name): (self._files / name).read_bytes() for name in self.names()}

    def full_name(self, name: str) -> str:
        return name

    def options(self) -> dict[str, Any]:
        return {"root": str(self._files), "maxBytesPerTrigger": str(self.batch_bytes)}

    def can_resume(self, entry: LedgerEntry | None) -> bool:
        """Return whether a query without a checkpoint can continue where a table ends."""
        return True

    def _line(self, name: str) -> bytes:
        return b"%d %s\n" % (self._written, b"x" * (7 + self._written % 7))

    def _write(self, name: str, content: bytes) -> None:
        with (self._files / name).open("ab") as file:
            file.write(content)


class MessageJournals(FileJournalSet):
    """Journals of a broker, to which producers write transactions."""

    format = "crashing_gazette"
    schema = RAW_WITH_ORIGIN
    batch_bytes = 600

    def __init__(self, root: Path, endpoint: str, *, seed: int = 0, store: Path | None = None) -> None:
        """Create empty journals below a directory that no other scenario uses.

        Args:
            root: The scenario's directory.
            endpoint: The broker's endpoint.
            seed: Seed of the messages.
            store: Directory where the broker stores fragments.
        """
        self._endpoint = endpoint
        self._store = store
        self._prefix = f"crashes/{uuid.uuid4().hex[:12]}/"
        self._states = root / "states"
        self._messages = MessageWriter(seed)
        super().__init__(root)

    def create(self, name: str) -> None:
        super().create(name)
        with Client(self._endpoint, timeout_s=30) as client:
            client.create_journals(self._spec(name))

    def _spec(self, name: str) -> pb.JournalSpec:
        labels = {"content-type": "application/x-ndjson"}
        return journal_spec(self.full_name(name), labels=labels, length=FRAGMENT_BYTES)

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Recreate every journal with other records; afterwards recreate it over the stored fragments.

        A replacement has the same record boundaries up to the end of the original, and is a little longer, so
        that no offset shows that it is another journal.
        """
        assert self._store is not None
        with Client(self._endpoint, timeout_s=30) as client:
            for name in self.names():
                suspend_journal(client, self.full_name(name))  # Makes the broker store what it holds.
                delete_journal(client, self.full_name(name))
                original = self._store / self.full_name(name)
                if original.exists():
                    original.rename(self._set_aside(name))
                client.create_journals(self._spec(name))
                content = _other_numbers((self._files / name).read_bytes())
                lines = content.splitlines(keepends=True)
                client.append(self.full_name(name), content + b"".join(lines[-3:]))
            yield
            for name in self.names():
                delete_journal(client, self.full_name(name))
                shutil.rmtree(self._store / self.full_name(name), ignore_errors=True)
                if (original := self._set_aside(name)).exists():
                    original.rename(self._store / self.full_name(name))
                create_over_fragments(client, self._spec(name), (self._files / name).stat().st_size)

    def _set_aside(self, name: str) -> Path:
        assert self._store is not None
        return (self._store / self.full_name(name)).with_name(f"{name}-original")

    def full_name(self, name: str) -> str:
        return self._prefix + name

    def options(self) -> dict[str, Any]:
        return {
            **self._selected(),
            "brokerAddress": self._endpoint,
            "startingOffsets": "earliest",
            "maxBytesPerTrigger": str(self.batch_bytes),
        }

    def batch_options(self, *, stored: bool) -> dict[str, str]:
        """Return the options of a batch, from the store if all journals have fragments, else a broker."""
        if stored and self.are_stored():
            return {**self._selected(), "fragmentStore": f"file://{self._store}", "framing": "lines"}
        return {**self._selected(), "brokerAddress": self._endpoint}

    def _selected(self) -> dict[str, str]:
        return {
            "path": self._prefix,
            "isolationLevel": "read_committed",
            "stateLocation": str(self._states),
        }

    def are_stored(self) -> bool:
        if (store := self._store) is None:
            return False
        return all(any((store / self.full_name(name)).glob("0*")) for name in self.names())

    def can_resume(self, entry: LedgerEntry | None) -> bool:
        """Return whether there are producer states for the table's end."""
        ends = entry.read_through.items() if entry else ()
        files = StateFiles(str(self._states))
        return all(files.load(journal, offset, None) for journal, offset in ends if offset)

    def lose_states(self, fraction: float) -> None:
        """Remove a fraction of the state files, newest first, and damage the next one."""
        for name in self.names():
            directory = self._states / self.full_name(name)
            found = [path for path in directory.glob("[0-9]*") if path.name.isdigit()]
            files = sorted(found, key=lambda path: int(path.name))
            left = round((1 - fraction) * len(files))
            for path in files[left:]:
                path.unlink()
            if files[:left]:
                files[left - 1].write_bytes(files[left - 1].read_bytes()[:-20])

    def _line(self, name: str) -> bytes:
        return self._messages.next(self._written, name)

    def _write(self, name: str, content: bytes) -> None:
        with Client(self._endpoint, timeout_s=30) as client:
            begin = (self._files / name).stat().st_size
            client.append(self.full_name(name), content, offset=begin)
        super()._write(name, content)


def _other_numbers(content: bytes) -> bytes:
    """Return messages of the same lengths and UUIDs with different numbers."""
    other = bytes.maketrans(b"0123456789", b"9876543210")
    return re.sub(rb'(?<="n":\[)\d+', lambda number: number[0].translate(other), content)


class MessageWriter:
    """Creates messages of producers that commit, roll back, repeat themselves, and die.

    A message describes itself to the oracle in separate fields, so that the oracle need not parse UUIDs:
    ``"n": [number, producer, clock, flags]``.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._producers = list(range(1, PRODUCERS + 1))
        self._newest = PRODUCERS
        self._clocks: dict[int, int] = {}
        self._sent: dict[str, list[bytes]] = {}

    def next(self, number: int, journal: str) -> bytes:
        """Return the next message of a journal, newline included."""
        sent = self._sent.setdefault(journal, [])
        draw = self._rng.random()
        if draw < 0.1 and sent:  # A repeated append.
            return self._rng.choice(sent[-20:])
        place = self._rng.randrange(PRODUCERS)
        if draw < 0.13:  # A producer died, with its transactions open, and another replaces it.
            self._newest += 1
            self._producers[place] = self._newest
        producer = self._producers[place]
        line = self._line(number, producer, *self._act(producer))
        sent.append(line)
        return line

    def _act(self, producer: int) -> tuple[int, int]:
        clock = self._clocks.get(producer, FIRST_STEP)
        draw = self._rng.random()
        if draw < 0.05:  # Rolls back all or the newest part.
            return clock - self._rng.randint(1, 4), ACK_TXN
        self._clocks[producer] = clock + 1
        return clock + 1, ACK_TXN if draw < 0.25 else OUTSIDE_TXN if draw < 0.32 else CONTINUE_TXN

    @staticmethod
    def _line(number: int, producer: int, clock: int, flags: int) -> bytes:
        octets = (1 << 40 | producer).to_bytes(6, "big")
        uuid = build_uuid(ProducerId(octets), Clock(FIRST_CLOCK + clock), flags)
        document: Mapping[str, Any] = {"_meta": {"uuid": str(uuid)}, "n": [number, producer, clock, flags]}
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"
