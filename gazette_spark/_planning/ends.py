"""Where ranges begin and end: the ends that a user chooses, and the end after a number of records.

Nothing but the bytes shows where a journal's thousandth record ends. So a limit of records costs the driver
one more look at the bytes that a batch reads, and at no others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gazette_spark._formats.framing import Block, Framing
from gazette_spark._planning.boundary import window_reader
from gazette_spark._planning.cutter import Cutter
from gazette_spark._planning.identities import JournalIdentities
from gazette_spark._planning.pieces import OffsetRange, Piece
from gazette_spark._planning.reads import JournalOpener, resume_offset
from gazette_spark._planning.selection import QueryJournals
from gazette_spark._planning.view import JournalView
from gazette_spark.errors import DataLossError, OffsetError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.options.query_range import EARLIEST, LATEST

log = logging.getLogger(__name__)

RESTORE = (
    ". The checkpoint was edited, or is that of other journals: restore it, or start with a new one and "
    "startingOffsets"
)
"""Advice about an invalid position."""


class RangeResolver:
    """Decides the two ends a user chooses. To be used by one thread."""

    def __init__(self, view: JournalView, selection: QueryJournals, identities: JournalIdentities) -> None:
        self._view = view
        self._selection = selection
        self._identities = identities

    def __repr__(self) -> str:
        return f"RangeResolver({self._view.options.selection})"

    def initial(self) -> JournalOffsets:
        """Return the start of a new query."""
        start = self._starts(self._selection.chosen())
        prints = self._identities.pinned(start.read_through, self._selection.created)
        return replace(start, fingerprints=prints)

    def batch(self) -> tuple[JournalOffsets, JournalOffsets]:
        """Return start and end of a batch query in each of its journals."""
        journals = self._selection.chosen()
        start = self._starts(journals)
        heads = self._heads(journals, is_listed=True)
        lasts = self._view.map_journals(lambda journal: self._last(journal, heads[journal]), journals)
        option = "endingOffsets" if self._view.options.ending_timestamp is None else "endingTimestamp"
        begins = dict(start.read_through)
        for journal, begin in start.read_through.items():
            if lasts[journal] < begin:
                if not self._starts_by(journal, lasts[journal]):
                    raise OffsetError(f"{option} lies before the start at {begin}", journal, lasts[journal])
                begins[journal] = lasts[journal]  # All bytes of the range are gone.

        def end_of(journal: str) -> int:
            return self._view.whole_records(
                journal, begins[journal], lasts[journal], write_head=heads[journal]
            )

        ends = self._view.map_journals(end_of, journals)
        return replace(start, read_through=begins), JournalOffsets(ends)

    def _heads(self, journals: Sequence[str], *, is_listed: bool = False) -> dict[str, int]:
        """Return the journals' write heads; one below an offset in the options is confirmed."""
        options = self._view.options
        resumed = options.resume_offsets.named if options.resume_offsets else {}
        named = {
            journal: max(
                options.starting_offsets.of(journal),
                options.ending_offsets.of(journal),
                resumed.get(journal, EARLIEST),
            )
            for journal in journals
        }
        return self._view.final_heads(journals, named, is_listed=is_listed)

    def _starts_by(self, journal: str, offset: int) -> bool:
        """Tell whether the options name an offset up to this one: the start may lie behind what is gone."""
        options = self._view.options
        return options.timestamp_of(journal) is None and 0 <= options.starting_offsets.of(journal) <= offset

    def _starts(self, journals: Sequence[str]) -> JournalOffsets:
        options = self._view.options
        choice, resumed = options.starting_offsets, options.resume_offsets
        heads, created = self._heads(journals), self._selection.created

        def start_of(journal: str) -> int:
            if resumed is not None:
                chosen, option = resumed.of(journal), "resumeOffsets (the end of the table)"
                return self._start_of(journal, chosen, heads[journal], option)
            if (timestamp_ms := options.timestamp_of(journal)) is not None:
                return self._start_at(journal, timestamp_ms, heads[journal])
            return self._start_of(journal, choice.of(journal), heads[journal])

        starts = self._view.map_journals(start_of, journals)
        # A head before the recorded end is an error above, unless the offsets name another start by hand.
        self._identities.take((resumed or choice).fingerprints)
        self._identities.compare_first(starts, created, heads)
        if not (revision := self._selection.revision):
            return JournalOffsets(starts)
        behind = {journal: head for journal, head in heads.items() if head > starts[journal]}
        return JournalOffsets(starts, revision=revision, heads=behind)

    def _start_at(self, journal: str, timestamp_ms: int, head: int) -> int:
        found = self._view.offset_at(journal, timestamp_ms)
        if found is None and self._view.options.starting_offsets_by_timestamp_strategy == "error":
            named = journal in self._view.options.starting_offsets_by_timestamp
            option = "startingOffsetsByTimestamp" if named else "startingTimestamp"
            raise OffsetError(
                f"nothing was stored at {option} {timestamp_ms} or later; "
                "set startingOffsetsByTimestampStrategy=latest to start at its write head",
                journal,
                head,
            )
        # A fragment may begin inside a record: that is read from its begin, as its end was appended later.
        first = self._view.client.first_offset(journal)
        place = head if found is None else found
        # Where bytes are gone before it, and that is no error, the query starts in the hole and notices.
        write_head = None if self._view.options.fail_on_data_loss else head
        return self._view.whole_records(
            journal, min(first, place), place, skip_holes=True, write_head=write_head
        )

    def _start_of(self, journal: str, chosen: int, head: int, option: str = "startingOffsets") -> int:
        if chosen > head:
            raise OffsetError(f"{option} lies past the write head {head}", journal, chosen)
        first = self._view.client.first_offset(journal)
        if chosen == EARLIEST:
            return first
        if chosen == LATEST:
            # The write head may lie inside a record that is half written.
            return self._view.whole_records(journal, first, head)
        if chosen < first:
            if self._view.options.fail_on_data_loss:
                raise DataLossError(journal, chosen, first)
            log.warning("bytes are gone, skipped journal=%s begin=%d end=%d", journal, chosen, first)
        if chosen > first:
            self._check_begin(journal, chosen, head, option)
        return max(chosen, first)

    def check_resumed(self, ranges: Sequence[OffsetRange]) -> None:
        """Check that records begin at the offsets of a query checkpoint, as far as the bytes show it.

        The checkpoint may have been edited, or belong to another cluster. Then half a record would be a row.

        Raises:
            OffsetError: naming the first journal where no record begins.
        """

        def check(journal: str) -> None:
            each = begins[journal]
            if each.begin > self._view.client.first_offset(journal):
                self._check_begin(journal, each.begin, each.end, "the query checkpoint's position", RESTORE)

        begins = {each.journal: each for each in ranges if each.begin}
        self._view.map_journals(check, begins)

    def _check_begin(self, journal: str, offset: int, end: int, what: str, way_out: str = "") -> None:
        """Check that a record begins at an offset; else half a record would be a row."""
        window = window_reader(self._view.client, journal, fail_on_data_loss=False)
        framing = self._view.framing(journal)
        before, after = b"", b""
        if framing.header_bytes:
            after = window(offset, min(offset + framing.header_bytes, end))
        elif framing.trailer_bytes:
            before = window(offset - 1, offset)
        if not framing.may_begin(before, after):
            where = "at it begins" if framing.header_bytes else "before it ends"
            problem = f"{what} lies inside a record: what stands {where} none of framing {framing.name}"
            raise OffsetError(problem + way_out, journal, offset)

    def _last(self, journal: str, head: int) -> int:
        timestamp_ms = self._view.options.ending_timestamp
        if timestamp_ms is not None:
            found = self._view.offset_at(journal, timestamp_ms)
            return head if found is None else min(found, head)
        chosen = self._view.options.ending_offsets.of(journal)
        if chosen > head:
            raise OffsetError(f"endingOffsets lies past the write head {head}", journal, chosen)
        return head if chosen == LATEST else chosen


