"""Decides for an append service who shares a batch, when it is sent, and what a failed attempt means.

Each journal with bytes to append has a queue of batches, and each batch becomes one append. This file
describes the life of a batch in order:

===============  =====================================================  ====================================
call             what happens to the batch                              who may add bytes to it
===============  =====================================================  ====================================
``enter``        a writer joins the journal's last batch, or makes one  that writer alone
``leave``        the writer's bytes stay, or are removed                the next writer
``take``         the first of its journal: its dependencies are         writers, one at a time
                 awaited, and then its bytes are sent                   nobody, from the first attempt on
``sent``         it has ended, and the next one of its journal is first  nobody
``failed``       it is sent again later, or it ends, alone or with all  nobody
                 batches of its journal
===============  =====================================================  ====================================

This module does not block, do I/O, read a clock or lock. Its callers, the threads of
:class:`~gazette_spark.client.AppendService`, hold their lock during each call, and pass the time.
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

# A journal's appends are in order, so one that can never succeed ends all that follow it.
TERMINAL_STATUSES = (
    FragmentStoreUnhealthyError,
    IndexHasGreaterOffsetError,
    JournalNotFoundError,
    NotAllowedError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
"""Answers that end a journal's appends, as in Gazette v0.103: a fenced writer must stop."""

REFUSAL_CODES = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED"})
"""gRPC codes of a request that no broker will accept."""

MAX_PENDING_BYTES = 1 << 30
"""Default limit of pending bytes: more means that a broker has been unavailable for long."""

MAX_MEMORY_BYTES = 64 << 20
"""Default limit of pending bytes in memory."""

SLOWEST_BYTES_PER_S = 1 << 16
"""Bytes per second below which brokers end appends."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of pending appends, in bytes unless stated otherwise."""

    pending_bytes: int = MAX_PENDING_BYTES
    """Bytes of all journals in memory and on disk."""
    memory_bytes: int = MAX_MEMORY_BYTES
    """Bytes of all journals in memory."""
    batch_bytes: int = 64 << 20
    """Size at which no more writers join a batch, in bytes. One writer may write more."""
    batch_memory_bytes: int = 4 << 20
    """Bytes of one batch in memory."""
    files: int = 128
    """Number of open files."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if (value := getattr(self, limit.name)) < 1:
                raise OptionError(f"max_{limit.name}", str(value), "1 or more")


class BufferTarget(Enum):
    """The buffer for a writer's next bytes."""

    MEMORY = "memory"
    DISK = "disk"
    NOWHERE = "nowhere"
    """There is no room now, but there may be later."""
    DROPPED = "dropped"
    """The batch has already failed, so the bytes are dropped."""


class BatchOperation(AsyncOperation[AppendResult]):
    """The operation of a batch, or the failure of a journal queue."""

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
    """Number of bytes in the batch, including those being written."""
    writers: int = 0
    """Number of writers whose bytes are in the batch."""
    writing: bool = False
    """Whether a writer is writing."""
    sealed: bool = False
    """Whether it was sent, perhaps without success. A retry must send the same bytes."""
    sending: bool = False
    ended: bool = False
    awaited: bool = False
    """Whether the batch is first in its journal queue, and its dependencies are awaited or done."""
    waits_for: int = 0
    """Number of awaited dependencies that are not done."""
    attempt: int = 0
    is_unknown: bool = False
    """Whether an attempt got no answer, so that the bytes may have been appended."""
    due: float = 0.0
    """Time of the next attempt, or of giving up on the dependencies; 0 if nothing is due."""
    deadline: float | None = None
    counted: tuple[int, int, bool] = (0, 0, False)
    """The batch's share of the queue's sums: bytes, bytes in memory, and files."""


@dataclass(slots=True, eq=False)
class JournalQueue:
    """A journal's batches: the first is being sent or is next, and writers may join the last."""

    plain: AppendOptions
    """Options of appends without conditions or changes."""
    batches: deque[AppendBatch] = field(default_factory=deque)
    busy: bool = False
    """Whether the first batch waits for dependencies, is sent, or backs off."""
    queued: bool = False
    """Whether ``take`` will examine it."""
    failure: BatchOperation | None = None
    """The failure that ended the journal queue."""
    reported: bool = False
    """Whether a caller has seen the failure."""

    @property
    def journal(self) -> str:
        """The journal's name."""
        return self.plain.journal


