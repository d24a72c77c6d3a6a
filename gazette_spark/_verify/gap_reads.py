"""Reads the records of a journal as the query did: bytes that its entries name as missing are skipped again.

A record that such a gap cuts was dropped, regardless of whether the bytes are still missing. So a read jumps
over the recorded gaps. A recorded gap ends where the query continued with a record; other missing bytes may
end anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from gazette_spark._formats.framing import RecordFraming
from gazette_spark._planning.cutter import Gap, PieceScan
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.reads import ChunkLike, JournalOpener, JournalReader
from gazette_spark.protocol.spans import Spans, outside


def skipping_scan(
    client: JournalOpener,
    piece: Piece,
    framing: RecordFraming,
    gaps: Sequence[tuple[int, int]],
    max_record_bytes: int,
) -> PieceScan:
    """Return the scan of a piece that jumps over gaps."""
    return PieceScan(
        SkipGaps(client, gaps),
        piece,
        fail_on_data_loss=False,
        max_record_bytes=max_record_bytes,
        framing=framing,
        # After other missing bytes, lines are skipped up to the next newline, as by the query. A recorded gap
        # already includes that rest.
        records_begin={end for _, end in gaps},
    )


def gone_of(gaps: Iterable[Gap], recorded: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the missing bytes of a scan outside recorded gaps, with the rest of records that they cut."""
    missing = [
        (gap.cut_offset if gap.cut_bytes else gap.begin, gap.end)
        for gap in gaps
        # Bytes at which no record begins are not lost: the query skipped them, too.
        if gap.kind in ("missing", "rest") and outside(recorded, gap.begin, gap.end)
    ]
    return [part for gap in missing for part in outside(recorded, *gap)]


class SkipGaps:
    """Opens reads that jump over gaps."""

    def __init__(self, client: JournalOpener, gaps: Sequence[tuple[int, int]]) -> None:
        self._client = client
        self._gaps = gaps
        self.get_journal = client.get_journal

    def read(self, journal: str, *, offset: int = 0, end_offset: int = 0) -> JournalReader:
        """Open a read of ``[offset, end_offset)``."""
        if not self._gaps:
            return self._client.read(journal, offset=offset, end_offset=end_offset)
        return _JumpingRead(self._client, journal, outside(self._gaps, offset, end_offset), end_offset)


class _JumpingRead:
    """Several consecutive reads as one."""

    def __init__(self, client: JournalOpener, journal: str, spans: Spans, end_offset: int) -> None:
        self._client = client
        self._journal = journal
        self._spans = spans
        self._end_offset = end_offset
        self.offset = spans[0][0] if spans else end_offset
        self.jumps: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[ChunkLike]:
        for begin, end in self._spans:
            self._jump(begin)
            with self._client.read(self._journal, offset=begin, end_offset=end) as reader:
                yield from reader
                self.jumps += reader.jumps
            self.offset = end
        # A gap that reaches the end of the read has no chunk after it.
        self._jump(self._end_offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Do nothing: at most one read is open, and it is closed when the iteration ends."""

    def _jump(self, target: int) -> None:
        if target > self.offset:
            self.jumps.append((self.offset, target))
            self.offset = target
