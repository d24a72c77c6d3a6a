"""The bytes that a batch will skip: those of its range that are missing when it is planned.

Listed fragments leave holes, and a read decides about each hole: a broker jumps over missing bytes, and waits
for bytes that it still expects. So a task that reads the same bytes finds the same gaps, unless more bytes
are deleted in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from gazette_spark._planning.reads import Journals, landed
from gazette_spark.protocol.spans import Spans, joined, outside


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
