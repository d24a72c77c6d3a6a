r"""Converts records of CSV to the user's columns: field by field, in the order of the schema.

The options and their defaults are those of Spark's CSV reader, except that a quote inside quotes is doubled,
as in RFC 4180. Spark reads such records with ``escape='"'``.

The block parser splits a whole block with ``pyarrow.csv`` and converts each column at once; the record parser
splits one record. A field's value comes from its text alone and from one function, ``converted``, for both.
So a row never depends on its neighbours. A field that is invalid for its column becomes null and makes its
record malformed, and so do too few or too many fields. The other fields keep their values.

Fields have the same meaning as in Spark's CSV reader, including odd quotes, except that a ``\r`` at the end
of a record belongs to no field.

Every writer may begin with a header, so a header is recognised by its content and not by its position: with
``header`` set, a record that names the columns in the schema's order gives no row. The first record of a
journal must be such a header, because with a header of other columns, fields would fill the wrong columns.

Arrow converts a whole column of texts at once if it and Spark agree on their values. Otherwise it converts
the plain numbers among them, and the rest is converted text by text. The forms of numbers are Java's, those
of dates and timestamps are in ``_formats.timestamps``. Deliberate differences from Spark: digits are ASCII's,
hexadecimal floating point numbers are invalid, and timestamps need a date (Spark takes today's date).

This file is separate from the framing in ``_formats.csv`` because it loads ``pyarrow.compute``, which takes a
Spark worker longer than the rest of the package.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from gazette_spark._formats.arrays import invalid_utf8_at, string_array, text_scalar
from gazette_spark._formats.csv import RETURN, quote_positions
from gazette_spark._formats.framing import Block
from gazette_spark._formats.lines import NEWLINE
from gazette_spark._formats.rows import BlockRefusal, Columns, FallbackParser, RowFormat
from gazette_spark._formats.timestamps import parse_date
from gazette_spark._formats.values import (
    SPARK_DIALECT,
    JsonDialect,
    decimal_of,
    from_texts,
    matching,
    places,
    text_converter,
)
from gazette_spark.errors import OptionError, RecordError


@dataclass(frozen=True, slots=True)
class CsvStyle:
    """Style of CSV fields and the meaning of their texts. Can be pickled."""

    separator: str = ","
    """One ASCII character that separates fields."""
    quote: str = '"'
    """One ASCII character around fields that contain separators or newlines; empty: newlines end records."""
    null_value: str = ""
    """A field with this text is null, quoted or not. An empty field without quotes is always null."""
    empty_value: str = ""
    """Value of an empty field in quotes."""
    times: JsonDialect = SPARK_DIALECT
    """Formats of dates and timestamps: the same as in strings of JSON."""


SPARK_STYLE = CsvStyle()
"""Style of Spark's reader without options, in a session whose zone is UTC."""


TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp or "
    "timestamp_ntz"
)
"""Spark's types that a field can have."""

BLANKS = "".join(map(chr, range(33)))
"""Characters that Java's ``trim`` removes."""

_BOM = b"\xef\xbb\xbf"
_LONE_RETURN = re.compile(rb"\r(?!\n)")

_HEX = r"^-?0[xX]"
"""Beginning of numbers that Arrow accepts and Spark does not."""
_WORDS = r"(?i)^[+-]?(nan|inf(inity)?)$"
_SPARK_WORDS = r"^([+-]?(NaN|Infinity)|-?Inf)$"
"""Words that are numbers to Spark; Arrow reads them in any case."""

_SAFE_DIGITS = {8: 2, 16: 4, 32: 9, 64: 18}
"""Number of digits that fit every whole number of so many bits."""
_PLAIN_FLOAT = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"

_WHOLE = re.compile(r"[+-]?[0-9]+")
# It is possessive, because backtracking takes quadratic time, which is minutes for a cell of 30 KB.
_FLOAT = re.compile(r"([+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?")


@dataclass(frozen=True, slots=True)
class CsvFormat(RowFormat):
    """Format of CSV records and the columns of a query. Can be pickled."""

    style: CsvStyle = SPARK_STYLE

    def __post_init__(self) -> None:
        RowFormat.__post_init__(self)
        if self.rescued_column is not None:
            raise OptionError("rescuedDataColumn", repr(self.rescued_column), "to be used with format=json")
        for field in self.data_fields:
            if not is_readable(field.type):
                raise OptionError("schema", f"{field.name} {field.type}", TYPES)
        if not self.data_fields:
            raise OptionError("schema", "no column of the records", "a column for each field, in order")


