"""Estimates ages and forecasts, and records the lag over time, in addition to Burrow's verdicts.

Gazette does not store when a byte was appended. Only bounds are known, so bounds are reported:

- if a write head was seen at or below an offset, the byte there was appended later;
- if a write head was seen above it, the byte was appended earlier;
- if its fragment was stored at some time, the byte was appended earlier.

An unknown bound stays unknown. Speeds are averages over a window of commits; a window that is too short gives
no speed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gazette_spark._ledger.positions import GroupCommit
from gazette_spark.lag.rules import OffsetCommit

MAX_SAMPLES = 256
"""Maximum number of samples of a journal's write head. Beyond it, every second one is dropped, which makes
bounds wider, but not wrong."""

HOUR_MS = 3_600_000

JOURNAL_STEP_MS = 20_000

HOLE_MS = 600_000
"""Distance of two points, in milliseconds, above which the time between them counts as unknown."""

_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Age:
    """The age of an event in milliseconds: its lower and upper bound, None if unknown."""

    least_ms: int | None = None
    most_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TimedFragment:
    """A stored fragment: ``[begin, end)`` of a journal, stored at ``mod_time_ms``."""

    begin: int
    end: int
    mod_time_ms: int


class HeadTimeline:
    """The observed write heads of a journal over time. Not thread-safe."""

    __slots__ = ("_heads", "_times")

    def __init__(self) -> None:
        self._times = array("q")
        self._heads = array("q")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, head: int, time_ms: int) -> None:
        """Add a write head. If the head or the clock went back, drop all earlier samples."""
        # If a head is below an earlier one, the journal was created again or lost bytes, so the same offset
        # is now another byte. Earlier bounds would be wrong, and no bound is better than a wrong one.
        if self._times and (head < self._heads[-1] or time_ms < self._times[-1]):
            del self._times[:], self._heads[:]
        # The first and the last time of a constant head are enough for all bounds, so a quiet journal needs
        # only two samples.
        if len(self._times) >= 2 and self._heads[-1] == self._heads[-2] == head:
            self._times[-1] = time_ms
            return
        self._times.append(time_ms)
        self._heads.append(head)
        if len(self._times) > MAX_SAMPLES:
            last = len(self._times) - 1
            for cells in (self._times, self._heads):
                cells[:] = array("q", [cells[at] for at in range(len(cells)) if at % 2 == 0 or at == last])

    def add_past(self, head: int, time_ms: int) -> None:
        """Add a write head that another process observed, unless it contradicts earlier observations."""
        at = bisect_right(self._times, time_ms)
        before = self._heads[at - 1] if at else 0
        # Clocks of processes differ. An observation that contradicts its neighbours would make later bounds
        # wrong.
        if before > head:
            return
        if at == len(self._heads):
            self.add(head, time_ms)
        # Nothing is learned between two samples of the same head. Each commit of a query names the heads of
        # all its journals, so quiet journals would get a sample per commit, which nothing would drop.
        elif head <= self._heads[at] and not (at and before == self._heads[at]):
            self._times.insert(at, time_ms)
            self._heads.insert(at, head)

    @property
    def begin_ms(self) -> int | None:
        """Time of the first sample."""
        return self._times[0] if self._times else None

    @property
    def end_ms(self) -> int | None:
        """Time of the last sample."""
        return self._times[-1] if self._times else None

    def extend(self, later: HeadTimeline) -> None:
        """Add the samples of a timeline that begins after this one ends."""
        for head, time_ms in zip(later._heads, later._times, strict=True):
            self.add(head, time_ms)

    def appended(self, offset: int) -> tuple[int | None, int | None]:
        """Return the times after which, and by which, the byte at ``offset`` was appended."""
        at = bisect_right(self._heads, offset)
        after = self._times[at - 1] if at > 0 else None
        by = self._times[at] if at < len(self._times) else None
        return after, by

    def bytes_per_s(self, since_ms: int) -> float | None:
        """Return the journal's growth since a time, in bytes per second; None if it was not observed then."""
        at = max(0, bisect_right(self._times, since_ms) - 1)
        if len(self._times) - at < 2 or self._times[-1] == self._times[at]:
            return None
        return (self._heads[-1] - self._heads[at]) * 1000 / (self._times[-1] - self._times[at])


def lag_age(
    offset: int, head: int, timeline: HeadTimeline, fragments: Iterable[TimedFragment], now_ms: int
) -> Age:
    """Return the age of the oldest byte that a reader at ``offset`` has not read."""
    if offset >= head:
        return Age(0, 0)
    after, by = timeline.appended(offset)
    stored = [fragment.mod_time_ms for fragment in fragments if fragment.begin <= offset < fragment.end]
    earliest = min([*stored, *([] if by is None else [by])], default=None)
    # Clocks differ between machines, which can make an age negative.
    return Age(
        None if earliest is None else max(0, now_ms - earliest),
        None if after is None else max(0, now_ms - after),
    )