def counted_end(
    client: JournalOpener,
    piece: Piece,
    max_records: int,
    *,
    fail_on_data_loss: bool,
    max_record_bytes: int,
    framing: Framing,
) -> int:
    """Return where record number ``max_records`` of a piece ends; the piece's end if it has fewer whole ones.

    Raises:
        DataLossError: bytes before that are missing, under ``fail_on_data_loss``.
        RecordError: a record before that is longer than ``max_record_bytes``, or bytes before it begin none.
    """
    cutter = Cutter(
        piece, fail_on_data_loss=fail_on_data_loss, max_record_bytes=max_record_bytes, framing=framing
    )
    left = max_records
    for block in _blocks(client, cutter):
        if len(block) >= left:
            return block.end_offset(left - 1)
        left -= len(block)
    return piece.end


def counted_end_of(content: bytes, begin: int, max_records: int, framing: Framing) -> int:
    """Return where record number ``max_records`` ends in bytes that are at hand; their end if it does not."""
    ends = framing.cut(content, begin).ends
    if len(ends) < max_records:
        return begin + len(content)
    return begin + int(ends[max_records - 1]) + framing.trailer_bytes


def _blocks(client: JournalOpener, cutter: Cutter) -> Iterator[Block]:
    piece = cutter.piece
    at = piece.begin
    with client.read(piece.journal, offset=piece.begin, end_offset=piece.end) as reader:
        for chunk in reader:
            yield from cutter.feed(chunk.offset, chunk.content)
            at = chunk.offset + len(chunk.content)
        if resume_offset(reader) > at:
            yield from cutter.finish(resume_offset(reader))
    # A record without an end is none of this batch, so the cutter is not finished elsewhere.
