"""What AppendService gathers: batches of appends, in lanes, one for each journal; and the rules for them.

Who joins whom, :func:`may_join`; what a failed try means, :func:`is_terminal` and :func:`ends_alone`; when a
dependency is waited for in vain, :func:`is_stuck`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from enum import Enum

from gazette_spark.client.appending.append import AppendOptions, AppendResult
from gazette_spark.client.appending.futures import AsyncOperation, OpFuture, OpFutures
from gazette_spark.client.appending.spool import Spool
from gazette_spark.client.connection import retry
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
"""Answers that trying again does not change, unless registers are checked: then another may change them."""

REFUSAL_CODES = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED"})
"""gRPC codes of a request that no broker will take."""


MAX_PENDING_BYTES = 1 << 30
"""Bytes that may wait by default: more is a broker that has been away for long."""

MAX_MEMORY_BYTES = 64 << 20
"""How many of them wait in memory by default."""


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
class AppendBatch:
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
    batches: deque[AppendBatch] = field(default_factory=deque)
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
            return options.check_registers is None and isinstance(error, TERMINAL_STATUSES)
        case BrokerError():
            return error.code in REFUSAL_CODES or retry.is_refusal(error)
    return not isinstance(error, UnavailableError)


def ends_alone(error: BaseException, batch: AppendBatch) -> bool:
    """Return whether a failure that stays is the batch's own, and leaves its lane as it was.

    A batch without bytes, told that its journal is suspended, leaves nothing out: it may have done that.
    """
    return isinstance(error, SuspendedError) and batch.size == 0


def is_stuck(dependency: OpFuture) -> bool:
    """Return whether a dependency is not done, and is nothing that this service is at work on."""
    at_work = isinstance(dependency, BatchOperation) and dependency.is_under_way
    return not (dependency.done() or at_work)


def try_s(left_s: float, size: int) -> float:
    """Return the seconds one try may take: half of what is left, and what its bytes take at the slowest.

    A try that is not answered may be one on a half-open connection; the next is made on a new one.
    """
    return left_s / 2 + size / SLOWEST_BYTES_PER_S
