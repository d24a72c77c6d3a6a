"""Decides up to which offsets a batch may read, from its start, the write heads and the read limits.

Without a limit a batch reads up to every write head. ``maxBytesPerTrigger`` is shared among the journals
with a backlog, in proportion to their backlogs, so that all of them catch up at about the same time. But a
quarter of the limit is reserved for small backlogs in equal shares, so that a journal with little to read
does not wait for one with much. ``maxFragmentsPerTrigger`` is shared in the same way, but counts fragments,
and an admitted range ends at a fragment's end. ``maxRecordsPerTrigger`` is also shared in proportion to
bytes, because the number of records in a backlog is unknown; the admitted records are counted. If several
limits are set, all of them apply.

The limits are soft, and a query makes progress under any limit: every journal with a backlog gets at least
one byte. If no record ends within the admitted bytes, the journal is read up to the end of its first record.
So a batch exceeds a limit of bytes by at most one record per journal. A limit smaller than a record, or than
the number of journals, reads one record of each journal. This is the only way to exceed a limit of records.

``minBytesPerTrigger`` delays a batch until the backlog has this size, or until ``maxTriggerDelay`` has passed
since the last batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from gazette_spark._options.source import SourceOptions

FLOOR_PARTS = 4
"""A journal gets at least this part of an equal share, or its whole backlog if that is smaller."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The bytes ``[begin, head)`` of a journal that a query has not read yet."""

    begin: int
    head: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.head:
            raise ValueError(f"expected 0 <= begin <= head, got begin {self.begin}, head {self.head}")

    @property
    def size_bytes(self) -> int:
        """Number of unread bytes."""
        return self.head - self.begin


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits on a batch's size and delay. By default a batch reads everything, without a delay."""

    max_bytes: int | None = None
    max_fragments: int | None = None
    min_bytes: int = 0
    """A batch waits until the backlog has this many bytes."""
    max_delay_s: float = math.inf
    """A batch waits at most this long after the previous one."""
    max_records: int | None = None

    @classmethod
    def of(cls, options: SourceOptions) -> Self:
        """Return the limits that a stream's options set."""
        has_minimum = options.min_bytes_per_trigger is not None
        return cls(
            options.max_bytes_per_trigger,
            options.max_fragments_per_trigger,
            options.min_bytes_per_trigger or 0,
            options.max_trigger_delay.total_seconds() if has_minimum else math.inf,
            options.max_records_per_trigger,
        )


def is_due(backlog_bytes: int, waited_s: float, limits: ReadLimits) -> bool:
    """Return whether a batch is due.

    Args:
        backlog_bytes: Backlog of all journals together.
        waited_s: Seconds since the last batch that read anything; infinite if there was none.
        limits: The minimum size and the maximum delay.
    """
    # A batch without bytes is never due, however long it has waited: it would only cost a commit.
    enough = backlog_bytes >= limits.min_bytes or waited_s >= limits.max_delay_s
    return backlog_bytes > 0 and enough


def admit(backlogs: Mapping[str, Backlog], max_bytes: int | None) -> dict[str, int]:
    """Return the offset up to which each journal may be read.

    Args:
        backlogs: Unread bytes by journal.
        max_bytes: Limit for all journals together; None for no limit.

    Returns:
        For every journal an offset from its start to its head, and past its start if it has a backlog. The
        offset need not be a record boundary. The result does not depend on the order of the journals.
    """
    sizes = {journal: backlog.size_bytes for journal, backlog in backlogs.items()}
    granted = allocate_limit(sizes, max_bytes)
    return {journal: backlog.begin + granted[journal] for journal, backlog in backlogs.items()}


def admit_fragments(ends: Mapping[str, Sequence[int]], max_fragments: int | None) -> dict[str, int]:
    """Return the offset up to which each journal may be read, which is the end of one of its fragments.

    Args:
        ends: Results of :func:`fragment_ends` by journal: at least one offset, ascending.
        max_fragments: Limit for all journals together; None for no limit.
    """
    granted = allocate_limit({journal: len(edges) for journal, edges in ends.items()}, max_fragments)
    return {journal: edges[granted[journal] - 1] for journal, edges in ends.items()}


def fragment_ends(spans: Iterable[tuple[int, int]], backlog: Backlog) -> list[int]:
    """Return the ends of the fewest fragments that cover a backlog, ascending. The last is its head.

    Args:
        spans: ``[begin, end)`` of fragments, in any order. They may overlap, repeat each other, and have
            holes: holes do not count, and the bytes after the last fragment count as one fragment.
        backlog: Backlog of at least one byte.
    """
    # Find the fewest fragments that cover the backlog. Like brokers, take the fragment that reaches furthest
    # among those that begin at or before the reached offset.
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
            # There is a hole, and the next fragment continues after it.
            at = fragments[index][0]
        else:
            # The list is older than the head. What was appended since then counts as one fragment.
            ends.append(backlog.head)
            break
    return ends


def allocate_limit(sizes: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Distribute a limit according to sizes.

    Returns:
        Each share is at most its size and, if that is not 0, at least 1. If the sizes exceed the limit, the
        sum of the shares is the limit, or the number of sizes other than 0 if that is larger. A larger size
        never gets a smaller share.
    """
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return dict(sizes)
    # The smallest backlogs come first and get the reserved floor, if their proportional share is below it.
    # Each reduces the rest for the others, so the remaining limit and the remaining bytes decide whether the
    # next one needs the floor. All arithmetic is with integers: floats lose bytes above 2^53,
    # and two drivers could disagree.
    granted = dict.fromkeys(sizes, 0)
    ascending = sorted((size, name) for name, size in sizes.items() if size)
    floor = max(1, limit // (FLOOR_PARTS * len(ascending)))
    for at, (size, name) in enumerate(ascending):
        least = min(size, floor)
        if limit * size >= least * total:
            # The same holds for all larger ones: their proportional shares are above the floor. The units
            # lost by rounding go to the largest remainders, so that the sum is exact.
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