class CsvParser(FallbackParser):
    """Parses blocks of CSV records. For one thread.

    ``fast=False`` disables the block parser, for tests and for measuring.
    """

    def __init__(self, row_format: CsvFormat, *, header: bool = False, fast: bool = True) -> None:
        fields, style = row_format.data_fields, row_format.style
        records = CsvRecordParser(fields, style, header=header)
        super().__init__(row_format, records, CsvBlockParser(fields, style, header=header) if fast else None)
        self._style = style
        self._header = [field.name for field in fields] if header else []

    def record_batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Yield record batches; see :meth:`gazette_spark._formats.rows.RowParser.record_batches`.

        Raises:
            RecordError: also if a journal does not begin with the header it should have.
        """
        return super().record_batches(map(self._checked, blocks))

    def _checked(self, block: Block) -> Block:
        # Only the block at offset 0 can show the journal's first record, after blank lines. Without the
        # records that were selected from it, as among committed messages, it begins with a later record.
        # Later writers' headers are recognised by `row` and by the block parser.
        if (
            self._header
            and block.offset == 0
            and len(block)
            and not block.data[: block.starts[0]].strip(b"\r\n")
        ):
            text, limit = block.record(0).decode("utf-8", "replace"), len(self._header) + 1
            names = names_in(text, self._style, limit)
            if names != self._header:
                problem = f"is not the header that header=true expects: it has {names}, not {self._header}"
                raise RecordError(block.journal, 0, problem)
        return block


class CsvRecordParser:
    """Reads records by a schema. Immutable."""

    def __init__(self, fields: Sequence[pa.Field], style: CsvStyle, *, header: bool) -> None:
        self._fields = tuple(fields)
        self._style = style
        self._header = [field.name for field in fields] if header else None

    def columns(self, block: Block) -> Columns:
        """Read records. Never raises, regardless of their bytes."""
        rows: list[list[str | None]] = []
        problems: dict[int, str] = {}
        left_out: list[int] = []
        for index in range(len(block)):
            cells: list[tuple[str, bool]] = []
            try:
                text = block.record(index).decode()
            except UnicodeDecodeError as error:
                problems[index] = f"not UTF-8 at byte {error.start}"
            else:
                if self._header and names_in(text, self._style, len(self._fields) + 1) == self._header:
                    left_out.append(index)
                else:
                    cells, count = split(text, self._style, len(self._fields))
                    if count != len(self._fields):
                        problems[index] = f"has {count} fields, not {len(self._fields)}"
            rows.append([self._text(cell, quoted=quoted) for cell, quoted in cells])
        # Column by column, because a conversion costs the same time for one text as for hundreds.
        values: dict[str, pa.Array] = {}
        for at, field in enumerate(self._fields):
            texts = pa.array([row[at] if at < len(row) else None for row in rows], pa.string())
            values[field.name], invalid = converted(texts, field.type, self._style)
            for index in invalid:
                problems.setdefault(index, f"field {field.name} does not fit {field.type}")
        return Columns(values, problems, left_out=left_out)

    def _text(self, cell: str, *, quoted: bool) -> str | None:
        """Return a field's text; None for null."""
        text = cell if cell or not quoted else self._style.empty_value
        # As in Spark, `nullValue` also applies to quoted fields, and the rule for empty fields only to those
        # without quotes.
        return None if text == self._style.null_value or (not cell and not quoted) else text


class CsvBlockParser:
    """Reads blocks by a schema. Immutable."""

    def __init__(self, fields: Sequence[pa.Field], style: CsvStyle, *, header: bool) -> None:
        self._fields = tuple(fields)
        self._style = style
        name = fields[0].name
        self._header_begins = string_array([name, f"\ufeff{name}"]) if header else None
        self._names = [field.name for field in fields]
        self._convert = pcsv.ConvertOptions(
            column_types=dict.fromkeys(self._names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            # Otherwise a quoted empty field would be null, regardless of emptyValue.
            quoted_strings_can_be_null=False,
        )

    def columns(self, block: Block) -> Columns | BlockRefusal:
        """Return the columns by name, or a refusal if a record has a different number of fields."""
        # Where Arrow and Spark read a record differently, it must not reach Arrow, which raises no error for
        # it.
        data, style = block.data, self._style
        suspect = _suspect(block, style)
        if suspect is not None:
            return BlockRefusal([suspect])
        wrong: list[int] = []

        def note(row: pcsv.InvalidRow) -> str:
            # The handler sees the row that has a different number of fields. Arrow counts rows from 1.
            wrong.append(row.number or 0)
            return "error"

        read = pcsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._names)
        parse = pcsv.ParseOptions(
            delimiter=style.separator,
            quote_char=style.quote or False,
            newlines_in_values=True,
            invalid_row_handler=note,
        )
        try:
            table = pcsv.read_csv(pa.BufferReader(data), read, parse, self._convert)
        except pa.ArrowException:
            return BlockRefusal([min(max(0, wrong[0] - 1), len(block) - 1)] if wrong else ())
        # This proves that each row comes from its own record.
        if table.num_rows != len(block):
            return BlockRefusal()
        texts = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table]
        # A field like the first column's name may begin a header, or a record that happens to have it. The
        # record parser compares all fields.
        if self._header_begins is not None:
            headers = places(pc.is_in(texts[0], value_set=self._header_begins))
            if len(headers):
                return BlockRefusal([int(headers[0])])

        # Searching the block once is cheaper than a regular expression on every column of integers.
        hexes = b"0x" in data or b"0X" in data
        values: dict[str, pa.Array] = {}
        problems: dict[int, str] = {}
        for field, column_texts in zip(self._fields, texts, strict=True):
            column = column_texts
            # An empty quoted field has the value ``empty_value``.
            if style.empty_value:
                column = pc.if_else(pc.equal(column, text_scalar("")), text_scalar(style.empty_value), column)
            null = pc.equal(column, text_scalar(style.null_value))
            if _any(null):
                column = pc.if_else(null, pa.nulls(1, pa.string())[0], column)
            values[field.name], invalid = converted(column, field.type, style, hexes=hexes)
            for index in invalid:
                problems.setdefault(index, f"field {field.name} does not fit {field.type}")
        return Columns(values, problems)


