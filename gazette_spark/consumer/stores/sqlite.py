"""Stores state in SQLite: the application's tables and the checkpoint commit in one SQL transaction.

:class:`SqliteStore` is for a database file that all hosts of a shard can reach. It does what Gazette's
``SQLStore`` does with a remote database: the table ``gazette_checkpoints`` has a row for each shard, with a
fence. Restoring the checkpoint raises the fence, and a commit with an older fence fails. The checkpoint is
stored with its SHA-256, in a field that Gazette's programs skip.

:class:`RecordedSqliteStore` is for a database in a host's own directory, which a recovery log moves between
hosts. SQLite writes to its write-ahead log. After each commit, the pages in it (:func:`read_changes`) are
recorded as writes to the database file, in one transaction of the recorder. So a replay always produces the
file as it was after a commit. When :data:`REWRITE_FACTOR` times the size of the database has been recorded,
the whole file is recorded again and replaces the old one, which limits how much a player reads.

An application uses the connection that :meth:`transaction` returns, in ``consume_message`` or, better, only
in ``finalize_txn``. The next transaction can begin when the commit is on disk.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gazette_spark.client._append.futures import AsyncOperation, OpFuture, failure_of, finished_operation
from gazette_spark.consumer.recoverylog.recorder import Recorder
from gazette_spark.errors import DependencyError, StoreFencedError, StoreFormatError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.seal import seal_message, unseal_message

_HEADER = struct.Struct(">IIII8s8s")
"""Header of the log: magic, version, page size, number of checkpoints, salt, checksum."""

_FRAME = struct.Struct(">II8s8s")
"""Header of a frame: page number, number of pages of the database after the commit or 0, salt, checksum."""


@dataclass(frozen=True, slots=True)
class WalPosition:
    """The position up to which a write-ahead log was read."""

    salt: bytes = b""
    frames: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """The pages of all commits since a position."""

    position: WalPosition
    page_size: int
    pages: dict[int, int]
    """Offset of a page's newest bytes in the log, by page number, from 1."""

    @property
    def size(self) -> int:
        """Number of bytes of the pages."""
        return len(self.pages) * self.page_size

    def runs(self) -> Iterator[tuple[int, list[int]]]:
        """Yield runs of adjacent pages: the first one's offset in the database, and offsets in the log."""
        run: list[int] = []
        first = 0
        for number in sorted(self.pages):
            if run and number != first + len(run):
                yield (first - 1) * self.page_size, run
                run = []
            if not run:
                first = number
            run.append(self.pages[number])
        if run:
            yield (first - 1) * self.page_size, run


def read_changes(wal: BinaryIO, position: WalPosition) -> Changes:
    """Return the pages that were committed since a position. The log must not be written meanwhile.

    A commit appends the changed pages as frames to the file ``-wal`` next to the database. The last frame of
    a commit is marked. So committed pages are those up to the last marked frame. Pages after it belong to a
    transaction that was rolled back, or are older than the restart of the log and have another salt. Format:
    https://www.sqlite.org/fileformat2.html#the_write_ahead_log
    """
    wal.seek(0)
    header = wal.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return Changes(position, 0, {})
    _, _, page_size, _, salt, _ = _HEADER.unpack(header)
    if salt != position.salt:
        position = WalPosition(salt)
    uncommitted: dict[int, int] = {}
    pages: dict[int, int] = {}
    frame, committed = position.frames, position.frames
    while True:
        offset = _HEADER.size + frame * (_FRAME.size + page_size)
        wal.seek(offset)
        frame_header = wal.read(_FRAME.size)
        if len(frame_header) < _FRAME.size:
            break
        number, size_after, frame_salt, _ = _FRAME.unpack(frame_header)
        if frame_salt != salt:
            break
        uncommitted[number] = offset + _FRAME.size
        frame += 1
        if size_after:
            pages |= uncommitted
            uncommitted.clear()
            committed = frame
    return Changes(WalPosition(salt, committed), page_size, pages)


_LOGGER = logging.getLogger(__name__)

TABLE = """CREATE TABLE IF NOT EXISTS gazette_checkpoints (
    shard_fqn TEXT PRIMARY KEY NOT NULL,
    fence INTEGER NOT NULL,
    checkpoint BLOB NOT NULL
)"""
"""The table of checkpoints, as Gazette defines it."""

BUSY_S = 30.0
"""Seconds to wait for other writers of a shared database."""

DATABASE = "store.sqlite"
"""Name of the database in a recorded directory."""

NEXT_DATABASE = "store.sqlite.next"
"""Name in the recovery log of a database that is being recorded as a whole."""

REWRITE_FACTOR = 4
"""Number of recorded bytes for each byte of the database after which the whole database is recorded again."""

REWRITE_BYTES = 16 << 20
"""Minimum number of recorded bytes before the whole database is recorded again."""

MAX_CHANGE_BYTES = 32 << 20
"""Maximum number of bytes of a commit's pages that are recorded one by one. For more, the whole database is
recorded."""

