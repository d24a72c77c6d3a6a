"""Applies the rules of :mod:`gazette_spark.lag.rules` to many partitions at once, as columns.

A group of 100,000 partitions is judged in a fraction of a second. The verdicts equal those of the rules for
single partitions; a property test compares the two. A row becomes an object when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from gazette_spark.lag.rings import FIELDS, NO_LAG
from gazette_spark.lag.rules import (
    GroupStatus,
    OffsetCommit,
    PartitionStatus,
    Status,
    Thresholds,
    float32,
)

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_TIME_MS = 2**61
"""Times below this have differences that fit 64 bits. Larger ones are judged one by one."""


@dataclass(frozen=True, slots=True)
class WindowColumns:
    """The windows of *n* partitions of a group, each with at most ``slots`` commits, as 64-bit integers.

    Raises:
        ValueError: the columns differ in length.
    """

    topics: Sequence[str]
    partitions: Integers
    """Index in the topic, shape ``(n,)``."""
    owners: Sequence[str]
    client_ids: Sequence[str]
    slots: int
    """Number of slots of a ring."""
    ringed: Bools
    """Whether a partition has a ring, shape ``(n,)``."""
    counts: Integers
    """Number of commits in each ring, shape ``(n,)``."""
    cells: Integers
    """All commits, partition after partition, oldest first, shape ``(sum of counts, FIELDS)``."""
    newest_head: Integers
    """Newest write head, -1 if unknown, shape ``(n,)``."""
    least_head: Integers
    """Smallest write head in the ring, -1 if unknown, shape ``(n,)``."""

    def __post_init__(self) -> None:
        columns = (self.partitions, self.owners, self.client_ids, self.ringed, self.counts)
        heads = (self.newest_head, self.least_head)
        if {len(column) for column in (*columns, *heads)} != {len(self.topics)}:
            raise ValueError("columns of different length")
        if len(self.cells) != self.counts.sum():
            raise ValueError(f"{len(self.cells)} commits where the rings have {self.counts.sum()}")

    def __len__(self) -> int:
        return len(self.topics)

    @property
    def fits(self) -> bool:
        """Whether differences of times stay within 64 bits."""
        times = self.cells[:, 2]
        return not len(times) or bool(np.abs(times, dtype=np.float64).max() < MAX_TIME_MS)


@dataclass(frozen=True, slots=True)
class _Judged:
    status: npt.NDArray[np.int8]
    complete: npt.NDArray[np.float32]
    current_lag: Integers
    first: Integers
    """Row of a partition's oldest commit in the cells."""


class PartitionStatuses(Sequence[PartitionStatus]):
    """Verdicts on partitions, converted to objects one at a time."""

    def __init__(self, windows: WindowColumns, judged: _Judged) -> None:
        self._windows = windows
        self._judged = judged

    def __len__(self) -> int:
        return len(self._windows)

    @overload
    def __getitem__(self, at: int) -> PartitionStatus: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[PartitionStatus]: ...

    def __getitem__(self, at: int | slice) -> PartitionStatus | Sequence[PartitionStatus]:
        if isinstance(at, slice):
            return [self._row(row) for row in range(*at.indices(len(self)))]
        return self._row(range(len(self))[at])

    def above(self, status: Status) -> list[PartitionStatus]:
        """Return the verdicts that are worse than ``status``, in order."""
        return [self._row(int(at)) for at in np.flatnonzero(self._judged.status > int(status))]

    def _row(self, at: int) -> PartitionStatus:
        windows, judged = self._windows, self._judged
        count = int(windows.counts[at])
        first = int(judged.first[at])
        return PartitionStatus(
            windows.topics[at],
            int(windows.partitions[at]),
            windows.owners[at],
            windows.client_ids[at],
            Status(int(judged.status[at])),
            _commit(windows.cells[first]) if count else None,
            _commit(windows.cells[first + count - 1]) if count else None,
            int(judged.current_lag[at]),
            float(judged.complete[at]),
        )


