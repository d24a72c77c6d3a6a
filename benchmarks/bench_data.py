"""The data of the end-to-end benchmark: JSON lines of 182 bytes, as the fragment files of journals.

Each journal has its own files under ``{data}/{codec}/bench/{layout}/part-N/``, named as Gazette names
them. All readers use these same files: brokers list them in their store, ``spark.read`` takes the folder,
and Kafka is filled from them. So they are made once, and kept between runs.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import MEGABYTE

from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

LINE_BYTES = 182
"""Length of a record with its newline."""

FRAGMENT_LINES = (64 << 20) // LINE_BYTES
"""Records of a fragment: each ends with a whole one, as Gazette's do when appends do."""

GZIP_LEVEL = 6
"""As Gazette's brokers compress."""

SCHEMA = "id BIGINT, ts STRING, user STRING, action STRING, amount DOUBLE, ok BOOLEAN, note STRING"

ACTIONS = ("view", "click", "buy", "return")


def make_line(number: int) -> bytes:
    """Return a record of exactly ``LINE_BYTES`` bytes."""
    head = (
        f'{{"id": {number}, "ts": "2026-11-21T{number // 3600 % 24:02}:{number // 60 % 60:02}:'
        f'{number % 60:02}.000Z", "user": "user-{number * 7919 % 100_003}", '
        f'"action": "{ACTIONS[number % 4]}", "amount": {number % 10_000 / 100}, '
        f'"ok": {"true" if number % 3 else "false"}, "note": "'
    )
    note = f"{number * 2_654_435_761 % (1 << 64):016x}" * 6
    return f'{head}{note[: LINE_BYTES - 3 - len(head)]}"}}\n'.encode()


@dataclass(frozen=True, slots=True)
class DataSet:
    """The lines ``0 .. rows-1`` in some journals."""

    folder: Path
    """File root of a store that holds the journals."""
    journals: int
    rows: int
    codec: int
    distinct: int = 0
    """The lines are ``0 .. distinct-1``, again and again; 0: all differ."""

    @property
    def prefix(self) -> str:
        """Prefix of the journals' names."""
        kind = "repeated" if self.distinct else "gzip" if self.codec == pb.GZIP else "plain"
        return f"bench/{kind}/{self.rows}-{self.journals}/"

    @property
    def names(self) -> list[str]:
        """The journals."""
        return [f"{self.prefix}part-{part}" for part in range(self.journals)]

    @property
    def path(self) -> Path:
        """Folder of all fragment files."""
        return self.folder / self.prefix.rstrip("/")

    @property
    def size_bytes(self) -> int:
        """Bytes of all records, uncompressed."""
        return self.rows * LINE_BYTES

    @property
    def id_sum(self) -> int:
        """Sum of the records' ids."""
        each = min(self.rows, self.distinct or self.rows)
        return each * (each - 1) // 2 * (self.rows // each)

    @property
    def label(self) -> str:
        """The records' size and journals, for people."""
        journals = "one journal" if self.journals == 1 else f"{self.journals} journals"
        return f"{self.size_bytes / MEGABYTE:,.0f} MB in {journals}"


def make(folder: Path, size_bytes: int, journals: int, codec: int = pb.NONE) -> DataSet:
    """Return a data set, made if it is not there yet."""
    found = DataSet(folder, journals, size_bytes // LINE_BYTES, codec)
    done = found.path / "done"
    if done.exists():
        return found
    heads = dict.fromkeys(found.names, 0)
    lines = min(FRAGMENT_LINES, -(-found.rows // journals))
    for turn, content in enumerate(_contents(found.rows, lines)):
        journal = found.names[turn % journals]
        _store(folder, journal, heads[journal], content, codec)
        heads[journal] += len(content)
    done.touch()
    return found


def make_repeated(folder: Path, size_bytes: int) -> DataSet:
    """Return one journal whose fragments are all one file, for it is large and only memory is measured."""
    fragments = -(-size_bytes // (FRAGMENT_LINES * LINE_BYTES))
    found = DataSet(folder, 1, fragments * FRAGMENT_LINES, pb.NONE, FRAGMENT_LINES)
    (journal,) = found.names
    if not (found.path / "done").exists():
        content = next(_contents(FRAGMENT_LINES, FRAGMENT_LINES))
        first = _store(folder, journal, 0, content, pb.NONE)
        digest = _sum(content)
        for begin in range(len(content), fragments * len(content), len(content)):
            fragment = Fragment(journal, begin, begin + len(content), digest, pb.NONE)
            path = folder / fragment.content_path
            path.unlink(missing_ok=True)
            os.link(first, path)
        (found.path / "done").touch()
    return found


def link_store(sets: list[DataSet], root: Path) -> None:
    """Give a broker the fragments of data sets as its own: files that it adds to its root are not kept."""
    for each in sets:
        for source in each.path.rglob("*-*"):
            if source.is_file():
                target = root / source.relative_to(each.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(source, target)


def _contents(rows: int, step: int) -> Iterator[bytes]:
    for first in range(0, rows, step):
        yield b"".join(map(make_line, range(first, min(first + step, rows))))


def _sum(content: bytes) -> bytes:
    return hashlib.sha1(content, usedforsecurity=False).digest()


def _store(folder: Path, journal: str, begin: int, content: bytes, codec: int) -> Path:
    fragment = Fragment(journal, begin, begin + len(content), _sum(content), codec)
    path = folder / fragment.content_path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, GZIP_LEVEL) if codec == pb.GZIP else content)
    return path
