"""Records of JSON to the user's columns: one row from each record, from that record alone.

The fast reader gives a whole block to ``pyarrow.json``. Of a block that it refuses, the records at fault go
through the reference reader (``_formats.json_reference``), or all records where these are not known or too
many. Both readers give the same row for a record, so a row never depends on its neighbours.

With a column for rescued data, a field that does not fit its column, or has no column, does not make a record
malformed. The column has the text of such fields as one JSON object, with the record's journal and offset. A
record that is not a JSON object is there as text under ``_record``, and it is malformed all the same.

Rows are those of Spark's ``from_json``; ``docs/reference/formats.md`` says where and why they differ.

The fast reader
---------------
``pyarrow.json`` reads a stream of JSON values and does not care for lines, so it only gets blocks in which
every record begins with ``{`` and ends with ``}``. Its result only counts when it has as many rows as
records. Then each row comes from its own record: after a ``}`` no ``{`` may follow unless the value before is
closed, and strings cannot span lines, so a value that runs on into the next record is a syntax error. Hence
every record has at least one value, and by the count exactly one. It gets no blocks with a NUL or invalid
UTF-8, and nothing but objects: a lone ``null`` crashes it.

It gets decimals wrong (all seen with pyarrow 26). It silently accepts digits beyond the column's precision
when there is an exponent, and drops bits beyond 128. So their magnitude is read as doubles first, and the
result validated. It rescales by a table of powers of ten without a check of the table's bounds: an exponent
of -4 million reads memory that is not there, and the process dies. So it gets no records with such exponents.

Dates, timestamps and bytes are requested as strings, and converted by ``_formats.values``: the parser's
timestamps are not Spark's. Nor is the number ``Inf``, so records with one are not given to it. Decimals in
strings and timestamps in seconds are left to the reference reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from gazette_spark._formats.arrays import Positions, invalid_utf8_at
from gazette_spark._formats.framing import Block, as_lines
from gazette_spark._formats.rows import BlockRefusal, Columns, RowFormat, RowParser
from gazette_spark._formats.values import (
    SPARKS,
    Converted,
    JsonDialect,
    Mask,
    from_texts,
    is_variant,
    readable,
    spread,
    text_converter,
)
from gazette_spark.errors import OptionError

if TYPE_CHECKING:
    import numpy.typing as npt

TRIES = 4
"""Times that the fast half is given a block, less the records at fault."""

MOST_FAILURES = 5
"""Failures in a row that count: after these the fast half is left out for 31 blocks."""

PART_BYTES = 512 << 10
"""Bytes that the exact half reads at a time, if no record is longer: it takes many times as much memory."""


@dataclass(frozen=True, slots=True)
class JsonFormat(RowFormat):
    """Format of JSON records and the wanted columns. Can be pickled."""

    dialect: JsonDialect = SPARKS

    def __post_init__(self) -> None:
        RowFormat.__post_init__(self)
        for field in self.data_fields:
            if not readable(field.type):
                raise OptionError("schema", f"{field.name} {field.type}", _TYPES)


class JsonParser(RowParser):
    """Parses blocks of JSON records. For one thread.

    ``fast=False`` leaves out the fast half: for tests and for measuring.
    """

    def __init__(self, wanted: JsonFormat, *, fast: bool = True) -> None:
        super().__init__(wanted)
        self._dialect = wanted.dialect
        reader = FastReader(wanted.data_fields, extra_fields=not wanted.rescues, dialect=wanted.dialect)
        self._fast = reader if fast and reader.usable else None
        self._failures = 0
        """Blocks in a row that the fast half was of no use for."""
        self._pause = 0
        """Blocks that it is not tried on, twice as many with each failure."""

    def _parse(self, block: Block) -> Iterator[pa.RecordBatch]:
        found = self._mostly_fast(block)
        if found is not None:
            yield self._finished(block, found)
            return
        for part in _parts(block):
            yield self._finished(part, self._exact(part))

    def _mostly_fast(self, block: Block) -> Columns | None:
        """Return the columns of a block, None where the fast half is of little use for it."""
        if self._fast is None or self._pause:
            self._pause = max(0, self._pause - 1)
            return None
        self._failures = min(self._failures + 1, MOST_FAILURES)
        left = np.ones(len(block), np.bool_)
        for _ in range(TRIES):
            found = self._fast.columns(as_lines(block if left.all() else block.only(left)))
            if not isinstance(found, BlockRefusal):
                self._failures = 0
                return found if left.all() else self._joined(block, left, found)
            suspects = list(found.suspects)
            left[np.flatnonzero(left)[suspects]] = False
            if _are_many(suspects, len(block)):
                break
        self._pause = (1 << self._failures) - 1
        return None

    def _exact(self, block: Block) -> Columns:
        # It loads much that most tasks do without, and Spark starts many processes.
        from gazette_spark._formats.json_reference import ExactReader

        return ExactReader(
            self.format.data_fields, rescue=self.format.rescues, dialect=self._dialect
        ).columns(block)

    def _joined(self, block: Block, left: Mask, found: Columns) -> Columns:
        """Return the columns of a block of which the fast half left out some records."""
        exact = self._exact(block.only(~left))
        here, there = np.flatnonzero(left), np.flatnonzero(~left)
        values = {
            name: spread(len(block), column.type, [(here, column), (there, exact.values[name])])
            for name, column in found.values.items()
        }
        problems = {int(here[index]): problem for index, problem in found.problems.items()}
        problems |= {int(there[index]): problem for index, problem in exact.problems.items()}
        return Columns(values, problems, {int(there[index]): texts for index, texts in exact.rescued.items()})


def _are_many(suspects: list[int], count: int) -> bool:
    """Tell whether more records are at fault than are worth leaving out, as far as one can tell."""
    if len(suspects) < 2:
        # The parser stops at the first one: where that is early, others follow.
        return not suspects or suspects[0] < count // TRIES
    return len(suspects) > count // TRIES


def _parts(block: Block) -> Iterator[Block]:
    """Cut a block into parts of few bytes."""
    first = 0
    while first < len(block):
        most = int(np.searchsorted(block.ends, block.starts[first] + PART_BYTES))
        stop = min(max(most, first + 1), len(block))
        yield block.rows(first, stop)
        first = stop


_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp, "
    "timestamp_ntz, variant, and arrays, structs and maps from strings of these"
)


MAX_TRIM = 8
"""White space around a record that is still looked behind."""

_ROW = re.compile(r" in row ([0-9]{1,9})")
"""Row of a parser error, if the error names one."""

_INF = re.compile(rb"Inf[ \t\r\n,\]}]")
_INFINITY = re.compile(rb"Inf(?:inity)?[ \t\r\n,\]}]")
_NAN = re.compile(rb"NaN[ \t\r\n,\]}]")
"""Possible numbers of these names; a match inside a string costs speed only. Each begins with letters that
are always there: these are found in a third of the time that ``in`` takes, and a 15th of alternatives'."""

