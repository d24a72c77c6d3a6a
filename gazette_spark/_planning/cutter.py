"""Cuts the chunks of a piece into blocks of whole records, without the records that missing bytes cut.

:class:`Cutter` is a state machine without I/O. Its states:

========  =======================================  ==================================================
state     meaning                                  leaves it when
========  =======================================  ==================================================
skipping  before the piece's first record end, or  a record end is seen (→ cutting), a jump ends
          before the first one after a jump        (→ cutting, or still skipping), or ``end`` is
                                                   reached (→ done; after a jump at a record end)
cutting   ``start`` is the first byte of a record  the next record begins at or past ``end`` (→ done)
          that the piece owns; its bytes are kept
done      all records of the piece are yielded     never
========  =======================================  ==================================================

A jump means that bytes are missing. The record that it cuts can never be completed and is dropped. A fragment
begins after the jump, but not necessarily a record, because an append of lines may end with half of one. So
in a framing that ``resyncs``, the bytes up to the next record end are also skipped, and reported. Other
framings require appends of whole records. The resulting rows depend only on the piece and the journal's
content, never on how the content arrives in chunks.

A piece of an anchored framing begins and ends with a whole record, and the reader checks that. So a piece
that was cut in the wrong place ends in an error, never in wrong rows.

::

    scan = PieceScan(client, piece, fail_on_data_loss=True)
    yield from raw_record_batches(scan)
    report(scan.gaps)  # Complete once the iteration is over.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa

from gazette_spark._formats.framing import MAX_ROWS, Block, RecordFraming, bounded
from gazette_spark._formats.lines import LINES
from gazette_spark._formats.metadata import Labels, metadata_column
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.reads import JournalOpener, chunks_of, resume_offset
from gazette_spark.errors import DataLossError, OffsetNotYetAvailableError, ProtocolError, RecordError

BLOCK_BYTES = 1 << 20
"""Bytes collected before a block is cut: large enough to make calls cheap, small enough for the cache."""

LOOK_BYTES = 64 << 10
"""Minimum bytes collected before the next check of a record's length."""

MAX_RECORD_BYTES = 64 << 20
"""Default maximum length of a record."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a piece that yielded no records, because they are missing or invalid.

    The sum of the gaps of all pieces of a range does not depend on how the range was cut.
    """

    journal: str
    begin: int
    end: int
    """The gap is ``[begin, end)``, clipped to the piece; it may be empty."""
    cut_offset: int
    """Offset of the record that the gap cut, and that was dropped; only valid with ``cut_bytes``."""
    cut_bytes: int
    """Available bytes of that record; 0 if no record was cut."""
    kind: str = "missing"
    """``missing``: the bytes are gone. ``desync``: no record begins at these bytes. ``rest``: they follow
    missing bytes and may belong to a cut record; they may lie past the piece's end."""