COPY_BYTES = 1 << 20
"""Number of bytes of the database to record at a time."""

CHECKPOINT_FRAMES = 1000
"""Number of frames in the write-ahead log after which they are copied into the database."""


def _connect(path: Path) -> sqlite3.Connection:
    # This store begins and ends transactions, not the module. One thread at a time uses the connection.
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


class _SqliteBase:
    """A connection, its transaction, and the row with the shard's checkpoint."""

    def __init__(self, path: Path, shard: str) -> None:
        self.path = path
        self.shard = shard
        self._fence = 0
        self._connection = _connect(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.shard!r})"

    def _begin(self) -> sqlite3.Connection:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def _stored(self) -> tuple[int, pc.Checkpoint]:
        """Return fence and checkpoint of the shard's row; the fence is 0 if there is no row."""
        query = "SELECT fence, checkpoint FROM gazette_checkpoints WHERE shard_fqn = ?"
        row = self._connection.execute(query, (self.shard,)).fetchone()
        if row is None:
            return 0, pc.Checkpoint()
        try:
            checkpoint = unseal_message(row[1], self.shard, "its checkpoint")
            return int(row[0]), pc.Checkpoint.FromString(checkpoint)
        except Exception as error:
            problem = f"row {self.shard!r} of gazette_checkpoints cannot be read: {error}"
            raise StoreFormatError(str(self.path), problem) from error

    def _put(self, fence: int, checkpoint: bytes) -> None:
        """Store a checkpoint in the current transaction.

        Raises:
            StoreFencedError: the row has another fence, or exists although there was none.
        """
        checkpoint = seal_message(checkpoint, self.shard)
        if fence:
            done = self._connection.execute(
                "UPDATE gazette_checkpoints SET checkpoint = ? WHERE shard_fqn = ? AND fence = ?",
                (checkpoint, self.shard, fence),
            )
        else:
            done = self._connection.execute(
                "INSERT OR IGNORE INTO gazette_checkpoints (shard_fqn, checkpoint, fence) VALUES (?, ?, 1)",
                (self.shard, checkpoint),
            )
        if done.rowcount == 0:
            raise StoreFencedError(str(self.path), self.shard)

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


class SqliteStore(_SqliteBase):
    """State in tables of a database that all hosts of a shard share; see the module.

    Shards may share a database, each with its own row. SQLite lets only one of them write at a time.
    """

    def __init__(self, path: str | Path, shard: str) -> None:
        """Open a database, and create the table of checkpoints if it is missing.

        Args:
            path: the database's file, which is created if it is missing.
            shard: the shard's fully qualified name, ``shard.fqn``.
        """
        super().__init__(Path(path).absolute(), shard)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(TABLE)
        self._commit: Future[None] = finished_operation()

    def transaction(self) -> sqlite3.Connection:
        """Return the connection, in a transaction, after waiting for a commit in progress.

        Do not commit it or roll it back.
        """
        self._commit.exception()
        return self._begin()

    def restore_checkpoint(self) -> pc.Checkpoint:
        """Return the checkpoint of the shard's row, and raise its fence."""
        self._commit.exception()
        self._begin()
        try:
            self._connection.execute(
                "UPDATE gazette_checkpoints SET fence = fence + 1 WHERE shard_fqn = ?", (self.shard,)
            )
            fence, checkpoint = self._stored()
            if not fence:
                # Insert a row, so that the next store of the shard has a fence to raise.
                self._put(0, checkpoint.SerializeToString())
                fence = 1
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._fence = fence
        return checkpoint

    def start_commit(self, checkpoint: pc.Checkpoint, wait_for: Iterable[OpFuture]) -> Future[None]:
        """Begin to commit the transaction with a checkpoint, in another thread.

        The future fails with a StoreFencedError if another store of the shard was restored after this one. In
        this case, or if one of ``wait_for`` fails, the transaction is rolled back.
        """
        operation: AsyncOperation[None] = AsyncOperation()
        content, dependencies = checkpoint.SerializeToString(), tuple(wait_for)
        self.transaction()
        self._commit = operation

        def commit() -> None:
            try:
                for dependency in dependencies:
                    dependency.exception()
                    if (failure := failure_of(dependency)) is not None:
                        raise DependencyError(f"store {self.path}", str(failure)) from failure
                self._put(self._fence, content)
                self._connection.execute("COMMIT")
            except BaseException as error:  # noqa: BLE001  # The operation's waiters get it.
                self._roll_back()
                operation.resolve(error)
            else:
                operation.resolve()

        threading.Thread(target=commit, name="sqlite-commit", daemon=True).start()
        return operation

    def destroy(self) -> None:
        """Close the database. A transaction that was not committed is rolled back."""
        with suppress(TimeoutError):
            self._commit.exception(BUSY_S)
        if not self._commit.done():
            # The commit's thread uses the connection until its dependencies end.
            _LOGGER.warning("sqlite_store.left_open path=%s", self.path)
            return
        self._roll_back()
        self._connection.close()


