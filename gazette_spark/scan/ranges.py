"""Ranges of journals and how they are cut into pieces that are read side by side.

A piece holds the records whose FIRST byte lies in ``[begin, end)``. Its reader goes past ``end``, up
to ``limit``, to finish the last of them. Whether a record begins at ``begin`` is told by the byte
before it, so a piece that is not the head of its range reads from ``begin - 1`` and skips what comes
before the first record end. Hence every record is read by exactly one piece, wherever the cuts are.

Cuts at fragment edges are placed ONE BYTE AFTER the edge. Such a piece reads its own fragment from
the first byte on, instead of fetching and decompressing the whole fragment before it to look at its
last byte; and the piece before it takes the record that begins at the edge. A fragment's edge is not
trusted to be a record's edge: brokers do not check that.

Journals of an anchored framing (see ``framing.base``) are cut at fragment edges themselves and nowhere
else. Each such piece begins with a record and ends with one, which is checked when it is read: a piece
that ends inside a record is an error, so the next one cannot begin inside one unseen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gazette_spark.framing.base import Framing
from gazette_spark.framing.lines import LINES
from gazette_spark.framing.metadata import Labels

MAX_PIECES = 100_000
"""Most pieces of one split: past this Spark's scheduler costs more than the reading."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Bytes ``[begin, end)`` of a journal; both lie on record boundaries."""

    journal: str
    begin: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end:
            msg = f"journal {self.journal!r}: no range [{self.begin}, {self.end})"
            raise ValueError(msg)

    @property
    def size_bytes(self) -> int:
        """Length of the range."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Piece:
    """The records of a range whose first byte lies in ``[begin, end)``."""

    journal: str
    begin: int
    end: int
    limit: int
    """End of the range: the last record of the piece ends here at the latest."""
    head: bool
    """A record begins at ``begin``: the piece begins where its range does, or its framing is anchored."""
    framing: str = "lines"
    """Name of the journal's framing."""
    labels: Labels = ()
    """The journal's labels when the batch was planned; empty where nobody asked for them."""

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end <= self.limit or (self.begin == 0 and not self.head):
            msg = f"journal {self.journal!r}: no piece [{self.begin}, {self.end}) of a range to {self.limit}"
            raise ValueError(msg)

    @property
    def read_from(self) -> int:
        """Offset of the first byte the piece has to look at."""
        return self.begin if self.head else self.begin - 1


class Span(Protocol):
    """A fragment, as far as splitting cares."""

    @property
    def begin(self) -> int:
        """Offset of the fragment's first byte."""


def split(
    ranges: Sequence[OffsetRange],
    fragments: Mapping[str, Sequence[Span]] | None = None,
    *,
    framings: Mapping[str, Framing] | None = None,
    min_partitions: int = 1,
    max_bytes: int = 0,
) -> list[Piece]:
    """Cut ranges into pieces.

    Args:
        ranges: What is to be read. Empty ranges give no pieces.
        fragments: Fragments by journal, in any order; journals may be left out. Where a fragment's
            edge lies in the second half of a piece, the piece ends there.
        framings: Framings by journal; ``lines`` for journals that are left out.
        min_partitions: At least this many pieces, if there are as many bytes.
        max_bytes: No piece is longer, 0: as long as its range.

    Pieces of an anchored framing are longer, and fewer, where fragments are.

    Returns:
        The pieces, in the order of the ranges and of their offsets. A function of the arguments alone.
    """
    total = sum(each.size_bytes for each in ranges)
    at_most = max_bytes or max(total, 1)
    at_most = min(at_most, max(1, total // max(1, min_partitions)))
    at_most = max(at_most, -(-total // MAX_PIECES))
    pieces: list[Piece] = []
    for each in ranges:
        framing = (framings or {}).get(each.journal, LINES)
        begins = {span.begin for span in (fragments or {}).get(each.journal, ())}
        cuts = _anchored_cuts if framing.anchored else _cuts
        begin = each.begin
        for cut in (*cuts(each, begins, at_most), each.end):
            if begin < cut:
                limit = cut if framing.anchored else each.end
                head = framing.anchored or begin == each.begin
                pieces.append(Piece(each.journal, begin, cut, limit, head, framing.name))
            begin = cut
    return pieces


def _anchored_cuts(span: OffsetRange, begins: Collection[int], at_most: int) -> Iterator[int]:
    """Yield the fragment edges at which a range is cut: the last one in reach, else the next one."""
    edges = sorted(edge for edge in begins if span.begin < edge < span.end)
    at = span.begin
    while span.end - at > at_most:
        beyond = bisect_right(edges, at)
        in_reach = bisect_right(edges, at + at_most)
        if beyond == len(edges):
            return
        at = edges[max(beyond, in_reach - 1)]
        yield at


def _cuts(span: OffsetRange, begins: Collection[int], at_most: int) -> Iterator[int]:
    """Yield where a range is cut: just past the last edge in reach, else after equal lengths."""
    edges = sorted(begin + 1 for begin in begins if span.begin <= begin < span.end)
    at = span.begin
    while span.end - at > at_most:
        left = span.end - at
        step = -(-left // -(-left // at_most))
        in_reach = bisect_right(edges, at + at_most)
        edge = edges[in_reach - 1] if in_reach else 0
        at = edge if edge > at + at_most // 2 else at + step
        yield at
