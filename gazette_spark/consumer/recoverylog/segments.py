"""Segments: which parts of recovery logs have to be read to rebuild the files. Pure.

A segment is a run of operations by one author. A set of them is a list with increasing sequence numbers that
do not overlap. Where the segments of files overlap or touch they are one.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol.journal_specs import validate_journal_name


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of operations, by sequence number and place in its log."""

    author: int
    first_seq_no: int
    first_offset: int
    """Lower bound of the offset of the first operation; exact if a player made the segment."""
    first_checksum: int
    """Checksum of the chain before the first operation."""
    last_seq_no: int
    last_offset: int
    """Offset behind the last operation; 0: unknown, as a recorder made the segment."""
    log: str

    @classmethod
    def of(cls, found: pr.Segment, log: str) -> Segment:
        """Return a segment of hints. ``log`` is that of the hints, meant where the segment names none.

        Raises:
            ProtocolError: the segment is inconsistent.
        """
        segment = cls(
            found.author,
            found.first_seq_no,
            found.first_offset,
            found.first_checksum,
            found.last_seq_no,
            found.last_offset,
            found.log or log,
        )
        segment._check()
        return segment

    def to_pb(self, log: str) -> pr.Segment:
        """Return the segment as hints of a log have it."""
        return pr.Segment(
            author=self.author,
            first_seq_no=self.first_seq_no,
            first_offset=self.first_offset,
            first_checksum=self.first_checksum,
            last_seq_no=self.last_seq_no,
            last_offset=self.last_offset,
            log="" if self.log == log else self.log,
        )

    def _check(self) -> None:
        problem = ""
        if self.author == 0:
            problem = "author is 0"
        elif self.first_seq_no <= 0:
            problem = f"first_seq_no is {self.first_seq_no}; expected above 0"
        elif self.first_offset < 0:
            problem = f"first_offset is {self.first_offset}; expected 0 or more"
        elif self.last_seq_no < self.first_seq_no:
            problem = f"last_seq_no {self.last_seq_no} is below first_seq_no {self.first_seq_no}"
        elif 0 != self.last_offset <= self.first_offset:
            problem = f"last_offset {self.last_offset} is not above first_offset {self.first_offset}"
        if problem:
            raise ProtocolError("Segment", problem)
        validate_journal_name(self.log, where="Segment.Log")


def add_segment(segments: list[Segment], segment: Segment) -> None:
    """Add a segment to a set; it becomes one with those it overlaps or continues.

    Raises:
        ProtocolError: it contradicts one of the set.
    """
    begin = bisect_left(segments, segment.first_seq_no, key=lambda each: each.first_seq_no)
    if begin and (joined := _joined(segments[begin - 1], segment)) is not None:
        segment, begin = joined, begin - 1
        end = begin + 1
    else:
        end = begin
    while end < len(segments) and (joined := _joined(segments[end], segment)) is not None:
        segment, end = joined, end + 1
    segments[begin:end] = [segment]


def intersect(segments: list[Segment], begin: int, end: int) -> list[Segment]:
    """Return those segments of a set, all of one log, that may have bytes in ``[begin, end)``."""
    stop = bisect_left(segments, end, key=lambda each: each.first_offset)
    start = stop
    while start and (segments[start - 1].last_offset == 0 or segments[start - 1].last_offset > begin):
        start -= 1
    return segments[start:stop]


def _joined(a: Segment, b: Segment) -> Segment | None:
    """Return one segment for two, None if both are needed."""
    if a.first_seq_no > b.first_seq_no or (
        a.first_seq_no == b.first_seq_no and a.last_seq_no < b.last_seq_no
    ):
        a, b = b, a
    if (problem := _contradiction(a, b)) is not None:
        raise ProtocolError("SegmentSet", f"{problem}: {a} and {b}")
    adjacent = a.last_seq_no + 1 == b.first_seq_no
    if a.last_seq_no + 1 < b.first_seq_no or (adjacent and (a.author, a.log) != (b.author, b.log)):
        return None
    if (a.author, a.log) != (b.author, b.log):
        raise ProtocolError("SegmentSet", f"overlapping segments differ in author or log: {a} and {b}")
    first_offset = max(a.first_offset, b.first_offset) if a.first_seq_no == b.first_seq_no else a.first_offset
    last_seq_no, last_offset = a.last_seq_no, a.last_offset
    if last_seq_no == b.last_seq_no:
        last_offset = last_offset or b.last_offset
    elif last_seq_no < b.last_seq_no:
        last_seq_no, last_offset = b.last_seq_no, b.last_offset
    return replace(a, first_offset=first_offset, last_seq_no=last_seq_no, last_offset=last_offset)


def _contradiction(a: Segment, b: Segment) -> str | None:
    """Return how two segments, of which ``a`` is first or the longer, contradict each other."""
    same_log = a.log == b.log
    if a.first_seq_no < b.first_seq_no and same_log and a.first_offset > b.first_offset:
        return "first offsets decrease"
    if a.first_seq_no < b.first_seq_no and a.last_offset == 0 and b.last_offset != 0:
        return "only the later segment has a last offset"
    if a.last_offset == 0 and not same_log:
        return "a segment without last offset precedes one of another log"
    if same_log and (
        (a.last_seq_no <= b.last_seq_no and 0 != b.last_offset < a.last_offset)
        or (a.last_seq_no >= b.last_seq_no and 0 != a.last_offset < b.last_offset)
    ):
        return "last offsets decrease"
    if a.first_seq_no == b.first_seq_no and a.first_checksum != b.first_checksum:
        return "checksums of one operation differ"
    return None
