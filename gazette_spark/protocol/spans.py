"""Sets of a journal's offsets as spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Spans = list[tuple[int, int]]
"""Offsets ``[begin, end)``, ascending, apart from each other."""


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the union of spans, given in any order."""
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif begin < end:
            found.append((begin, end))
    return found


def outside(spans: Sequence[tuple[int, int]], begin: int, end: int) -> Spans:
    """Return ``[begin, end)`` without some spans, which ascend by begin."""
    found, at = [], begin
    for low, high in spans:
        if low >= end:
            break
        if low > at:
            found.append((at, low))
        at = max(at, high)
    if at < end:
        found.append((at, end))
    return found
