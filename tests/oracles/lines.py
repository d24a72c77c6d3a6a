"""Journals and line records in their simplest form, as a reference for the tests of the scan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from gazette_spark.protocol import protocol_pb2 as pb


@dataclass(frozen=True)
class FakeChunk:
    offset: int
    content: bytes
    mod_time: int = 0


@dataclass
class FakeJournal:
    """One journal in memory, with holes; it records every read.

    ``chunk_sizes`` are used in rotation, so the same content can arrive cut in any way.
    """

    content: bytes
    base: int = 0
    """Offset of ``content[0]``."""
    holes: Sequence[tuple[int, int]] = ()
    """Missing ranges, ascending and not adjacent."""
    chunk_sizes: Sequence[int] = (1 << 20,)
    stored: Sequence[tuple[int, int]] = ()
    """Storage times of the bytes: ascending offsets, each with the time from there on. No chunk spans two."""
    reads: list[tuple[int, int]] = field(default_factory=list)
    open_reads: int = 0

    def read(self, journal: str, *, offset: int = 0, end_offset: int = 0) -> FakeRead:
        assert 0 <= offset < end_offset, "an empty range must not be asked for"
        self.reads.append((offset, end_offset))
        return FakeRead(self, offset, end_offset)

    def get_journal(self, name: str) -> pb.ListResponse.Journal:
        return pb.ListResponse.Journal(spec={"name": name})

    def spans(self) -> list[tuple[int, int]]:
        edges = [self.base, *(edge for hole in self.holes for edge in hole), self.base + len(self.content)]
        return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]

    def mod_time(self, offset: int) -> int:
        """Return when the byte at an offset was stored, 0 if it is missing."""
        return next((time for edge, time in reversed(self.stored) if edge <= offset), 0)

    def window(self, begin: int, end: int) -> bytes:
        return self.content[begin - self.base : end - self.base]


class FakeRead:
    def __init__(self, source: FakeJournal, offset: int, end: int) -> None:
        self.source, self.offset, self.end = source, offset, end
        self.jumps: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        self.source.open_reads += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.source.open_reads -= 1

    def __iter__(self) -> Iterator[FakeChunk]:
        turn = 0
        for low, high in self.source.spans():
            if high <= self.offset:
                continue
            if low > self.offset:
                self.jumps.append((self.offset, low))
                self.offset = min(low, self.end)
            while low <= self.offset < min(high, self.end):
                size = self.source.chunk_sizes[turn % len(self.source.chunk_sizes)]
                turn += 1
                edges = [edge for edge, _ in self.source.stored if edge > self.offset]
                at, stop = self.offset, min(self.offset + size, high, self.end, *edges)
                self.offset = stop
                yield FakeChunk(at, self.source.window(at, stop), self.source.mod_time(at))
            if self.offset >= self.end:
                return


def records_of(journal: FakeJournal, begin: int, end: int) -> list[tuple[int, bytes]]:
    """Return offset and value of each record in ``[begin, end)`` whose start and end are both known."""
    found = []
    for low, high in journal.spans():
        at = max(low, begin)
        if at > begin:
            at += journal.window(at, high).find(b"\n") + 1 or high - at
        while at < min(high, end):
            newline = journal.window(at, min(high, end)).find(b"\n")
            if newline < 0:
                break
            found.append((at, journal.window(at, at + newline)))
            at += newline + 1
    return found


def missing_bytes(journal: FakeJournal, begin: int, end: int) -> int:
    """Return how many bytes of ``[begin, end)`` lie in holes."""
    present = sum(max(0, min(high, end) - max(low, begin)) for low, high in journal.spans())
    return end - begin - present
