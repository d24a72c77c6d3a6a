"""Judges windows of commits exactly as Burrow does.

A window is the known state of one partition: its last commits, oldest first, the recent write heads, and its
current lag. A lag up to the allowed lag is OK. Otherwise the first matching rule decides:

======  ==========================================================================================
STOP    it has been silent for longer than the window, and no write head in the ring was within
        the allowed lag of its offset, so it is not merely waiting for bytes that have just arrived
REWIND  an offset is below the previous one, and no later offset has reached that one
OK      at some commit in the window it was not behind
STALL   it commits, but always the same offset
WARN    it commits new offsets, but its lag never decreased
OK      it commits new offsets, and its lag decreased at least once
======  ==========================================================================================

The first two rules come before the exception for a commit without lag, because that commit may be old, and a
rewind is wrong regardless of earlier progress. The others come after it, because a query that caught up
within the window is fast enough. STALL comes before WARN, because it is worse: its offsets do not move.

Visible numbers are computed as in Burrow: completeness is a 32-bit float, a window without any commit counts
as one slot of its length, and time is compared in whole seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from gazette_spark.errors import InputError, OptionError


class Status(IntEnum):
    """Verdicts on partitions and groups, with their numbers in metrics."""

    NOTFOUND = 0
    """The group is unknown. Only for groups."""
    OK = 1
    WARN = 2
    """The partition makes progress, but falls behind."""
    ERR = 3
    """A partition has one of the verdicts below. Only for groups."""
    STOP = 4
    STALL = 5
    REWIND = 6


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """An offset that a group has committed."""

    offset: int
    timestamp_ms: int
    """Time of the commit, by the committer's clock."""
    observed_ms: int = 0
    """Time at which the monitor received it, in whole seconds."""
    lag: int | None = None
    """Bytes up to the write head when the monitor received the commit; None for a late commit."""


@dataclass(frozen=True, slots=True)
class PartitionWindow:
    """The known state of one partition of a group."""

    topic: str
    partition: int
    current_lag: int
    """Newest write head minus the last committed offset, at least 0."""
    broker_offsets: Sequence[int]
    """Write heads, oldest first."""
    offset_commits: Sequence[OffsetCommit | None]
    """The slots of a ring, oldest first. Unused slots come first and are None."""
    owner: str = ""
    client_id: str = ""

    def __post_init__(self) -> None:
        used = False
        for slot in self.offset_commits:
            # A ring fills from its end, so a window with a hole does not come from a ring. The rules compare
            # neighbours, and would compare commits that are not neighbours.
            if used and slot is None:
                raise InputError(
                    f"topic {self.topic!r}, partition {self.partition}: an unused slot follows a commit; "
                    "unused slots come first"
                )
            used = slot is not None


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits below which a window is always OK. The defaults are Burrow's."""

    allowed_lag: int = 0
    """Lag up to which a partition is OK."""
    minimum_complete: float = 0.0
    """Share of used slots below which a window is OK. It is compared as a 32-bit float."""

    def __post_init__(self) -> None:
        if self.allowed_lag < 0:
            raise OptionError("allowed_lag", str(self.allowed_lag), "0 or more")
        if not 0 <= self.minimum_complete <= 1:
            raise OptionError("minimum_complete", str(self.minimum_complete), "a share from 0 to 1")
        # Both sides of the comparison must be 32-bit floats. The 64-bit float 0.1 differs from 1 / 10 in
        # Burrow's arithmetic, so a window exactly at the limit would get another verdict.
        object.__setattr__(self, "minimum_complete", float32(self.minimum_complete))


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The verdict on one partition."""

    topic: str
    partition: int
    owner: str
    client_id: str
    status: Status
    start: OffsetCommit | None
    """Oldest commit of the window."""
    end: OffsetCommit | None
    """Newest commit of the window."""
    current_lag: int
    complete: float
    """Share of the window's slots in use, a 32-bit float."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The verdict on a group: NOTFOUND, OK, WARN or ERR."""

    cluster: str
    group: str
    status: Status
    complete: float
    """Share of partitions whose window is complete, a 32-bit float."""
    partitions: Sequence[PartitionStatus]
    maxlag: PartitionStatus | None
    """The partition with the largest lag, or the first of several."""
    total_lag: int

    @property
    def partition_count(self) -> int:
        """Number of known partitions."""
        return len(self.partitions)


