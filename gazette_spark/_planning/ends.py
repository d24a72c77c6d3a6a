"""Decides the start and end of the ranges that a user chooses, and the end of a batch within its limits.

Only the bytes show where a journal's thousandth record ends. So with a limit of records the driver reads the
batch's bytes itself, in addition to the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from gazette_spark._formats.framing import Block, RecordFraming
from gazette_spark._options.query_range import EARLIEST, LATEST
from gazette_spark._planning.admission import Backlog
from gazette_spark._planning.boundary import ReadWindow, limited_end, window_of, window_reader
from gazette_spark._planning.cutter import Cutter
from gazette_spark._planning.identities import JournalIdentities
from gazette_spark._planning.pieces import OffsetRange, Piece
from gazette_spark._planning.reads import JournalOpener, chunks_of, resume_offset
from gazette_spark._planning.selection import QueryJournals
from gazette_spark._planning.view import JournalView
from gazette_spark.errors import DataLossError, GazetteError, OffsetError
from gazette_spark.offsets import FINGERPRINT_BYTES, JournalOffsets

log = logging.getLogger(__name__)

RESTORE = (
    ". The checkpoint was edited, belongs to other journals, or is of a run with another framing: restore "
    "it, set that framing again, or start with a new one and startingOffsets"
)
"""Advice about an invalid position."""


class RangeResolver:
    """Decides the start and the end that a user chooses. For one thread."""

    def __init__(self, view: JournalView, selection: QueryJournals, identities: JournalIdentities) -> None:
        self._view = view
        self._selection = selection
        self._identities = identities

    def __repr__(self) -> str:
        return f"RangeResolver({self._view.options.selection})"

    def initial(self) -> JournalOffsets:
        """Return the start of a new query."""
        start = self._starts(self._selection.chosen())
        # Nothing has been read, so there are no bytes to recognise the journals by, only their creations.
        prints = self._identities.pinned(start.read_through, self._selection.created)
        return replace(start, fingerprints=prints)

    def added(self, journals: Sequence[str]) -> Mapping[str, int]:
        """Return where a running query begins in journals that its position lacks."""
        # A journal is missing from the position of a query that selected fewer journals when it started, even
        # if an earlier query wrote rows of it. Its first byte would overlap the table.
        if journals and self._view.options.resume_offsets is not None:
            return self._starts(journals).read_through
        return self._view.map_journals(self._view.client.first_offset, journals)

    def batch(self) -> tuple[JournalOffsets, JournalOffsets]:
        """Return the start and the end of a batch query in each journal."""
        view, options = self._view, self._view.options
        journals = self._selection.chosen()
        start = self._starts(journals)
        # These heads are taken after those of the starts, and heads grow: a range from the write head to the
        # write head never ends before it begins.
        heads = self._heads(journals, start.read_through)

        def last_of(journal: str) -> int:
            head, chosen = heads[journal], options.ending_offsets.of(journal)
            if options.ending_timestamp is not None:
                stored = view.offset_at(journal, options.ending_timestamp)
                # A fragment may have been appended and listed after its journal's head was read.
                return head if stored is None else min(stored, head)
            if chosen > head:
                raise OffsetError(f"endingOffsets is past the write head {head}", journal, chosen)
            return head if chosen == LATEST else chosen

        # Decide the offsets first and find whole records later, because whether a range is empty must be
        # known before its end is searched.
        lasts = view.map_journals(last_of, journals)
        begins = dict(start.read_through)
        for journal, begin in start.read_through.items():
            last, chosen = lasts[journal], options.starting_offsets.of(journal)
            if begin <= last:
                continue
            # The start has moved up to the first available byte. If the chosen range lies before that, all of
            # its bytes are gone and it is empty. Any other start past the end contradicts the options.
            if options.timestamp_of(journal) is not None or not 0 <= chosen <= last:
                option = "endingOffsets" if options.ending_timestamp is None else "endingTimestamp"
                raise OffsetError(f"{option} is before the start at {begin}", journal, last)
            begins[journal] = last

        def end_of(journal: str) -> int:
            # An end that an option names may be inside a record, and the write head may be inside one that is
            # half written. Either record is left out: half of it must not become a row.
            return view.whole_records(journal, begins[journal], lasts[journal], write_head=heads[journal])

        return replace(start, read_through=begins), JournalOffsets(view.map_journals(end_of, journals))

    def check_resumed(self, ranges: Sequence[OffsetRange]) -> None:
        """Check that records begin at the offsets of a query checkpoint, as far as the bytes show it.

        The checkpoint may have been edited, or belong to another cluster. Half a record would then become a
        row.

        Raises:
            OffsetError: no record begins at an offset. The error names the first such journal.
        """

        def check(journal: str) -> None:
            # The bytes before the first available one are gone, so they cannot show whether a record begins
            # there. If that is a loss, the read itself reports it.
            resumed = resumed_ranges[journal]
            if resumed.begin > self._view.client.first_offset(journal):
                what = "the query checkpoint's position"
                self._check_begin(journal, resumed.begin, resumed.end, what, RESTORE)

        # A record always begins at offset 0.
        resumed_ranges = {span.journal: span for span in ranges if span.begin}
        self._view.map_journals(check, resumed_ranges)

    def _heads(self, journals: Sequence[str], firsts: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return the journals' write heads. A head below an offset in the options is confirmed first."""
        options = self._view.options
        resumed = options.resume_offsets.named if options.resume_offsets else {}
        # These offsets were write heads once, as the end of a table or of another query. A replica that has
        # just joined a journal reports a lower head, and the offset would look like the user's mistake.
        named = {
            journal: max(
                options.starting_offsets.of(journal),
                options.ending_offsets.of(journal),
                resumed.get(journal, EARLIEST),
            )
            for journal in journals
        }
        return self._view.final_heads(journals, named, firsts)

    def _starts(self, journals: Sequence[str]) -> JournalOffsets:
        """Return where a query begins in each journal: at a table's end, at a time, or at an offset."""
        view, options = self._view, self._view.options
        resumed, choice = options.resume_offsets, options.starting_offsets
        heads = self._heads(journals)

        def start_of(journal: str) -> int:
            head = heads[journal]
            timestamp_ms = options.timestamp_of(journal)
            if resumed is None and timestamp_ms is not None:
                stored = view.offset_at(journal, timestamp_ms)
                # Spark's Kafka source also treats this as an error: a start at the head would silently skip
                # the records that the user expects to have been stored since that time.
                if stored is None and options.starting_offsets_by_timestamp_strategy == "error":
                    named = journal in options.starting_offsets_by_timestamp
                    option = "startingOffsetsByTimestamp" if named else "startingTimestamp"
                    raise OffsetError(
                        f"nothing was stored at {option} {timestamp_ms} or later; "
                        "set startingOffsetsByTimestampStrategy=latest to start at the write head",
                        journal,
                        head,
                    )
                # A fragment may begin inside a record. That record is read from its start, because its end
                # was appended at the requested time or later.
                at = head if stored is None else stored
                low = min(view.client.first_offset(journal), at)
                # If bytes before the offset are missing, and that is not an error, the query starts in the
                # hole and reports it.
                write_head = None if options.fail_on_data_loss else head
                return view.whole_records(journal, low, at, skip_holes=True, write_head=write_head)
            chosen, option = choice.of(journal), "startingOffsets"
            # A table's end overrides every option about the start: rows before it are in the table, and bytes
            # after it that were skipped would be a gap in the ledger.
            if resumed is not None:
                chosen, option = resumed.of(journal), "resumeOffsets (the end of the table)"
            if chosen > head:
                raise OffsetError(f"{option} is past the write head {head}", journal, chosen)
            first = view.client.first_offset(journal)
            if chosen == EARLIEST:
                return first
            if chosen == LATEST:
                # The write head may be inside a record that is half written.
                return view.whole_records(journal, first, head)
            if chosen < first:
                if options.fail_on_data_loss:
                    raise DataLossError(journal, chosen, first)
                log.warning("bytes are gone, skipped journal=%s begin=%d end=%d", journal, chosen, first)
            if chosen > first:
                self._check_begin(journal, chosen, head, option)
            return max(chosen, first)

        starts = view.map_journals(start_of, journals)
        # A head below the recorded end has raised an error above, unless the user chose a different start.
        self._identities.take((resumed or choice).fingerprints)
        self._identities.compare_first(starts, self._selection.created, heads)
        # Stores report no Etcd revision. Without one, nothing shows whether a head or a creation is older.
        if not (revision := self._selection.revision):
            return JournalOffsets(starts)
        # A journal that is not listed here was read to its head: see `JournalOffsets.head_seen`. This keeps
        # positions of thousands of journals short.
        behind = {journal: head for journal, head in heads.items() if head > starts[journal]}
        return JournalOffsets(starts, revision=revision, heads=behind)

    def _check_begin(self, journal: str, offset: int, end: int, what: str, way_out: str = "") -> None:
        """Check that a record may begin at an offset. Otherwise half a record would become a row."""
        # Missing bytes prove nothing about the record, so they are not an error here.
        window = window_reader(self._view.client, journal, fail_on_data_loss=False)
        framing = self._view.framing(journal)
        before, after = b"", b""
        # A frame begins with a magic word. For other framings, the byte before shows whether the last record
        # ended. Both conditions are necessary but not sufficient: a frame may contain frames, and a quoted
        # CSV field may contain newlines.
        if framing.header_bytes:
            after = window(offset, min(offset + framing.header_bytes, end))
        elif framing.trailer_bytes:
            before = window(offset - 1, offset)
        if not framing.may_begin(before, after):
            problem = f"{what} is in the middle of a record of framing {framing.name}"
            with suppress(GazetteError):  # The record may be too long to find its start.
                first = self._view.client.first_offset(journal)
                problem += f", which begins at offset {self._view.whole_records(journal, first, offset)}"
            raise OffsetError(problem + way_out, journal, offset)


