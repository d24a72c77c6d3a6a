"""The gaps in the range of a batch query: bytes that no fragment has any more."""

from __future__ import annotations

from gazette_spark._planning.fragment_times import offset_at
from gazette_spark._planning.identities import JournalIdentities
from gazette_spark._planning.listings import AskedJournals, selector_of
from gazette_spark._planning.reads import JournalSource
from gazette_spark._planning.selection import Selection
from gazette_spark._planning.view import JournalView
from gazette_spark.client._read.gaps import FragmentGap, gaps_between
from gazette_spark.errors import OffsetError
from gazette_spark.options.query_range import EARLIEST, LATEST
from gazette_spark.options.source import SourceOptions
from gazette_spark.protocol.fragments import Fragment


def gaps_of_query(client: JournalSource, options: SourceOptions) -> list[FragmentGap]:
    """Return the gaps in a batch query's range, by journal and offset.

    The options give the range, byte by byte. It may begin before the first available byte, in a gap, and need
    not begin or end with a record.

    Raises:
        OffsetError: a journal's range is past its write head, or ends before it begins.
    """
    view = JournalView(client, options)
    journals = Selection(view, AskedJournals(client, selector_of(options)), JournalIdentities(view)).chosen()
    # The heads first: bytes appended meanwhile are listed, but past the end of the checked range.
    named = {
        journal: max(options.starting_offsets.of(journal), options.ending_offsets.of(journal))
        for journal in journals
    }
    heads = view.final_heads(journals, named)
    listed = view.each(view.fragments, journals)
    found: list[FragmentGap] = []
    for journal in journals:
        begin, end = byte_range(journal, listed[journal], heads[journal], options)
        found += gaps_between(journal, listed[journal], begin, end)
    return found


def byte_range(journal: str, fragments: list[Fragment], head: int, options: SourceOptions) -> tuple[int, int]:
    """Return begin and end of a batch query in a journal, records aside."""
    begin, end = options.starting_offsets.of(journal), options.ending_offsets.of(journal)
    if (timestamp_ms := options.timestamp_of(journal)) is not None:
        stored = offset_at(fragments, timestamp_ms)
        begin = head if stored is None else stored
    elif begin == EARLIEST:
        begin = min((each.begin for each in fragments), default=head)
    if options.ending_timestamp is not None:
        stored = offset_at(fragments, options.ending_timestamp)
        end = head if stored is None else min(stored, head)
    elif end == LATEST:
        end = head
    for option, offset in (("startingOffsets", begin), ("endingOffsets", end)):
        if offset > head:
            raise OffsetError(f"{option} lies past the write head {head}", journal, offset)
    if end < begin:
        raise OffsetError(f"endingOffsets lies before the start at {begin}", journal, end)
    return begin, end
