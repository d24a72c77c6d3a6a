"""What an append service decides: who shares a batch, when it is sent, and what a failed try means.

Each journal with something to append has a queue of batches, and each batch becomes one append. This file
tells the life of a batch in its order:

===============  =====================================================  ====================================
call             what happens to the batch                              who may add bytes to it
===============  =====================================================  ====================================
``enter``        a writer joins the journal's last batch, or makes one  that writer alone
``leave``        the writer's bytes stay, or are taken back             the next writer
``take``         the first of its journal: its dependencies are         writers, one at a time
                 awaited, and then its bytes are sent                   nobody, from the first try on
``sent``         it has ended, and the next one of its journal is first  nobody
``failed``       it is sent again later, or it ends, alone or with all  nobody
                 batches of its journal
===============  =====================================================  ====================================

Nothing here blocks, does I/O, looks at a clock or locks. The caller, the threads of
:class:`~gazette_spark.client.AppendService`, holds its lock and passes the time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import count
from typing import TypeAlias

from gazette_spark.client._append.append import AppendOptions, AppendResult
from gazette_spark.client._append.futures import AsyncOperation, OpFuture, OpFutures
from gazette_spark.client._append.spool import AppendSpool
from gazette_spark.client._transport import retry
from gazette_spark.errors import (
    AppendWaitError,
    BrokerError,
    DependencyError,
    FragmentStoreUnhealthyError,
    IndexHasGreaterOffsetError,
    JournalNotFoundError,
    NotAllowedError,
    OptionError,
    RegisterMismatchError,
    StatusError,
    SuspendedError,
    UnavailableError,
    WrongAppendOffsetError,
)

TERMINAL_STATUSES = (
    FragmentStoreUnhealthyError,
    IndexHasGreaterOffsetError,
    JournalNotFoundError,
    NotAllowedError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
"""Answers that end a journal's appends, as in Gazette v0.103: a writer that is fenced off has to stop."""

REFUSAL_CODES = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED"})
"""gRPC codes of a request that no broker will take."""

MAX_PENDING_BYTES = 1 << 30
"""Bytes that may wait by default: more is a broker that has been away for long."""

MAX_MEMORY_BYTES = 64 << 20
"""Default limit of pending bytes in memory."""

SLOWEST_BYTES_PER_S = 1 << 16
"""Brokers end appends that are slower."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what waits, in bytes where nothing else is said."""

    pending_bytes: int = MAX_PENDING_BYTES
    """In memory and on disk, all journals together."""
    memory_bytes: int = MAX_MEMORY_BYTES
    """In memory, all journals together."""
    batch_bytes: int = 64 << 20
    """No writer joins a batch of this size or more; one writer may write more."""
    batch_memory_bytes: int = 4 << 20
    """Maximum bytes in memory of one batch."""
    files: int = 128
    """Number of files open at a time."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if (value := getattr(self, limit.name)) < 1:
                raise OptionError(f"max_{limit.name}", str(value), "1 or more")


class BufferTarget(Enum):
    """Buffer for a writer's next bytes."""

    MEMORY = "memory"
    DISK = "disk"
    NOWHERE = "nowhere"
    """There is no room; there may be later."""
    DROPPED = "dropped"
    """The batch has failed already: nobody will read them."""


class BatchOperation(AsyncOperation[AppendResult]):
    """The operation of a batch, or of the failure of a journal queue."""

    def __init__(self, journal_queue: JournalQueue) -> None:
        super().__init__()
        self.journal_queue = journal_queue


