"""Stores in SQLite: the application's tables and the checkpoint commit in one SQL transaction.

:class:`SqliteStore` is for a database file that all hosts of a shard reach. It does what Gazette's
``SQLStore`` does with a remote database: the table ``gazette_checkpoints`` has a row for each shard, with a
fence. Restoring the checkpoint raises the fence, and a commit under an older one fails. The checkpoint is
stored with its SHA-256, in a field that Gazette's programs skip.

:class:`RecordedSqliteStore` is for a database in a host's own directory, which moves by its recovery log.
SQLite writes to its write-ahead log; after each commit the pages in there
(:func:`read_changes`) are recorded as writes to the database file, in one
transaction of the recorder. So a replay gives the file as it was after a commit, never in between. When what
was recorded is :data:`REWRITE_FACTOR` times the database, the whole file is recorded again and replaces the
old one: a player reads no more than that.

An application works on the connection that :meth:`transaction` returns, in its ``consume_message`` or,
better, only in ``finalize_txn``. The next transaction can begin when the commit is done on disk.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
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
"""Magic, version, page size, checkpoints made, salt, checksum."""

_FRAME = struct.Struct(">II8s8s")
"""Page number, pages of the database after the commit or 0, salt, checksum."""


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
    """Offset of a page's newest bytes in the log, by the page's number, from 1 on."""

    @property
    def size(self) -> int:
        """Bytes of the pages."""
        return len(self.pages) * self.page_size

    def runs(self) -> Iterator[tuple[int, list[int]]]:
        """Yield neighbours among the pages: the offset of the first in the database, places in the log."""
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
    """Return the pages that were committed since a position. Nobody may write to the log meanwhile.

    A commit appends the pages that it has changed, as frames, to the file ``-wal`` beside the database. The
    frame that ends the commit says so. So the pages of commits are those up to the last such frame: the pages
    behind it are of a transaction that was rolled back, or of the time before the log began again, with
    another salt. Format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
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
"""The table of checkpoints, as Gazette describes it."""

BUSY_S = 30.0
"""Seconds to wait for other writers of a shared database."""

DATABASE = "store.sqlite"
"""Name of the database in a recorded directory."""

NEXT_DATABASE = "store.sqlite.next"
"""Name, in the recovery log, of a database that is recorded as a whole and not complete yet."""

REWRITE_FACTOR = 4
"""Bytes recorded since the whole database was, for each byte of it, after which it is recorded again."""

REWRITE_BYTES = 16 << 20
"""Bytes that are recorded in any case before the whole database is recorded again."""

MAX_CHANGE_BYTES = 32 << 20
"""Pages of a commit, in bytes, up to which they are recorded one by one; else the whole database is."""

COPY_BYTES = 1 << 20
"""Bytes of the database that are recorded at a time."""

CHECKPOINT_FRAMES = 1000
"""Frames of the write-ahead log after which they are copied into the database."""


def _connect(path: Path) -> sqlite3.Connection:
    # Transactions are begun and ended here, not by the module. One thread at a time uses the connection.
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


