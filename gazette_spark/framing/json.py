"""Records of JSON to the user's columns: one row from each record, from that record alone.

The fast half (``framing.json_fast``) gives a whole block to ``pyarrow.json``. In a block that fails, the
records that look wrong are taken out, or else it is halved until what fails is small; those go through
the exact half (``framing.json_exact``), record by record. Both halves give the same row where both accept
a record, and a record that only the fast half accepts is given to it alone: a row never depends on its
neighbours.

Where this differs from Spark's own JSON reader, on purpose:

- An empty record is malformed (Spark skips empty lines of a file), so rows and records count the same.
- A record is one object. An array at the top is malformed (Spark: several rows), so is anything after
  the object's end (Spark ignores it).
- Timestamps without a zone are UTC (Spark: the session's zone). Zone names are not read. Years have
  four digits. A zone in a value for TIMESTAMP_NTZ is applied, not refused.
- Invalid UTF-8 is malformed; ``columnNameOfCorruptRecord`` then shows it with U+FFFD.
- A value that does not fit becomes null where it stands, in arrays, maps and structs too, and the rest
  of the row is kept (Spark: mostly so).
- Of a repeated name in an object the last counts, in maps too.
- Nesting below a field is limited to 500 levels, unless no column reads it; Spark's parser limits the
  length of numbers and strings too.
- ``_journal``, ``_offset`` and the corrupt record's column never come from the record's own fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gazette_spark.errors import OptionError, RecordError
from gazette_spark.framing.base import Block, bounded
from gazette_spark.framing.json_exact import ExactReader, Row, readable
from gazette_spark.framing.json_fast import MAX_TRIM, FastReader, Refusal

MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")

JOURNAL_COLUMN = "_journal"
OFFSET_COLUMN = "_offset"

EXACT_ROWS = 32
"""Largest part of a failed block that goes through the exact half as a whole."""

CLOSE_ROWS = 8
"""Bad records with no more good ones between them follow each other closely."""

_META_TYPES = {JOURNAL_COLUMN: pa.string(), OFFSET_COLUMN: pa.int64()}


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """What is wanted from JSON records. Can be pickled."""

    schema: pa.Schema
    """The columns that come out, exactly. ``_journal`` and ``_offset`` say where a record came from."""
    mode: str = "PERMISSIVE"
    corrupt_column: str | None = "_corrupt_record"
    """Column, if the schema has it, for the text of malformed records under PERMISSIVE."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError("mode", repr(self.mode), f"one of {', '.join(MODES)}")
        if not self.schema.names or len(set(self.schema.names)) < len(self.schema.names):
            raise OptionError(
                "schema", ", ".join(self.schema.names) or "no column", "columns, each of its own name"
            )
        special: dict[str | None, pa.DataType] = {self.corrupt_column: pa.string()}
        special.update(_META_TYPES)
        for field in self.schema:
            wanted = special.get(field.name)
            if wanted is not None and field.type != wanted:
                raise OptionError("schema", f"{field.name} {field.type}", f"{field.name} {wanted}")
            if wanted is None and not readable(field.type):
                raise OptionError("schema", f"{field.name} {field.type}", _TYPES)

    @property
    def data_fields(self) -> list[pa.Field]:
        """The columns that come from the records' own fields."""
        special = {*_META_TYPES, self.corrupt_column}
        return [field for field in self.schema if field.name not in special]


