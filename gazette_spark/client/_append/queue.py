"""The queue of appends and its next step: the decisions of AppendService, without its threads.

Each journal with something to append has a queue of batches; each batch becomes one append. The states of a
batch:

===========  ==========================================================  ================================
a batch is   until                                                       meanwhile
===========  ==========================================================  ================================
filling      it is its journal queue's first                             writers join, one at a time
waiting      its dependencies are done                                   writers join
open         the writer at work leaves                                   –
sent         the broker answers                                          sealed: nobody joins any more
backing off  its time has come; then it is sent again                    sealed
ended        –                                                           its operation is done
===========  ==========================================================  ================================

The rules are those of :mod:`gazette_spark.client._append.batches`. A failure that is terminal, or outlasts
the deadline, ends the journal queue permanently: all its batches fail, and all later appends. The queues of
other journals go on.

Nothing here blocks, does I/O or looks at a clock, and nothing locks: the caller does.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from gazette_spark.client._append.append import AppendOptions, AppendResult
from gazette_spark.client._append.batches import (
    AppendBatch,
    BatchOperation,
    BufferTarget,
    JournalQueue,
    Limits,
    attempt_timeout_s,
    ends_alone,
    is_stuck,
    is_terminal,
    may_join,
)
from gazette_spark.client._append.futures import OpFuture, OpFutures
from gazette_spark.client._append.spool import Spool
from gazette_spark.client._transport import retry
from gazette_spark.errors import AppendWaitError, DependencyError


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
class Outcome:
    """Resolve the operations of ``ended`` with ``error`` or ``result``, close the spools ``freed``."""

    ended: list[AppendBatch] = field(default_factory=list)
    error: BaseException | None = None
    result: AppendResult | None = None
    freed: list[Spool] = field(default_factory=list)


Work: TypeAlias = Send | Await | Outcome


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
            journal_queue = self.journal_queues[options.journal] = JournalQueue(
                AppendOptions(options.journal)
            )
        if journal_queue.failure is not None:
            return AppendBatch(
                journal_queue,
                options,
                dependencies,
                journal_queue.failure,
                writing=True,
                sealed=True,
                ended=True,
            )
        if journal_queue.batches and journal_queue.batches[-1].writing:
            return None
        if options == journal_queue.plain:
            options = journal_queue.plain
        batch = journal_queue.batches[-1] if journal_queue.batches else None
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

    def placed(self, batch: AppendBatch) -> None:
        """Count a batch's size again after its writer moved it to disk, or removed bytes."""
        if not batch.ended:
            spool = batch.spool
            self._count(batch, (len(spool), len(spool.memory), spool.on_disk))

    def leave(self, batch: AppendBatch, *, kept: bool) -> Outcome:
        """End a writer's turn: its bytes stay, or were taken back."""
        batch.writing = False
        if batch.ended:
            return self._free([batch])
        batch.writers += kept
        self.placed(batch)
        if batch.journal_queue.batches[0] is batch:
            self._enqueue(batch.journal_queue)
        return Outcome()

    def take(self, now: float) -> Work | None:
        """Return the next step, or None: nothing to do until ``next_due`` or another call."""
        while self._timers and self._timers[0][0] <= now:
            due, _, batch = heapq.heappop(self._timers)
            if batch.ended or batch.due != due:
                continue
            batch.due = 0.0
            if batch.waits_for == 0:
                self._go_on(batch.journal_queue)
            elif (outcome := self._give_up(batch, now)) is not None:
                return outcome
        while self._ready:
            journal_queue = self._ready.popleft()
            journal_queue.queued = False
            if (work := self._step(journal_queue, now)) is not None:
                return work
        return None

    def dependency_done(self, batch: AppendBatch, error: BaseException | None) -> Outcome:
        """Record that one of a batch's dependencies has ended."""
        if batch.ended:
            return Outcome()
        if error is not None:
            failure = DependencyError(batch.journal_queue.journal, str(error) or type(error).__name__)
            failure.__cause__ = error
            return self._fail(batch.journal_queue, failure)
        batch.waits_for -= 1
        if batch.waits_for == 0:
            batch.due = 0.0
            self._go_on(batch.journal_queue)
        return Outcome()

    def sent(self, batch: AppendBatch, result: AppendResult) -> Outcome:
        """Record that a batch was appended."""
        batch.sending = False
        self.last_error = None
        if batch.ended:
            return self._free([batch])
        return self._end_first(batch.journal_queue, result=result)

    def failed(self, batch: AppendBatch, error: BaseException, now: float) -> Outcome:
        """Record that a try failed: the batch is tried again, or its journal queue ends."""
        batch.sending = False
        if batch.ended:
            return self._free([batch])
        self.last_error = error
        wait_s: float | None = None
        terminal = is_terminal(error, batch.options)
        if terminal and ends_alone(error, batch):
            return self._end_first(batch.journal_queue, error=error)
        if not terminal:
            wait_s = retry.backoff_s(batch.attempt)
            if batch.deadline is not None:
                wait_s = retry.within(wait_s, batch.deadline - now)
        if wait_s is None:
            return self._fail(batch.journal_queue, error)
        batch.attempt += 1
        self._wake_at(batch, now + wait_s)
        return Outcome()

    def fail_all(self, error: BaseException) -> Outcome:
        """End all journal queues that have something to append."""
        outcome = Outcome(error=error)
        for journal_queue in [
            journal_queue for journal_queue in self.journal_queues.values() if journal_queue.batches
        ]:
            each = self._fail(journal_queue, error)
            outcome.ended += each.ended
            outcome.freed += each.freed
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
        return [
            journal_queue
            for journal_queue in self.journal_queues.values()
            if journal_queue.failure is not None
        ]

    def _give_up(self, batch: AppendBatch, now: float) -> Outcome | None:
        """End the wait for dependencies, unless all of them are on their way: those have deadlines too."""
        timeout_s = self.timeout_s or 0.0
        if any(is_stuck(each) for each in batch.dependencies):
            problem = f"{batch.waits_for} operations the append depends on are not done"
            return self._fail(
                batch.journal_queue, AppendWaitError(batch.journal_queue.journal, timeout_s, problem)
            )
        self._wake_at(batch, now + timeout_s)
        return None

    def _step(self, journal_queue: JournalQueue, now: float) -> Work | None:
        """Decide the next step of a journal queue's first batch."""
        if journal_queue.busy or not journal_queue.batches:
            return None
        batch = journal_queue.batches[0]
        if batch.dependencies and not batch.awaited:
            batch.awaited = True
            batch.waits_for = len(batch.dependencies)
            journal_queue.busy = True
            if self.timeout_s is not None:
                self._wake_at(batch, now + self.timeout_s)
            return Await(batch)
        if batch.writing:
            return None
        if not batch.writers:
            return self._end_first(journal_queue)
        return self._send(batch, now)

    def _send(self, batch: AppendBatch, now: float) -> Send:
        if not batch.sealed:
            batch.sealed = True
            batch.deadline = None if self.timeout_s is None else now + self.timeout_s
        batch.sending = batch.journal_queue.busy = True
        if batch.deadline is None:
            return Send(batch, attempt_timeout_s(2 * self._attempt_timeout_s, batch.size))
        left_s = batch.deadline - now
        return Send(batch, max(retry.MARGIN_S, min(left_s, attempt_timeout_s(left_s, batch.size))))

    def _end_first(
        self,
        journal_queue: JournalQueue,
        *,
        result: AppendResult | None = None,
        error: BaseException | None = None,
    ) -> Outcome:
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

    def _fail(self, journal_queue: JournalQueue, error: BaseException) -> Outcome:
        ended = list(journal_queue.batches)
        journal_queue.batches.clear()
        for batch in ended:
            batch.ended = True
        journal_queue.failure = BatchOperation(journal_queue)
        journal_queue.failure.resolve(error)
        outcome = self._free(ended)
        outcome.ended, outcome.error = ended, error
        return outcome

    def _free(self, batches: list[AppendBatch]) -> Outcome:
        """Count batches off, but those that a writer or sender still has its hands on."""
        outcome = Outcome()
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
