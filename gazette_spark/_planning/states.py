"""Stores the states of a journal's producers at the ends of batches in files, and replaces missing files.

``{stateLocation}/{journal}/{offset}`` contains the states at an offset, as a sealed Arrow IPC stream. They
follow from the journal's bytes since the query's start, so tasks that write the same file write the same
states. A missing or damaged file is therefore no loss: the states are rebuilt from the journal, beginning at
the nearest older file or at the start. Files of a query with a different start are ignored.

Tasks know which transactions are open, but Spark collects no figures from tasks. So two others also read
these files (:class:`OpenTransactions`): the driver, for the query's progress, and the lag monitor, for what a
table has committed. Each reads one file for every journal that moved, a limited number of journals at a time.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from gazette_spark.errors import DamagedFileError, OptionError
from gazette_spark.failpoints import failpoint
from gazette_spark.message.bulk_sequencer import ProducerStates
from gazette_spark.message.locator import locator_for
from gazette_spark.message.uuids import Clock, producer_of
from gazette_spark.offsets import JournalOffsets
from gazette_spark.seal import seal, unseal

log = logging.getLogger(__name__)

FORM = "1"
"""Version of the files' format."""

KEPT_FILES = 8
"""Number of files kept for each journal. A restart needs the newest, or the one before it."""

REFRESHED_JOURNALS = 200
"""Maximum number of journals whose files are read in one call."""

UNREAD = -1
"""Used as the offset of a journal whose file was missing."""

SHOWN = 10
"""Maximum number of transactions shown for a journal: the oldest ones. The others are only counted."""

OpenJson = dict[str, Any]
"""A journal's open transactions as JSON: the offset ``at``, their ``count``, and the ``oldest`` by begin."""

_FILE_NAME = re.compile(r"([0-9]{1,19})(\.[0-9a-f]{32})?")
"""An offset, followed by a suffix while the file is being written."""

_SCHEMA = pa.schema(
    [
        ("producer", pa.binary(6)),
        ("last_ack", pa.uint64()),
        ("last_clock", pa.uint64()),
        ("begin", pa.int64()),
        ("last_offset", pa.int64()),
    ]
)