def range_end(
    view: JournalView,
    journal: str,
    backlog: Backlog,
    *,
    admitted: int,
    max_records: int,
    content: bytes | None,
) -> tuple[int, bytes]:
    """Return where a batch ends in a journal, and bytes before that end for the journal's fingerprint.

    Args:
        view: The journals of the query.
        journal: The journal's name.
        backlog: The bytes that have not been read yet.
        admitted: Offset up to which the batch may read; not necessarily a record boundary.
        max_records: Number of records that the batch may read.
        content: All bytes of the backlog, if the planner has them.

    Returns:
        The end of a record, or the backlog's start if there is no whole record yet; and those bytes of a
        fingerprint before it that the search has read anyway.
    """
    # The bytes before the end become the journal's fingerprint. The search reads them anyway, so they are
    # kept instead of being read again.
    begin, options, framing = backlog.begin, view.options, view.framing(journal)
    window = RecordedWindow(view.window(journal))
    if content is not None:
        window = RecordedWindow(window_of(content, begin, window))
    # A record has at least one byte, so a limit of at least as many records admits everything. A smaller one
    # moves the end to that record's end, or leaves it if there are fewer records.
    if max_records < admitted - begin:
        if content is not None:
            admitted = counted_end_of(content[: admitted - begin], begin, max_records, framing)
        else:
            admitted = counted_end(
                view.client,
                Piece(journal, begin, admitted, admitted, starts_on_record=True, framing=framing.name),
                max_records,
                fail_on_data_loss=options.fail_on_data_loss,
                max_record_bytes=options.max_record_bytes,
                framing=framing,
            )
    # The bytes that are admitted now may still end inside a record, or be fewer than those of the first
    # record.
    end = limited_end(
        window, begin, admitted, backlog.head, options.max_record_bytes, journal=journal, framing=framing
    )
    return end, window.before(end)


