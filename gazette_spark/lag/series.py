"""The lag over time, and speeds: what charts show.

Lag before the monitor started is rebuilt from the write heads that a query's commits recorded.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from gazette_spark.ledger.positions import GroupCommit

HOUR_MS = 3_600_000

JOURNAL_STEP_MS = 20_000

HOLE_MS = 600_000
"""Nothing is known between two points that are farther apart."""

SPEED_MS = 300_000
"""Time over which speeds of a group are averaged."""

SPEED_STEP_MS = 10_000
"""Minimum distance of two samples of a speed."""

_UNKNOWN = -1


class LagSeries:
    """The highest lag of each step of time, as (milliseconds since 1970, bytes); None where it is unknown.

    Args:
        step_ms: length of a step.
        span_ms: older points are dropped.
    """

    __slots__ = ("_cells", "_span_ms", "_step_ms")

    def __init__(self, step_ms: int = JOURNAL_STEP_MS, span_ms: int = HOUR_MS) -> None:
        self._step_ms = step_ms
        self._span_ms = span_ms
        self._cells = array("q")

    def add(self, time_ms: int, lag: int | None) -> None:
        """Add a point. It is in order, or the clock was set back and the series starts again."""
        cells = self._cells
        value = _UNKNOWN if lag is None else lag
        if cells and time_ms < cells[-2]:
            del cells[:]
        if cells and time_ms - cells[-2] > HOLE_MS and cells[-1] != _UNKNOWN:
            cells.extend((cells[-2] + 1, _UNKNOWN))
        repeats = len(cells) >= 4 and cells[-3] == cells[-1]
        if repeats and cells[-1] == value:
            cells[-2] = time_ms
        elif cells and not repeats and cells[-2] // self._step_ms == time_ms // self._step_ms:
            cells[-2:] = array("q", (time_ms, max(value, cells[-1])))
        else:
            cells.extend((time_ms, value))
        while len(cells) > 4 and cells[2] <= time_ms - self._span_ms:
            del cells[:2]

    def points(self) -> list[tuple[int, int | None]]:
        """Return the points, oldest first."""
        lags = (None if lag == _UNKNOWN else lag for lag in self._cells[1::2])
        return list(zip(self._cells[::2].tolist(), lags, strict=True))


class Speed:
    """How fast a group reads, and how fast its journals grow: averages of the last minutes."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int, int]] = deque()

    def add(self, time_ms: int, journals: int, read: int, head: int) -> None:
        """Add a sample: the number of journals, and the sums of their offsets read and write heads.

        Sums that fell, or are of other journals than before, cannot be compared with earlier ones.
        """
        samples = self._samples
        if samples:
            last_ms, last_journals, last_read, last_head = samples[-1]
            if last_journals != journals or read < last_read or head < last_head or time_ms < last_ms:
                samples.clear()
        if len(samples) >= 2 and time_ms - samples[-2][0] < SPEED_STEP_MS:
            samples.pop()
        samples.append((time_ms, journals, read, head))
        while len(samples) > 2 and samples[1][0] <= time_ms - SPEED_MS:
            samples.popleft()

    def bytes_per_s(self) -> tuple[float | None, float | None]:
        """Return the speeds of reading and of appending; None before two samples."""
        if len(self._samples) < 2:
            return None, None
        (begin_ms, _, read_from, head_from), (end_ms, _, read, head) = self._samples[0], self._samples[-1]
        passed_s = (end_ms - begin_ms) / 1000
        return ((read - read_from) / passed_s, (head - head_from) / passed_s) if passed_s else (None, None)


def past_lags(
    steps: Sequence[GroupCommit], begin_ms: int, end_ms: int, step_ms: int
) -> Iterator[tuple[int, Mapping[str, int], Mapping[str, int]]]:
    """Yield what was unread just before commits of a time, oldest first: time, offsets and write heads.

    The offsets are those of the commit before, and the heads those that the commit recorded. Commits without
    heads are left out, and so are all but the last one of a step of time.
    """
    for at, step in enumerate(steps[1:], start=1):
        time_ms = step.timestamp_ms
        follower = steps[at + 1].timestamp_ms if at + 1 < len(steps) else end_ms + step_ms
        if step.heads and begin_ms <= time_ms <= end_ms and time_ms // step_ms != follower // step_ms:
            before = steps[at - 1].read_through
            if not before.keys() >= step.heads.keys():
                before = {**step.read_through, **before}
            yield time_ms, before, step.heads
