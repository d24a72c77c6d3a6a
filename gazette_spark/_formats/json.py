"""Parses JSON records to the user's columns: one row from each record, from that record alone.

If the native decoder (``_formats.native``) was built and supports all types of the schema, it reads a block,
and the reference parser (``_formats.json_reference``) reads the few records that it does not support.
Otherwise the block parser passes a whole block to ``pyarrow.json``. Of a block that it refuses, the records
at fault go through the reference parser, or all records if these are unknown or too many. All parsers give
the same row for a record, so a row never depends on its neighbours.

With a column for rescued data, a field that does not fit its column, or has no column, does not make a record
malformed. The column has such fields as one JSON object, with the record's journal and offset. A record that
is not a JSON object has its text under ``_record``, and still counts as malformed.

Rows are those of Spark's ``from_json``; ``docs/reference/formats.md`` lists and explains the differences.

The block parser
----------------
``pyarrow.json`` reads a stream of JSON values and ignores line ends. So it only gets blocks in which every
record begins with ``{`` and ends with ``}``, and its result only counts if it has as many rows as there are
records. Then each row comes from its own record: after a ``}`` no ``{`` may follow unless the previous value
is closed, and strings cannot span lines, so a value that continues in the next record is a syntax error.
Hence every record has at least one value, and according to the count exactly one. The parser gets no blocks
with a NUL or invalid UTF-8, no record that nests too deep, and only objects: a lone ``null`` crashes it.

It reads decimals incorrectly (seen with pyarrow 26). It silently accepts digits beyond the column's precision
if there is an exponent, and drops bits beyond 128. So the magnitudes are read as doubles first, and the
result is validated. It rescales with a table of powers of ten without checking the table's bounds: an
exponent of -4 million reads invalid memory, and the process dies. So it gets no records with such exponents.

Dates, timestamps and bytes are requested as strings and converted by ``_formats.values``, because the
parser's timestamps differ from Spark's. It also differs for the number ``Inf``, so it gets no records with
that. The reference parser reads decimals in strings and timestamps in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import Mask, Positions, invalid_utf8_at
from gazette_spark._formats.framing import Block, as_lines
from gazette_spark._formats.native import NativeDecoder
from gazette_spark._formats.rows import BlockRefusal, Columns, RowFormat, RowParser
from gazette_spark._formats.values import (
    MAX_DEPTH,
    SPARK_DIALECT,
    Converted,
    JsonDialect,
    from_texts,
    is_nested_deeper,
    is_variant,
    readable,
    spread,
    text_converter,
)
from gazette_spark.errors import OptionError

if TYPE_CHECKING:
    from gazette_spark._formats.json_reference import JsonReferenceParser

MAX_SUSPECT_SHARE = 0.25
"""Maximum share of suspects for which the native decoder pays off: for a record, the reference parser takes
about 20 times as long, the block parser 5 times."""

MAX_FAST_ATTEMPTS = 4
"""Maximum number of times that the block parser tries a block, each time without the records at fault."""

MAX_FAILURES = 5
"""Maximum number of consecutive failures that count: after these, the block parser skips 31 blocks."""

PART_BYTES = 512 << 10
"""Bytes of a part for the reference parser, unless a record is longer: it needs many times as much memory."""

MAX_TRIM = 8
"""Maximum white space around a record that is skipped."""

_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp, "
    "timestamp_ntz, variant, and arrays, structs and maps from strings of these"
)

_ERROR_ROW = re.compile(r" in row ([0-9]{1,9})")

# Arrow reads these names as numbers, regardless of the dialect. Spark never reads `Inf` as one, and the
# others only under `allowNonNumericNumbers`.
_INF = re.compile(rb"Inf[ \t\r\n,\]}]")
_INFINITY = re.compile(rb"Inf(?:inity)?[ \t\r\n,\]}]")
_NAN = re.compile(rb"NaN[ \t\r\n,\]}]")
"""Possible numbers of these names; a match inside a string only costs speed. Each pattern begins with fixed
letters: these are found in a third of the time of ``in``, and in a 15th of the time of alternatives."""

_SMALL_EXPONENT = re.compile(
    rb":[ \t\r]*+-?(?:[0-9.]{24,}+[eE]|[0-9.]++[eE](?:\+?0*+[0-9]{3}|-0*+[1-9][0-9]))"
)
"""A possible number for which the parser might leave its table of 38 powers of ten: with an exponent of -10
or less, of three digits, or after 24 digits. The colon that begins it is found at memory speed; a match in a
string only costs speed."""

_SPACES = np.zeros(256, np.bool_)
_SPACES[[0x09, 0x0D, 0x20]] = True


@dataclass(frozen=True, slots=True)
class JsonFormat(RowFormat):
    """Format of JSON records and the columns of a query. Can be pickled."""

    dialect: JsonDialect = SPARK_DIALECT

    def __post_init__(self) -> None:
        RowFormat.__post_init__(self)
        for field in self.data_fields:
            if not readable(field.type):
                raise OptionError("schema", f"{field.name} {field.type}", _TYPES)


class JsonParser(RowParser):
    """Parses blocks of JSON records. For one thread.

    ``fast=False`` leaves all records to the reference parser: for tests and for measuring.
    """

    def __init__(self, row_format: JsonFormat, *, fast: bool = True) -> None:
        super().__init__(row_format)
        self._dialect = row_format.dialect
        # With rescued data, a field without a column is not ignored: a record that has one goes to the
        # reference parser.
        fields, extra_fields = row_format.data_fields, not row_format.rescues
        parser = JsonBlockParser(fields, extra_fields=extra_fields, dialect=self._dialect)
        # The block parser stays beside the native decoder, for blocks with too many suspects.
        self._block_parser = parser if fast and parser.usable else None
        self._decoder = (
            NativeDecoder.of(fields, extra_fields=extra_fields, dialect=self._dialect) if fast else None
        )
        self._failures = 0
        """Number of consecutive blocks for which the block parser was useless."""
        self._pause = 0
        """Number of blocks that the block parser still skips; it doubles with each failure."""

    def _parse(self, block: Block) -> Iterator[pa.RecordBatch]:
        # The fastest parser comes first. If one does not pay off for a block, the next one reads it.
        columns = self._native_columns(block) or self._fast_columns(block)
        if columns is not None:
            yield self._finished(block, columns)
            return
        # The reference parser makes a Python object of each record, which takes 7 times the record's bytes
        # and up to 55 times for a hostile one (decision 42). In parts, only those of one part exist at a
        # time.
        first = 0
        while first < len(block):
            in_part = int(np.searchsorted(block.ends, block.starts[first] + PART_BYTES))
            part = block.rows(first, min(max(in_part, first + 1), len(block)))
            yield self._finished(part, self._reference.columns(part))
            first += len(part)

    def _native_columns(self, block: Block) -> Columns | None:
        """Return the columns of a block; None if the native decoder does not pay off for it."""
        decoded = self._decoder.decode(block) if self._decoder else None
        if decoded is None:
            return None
        columns, suspects = decoded
        values = {field.name: column for field, column in zip(self.format.data_fields, columns, strict=True)}
        if not len(suspects):
            return Columns(values)
        # A producer that writes unusual values usually does so in most records. The next parser then reads
        # the whole block.
        if len(suspects) > len(block) * MAX_SUSPECT_SHARE:
            return None
        is_suspect = np.zeros(len(block), np.bool_)
        is_suspect[suspects] = True
        return self._completed(block, Columns(values), np.arange(len(block)), is_suspect)

    def _fast_columns(self, block: Block) -> Columns | None:
        """Return the columns of a block; None if the block parser does not pay off for it."""
        if self._block_parser is None or self._pause:
            self._pause = max(0, self._pause - 1)
            return None
        # This counts as a failure until the parser succeeds. An attempt that fails costs as much as a
        # successful one, so the parser rests twice as long after each failure, until it tries only one of 32
        # blocks.
        self._failures = min(self._failures + 1, MAX_FAILURES)
        # These masks cover the whole block, but an attempt numbers its suspects among the records that it
        # got.
        sound = np.ones(len(block), np.bool_)
        many = len(block) // MAX_FAST_ATTEMPTS
        for _ in range(MAX_FAST_ATTEMPTS):
            # `as_lines` copies the block without its suspects, because the parser reads everything between
            # them as well.
            columns = self._block_parser.columns(as_lines(block if sound.all() else block.only(sound)))
            if not isinstance(columns, BlockRefusal):
                break
            # Records at fault are removed and the rest is tried again, unless there are too many. The parser
            # stops at its first error: a single suspect near the start makes more suspects likely.
            suspects = list(columns.suspects)
            sound[np.flatnonzero(sound)[suspects]] = False
            if not suspects or (suspects[0] < many if len(suspects) == 1 else len(suspects) > many):
                break
        if isinstance(columns, BlockRefusal):
            # The pause is 1, 3, 7, 15 and then always 31 blocks.
            self._pause = (1 << self._failures) - 1
            return None
        self._failures = 0
        if sound.all():
            return columns
        return self._completed(block, columns, np.flatnonzero(sound), ~sound)

    def _completed(self, block: Block, columns: Columns, rows: Positions, is_suspect: Mask) -> Columns:
        """Return columns of the records at the indices ``rows``, completed with the rows of suspects."""
        reference = self._reference.columns(block.only(is_suspect))
        suspect_rows = np.flatnonzero(is_suspect)
        values = {
            name: spread(len(block), column.type, [(rows, column), (suspect_rows, reference.values[name])])
            for name, column in columns.values.items()
        }
        # Both parsers number only the records that they got. Convert these numbers to those in the block.
        problems = {int(rows[index]): problem for index, problem in columns.problems.items()}
        problems |= {int(suspect_rows[index]): problem for index, problem in reference.problems.items()}
        rescued = {int(suspect_rows[index]): texts for index, texts in reference.rescued.items()}
        return Columns(values, problems, rescued)

    @cached_property
    def _reference(self) -> JsonReferenceParser:
        # Imported here because most tasks do not need it, and Spark starts many processes.
        from gazette_spark._formats.json_reference import JsonReferenceParser

        return JsonReferenceParser(self.format.data_fields, rescue=self.format.rescues, dialect=self._dialect)


class JsonBlockParser:
    """Reads whole blocks by a schema. Immutable.

    Without ``extra_fields``, a block is refused if a record has a field that the schema lacks, or if a text
    does not fit its column.
    """

    def __init__(
        self, fields: Sequence[pa.Field], *, extra_fields: bool = True, dialect: JsonDialect = SPARK_DIALECT
    ) -> None:
        self._fields = tuple(fields)
        self._extra_fields = extra_fields
        self._dialect = dialect
        kinds = [_storage_type(field.type, nested=False) for field in fields]
        self.usable = None not in kinds
        """Whether Arrow's parser supports all types of the schema."""
        self._storage = pa.schema(
            [field.with_type(kind) for field, kind in zip(fields, kinds, strict=True)] if self.usable else []
        )
        # This is slightly more than the type's maximum. Up to it, 128 bits do not overflow, and validation
        # detects the rest.
        self._magnitudes = {
            field.name: 10.0 ** (field.type.precision - field.type.scale) * 1.001
            for field in fields
            if pa.types.is_decimal(field.type)
        }

    def columns(self, block: Block) -> Columns | BlockRefusal:  # noqa: C901, PLR0912 - all checks, in order
        """Return the columns by name, or a refusal if a value might not come from its own record."""
        # First find records that Arrow would read differently, or that would crash it: those that do not look
        # like one JSON object of UTF-8, or have a NUL or a number `Inf`. These searches run at memory speed,
        # and a hit inside a string only sends a good record to the reference parser.
        data = block.data
        octets = np.frombuffer(data, np.uint8)
        first, last = block.starts, block.ends - 1
        # Trim all records at once. Most have no white space around them, so the loop ends in its first
        # iteration.
        for _ in range(MAX_TRIM):
            before, after = _SPACES[octets[first]], _SPACES[octets[last]]
            if not (before.any() or after.any()):
                break
            first, last = first + (before & (first < last)), last - (after & (first < last))
        # Under these two conditions, a row can only come from its own record: see the module's docstring.
        odd = (octets[first] != ord("{")) | (octets[last] != ord("}"))
        # A record that nests too deep has two brackets for each level. Bytes that are not ASCII do not
        # matter.
        for index in np.flatnonzero(block.ends - block.starts > 2 * MAX_DEPTH).tolist():
            odd[index] |= is_nested_deeper(block.record(index).decode("latin-1"), MAX_DEPTH)
        # Finding the first such place is enough: the reference parser reads its record, and the rest is tried
        # again.
        place = data.find(b"\0")
        if place < 0:
            constants = (_INF,) if self._dialect.allow_non_numeric_numbers else (_INFINITY, _NAN)
            place = min((match.start() for name in constants if (match := name.search(data))), default=-1)
        if place < 0:
            place = invalid_utf8_at(data)
        if place >= 0:
            odd[np.searchsorted(block.ends, place)] = True
        suspects: list[int] = np.flatnonzero(odd).tolist()
        if self._magnitudes and not suspects:
            # Only decimals are rescaled with the table of powers that Arrow does not check.
            at = [number.start() for number in _SMALL_EXPONENT.finditer(data)]
            suspects = np.unique(np.searchsorted(block.ends, at)).tolist() if at else []
        if suspects:
            return BlockRefusal(suspects)
        try:
            # Read the block a second time, only for decimals: as doubles, they must not be too large for
            # their columns. See the module's docstring.
            if self._magnitudes:
                # Imported only for decimals, because a worker takes longer to import it than this package.
                import pyarrow.compute as pc

                doubles = _read(block, pa.schema([(name, pa.float64()) for name in self._magnitudes]))
                if not all(
                    pc.all(pc.less(pc.abs(doubles.column(name)), limit)).as_py() is not False
                    for name, limit in self._magnitudes.items()
                ):
                    return BlockRefusal()
            table = _read(block, self._storage, extra_fields=self._extra_fields)
            # This proves that each row comes from its own record: every record has at least one value.
            if table.num_rows != len(block):
                return BlockRefusal()
            values: dict[str, pa.Array] = {}
            problems: dict[int, str] = {}
            for field in self._fields:
                chunks = table.column(field.name)
                column = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
                converted = _converted(column, field.type, self._dialect)
                values[field.name] = converted.column
                for index, problem in converted.problems.items():
                    problems.setdefault(index, f"field {field.name} {problem}")
        except (pa.ArrowException, ValueError) as error:
            # Arrow names the row only in the error's text. A row past the block, or none, means that the
            # record at fault is unknown.
            named = _ERROR_ROW.search(str(error))
            row = int(named[1]) if named else len(block)
            return BlockRefusal([row] if row < len(block) else ())
        # With rescued data, the texts of fields that do not fit are needed, which only the reference parser
        # keeps.
        if problems and not self._extra_fields:
            return BlockRefusal(sorted(problems))
        return Columns(values, problems)


