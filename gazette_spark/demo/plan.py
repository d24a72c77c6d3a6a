"""Decides, from what is seen of the query and the writers, what the demo does next.

======== ============================================ =================
state    leaves it when                               by the step
======== ============================================ =================
starting the table exists                             START_WRITING
writing  a kill is due, and the query is in mid-flight KILL
writing  the time is up and all kills are done        STOP_WRITING
draining the ledger stands at every write head        FINISH
======== ============================================ =================

A kill is in mid-flight only if the run of the query that is killed has committed rows of its own, and
has planned a batch that it has not finished. Killing it while it starts would prove little.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Step(Enum):
    """What to do next."""

    WAIT = auto()
    START_WRITING = auto()
    KILL = auto()
    STOP_WRITING = auto()
    FINISH = auto()


@dataclass(frozen=True, slots=True)
class Script:
    """What the demo is to do."""

    seconds: float
    """How long the writers append; longer if the kills take longer."""
    pauses_s: tuple[float, ...]
    """One entry a kill: time between the first commit of a run and its kill, so that kills hit a batch
    at different moments."""

    def kill_due_s(self, kills: int) -> float:
        """Return when the next kill is due: kills are spread over the first half of the time."""
        return self.seconds * (kills + 1) / (2 * len(self.pauses_s))


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen at one moment. Times are seconds since something happened, None if it has not."""

    table_exists: bool = False
    writing_s: float | None = None
    """Since the writers began."""
    committed_s: float | None = None
    """Since this run of the query committed its first rows."""
    in_flight: bool = False
    """A batch is planned and not done."""
    kills: int = 0
    """Kills so far."""
    stopped: bool = False
    """The writers have ended."""
    drained: bool = False
    """The ledger's offsets are the write heads."""


def decide(sight: Sight, script: Script) -> Step:
    """Return the next step."""
    if sight.writing_s is None:
        return Step.START_WRITING if sight.table_exists else Step.WAIT
    if sight.stopped:
        return Step.FINISH if sight.drained else Step.WAIT
    if sight.kills < len(script.pauses_s):
        return Step.KILL if _kill_is_due(sight, sight.writing_s, script) else Step.WAIT
    return Step.STOP_WRITING if sight.writing_s >= script.seconds else Step.WAIT


def _kill_is_due(sight: Sight, writing_s: float, script: Script) -> bool:
    return (
        sight.in_flight
        and writing_s >= script.kill_due_s(sight.kills)
        and sight.committed_s is not None
        and sight.committed_s >= script.pauses_s[sight.kills]
    )
