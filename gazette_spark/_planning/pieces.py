"""Cuts ranges of journals into pieces that are read in parallel.

A piece owns the records whose FIRST byte lies in ``[begin, end)``. Its reader continues past ``end``, up to
``limit``, to complete the last of them. The byte before ``begin`` shows whether a record begins there. So a
piece that does not begin with its range reads from ``begin - 1`` and skips bytes up to the first record end.
Every record is therefore read by exactly one piece, regardless of the cuts.

Cuts at fragment edges are placed ONE BYTE AFTER the edge. Such a piece reads its own fragment from the first
byte on. A cut at the edge would make it fetch and decompress the whole previous fragment for that fragment's
last byte. The previous piece takes the record that begins at the edge. A fragment's edge need not be a record
boundary, because brokers do not check that.

A compressed fragment in a store is *solid*: a piece that begins inside it must decompress the bytes before.
So solid fragments are not cut if there are enough pieces without such cuts: at least ``minPartitions``, and
:data:`ENOUGH_PIECES` or as many as with cuts anywhere. A range that is one huge fragment is cut nevertheless.
Otherwise a single core would read it while the others wait.

Journals of an anchored framing (see ``_formats.framing``) are cut exactly at fragment edges and nowhere else.
Each such piece must begin and end with a whole record. Reading checks that: a piece that ends inside a record
is an error, so the next one cannot begin inside a record unnoticed.

The planner has read some bytes to find the end of a batch. Small ranges get them as their pieces' content
(:class:`PlannedBytes`), so that their tasks need no broker.
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
"""Maximum number of pieces of one split: with more, Spark's scheduling costs more than reading."""

ENOUGH_PIECES = 32
"""Number of pieces that keep an ordinary cluster busy; a larger one needs ``minPartitions``."""


SHARED_BYTES = 4 << 20
"""Maximum bytes of a task with several pieces: about 60 ms of parsing."""

SHARED_PIECES = 64
"""Maximum number of pieces of a task: each costs a request to a broker."""

SHARED_CONTENT_BYTES = 512 << 10
"""Maximum bytes of content in a task's pieces: Spark warns about tasks of twice that size."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Bytes ``[begin, end)`` of a journal; both are record boundaries."""

    journal: str
    begin: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end:
            msg = f"journal {self.journal!r}: invalid range [{self.begin}, {self.end})"
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
    """End of the range, before which the piece's last record must end."""
    starts_on_record: bool
    """Whether a record begins at ``begin``: the piece is its range's first, or its framing is anchored."""
    framing: str = "lines"
    """Name of the journal's framing."""
    labels: Labels = ()
    """The journal's labels at the time of planning; empty unless requested."""
    fragments: tuple[StoredFragment, ...] = field(default=(), repr=False)
    """Fragments with its bytes, if it is read without a broker."""
    start: int = field(default=0, repr=False)
    """Offset at which the query began to read the journal, at most ``begin``: for committed messages."""
    content: bytes | None = field(default=None, repr=False)
    """All bytes of a whole piece, if the planner has them, so that its task needs no broker."""

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end <= self.limit or (self.begin == 0 and not self.starts_on_record):
            msg = f"journal {self.journal!r}: invalid piece [{self.begin}, {self.end}), limit {self.limit}"
            raise ValueError(msg)
        if self.content is not None and not (self.is_whole and self.begin + len(self.content) == self.end):
            msg = f"{self}: content of {len(self.content)} bytes"
            raise ValueError(msg)

    @property
    def is_whole(self) -> bool:
        """Whether it begins and ends with whole records, so that no other bytes are needed for its rows."""
        return self.starts_on_record and self.end == self.limit

    @property
    def read_from(self) -> int:
        """Offset of the first byte that the piece must read."""
        return self.begin if self.starts_on_record else self.begin - 1