class Cutter:
    """Cuts the chunks of one piece into blocks. Fed by one thread, in order."""

    def __init__(
        self,
        piece: Piece,
        *,
        fail_on_data_loss: bool,
        max_record_bytes: int = MAX_RECORD_BYTES,
        block_bytes: int = BLOCK_BYTES,
        framing: RecordFraming = LINES,
        records_begin: Collection[int] = (),
    ) -> None:
        # Elsewhere no record of such a framing can be recognised, and a guess would give wrong rows: see
        # decision 4.
        if framing.anchored and not (piece.starts_on_record and piece.end == piece.limit):
            msg = f"framing {framing.name}: {piece} does not begin and end at record boundaries"
            raise ValueError(msg)
        self.piece = piece
        self.gaps: list[Gap] = []
        # An empty piece owns no record, so it must not read the byte before its start.
        self._done = piece.begin >= piece.end
        self._fail_on_data_loss = fail_on_data_loss
        self._max_record_bytes = max_record_bytes
        self._block_bytes = block_bytes
        self._framing = framing
        # A piece in the middle of a range has read one byte before its start, and looks for the first record
        # end from there on. If that byte ends a record, a record of the piece begins right at its start.
        self._skipping = not piece.starts_on_record
        self._records_begin = records_begin
        """Offsets at which a record begins, even if missing bytes end there."""
        self._resync_from: int | None = None
        """Offset after the last jump, until a record end is seen."""
        self._position = piece.read_from
        self._start = piece.read_from
        self._unfinished: list[bytes] = []
        """Bytes from ``_start`` on that have not been yielded."""
        self._stored = [(0, 0)]
        """Store times of those bytes, in the form of a block."""
        self._schedule_flush(0)

    def __repr__(self) -> str:
        state = "done" if self._done else "skipping" if self._skipping else "cutting"
        return f"Cutter({self.piece}, {state} at {self._position}, gaps={len(self.gaps)})"

    def done(self) -> bool:
        """Return whether all records of the piece have been yielded, so that reading can stop."""
        return self._done

    def feed(self, offset: int, content: bytes, mod_time: int = 0) -> Iterator[Block]:
        """Take the next chunk and its store time, and yield the blocks that are complete.

        Raises:
            DataLossError: bytes are missing before the chunk, and that is not allowed.
            RecordError: a record is longer than allowed.
            ProtocolError: the chunk begins before the end of the previous one.
        """
        # Clients check this as well. Here it costs one comparison, and a chunk out of place would give all
        # later rows wrong offsets.
        if offset < self._position:
            raise ProtocolError("ReadResponse.offset", f"went back from {self._position} to {offset}")
        if offset > self._position:
            yield from self._jump(offset)
        # Keep one pair for each change of the time, usually one per fragment, and not one per chunk.
        if mod_time != self._stored[-1][1]:
            self._stored.append((offset, mod_time))
        # A chunk may be much larger than a block: a piece's content has up to 8 MiB. Processing it in parts
        # keeps blocks small, and stops reading soon after the piece's end.
        for low in range(0, len(content), self._block_bytes):
            if self._done:
                return
            part = content[low : low + self._block_bytes]
            if self._skipping:
                part = self._skip(part)
            if part:
                # Parts are only collected here. Looking for records in each one would examine a long record
                # many times.
                self._unfinished.append(part)
                self._position += len(part)
                if self._position >= self._flush_at:
                    yield from self._flush()

    def finish(self, resumed: int) -> Iterator[Block]:
        """End the read at the offset that it has reached, and yield the remaining blocks.

        Raises:
            DataLossError: the read jumped past its end, and that is not allowed.
            RecordError: the last record has no end.
            OffsetNotYetAvailableError: the read ended before the end of the piece.
        """
        # The read has jumped past its end, so no chunk follows that would show the hole.
        if not self._done and resumed > self._position:
            yield from self._jump(resumed)
        if self._done:
            return
        journal, limit = self.piece.journal, self.piece.limit
        # The planner has seen bytes up to the limit. If a broker's read ends earlier, the broker lags behind
        # or has lost them, and the rows so far would look complete.
        if self._position < limit:
            raise OffsetNotYetAvailableError(journal, "the read ended early", self._position, self._position)
        self._report_rest()
        if not self._skipping:
            yield from self._flush(last=True)
            # The planner has put the limit on a record boundary. A record without an end shows that it did
            # not, and dropping the record would lose it: the next batch begins after it.
            if not self._done and self._position > self._start:
                problem = f"has no end before the range's end, offset {limit}"
                if self._framing.anchored:
                    problem = (
                        f"has no end before its piece's end, offset {limit}. Framing {self._framing.name} is "
                        "read in pieces that are cut where appends begin, so each append must contain whole "
                        "records. Raise maxBytesPerPartition, and omit minPartitions, to read the range "
                        "in one piece"
                    )
                raise RecordError(journal, self._start, problem)
        self._done = True

    def _skip(self, content: bytes) -> bytes:
        """Drop the bytes before the first record, and return the rest."""
        # These bytes belong to the last record of the previous piece, or to a record that a jump has cut.
        boundary = self._framing.first_boundary(content, self._position)
        self._restart_at(self._position + (len(content) if boundary is None else boundary))
        self._skipping = boundary is None
        if boundary is None and self._resync_from is not None:
            # This piece reports the rest of a cut record even past the piece's end, because the jump ends in
            # this piece and no other one sees it.
            return b""
        # The rest of a cut record ends with the first record end after the hole.
        self._report_rest()
        # If one record covers the whole piece, the piece owns none: another piece has its first byte.
        self._done = self._position >= self.piece.end
        return b"" if boundary is None or self._done else content[boundary:]

    def _jump(self, target: int) -> Iterator[Block]:
        """Continue at the target: yield whole records, and drop the record that is cut."""
        piece, expected = self.piece, self._position
        if self._fail_on_data_loss:
            raise DataLossError(piece.journal, expected, target)
        # Finish everything before the hole first. Bytes after an earlier hole are a rest if no record ended
        # in them. The whole records are rows. The framing must know that no more bytes will complete the last
        # record.
        self._report_rest()
        yield from self._flush(last=True)
        if self._done:
            return  # The record that the jump cuts belongs to the next piece.
        # While skipping, the cut record belongs to another piece, which reports it.
        cut_bytes = 0 if self._skipping else expected - self._start
        # Each piece reports only the missing bytes that lie in it, so that the reports of all pieces add up.
        begin, end = (min(max(at, piece.begin), piece.end) for at in (expected, target))
        # A jump that lies outside the piece and cuts none of its records concerns other pieces only.
        if cut_bytes or begin < end:
            self.gaps.append(Gap(piece.journal, begin, end, self._start if cut_bytes else begin, cut_bytes))
        self._restart_at(target)
        self._done = target >= piece.end
        # Anchored framings begin a record where bytes continue. For lines, the caller may know that one
        # begins there: `verify` does for the gaps of a ledger, which end at records.
        self._skipping = self._framing.resyncs and target not in self._records_begin
        # If the jump ends past this piece, the rest belongs to the piece in which it ends.
        self._resync_from = target if self._skipping and not self._done else None

    def _restart_at(self, position: int) -> None:
        """Continue with the record that begins at a position, none of whose bytes has arrived."""
        self._start = self._position = position
        self._unfinished.clear()
        self._schedule_flush(0)

    def _report_rest(self) -> None:
        """Report the bytes since the last jump: no record is known to begin in them."""
        begin, journal = self._resync_from, self.piece.journal
        if begin is not None and begin < self._position:
            self.gaps.append(Gap(journal, begin, self._position, begin, 0, "rest"))
        self._resync_from = None

    def _schedule_flush(self, needs: int) -> None:
        """Decide when to look for records again, rarely enough that no byte is examined many times."""
        # A record may be as long as `maxRecordBytes` allows, and its end may arrive after thousands of
        # chunks.
        waiting = self._position - self._start
        longest = self._max_record_bytes + LOOK_BYTES
        if self._position < self.piece.end:
            # Wait for at least twice as many bytes as last time, so that a long record costs only a constant
            # factor.
            gathered = max(min(self._block_bytes, longest), 2 * waiting, needs)
            self._flush_at = min(self._start + min(gathered, waiting + longest), self.piece.end)
        else:
            # Only the end of the last record is missing, and it is near, so a small step reads little beyond
            # it.
            self._flush_at = self._position + min(max(waiting, LOOK_BYTES // 16), longest)

    def _flush(self, *, last: bool = False) -> Iterator[Block]:
        """Yield the whole records that begin before the piece's end."""
        # While skipping, none of the bytes belongs to a record of this piece.
        if self._skipping or self._position == self._start:
            return
        framing, journal, end = self._framing, self.piece.journal, self.piece.end
        # `_schedule_flush` decides how often: each call joins and searches all waiting bytes again.
        data = b"".join(self._unfinished)
        cut = framing.cut(data, self._start, last=last)
        whole = data if cut.size == len(data) else data[: cut.size]
        headers = (framing.header_bytes, framing.trailer_bytes)
        # The store times of earlier bytes are no longer needed.
        at = bisect_right(self._stored, self._start, key=itemgetter(0)) - 1
        del self._stored[:at]
        # Blocks of bytes that only brokers have carry no store time. This is the usual case in a stream.
        stored: Sequence[tuple[int, int]] = ()
        if self._stored != [(0, 0)]:
            until = bisect_left(self._stored, self._start + len(whole), lo=1, key=itemgetter(0))
            stored = tuple(self._stored[:until])
        block = Block(journal, self._start, whole, cut.starts, cut.ends, *headers, stored)
        # Records that begin at or past the end belong to the next piece. They were read only because this
        # piece's last record had no end yet.
        if self._start + len(whole) > end:
            block = block.rows(0, int(np.searchsorted(block.offsets, end)))

        # Bytes at which a record should begin but none does are an error, or count as skipped. Adjacent runs
        # are joined, so that the result does not depend on the chunks.
        for low, high in cut.skipped:
            skipped_begin, skipped_end = self._start + low, self._start + high
            if self._fail_on_data_loss:
                problem = (
                    f"desync: no record of framing {framing.name} begins in the next {high - low} bytes. "
                    "Set failOnDataLoss=false to skip such bytes"
                )
                raise RecordError(journal, skipped_begin, problem)
            if self.gaps and self.gaps[-1].kind == "desync" and self.gaps[-1].end == skipped_begin:
                skipped_begin = self.gaps.pop().begin
            self.gaps.append(Gap(journal, skipped_begin, skipped_end, skipped_begin, 0, "desync"))

        # The records before an oversized one are still yielded.
        oversized = np.flatnonzero(block.ends - block.starts > self._max_record_bytes)
        if len(oversized):
            stop = int(oversized[0])
            if stop:
                yield block.rows(0, stop)
            raise self._oversized(int(block.offsets[stop]))
        self._start += cut.size
        self._unfinished = [data[cut.size :]]
        self._done = self._start >= end
        if len(block):
            yield block
        # An incomplete record may already be too long, so its end is not awaited.
        longest = self._max_record_bytes + framing.header_bytes
        if not self._done and max(len(data) - cut.size, cut.needs) > longest:
            raise self._oversized(self._start)
        self._schedule_flush(cut.needs)

    def _oversized(self, offset: int) -> RecordError:
        problem = f"oversized record: longer than maxRecordBytes={self._max_record_bytes} allows"
        return RecordError(self.piece.journal, offset, problem)


RAW_SCHEMA = pa.schema([("journal", pa.string()), ("offset", pa.int64()), ("value", pa.binary())])
"""Columns of ``format=raw``, all nullable as in Spark."""


class PieceScan:
    """Iterates over the blocks of a piece's records. Use once, from one thread.

    It keeps one block and at most one unfinished record at a time. The read is open only during the
    iteration; leaving the loop early closes it. A piece with content needs no client.
    """

    def __init__(
        self,
        client: JournalOpener | None,
        piece: Piece,
        *,
        fail_on_data_loss: bool,
        max_record_bytes: int = MAX_RECORD_BYTES,
        block_bytes: int = BLOCK_BYTES,
        framing: RecordFraming = LINES,
        records_begin: Collection[int] = (),
    ) -> None:
        self._client = client
        self._cutter = Cutter(
            piece,
            fail_on_data_loss=fail_on_data_loss,
            max_record_bytes=max_record_bytes,
            block_bytes=block_bytes,
            framing=framing,
            records_begin=records_begin,
        )

    def __repr__(self) -> str:
        return f"PieceScan({self._cutter!r})"

    @property
    def gaps(self) -> Sequence[Gap]:
        """Gaps so far; always empty if data loss is an error."""
        return tuple(self._cutter.gaps)

    def __iter__(self) -> Iterator[Block]:
        piece, cutter = self._cutter.piece, self._cutter
        if cutter.done():
            return
        # The planner had these bytes in memory when it searched the batch's end, so they have no holes, and
        # no store time: a query of `_fragment_mod_time` gets no content.
        if piece.content is not None:
            yield from cutter.feed(piece.begin, piece.content)
            yield from cutter.finish(piece.end)
            return
        assert self._client is not None
        # Read up to the limit, not to the end, because the last record may end anywhere up to there. The loop
        # leaves the read as soon as that record is complete.
        with self._client.read(piece.journal, offset=piece.read_from, end_offset=piece.limit) as reader:
            for chunk in chunks_of(self._client, piece.journal, reader, piece.limit):
                yield from cutter.feed(chunk.offset, chunk.content, chunk.mod_time)
                if cutter.done():
                    return
            yield from cutter.finish(resume_offset(reader))


def raw_record_batches(
    blocks: Iterable[Block],
    schema: pa.Schema = RAW_SCHEMA,
    *,
    framing: RecordFraming = LINES,
    labels: Labels = (),
    max_rows: int = MAX_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield record batches with the raw columns and metadata columns of a schema.

    A record batch has the rows of one block, or of a part of it if there are more than ``max_rows``. The
    values are the records' bytes without their framing.
    """
    build = {"journal": Block.journal_array, "offset": Block.offset_array, "value": framing.values}
    # Spark keeps one record batch of each task in memory, and a block of empty records has a million rows.
    for block in bounded(blocks, max_rows):
        arrays = [
            build[column.name](block) if column.name in build else metadata_column(block, column, labels)
            for column in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