class StateFiles:
    """The files below ``stateLocation``. Thread-safe if its file system is."""

    def __init__(self, location: str, uuid_path: str | None = None, content_type: str | None = None) -> None:
        """Use a directory.

        Args:
            location: A path, or a URL that pyarrow or fsspec opens.
            uuid_path: The query's place of UUIDs, empty for the default. None reads files of any place.
            content_type: Content type of the messages whose states are saved. Without it, saved files fit any
                place.

        Raises:
            OptionError: neither of them opens the location.
        """
        # Imported here because most queries do not need it.
        from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

        if location.startswith("/"):
            self._system, path = LocalFileSystem(), location
        else:
            try:
                self._system, path = FileSystem.from_uri(location)
            except (OSError, ValueError) as error:
                try:
                    import fsspec  # An optional package, which this one does not require.

                    # Listings are not cached because other tasks change the directories.
                    other_system, path = fsspec.core.url_to_fs(location, use_listings_cache=False)
                except (OSError, ValueError, ImportError):
                    shown = re.sub("//[^/]*@", "//", location.partition("?")[0])
                    expected = f"a path, or a URL that pyarrow or fsspec opens ({type(error).__name__})"
                    raise OptionError("stateLocation", repr(shown), expected) from None
                self._system = PyFileSystem(FSSpecHandler(other_system))
        self._base = path.rstrip("/")
        self._uuid_path, self._content_type = uuid_path, content_type

    def load(self, journal: str, offset: int, start: int | None) -> tuple[ProducerStates, int] | None:
        """Return the states at an offset and the start of their query; None without a readable file.

        Args:
            journal: The journal's name.
            offset: Offset of the states.
            start: Where the query started; None accepts the states of any query.

        Raises:
            OptionError: the query that wrote the file found UUIDs at another place.
        """
        path = self._path(journal, offset)
        try:
            with self._system.open_input_stream(path) as file:
                # The seal shows a file that a crash or a full disk has cut short. Damage is not an error,
                # because the states can be rebuilt from the journal.
                content = unseal(bytes(file.read()), path)
            table = pa.ipc.open_stream(content).read_all()
        except FileNotFoundError:
            return None
        except (OSError, DamagedFileError, pa.ArrowException) as error:
            log.warning("unreadable states of producers are ignored path=%s: %s", path, error)
            return None
        written = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        if written.get("form") != FORM or not table.schema.equals(_SCHEMA):
            log.warning("unreadable states of producers are ignored path=%s: unknown format", path)
            return None
        # States include the transactions since their query's start. With a different start, others would be
        # open.
        if start is not None and written.get("start") != str(start):
            return None
        # By another place, messages that wait would be lost, and messages that are rows could be rows again.
        # Locators are compared because the default may be written out, and because it depends on the type.
        content_type, place = written.get("contentType"), written.get("uuidPath", "")
        if self._uuid_path is not None and content_type is not None:
            is_same = False
            # The place is invalid for the file's type if the journal has another content type now.
            with suppress(OptionError):
                is_same = locator_for(content_type, self._uuid_path) == locator_for(content_type, place)
            if not is_same:
                of_query, of_file = (repr(p) if p else "the default" for p in (self._uuid_path, place))
                got = f"{of_query}, but the query of {path} has {of_file} in {content_type}"
                expected = "the same place and type, or a new query with its own checkpoint and stateLocation"
                raise OptionError("uuidPath", got, expected)
        return _states(table, int(written["newest"])), int(written["start"])

    def older(self, journal: str, before: int, since: int) -> list[int]:
        """Return the offsets of files in ``[since, before)``, the largest first."""
        names = [(int(name), rest) for name, rest in self._names(journal)]
        return sorted((at for at, rest in names if not rest and since <= at < before), reverse=True)

    def save(
        self, journal: str, offset: int, start: int, states: ProducerStates, *, begin: int | None = None
    ) -> None:
        """Write the states at an offset, and remove files that no restart needs.

        Args:
            journal: The journal's name.
            offset: Offset of the states.
            start: Where the query started.
            states: The states.
            begin: Begin of the range that ends at ``offset``. The file at ``begin`` is kept: until the batch
                is committed, another batch may begin there and end elsewhere.

        Raises:
            OptionError: the file cannot be written.
        """
        # Producers are six bytes. As numbers they fill eight, whose first two are zero.
        octets = states.producers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
        producers = pa.Array.from_buffers(pa.binary(6), len(states), [None, pa.py_buffer(octets.tobytes())])
        numbers = (states.last_acks, states.last_clocks, states.begins, states.last_offsets)
        columns = [
            pa.Array.from_buffers(field.type, len(states), [None, pa.py_buffer(np.ascontiguousarray(column))])
            for field, column in zip(list(_SCHEMA)[1:], numbers, strict=True)
        ]
        metadata = {"form": FORM, "start": str(start), "newest": str(states.newest)}
        if self._content_type is not None:
            metadata |= {"contentType": self._content_type, "uuidPath": self._uuid_path or ""}
        table = pa.Table.from_arrays([producers, *columns], schema=_SCHEMA).replace_schema_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        # Attempts of a task, and speculative copies, may write the same file concurrently. Their states are
        # equal, so the last one changes nothing.
        try:
            self._write(self._path(journal, offset), seal(sink.getvalue().to_pybytes()))
        except OSError as error:
            # Another attempt of the task may have written the file, or a later batch may have removed it.
            if self.load(journal, offset, start) is None:
                got = f"a directory where the states of {journal!r} at {offset} cannot be written: {error}"
                expected = "one that all tasks can read and write"
                raise OptionError("stateLocation", got, expected) from error
        # Remove old files, and the unfinished files of tasks that died before the rename.
        names = [(int(name), rest) for name, rest in self._names(journal) if int(name) < offset]
        whole = sorted((at for at, rest in names if not rest), reverse=True)
        old = [str(at) for at in whole[KEPT_FILES - 1 :] if at != begin]
        for name in old + [f"{at}{rest}" for at, rest in names if rest]:
            with suppress(OSError):  # Another task removed it.
                self._system.delete_file(f"{self._base}/{journal}/{name}")

    def _write(self, path: str, content: bytes) -> None:
        from pyarrow.fs import LocalFileSystem

        # A bucket shows an object only when it is complete. In a directory, a rename has the same effect.
        local = isinstance(self._system, LocalFileSystem)
        target = f"{path}.{uuid.uuid4().hex}" if local else path
        try:
            self._put(target, content)
        except FileNotFoundError:
            # The directory is created only after a failure: buckets have none, and asking for one there
            # requires the permission to look at the bucket.
            self._system.create_dir(str(PurePosixPath(path).parent), recursive=True)
            self._put(target, content)
        # In a directory, a task that dies here leaves an unfinished file, which the next `save` at a larger
        # offset removes.
        failpoint("scan.before_states")
        if local:
            self._system.move(target, path)
        failpoint("scan.states_written")

    def _put(self, path: str, content: bytes) -> None:
        with self._system.open_output_stream(path) as file:
            file.write(content)

    def _names(self, journal: str) -> list[tuple[str, str]]:
        """Return the names of a journal's files: the offset, and the suffix of an unfinished file."""
        from pyarrow.fs import FileSelector

        try:
            infos = self._system.get_file_info(FileSelector(f"{self._base}/{journal}", allow_not_found=True))
        except OSError as error:
            log.warning("files of states cannot be listed journal=%s: %s", journal, error)
            return []
        names = [_FILE_NAME.fullmatch(info.base_name) for info in infos if info.is_file]
        return [(name[1], name[2] or "") for name in names if name]

    def _path(self, journal: str, offset: int) -> str:
        return f"{self._base}/{journal}/{offset}"