def split(record: str, style: CsvStyle, limit: int) -> tuple[list[tuple[str, bool]], int]:
    r"""Return the first fields of a record, each with whether it is quoted, and the number of all fields.

    A ``\r`` at the record's end is left out. The fields past the limit are only counted: a record of nothing
    but separators would take many times its length.
    """
    text = record.removesuffix("\r")
    if not style.quote:
        plain_fields = text.split(style.separator, limit)[:limit]
        return [(field, False) for field in plain_fields], text.count(style.separator) + 1
    expression, double = field_expression(style), style.quote * 2
    fields: list[tuple[str, bool]] = []
    at = count = 0
    while match := expression.match(text, at):
        count += 1
        if count <= limit:
            inside, after, plain, _ = match.groups()
            if inside is None:
                fields.append((plain, False))
            else:
                inside = inside.replace(double, style.quote)
                # Blanks after a closing quote are dropped. Anything else makes the quotes ordinary
                # characters.
                as_is = f"{style.quote}{inside}{style.quote}{after}"
                fields.append((as_is if after.strip(BLANKS) else inside, True))
        if not match[4]:
            break
        at = match.end()
    return fields, count


def names_in(record: str, style: CsvStyle, limit: int) -> list[str]:
    """Return the first names in a header. It may begin with a byte order mark, as a writer's file may."""
    names, _ = split(record.removeprefix("\ufeff"), style, limit)
    return [text for text, _ in names]


@cache
def field_expression(style: CsvStyle) -> re.Pattern[str]:
    """Return the pattern of a field and the separator after it."""
    quote, separator = re.escape(style.quote), re.escape(style.separator)
    # Possessive, because places to backtrack to take 150 times the memory of a long field. In a record of the
    # framing, each quote that opens a field has one that closes it.
    inside = f"{quote}((?:[^{quote}]++|{quote}{quote})*+){quote}([^{separator}]*+)"
    return re.compile(f"(?:{inside}|([^{separator}]*+))({separator}|\\Z)")


def _suspect(block: Block, style: CsvStyle) -> int | None:
    """Return the first record that Arrow would read differently; None if Arrow reads all correctly.

    Such a record is not UTF-8, or has a lone return, or a quote that neither begins nor ends a field.
    """
    data = block.data
    odd_places = [0] if data.startswith(_BOM) else []
    if (at := invalid_utf8_at(data)) >= 0:
        odd_places.append(at)
    if b"\r" in data and (lone := _LONE_RETURN.search(data)):
        odd_places.append(lone.start())
    quotes = quote_positions(data, style.quote)
    if len(quotes):
        # The first opening quote inside a field, and the first closing quote before a field's end.
        octets = np.frombuffer(data + b"\n\n", np.uint8)
        separator, quote = ord(style.separator), ord(style.quote)
        opening, closing = quotes[0::2], quotes[1::2]
        before, behind = octets[opening - 1], octets[closing + 1]
        begins = (before == separator) | (before == NEWLINE) | (opening == 0)
        begins[1:] |= opening[1:] - 1 == closing[: len(opening) - 1]
        ends = (behind == separator) | (behind == NEWLINE) | (behind == quote)
        ends |= (behind == RETURN) & (octets[closing + 2] == NEWLINE)
        odd_places += [*opening[~begins][:1].tolist(), *closing[~ends][:1].tolist()]
    return int(np.searchsorted(block.ends, min(odd_places))) if odd_places else None