@dataclass(slots=True, eq=False)
class AppendBatch:
    """The batch of one append: the bytes of one or more writers, each in one piece."""

    journal_queue: JournalQueue
    options: AppendOptions
    dependencies: OpFutures
    operation: BatchOperation
    spool: AppendSpool = field(default_factory=AppendSpool)
    size: int = 0
    """Bytes that are in it, or about to be."""
    writers: int = 0
    """Number of writers whose bytes are in the batch."""
    writing: bool = False
    """A writer is at work."""
    sealed: bool = False
    """It was sent, maybe without success: a retry has to send the same bytes."""
    sending: bool = False
    ended: bool = False
    awaited: bool = False
    """The batch is first in its journal queue, and its dependencies are awaited or done."""
    waits_for: int = 0
    """Dependencies that are not done yet, once they are awaited."""
    attempt: int = 0
    due: float = 0.0
    """Time of the next try, or of giving up the dependencies; 0: nothing is due."""
    deadline: float | None = None
    counted: tuple[int, int, bool] = (0, 0, False)
    """The batch's bytes, bytes in memory and file, as counted in the queue's sums."""


@dataclass(slots=True, eq=False)
class JournalQueue:
    """A journal's batches: the first is at work or about to be, the last may be joined."""

    plain: AppendOptions
    """Options of appends without conditions or changes."""
    batches: deque[AppendBatch] = field(default_factory=deque)
    busy: bool = False
    """The journal queue's first batch waits, is sent or backs off."""
    queued: bool = False
    """``take`` will look at it."""
    failure: BatchOperation | None = None
    """Failure that ended the journal queue."""
    reported: bool = False
    """Somebody has seen the failure."""

    @property
    def journal(self) -> str:
        """The journal's name."""
        return self.plain.journal


@dataclass(frozen=True, slots=True)
class Send:
    """Append the batch's bytes; then call ``sent`` or ``failed``."""

    batch: AppendBatch
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Await:
    """Call ``dependency_done`` for each of the batch's dependencies once it is done."""

    batch: AppendBatch


@dataclass(slots=True)
class Resolve:
    """Resolve the operations of ``ended`` with ``error`` or ``result``, close the spools ``freed``."""

    ended: list[AppendBatch] = field(default_factory=list)
    error: BaseException | None = None
    result: AppendResult | None = None
    freed: list[AppendSpool] = field(default_factory=list)


Work: TypeAlias = Send | Await | Resolve


def may_join(batch: AppendBatch, options: AppendOptions, dependencies: OpFutures, limits: Limits) -> bool:
    """Return whether a writer's bytes may go into a batch that others have written to.

    The writer must want the same options, wait for nothing more, and not care where its bytes land: only one
    writer's bytes can be at an explicit offset.
    """
    return (
        not batch.sealed
        and not batch.ended
        and batch.size < limits.batch_bytes
        and options.offset == 0
        and (batch.options is options or batch.options == options)
        and dependencies <= batch.dependencies
    )


def is_terminal(error: BaseException, options: AppendOptions) -> bool:
    """Return whether a failure stays however often the append is tried.

    Transport, routing and failures with a text only are tried again until the deadline; tokens, invalid
    requests and answers that make no sense are not.
    """
    match error:
        case SuspendedError():
            # A broker resumes the journal for an append that asks for that; another try finds it resumed.
            return not options.resumes
        case StatusError():
            return isinstance(error, TERMINAL_STATUSES)
        case BrokerError():
            return error.code in REFUSAL_CODES or retry.is_refusal(error)
    return not isinstance(error, UnavailableError)


def attempt_timeout_s(left_s: float, size: int) -> float:
    """Return the timeout of a try: half of the time left, plus the time of its bytes at the slowest rate.

    A try without an answer may be on a half-open connection; the next try uses a new one.
    """
    return left_s / 2 + size / SLOWEST_BYTES_PER_S


