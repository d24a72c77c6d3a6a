"""Verdicts and windows as Burrow's JSON: its names, their order, its number format.

>>> shortest(1 / 3)
0.33333334
>>> shortest(1.0)
1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gazette_spark.lag.columns import PartitionStatuses
from gazette_spark.lag.rules import (
    GroupStatus,
    OffsetCommit,
    PartitionStatus,
    PartitionWindow,
    Status,
    float32,
)


def group_json(status: GroupStatus, *, show_all: bool) -> dict[str, Any]:
    """Return the value of ``status`` in an answer of Burrow's.

    Args:
        status: the verdict, with all partitions.
        show_all: show every partition; else only those that are not OK. Counts and ``maxlag`` are of all.
    """
    shown = status.partitions if show_all else bad_partitions(status.partitions)
    return {
        "cluster": status.cluster,
        "group": status.group,
        "status": status.status.name,
        "complete": shortest(status.complete),
        "partitions": [partition_json(partition) for partition in shown],
        "partition_count": status.partition_count,
        "maxlag": partition_json(status.maxlag) if status.maxlag else None,
        "totallag": status.total_lag,
    }


def bad_partitions(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Return the partitions that are not OK."""
    if isinstance(partitions, PartitionStatuses):
        return partitions.above(Status.OK)
    return [partition for partition in partitions if partition.status > Status.OK]


def partition_json(partition: PartitionStatus) -> dict[str, Any]:
    """Return a partition's verdict."""
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "owner": partition.owner,
        "client_id": partition.client_id,
        "status": partition.status.name,
        "start": commit_json(partition.start),
        "end": commit_json(partition.end),
        "current_lag": partition.current_lag,
        "complete": shortest(partition.complete),
    }


def commit_json(commit: OffsetCommit | None) -> dict[str, Any] | None:
    """Return a commit; null for an unused slot."""
    if commit is None:
        return None
    return {
        "offset": commit.offset,
        "timestamp": commit.timestamp_ms,
        "observedAt": commit.observed_ms,
        "lag": commit.lag,
    }


def topics_json(topics: Mapping[str, Sequence[PartitionWindow]]) -> dict[str, Any]:
    """Return the value of ``topics`` in Burrow's answer about a group. Mind the hyphen."""
    return {
        topic: [
            {
                "offsets": [commit_json(commit) for commit in window.offset_commits],
                "owner": window.owner,
                "client_id": window.client_id,
                "current-lag": window.current_lag,
            }
            for window in windows
        ]
        for topic, windows in topics.items()
    }


def shortest(number: float) -> float:
    """Return the number with the fewest digits that is the same 32-bit float, whole ones as integers."""
    wanted = float32(number)
    if wanted.is_integer():
        return int(wanted)
    # Nine digits tell any two 32-bit floats apart.
    candidates = (float(f"{wanted:.{digits}g}") for digits in range(1, 10))
    return next(candidate for candidate in candidates if float32(candidate) == wanted)
