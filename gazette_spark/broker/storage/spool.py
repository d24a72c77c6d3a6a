"""Implements spools: growing fragments on disk, so that a killed broker loses no acknowledged append.

A spool is two files: ``NNNNNNNN.data`` with the journal's bytes, and ``NNNNNNNN.log``, its commit log
(:mod:`gazette_spark.broker.storage.commit_log`). Bytes are staged behind the committed end as they arrive. A
commit writes one record to the log; only then is the append acknowledged. Bytes past the last complete
record, such as a staged append or a torn record, are cut off when the spool is next opened.

Written bytes are in the page cache, so a killed process loses nothing. With ``fsync``, a commit is on the
disk before it is answered, so a power cut loses nothing either: first the data is synced, then the names of
new files, then the record. Without it, a power cut may lose the last seconds; the rest still ends at a
commit, because each record has the SHA-1 of all bytes before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gazette_spark.broker.storage import commit_log
from gazette_spark.broker.storage.commit_log import CommitRecord, Registers, SpoolHeader
from gazette_spark.broker.storage.durable import make_directories, sync_directory
from gazette_spark.client._read.regular_files import open_regular_fd, open_regular_file, read_regular
from gazette_spark.protocol.fragments import Fragment

_log = logging.getLogger(__name__)

READ_BLOCK_BYTES = 1 << 20
"""Number of bytes to read at once when a whole spool is read, for recovery or an upload."""

_NO_SUM = bytes(20)


class _OpenFile:
    """An open file, closed with its last reference, so that no thread reads another file by its number."""

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = open_regular_fd(path, flags)
        weakref.finalize(self, os.close, self.fd)


class SpoolData(_OpenFile):
    """An open data file. It remains readable after its spool's deletion as long as a reader refers to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, os.O_RDWR | os.O_CREAT)

    def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``position``, counted from the spool's begin."""
        return os.pread(self.fd, size, position)

    def write(self, position: int, content: bytes) -> None:
        """Write all of ``content``."""
        view = memoryview(content)
        while view:
            written = os.pwrite(self.fd, view, position)
            view, position = view[written:], position + written