class AppendQueue:
    """The journal queues of all journals. A caller's lock is held during each call."""

    def __init__(self, limits: Limits, *, timeout_s: float | None, attempt_timeout_s: float) -> None:
        """Make an empty queue.

        Args:
            limits: bounds on waiting batches.
            timeout_s: seconds a batch is tried for, or waits for its dependencies; None: no timeout.
            attempt_timeout_s: timeout of one try of a small batch, in seconds, if ``timeout_s`` is None.
        """
        self.limits = limits
        self.timeout_s = timeout_s
        self.journal_queues: dict[str, JournalQueue] = {}
        self.pending_bytes = 0
        self.memory_bytes = 0
        self.files = 0
        self.last_error: BaseException | None = None
        """Why a try failed most recently; None once one has succeeded."""
        self._attempt_timeout_s = attempt_timeout_s
        self._ready: deque[JournalQueue] = deque()
        self._timers: list[tuple[float, int, AppendBatch]] = []
        self._sequence = count()

    @property
    def next_due(self) -> float | None:
        """When there will be work again if nothing happens until then."""
        return self._timers[0][0] if self._timers else None

    @property
    def has_ready(self) -> bool:
        """Whether :meth:`take` may have work at once."""
        return bool(self._ready)

    def enter(self, options: AppendOptions, dependencies: OpFutures) -> AppendBatch | None:
        """Begin to write, and return the batch to write to; None while another writer is at work."""
        journal_queue = self.journal_queues.get(options.journal)
        if journal_queue is None:
            plain = AppendOptions(options.journal)
            journal_queue = self.journal_queues[options.journal] = JournalQueue(plain)
        if journal_queue.failure is not None:
            # The writer may write what it likes, as before the failure; its release has the reason.
            return AppendBatch(
                journal_queue,
                options,
                dependencies,
                journal_queue.failure,
                writing=True,
                sealed=True,
                ended=True,
            )
        batch = journal_queue.batches[-1] if journal_queue.batches else None
        if batch is not None and batch.writing:
            return None  # Two writers at once would mix their bytes.
        if options == journal_queue.plain:
            options = journal_queue.plain  # So that later comparisons are comparisons of identity.
        if batch is None or not may_join(batch, options, dependencies, self.limits):
            batch = AppendBatch(journal_queue, options, dependencies, BatchOperation(journal_queue))
            journal_queue.batches.append(batch)
        batch.writing = True
        return batch

    def quick(self, journal: str, size: int) -> AppendBatch | None:
        """Enter, find room in memory and leave, all in one; None where it is not that simple.

        The caller adds the bytes to the batch's memory before anything else happens.
        """
        journal_queue = self.journal_queues.get(journal)
        if journal_queue is None or not journal_queue.batches:
            return None
        batch = journal_queue.batches[-1]
        limits = self.limits
        if (
            batch.writing
            or batch.sealed
            or batch.options is not journal_queue.plain
            or batch.size >= limits.batch_bytes
            or len(batch.spool.memory) + size > limits.batch_memory_bytes
            or self.memory_bytes + size > limits.memory_bytes
            or self.pending_bytes + size > limits.pending_bytes
        ):
            return None
        total, memory, file = batch.counted
        batch.counted = (total + size, memory + size, file)
        self.pending_bytes += size
        self.memory_bytes += size
        batch.size += size
        batch.writers += 1
        return batch

    def place(self, batch: AppendBatch, size: int) -> BufferTarget:
        """Decide where a writer's next bytes go, and make room for them there."""
        if batch.ended:
            return BufferTarget.DROPPED
        limits = self.limits
        if self.pending_bytes + size > limits.pending_bytes:
            return BufferTarget.NOWHERE
        total, memory, file = batch.counted
        if memory + size <= limits.batch_memory_bytes and self.memory_bytes + size <= limits.memory_bytes:
            self._count(batch, (total + size, memory + size, file))
            return BufferTarget.MEMORY
        if not file and self.files >= limits.files:
            return BufferTarget.NOWHERE
        self._count(batch, (total + size, memory, True))
        return BufferTarget.DISK

    def recount(self, batch: AppendBatch) -> None:
        """Count a batch's size again after its writer moved it to disk, or removed bytes."""
        if not batch.ended:
            spool = batch.spool
            self._count(batch, (len(spool), len(spool.memory), spool.on_disk))

    def leave(self, batch: AppendBatch, *, keep: bool) -> Resolve:
        """End a writer's turn: its bytes stay, or the caller has taken them back."""
        batch.writing = False
        if batch.ended:
            return self._free([batch])
        batch.writers += keep
        self.recount(batch)
        if batch.journal_queue.batches[0] is batch:
            self._enqueue(batch.journal_queue)
        return Resolve()

    def take(self, now: float) -> Work | None:  # noqa: C901 - two loops, told in order
        """Return the next step, or None: nothing to do until ``next_due`` or another call."""
        # First the batches whose time has come. A timer is never searched for when its batch has moved on;
        # it is passed over here.
        while self._timers and self._timers[0][0] <= now:
            due, _, batch = heapq.heappop(self._timers)
            if batch.ended or batch.due != due:
                continue
            batch.due = 0.0
            if batch.waits_for == 0:
                self._go_on(batch.journal_queue)  # A back-off is over.
                continue
            # The wait for dependencies is over, unless a service is at work on all of them: those have
            # deadlines too, so they end without help. An append that nobody releases is no such work.
            timeout_s = self.timeout_s or 0.0
            if all(
                dependency.done()
                or (
                    isinstance(dependency, BatchOperation)
                    and (dependency.journal_queue.busy or dependency.journal_queue.queued)
                )
                for dependency in batch.dependencies
            ):
                self._wake_at(batch, now + timeout_s)
                continue
            journal_queue = batch.journal_queue
            problem = f"{batch.waits_for} operations the append depends on are not done"
            return self._fail(journal_queue, AppendWaitError(journal_queue.journal, timeout_s, problem))
        # Then journals that may have a batch to send, one at a time each: a second append in flight could
        # overtake the first.
        while self._ready:
            journal_queue = self._ready.popleft()
            journal_queue.queued = False
            if journal_queue.busy or not journal_queue.batches:
                continue
            batch = journal_queue.batches[0]
            if batch.dependencies and not batch.awaited:
                # Also while its writer is still at work: most dependencies are done by the time it leaves.
                batch.awaited = journal_queue.busy = True
                batch.waits_for = len(batch.dependencies)
                if self.timeout_s is not None:
                    self._wake_at(batch, now + self.timeout_s)
                return Await(batch)
            if batch.writing:
                continue
            if not batch.writers:
                return self._end_first(journal_queue)  # All its writers took their bytes back.
            if not batch.sealed:
                # A retry must send the same bytes: the broker may have committed a try whose answer is lost.
                batch.sealed = True
                batch.deadline = None if self.timeout_s is None else now + self.timeout_s
            batch.sending = journal_queue.busy = True
            if batch.deadline is None:
                return Send(batch, attempt_timeout_s(2 * self._attempt_timeout_s, batch.size))
            left_s = batch.deadline - now
            return Send(batch, max(retry.MARGIN_S, min(left_s, attempt_timeout_s(left_s, batch.size))))
        return None

    def dependency_done(self, batch: AppendBatch, error: BaseException | None) -> Resolve:
        """Record that one of a batch's dependencies has ended."""
        if batch.ended:
            return Resolve()
        if error is not None:
            # Later appends were written in the belief that this one comes before them, so they fail too.
            failure = DependencyError(batch.journal_queue.journal, str(error) or type(error).__name__)
            failure.__cause__ = error
            return self._fail(batch.journal_queue, failure)
        batch.waits_for -= 1
        if batch.waits_for == 0:
            batch.due = 0.0
            self._go_on(batch.journal_queue)
        return Resolve()

    def sent(self, batch: AppendBatch, result: AppendResult) -> Resolve:
        """Record that a batch was appended."""
        batch.sending = False
        self.last_error = None
        if batch.ended:  # The service was aborted meanwhile, and has reported that the outcome is unknown.
            return self._free([batch])
        return self._end_first(batch.journal_queue, result=result)

    def failed(self, batch: AppendBatch, error: BaseException, now: float) -> Resolve:
        """Record that a try failed: the batch is tried again, or its journal queue ends.

        A retry is never safe: where the connection broke, the broker may have committed the bytes, and
        nothing in the protocol says so. Then they are in the journal twice. That is the promise of raw
        appends, at least once; readers recognize repeated messages by their UUIDs. What a retry must not do
        is send other bytes, or change the order of the journal's batches. So the batch stays sealed, and
        first.
        """
        batch.sending = False
        if batch.ended:
            return self._free([batch])
        self.last_error = error
        journal_queue = batch.journal_queue
        if is_terminal(error, batch.options):
            if isinstance(error, SuspendedError) and batch.size == 0:
                # This is how a broker answers the append that suspends a journal. No bytes are left out, so
                # later appends do not depend on it.
                return self._end_first(journal_queue, error=error)
            return self._fail(journal_queue, error)
        wait_s: float | None = retry.backoff_s(batch.attempt)
        if batch.deadline is not None:
            wait_s = retry.within(retry.backoff_s(batch.attempt), batch.deadline - now)
        if wait_s is None:  # No try fits before the deadline.
            return self._fail(journal_queue, error)
        batch.attempt += 1
        self._wake_at(batch, now + wait_s)
        return Resolve()

    def fail_all(self, error: BaseException) -> Resolve:
        """End all journal queues that have something to append."""
        outcome = Resolve(error=error)
        for journal_queue in list(self.journal_queues.values()):
            if journal_queue.batches:
                failed = self._fail(journal_queue, error)
                outcome.ended += failed.ended
                outcome.freed += failed.freed
        return outcome

    def pending_except(self, journal: str) -> OpFutures:
        """Return the operations of all batches of other journals, and those journals' failures."""
        pending: list[OpFuture] = []
        for name, journal_queue in self.journal_queues.items():
            if name != journal:
                pending.extend(batch.operation for batch in journal_queue.batches)
                if journal_queue.failure is not None:
                    pending.append(journal_queue.failure)
        return frozenset(pending)

    def failures(self) -> Iterable[JournalQueue]:
        """Return the journal queues that have failed."""
        return [queue for queue in self.journal_queues.values() if queue.failure is not None]

    def _end_first(
        self,
        journal_queue: JournalQueue,
        *,
        result: AppendResult | None = None,
        error: BaseException | None = None,
    ) -> Resolve:
        """End a journal's first batch alone; the next one is first now."""
        batch = journal_queue.batches.popleft()
        batch.ended = True
        journal_queue.busy = False
        if journal_queue.batches:
            self._enqueue(journal_queue)
        else:
            del self.journal_queues[journal_queue.journal]
        outcome = self._free([batch])
        outcome.ended, outcome.result, outcome.error = [batch], result, error
        return outcome

    def _fail(self, journal_queue: JournalQueue, error: BaseException) -> Resolve:
        """End a journal's queue for good: all its batches fail, and so will all later appends.

        A later append that succeeded would be in the journal without those before it.
        """
        ended = list(journal_queue.batches)
        journal_queue.batches.clear()
        for batch in ended:
            batch.ended = True
        journal_queue.failure = BatchOperation(journal_queue)
        journal_queue.failure.resolve(error)
        outcome = self._free(ended)
        outcome.ended, outcome.error = ended, error
        return outcome

    def _free(self, batches: list[AppendBatch]) -> Resolve:
        """Count batches off, except those that a writer or sender still uses, which frees them itself."""
        outcome = Resolve()
        for batch in batches:
            if not (batch.writing or batch.sending):
                self._count(batch, (0, 0, False))
                outcome.freed.append(batch.spool)
        return outcome

    def _count(self, batch: AppendBatch, now: tuple[int, int, bool]) -> None:
        before = batch.counted
        self.pending_bytes += now[0] - before[0]
        self.memory_bytes += now[1] - before[1]
        self.files += now[2] - before[2]
        batch.counted = now
        batch.size = now[0]

    def _go_on(self, journal_queue: JournalQueue) -> None:
        journal_queue.busy = False
        self._enqueue(journal_queue)

    def _enqueue(self, journal_queue: JournalQueue) -> None:
        if not (journal_queue.queued or journal_queue.busy):
            journal_queue.queued = True
            self._ready.append(journal_queue)

    def _wake_at(self, batch: AppendBatch, due: float) -> None:
        batch.due = due
        heapq.heappush(self._timers, (due, next(self._sequence), batch))