@dataclass(frozen=True, slots=True)
class Send:
    """Append the batch's bytes, then call ``sent`` or ``failed``."""

    batch: AppendBatch
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Await:
    """Call ``dependency_done`` for each of the batch's dependencies when it is done."""

    batch: AppendBatch


@dataclass(slots=True)
class Resolve:
    """Resolve the operations of ``ended`` with ``error`` or ``result``, and close the spools ``freed``."""

    ended: list[AppendBatch] = field(default_factory=list)
    error: BaseException | None = None
    result: AppendResult | None = None
    freed: list[AppendSpool] = field(default_factory=list)


Work: TypeAlias = Send | Await | Resolve


def may_join(batch: AppendBatch, options: AppendOptions, dependencies: OpFutures, limits: Limits) -> bool:
    """Return whether a writer's bytes may be added to a batch with bytes of other writers.

    The writer must have the same options and no further dependencies, and must not require an offset, because
    only one writer's bytes can be at an explicit offset.
    """
    return (
        not batch.sealed
        and not batch.ended
        # A batch occupies its journal at the broker for as long as it is sent, and a broken call sends all of
        # it again.
        and batch.size < limits.batch_bytes
        and options.offset == 0
        and (batch.options is options or batch.options == options)
        # A writer with other dependencies would delay the writers that are already in the batch, and fail
        # them if the dependencies fail.
        and dependencies <= batch.dependencies
    )


def is_terminal(error: BaseException, options: AppendOptions) -> bool:
    """Return whether a failure is permanent.

    Failures of transport and routing, and failures with only a text, are retried until the deadline; refused
    tokens, invalid requests and invalid answers are not.
    """
    match error:
        case SuspendedError():
            # A broker resumes the journal for an append that requests it, so a retry finds it resumed.
            return not options.resumes
        case StatusError():
            return isinstance(error, TERMINAL_STATUSES)
        # A broker reports most failures as UNKNOWN with a text, and only the text distinguishes an invalid
        # request from a temporary failure.
        case BrokerError():
            return error.code in REFUSAL_CODES or retry.is_refusal(error)
    # All other failures are permanent: a refused token, an answer that breaks the protocol, a full disk.
    return not isinstance(error, UnavailableError)


def attempt_timeout_s(left_s: float, size: int) -> float:
    """Return the timeout of an attempt.

    It is half of the remaining time, plus the time for its bytes at the minimum rate. An attempt without an
    answer may use a half-open connection; the next one uses a new connection.
    """
    return left_s / 2 + size / SLOWEST_BYTES_PER_S


