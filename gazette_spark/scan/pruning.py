"""Ranges narrowed to the offsets that a query wants, and cut into pieces.

A narrowed range is not read from its first byte: the byte before it shows whether a record begins there, as
in any piece that does not begin with its range. It goes on to the end of the whole range, where the last
record ends at the latest. So its rows are those of the whole range whose first byte is within.

Journals of an anchored framing are cut where records are known to begin and nowhere else. Of these the
pieces behind the last wanted byte are left out; and where a frame's header shows records, as in ``fixed``,
such a range is narrowed to the records around the wanted offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gazette_spark.framing.base import Framing
from gazette_spark.scan.conditions import Spans, both
from gazette_spark.scan.ranges import OffsetRange, Piece

Split = Callable[[Sequence[OffsetRange]], list[Piece]]
"""Cuts ranges, several of a journal perhaps, into pieces."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A range of a journal, and the spans in which its wanted records begin."""

    whole: OffsetRange
    spans: Spans
    """Within the range, not empty."""
    anchored: bool = False

    @property
    def ranges(self) -> list[OffsetRange]:
        """The ranges to cut into pieces."""
        if self.anchored:
            return [self.whole]
        return [OffsetRange(self.whole.journal, begin, end) for begin, end in self.spans]

    def piece(self, cut: Piece) -> Piece | None:
        """Return a piece of one of :attr:`ranges` as one of the whole range; None if it is not wanted."""
        if self.anchored:
            return cut if cut.begin < self.spans[-1][1] else None
        return replace(cut, limit=self.whole.end, head=cut.begin == self.whole.begin)


def narrow(
    whole: OffsetRange, wanted: Spans, framing: Framing, *, around: Callable[[int, int], tuple[int, int]]
) -> Narrowed | None:
    """Narrow a range to wanted offsets; None if it has no wanted offset.

    Args:
        whole: Range of the query.
        wanted: Offsets, in the range or not.
        framing: Framing of the journal.
        around: Returns record boundaries of the range: one at or before the first offset given, and one at
            or after the second. Asked only where the framing needs it.
    """
    spans = both([(whole.begin, whole.end)], wanted)
    if not spans:
        return None
    first, last = spans[0][0], spans[-1][1]
    # In CSV a quote may be anywhere before: to find a boundary could take all bytes from the begin on.
    if framing.anchored and framing.header_bytes and (first, last) != (whole.begin, whole.end):
        whole = OffsetRange(whole.journal, *around(first, last))
    return Narrowed(whole, spans, framing.anchored)


def split_narrowed(narrowed: Sequence[Narrowed], split: Split) -> list[Piece]:
    """Cut narrowed ranges, one of each journal at most, into pieces, in their order."""
    parts = {each.whole.journal: each for each in narrowed}
    cuts = split([part for each in narrowed for part in each.ranges])
    pieces = (parts[cut.journal].piece(cut) for cut in cuts)
    return [piece for piece in pieces if piece is not None]
