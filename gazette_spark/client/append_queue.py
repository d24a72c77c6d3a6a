"""What waits to be appended and what is done next: the decisions of AppendService, without its threads.

Each journal with something to append has a lane, a queue of batches; each batch becomes one append. All
that happens to a batch:

===========  ==========================================================  ================================
a batch is   until                                                       meanwhile
===========  ==========================================================  ================================
filling      it is its lane's first                                      writers join, one at a time
waiting      its dependencies are done                                   writers join
open         the writer at work leaves                                   –
sent         the broker answers                                          sealed: nobody joins any more
backing off  its time has come; then it is sent again                    sealed
ended        –                                                           its operation is done
===========  ==========================================================  ================================

Who joins whom, :func:`may_join`; what a failed try means, :func:`is_terminal`. A failure that is terminal,
or outlasts the deadline, ends the lane for good: all its batches fail, and whatever comes later. Other
lanes go on.

Nothing here blocks, does I/O or looks at a clock, and nothing locks: the caller does.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import count
from typing import TypeAlias

from gazette_spark.client import retry
from gazette_spark.client.append import AppendOptions, AppendResult
from gazette_spark.client.append_spool import Spool
from gazette_spark.client.futures import AsyncOperation, OpFuture, OpFutures
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
"""Answers that trying again does not change, unless registers are checked: then another may change them."""

REFUSAL_CODES = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED"})
"""gRPC codes of a request that no broker will take."""


MAX_PENDING_BYTES = 1 << 30
"""Bytes that may wait by default: more is a broker that has been away for long."""

MAX_MEMORY_BYTES = 64 << 20
"""How many of them wait in memory by default."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what waits, in bytes where nothing else is said."""

    pending_bytes: int = MAX_PENDING_BYTES
    """In memory and on disk, all journals together."""
    memory_bytes: int = MAX_MEMORY_BYTES
    """In memory, all journals together."""
    batch_bytes: int = 64 << 20
    """A batch that has so many is not joined; one writer may bring more."""
    batch_memory_bytes: int = 4 << 20
    """Of one batch in memory."""
    files: int = 128
    """Files open at a time, a number."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise OptionError(f"max_{each.name}", str(getattr(self, each.name)), "1 or more")


class Place(Enum):
    """Where a writer's next bytes go."""

    MEMORY = "memory"
    DISK = "disk"
    NOWHERE = "nowhere"
    """There is no room; there may be later."""
    DROPPED = "dropped"
    """The batch has failed already: nobody will ask for them."""


class BatchOperation(AsyncOperation[AppendResult]):
    """The operation of a batch, or of the failure of a lane."""

    def __init__(self, lane: Lane) -> None:
        super().__init__()
        self._lane = lane

    @property
    def is_under_way(self) -> bool:
        """Whether something is done for its lane, so that it will end without anybody's help."""
        return self._lane.busy or self._lane.queued


@dataclass(slots=True, eq=False)
class Batch:
    """What becomes one append: the bytes of one or more writers, each in one piece."""

    lane: Lane
    options: AppendOptions
    dependencies: OpFutures
    operation: BatchOperation
    spool: Spool = field(default_factory=Spool)
    size: int = 0
    """Bytes that are in it, or about to be."""
    writers: int = 0
    """Who have left their bytes."""
    writing: bool = False
    sealed: bool = False
    sending: bool = False
    ended: bool = False
    awaited: bool = False
    """It was its turn, and its dependencies are waited for, or done."""
    waits_for: int = 0
    """Dependencies that are not done yet, once they are waited for."""
    attempt: int = 0
    due: float = 0.0
    """When to try again, or to give up the dependencies; 0: nothing is due."""
    deadline: float | None = None
    counted: tuple[int, int, bool] = (0, 0, False)
    """Its bytes, bytes in memory and file, as counted in the queue's sums."""


@dataclass(slots=True, eq=False)
class Lane:
    """A journal's batches: the first is at work or about to be, the last may be joined."""

    plain: AppendOptions
    """Of appends that ask for nothing but their bytes."""
    batches: deque[Batch] = field(default_factory=deque)
    busy: bool = False
    """Its first batch waits, is sent or backs off."""
    queued: bool = False
    failure: BatchOperation | None = None
    """Why nothing is appended any more."""
    reported: bool = False
    """Somebody has been told of the failure."""

    @property
    def journal(self) -> str:
        """The journal's name."""
        return self.plain.journal


@dataclass(frozen=True, slots=True)
class Send:
    """Append the batch's bytes; then call ``sent`` or ``failed``."""

    batch: Batch
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Await:
    """Call ``dependency_done`` for each of the batch's dependencies once it is done."""

    batch: Batch


@dataclass(slots=True)
class Outcome:
    """Resolve the operations of ``ended`` with ``error`` or ``result``, close the spools ``freed``."""

    ended: list[Batch] = field(default_factory=list)
    error: BaseException | None = None
    result: AppendResult | None = None
    freed: list[Spool] = field(default_factory=list)


Work: TypeAlias = Send | Await | Outcome


