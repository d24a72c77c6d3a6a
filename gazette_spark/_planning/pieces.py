"""Ranges of journals and how they are cut into pieces that are read side by side.

A piece holds the records whose FIRST byte lies in ``[begin, end)``. Its reader goes past ``end``, up
to ``limit``, to finish the last of them. The byte before ``begin`` shows whether a record begins there. So a
piece that does not begin with its range reads from ``begin - 1`` and skips bytes before the first record end.
Hence every record is read by exactly one piece, wherever the cuts are.

Cuts at fragment edges are placed ONE BYTE AFTER the edge. Such a piece reads its own fragment from
the first byte on, instead of fetching and decompressing the whole fragment before it to look at its
last byte; and the piece before it takes the record that begins at the edge. A fragment's edge is not
trusted to be a record's edge: brokers do not check that.

A compressed fragment in a store is *solid*: a piece that begins inside it has to decompress the bytes before.
So solid fragments are not cut while there are enough pieces: ``minPartitions``, and :data:`ENOUGH_PIECES` or
the number that cuts anywhere would give. A range that is one huge fragment is cut all the same, or a single
core would read it while the others wait.

Journals of an anchored framing (see ``_formats.framing``) are cut at fragment edges themselves and nowhere
else. Each such piece begins with a record and ends with one, which is checked when it is read: a piece
that ends inside a record is an error, so the next one cannot begin inside one unseen.

The planner has read some bytes to find the end of a batch. Small ranges get them as their pieces' content
(:class:`PlannedBytes`), so that their tasks ask no broker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Protocol

from gazette_spark._formats.framing import RecordFraming
from gazette_spark._formats.lines import LINES
from gazette_spark._formats.metadata import Labels
from gazette_spark._planning.store_layout import StoredFragment

MAX_PIECES = 100_000
"""Maximum number of pieces of one split: with more, Spark's scheduler costs more than the reading."""

ENOUGH_PIECES = 32
"""Pieces of one split that keep an ordinary cluster busy; for a larger one there is ``minPartitions``."""


SHARED_BYTES = 4 << 20
"""Maximum bytes of a task that reads several pieces: some 60 ms of parsing."""

SHARED_PIECES = 64
"""Maximum number of pieces of such a task: each costs a request to a broker."""

SHARED_CONTENT_BYTES = 512 << 10
"""Maximum bytes that the pieces of a task bring along: Spark warns of tasks of twice as many."""


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
    starts_on_record: bool
    """A record begins at ``begin``: the piece begins where its range does, or its framing is anchored."""
    framing: str = "lines"
    """Name of the journal's framing."""
    labels: Labels = ()
    """The journal's labels when the batch was planned; empty unless requested."""
    fragments: tuple[StoredFragment, ...] = field(default=(), repr=False)
    """Fragments of its bytes, if it is read without a broker."""
    start: int = field(default=0, repr=False)
    """Where the query began to read the journal, at or before ``begin``: for committed messages."""
    content: bytes | None = field(default=None, repr=False)
    """All bytes of a whole piece, if the planner has them: its task asks no broker for them."""

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end <= self.limit or (self.begin == 0 and not self.starts_on_record):
            msg = f"journal {self.journal!r}: no piece [{self.begin}, {self.end}) of a range to {self.limit}"
            raise ValueError(msg)
        if self.content is not None and not (self.is_whole and self.begin + len(self.content) == self.end):
            msg = f"{self}: content of {len(self.content)} bytes"
            raise ValueError(msg)

    @property
    def is_whole(self) -> bool:
        """Whether it begins and ends with whole records, so that its rows are in its own bytes."""
        return self.starts_on_record and self.end == self.limit

    @property
    def read_from(self) -> int:
        """Offset of the first byte the piece has to look at."""
        return self.begin if self.starts_on_record else self.begin - 1


class FragmentSpan(Protocol):
    """Where a fragment begins and ends."""

    @property
    def begin(self) -> int:
        """Offset of the fragment's first byte."""

    @property
    def end(self) -> int:
        """Offset behind its last byte."""