class AppendQueue:
    """The journal queues of all journals. A caller's lock is held during each call."""

    def __init__(self, limits: Limits, *, timeout_s: float | None, attempt_timeout_s: float) -> None:
        """Make an empty queue.

        Args:
            limits: Limits of pending batches.
            timeout_s: Seconds for which a batch is tried, or waits for its dependencies; None for no timeout.
            attempt_timeout_s: Seconds for an attempt of a small batch if ``timeout_s`` is None.
        """
        self.limits = limits
        self.timeout_s = timeout_s
        self.journal_queues: dict[str, JournalQueue] = {}
        self.pending_bytes = 0
        self.memory_bytes = 0
        self.files = 0
        self.last_error: BaseException | None = None
        """Why the last attempt failed; None if it succeeded."""
        self._attempt_timeout_s = attempt_timeout_s
        # Journals wait in the order in which they became ready, so that a busy one cannot keep others
        # waiting.
        self._ready: deque[JournalQueue] = deque()
        # A heap of due times. Entries are not removed when a batch moves on: `batch.due` shows which one
        # still counts. The sequence number breaks ties, because batches have no order.
        self._timers: list[tuple[float, int, AppendBatch]] = []
        self._sequence = count()

    @property
    def next_due(self) -> float | None:
        """Time at which there will be work even if nothing happens before."""
        return self._timers[0][0] if self._timers else None

    @property
    def has_ready(self) -> bool:
        """Whether :meth:`take` may have work now."""
        return bool(self._ready)

    def enter(self, options: AppendOptions, dependencies: OpFutures) -> AppendBatch | None:
        """Begin to write, and return the batch to write to; None while another writer is writing."""
        journal_queue = self.journal_queues.get(options.journal)
        if journal_queue is None:
            plain = AppendOptions(options.journal)
            journal_queue = self.journal_queues[options.journal] = JournalQueue(plain)
        if journal_queue.failure is not None:
            # The writer may write as before the failure, but its bytes are dropped, and its result raises the
            # failure.
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
            return None  # Concurrent writers would mix their bytes.
        if options == journal_queue.plain:
            options = journal_queue.plain  # So that later comparisons succeed by identity.
        if batch is None or not may_join(batch, options, dependencies, self.limits):
            batch = AppendBatch(journal_queue, options, dependencies, BatchOperation(journal_queue))
            journal_queue.batches.append(batch)
        batch.writing = True
        return batch

    def quick(self, journal: str, size: int) -> AppendBatch | None:
        """Enter, make room in memory and leave in one call; None if that is not possible.

        The caller must add the bytes to the batch's memory before anything else.
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
        # The effect of `enter`, `place` and `leave` in one step.
        total, memory, file = batch.counted
        batch.counted = (total + size, memory + size, file)
        self.pending_bytes += size
        self.memory_bytes += size
        batch.size += size
        batch.writers += 1
        return batch

    def place(self, batch: AppendBatch, size: int) -> BufferTarget:
        """Decide which buffer takes a writer's next bytes, and make room there."""
        if batch.ended:
            return BufferTarget.DROPPED
        limits = self.limits
        if self.pending_bytes + size > limits.pending_bytes:
            return BufferTarget.NOWHERE
        total, memory, file = batch.counted
        # Small batches stay in memory. When a batch outgrows it, all its bytes move to its file, and later
        # ones collect in memory again.
        if memory + size <= limits.batch_memory_bytes and self.memory_bytes + size <= limits.memory_bytes:
            self._count(batch, (total + size, memory + size, file))
            return BufferTarget.MEMORY
        # Each file takes a descriptor, and a process has only about a thousand.
        if not file and self.files >= limits.files:
            return BufferTarget.NOWHERE
        self._count(batch, (total + size, memory, True))
        return BufferTarget.DISK

    def recount(self, batch: AppendBatch) -> None:
        """Recount a batch's size after its writer moved it to disk or removed bytes."""
        if not batch.ended:
            spool = batch.spool
            self._count(batch, (len(spool), len(spool.memory), spool.on_disk))

    def leave(self, batch: AppendBatch, *, keep: bool) -> Resolve:
        """End a writer's turn. Its bytes stay, or the caller has removed them."""
        batch.writing = False
        if batch.ended:
            return self._free([batch])
        batch.writers += keep
        self.recount(batch)
        # A batch behind others is enqueued when it becomes first.
        if batch.journal_queue.batches[0] is batch:
            self._enqueue(batch.journal_queue)
        return Resolve()

    def take(self, now: float) -> Work | None:  # noqa: C901 - two loops, told in order
        """Return the next step, or None if there is nothing to do until ``next_due`` or another call."""
        # First come the batches that are due. Timers of batches that have moved on are skipped here.
        while self._timers and self._timers[0][0] <= now:
            due, _, batch = heapq.heappop(self._timers)
            if batch.ended or batch.due != due:
                continue
            batch.due = 0.0
            if batch.waits_for == 0:
                self._go_on(batch.journal_queue)  # A back-off is over.
                continue
            # The wait for dependencies is over, unless services are working on all of them: those have their
            # own deadlines, so they will end. An append that is never released does not count as such work.
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
        # Then come journals with a batch to send, only one for each journal, because a second append in
        # flight could overtake the first.
        while self._ready:
            journal_queue = self._ready.popleft()
            journal_queue.queued = False
            if journal_queue.busy or not journal_queue.batches:
                continue
            batch = journal_queue.batches[0]
            if batch.dependencies and not batch.awaited:
                # Dependencies are awaited while the writer is still writing: most are done when it leaves.
                batch.awaited = journal_queue.busy = True
                batch.waits_for = len(batch.dependencies)
                if self.timeout_s is not None:
                    self._wake_at(batch, now + self.timeout_s)
                return Await(batch)
            if batch.writing:
                continue
            if not batch.writers:
                return self._end_first(journal_queue)  # All its writers have removed their bytes.
            if not batch.sealed:
                # A retry must send the same bytes: the broker may have committed an attempt whose answer was
                # lost.
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
            # Later appends rely on this one being before them, so they also fail.
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
        if batch.ended:  # The service has been aborted, and has reported that the outcome is unknown.
            return self._free([batch])
        return self._end_first(batch.journal_queue, result=result)

    def failed(self, batch: AppendBatch, error: BaseException, now: float) -> Resolve:
        """Record that an attempt failed: the batch is retried, or its journal queue ends.

        A retry is never safe: if the connection broke, the broker may have committed the bytes, and the
        protocol does not show it. Then they are in the journal twice. Raw appends only promise at least once,
        and readers recognise repeated messages by their UUIDs. But a retry must not send other bytes, or
        change the order of the journal's batches. So the batch stays sealed, and first.
        """
        batch.sending = False
        if batch.ended:
            return self._free([batch])
        if batch.is_unknown:
            retry.after_lost_answer(error)
        batch.is_unknown = batch.is_unknown or retry.may_be_done(error)
        self.last_error = error
        journal_queue = batch.journal_queue
        if is_terminal(error, batch.options):
            if isinstance(error, SuspendedError) and batch.size == 0:
                # A broker answers like this to the append that suspends a journal. It has no bytes, so later
                # appends do not depend on it.
                return self._end_first(journal_queue, error=error)
            return self._fail(journal_queue, error)
        # The wait grows from 50 ms to five seconds, as in Gazette's client: most failures are a change of the
        # primary, which is over in a moment, and an outage must not become a storm of attempts.
        wait_s: float | None = retry.backoff_s(batch.attempt)
        if batch.deadline is not None:
            wait_s = retry.within(retry.backoff_s(batch.attempt), batch.deadline - now)
        if wait_s is None:  # No attempt fits before the deadline.
            return self._fail(journal_queue, error)
        batch.attempt += 1
        self._wake_at(batch, now + wait_s)
        return Resolve()

    def fail_all(self, error: BaseException) -> Resolve:
        """End all journal queues with pending batches."""
        outcome = Resolve(error=error)
        for journal_queue in list(self.journal_queues.values()):
            if journal_queue.batches:
                failed = self._fail(journal_queue, error)
                outcome.ended += failed.ended
                outcome.freed += failed.freed
        return outcome

    def pending_except(self, journal: str) -> OpFutures:
        """Return the operations of all other journals' batches, and their failures."""
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
        """End only a journal's first batch, so that the next one is first."""
        batch = journal_queue.batches.popleft()
        batch.ended = True
        journal_queue.busy = False
        if journal_queue.batches:
            self._enqueue(journal_queue)
        else:
            # A service may see any number of journals, and an empty queue has no state worth keeping.
            del self.journal_queues[journal_queue.journal]
        outcome = self._free([batch])
        outcome.ended, outcome.result, outcome.error = [batch], result, error
        return outcome

    def _fail(self, journal_queue: JournalQueue, error: BaseException) -> Resolve:
        """End a journal's queue permanently: all its batches fail, and so will all later appends.

        Otherwise a later append could be in the journal without those before it.
        """
        ended = list(journal_queue.batches)
        journal_queue.batches.clear()
        for batch in ended:
            batch.ended = True
        # The failure stays in the table, so that appends that depend on this journal also fail, instead of
        # overtaking the missing ones.
        journal_queue.failure = BatchOperation(journal_queue)
        journal_queue.failure.resolve(error)
        outcome = self._free(ended)
        outcome.ended, outcome.error = ended, error
        return outcome

    def _free(self, batches: list[AppendBatch]) -> Resolve:
        """Subtract batches from the sums, except those that a writer or a sender uses and frees later."""
        outcome = Resolve()
        for batch in batches:
            # A thread that writes or sends the batch still uses its spool. It finds the batch ended and frees
            # it then.
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
        # A journal is enqueued at most once. A busy one is enqueued when its first batch goes on or ends.
        if not (journal_queue.queued or journal_queue.busy):
            journal_queue.queued = True
            self._ready.append(journal_queue)

    def _wake_at(self, batch: AppendBatch, due: float) -> None:
        batch.due = due
        heapq.heappush(self._timers, (due, next(self._sequence), batch))
