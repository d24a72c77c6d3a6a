"""The table of points at which a query can be killed; a new step of the sink is a new row.

A point is reached in two ways. In one process an exception is raised there (``raises``, the name of a
failpoint), which Spark and Delta see as the end of the query; what they keep in memory survives. In a child
process SIGKILL comes there (``kills``): at a failpoint of the driver or its tasks, or before or after the
rename that makes a file of the query checkpoint or of the table's log visible, which is exact to the system
call.
"""

from __future__ import annotations

from dataclasses import dataclass

OFFSET_LOG = r"/offsets/\d+"
COMMIT_LOG = r"/commits/\d+"
TABLE_LOG = r"/table/_delta_log/\d{20}\.json"


@dataclass(frozen=True, slots=True)
class Rename:
    """SIGKILL ``before`` or ``after`` a rename to a path with this ending."""

    when: str
    path_end: str


TABLE_RENAMES = (Rename("before", TABLE_LOG), Rename("after", TABLE_LOG))
"""Renames that commit to a Delta table."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """SIGKILL at a failpoint of the driver process."""

    name: str


@dataclass(frozen=True, slots=True)
class TaskFailpoint:
    """SIGKILL to the driver and all of its processes at a failpoint of a task."""

    name: str


@dataclass(frozen=True, slots=True)
class Point:
    name: str
    raises: str | None = None
    """Failpoint at which an exception is raised; None if only a kill reaches the point."""
    kills: Rename | Failpoint | TaskFailpoint | None = None
    nths: tuple[int, ...] = (1, 1, 2)
    """Occurrences of the failpoint at which the exception may be raised; one is drawn."""
    feature: str = ""
    """Sink feature that is needed to reach the point; empty: none."""


POINTS = (
    Point("before the WAL", "source.latest_offset", Rename("before", OFFSET_LOG)),
    Point("after the WAL", "source.partitions", Rename("after", OFFSET_LOG)),
    Point("at the sink's entry", "sink.entry", Failpoint("sink.entry")),
    Point("before the write", "sink.before_write", Failpoint("sink.before_write")),
    Point("in a task", "source.read", nths=(1,)),
    Point(
        "before the states are visible",
        "scan.before_states",
        TaskFailpoint("scan.before_states"),
        nths=(1,),
        feature="committed",
    ),
    Point(
        "states written",
        "scan.states_written",
        TaskFailpoint("scan.states_written"),
        nths=(1,),
        feature="committed",
    ),
    Point("files half written", "source.rows", nths=(1,)),
    Point("files written, not committed", None, Rename("before", TABLE_LOG)),
    Point(
        "manifests written, not committed",
        "iceberg.before_commit",
        Failpoint("iceberg.before_commit"),
        feature="iceberg",
    ),
    Point("committed, not returned", None, Rename("after", TABLE_LOG)),
    Point("before the read-back", "sink.after_write", Failpoint("sink.after_write")),
    Point("before the commit log", "sink.return", Rename("before", COMMIT_LOG)),
    Point("after the commit log", "source.latest_offset", Rename("after", COMMIT_LOG), nths=(2, 2, 3)),
    Point("during MERGE", "sink.during_merge", Failpoint("sink.during_merge"), feature="upsert"),
    Point("during replacement", "sink.during_replace", Failpoint("sink.during_replace"), feature="replace"),
    Point(
        "between dead letters and rows",
        "sink.dead_letters_written",
        Failpoint("sink.dead_letters_written"),
        feature="dead letters",
    ),
)
"""Points in the order of a batch's steps."""

BY_NAME = {point.name: point for point in POINTS}


def reachable(features: frozenset[str], *, by_kill: bool) -> list[Point]:
    """Return the points that a sink with these features reaches, by SIGKILL or by an exception."""
    points = [
        point
        for point in POINTS
        if (point.kills if by_kill else point.raises) and (not point.feature or point.feature in features)
    ]
    if features == {"iceberg"} and by_kill:
        # No killable process renames a file of Delta's log there.
        points = [point for point in points if point.kills not in TABLE_RENAMES]
    return points