def split(
    ranges: Sequence[OffsetRange],
    fragments: Mapping[str, Sequence[FragmentSpan]] | None = None,
    *,
    solid: Mapping[str, Sequence[FragmentSpan]] | None = None,
    framings: Mapping[str, RecordFraming] | None = None,
    min_partitions: int = 1,
    max_bytes: int = 0,
) -> list[Piece]:
    """Cut ranges into pieces.

    Args:
        ranges: Ranges to read. Empty ranges give no pieces.
        fragments: Fragments by journal, in any order; journals may be left out. Where a fragment's
            edge lies in the second half of a piece, the piece ends there.
        solid: Fragments that are better read whole.
        framings: Framings by journal; ``lines`` for journals that are left out.
        min_partitions: At least this many pieces, if there are as many bytes.
        max_bytes: Maximum length of a piece, 0: as long as its range.

    Pieces of an anchored framing are longer, and fewer, where fragments are; so are those that end with
    a solid fragment, by less than its length.

    Returns:
        The pieces, in the order of the ranges and of their offsets. A function of the arguments alone.
    """
    total = sum(span.size_bytes for span in ranges)
    at_most = min(max_bytes or max(total, 1), max(1, total // max(1, min_partitions)))
    at_most = max(at_most, -(-total // MAX_PIECES))

    def cut_all(solid: Mapping[str, Sequence[FragmentSpan]]) -> list[Piece]:
        pieces: list[Piece] = []
        for span in ranges:
            framing = (framings or {}).get(span.journal, LINES)
            edges = {fragment.begin for fragment in (fragments or {}).get(span.journal, ())}
            if framing.anchored:
                cuts = _anchored_cuts(span, edges, at_most)
            else:
                cuts = _cuts(span, edges, solid.get(span.journal, ()), at_most)
            begin = span.begin
            for cut in (*cuts, span.end):
                if begin < cut:
                    limit = cut if framing.anchored else span.end
                    starts_on_record = framing.anchored or begin == span.begin
                    pieces.append(Piece(span.journal, begin, cut, limit, starts_on_record, framing.name))
                begin = cut
        return pieces

    # Whole solid fragments cost the least in total, but if that leaves too few pieces, a cluster would idle
    # while few cores decompress. Then ranges are cut anywhere.
    anywhere = cut_all({})
    if not solid or len(anywhere) <= len(ranges):
        return anywhere
    aligned = cut_all(solid)
    enough = max(min_partitions, min(ENOUGH_PIECES, len(anywhere)))
    return aligned if len(aligned) >= enough else anywhere


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


def _cuts(
    span: OffsetRange, begins: Collection[int], solid: Sequence[FragmentSpan], at_most: int
) -> Iterator[int]:
    """Yield where a range is cut: just past the last edge in reach, else after equal lengths.

    An equal length that would end inside a solid fragment is drawn out to the end of that.
    """
    edges = sorted(begin + 1 for begin in begins if span.begin <= begin < span.end)
    whole: list[tuple[int, int]] = []  # Solid bytes, as ascending spans that do not overlap.
    for begin, end in sorted((fragment.begin, fragment.end) for fragment in solid):
        if whole and begin < whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end))
        else:
            whole.append((begin, end))
    at = span.begin
    while (remaining := span.end - at) > at_most:
        step = -(-remaining // -(-remaining // at_most))
        in_reach = bisect_right(edges, at + at_most)
        edge = edges[in_reach - 1] if in_reach else 0
        if edge > at + at_most // 2:
            at = edge
        else:
            at += step
            # A cut one byte after a fragment's begin is where it belongs: see the module.
            index = bisect_right(whole, at - 1, key=itemgetter(0)) - 1
            if index >= 0 and whole[index][0] + 1 < at <= whole[index][1]:
                at = whole[index][1] + 1
        if at >= span.end:
            return
        yield at


def tasks(pieces: Sequence[Piece], min_partitions: int = 1) -> list[tuple[Piece, ...]]:
    """Group pieces into tasks: small ones share a task where there are more than keep a cluster busy.

    A task costs Spark some milliseconds, and a connection. A batch of thousands of journals with little news
    each would pay for that thousands of times.

    Args:
        pieces: The pieces of a batch.
        min_partitions: At least this many tasks, if there are as many pieces.

    Returns:
        The pieces in their order; at least :data:`ENOUGH_PIECES` tasks, if there are as many pieces.
    """
    at_most = min(SHARED_PIECES, len(pieces) // max(min_partitions, ENOUGH_PIECES))
    grouped: list[tuple[Piece, ...]] = []
    task: list[Piece] = []
    size = content = 0
    for piece in pieces:
        length, brought = piece.end - piece.begin, len(piece.content or b"")
        too_large = size + length > SHARED_BYTES or content + brought > SHARED_CONTENT_BYTES
        if task and (len(task) >= at_most or too_large):
            grouped.append(tuple(task))
            task, size, content = [], 0, 0
        task.append(piece)
        size += length
        content += brought
    return [*grouped, tuple(task)] if task else grouped


PLANNED_BYTES = 8 << 20
"""Maximum bytes of a batch that its pieces bring along: Spark carries them through the driver's JVM."""


class PlannedBytes:
    """The bytes of the ranges of one batch, by journal, as far as they are few."""

    def __init__(self) -> None:
        self._contents: dict[str, tuple[int, bytes]] = {}
        """By journal, where the range begins, and its bytes."""

    def __repr__(self) -> str:
        return f"PlannedBytes({len(self._contents)} journals)"

    def keep(self, begins: Mapping[str, int], ends: Mapping[str, int], contents: Mapping[str, bytes]) -> None:
        """Keep the bytes of a new batch, the smallest ranges first, and forget those of the last one.

        Args:
            begins: Where the batch begins.
            ends: Where it ends.
            contents: Bytes from the begin on; they may be fewer than those of the range, or more.
        """
        self._contents = {}
        budget = PLANNED_BYTES
        for size, name in sorted((ends[name] - begins[name], name) for name in contents):
            if size > budget:
                return
            if 0 < size <= len(contents[name]):
                self._contents[name] = (begins[name], contents[name][:size])
                budget -= size

    def attach_to(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Return pieces with their bytes where these are kept. They stay kept, as Spark may plan again."""
        attached: list[Piece] = []
        for piece in pieces:
            begin, content = self._contents.get(piece.journal, (0, b""))
            is_same = (piece.begin, piece.end) == (begin, begin + len(content))
            attached.append(
                replace(piece, content=content) if content and is_same and piece.is_whole else piece
            )
        return attached