class RangeStates:
    """The states at the start and the end of one range of a query."""

    def __init__(
        self,
        journal: str,
        begin: int,
        end: int,
        *,
        start: int,
        files: StateFiles | None,
        catch_up: Callable[[ProducerStates, int, int], ProducerStates],
        missing: Callable[[int, int], list[tuple[int, int]]] | None = None,
    ) -> None:
        """Describe a range.

        Args:
            journal: The journal's name.
            begin: Begin of the range.
            end: End of the range.
            start: Where the query started.
            files: Files of states; None if no later range continues this one.
            catch_up: Takes states at an offset and returns those at a later one, from the journal's bytes.
            missing: Returns the missing bytes between two offsets; None if missing bytes are an error.
        """
        self._journal = journal
        self._begin = begin
        self._end = end
        self._start = start
        self._files = files
        self._catch_up = catch_up
        self._missing = missing

    def at_begin(self) -> ProducerStates:
        """Return the states at the start, without transactions whose bytes are missing."""
        states = self._states()
        begins = states.begins[states.begins >= 0]
        # Return all: either missing bytes are an error, which the second pass raises if it needs them, or no
        # transaction is open.
        if self._missing is None or not len(begins):
            return states
        for begin, end in self._missing(int(begins.min()), self._begin):
            states = without_lost(states, self._journal, begin, end)
        return states

    def at_end(self, states: ProducerStates) -> None:
        """Write the states at the end, and log the oldest open transaction."""
        opened = np.flatnonzero(states.begins >= 0)
        if len(opened):
            oldest = opened[np.argmin(states.begins[opened])]
            log.info(
                "transactions are open journal=%s at=%d count=%d oldest=%d producer=%s",
                *(self._journal, self._end, len(opened), states.begins[oldest]),
                producer_of(int(states.producers[oldest])).hex(),
            )
        if self._files is not None:
            self._files.save(self._journal, self._end, self._start, states, begin=self._begin)

    def _states(self) -> ProducerStates:
        # At its start a query has seen no message. The states in a file of another query do not count.
        if self._begin == self._start:
            return ProducerStates.none()
        if self._files is None:
            return self._caught_up(ProducerStates.none(), self._start)
        loaded = self._files.load(self._journal, self._begin, self._start)
        if loaded is not None:
            return loaded[0]
        # The directory is listed only if the file is missing.
        # The nearest older file saves the most reading. If it is damaged as well, the next one will do.
        for at in self._files.older(self._journal, self._begin, self._start):
            loaded = self._files.load(self._journal, at, self._start)
            if loaded is not None:
                return self._caught_up(loaded[0], at)
        return self._caught_up(ProducerStates.none(), self._start)

    def _caught_up(self, states: ProducerStates, at: int) -> ProducerStates:
        log.warning(
            "states of producers are read from the journal journal=%s begin=%d end=%d",
            *(self._journal, at, self._begin),
        )
        return self._catch_up(states, at, self._begin)


