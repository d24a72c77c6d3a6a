"""Decides the demo's next step from observations of the query and the writers.

======== ======================================================= =============
state    leaves it, or stays in it, when                         by the step
======== ======================================================= =============
starting the table exists                                        START_WRITING
writing  a kill is due, and the query is in mid-flight           KILL
writing  the time is up; all kills are done, or there is enough  STOP_WRITING
         left to read to do the others while draining
draining a kill is missing, and the query is in mid-flight       KILL
draining the ledger is at every write head                       FINISH
======== ======================================================= =============

A kill is in mid-flight only if the run of the query that is killed has committed rows itself, and
has planned a batch that it has not finished. Killing it while it starts would prove little.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

BATCHES_PER_KILL = 3
"""A run that is killed in mid-flight does a batch and dies in the next; and one to be safe."""


class Step(Enum):
    """Next step of the demo."""

    WAIT = auto()
    START_WRITING = auto()
    KILL = auto()
    STOP_WRITING = auto()
    FINISH = auto()


@dataclass(frozen=True, slots=True)
class Plan:
    """Script of the demo."""

    seconds: float
    """Seconds that the writers append; longer if the kills take longer."""
    pauses_s: tuple[float, ...]
    """One entry a kill: time between the first commit of a run and its kill, so that kills hit a batch
    at different moments."""

    def kill_due_s(self, kills: int) -> float:
        """Return when the next kill is due: kills are spread over the first half of the time."""
        return self.seconds * (kills + 1) / (2 * len(self.pauses_s))


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation at one moment. Times are seconds since an event, None if it has not happened."""

    table_exists: bool = False
    writing_s: float | None = None
    """Since the writers began."""
    committed_s: float | None = None
    """Since this run of the query committed its first rows."""
    in_flight: bool = False
    """A batch is planned and not done."""
    kills: int = 0
    """Kills so far."""
    backlog_batches: float = 0.0
    """Backlog of appended events that are not in the table, in batches of full size."""
    stopped: bool = False
    """The writers have ended."""
    drained: bool = False
    """The ledger's offsets are the write heads."""


def decide(seen: Observation, plan: Plan) -> Step:
    """Return the next step."""
    if seen.writing_s is None:
        return Step.START_WRITING if seen.table_exists else Step.WAIT
    missing = len(plan.pauses_s) - seen.kills
    if missing and seen.in_flight and _kill_is_due(seen, seen.writing_s, plan):
        return Step.KILL
    if seen.stopped:
        return Step.FINISH if seen.drained else Step.WAIT
    is_over = seen.writing_s >= plan.seconds and seen.backlog_batches >= missing * BATCHES_PER_KILL
    return Step.STOP_WRITING if is_over else Step.WAIT


def _kill_is_due(seen: Observation, writing_s: float, plan: Plan) -> bool:
    if seen.committed_s is None:
        return False
    # What is left to read while draining must not run out during a pause.
    pause_s = 0.0 if seen.stopped else plan.pauses_s[seen.kills]
    return seen.committed_s >= pause_s and writing_s >= plan.kill_due_s(seen.kills)
