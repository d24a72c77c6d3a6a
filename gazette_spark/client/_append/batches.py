"""The batches that AppendService gathers, in journal queues, one for each journal; and the rules for them.

:func:`may_join` decides which appends share a batch, :func:`is_terminal` whether a failed try is final, and
:func:`is_stuck` whether the wait for a dependency is in vain.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from enum import Enum

from gazette_spark.client._append.append import AppendOptions, AppendResult
from gazette_spark.client._append.futures import AsyncOperation, OpFuture, OpFutures
from gazette_spark.client._append.spool import Spool
from gazette_spark.client._transport import retry
from gazette_spark.errors import (
    BrokerError,
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
    """Files open at a time, a number."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise OptionError(f"max_{each.name}", str(getattr(self, each.name)), "1 or more")


class BufferTarget(Enum):
    """Buffer for a writer's next bytes."""

    MEMORY = "memory"
    DISK = "disk"
    NOWHERE = "nowhere"
    """There is no room; there may be later."""
    DROPPED = "dropped"
    """The batch has failed already: nobody will ask for them."""


class BatchOperation(AsyncOperation[AppendResult]):
    """The operation of a batch, or of the failure of a journal queue."""

    def __init__(self, journal_queue: JournalQueue) -> None:
        super().__init__()
        self._journal_queue = journal_queue

    @property
    def is_under_way(self) -> bool:
        """Whether its journal queue is active, so that it will end without help."""
        return self._journal_queue.busy or self._journal_queue.queued


@dataclass(slots=True, eq=False)
class AppendBatch:
    """The batch of one append: the bytes of one or more writers, each in one piece."""

    journal_queue: JournalQueue
    options: AppendOptions
    dependencies: OpFutures
    operation: BatchOperation
    spool: Spool = field(default_factory=Spool)
    size: int = 0
    """Bytes that are in it, or about to be."""
    writers: int = 0
    """Number of writers whose bytes are in the batch."""
    writing: bool = False
    sealed: bool = False
    sending: bool = False
    ended: bool = False
    awaited: bool = False
    """The batch is first in its journal queue, and its dependencies are awaited or done."""
    waits_for: int = 0
    """Dependencies that are not done yet, once they are waited for."""
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
    failure: BatchOperation | None = None
    """Failure that ended the journal queue."""
    reported: bool = False
    """Somebody has seen the failure."""

    @property
    def journal(self) -> str:
        """The journal's name."""
        return self.plain.journal


def may_join(batch: AppendBatch, options: AppendOptions, dependencies: OpFutures, limits: Limits) -> bool:
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
        case SuspendedError():
            return not options.resumes
        case StatusError():
            return isinstance(error, TERMINAL_STATUSES)
        case BrokerError():
            return error.code in REFUSAL_CODES or retry.is_refusal(error)
    return not isinstance(error, UnavailableError)


def ends_alone(error: BaseException, batch: AppendBatch) -> bool:
    """Return whether a failure that stays is the batch's own, and leaves its journal queue as it was.

    A batch without bytes, told that its journal is suspended, leaves nothing out: it may have done that.
    """
    return isinstance(error, SuspendedError) and batch.size == 0


def is_stuck(dependency: OpFuture) -> bool:
    """Return whether a dependency is not done, and is nothing that this service is at work on."""
    at_work = isinstance(dependency, BatchOperation) and dependency.is_under_way
    return not (dependency.done() or at_work)


def attempt_timeout_s(left_s: float, size: int) -> float:
    """Return the timeout of a try: half of the time left, plus the time of its bytes at the slowest rate.

    A try without an answer may be on a half-open connection; the next try uses a new one.
    """
    return left_s / 2 + size / SLOWEST_BYTES_PER_S
