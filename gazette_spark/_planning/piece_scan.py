"""A piece of a journal to blocks of whole records, and blocks to the columns ``journal, offset, value``.

::

    scan = PieceScan(client, piece, fail_on_data_loss=True)
    yield from raw_record_batches(scan)
    report(scan.gaps)  # Complete once the iteration is over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa

from gazette_spark._formats.framing import MAX_ROWS, Block, Framing, bounded
from gazette_spark._formats.lines import LINES
from gazette_spark._formats.metadata import Labels, metadata_column
from gazette_spark._planning.blocks import BLOCK_BYTES, MAX_RECORD_BYTES, Cutter, Gap
from gazette_spark._planning.ranges import Piece
from gazette_spark._planning.reads import Journals, landed

RAW_SCHEMA = pa.schema([("journal", pa.string()), ("offset", pa.int64()), ("value", pa.binary())])
"""Columns of ``format=raw``, all of them nullable as in Spark."""


class PieceScan:
    """Iterates over a piece's records, block by block. Use once, from one thread.

    Holds one block and at most one unfinished record at a time. The read is open only while the
    iteration runs; leaving the loop early closes it. A piece that brings its content needs no client.
    """

    def __init__(
        self,
        client: Journals | None,
        piece: Piece,
        *,
        fail_on_data_loss: bool,
        max_record_bytes: int = MAX_RECORD_BYTES,
        block_bytes: int = BLOCK_BYTES,
        framing: Framing = LINES,
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
        """Bytes found missing so far; always empty when data loss is an error."""
        return tuple(self._cutter.gaps)

    def __iter__(self) -> Iterator[Block]:
        piece, cutter = self._cutter.piece, self._cutter
        if cutter.done():
            return
        if piece.content is not None:
            yield from cutter.feed(piece.begin, piece.content)
            yield from cutter.finish(piece.end)
            return
        assert self._client is not None
        with self._client.read(piece.journal, offset=piece.read_from, end_offset=piece.limit) as reader:
            for chunk in reader:
                yield from cutter.feed(chunk.offset, chunk.content, chunk.mod_time)
                if cutter.done():
                    return
            yield from cutter.finish(landed(reader))


def raw_schema(columns: Sequence[str] = tuple(RAW_SCHEMA.names)) -> pa.Schema:
    """Return the raw schema with these columns, in this order.

    Raises:
        ValueError: a name is not one of the raw columns.
    """
    unknown = sorted(set(columns) - set(RAW_SCHEMA.names))
    if unknown:
        msg = f"format=raw has no columns {unknown}, only {RAW_SCHEMA.names}"
        raise ValueError(msg)
    return pa.schema([RAW_SCHEMA.field(name) for name in columns])


def raw_record_batches(
    blocks: Iterable[Block],
    columns: Sequence[str] | pa.Schema = tuple(RAW_SCHEMA.names),
    *,
    framing: Framing = LINES,
    labels: Labels = (),
    max_rows: int = MAX_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Build the raw columns of blocks of a framing; only those asked for, in the order asked for.

    A schema may ask for metadata columns, too.

    A record batch holds the rows of one block or, when there are more than ``max_rows``, of a part
    of one. The values are the journal's bytes less what frames the records.
    """
    schema = columns if isinstance(columns, pa.Schema) else raw_schema(columns)
    build = {"journal": Block.journal_array, "offset": Block.offset_array, "value": framing.values}
    for block in bounded(blocks, max_rows):
        arrays = [
            build[column.name](block) if column.name in build else metadata_column(block, column, labels)
            for column in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