class FragmentSpan(Protocol):
    """Begin and end of a fragment."""

    @property
    def begin(self) -> int:
        """Offset of the fragment's first byte."""

    @property
    def end(self) -> int:
        """Offset after its last byte."""


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
        fragments: Fragments by journal, in any order; journals may be missing. A piece ends at a fragment's
            edge that lies in its second half.
        solid: Fragments that should be read whole.
        framings: Framings by journal; the default is ``lines``.
        min_partitions: Minimum number of pieces, if there are as many bytes.
        max_bytes: Maximum length of a piece; 0 for no limit.

    Pieces of an anchored framing are longer, and fewer, if fragments are long. A piece that ends with a solid
    fragment may be longer by less than that fragment and the solid ones that overlap it.

    Returns:
        The pieces, in the order of the ranges and of their offsets. They depend only on the arguments.
    """
    # Find the length that satisfies both options: no piece is longer than `maxBytesPerPartition`, and all are
    # short enough for `minPartitions` pieces. But never make them so short that the number of pieces
    # explodes.
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
                    # An anchored piece must end where it is cut. Any other reads on to complete its last
                    # record, and its first bytes may belong to the previous piece.
                    limit = cut if framing.anchored else span.end
                    starts_on_record = framing.anchored or begin == span.begin
                    pieces.append(Piece(span.journal, begin, cut, limit, starts_on_record, framing.name))
                begin = cut
        return pieces

    # Whole solid fragments cost the least in total. But if that gives too few pieces, most of a cluster would
    # be idle while few cores decompress, so ranges are cut anywhere.
    anywhere = cut_all({})
    if not solid or len(anywhere) <= len(ranges):
        return anywhere
    aligned = cut_all(solid)
    # Cutting anywhere may itself give fewer than that many pieces.
    enough = max(min_partitions, min(ENOUGH_PIECES, len(anywhere)))
    return aligned if len(aligned) >= enough else anywhere


def _anchored_cuts(span: OffsetRange, begins: Collection[int], at_most: int) -> Iterator[int]:
    """Yield the fragment edges at which a range is cut: the last one within ``at_most``, or else the next."""
    edges = sorted(edge for edge in begins if span.begin < edge < span.end)
    at = span.begin
    while span.end - at > at_most:
        beyond = bisect_right(edges, at)
        in_reach = bisect_right(edges, at + at_most)
        # Nothing proves a record boundary in the last fragment, however long it is.
        if beyond == len(edges):
            return
        at = edges[max(beyond, in_reach - 1)]
        yield at


def _cuts(
    span: OffsetRange, begins: Collection[int], solid: Sequence[FragmentSpan], at_most: int
) -> Iterator[int]:
    """Yield where a range is cut: just past the last edge within reach, or else after equal lengths.

    A cut that would be inside a solid fragment moves to that fragment's end.
    """
    # Cut one byte past each edge: see the module's docstring.
    edges = sorted(begin + 1 for begin in begins if span.begin <= begin < span.end)
    whole: list[tuple[int, int]] = []  # Solid bytes as ascending spans without overlaps.
    for begin, end in sorted((fragment.begin, fragment.end) for fragment in solid):
        if whole and begin < whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end))
        else:
            whole.append((begin, end))
    at = span.begin
    while (remaining := span.end - at) > at_most:
        # Cut the rest into equal lengths, so that no task is started for a small last piece.
        step = -(-remaining // -(-remaining // at_most))
        in_reach = bisect_right(edges, at + at_most)
        edge = edges[in_reach - 1] if in_reach else 0
        # An edge in the first half would give a piece of less than half the length, and more tasks than
        # needed.
        if edge > at + at_most // 2:
            at = edge
        else:
            at += step
            # A cut one byte after a fragment's start is right: see the module's docstring.
            index = bisect_right(whole, at - 1, key=itemgetter(0)) - 1
            if index >= 0 and whole[index][0] + 1 < at <= whole[index][1]:
                at = whole[index][1] + 1
        if at >= span.end:
            return
        yield at


def tasks(pieces: Sequence[Piece], min_partitions: int = 1) -> list[tuple[Piece, ...]]:
    """Group pieces into tasks. Small pieces share a task if there are more than a cluster needs to be busy.

    A task costs Spark some milliseconds and a connection. A batch of thousands of journals with few new bytes
    each would pay that thousands of times.

    Args:
        pieces: The pieces of a batch.
        min_partitions: Minimum number of tasks, if there are as many pieces.

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
"""Maximum bytes of content in a batch's pieces: they pass through the driver's JVM."""


class PlannedBytes:
    """The bytes of one batch's small ranges, by journal."""

    def __init__(self) -> None:
        self._contents: dict[str, tuple[int, bytes]] = {}
        """Begin and bytes of the range, by journal."""

    def __repr__(self) -> str:
        return f"PlannedBytes({len(self._contents)} journals)"

    def keep(self, begins: Mapping[str, int], ends: Mapping[str, int], contents: Mapping[str, bytes]) -> None:
        """Keep the bytes of a new batch, the smallest ranges first, and forget those of the last one.

        Args:
            begins: Begin of the batch by journal.
            ends: End of the batch by journal.
            contents: Bytes from the start on; there may be fewer bytes than in the range, or more.
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
        """Return pieces with their bytes, if available. The bytes stay, because Spark may plan again."""
        attached: list[Piece] = []
        for piece in pieces:
            begin, content = self._contents.get(piece.journal, (0, b""))
            is_same = (piece.begin, piece.end) == (begin, begin + len(content))
            # The planner keeps the bytes of one batch. A piece of another batch, or a part of a range that
            # was cut, has other ends and is read from brokers.
            attached.append(
                replace(piece, content=content) if content and is_same and piece.is_whole else piece
            )
        return attached
