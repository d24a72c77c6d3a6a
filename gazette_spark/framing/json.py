"""Records of JSON to the user's columns: one row from each record, from that record alone.

The fast half gives a whole block to ``pyarrow.json``. That parser reads a stream of JSON values and
does not care for lines, so a block is only given to it when every record begins with ``{`` and ends
with ``}``, and its answer only taken when there are as many rows as records. Then each row comes from
its own record: after a ``}`` that closes nothing outermost no ``{`` may follow, and strings cannot span
lines, so a value that runs on into the next record is a syntax error; hence every record holds at least
one value, and by the count exactly one. Blocks with a NUL or invalid UTF-8 are not given to it, nor is
anything else than objects: a lone ``null`` crashes the parser (pyarrow 26).

A block that fails is halved until what fails is small; that goes through the exact half, record by
record (``framing.json_exact``). Both halves give the same row where both accept a record, and what
only the fast half accepts is asked of it for that record alone: a row never depends on its neighbours.

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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from gazette_spark.errors import OptionError, RecordError
from gazette_spark.framing.base import Block, Positions
from gazette_spark.framing.json_exact import ExactReader, Row, readable
from gazette_spark.framing.json_values import decode_base64

MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")

JOURNAL_COLUMN = "_journal"
OFFSET_COLUMN = "_offset"

EXACT_ROWS = 32
"""Largest part of a failed block that goes through the exact half as a whole."""

MAX_TRIM = 8
"""White space around a record that the fast half still looks behind."""

_SPACES = np.zeros(256, np.bool_)
_SPACES[[0x09, 0x0D, 0x20]] = True

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
        self._storage = _storage_schema(wanted.data_fields) if fast else None

    def __repr__(self) -> str:
        return f"JsonParser({self.format.schema.names}, {self.format.mode}, malformed={self.malformed})"

    def record_batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Yield one record batch for each block, less those that would have no row.

        Raises:
            RecordError: a record is malformed and the mode is FAILFAST.
        """
        for block in blocks:
            parts = [part for part in self._parse(block) if part.num_rows]
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                yield from pa.Table.from_batches(parts).combine_chunks().to_batches()

    def _parse(self, block: Block) -> Iterator[pa.RecordBatch]:
        fast = self._fast(block)
        if fast is not None:
            yield fast
        elif len(block) <= EXACT_ROWS or self._storage is None:
            yield from self._slow(block)
        else:
            middle = len(block) // 2
            yield from self._parse(block.rows(0, middle))
            yield from self._parse(block.rows(middle, len(block)))

    def _fast(self, block: Block) -> pa.RecordBatch | None:
        """Parse a block with ``pyarrow.json``, None when its answer may not be each record's own."""
        if self._storage is None or not _only_objects(block):
            return None
        try:
            table = pj.read_json(
                pa.BufferReader(block.data),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(block.data) + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._storage, unexpected_field_behavior="ignore"
                ),
            )
            if table.num_rows != len(block):
                return None
            found = {
                field.name: _target(table.column(field.name), field.type) for field in self.format.data_fields
            }
        except (pa.ArrowException, ValueError):
            # Whatever is wrong, the exact half finds out which record it is.
            return None
        return self._record_batch(block, found)

    def _slow(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Parse record by record; hand rows on in runs."""
        rows: list[Row] = []
        first = 0
        for index in range(len(block)):
            row = self._exact.row(block.record(index))
            alone = self._fast(block.rows(index, index + 1)) if row.values is None else None
            if alone is None:
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
        if self.format.mode == "PERMISSIVE" and corrupt in self.format.schema.names:
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

    def _record_batch(self, block: Block, found: dict[str | None, pa.Array]) -> pa.RecordBatch:
        """Put the columns into the schema's order; add where the records came from."""
        schema, count = self.format.schema, len(block)
        if JOURNAL_COLUMN in schema.names:
            found[JOURNAL_COLUMN] = pa.repeat(pa.scalar(block.journal, pa.string()), count)
        if OFFSET_COLUMN in schema.names:
            found[OFFSET_COLUMN] = pa.array(block.offsets)
        corrupt = self.format.corrupt_column
        if corrupt in schema.names:
            found.setdefault(corrupt, pa.nulls(count, pa.string()))
        return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)


def _only_objects(block: Block) -> bool:
    """Tell whether each record looks like one JSON object, and the bytes are UTF-8 without NUL."""
    octets = np.frombuffer(block.data, np.uint8)
    first, last = _trimmed(octets, block.starts, block.ends - 1)
    if (octets[first] != ord("{")).any() or (octets[last] != ord("}")).any() or b"\0" in block.data:
        return False
    if block.data.isascii():
        return True
    try:
        block.data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _trimmed(octets: np.ndarray, first: Positions, last: Positions) -> tuple[Positions, Positions]:
    """Move positions inward over a little white space."""
    for _ in range(MAX_TRIM):
        before, after = _SPACES[octets[first]], _SPACES[octets[last]]
        if not (before.any() or after.any()):
            break
        first, last = first + (before & (first < last)), last - (after & (first < last))
    return first, last


def _storage_schema(fields: Iterable[pa.Field]) -> pa.Schema | None:
    """Return what ``pyarrow.json`` is asked for, None when it cannot give what is wanted."""
    storage = [(field.name, _storage(field.type, nested=False)) for field in fields]
    if any(kind is None for _, kind in storage):
        return None
    return pa.schema([pa.field(name, kind) for name, kind in storage])


def _storage(kind: pa.DataType, *, nested: bool) -> pa.DataType | None:
    """Return the type ``pyarrow.json`` reads a column as. Dates are strings in JSON, binary is base64."""
    if pa.types.is_struct(kind):
        children = [(field, _storage(field.type, nested=True)) for field in kind]
        known = [field.with_type(child) for field, child in children if child is not None]
        return pa.struct(known) if len(known) == len(children) else None
    if pa.types.is_list(kind):
        child = _storage(kind.value_type, nested=True)
        return None if child is None else pa.list_(kind.value_field.with_type(child))
    if pa.types.is_map(kind) or (nested and pa.types.is_binary(kind)):
        return None
    return pa.string() if pa.types.is_date32(kind) or pa.types.is_binary(kind) else kind


def _target(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return a column as the type that is wanted."""
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pa.types.is_binary(kind):
        return pa.array([None if text is None else decode_base64(text) for text in whole.to_pylist()], kind)
    if _has_decimals(kind):
        # pyarrow.json lets 100000E3 into decimal(10, 2): with an exponent it counts the digits written.
        whole.validate(full=True)
    return whole if whole.type == kind else whole.cast(kind)


def _has_decimals(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_decimals(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind))


_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp, "
    "timestamp_ntz, and arrays, structs and maps from strings of these"
)