class Spool:
    """One spool. Its journal ensures that one thread at a time changes it."""

    def __init__(self, stem: Path, header: SpoolHeader, *, fsync: bool) -> None:
        self.stem = stem
        self.header = header
        self.begin = header.begin
        self.end = header.begin
        self.registers: Registers = header.registers
        self.first_append_time = 0.0
        self._fsync = fsync
        self._sum = hashlib.sha1(usedforsecurity=False)
        self._staged_sum = self._sum.copy()
        self._staged_end = header.begin
        self._data: SpoolData | None = None
        self._log: _OpenFile | None = None
        self._log_bytes = 0
        self._names_are_synced = True
        """Whether the directory is known to contain both files after a power cut."""

    def __repr__(self) -> str:
        return f"Spool({self.header.journal!r}, [{self.begin}, {self.end}), {self.stem.name})"

    @property
    def length(self) -> int:
        """Number of committed bytes."""
        return self.end - self.begin

    @property
    def fragment(self) -> Fragment:
        """The committed bytes as a local fragment. An empty one has a sum of zeros."""
        return Fragment(
            journal=self.header.journal,
            begin=self.begin,
            end=self.end,
            sum=self._sum.digest() if self.length else _NO_SUM,
            codec=self.header.codec,
        )

    @property
    def staged_fragment(self) -> Fragment:
        """The fragment after a commit of the staged bytes."""
        if self._staged_end == self.end:
            return self.fragment
        return replace(self.fragment, end=self._staged_end, sum=self._staged_sum.digest())

    def stage(self, content: bytes) -> None:
        """Write content behind the committed and staged bytes. Readers do not see it."""
        # Write by position, so that a write after a roll-back replaces what was staged before.
        self.data().write(self._staged_end - self.begin, content)
        self._staged_sum.update(content)
        self._staged_end += len(content)

    def roll_back(self) -> None:
        """Drop the staged bytes."""
        if self._staged_end != self.end:
            with contextlib.suppress(OSError):  # Bytes past the end are never read.
                os.ftruncate(self.data().fd, self.length)
        self._staged_end = self.end
        self._staged_sum = self._sum.copy()

    def commit_append(self, registers: Registers, now: float) -> None:
        """Make the staged bytes part of the spool, durably before it returns."""
        changed = None if registers == self.registers else registers
        record = CommitRecord(self._staged_end, self._staged_sum.digest(), now, changed)
        # Write the record last, after everything to which it refers: in a recovery, a record proves that the
        # append is complete. The state in memory changes after the record, so a failed write leaves the old
        # end.
        self.write_header()
        if self._fsync:
            os.fdatasync(self.data().fd)
        self._sync_names()
        assert self._log is not None
        fd, line = self._log.fd, commit_log.encode_commit(record)
        try:
            if os.write(fd, line) != len(line):
                raise OSError(f"{self!r}: short write to its commit log")
            if self._fsync:
                os.fdatasync(fd)
        except OSError:
            # Half a record would run into the next one, and a broker with a damaged log does not start.
            os.ftruncate(fd, self._log_bytes)
            raise
        self._log_bytes += len(line)
        self._apply(record)
        self._sum = self._staged_sum.copy()

    def write_header(self) -> None:
        """Write the commit log with its header, whole or not at all, unless it is there already."""
        if self._log is not None:
            return
        path = self.stem.with_suffix(".log")
        if not path.exists():
            make_directories(self.stem.parent, fsync=self._fsync)
            # A log without its header would be a spool without a begin, so the file gets its name only when
            # it is complete.
            partial = path.with_suffix(".log.partial")
            partial.write_bytes(commit_log.encode_header(self.header))
            if self._fsync:
                _sync(partial)
            partial.rename(path)
            self._names_are_synced = False
            self._sync_names()
        self._log = _OpenFile(path, os.O_RDWR | os.O_APPEND)
        self._log_bytes = os.fstat(self._log.fd).st_size

    def _sync_names(self) -> None:
        if self._fsync and not self._names_are_synced:
            sync_directory(self.stem.parent)
            self._names_are_synced = True

    def data(self) -> SpoolData:
        """Return the data file, and open it if it is closed."""
        if self._data is None:
            make_directories(self.stem.parent, fsync=self._fsync)
            path = self.stem.with_suffix(".data")
            if not path.exists():
                self._names_are_synced = False
            self._data = SpoolData(path)
        return self._data

    def blocks(self) -> Iterator[bytes]:
        """Return the committed bytes in order; they stay readable when the spool is deleted."""
        return self._blocks(self.data(), self.length)

    def _blocks(self, data: SpoolData, length: int) -> Iterator[bytes]:
        position = 0
        while position < length:
            block = data.read(position, min(READ_BLOCK_BYTES, length - position))
            if not block:
                raise OSError(f"{self!r}: its data file ends at {position}")
            yield block
            position += len(block)

    def release(self) -> None:
        """Close the files until they are needed again."""
        self._data = None
        self._log = None

    def delete(self) -> None:
        """Remove the files. A reader that has the data open keeps it."""
        self.release()
        for suffix in (".log", ".data"):  # Delete the log first, because recovery ignores data without a log.
            self.stem.with_suffix(suffix).unlink(missing_ok=True)

    def _apply(self, record: CommitRecord) -> None:
        if self.first_append_time == 0.0:
            self.first_append_time = record.at
        if record.registers is not None:
            self.registers = record.registers
        self.end = self._staged_end = record.end

    @classmethod
    def recover(cls, stem: Path, *, fsync: bool) -> Spool | None:
        """Open a spool of an earlier broker, cut back to its last commit; None if it has no header."""
        log_path = stem.with_suffix(".log")
        parsed = commit_log.parse_log(read_regular(log_path), str(log_path)) if log_path.exists() else None
        # Without a header, no commit can be read.
        if parsed is None or parsed.header is None:
            return None
        spool = cls(stem, parsed.header, fsync=fsync)
        log_bytes = len(commit_log.encode_header(parsed.header))
        data_path = stem.with_suffix(".data")
        if parsed.records and data_path.exists():
            log_bytes = spool._replay(parsed.records, data_path) or log_bytes
        lost = len(parsed.records) and parsed.records[-1][0].end - spool.end
        if lost:
            _log.warning("spool_cut_back spool=%r lost_bytes=%d", spool, lost)
        # Cut both files to the last proven commit, so that the next one continues from there.
        os.truncate(log_path, log_bytes)
        if data_path.exists():
            os.truncate(data_path, spool.length)
        spool._staged_sum = spool._sum.copy()
        return spool

    def _replay(self, records: tuple[tuple[CommitRecord, int], ...], data_path: Path) -> int:
        """Apply every commit whose bytes are complete; return the log's length up to the last."""
        log_bytes = 0
        with open_regular_file(data_path) as data:
            for record, length in records:
                running = self._sum.copy()
                running.update(data.read(record.end - self.end))
                # Without `fsync`, a power cut may keep a record and lose its bytes. Everything up to the
                # record before is proven.
                if running.digest() != record.sum:
                    break
                self._sum, log_bytes = running, length
                self._apply(record)
        return log_bytes


def _sync(path: Path) -> None:
    fd = open_regular_fd(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
