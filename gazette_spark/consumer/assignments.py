"""Defines the states of a shard's assignment, and when to start a failed shard again. Pure.

========  ==========================  ========================================================================
state     next                        meaning
========  ==========================  ========================================================================
IDLE      BACKFILL, STANDBY, FAILED   assigned, and not started
BACKFILL  STANDBY, FAILED             plays its recovery log
STANDBY   PRIMARY, FAILED             has the whole log, or uses none: can take over immediately
PRIMARY   FAILED                      its store is open, its transactions run
FAILED    none                        ended by an error; a new assignment starts the shard again
========  ==========================  ========================================================================

A shard fails because of an error of its application or store, or because another process has taken its store
over. Some of these causes are temporary, but the host cannot tell which. So it starts the shard again: soon
at first, and after twice the time for each further failure. The application may know better: if a shard
failed with a :class:`~gazette_spark.errors.PermanentError`, the host does not start it again. If two
processes keep taking a shard from each other, the delays grow as with any failure. In the meantime no message
counts twice, because stores fence.
"""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark.errors import OptionError, TransactionOrderError
from gazette_spark.protocol import consumer_pb2 as pc

MAX_ERROR_CHARS = 2048
"""Maximum length of an error's text in a status."""

PERMANENT = (
    "the application calls this error permanent, so the host does not start the shard again. After you have "
    "removed the cause, unassign the shard"
)
"""Text for the status of a shard that stays FAILED."""

_CUT = " ...[truncated]"

_Code = pc.ReplicaStatus.Code

_NEXT: dict[int, tuple[int, ...]] = {
    _Code.IDLE: (_Code.BACKFILL, _Code.STANDBY, _Code.FAILED),
    _Code.BACKFILL: (_Code.STANDBY, _Code.FAILED),
    _Code.STANDBY: (_Code.PRIMARY, _Code.FAILED),
    _Code.PRIMARY: (_Code.FAILED,),
    _Code.FAILED: (),
}


def error_text(error: BaseException) -> str:
    """Return the text of an error for a status, which is not empty and not too long."""
    text = str(error) or type(error).__name__
    # Protobuf refuses lone surrogates, which a path or a message in an error may contain.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - len(_CUT)] + _CUT


class Lifecycle:
    """The state of one assignment."""

    def __init__(self) -> None:
        self._status = pc.ReplicaStatus(code=_Code.IDLE)

    def __repr__(self) -> str:
        return f"Lifecycle({_Code.Name(self._status.code)})"

    @property
    def status(self) -> pc.ReplicaStatus:
        """A copy of the status."""
        copied = pc.ReplicaStatus()
        copied.CopyFrom(self._status)
        return copied

    def become(self, code: pc.ReplicaStatus.Code) -> None:
        """Move to a state other than FAILED.

        Raises:
            TransactionOrderError: it cannot follow the current state.
        """
        if code not in _NEXT[self._status.code] or code == _Code.FAILED:
            current, requested = _Code.Name(self._status.code), _Code.Name(code)
            raise TransactionOrderError(f"a shard does not go from {current} to {requested}")
        self._status = pc.ReplicaStatus(code=code)

    def fail(self, error: BaseException) -> None:
        """Move to FAILED. A shard that has already failed keeps its first error."""
        if self._status.code != _Code.FAILED:
            self._status = pc.ReplicaStatus(code=_Code.FAILED, errors=[error_text(error)])


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Delays of restarts.

    Raises:
        OptionError: a value is not positive, or the first delay is longer than the longest.
    """

    first_s: float = 1.0
    """Seconds of delay after the first failure; twice as long after each further consecutive one."""
    max_s: float = 60.0
    """Maximum seconds of delay."""
    stable_s: float = 300.0
    """If a shard ran for at least these seconds before it failed, the failure counts as its first."""

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.max_s or self.stable_s <= 0:
            raise OptionError("restart", repr(self), "0 < first_s <= max_s and 0 < stable_s")

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after a number of consecutive failures, which is at least 1."""
        return min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 32))


@dataclass(slots=True)
class Restarts:
    """The failures of one shard, and its restarts."""

    policy: RestartPolicy
    started_s: float
    """Monotonic time of the last start."""
    failures: int = 0
    """Number of consecutive failures."""
    total: int = 0
    """Number of restarts since the host started."""
    is_due: bool = False
    """Whether the shard has failed, and will be started again."""

    def fail(self, now_s: float) -> float:
        """Record a failure, and return the seconds until the restart."""
        stable = now_s - self.started_s >= self.policy.stable_s
        self.failures = 1 if stable else self.failures + 1
        self.is_due = True
        return self.policy.delay_s(self.failures)

    def start(self, now_s: float) -> None:
        """Record the restart."""
        self.started_s, self.is_due = now_s, False
        self.total += 1

    def note(self) -> str:
        """Return the text about the next start, for a status."""
        delay_s = self.policy.delay_s(self.failures)
        return f"failed {self.failures} times in a row; the host starts it again after {delay_s:g} s"
