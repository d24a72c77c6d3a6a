"""Appends in the background: batched, in order, and retried until they succeed.

A program writes with :meth:`AppendService.append` or :meth:`~AppendService.start_append` and continues.
Appends to one journal are sent one after the other, in the order in which they began. While one is in flight,
the next ones are collected, and those with the same options become a single call to the broker. So many small
appends are cheap.

The service guarantees that the bytes of one writer are contiguous, and in the order of the calls. An append
begins only after all its dependencies have succeeded. If an append fails, its result raises the reason, and
so do all later appends to its journal, until a new service is made. The service does not prevent duplicates:
an append that is retried after a broken connection may be in the journal twice.

An outage is not a failure: without a timeout, appends are retried until the service is closed, and wait in
memory, then on disk. A wrong address of a broker looks like an outage: warnings in the log and the errors of
waits name it. An error of the client's token function is a failure, so the function should repeat what may
succeed later.

:mod:`gazette_spark.client._append.queue` decides. The threads here carry out the decisions, and writers wait
here for room and for their turn.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from types import EllipsisType, TracebackType
from typing import BinaryIO, NoReturn, Protocol, Self, TypeVar, Unpack, cast

from gazette_spark.client._append.append import (
    Appender,
    AppendKeywords,
    AppendOptions,
    AppendResult,
    Bytes,
    append_options,
)
from gazette_spark.client._append.futures import (
    OpFuture,
    OpFutures,
    failure_of,
    finished_operation,
    unfinished,
)
from gazette_spark.client._append.queue import (
    MAX_MEMORY_BYTES,
    MAX_PENDING_BYTES,
    AppendBatch,
    AppendQueue,
    Await,
    BufferTarget,
    JournalQueue,
    Limits,
    Resolve,
    Send,
    Work,
)
from gazette_spark.client._transport.retry import check_seconds
from gazette_spark.client.client import Client
from gazette_spark.errors import (
    AppendWaitError,
    BacklogError,
    ClosedError,
    GazetteError,
    OptionError,
    ProtocolError,
)
from gazette_spark.protocol import protocol_pb2 as pb

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

MAX_CONCURRENCY = 16
"""Maximum number of appends in flight, each to another journal and on its own thread."""

SLOW_S = 1.0
"""Seconds without an answer after which an append counts as hanging, and its thread no longer counts."""

MAX_THREADS = 1024
"""Maximum number of threads, including hanging ones."""

JOIN_TIMEOUT_S = 5.0
"""Seconds that closing waits for threads whose calls were cancelled."""


class AsyncAppend:
    """One writer's part of an append in the background.

    Until :meth:`release` it belongs to the thread that began it, and no other thread writes to the journal.
    As a context manager it is released at the end, or aborted by an error. Then any thread may wait for it.
    """

    __slots__ = ("_batch", "_begin", "_error", "_owner", "_service", "_size")

    def __init__(self, service: AppendService, batch: AppendBatch, begin: int, size: int, owner: int) -> None:
        self._service = service
        self._batch = batch
        self._begin = begin
        self._size = size
        self._owner = owner
        """Id of the writing thread; 0 after writing has ended."""
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        state = "open" if self._owner else "done" if self.done() else "pending"
        return f"AsyncAppend({self._batch.options.journal!r}, size={self._size}, {state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._owner:
            return
        if error is None:
            self.release()
        else:
            self.abort(error)

    @property
    def request(self) -> pb.AppendRequest:
        """The first message of the request that was or will be made."""
        return self._batch.options.request()

    @property
    def future(self) -> Future[AppendResult]:
        """The whole append's future, for functions such as ``concurrent.futures.wait``."""
        # An aborted writer's bytes were removed from the batch, whose outcome is not the writer's.
        if self._error is not None:
            return finished_operation(self._error)  # type: ignore[return-value]  # It never has a result.
        return self._batch.operation

    @property
    def response(self) -> AppendResult:
        """Result of the whole append, which may include bytes of other writers.

        Raises:
            ClosedError: the append is not done yet.
        """
        if not self.done():
            raise ClosedError(f"append to journal {self._batch.options.journal!r}", "it has no response yet")
        return self.result()

    @property
    def span(self) -> tuple[int, int]:
        """Range ``[begin, end)`` of this writer's bytes, after the append is done."""
        # The broker reports one range for the whole append. This writer's part follows those of the writers
        # that entered the batch before it.
        begin = self.response.begin + self._begin
        return begin, begin + self._size

    def write(self, content: Bytes) -> int:
        """Add bytes, and return their number. May wait for room.

        Raises:
            BacklogError: there was no room before the timeout.
            ClosedError: the append was already released or aborted, or the service is closed.
        """
        self._check_open()
        # Cast to bytes, because the length of a view of other items is not in bytes.
        view = memoryview(content).cast("B")
        try:
            self._service._write(self._batch, view, self._size)
        except BaseException as error:
            # After a failed write the batch may have some of the bytes. The release takes all of this
            # writer's back, so that no half of a message is appended.
            self.require(error)
            raise
        self._size += len(view)
        return len(view)

    def require(self, error: BaseException | None) -> Self:
        """Make :meth:`release` abort and raise ``error``, unless it is None or there is an earlier error."""
        self._check_open()
        self._error = self._error or error
        return self

    def release(self) -> None:
        """End writing: the bytes will be appended.

        Raises:
            Exception: a requirement is not met, or a write failed. The bytes were removed from the batch.
        """
        self._check_open()
        # Only now is it certain whether a writer has bytes. Brokers refuse both cases, but a refusal ends all
        # appends to the journal. Here only this writer fails.
        options = self._batch.options
        if self._error is None and self._size == 0 and options.changes_registers:
            self._error = ProtocolError("AppendRequest", "register modification requires non-empty Append")
        if self._error is None and self._size and not options.takes_content:
            suspend = pb.AppendRequest.Suspend.Name(options.suspend)
            self._error = ProtocolError("AppendRequest.Suspend", f"{suspend} requires an empty Append")
        # End even if a requirement is not met: leaving removes the bytes and lets the next writer in.
        self._end()
        if self._error is not None:
            raise self._error

    def abort(self, error: BaseException | None = None) -> None:
        """Remove this writer's bytes, but not those of others. Does nothing after a release."""
        # After a release the bytes may be on their way, and nobody can take them back.
        if self._owner:
            what = f"append to journal {self._batch.options.journal!r}"
            self._error = self._error or error or ClosedError(what, "its writer aborted it")
            self._end()

    def done(self) -> bool:
        """Return whether the append has succeeded, failed, or was aborted."""
        return not self._owner and (self._error is not None or self._batch.operation.done())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the append is done, and return why it failed, or None.

        Raises:
            TimeoutError: the append is not done within ``timeout`` seconds.
        """
        # The batch is not sent before its writer leaves, so this thread would wait for itself.
        if self._owner == threading.get_ident():
            raise ClosedError(
                f"append to journal {self._batch.options.journal!r}", "release it before waiting for it"
            )
        if self._error is None:
            try:
                error = self._batch.operation.exception(timeout)
            except TimeoutError:
                journal = self._batch.options.journal
                raise TimeoutError(f"append to journal {journal!r}: {self._service._backlog()}") from None
            if self._error is None:
                journal_queue = self._batch.journal_queue
                # This caller sees the failure. `close` only raises failures that no caller has seen.
                journal_queue.reported |= error is not None and journal_queue.failure is not None
                return error
        return self._error

    def result(self, timeout: float | None = None) -> AppendResult:
        """Wait until the append is done, and return the result of the whole append.

        Raises:
            GazetteError: the append failed.
            TimeoutError: the append is not done within ``timeout`` seconds.
        """
        error = self.exception(timeout)
        if error is not None:
            # Many threads may raise the error, and each would extend its traceback.
            raise error.with_traceback(None)
        return self._batch.operation.result()

    def add_done_callback(self, fn: Callable[[AsyncAppend], object], /) -> None:
        """Call ``fn`` with this append when the whole append is done: now if it is, or in another thread.

        The other thread belongs to the service, so ``fn`` must not wait for other appends.
        """
        self.future.add_done_callback(lambda _: fn(self))

    def _end(self) -> None:
        # Set this first, so that a second release or abort finds the append ended, even if leaving raises.
        self._owner = 0
        self._service._leave(self._batch, self._begin, keep=self._error is None)

    def _check_open(self) -> None:
        if not self._owner:
            what = f"append to journal {self._batch.options.journal!r}"
            raise ClosedError(what, "it was released or aborted")


class AsyncJournalClient(Protocol):
    """The interface of a client whose appends run in the background, which tests can replace."""

    def start_append(
        self,
        journal: str | AppendOptions,
        *,
        dependencies: Iterable[OpFuture | AsyncAppend] = (),
        **keywords: Unpack[AppendKeywords],
    ) -> AsyncAppend:
        """Begin an append."""

    def append(self, journal: str, content: Bytes) -> AsyncAppend:
        """Append bytes."""

    def pending_except(self, journal: str) -> OpFutures:
        """Return the pending appends to other journals."""


@dataclass(slots=True)
class _Turn:
    """The queue of writers that wait for their turn to append to one journal."""

    changed: threading.Condition
    waiting: int = 0


class AppendService:
    """Batches and sends appends to any number of journals, and retries them if needed.

    Thread-safe. It belongs to the process that made it: it cannot be pickled, and does not survive a fork. As
    a context manager it is flushed and closed at the end. It does not close its client.
    """

    def __init__(
        self,
        client: Client,
        *,
        timeout_s: float | None = None,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
        max_concurrency: int = MAX_CONCURRENCY,
        spool_dir: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a service, without starting a thread.

        Args:
            client: Client that makes the calls.
            timeout_s: Seconds for which a batch is tried when it is its turn, and seconds that it may wait
                before that for dependencies outside this service; then its journal has failed. None means
                until the service is closed. Callers wait equally long for room, for another writer's release
                and for a flush, or, with None, as long as the client's ``timeout_s``.
            max_pending_bytes: Maximum number of bytes that wait to be appended; then writers wait.
            max_memory_bytes: Maximum number of these bytes in memory; others go to files.
            max_concurrency: Maximum number of appends in flight, not counting those without an answer for
                SLOW_S, so that a hanging journal does not block others.
            spool_dir: Directory of the files, by default that of temporary files. The files have no names.
            clock: Seconds from any origin.
        """
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        if max_concurrency < 1:
            raise OptionError("max_concurrency", repr(max_concurrency), "1 or more")
        # Appends to different journals share these limits, so one journal behind an unavailable broker can
        # use them up. Then all writers wait, which is better than a process without memory.
        limits = Limits(pending_bytes=max_pending_bytes, memory_bytes=max_memory_bytes)
        self._client = client
        # Without a timeout, appends outlast any outage, but a blocked caller must not wait forever: it may
        # hold what others wait for.
        self._wait_s = client.timeout_s if timeout_s is None else timeout_s
        self._queue = AppendQueue(limits, timeout_s=timeout_s, attempt_timeout_s=client.timeout_s)
        self._max_threads = max_concurrency
        self._spool_dir = spool_dir
        self._clock = clock
        # One lock for the queue, and conditions on it for those who wait: threads for work, writers for room
        # and for their turn, the watcher for hanging calls. It is never held during a call, a callback or an
        # operation on a disk.
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._calm = threading.Condition(self._lock)
        self._turns: dict[str, _Turn] = {}
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._sending: dict[AppendBatch, Appender] = {}
        self._begun: dict[AppendBatch, float] = {}
        """Begin times of the calls in progress, the oldest first."""
        self._watcher: threading.Thread | None = None
        self._closing = False
        self._closer = 0
        """Id of the thread that closes the service."""
        self._stopped = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        queue = self._queue
        journals, pending = len(queue.journal_queues), queue.pending_bytes
        return f"AppendService({self._client!r}, journals={journals}, pending_bytes={pending})"

    def __reduce__(self) -> NoReturn:
        # A copy in another process would send the same bytes a second time.
        raise TypeError("an AppendService cannot be pickled: make one in each process")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            # After an ordinary error the appends that the block has begun are still sent. KeyboardInterrupt
            # and the like must not wait for a broker.
            self.close(abort=not isinstance(error, Exception))
        except Exception:  # The error in flight says more.
            _LOGGER.exception("append_service.close_failed")

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that wait to be appended."""
        # No lock is needed: the number may be outdated by the time the caller uses it anyway.
        return self._queue.pending_bytes

    def append(self, journal: str, content: Bytes) -> AsyncAppend:
        """Append bytes in the background, a shorter and faster form of :meth:`start_append`."""
        # Most small appends join a batch that already waits to be sent. The general way takes the lock three
        # times: to enter, to write and to leave. This takes it once, and there is nothing to wake: the
        # batch's first writer has enqueued it. A bytes object cannot change, and its length is its number of
        # bytes.
        if type(content) is bytes and os.getpid() == self._pid:
            size = len(content)
            with self._lock:
                batch = None if self._closing else self._queue.quick(journal, size)
                if batch is not None:
                    batch.spool.memory += content
                    return AsyncAppend(self, batch, batch.size - size, size, 0)
        with self.start_append(journal) as started:
            started.write(content)
        return started

    def start_append(
        self,
        journal: str | AppendOptions,
        *,
        dependencies: Iterable[OpFuture | AsyncAppend] = (),
        **keywords: Unpack[AppendKeywords],
    ) -> AsyncAppend:
        """Begin an append. Only the caller writes to the journal until it releases the returned append.

        If a dependency fails, so do the append and all later ones to the journal, so a dependency should fail
        only if work cannot continue. Arguments are those of :meth:`Client.append`.

        Raises:
            AppendWaitError: another writer has not released its append in time.
            BacklogError: there was no room before the timeout.
            ClosedError: the service is closed.
        """
        # The stages of an append: wait for room and for the turn here; write; release. Then the queue sends
        # the batch when it is first in its journal and its dependencies are done.
        self._check_process()
        options = append_options(journal, **keywords)
        # Depend on the future of the whole append, because its writers' parts end together.
        # Operations that have succeeded are left out: with fewer dependencies, more writers share a batch.
        awaited = unfinished(
            dependency.future if isinstance(dependency, AsyncAppend) else dependency
            for dependency in dependencies
        )
        queue = self._queue
        limit = queue.limits.pending_bytes

        # How much the writer will write is not known yet, so it enters if there is room for anything.
        def room() -> bool | None:
            self._check_open()
            return True if queue.pending_bytes < limit else None

        def no_room() -> GazetteError:
            return BacklogError(options.journal, 0, queue.pending_bytes, limit)

        with self._lock:
            # Wait for room first: a writer in its journal's queue would block all others meanwhile.
            self._wait(self._room, room, no_room)
            # Before anything is changed, because a machine may start no more threads. With one thread, all
            # work is done sooner or later.
            if not self._threads:
                self._add_thread()
            # From here until the release this is the journal's only writer, so the bytes of two writers are
            # never mixed.
            batch = self._enter(options, awaited)
            # The dependencies are awaited while the writer is at work.
            self._wake()
        return AsyncAppend(self, batch, batch.size, 0, threading.get_ident())

    def pending_except(self, journal: str) -> OpFutures:
        """Return all pending appends to other journals, as dependencies; with ``""``, to all journals.

        A failed journal is represented by its failure, so that appends that depend on it also fail.
        """
        self._check_process()
        with self._lock:
            return self._queue.pending_except(journal)

    def flush(self, timeout_s: float | EllipsisType | None = ...) -> None:
        """Wait until all appends that have begun have ended.

        Args:
            timeout_s: Seconds to wait, by default the service's or the client's; None for no limit.

        Raises:
            AppendWaitError: some appends have not ended in time.
            Exception: the failure of an append, even if it was already raised or returned.
        """
        self._await_all(timeout_s)
        with self._lock:
            # A journal that failed before this flush has lost appends as well, and its failure stays until a
            # new service is made.
            failed = list(self._queue.failures())
        self._raise_first(failed)

    def close(self, *, abort: bool = False, timeout_s: float | EllipsisType | None = ...) -> None:
        """Flush and end the service. Closing it again does nothing.

        Appends that are not done at the timeout have failed. Those that were in flight may be in the journal
        or not.

        Args:
            abort: Cancel pending appends instead of flushing them.
            timeout_s: Seconds to wait, by default the service's or the client's; None for no limit.

        Raises:
            AppendWaitError: some appends have not ended in time.
            Exception: the failure of an append whose result was never requested.
        """
        # A forked child has a copy of the service without its threads, perhaps with a lock that is never
        # released. The child must not flush or abort the parent's appends.
        if os.getpid() != self._pid:
            return
        with self._lock:
            # The thread that closes the service continues a call that was interrupted.
            if self._closing and self._closer != threading.get_ident():
                return
            self._closer = threading.get_ident()
            # No append begins after this, so the flush ends. Writers that wait for room or for their turn are
            # woken to see it.
            self._closing = True
            self._wake_writers()
        try:
            if not abort:
                self._await_all(timeout_s)
        finally:
            # Stop in any case: otherwise the threads would keep appending after the flush has failed.
            with self._lock:
                closed = ClosedError("append service", "it was closed before the append was done")
                # Every pending append ends here, so no caller waits for one that no thread will send.
                outcome = self._queue.fail_all(closed)
                self._stopped = True
                self._work.notify_all()
                self._calm.notify_all()
                sending = list(self._sending.values())
                threads = list(self._threads)
            # The lock is not held, because an abort ends the call, whose thread then needs the lock.
            for appender in sending:
                appender.abort()
            self._carry_out(outcome)
            for thread in threads:
                # A callback may close the service, and callbacks run on its threads.
                if thread is not threading.current_thread():
                    # A cancelled call usually ends immediately. The threads are daemons, so one that hangs
                    # does not keep the process alive.
                    thread.join(JOIN_TIMEOUT_S)
        if not abort:
            self._raise_first(
                journal_queue for journal_queue in self._queue.failures() if not journal_queue.reported
            )

    def _await_all(self, timeout_s: float | EllipsisType | None) -> None:
        limit_s = self._wait_s if timeout_s is ... else timeout_s
        started = self._clock()
        # A flush only waits for the appends that have begun, not for those that others begin meanwhile.
        for operation in self.pending_except(""):
            left_s = None if limit_s is None else max(0.0, limit_s - (self._clock() - started))
            try:
                operation.exception(left_s)
            except TimeoutError:
                raise AppendWaitError("", limit_s or 0.0, self._backlog()) from None

    def _backlog(self) -> str:
        """Return how many bytes have not been appended, and why."""
        with self._lock:
            pending, cause = self._queue.pending_bytes, self._queue.last_error
        problem = f"{pending} bytes have not been appended"
        return problem if cause is None else f"{problem}; the last attempt failed: {cause}"

    def _raise_first(self, failed: Iterable[JournalQueue]) -> None:
        for journal_queue in failed:
            journal_queue.reported = True
            # The traceback is dropped, because several callers may raise the same error.
            if journal_queue.failure is not None and (error := failure_of(journal_queue.failure)) is not None:
                raise error.with_traceback(None)

    def _enter(self, options: AppendOptions, dependencies: OpFutures) -> AppendBatch:
        """Enter the journal's queue as its only writer, after the current one leaves. The lock is held."""

        def enter() -> AppendBatch | None:
            self._check_open()
            return self._queue.enter(options, dependencies)

        if (batch := enter()) is not None:
            return batch
        # Writers of other journals must not wake for this turn, so each journal has a condition while a
        # writer waits on it. A service may see any number of journals.
        turn = self._turns.setdefault(options.journal, _Turn(threading.Condition(self._lock)))
        turn.waiting += 1
        try:
            problem = "another writer has not released its append"
            return self._wait(
                turn.changed, enter, lambda: AppendWaitError(options.journal, self._wait_s, problem)
            )
        finally:
            # After a timeout, too, a condition without waiters must be removed.
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[options.journal]

    def _write(self, batch: AppendBatch, content: memoryview, written: int) -> None:
        """Add a writer's bytes to its batch. ``written`` is the number of its earlier bytes."""
        queue = self._queue
        size = len(content)
        limit = queue.limits.pending_bytes

        def place() -> BufferTarget | None:
            target = queue.place(batch, size)
            if target is not BufferTarget.NOWHERE:
                return target
            if written + size > limit:  # There would not be room even without all other bytes.
                raise no_room()
            return None

        def no_room() -> GazetteError:
            return BacklogError(batch.journal_queue.journal, size, queue.pending_bytes, limit)

        with self._lock:
            # With MEMORY the bytes are copied under the lock. That is short, and the caller may reuse its
            # buffer immediately.
            target = self._wait(self._room, place, no_room)
            if target is BufferTarget.MEMORY:
                batch.spool.memory += content
        if target is BufferTarget.DISK:
            # The lock is not held, because the disk may be slow, and only this writer uses the batch.
            try:
                batch.spool.spill(content, self._open_file)
            finally:
                with self._lock:
                    # Spilling has moved the bytes in memory to the file, too, unless the disk is full.
                    self._queue.recount(batch)

    def _open_file(self) -> BinaryIO:
        # The file has no name, so it disappears with the process in any case.
        return cast(BinaryIO, tempfile.TemporaryFile(buffering=0, dir=self._spool_dir))

    def _leave(self, batch: AppendBatch, begin: int, *, keep: bool) -> None:
        """End a writer's turn. Its bytes from ``begin`` on stay or are removed."""
        if not keep:
            # No lock is needed: until this writer leaves, the batch is neither sent nor written by another.
            batch.spool.truncate(begin)
        with self._lock:
            outcome = self._queue.leave(batch, keep=keep)
            if not keep:
                self._room.notify_all()
            if (turn := self._turns.get(batch.options.journal)) is not None:
                # Waking one writer is enough, because only one can enter. It wakes the next when it leaves.
                turn.changed.notify()
            self._wake()
        self._carry_out(outcome)

    def _wait(
        self,
        changed: threading.Condition,
        ready: Callable[[], T | None],
        late: Callable[[], GazetteError],
    ) -> T:
        """Wait until ``ready`` returns a value; at the timeout, raise ``late``. The lock is held."""
        # The state is examined again after each wake-up: another writer may have taken the room or the turn
        # first.
        begun = self._clock()
        while (value := ready()) is None:
            left_s = self._wait_s - (self._clock() - begun)
            if left_s <= 0:
                raise late()
            changed.wait(left_s)
            if self._stopped:
                raise ClosedError("append service", "it is closed")
        return value

    def _wake(self) -> None:
        """Make sure that a thread starts ready work. The lock is held.

        A call blocks its thread, so there are as many threads as calls in flight, up to a limit. A hanging
        broker would block all of them, and with them the journals of healthy brokers. So calls without an
        answer for SLOW_S do not count, and if all threads are busy, a watcher looks for such calls.
        """
        if not self._queue.has_ready or self._stopped:
            return
        # A thread that was notified but is not awake yet still counts as idle. So two notifications may go to
        # one thread, which is why each thread that has taken work calls this again.
        if self._idle:
            self._work.notify()
        elif len(self._threads) < self._allowed_threads():
            with suppress(RuntimeError):  # The machine starts no more threads, so the others do the work.
                self._add_thread()
        elif self._watcher is None:
            watcher = threading.Thread(target=self._watch, name="append-service-watch", daemon=True)
            with suppress(RuntimeError):
                watcher.start()
                self._watcher = watcher

    def _add_thread(self) -> None:
        """Start a thread that does the queue's work. The lock is held.

        Raises:
            RuntimeError: the machine starts no more threads.
        """
        name = f"append-service-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _allowed_threads(self) -> int:
        """Return the number of threads that may run: one more for each hanging call."""
        # `_begun` is in the order of the calls' beginnings, so the first call that is not slow ends the
        # count.
        slow_since = self._clock() - SLOW_S
        hanging = sum(1 for _ in takewhile(lambda begun: begun <= slow_since, self._begun.values()))
        return min(self._max_threads + hanging, max(self._max_threads, MAX_THREADS))

    def _watch(self) -> None:
        """Start additional threads for hanging ones, as long as work waits."""
        with self._lock:
            while self._queue.has_ready and not self._stopped:
                # Only the end of the service notifies this condition, because nothing signals that a call
                # hangs.
                self._calm.wait(SLOW_S)
                # Each thread that takes work starts the next thread.
                self._wake()
            self._watcher = None

    def _wake_writers(self) -> None:
        self._room.notify_all()
        for turn in self._turns.values():
            turn.changed.notify_all()

    def _run(self) -> None:
        """Do the queue's work until the service stops. The threads run this."""
        try:
            while (work := self._next()) is not None:
                match work:
                    case Send():
                        self._carry_out(self._send(work))
                    case Await():
                        # A dependency that has ended calls back immediately, in this thread, which must not
                        # hold the lock.
                        for dependency in work.batch.dependencies:
                            dependency.add_done_callback(partial(self._dependency_done, work.batch))
                    case Resolve():
                        self._carry_out(work)
        except Exception as error:
            # This is a bug in this package. Stop, so that no caller waits for a result that will not come.
            _LOGGER.exception("append_service.broken")
            with self._lock:
                # The queue's state cannot be trusted after an error that should not happen, so nothing more
                # is sent.
                self._closing = self._stopped = True
                outcome = self._queue.fail_all(error)
                self._wake_writers()
                self._work.notify_all()
            self._carry_out(outcome)

    def _next(self) -> Work | None:
        with self._lock:
            while not self._stopped:
                work = self._queue.take(self._clock())
                if work is not None:
                    # Room has become free or a journal has failed, and writers wait for both.
                    if isinstance(work, Resolve):
                        self._notice(work)
                    self._wake()
                    return work
                # There are more threads than calls may be in flight, because calls that hung have been
                # answered since.
                if len(self._threads) > self._allowed_threads():
                    self._threads.remove(threading.current_thread())
                    return None
                # Back-offs and deadlines end without an event, so a waiting thread wakes up for the next one.
                # If several do, the first takes the work and the others find nothing.
                due = self._queue.next_due
                self._idle += 1
                self._work.wait(None if due is None else max(0.0, due - self._clock()))
                self._idle -= 1
        return None

    def _send(self, work: Send) -> Resolve:
        batch = work.batch
        with self._lock:
            # After this, the call counts as in flight, and, after SLOW_S, as hanging.
            self._begun[batch] = self._clock()
        try:
            # Make one attempt. The queue decides about the next one, because a retry must keep the batch
            # first in its journal.
            result = self._client.try_append(
                batch.options, batch.spool, timeout_s=work.timeout_s, on_start=partial(self._started, batch)
            )
        except Exception as error:  # noqa: BLE001  # The batch's writers must get any error.
            with self._lock:
                self._forget(batch)
                outcome = self._queue.failed(batch, error, self._clock())
                self._notice(outcome)
            # The queue keeps the batch and sends it again. In a long outage, this logs one warning per
            # journal every five seconds, the longest back-off.
            if not batch.ended:
                _LOGGER.warning(
                    "append_service.retry journal=%s error=%s", batch.journal_queue.journal, error
                )
            return outcome
        with self._lock:
            self._forget(batch)
            # The next batch of the journal becomes ready, and this thread or another takes it.
            outcome = self._queue.sent(batch, result)
            self._notice(outcome)
        return outcome

    def _forget(self, batch: AppendBatch) -> None:
        # The call is over: it no longer counts as hanging, and there is nothing to abort.
        self._sending.pop(batch, None)
        self._begun.pop(batch, None)

    def _started(self, batch: AppendBatch, appender: Appender) -> None:
        with self._lock:
            # An aborted service cancels the calls that it finds here.
            self._sending[batch] = appender
            ended = batch.ended
        if ended:  # The service stopped after the choice of the batch, and did not see the call.
            appender.abort()

    def _dependency_done(self, batch: AppendBatch, dependency: OpFuture) -> None:
        error = failure_of(dependency)
        with self._lock:
            outcome = self._queue.dependency_done(batch, error)
            self._notice(outcome)
            self._wake()
        self._carry_out(outcome)

    def _notice(self, outcome: Resolve) -> None:
        """Wake the writers that wait for this outcome. The lock is held."""
        if outcome.freed:
            self._room.notify_all()
        # A failed journal admits all its waiting writers: their bytes are dropped, and their results raise
        # the reason.
        if outcome.error is not None:
            self._wake_writers()

    def _carry_out(self, outcome: Resolve) -> None:
        """Carry out the queue's decisions. The lock is not held, because callbacks may call this service."""
        # Closing a spool's file frees its disk space, which takes time.
        for spool in outcome.freed:
            spool.close()
        if outcome.error is not None and outcome.ended:
            # An error without a failed journal is the answer to an append that suspends its journal, as its
            # caller requested.
            journal_queue = outcome.ended[0].journal_queue
            level = logging.INFO if journal_queue.failure is None else logging.ERROR
            _LOGGER.log(
                level, "append_service.failed journal=%s error=%s", journal_queue.journal, outcome.error
            )
        # Resolve last, because this runs the callers' callbacks. By now the queue has forgotten the batch, so
        # a callback that begins an append finds the state after this one.
        for batch in outcome.ended:
            batch.operation.resolve(outcome.error, outcome.result)

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError("append service", "it is closed")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            problem = f"it belongs to process {self._pid}; make one in each process"
            raise ClosedError("append service", problem)
