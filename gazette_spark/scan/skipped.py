"""What a batch will skip: bytes of its range that are gone when it is planned.

Fragments that are listed leave holes, and a read of each hole tells what becomes of it: a broker jumps over
what is gone, and waits where it takes the bytes for still to come. So what is found here is what a task finds
that reads the same bytes, unless more of them go in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from gazette_spark.scan.conditions import Spans, joined, outside
from gazette_spark.scan.reads import Journals, landed


def skipped_spans(
    client: Journals, journal: str, fragments: Iterable[tuple[int, int]], begin: int, end: int
) -> Spans:
    """Return the bytes of ``[begin, end)`` that cannot be read any more.

    Args:
        client: What reads them.
        journal: Its name.
        fragments: Spans of the journal's fragments, in any order; they may overlap.
        begin: First byte of the range.
        end: Byte after its last.

    Raises:
        OffsetNotYetAvailableError: a broker waits for bytes of a hole for longer than a read may take.
    """
    holes = outside(joined(fragments), begin, end)
    return joined(span for low, high in holes for span in _missing(client, journal, low, high))


def _missing(client: Journals, journal: str, begin: int, end: int) -> Spans:
    found, at = [], begin
    with client.read(journal, offset=begin, end_offset=end) as reader:
        for chunk in reader:
            if chunk.offset > at:
                found.append((at, chunk.offset))
            at = chunk.offset + len(chunk.content)
        if landed(reader) > at:
            found.append((at, min(landed(reader), end)))
    return found
