"""Indexes a journal: its stored fragments, and the local spools that no store covers yet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from gazette_spark.protocol.fragments import Fragment

HOLE_AGE_S = 6 * 3600
"""Minimum age in seconds of the fragment after a hole before the hole is skipped. An upload may still fill a
newer hole."""


@dataclass(frozen=True, slots=True)
class IndexView:
    """One immutable state of a journal's index."""

    closed: tuple[Fragment, ...] = ()
    """Fragments that no longer grow, ascending by begin and by end. None is covered by another."""
    current: Fragment | None = None
    """The growing spool; None while it is empty."""

    @property
    def begin(self) -> int:
        """Smallest offset of any fragment; 0 without one."""
        begins = [fragment.begin for fragment in (*self.closed[:1], self.current) if fragment is not None]
        return min(begins, default=0)

    @property
    def end(self) -> int:
        """Largest end of any fragment; 0 without one. Readers get this as the write head."""
        ends = [fragment.end for fragment in (*self.closed[-1:], self.current) if fragment is not None]
        return max(ends, default=0)

    def fragments(self) -> Iterator[Fragment]:
        """Yield every fragment, ascending."""
        yield from self.closed
        if self.current is not None and (not self.closed or self.current.end > self.closed[-1].end):
            yield self.current

    def covering(self, offset: int) -> tuple[Fragment | None, Fragment | None]:
        """Find the fragment that covers the offset and reaches furthest.

        Returns:
            The fragment and None; or None and the next fragment after the offset, which may also be None.
        """
        # Check the growing spool first: it has the latest bytes, for which most readers wait.
        current = self.current
        if current is not None and current.begin <= offset < current.end:
            return current, None
        at = bisect_right(self.closed, offset, key=lambda fragment: fragment.begin) - 1
        if at >= 0 and self.closed[at].end > offset:
            return self.closed[at], None
        behind = [*self.closed[at + 1 : at + 2]]
        if current is not None and current.begin > offset:
            behind.append(current)
        following = min(behind, key=lambda fragment: fragment.begin, default=None)
        return None, following


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Next offset of a read, and its fragment."""

    offset: int
    """Effective offset; larger than the requested one after a jump over a hole."""
    fragment: Fragment | None
    """The fragment that covers it; None if nothing can be read there yet."""
    write_head: int


def resolve_read(view: IndexView, offset: int, begin_mod_time: int, now: float) -> ReadPosition:
    """Resolve a read at an offset.

    Args:
        view: the index.
        offset: requested offset; -1 for the write head.
        begin_mod_time: stored fragments older than this Unix second are skipped.
        now: Unix seconds; decides whether a hole is old enough to be skipped.
    """
    if offset == -1:
        offset = view.end
    while True:
        fragment, following = view.covering(offset)
        # Continue at its end, not at the next fragment's begin: the two may overlap or leave a hole.
        if fragment is not None and 0 != fragment.mod_time < begin_mod_time:
            offset = fragment.end
        elif fragment is None and following is not None and following.mod_time != 0:
            # A hole is skipped before the first fragment, or if the fragment after it is old: a newer hole
            # may still be filled by an upload.
            is_first = bool(view.closed) and following == view.closed[0]
            if not is_first and following.mod_time >= now - HOLE_AGE_S:
                return ReadPosition(offset, fragment, view.end)
            offset = following.begin
        else:
            return ReadPosition(offset, fragment, view.end)