def float32(number: float) -> float:
    """Return the nearest 32-bit float."""
    # Python only has 64-bit floats; packing rounds to the nearest 32-bit float, as Go's conversion does.
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def evaluate_group(
    cluster: str,
    group: str,
    windows: Iterable[PartitionWindow] | None,
    now_ms: int,
    thresholds: Thresholds,
) -> GroupStatus:
    """Judge a group by its partitions.

    Args:
        cluster: Name of the cluster.
        group: Name of the group.
        windows: Windows in the order of the report; None for an unknown group.
        now_ms: The current time, which is rounded down to seconds like Burrow's clock.
        thresholds: Thresholds of the verdicts.
    """
    if windows is None:
        # As in Burrow, it is complete, because no partition is incomplete.
        return GroupStatus(cluster, group, Status.NOTFOUND, 1.0, (), None, 0)
    partitions = tuple(evaluate_partition(window, now_ms, thresholds) for window in windows)
    # Verdicts are numbered by severity, as in Burrow. A group whose topics were deleted has no partitions and
    # is OK.
    worst = max((partition.status for partition in partitions), default=Status.OK)
    # The 32-bit float is exactly 1.0 only if no slot is unused.
    complete = sum(partition.complete == 1.0 for partition in partitions)
    return GroupStatus(
        cluster,
        group,
        # STOP, STALL and REWIND are verdicts on partitions. A group that has one of them is ERR.
        min(worst, Status.ERR),
        _share(complete, len(partitions)),
        partitions,
        # max returns the first of several, as Burrow does within a topic.
        max(partitions, key=lambda partition: partition.current_lag, default=None),
        sum(partition.current_lag for partition in partitions),
    )


def evaluate_partition(window: PartitionWindow, now_ms: int, thresholds: Thresholds) -> PartitionStatus:
    """Judge one partition."""
    commits = [commit for commit in window.offset_commits if commit is not None]
    slots = len(window.offset_commits)
    # A window without any commit has one empty slot, as in Burrow.
    complete = _share(max(len(commits), 1), slots) if slots else 0.0
    # With fewer commits than minimum_complete requires, neither trends nor silence mean anything yet.
    status = Status.OK
    if commits and complete >= thresholds.minimum_complete:
        status = judge(commits, window.broker_offsets, window.current_lag, now_ms, thresholds.allowed_lag)
    return PartitionStatus(
        window.topic,
        window.partition,
        window.owner,
        window.client_id,
        status,
        commits[0] if commits else None,
        commits[-1] if commits else None,
        window.current_lag,
        complete,
    )


def judge(  # noqa: PLR0911 - the rules in order
    commits: Sequence[OffsetCommit],
    broker_offsets: Iterable[int],
    current_lag: int,
    now_ms: int,
    allowed_lag: int,
) -> Status:
    """Return the verdict of the first matching rule on one or more commits."""
    # Everything is read, so it does not matter how long the group has been silent. A quiet journal is not an
    # incident.
    if current_lag <= allowed_lag:
        return Status.OK
    last = commits[-1]
    # STOP: no commit for longer than the whole window took. The limit follows the group's pace, so a query
    # that commits every hour is not STOP after a minute. A head in the ring at or below the committed offset
    # means that the group had caught up a moment ago, and has not yet read bytes that have just arrived.
    if is_silent(commits, now_ms) and not any(offset <= last.offset for offset in broker_offsets):
        return Status.STOP
    offsets = [commit.offset for commit in commits]
    # REWIND: a consumer reads again from an earlier offset. It counts even if the lag was 0 before, because
    # rows may be written twice from then on.
    if is_rewound(offsets):
        return Status.REWIND
    # Late commits have no lag, because the head at their time is unknown. They count for offsets only.
    lags = [commit.lag for commit in commits if commit.lag is not None]
    # The group caught up at least once within the window, so its current lag is normal work.
    if any(lag <= allowed_lag for lag in lags):
        return Status.OK
    # STALL: it commits, but always the same offset, while bytes are waiting. This is also true for a window
    # of a single commit.
    if all(before == after for before, after in pairwise(offsets)):
        return Status.STALL
    # WARN: it moves, but its lag never decreases. One commit with a smaller lag is enough to be OK: the group
    # may be slow, but does not fall behind steadily.
    if all(before <= after for before, after in pairwise(lags)):
        return Status.WARN
    return Status.OK


def is_silent(commits: Sequence[OffsetCommit], now_ms: int) -> bool:
    """Return whether the time since the last commit exceeds the time from the first to the last."""
    first_ms, last_ms = commits[0].timestamp_ms, commits[-1].timestamp_ms
    # Burrow's clock has whole seconds. With milliseconds, the verdict could be up to a second earlier.
    return now_ms // 1000 * 1000 - last_ms > last_ms - first_ms


def is_rewound(offsets: Sequence[int]) -> bool:
    """Return whether no later offset has reached the one before the first step back."""
    # As in Burrow, only the first step back counts. Later ones are ignored, even if the first was recovered.
    for at in range(1, len(offsets)):
        if offsets[at] < offsets[at - 1]:
            return max(offsets[at:]) < offsets[at - 1]
    return False


def _share(part: int, whole: int) -> float:
    # Both terms are converted to 32-bit floats before the division, as in Burrow. A share of 0 items is 0.
    return float32(float32(part) / float32(whole)) if whole else 0.0
