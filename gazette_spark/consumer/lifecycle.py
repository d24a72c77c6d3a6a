"""The states of a shard's assignment, and how they follow each other. Pure.

========  ==========================  ========================================================================
state     next                        meaning
========  ==========================  ========================================================================
IDLE      BACKFILL, STANDBY, FAILED   assigned, and not started
BACKFILL  STANDBY, FAILED             plays its recovery log
STANDBY   PRIMARY, FAILED             has all the log holds, or uses none: can take over at once
PRIMARY   FAILED                      its store is open, its transactions run
FAILED    none                        ended by an error; a new assignment starts the shard again
========  ==========================  ========================================================================
"""

from __future__ import annotations

from gazette_spark.errors import TransactionOrderError
from gazette_spark.protocol import consumer_pb2 as pc

MAX_ERROR_CHARS = 2048
"""Longest text of an error in a status."""

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
    """Return an error as a status shows it: never empty, and not too long."""
    text = str(error) or type(error).__name__
    # Protobuf refuses lone surrogates, which a path or a message in an error may hold.
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
        """Go on to a state other than FAILED.

        Raises:
            TransactionOrderError: it does not follow the present one.
        """
        self._check(code)
        self._status = pc.ReplicaStatus(code=code)

    def fail(self, error: BaseException) -> None:
        """Go on to FAILED; a shard that has failed keeps its first error."""
        if self._status.code != _Code.FAILED:
            self._status = pc.ReplicaStatus(code=_Code.FAILED, errors=[error_text(error)])

    def _check(self, code: pc.ReplicaStatus.Code) -> None:
        if code not in _NEXT[self._status.code] or code == _Code.FAILED:
            have, want = _Code.Name(self._status.code), _Code.Name(code)
            raise TransactionOrderError(f"a shard does not go from {have} to {want}")