class JsonParser:
    """Parses blocks of JSON records. For one thread.

    ``fast=False`` leaves out the fast half: for tests and for measuring.
    """

    def __init__(self, wanted: JsonFormat, *, fast: bool = True) -> None:
        self.format = wanted
        self.malformed = 0
        """Malformed records so far."""
        self._exact = ExactReader(wanted.data_fields)
        self._reader = FastReader(wanted.data_fields) if fast else None

    def __repr__(self) -> str:
        return f"JsonParser({self.format.schema.names}, {self.format.mode}, malformed={self.malformed})"

    def record_batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Yield one record batch for each block, less those that would have no row.

        Blocks of very many rows give several.

        Raises:
            RecordError: a record is malformed and the mode is FAILFAST.
        """
        for block in bounded(blocks):
            parts = [part for part in self._parse(block) if part.num_rows]
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                yield from pa.Table.from_batches(parts).combine_chunks().to_batches()

    def _parse(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Parse a block, fast wherever possible.

        A suspect record is taken out and read exactly, and so are as many after it as were taken out
        the last time, doubled, while suspects follow each other closely: blocks with few bad records
        keep most of their speed, and blocks with nothing else cost a few attempts.
        """
        run = 1
        while len(block):
            answer = self._fast(block)
            if not isinstance(answer, Refusal):
                yield answer
                return
            if answer.suspect is None:
                yield from self._halves(block)
                return
            yield from self._parse(block.rows(0, answer.suspect))
            run = 1 if answer.suspect > CLOSE_ROWS else run * 2
            resume = min(answer.suspect + run, len(block))
            yield from self._slow(block.rows(answer.suspect, resume))
            block = block.rows(resume, len(block))

    def _halves(self, block: Block) -> Iterator[pa.RecordBatch]:
        if len(block) <= EXACT_ROWS or self._reader is None or not self._reader.usable:
            yield from self._slow(block)
            return
        middle = len(block) // 2
        yield from self._parse(block.rows(0, middle))
        yield from self._parse(block.rows(middle, len(block)))

    def _fast(self, block: Block) -> pa.RecordBatch | Refusal:
        """Parse a whole block, if the fast half can."""
        found = Refusal(None) if self._reader is None else self._reader.columns(block)
        return found if isinstance(found, Refusal) else self._record_batch(block, found)

    def _slow(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Parse record by record; hand rows on in runs."""
        rows: list[Row] = []
        first = 0
        for index in range(len(block)):
            record = block.record(index)
            row = self._exact.row(record)
            alone: pa.RecordBatch | Refusal = Refusal(None)
            if row.values is None and b"{" in record[: MAX_TRIM + 1]:
                alone = self._fast(block.rows(index, index + 1))
            if isinstance(alone, Refusal):
                rows.append(row)
                continue
            yield self._run(block.rows(first, index), rows)
            yield alone
            rows, first = [], index + 1
        yield self._run(block.rows(first, len(block)), rows)

    def _run(self, block: Block, rows: list[Row]) -> pa.RecordBatch:
        """Build the columns of rows that were read one by one."""
        self._count(block, rows)
        keep = np.ones(len(rows), np.bool_)
        if self.format.mode == "DROPMALFORMED":
            keep = np.array([row.problem is None for row in rows], np.bool_)
            rows = [row for row in rows if row.problem is None]
        found = {
            field.name: pa.array([(row.values or {}).get(field.name) for row in rows], field.type)
            for field in self.format.data_fields
        }
        corrupt = self.format.corrupt_column
        if corrupt and self.format.mode == "PERMISSIVE" and corrupt in self.format.schema.names:
            texts = [
                None if row.problem is None else block.record(index).decode("utf-8", "replace")
                for index, row in enumerate(rows)
            ]
            found[corrupt] = pa.array(texts, pa.string())
        return self._record_batch(
            Block(block.journal, block.offset, block.data, block.starts[keep], block.ends[keep]), found
        )

    def _count(self, block: Block, rows: list[Row]) -> None:
        for index, row in enumerate(rows):
            if row.problem is None:
                continue
            self.malformed += 1
            if self.format.mode == "FAILFAST":
                raise RecordError(block.journal, int(block.offsets[index]), f"malformed: {row.problem}")

    def _record_batch(self, block: Block, found: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Put the columns into the schema's order; add where the records came from."""
        places: dict[str | None, Callable[[], pa.Array]] = {
            JOURNAL_COLUMN: block.journal_array,
            OFFSET_COLUMN: block.offset_array,
            self.format.corrupt_column: lambda: pa.nulls(len(block), pa.string()),
        }
        schema = self.format.schema
        columns = [found[name] if name in found else places[name]() for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp, "
    "timestamp_ntz, and arrays, structs and maps from strings of these"
)