class _SqliteBase:
    """A connection, its transaction, and the row of the shard's checkpoint."""

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
        """Return fence and checkpoint of the shard's row; 0 if it has none."""
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
        """Store a checkpoint in the present transaction.

        Raises:
            StoreFencedError: the row has another fence, or is there although none was.
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
    """State in tables of a database that all hosts of a shard share, see the module.

    Shards may share a database, each with its own row: SQLite lets one of them write at a time.
    """

    def __init__(self, path: str | Path, shard: str) -> None:
        """Open a database, and make the table of checkpoints if it is missing.

        Args:
            path: the database's file, which is made if it is missing.
            shard: the shard's fully qualified name, ``shard.fqn``.
        """
        super().__init__(Path(path).absolute(), shard)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(TABLE)
        self._commit: Future[None] = finished_operation()

    def transaction(self) -> sqlite3.Connection:
        """Return the connection, in a transaction. Waits for the commit under way.

        Neither commit nor roll back it.
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
                # A row, so that the next store of the shard has a fence to raise.
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

        The future fails with a StoreFencedError if another store of the shard was restored since this one
        was. Then, and where one of ``wait_for`` failed, the transaction is rolled back.
        """
        operation: AsyncOperation[None] = AsyncOperation()
        content, dependencies = checkpoint.SerializeToString(), tuple(wait_for)
        self.transaction()
        self._commit = operation
        run = _ending(operation, lambda: self._commit_now(content, dependencies))
        threading.Thread(target=run, name="sqlite-commit", daemon=True).start()
        return operation

    def destroy(self) -> None:
        """Close the database; a transaction that was not committed is rolled back."""
        with suppress(TimeoutError):
            self._commit.exception(BUSY_S)
        if not self._commit.done():
            # Its thread owns the connection until its dependencies end.
            _LOGGER.warning("sqlite_store.left_open path=%s", self.path)
            return
        self._roll_back()
        self._connection.close()

    def _commit_now(self, checkpoint: bytes, wait_for: tuple[OpFuture, ...]) -> None:
        try:
            for dependency in wait_for:
                dependency.exception()
                if (error := failure_of(dependency)) is not None:
                    raise DependencyError(f"store {self.path}", str(error)) from error
            self._put(self._fence, checkpoint)
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise


class RecordedSqliteStore(_SqliteBase):
    """State in tables of a database that a recovery log moves between hosts, see the module.

    The file is at :attr:`path`. Other connections may read it; they must not write.
    """

    def __init__(self, recorder: Recorder, shard: str) -> None:
        """Open the database that was recovered, or begin one.

        Args:
            recorder: of the directory that was recovered.
            shard: the shard's fully qualified name, ``shard.fqn``.
        """
        self._recorder = recorder
        path = recorder.directory / DATABASE
        path.with_name(NEXT_DATABASE).unlink(missing_ok=True)
        with recorder.begin() as operations:
            if f"/{NEXT_DATABASE}" in operations.fsm.links:
                # A rewrite was under way when the last host ended.
                operations.remove(NEXT_DATABASE)
            self._fnode = operations.fsm.links.get(f"/{DATABASE}")
        if not _uses_wal(path):
            # Turning it on changes the file outside the write-ahead log, so the whole file has to be
            # recorded.
            self._fnode = None
        super().__init__(path, shard)
        self._wal = path.with_name(path.name + "-wal")
        self._position = WalPosition()
        self._recorded_bytes = 0
        # The recovery log is durable; after a crash, the file is rebuilt from it.
        for pragma in ("journal_mode = WAL", "synchronous = OFF", "wal_autocheckpoint = 0"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute(TABLE)

    def transaction(self) -> sqlite3.Connection:
        """Return the connection, in a transaction. Neither commit nor roll back it."""
        return self._begin()

    def restore_checkpoint(self) -> pc.Checkpoint:
        """Return the checkpoint of the database. The recovery log's hand-off has fenced off other stores."""
        self._fence, checkpoint = self._stored()
        return checkpoint

    def start_commit(self, checkpoint: pc.Checkpoint, wait_for: Iterable[OpFuture]) -> Future[None]:
        """Commit the transaction with a checkpoint to the file, and begin to record it.

        The future fails with a RecorderFencedError if another host has the recovery log, and with the error
        of an operation that failed. Then the file is ahead of the log, and the store cannot be used any
        more.
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
        except Exception as error:  # noqa: BLE001  # Whatever it is, the commit has failed.
            self._roll_back()
            return finished_operation(error)
        return self._recorder.barrier()

    def destroy(self) -> None:
        """Close the database and remove the directory: the recovery log has what is committed."""
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
        if not fits_pages or self._recorded_bytes > limit:
            self._rewrite(must=not fits_pages)
        elif self._position.frames > CHECKPOINT_FRAMES:
            self._copy_wal()

    def _rewrite(self, *, must: bool) -> None:
        """Record the whole database in place of all earlier recordings."""
        if not self._copy_wal("FULL" if must else "PASSIVE"):
            if must:
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
        """Copy the write-ahead log into the database; return whether all of it could be.

        A reader of an older state prevents that. FULL waits for readers, PASSIVE does not.
        """
        _, frames, copied = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return bool(frames == copied)


def _uses_wal(path: Path) -> bool:
    """Return whether a database file says that it is written by a write-ahead log."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(20)[18:] == b"\2\2"


def _ending(operation: AsyncOperation[None], run: Callable[[], None]) -> Callable[[], None]:
    """Return a function that runs another, and ends an operation as it ends."""

    def ended() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001  # Somebody waits for it.
            operation.resolve(error)
        else:
            operation.resolve()

    return ended