class RecordedWindow:
    """A ``read_window`` that keeps the bytes that a search for the end of a batch has read."""

    def __init__(self, read_window: ReadWindow) -> None:
        self._read_window = read_window
        self._windows: list[tuple[int, bytes]] = []

    def __call__(self, begin: int, end: int) -> bytes:
        """Read ``[begin, end)``, or less; see :mod:`gazette_spark._planning.boundary`."""
        content = self._read_window(begin, end)
        # A short answer has the bytes up to the end of its window: those before them are missing.
        self._windows.append((end - len(content), content))
        return content

    def before(self, end: int) -> bytes:
        """Return the longest run of bytes before an offset in one window, at most a fingerprint's."""
        # Only bytes of one window are known to follow each other.
        parts = (
            window[max(0, end - begin - FINGERPRINT_BYTES) : end - begin]
            for begin, window in self._windows
            if begin < end <= begin + len(window)
        )
        return max(parts, key=len, default=b"")


def counted_end(
    client: JournalOpener,
    piece: Piece,
    max_records: int,
    *,
    fail_on_data_loss: bool,
    max_record_bytes: int,
    framing: RecordFraming,
) -> int:
    """Return where record number ``max_records`` of a piece ends, or the piece's end if it has fewer.

    Raises:
        DataLossError: bytes before that are missing, under ``fail_on_data_loss``.
        RecordError: a record before that is longer than ``max_record_bytes``, or no record begins where one
            should.
    """
    # The cutter of the tasks counts, so that driver and tasks cannot disagree about what a record is.
    cutter = Cutter(
        piece, fail_on_data_loss=fail_on_data_loss, max_record_bytes=max_record_bytes, framing=framing
    )

    def blocks() -> Iterator[Block]:
        position = piece.begin
        with client.read(piece.journal, offset=piece.begin, end_offset=piece.end) as reader:
            for chunk in chunks_of(client, piece.journal, reader, piece.end):
                yield from cutter.feed(chunk.offset, chunk.content)
                position = chunk.offset + len(chunk.content)
            # The last record may have no end yet, and is then not part of the batch. Finishing the cutter
            # would raise an error, so it is finished only if bytes are missing up to the end.
            if (resumed := resume_offset(reader)) > position:
                yield from cutter.finish(resumed)

    remaining = max_records
    # Returning early drops the iterator, which closes the read: the driver reads no further than needed.
    for block in blocks():
        if len(block) >= remaining:
            return block.end_offset(remaining - 1)
        remaining -= len(block)
    return piece.end


def counted_end_of(content: bytes, begin: int, max_records: int, framing: RecordFraming) -> int:
    """Return where record number ``max_records`` of some content ends, or its end if it has fewer."""
    ends = framing.cut(content, begin).ends
    # The content may end inside a record. The search that follows moves the end back.
    if len(ends) < max_records:
        return begin + len(content)
    return begin + int(ends[max_records - 1]) + framing.trailer_bytes
