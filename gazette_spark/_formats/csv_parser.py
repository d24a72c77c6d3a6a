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

Arrow converts a whole column of texts at once if it and Spark agree on their values. Otherwise the column is
halved until the rest is small, and the rest is converted text by text. The forms of numbers are Java's, those
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
from gazette_spark._formats.rows import BlockRefusal, Columns, FallbackParser, ParsedRecord, RowFormat
from gazette_spark._formats.timestamps import parse_date
from gazette_spark._formats.values import (
    SPARK_DIALECT,
    JsonDialect,
    conversion,
    decimal_of,
    from_texts,
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


FEW_CELLS = 8
"""Number of cells that are converted one by one if a column cannot be converted at once."""

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
            names = names_in(block.record(0).decode("utf-8", "replace"), self._style)
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

    def row(self, record: bytes) -> ParsedRecord:
        """Read one record. Never raises, regardless of its bytes."""
        try:
            text = record.decode()
        except UnicodeDecodeError as error:
            return ParsedRecord(None, f"not UTF-8 at byte {error.start}")
        if self._header and names_in(text, self._style) == self._header:
            return ParsedRecord(None, None, left_out=True)
        cells = split(text, self._style)
        problems = []
        if len(cells) != len(self._fields):
            problems.append(f"has {len(cells)} fields, not {len(self._fields)}")
        values: dict[str, object] = {}
        for field, (cell, quoted) in zip(self._fields, cells, strict=False):
            text = cell if cell or not quoted else self._style.empty_value
            # As in Spark, `nullValue` also applies to quoted fields, and the rule for empty fields only to
            # those without quotes.
            if text == self._style.null_value or (not cell and not quoted):
                continue
            column, invalid = converted(pa.array([text], pa.string()), field.type, self._style)
            # Keep an Arrow scalar, because Python has no type wide enough for some values, such as the year
            # 0.
            values[field.name] = column[0]
            problems += [f"field {field.name} does not fit {field.type}" for _ in invalid]
        return ParsedRecord(values, problems[0] if problems else None)


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
        suspect = _suspect(block, self._style)
        if suspect is not None:
            return BlockRefusal([suspect])
        wrong: list[int] = []

        def note(row: pcsv.InvalidRow) -> str:
            # The handler sees the row that has a different number of fields. Arrow counts rows from 1.
            wrong.append(row.number or 0)
            return "error"

        read = pcsv.ReadOptions(use_threads=False, block_size=len(block.data) + 1, column_names=self._names)
        parse = pcsv.ParseOptions(
            delimiter=self._style.separator,
            quote_char=self._style.quote or False,
            newlines_in_values=True,
            invalid_row_handler=note,
        )
        try:
            table = pcsv.read_csv(pa.BufferReader(block.data), read, parse, self._convert)
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
        hexes = b"0x" in block.data or b"0X" in block.data
        values: dict[str, pa.Array] = {}
        problems: dict[int, str] = {}
        for field, column in zip(self._fields, texts, strict=True):
            values[field.name], invalid = converted(
                self._with_nulls(column), field.type, self._style, hexes=hexes
            )
            for index in invalid:
                problems.setdefault(index, f"field {field.name} does not fit {field.type}")
        return Columns(values, problems)

    def _with_nulls(self, texts: pa.StringArray) -> pa.StringArray:
        """Return texts with the null value as null, and empty quoted fields as ``empty_value``."""
        style = self._style
        if style.empty_value:
            empty = pc.equal(texts, text_scalar(""))
            texts = pc.if_else(empty, text_scalar(style.empty_value), texts)
        null = pc.equal(texts, text_scalar(style.null_value))
        return pc.if_else(null, pa.nulls(1, pa.string())[0], texts) if _any(null) else texts


def split(record: str, style: CsvStyle) -> list[tuple[str, bool]]:
    r"""Return the fields of a record, and whether each is quoted; a ``\r`` at its end is left out."""
    text = record.removesuffix("\r")
    if not style.quote:
        return [(field, False) for field in text.split(style.separator)]
    expression, double = field_expression(style), style.quote * 2
    fields = []
    at = 0
    while match := expression.match(text, at):
        inside, after, plain, separator = match.groups()
        if inside is None:
            fields.append((plain, False))
        else:
            inside = inside.replace(double, style.quote)
            # Blanks after a closing quote are dropped. Anything else makes the quotes ordinary characters.
            as_is = f"{style.quote}{inside}{style.quote}{after}"
            fields.append((as_is if after.strip(BLANKS) else inside, True))
        if not separator:
            break
        at = match.end()
    return fields


def names_in(record: str, style: CsvStyle) -> list[str]:
    """Return the names in a header. It may begin with a byte order mark, as each file of a writer may."""
    return [text for text, _ in split(record.removeprefix("\ufeff"), style)]


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
    return _by_halves(texts, kind, hexes=hexes)


def _by_halves(texts: pa.StringArray, kind: pa.DataType, *, hexes: bool) -> tuple[pa.Array, list[int]]:
    column = _at_once(texts, kind, hexes=hexes)
    if column is not None:
        return column, []
    # Arrow does not name the cell that it refuses. Halving finds it, and converts all the others at full
    # speed.
    if len(texts) > FEW_CELLS:
        middle = len(texts) // 2
        left, left_invalid = _by_halves(texts[:middle], kind, hexes=hexes)
        right, right_invalid = _by_halves(texts[middle:], kind, hexes=hexes)
        return pa.concat_arrays([left, right]), left_invalid + [index + middle for index in right_invalid]
    cells = [_cell(texts[index : index + 1], kind) for index in range(len(texts))]
    invalid = [index for index, cell in enumerate(cells) if cell is None]
    return pa.concat_arrays([pa.nulls(1, kind) if cell is None else cell for cell in cells]), invalid


def _at_once(texts: pa.StringArray, kind: pa.DataType, *, hexes: bool) -> pa.Array | None:
    """Convert all texts with Arrow; None if it would not convert each of them as Spark does."""
    if kind == texts.type:
        return texts
    if pa.types.is_boolean(kind):
        lower = pc.utf8_lower(texts)
        true = pc.equal(lower, text_scalar("true"))
        return None if _any(pc.invert(pc.or_(true, pc.equal(lower, text_scalar("false"))))) else true
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


def _cell(text: pa.StringArray, kind: pa.DataType) -> pa.Array | None:
    """Convert one text; return None if it is not a value of the type."""
    cell = _at_once(text, kind, hexes=True)
    if cell is not None or pa.types.is_boolean(kind) or pa.types.is_binary(kind):
        return cell
    convert = _whole if pa.types.is_signed_integer(kind) else _floating
    return conversion(lambda value: pa.array([convert(value, kind)], kind), text[0].as_py())[0]


def _whole(text: str, _kind: pa.DataType) -> int:
    # A 64-bit number has at most 19 digits, and int() takes quadratic time for long texts.
    if not _WHOLE.fullmatch(text) or len(text.lstrip("+-0")) > 19:
        raise ValueError("is not a whole number")
    return int(text)


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