_SMALL_EXPONENT = re.compile(
    rb":[ \t\r]*+-?(?:[0-9.]{24,}+[eE]|[0-9.]++[eE](?:\+?0*+[0-9]{3}|-0*+[1-9][0-9]))"
)
"""A possible number for which the parser might leave its table of 38 powers of ten: with an exponent of -10
or less, of three digits, or behind 24 digits. The colon that begins it is found at memory speed; a match in a
string costs speed only."""

_SPACES = np.zeros(256, np.bool_)
_SPACES[[0x09, 0x0D, 0x20]] = True


class FastReader:
    """Reads blocks by a schema. Immutable.

    Without ``extra_fields`` a block in which a record has a field that the schema has not is refused, and so
    is one in which a text does not fit its column.
    """

    def __init__(
        self, fields: Sequence[pa.Field], *, extra_fields: bool = True, dialect: JsonDialect = SPARKS
    ) -> None:
        self._fields = tuple(fields)
        self._extra_fields = extra_fields
        self._dialect = dialect
        storage = _columns_of(self._fields)
        self.usable = storage is not None
        """Whether the parser knows all types of the schema."""
        self._storage = storage or pa.schema([])
        # A hair more than the type holds: past that no 128 bits overflow, and validation sees the rest.
        self._magnitudes = {
            field.name: 10.0 ** (field.type.precision - field.type.scale) * 1.001
            for field in fields
            if pa.types.is_decimal(field.type)
        }

    def columns(self, block: Block) -> Columns | BlockRefusal:
        """Return the columns by name, or a refusal when they might not be each record's own."""
        suspects = _suspects(block, self._dialect)
        if self._magnitudes and not suspects:
            suspects = _small_exponents(block)
        if suspects:
            return BlockRefusal(suspects)
        try:
            if not _within(self._magnitudes, block):
                return BlockRefusal()
            table = _read(block, self._storage, extra_fields=self._extra_fields)
            if table.num_rows != len(block):
                return BlockRefusal()
            columns = {name: table.column(name) for name in self._storage.names}
            return self._targets(
                {
                    name: column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
                    for name, column in columns.items()
                }
            )
        except (pa.ArrowException, ValueError) as error:
            found = _ROW.search(str(error))
            row = int(found[1]) if found else len(block)
            return BlockRefusal([row] if row < len(block) else ())

    def _targets(self, found: Mapping[str, pa.Array]) -> Columns | BlockRefusal:
        """Return the columns as the types that are wanted."""
        columns: dict[str, pa.Array] = {}
        problems: dict[int, str] = {}
        for field in self._fields:
            converted = _target(found[field.name], field.type, self._dialect)
            columns[field.name] = converted.column
            for index, problem in converted.problems.items():
                problems.setdefault(index, f"field {field.name} {problem}")
        if problems and not self._extra_fields:
            return BlockRefusal(sorted(problems))
        return Columns(columns, problems)


