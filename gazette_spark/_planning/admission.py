"""The offsets up to which a batch may read, given its start, the write heads, and the read limits.

Without a limit a batch reads up to every write head. ``maxBytesPerTrigger`` is shared among the journals
that have something to read, in proportion to their backlogs, so that all of them are caught up at about
the same time; but a quarter of the limit is kept for small backlogs in equal shares, so that a journal with
little to read does not wait for one with much. ``maxFragmentsPerTrigger`` is shared in the same way and
counted in fragments, and an admitted range ends where a fragment does. ``maxRecordsPerTrigger`` is shared in
the same way, by bytes, since nobody knows how many records a backlog has; the admitted ones are counted. If
several are given, all apply.

The limits are soft, and a query under any limit makes progress: every journal with a backlog gets at least
one byte. A journal is always read up to the end of the record of its last admitted byte, if no record ends
before that. So a batch exceeds a limit of bytes by at most one record per journal, and a limit smaller than a
record, or than the number of journals, reads one record of each. A limit of records is exceeded only so.

``minBytesPerTrigger`` delays a batch until the backlog has this size, or ``maxTriggerDelay`` has passed since
the last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from gazette_spark._options.source import SourceOptions

FLOOR_PARTS = 4
"""A journal's share is at least this part of an equal share, or its whole backlog if that is less."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The bytes ``[begin, head)`` of a journal that a query has not read yet."""

    begin: int
    head: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.head:
            raise ValueError(f"a backlog is 0 <= begin <= head, got begin {self.begin}, head {self.head}")

    @property
    def size_bytes(self) -> int:
        """Number of bytes left to read."""
        return self.head - self.begin


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """ReadLimits on a batch's size and delay. The default is all there is, at once."""

    max_bytes: int | None = None
    max_fragments: int | None = None
    min_bytes: int = 0
    """A batch waits until there is so much to read ..."""
    max_delay_s: float = math.inf
    """... or so long after the one before."""
    max_records: int | None = None

    @classmethod
    def of(cls, options: SourceOptions) -> Self:
        """Return the limits of a stream's batches, as its options say."""
        has_minimum = options.min_bytes_per_trigger is not None
        return cls(
            options.max_bytes_per_trigger,
            options.max_fragments_per_trigger,
            options.min_bytes_per_trigger or 0,
            options.max_trigger_delay.total_seconds() if has_minimum else math.inf,
            options.max_records_per_trigger,
        )


def is_due(backlog_bytes: int, waited_s: float, limits: ReadLimits) -> bool:
    """Say whether a batch is due.

    Args:
        backlog_bytes: the backlog of all journals together.
        waited_s: time since the last batch that read anything; infinite if there was none.
        limits: the minimum size and the maximum delay.
    """
    enough = backlog_bytes >= limits.min_bytes or waited_s >= limits.max_delay_s
    return backlog_bytes > 0 and enough


def admit(backlogs: Mapping[str, Backlog], max_bytes: int | None) -> dict[str, int]:
    """Return the offset up to which each journal may be read.

    Args:
        backlogs: the bytes left to read, by journal.
        max_bytes: read limit over all journals; None for no limit.

    Returns:
        For every journal an offset between its begin and its head, and past its begin if anything is
        left. It need not lie on a record's edge. The result depends on the arguments only, not on
        their order.
    """
    sizes = {journal: backlog.size_bytes for journal, backlog in backlogs.items()}
    granted = allocate_limit(sizes, max_bytes)
    return {journal: backlog.begin + granted[journal] for journal, backlog in backlogs.items()}


def admit_fragments(ends: Mapping[str, Sequence[int]], max_fragments: int | None) -> dict[str, int]:
    """Return the offset up to which each journal may be read, which is one of its fragments' ends.

    Args:
        ends: by journal, what :func:`fragment_ends` gives: at least one offset, ascending.
        max_fragments: read limit over all journals; None for all that is there.
    """
    granted = allocate_limit({journal: len(edges) for journal, edges in ends.items()}, max_fragments)
    return {journal: edges[granted[journal] - 1] for journal, edges in ends.items()}


def fragment_ends(spans: Iterable[tuple[int, int]], backlog: Backlog) -> list[int]:
    """Return the ends of the fewest fragments that cover a backlog, ascending; the last is its head.

    Args:
        spans: ``[begin, end)`` of fragments, in any order. They may overlap, repeat each other, and leave
            out bytes: holes do not count, and the bytes after the last fragment count as one more.
        backlog: of at least one byte.
    """
    fragments = sorted(span for span in spans if span[1] > backlog.begin and span[0] < backlog.head)
    ends: list[int] = []
    at, index = backlog.begin, 0
    while at < backlog.head:
        reach = at
        while index < len(fragments) and fragments[index][0] <= at:
            reach = max(reach, fragments[index][1])
            index += 1
        if reach > at:
            at = reach
            ends.append(min(reach, backlog.head))
        elif index < len(fragments):
            at = fragments[index][0]
        else:
            ends.append(backlog.head)
            break
    return ends


def allocate_limit(sizes: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Share a limit among several, by their sizes.

    Returns:
        For each at most its size and, if that is not 0, at least 1. If the sizes exceed the limit, the
        sum is the limit, or the number of sizes other than 0 if there are more of them. A larger size is
        never given less.
    """
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return dict(sizes)
    granted = dict.fromkeys(sizes, 0)
    ascending = sorted((size, name) for name, size in sizes.items() if size)
    floor = max(1, limit // (FLOOR_PARTS * len(ascending)))
    for at, (size, name) in enumerate(ascending):
        least = min(size, floor)
        if limit * size >= least * total:
            # So it is for all larger ones: their shares in proportion are above the floor. What rounding
            # leaves goes to the largest remainders, so that the sum is exact.
            larger = ascending[at:]
            granted |= {name: limit * size // total for size, name in larger}
            rest = limit - sum(granted[name] for _, name in larger)
            remainders = sorted(((limit * size % total, name) for size, name in larger), reverse=True)
            for _, favored in remainders[:rest]:
                granted[favored] += 1
            return granted
        granted[name] = least
        total, limit = total - size, limit - least
    return granted