def is_readable(kind: pa.DataType) -> bool:
    """Return whether fields can be of a type."""
    plain = kind in (pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float32(), pa.float64())
    whole = pa.types.is_signed_integer(kind) or pa.types.is_decimal128(kind)
    return plain or whole or (pa.types.is_timestamp(kind) and kind.unit == "us")


def converted(
    texts: pa.StringArray, kind: pa.DataType, style: CsvStyle, *, hexes: bool = True
) -> tuple[pa.Array, list[int]]:
    """Convert texts to values of a type.

    Args:
        texts: Any texts, and nulls.
        kind: Type of the values.
        style: Formats of dates and timestamps.
        hexes: Whether the texts may include a hexadecimal number.

    Returns:
        The values, and the indices of invalid texts: their values are null.
    """
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        times = style.times
        plain_date = pa.types.is_date(kind) and not times.date_format
        convert = _date if plain_date else text_converter(kind, times)
        assert convert is not None
        column = from_texts(texts, kind, convert, times.usual_zone(kind))
        return column.column, sorted(column.problems)
    if pa.types.is_decimal128(kind):
        column = from_texts(texts, kind, lambda text: _decimal(text, kind))
        return column.column, sorted(column.problems)
    if pa.types.is_boolean(kind):
        lower = pc.utf8_lower(texts)
        true = pc.equal(lower, text_scalar("true"))
        known = pc.or_(true, pc.equal(lower, text_scalar("false")))
        invalid = places(pc.invert(known)).tolist()
        return (pc.if_else(known, true, pa.nulls(1, kind)[0]) if invalid else true), invalid
    at_once = _at_once(texts, kind, hexes=hexes)
    if at_once is not None:
        return at_once, []
    # Arrow does not name the cell that it refuses, so it gets only plain numbers, of which none is too large.
    if pa.types.is_integer(kind):
        plain = f"^-?[0-9]{{1,{_SAFE_DIGITS[kind.bit_width]}}}$"
        column = matching(texts, kind, plain, lambda text: _whole(text, kind))
    else:
        trimmed = pc.utf8_trim(texts, BLANKS)
        column = matching(trimmed, kind, _PLAIN_FLOAT, lambda text: _floating(text, kind))
    return column.column, sorted(column.problems)


def _at_once(texts: pa.StringArray, kind: pa.DataType, *, hexes: bool) -> pa.Array | None:
    """Convert all texts with Arrow; None if it would not convert each of them as Spark does."""
    if kind == texts.type:
        return texts
    if hexes and pa.types.is_signed_integer(kind) and _any(pc.match_substring_regex(texts, _HEX)):
        return None
    try:
        column = texts.cast(kind)
    except pa.ArrowException:
        return None
    # A number that is not finite is a word that Spark may spell otherwise, or too large a number, which is
    # infinite to both.
    if pa.types.is_floating(kind) and _any(odd := pc.invert(pc.is_finite(column))):
        words = texts.filter(odd)
        words = words.filter(pc.match_substring_regex(words, _WORDS))
        if pc.all(pc.match_substring_regex(words, _SPARK_WORDS)).as_py() is False:
            return None
    return column


def _whole(text: str, kind: pa.DataType) -> int:
    # A 64-bit number has at most 19 digits, and int() takes quadratic time for long texts.
    if not _WHOLE.fullmatch(text) or len(text.lstrip("+-0")) > 19:
        raise ValueError("is not a whole number")
    number, limit = int(text), 1 << (kind.bit_width - 1)
    if not -limit <= number < limit:
        raise ValueError("is out of range")
    return number


def _floating(text: str, kind: pa.DataType) -> object:
    number = _FLOAT.fullmatch(text.strip(BLANKS))
    trimmed = number[1] if number else text.strip(BLANKS)
    if not number and not re.fullmatch(_SPARK_WORDS, trimmed):
        raise ValueError("is not a number")
    # Arrow casts the text directly, because going through a double would round twice.
    return pa.array([trimmed.removeprefix("+")]).cast(kind)[0].as_py()


def _decimal(text: str, kind: pa.DataType) -> decimal.Decimal:
    if not text.isascii():
        raise ValueError("is not a decimal number")
    return decimal_of(text.replace(",", ""), kind)


def _date(text: str) -> int:
    try:
        return parse_date(text)
    except ValueError:
        # Spark still reads the format of its first versions. Unlike in JSON, a number of days is not a date.
        if "GMT" not in text:
            raise
        return parse_date(text.replace("GMT", ""))


def _any(flags: pa.BooleanArray) -> bool:
    return pc.any(flags).as_py() is True