def evaluate_columns(
    cluster: str, group: str, windows: WindowColumns, now_ms: int, thresholds: Thresholds
) -> GroupStatus:
    """Judge a group by its partitions; see :func:`gazette_spark.lag.rules.evaluate_group`.

    Raises:
        ValueError: times are too large for 64 bits; see :attr:`WindowColumns.fits`.
    """
    # numpy overflows without an error, so a time that is too large would silently give a wrong verdict.
    if not windows.fits or abs(now_ms) >= MAX_TIME_MS:
        raise ValueError("times too large for 64 bits")
    counts = windows.counts
    first = np.cumsum(counts) - counts
    used = counts > 0
    # Matrices of offsets, lags and validity, shape (n, slots). Rings have different lengths. Rows are aligned
    # at the right, so the newest commit of every partition is in the last column.
    shape = (len(windows), windows.slots)
    offsets, lags = np.zeros(shape, np.int64), np.full(shape, NO_LAG, np.int64)
    begins = windows.slots - counts
    valid = np.arange(windows.slots) >= begins[:, None]
    rows = np.repeat(np.arange(len(windows)), counts)
    places = np.arange(len(windows.cells)) - np.repeat(first - begins, counts)
    offsets[rows, places] = windows.cells[:, 1]
    lags[rows, places] = windows.cells[:, 4]
    last = np.where(used, offsets[:, -1], 0)
    current_lag = np.where(used & (windows.newest_head >= 0), np.maximum(windows.newest_head - last, 0), 0)
    # A ring without any commit counts as one slot of its length, as in Burrow.
    slots_used = np.where(windows.ringed, np.maximum(counts, 1), 0)
    complete = slots_used.astype(np.float32) / np.float32(windows.slots)
    judged_at_all = used & (complete >= np.float32(thresholds.minimum_complete))
    # The smallest head decides: a head of the ring is at or below the offset if and only if the smallest is.
    level_before = (windows.least_head >= 0) & (windows.least_head <= last)
    # All offsets equal the last one, which means that each equals the one before.
    stalled = np.all((offsets == last[:, None]) | ~valid, axis=1)
    # No lag is below the highest so far. Unknown lags are -1, so they do not raise the highest.
    never_fell = np.all((lags == NO_LAG) | (lags >= np.maximum.accumulate(lags, axis=1)), axis=1)
    # Rewound: no later offset has reached the one before the first step back.
    rewound = np.zeros(len(windows), np.bool_)
    if windows.slots > 1:
        back = (offsets[:, 1:] < offsets[:, :-1]) & valid[:, :-1]
        # argmax is the first True: only the first step back is judged.
        at = back.argmax(axis=1)
        # The highest offset from each place on, accumulated from the right. The step is recovered if it is at
        # or above the offset before the step.
        highest_from = np.maximum.accumulate(offsets[:, ::-1], axis=1)[:, ::-1]
        every_row = np.arange(len(windows))
        rewound = back.any(axis=1) & (highest_from[every_row, at + 1] < offsets[every_row, at])
    # Silent: the newest commit is older than the time span of the ring's commits.
    silent = np.zeros(len(windows), np.bool_)
    times = windows.cells[:, 2]
    oldest, newest = times[first[used]], times[(first + counts - 1)[used]]
    silent[used] = now_ms // 1000 * 1000 - newest > newest - oldest  # Burrow's clock has whole seconds.
    # The first condition that is true decides, in the order of rules.judge.
    status = np.select(
        [
            ~judged_at_all | (current_lag <= thresholds.allowed_lag),
            silent & ~level_before,
            rewound,
            np.any((lags != NO_LAG) & (lags <= thresholds.allowed_lag), axis=1),
            stalled,
            never_fell,
        ],
        [Status.OK, Status.STOP, Status.REWIND, Status.OK, Status.STALL, Status.WARN],
        Status.OK,
    )
    partitions = PartitionStatuses(windows, _Judged(status.astype(np.int8), complete, current_lag, first))
    if not len(windows):
        return GroupStatus(cluster, group, Status.OK, 0.0, partitions, None, 0)
    return GroupStatus(
        cluster,
        group,
        min(Status(int(status.max())), Status.ERR),
        float32(float32(int((complete == 1.0).sum())) / float32(len(windows))),
        partitions,
        partitions[int(current_lag.argmax())],
        # A Python integer, because the sum of many lags may exceed 64 bits.
        sum(current_lag.tolist()),
    )


def _commit(cells: Integers) -> OffsetCommit:
    _, offset, timestamp_ms, observed_ms, lag = cells.tolist()
    return OffsetCommit(offset, timestamp_ms, observed_ms, None if lag == NO_LAG else lag)


def joined_cells(rings: Sequence[bytes]) -> Integers:
    """Return the cells of rings, concatenated, shape ``(commits, FIELDS)``."""
    return np.frombuffer(b"".join(rings), np.int64).reshape(-1, FIELDS)
