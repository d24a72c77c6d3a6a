"""The end of a batch by its number of records: the records are read and counted, as a task reads them.

Nothing but the bytes tells where a journal's thousandth record ends. So a limit of records costs the driver
one more look at the bytes that a batch reads, and at no others.
"""

from __future__ import annotations

from collections.abc import Iterator

from gazette_spark._formats.framing import Block, Framing
from gazette_spark._planning.blocks import Cutter
from gazette_spark._planning.ranges import Piece
from gazette_spark._planning.reads import Journals, landed


def counted_end(
    client: Journals,
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


def _blocks(client: Journals, cutter: Cutter) -> Iterator[Block]:
    piece = cutter.piece
    at = piece.begin
    with client.read(piece.journal, offset=piece.begin, end_offset=piece.end) as reader:
        for chunk in reader:
            yield from cutter.feed(chunk.offset, chunk.content)
            at = chunk.offset + len(chunk.content)
        if landed(reader) > at:
            yield from cutter.finish(landed(reader))
    # A record without an end is none of this batch, so the cutter is not finished elsewhere.