def _storage_type(kind: pa.DataType, *, nested: bool) -> pa.DataType | None:
    """Return the type requested from Arrow's parser for a column; None if it supports none."""
    # Arrow reads JSON objects as structs only. Magnitudes of decimals are checked by column, which finds none
    # inside a struct or list.
    if is_variant(kind) or pa.types.is_map(kind) or (nested and pa.types.is_decimal(kind)):
        return None
    if pa.types.is_struct(kind):
        children = [(field, _storage_type(field.type, nested=True)) for field in kind]
        if any(child is None for _, child in children):
            return None
        return pa.struct([field.with_type(child) for field, child in children])
    if pa.types.is_list(kind):
        child = _storage_type(kind.value_type, nested=True)
        return None if child is None else pa.list_(kind.value_field.with_type(child))
    # Dates, timestamps and bytes are strings in JSON, and are converted later.
    return pa.string() if pa.types.is_temporal(kind) or pa.types.is_binary(kind) else kind


def _read(block: Block, storage: pa.Schema, *, extra_fields: bool = True) -> pa.Table:
    # Imported here because tasks whose blocks the native decoder reads do not need it.
    import pyarrow.json as pj

    return pj.read_json(
        pa.BufferReader(block.data),
        # Use one chunk, so that no record is divided between two, and no threads: Spark gives a task one
        # core.
        read_options=pj.ReadOptions(use_threads=False, block_size=len(block.data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=storage, unexpected_field_behavior="ignore" if extra_fields else "error"
        ),
    )


def _converted(column: pa.Array, kind: pa.DataType, dialect: JsonDialect) -> Converted:
    """Convert a column from its storage type to its own type.

    Raises:
        ValueError: a value inside a list or struct does not fit.
    """
    if column.type == kind:
        if pa.types.is_decimal(kind):
            # Arrow's parser silently accepts digits beyond the precision. Only full validation detects them.
            column.validate(full=True)
        return Converted(column)
    if pa.types.is_string(column.type):
        convert = text_converter(kind, dialect)
        assert convert is not None
        return from_texts(column, kind, convert, dialect.usual_zone(kind))
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        children = [_fitting(column.field(at), field.type, dialect) for at, field in enumerate(kind)]
        return Converted(pa.StructArray.from_arrays(children, fields=list(kind), mask=mask))
    items = _fitting(column.values, kind.value_type, dialect)
    return Converted(pa.ListArray.from_arrays(column.offsets, items, kind, mask=mask))


def _fitting(column: pa.Array, kind: pa.DataType, dialect: JsonDialect) -> pa.Array:
    # In Spark, an array with an item that does not fit is null as a whole, and a struct keeps its other
    # fields. Here the whole block is refused, and the reference parser applies those rules.
    converted = _converted(column, kind, dialect)
    if converted.problems:
        raise ValueError(next(iter(converted.problems.values())))
    return converted.column