class RecordedSqliteStore(_SqliteBase):
    """State in tables of a database that a recovery log moves between hosts; see the module.

    The file is at :attr:`path`. Other connections may read it but must not write.
    """

    def __init__(self, recorder: Recorder, shard: str) -> None:
        """Open the recovered database, or begin a new one.

        Args:
            recorder: recorder of the recovered directory.
            shard: the shard's fully qualified name, ``shard.fqn``.
        """
        self._recorder = recorder
        path = recorder.directory / DATABASE
        path.with_name(NEXT_DATABASE).unlink(missing_ok=True)
        with recorder.begin() as operations:
            if f"/{NEXT_DATABASE}" in operations.fsm.links:
                # The last host ended during a rewrite.
                operations.remove(NEXT_DATABASE)
            self._fnode = operations.fsm.links.get(f"/{DATABASE}")
        header = b""
        if path.is_file():
            with path.open("rb") as file:
                header = file.read(20)
        if header[18:] != b"\2\2":
            # The file is not marked as using a write-ahead log. Turning that on changes the file directly, so
            # the whole file has to be recorded.
            self._fnode = None
        super().__init__(path, shard)
        self._wal = path.with_name(path.name + "-wal")
        self._position = WalPosition()
        self._recorded_bytes = 0
        # The recovery log is durable, and after a crash the file is rebuilt from it, so SQLite need not sync.
        for pragma in ("journal_mode = WAL", "synchronous = OFF", "wal_autocheckpoint = 0"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute(TABLE)

    def transaction(self) -> sqlite3.Connection:
        """Return the connection, in a transaction. Do not commit it or roll it back."""
        return self._begin()

    def restore_checkpoint(self) -> pc.Checkpoint:
        """Return the database's checkpoint. The hand-off of the recovery log has fenced off other stores."""
        self._fence, checkpoint = self._stored()
        return checkpoint

    def start_commit(self, checkpoint: pc.Checkpoint, wait_for: Iterable[OpFuture]) -> Future[None]:
        """Commit the transaction with a checkpoint to the file, and begin to record it.

        The future fails with a RecorderFencedError if another host has the recovery log, and with the error
        of an operation that failed. Then the file is ahead of the log, and the store can no longer be used.
        """
        barrier = self._recorder.barrier(wait_for)
        if barrier.done() and barrier.exception() is not None:
            return barrier
        self._begin()
        try:
            self._put(self._fence, checkpoint.SerializeToString())
            self._connection.execute("COMMIT")
            self._fence = self._fence or 1
            self._record()
        except Exception as error:  # noqa: BLE001  # With any error, the commit has failed.
            self._roll_back()
            return finished_operation(error)
        return self._recorder.barrier()

    def destroy(self) -> None:
        """Close the database and remove the directory, because the recovery log has the committed state."""
        self._roll_back()
        self._connection.close()
        shutil.rmtree(self._recorder.directory, ignore_errors=True)

    def _record(self) -> None:
        """Record what was committed since the last call."""
        with self._wal.open("rb") as wal:
            changes = read_changes(wal, self._position)
            fits_pages = self._fnode is not None and changes.size <= MAX_CHANGE_BYTES
            if fits_pages:
                assert self._fnode is not None
                with self._recorder.begin() as operations:
                    for offset, places in changes.runs():
                        pages = bytearray()
                        for place in places:
                            wal.seek(place)
                            pages += wal.read(changes.page_size)
                        operations.write(self._fnode, offset, pages)
        self._position = changes.position
        self._recorded_bytes += changes.size
        limit = max(REWRITE_BYTES, REWRITE_FACTOR * self.path.stat().st_size)
        if fits_pages and self._recorded_bytes <= limit:
            if self._position.frames > CHECKPOINT_FRAMES:
                self._copy_wal()
            return
        # Record the whole database, which replaces all earlier recordings.
        if not self._copy_wal("PASSIVE" if fits_pages else "FULL"):
            if not fits_pages:
                problem = f"another connection has read it for {BUSY_S:g} s, so that it cannot be recorded"
                raise StoreFormatError(str(self.path), problem)
            return
        with self._recorder.begin() as operations:
            fnode = operations.create(NEXT_DATABASE)
        offset = 0
        with self.path.open("rb") as file:
            while content := file.read(COPY_BYTES):
                with self._recorder.begin() as operations:
                    operations.write(fnode, offset, content)
                offset += len(content)
        with self._recorder.begin() as operations:
            operations.rename(NEXT_DATABASE, DATABASE)
        self._fnode, self._recorded_bytes = fnode, 0
        _LOGGER.info("sqlite_store.rewritten log=%s bytes=%d", self._recorder.log, offset)

    def _copy_wal(self, mode: str = "PASSIVE") -> bool:
        """Copy the write-ahead log into the database, and return whether all of it was copied.

        A reader of an older state prevents a complete copy. FULL waits for readers; PASSIVE does not.
        """
        _, frames, copied = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return bool(frames == copied)