def _columns_of(fields: Sequence[pa.Field]) -> pa.Schema | None:
    """Return the columns the parser is asked for, None when it does not know some type."""
    kinds = [_storage(field.type, nested=False) for field in fields]
    if any(kind is None for kind in kinds):
        return None
    return pa.schema([field.with_type(kind) for field, kind in zip(fields, kinds, strict=True)])


def _storage(kind: pa.DataType, *, nested: bool) -> pa.DataType | None:
    """Return the type a column is asked for as, None: not at all."""
    if is_variant(kind):
        return None
    if pa.types.is_struct(kind):
        children = [(field, _storage(field.type, nested=True)) for field in kind]
        known = [field.with_type(child) for field, child in children if child is not None]
        return pa.struct(known) if len(known) == len(children) else None
    if pa.types.is_list(kind):
        child = _storage(kind.value_type, nested=True)
        return None if child is None else pa.list_(kind.value_field.with_type(child))
    if pa.types.is_map(kind) or (nested and pa.types.is_decimal(kind)):
        return None
    return pa.string() if _is_text(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    """Tell whether values of a type are strings in JSON, without being strings."""
    return bool(pa.types.is_temporal(kind) or pa.types.is_binary(kind))


def _read(block: Block, storage: pa.Schema, *, extra_fields: bool = True) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(block.data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(block.data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=storage, unexpected_field_behavior="ignore" if extra_fields else "error"
        ),
    )


def _within(magnitudes: dict[str, float], block: Block) -> bool:
    """Tell whether the columns, read as doubles, keep to these magnitudes."""
    if not magnitudes:
        return True
    # Loaded for decimals only: it takes a worker longer than all of this package.
    import pyarrow.compute as pc

    table = _read(block, pa.schema([(name, pa.float64()) for name in magnitudes]))
    return all(
        pc.all(pc.less(pc.abs(table.column(name)), most)).as_py() is not False
        for name, most in magnitudes.items()
    )


def _target(column: pa.Array, kind: pa.DataType, dialect: JsonDialect) -> Converted:
    """Return a column as the type that is wanted.

    Raises:
        ValueError: something below it does not fit.
    """
    if column.type == kind:
        if pa.types.is_decimal(kind):
            column.validate(full=True)
        return Converted(column)
    if pa.types.is_string(column.type):
        convert = text_converter(kind, dialect)
        assert convert is not None
        return from_texts(column, kind, convert, dialect.usual_zone(kind))
    return Converted(_nested(column, kind, dialect))


def _nested(column: pa.Array, kind: pa.DataType, dialect: JsonDialect) -> pa.Array:
    """Return a column of lists or structs with its nested values converted to the wanted types."""
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        children = [_fitting(column.field(at), field.type, dialect) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    return pa.ListArray.from_arrays(
        column.offsets, _fitting(column.values, kind.value_type, dialect), kind, mask=mask
    )


def _fitting(column: pa.Array, kind: pa.DataType, dialect: JsonDialect) -> pa.Array:
    converted = _target(column, kind, dialect)
    if converted.problems:
        raise ValueError(next(iter(converted.problems.values())))
    return converted.column


def _suspects(block: Block, dialect: JsonDialect) -> list[int]:
    """Return records that do not look like one JSON object of UTF-8 without NUL or ``Inf``."""
    octets = np.frombuffer(block.data, np.uint8)
    first, last = _trimmed(octets, block.starts, block.ends - 1)
    odd = (octets[first] != ord("{")) | (octets[last] != ord("}"))
    at = block.data.find(b"\0")
    if at < 0:
        at = _constant_at(block.data, dialect)
    if at < 0:
        at = invalid_utf8_at(block.data)
    if at >= 0:
        odd[np.searchsorted(block.ends, at)] = True
    found: list[int] = np.flatnonzero(odd).tolist()
    return found


def _small_exponents(block: Block) -> list[int]:
    """Return the records with a number whose exponent the parser of decimals must not see."""
    at = [found.start() for found in _SMALL_EXPONENT.finditer(block.data)]
    return np.unique(np.searchsorted(block.ends, at)).tolist() if at else []


def _constant_at(data: bytes, dialect: JsonDialect) -> int:
    """Return the index of a possible NaN or infinity without quotes, -1 if the bytes have none."""
    expressions = (_INF,) if dialect.allow_non_numeric_numbers else (_INFINITY, _NAN)
    found = [match.start() for expression in expressions if (match := expression.search(data))]
    return min(found, default=-1)


def _trimmed(octets: npt.NDArray[np.uint8], first: Positions, last: Positions) -> tuple[Positions, Positions]:
    """Move positions inward over a little white space."""
    for _ in range(MAX_TRIM):
        before, after = _SPACES[octets[first]], _SPACES[octets[last]]
        if not (before.any() or after.any()):
            break
        first, last = first + (before & (first < last)), last - (after & (first < last))
    return first, last