def may_join(batch: Batch, options: AppendOptions, dependencies: OpFutures, limits: Limits) -> bool:
    """Return whether a writer's bytes may go into a batch that others have written to.

    They have to ask for the same, wait for nothing more, and not mind where they land: at an explicit
    offset there is room for one.
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
        case StatusError():
            return options.check_registers is None and isinstance(error, TERMINAL_STATUSES)
        case BrokerError():
            return error.code in REFUSAL_CODES or retry.is_refusal(error)
    return not isinstance(error, UnavailableError)


def is_stuck(dependency: OpFuture) -> bool:
    """Return whether a dependency is not done, and is nothing that this service is at work on."""
    at_work = isinstance(dependency, BatchOperation) and dependency.is_under_way
    return not (dependency.done() or at_work)


class AppendQueue:
    """The lanes of all journals. A caller's lock is held during each call."""

    def __init__(self, limits: Limits, *, timeout_s: float | None, try_timeout_s: float) -> None:
        """Begin with nothing to do.

        Args:
            limits: bounds on what waits.
            timeout_s: seconds a batch is tried for, or waits for its dependencies; None: for ever.
            try_timeout_s: seconds one try may take if there is no such end.
        """
        self.limits = limits
        self.timeout_s = timeout_s
        self.lanes: dict[str, Lane] = {}
        self.pending_bytes = 0
        self.memory_bytes = 0
        self.files = 0
        self._try_timeout_s = try_timeout_s
        self._ready: deque[Lane] = deque()
        self._timers: list[tuple[float, int, Batch]] = []
        self._sequence = count()

    @property
    def next_due(self) -> float | None:
        """When there will be work again if nothing happens until then."""
        return self._timers[0][0] if self._timers else None

    @property
    def has_ready(self) -> bool:
        """Whether :meth:`take` may have work at once."""
        return bool(self._ready)

    def enter(self, options: AppendOptions, dependencies: OpFutures) -> Batch | None:
        """Begin to write, and return the batch to write to; None while another writer is at work."""
        lane = self.lanes.get(options.journal)
        if lane is None:
            lane = self.lanes[options.journal] = Lane(AppendOptions(options.journal))
        if lane.failure is not None:
            return Batch(lane, options, dependencies, lane.failure, writing=True, sealed=True, ended=True)
        if lane.batches and lane.batches[-1].writing:
            return None
        if options == lane.plain:
            options = lane.plain
        batch = lane.batches[-1] if lane.batches else None
        if batch is None or not may_join(batch, options, dependencies, self.limits):
            batch = Batch(lane, options, dependencies, BatchOperation(lane))
            lane.batches.append(batch)
        batch.writing = True
        return batch

    def quick(self, journal: str, size: int) -> Batch | None:
        """Enter, find room in memory and leave, all in one; None where it is not that simple.

        The caller adds the bytes to the batch's memory before anything else happens.
        """
        lane = self.lanes.get(journal)
        if lane is None or not lane.batches:
            return None
        batch = lane.batches[-1]
        limits = self.limits
        if (
            batch.writing
            or batch.sealed
            or batch.options is not lane.plain
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

    def place(self, batch: Batch, size: int) -> Place:
        """Decide where a writer's next bytes go, and make room for them there."""
        if batch.ended:
            return Place.DROPPED
        limits = self.limits
        if self.pending_bytes + size > limits.pending_bytes:
            return Place.NOWHERE
        total, memory, file = batch.counted
        if memory + size <= limits.batch_memory_bytes and self.memory_bytes + size <= limits.memory_bytes:
            self._count(batch, (total + size, memory + size, file))
            return Place.MEMORY
        if not file and self.files >= limits.files:
            return Place.NOWHERE
        self._count(batch, (total + size, memory, True))
        return Place.DISK

    def placed(self, batch: Batch) -> None:
        """Take note of what a batch holds after its writer moved it to disk, or took bytes back."""
        if not batch.ended:
            spool = batch.spool
            self._count(batch, (len(spool), len(spool.memory), spool.on_disk))

    def leave(self, batch: Batch, *, kept: bool) -> Outcome:
        """End a writer's turn: its bytes stay, or were taken back."""
        batch.writing = False
        if batch.ended:
            return self._free([batch])
        batch.writers += kept
        self.placed(batch)
        if batch.lane.batches[0] is batch:
            self._enqueue(batch.lane)
        return Outcome()

    def take(self, now: float) -> Work | None:
        """Return what is to be done next, or None: nothing, until ``next_due`` or another call."""
        while self._timers and self._timers[0][0] <= now:
            due, _, batch = heapq.heappop(self._timers)
            if batch.ended or batch.due != due:
                continue
            batch.due = 0.0
            if batch.waits_for == 0:
                self._go_on(batch.lane)
            elif (outcome := self._give_up(batch, now)) is not None:
                return outcome
        while self._ready:
            lane = self._ready.popleft()
            lane.queued = False
            if (work := self._step(lane, now)) is not None:
                return work
        return None

    def dependency_done(self, batch: Batch, error: BaseException | None) -> Outcome:
        """Take note that one of a batch's dependencies has ended."""
        if batch.ended:
            return Outcome()
        if error is not None:
            failure = DependencyError(batch.lane.journal, str(error) or type(error).__name__)
            failure.__cause__ = error
            return self._fail(batch.lane, failure)
        batch.waits_for -= 1
        if batch.waits_for == 0:
            batch.due = 0.0
            self._go_on(batch.lane)
        return Outcome()

    def sent(self, batch: Batch, result: AppendResult) -> Outcome:
        """Take note that a batch was appended."""
        batch.sending = False
        if batch.ended:
            return self._free([batch])
        return self._end_first(batch.lane, result)

    def failed(self, batch: Batch, error: BaseException, now: float) -> Outcome:
        """Take note that a try failed: the batch is tried again, or its lane ends."""
        batch.sending = False
        if batch.ended:
            return self._free([batch])
        wait_s: float | None = None
        if not is_terminal(error, batch.options):
            wait_s = retry.backoff_s(batch.attempt)
            if batch.deadline is not None:
                wait_s = retry.within(wait_s, batch.deadline - now)
        if wait_s is None:
            return self._fail(batch.lane, error)
        batch.attempt += 1
        self._wake_at(batch, now + wait_s)
        return Outcome()

    def fail_all(self, error: BaseException) -> Outcome:
        """End all lanes that have something to append."""
        outcome = Outcome(error=error)
        for lane in [lane for lane in self.lanes.values() if lane.batches]:
            each = self._fail(lane, error)
            outcome.ended += each.ended
            outcome.freed += each.freed
        return outcome

    def pending_except(self, journal: str) -> OpFutures:
        """Return the operations of all batches of other journals, and those journals' failures."""
        pending: list[OpFuture] = []
        for name, lane in self.lanes.items():
            if name != journal:
                pending.extend(batch.operation for batch in lane.batches)
                if lane.failure is not None:
                    pending.append(lane.failure)
        return frozenset(pending)

    def failures(self) -> Iterable[Lane]:
        """Return the lanes that have failed."""
        return [lane for lane in self.lanes.values() if lane.failure is not None]

    def _give_up(self, batch: Batch, now: float) -> Outcome | None:
        """End the wait for dependencies, unless all of them are on their way: those have deadlines too."""
        timeout_s = self.timeout_s or 0.0
        if any(is_stuck(each) for each in batch.dependencies):
            problem = f"{batch.waits_for} operations the append depends on are not done"
            return self._fail(batch.lane, AppendWaitError(batch.lane.journal, timeout_s, problem))
        self._wake_at(batch, now + timeout_s)
        return None

    def _step(self, lane: Lane, now: float) -> Work | None:
        """Decide what a lane's first batch is in for."""
        if lane.busy or not lane.batches:
            return None
        batch = lane.batches[0]
        if batch.dependencies and not batch.awaited:
            batch.awaited = True
            batch.waits_for = len(batch.dependencies)
            lane.busy = True
            if self.timeout_s is not None:
                self._wake_at(batch, now + self.timeout_s)
            return Await(batch)
        if batch.writing:
            return None
        if not batch.writers:
            return self._end_first(lane, None)
        return self._send(batch, now)

    def _send(self, batch: Batch, now: float) -> Send:
        if not batch.sealed:
            batch.sealed = True
            batch.deadline = None if self.timeout_s is None else now + self.timeout_s
        batch.sending = batch.lane.busy = True
        left_s = self._try_timeout_s if batch.deadline is None else batch.deadline - now
        return Send(batch, max(retry.MARGIN_S, left_s))

    def _end_first(self, lane: Lane, result: AppendResult | None) -> Outcome:
        batch = lane.batches.popleft()
        batch.ended = True
        lane.busy = False
        if lane.batches:
            self._enqueue(lane)
        else:
            del self.lanes[lane.journal]
        outcome = self._free([batch])
        outcome.ended, outcome.result = [batch], result
        return outcome

    def _fail(self, lane: Lane, error: BaseException) -> Outcome:
        ended = list(lane.batches)
        lane.batches.clear()
        for batch in ended:
            batch.ended = True
        lane.failure = BatchOperation(lane)
        lane.failure.resolve(error)
        outcome = self._free(ended)
        outcome.ended, outcome.error = ended, error
        return outcome

    def _free(self, batches: list[Batch]) -> Outcome:
        """Count batches off, but those that a writer or sender still has its hands on."""
        outcome = Outcome()
        for batch in batches:
            if not (batch.writing or batch.sending):
                self._count(batch, (0, 0, False))
                outcome.freed.append(batch.spool)
        return outcome

    def _count(self, batch: Batch, now: tuple[int, int, bool]) -> None:
        before = batch.counted
        self.pending_bytes += now[0] - before[0]
        self.memory_bytes += now[1] - before[1]
        self.files += now[2] - before[2]
        batch.counted = now
        batch.size = now[0]

    def _go_on(self, lane: Lane) -> None:
        lane.busy = False
        self._enqueue(lane)

    def _enqueue(self, lane: Lane) -> None:
        if not (lane.queued or lane.busy):
            lane.queued = True
            self._ready.append(lane)

    def _wake_at(self, batch: Batch, due: float) -> None:
        batch.due = due
        heapq.heappush(self._timers, (due, next(self._sequence), batch))
