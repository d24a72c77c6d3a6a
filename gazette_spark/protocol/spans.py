"""Represents sets of a journal's offsets as spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Spans = list[tuple[int, int]]
"""Offsets ``[begin, end)``, ascending, neither overlapping nor adjacent."""


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the union of spans in any order."""
    result: Spans = []
    for begin, end in sorted(spans):
        # Adjacent spans become one, too, because no byte is between them.
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        # An empty span has no bytes.
        elif begin < end:
            result.append((begin, end))
    return result


def outside(spans: Sequence[tuple[int, int]], begin: int, end: int) -> Spans:
    """Return ``[begin, end)`` without the given spans, which ascend by begin."""
    result, at = [], begin
    for low, high in spans:
        # They ascend, so no later one reaches into the range.
        if low >= end:
            break
        if low > at:
            result.append((at, low))
        # A span may lie within the one before it.
        at = max(at, high)
    if at < end:
        result.append((at, end))
    return result