def read_bytes_per_s(commits: Sequence[OffsetCommit | None]) -> float | None:
    """Return the reading speed over a window of commits; None for fewer than two, or if they went back."""
    stored = [commit for commit in commits if commit is not None]
    # One commit spans no time.
    if len(stored) < 2:
        return None
    first, last = stored[0], stored[-1]
    passed_ms = last.timestamp_ms - first.timestamp_ms
    # A rewind has no speed, and commits within one millisecond would give an infinite one.
    if passed_ms <= 0 or last.offset < first.offset:
        return None
    return (last.offset - first.offset) * 1000 / passed_ms


def catch_up_ms(lag: int, read_speed: float | None, append_speed: float | None) -> int | None:
    """Return how long a reader takes to catch up at these speeds; None for never, or if unknown."""
    if lag == 0:
        return 0
    # At this pace the lag never shrinks.
    if read_speed is None or append_speed is None or read_speed <= append_speed:
        return None
    return round(lag * 1000 / (read_speed - append_speed))


def loss_in_ms(
    offset: int, fragments: Iterable[TimedFragment], retention_ms: int, read_speed: float | None, now_ms: int
) -> int | None:
    """Return the time until unread bytes may be pruned if they are read at this speed; 0 for now.

    A fragment may be pruned when it is older in its store than the journal's retention. The result is None if
    all stored bytes will be read in time. Bytes that are not stored yet are kept longer than stored ones.
    """
    losses = []
    for fragment in fragments:
        # Already read, or not in a store, so that retention does not apply.
        if fragment.end <= offset or fragment.mod_time_ms == 0:
            continue
        remaining_ms = fragment.mod_time_ms + retention_ms - now_ms
        to_read = fragment.end - offset
        # The fragment counts as lost if its last byte is not read in time: prune deletes whole fragments.
        if not read_speed or to_read * 1000 / read_speed > remaining_ms:
            losses.append(max(0, remaining_ms))
    return min(losses, default=None)


class LagSeries:
    """The highest value of each time step, as (milliseconds since 1970, value), with None for unknown values.

    A value is a lag in bytes, an age in milliseconds, or a speed in bytes per second.

    Args:
        step_ms: Length of a step.
        span_ms: Age from which points are dropped.
    """

    __slots__ = ("_cells", "_span_ms", "_step_ms")

    def __init__(self, step_ms: int = JOURNAL_STEP_MS, span_ms: int = HOUR_MS) -> None:
        self._step_ms = step_ms
        self._span_ms = span_ms
        self._cells = array("q")

    def add(self, time_ms: int, lag: int | None) -> None:
        """Add a point. If it is out of order, the clock was set back, and the series starts again."""
        cells = self._cells
        value = _UNKNOWN if lag is None else lag
        if cells and time_ms < cells[-2]:
            del cells[:]
        # The monitor did not run, or could not poll. A line across that time would show a lag that was never
        # observed.
        if cells and time_ms - cells[-2] > HOLE_MS and cells[-1] != _UNKNOWN:
            cells.extend((cells[-2] + 1, _UNKNOWN))
        # A constant value is stored with its first and last time, so that a chart of a quiet day is small.
        repeats = len(cells) >= 4 and cells[-3] == cells[-1]
        if repeats and cells[-1] == value:
            cells[-2] = time_ms
        elif cells and not repeats and cells[-2] // self._step_ms == time_ms // self._step_ms:
            # The highest value of a step, so that a peak of one round does not disappear from the chart.
            cells[-2:] = array("q", (time_ms, max(value, cells[-1])))
        else:
            cells.extend((time_ms, value))
        # The last point before the span is kept, because the line begins there.
        while len(cells) > 4 and cells[2] <= time_ms - self._span_ms:
            del cells[:2]

    def points(self) -> list[tuple[int, int | None]]:
        """Return the points, oldest first."""
        lags = (None if lag == _UNKNOWN else lag for lag in self._cells[1::2])
        return list(zip(self._cells[::2].tolist(), lags, strict=True))


def past_lags(
    steps: Sequence[GroupCommit], begin_ms: int, end_ms: int, step_ms: int
) -> Iterator[tuple[int, Mapping[str, int], Mapping[str, int]]]:
    """Yield the time of commits, and the offsets and write heads just before them, oldest first.

    The offsets are from the previous commit, and the commit itself recorded the heads. Commits
    without heads are omitted, and so are all except the last one of each time step.
    """
    for at, step in enumerate(steps[1:], start=1):
        time_ms = step.timestamp_ms
        follower = steps[at + 1].timestamp_ms if at + 1 < len(steps) else end_ms + step_ms
        # Only the last commit of each step, so that commits every second do not give more points than commits
        # every minute.
        if step.heads and begin_ms <= time_ms <= end_ms and time_ms // step_ms != follower // step_ms:
            before = steps[at - 1].read_through
            # A journal that appears with this commit had no position before, so it begins at its current one.
            if not before.keys() >= step.heads.keys():
                before = {**step.read_through, **before}
            yield time_ms, before, step.heads