def without_lost(states: ProducerStates, journal: str, begin: int, end: int) -> ProducerStates:
    """Return the states after the missing bytes ``[begin, end)``, and log the transactions lost with them."""
    if lost := np.count_nonzero(states.open_before(end)):
        log.warning(
            "bytes of open transactions are gone, their messages give no rows journal=%s begin=%d end=%d "
            "transactions=%d",
            *(journal, begin, end, lost),
        )
    return states.lost_since(end)


def _states(table: pa.Table, newest: int) -> ProducerStates:
    texts = b"".join(table.column("producer").to_pylist())
    octets = np.zeros((table.num_rows, 8), np.uint8)
    octets[:, 2:] = np.frombuffer(texts, np.uint8).reshape(-1, 6)
    # Arrow's own conversions would import pandas if it is installed.
    last_acks, last_clocks, begins, last_offsets = (
        np.concatenate(
            [
                np.zeros(0, kind),
                *(
                    np.frombuffer(chunk.buffers()[1], kind)[chunk.offset : chunk.offset + len(chunk)]
                    for chunk in table.column(name).chunks
                ),
            ]
        )
        for name, kind in (
            ("last_ack", np.uint64),
            ("last_clock", np.uint64),
            ("begin", np.int64),
            ("last_offset", np.int64),
        )
    )
    producers = octets.view(">u8").ravel().astype(np.int64)
    return ProducerStates(producers, last_acks, last_clocks, begins, last_offsets, newest)


class OpenTransactions:
    """The open transactions of each journal, as its file last showed them. For one thread."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._read_at: dict[str, int] = {}
        """Offset of the file that was read of each journal, or ``UNREAD``; the latest reads come last."""
        self._open: dict[str, OpenJson] = {}

    def refresh(
        self,
        position: JournalOffsets,
        map_journals: Callable[[Callable[[str], OpenJson | None], Iterable[str]], dict[str, OpenJson | None]],
    ) -> None:
        """Read the files of journals that moved, and try those again whose file was missing.

        Args:
            position: End of the last batch. For a journal without a start, a file of any query counts.
            map_journals: Calls a function for many journals concurrently.
        """
        reached = position.read_through
        # Read new journals first, then the others in the order in which they were read last. If there are
        # more journals than one call may read, each has its turn.
        moved = [journal for journal in reached if journal not in self._read_at]
        moved += [journal for journal, at in self._read_at.items() if reached.get(journal, at) != at]

        def open_in(journal: str) -> OpenJson | None:
            at, start = reached[journal], position.starts.get(journal)
            # Before the query's first record, no transaction is open, and no task has written a file.
            if at in (0, start):
                return {}
            loaded = self._files.load(journal, at, start)
            return None if loaded is None else open_at(loaded[0], at) or {}

        for journal, opened in map_journals(open_in, list(islice(moved, REFRESHED_JOURNALS))).items():
            self._read_at.pop(journal, None)  # It moves to the end, so its next turn comes after all others.
            self._read_at[journal] = UNREAD if opened is None else reached[journal]
            self._open.pop(journal, None)
            if opened:
                self._open[journal] = opened
        for journal in self._read_at.keys() - reached.keys():
            del self._read_at[journal]
            self._open.pop(journal, None)

    @property
    def journals(self) -> set[str]:
        """Journals whose file could be read."""
        return {journal for journal, at in self._read_at.items() if at != UNREAD}

    def to_dict(self) -> dict[str, OpenJson]:
        """Return the open transactions by journal."""
        return dict(sorted(self._open.items()))


def open_at(states: ProducerStates, at: int) -> OpenJson | None:
    """Return the transactions that are open at an offset; None if there are none.

    Transactions of producers that have been silent for a day are omitted: a killed task leaves one forever.
    """
    # The clock of the machine limits that of the journal. Otherwise one message with a clock of the year 2100
    # would make every open transaction look a day old.
    opened = np.flatnonzero(states.awaited(int(Clock.at(time.time_ns()))))
    if not len(opened):
        return None
    oldest = opened[np.argsort(states.begins[opened], kind="stable")][:SHOWN]
    return {
        "at": at,
        "count": len(opened),
        "oldest": {
            str(states.begins[row]): {
                "producer": producer_of(int(states.producers[row])).hex(),
                "newest_ms": max(0, Clock(int(states.last_clocks[row])).unix_ns // 1_000_000),
            }
            for row in oldest
        },
    }
