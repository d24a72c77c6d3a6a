r"""Records of CSV to the user's columns: field by field, in the order of the schema.

The fast half splits a whole block with ``pyarrow.csv`` and converts each column at once; the exact half
splits one record. A field's value comes from its text alone and from one function, for both: that of
:mod:`gazette_spark.framing.csv_values`. So a row never depends on its neighbours. A field that is invalid for
its column becomes null and makes its record malformed, as too few or too many fields do; the other fields
keep their values.

Fields mean what they mean to Spark's CSV reader, odd quotes included; but a ``\r`` at a record's end belongs
to no field.

Every writer may begin with a header, so a header is known by its content and not by its place: with
``header`` set, a record that names the columns in the schema's order gives no row, wherever it is. And the
first record of a journal has to be one: a header that names other columns would fill the wrong ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from gazette_spark.errors import OptionError, RecordError
from gazette_spark.framing.base import Block, invalid_utf8_at, text_scalar
from gazette_spark.framing.csv import RETURN, quote_positions
from gazette_spark.framing.csv_style import SPARKS_STYLE, CsvStyle
from gazette_spark.framing.csv_values import BLANKS, TYPES, converted, is_readable, places
from gazette_spark.framing.lines import NEWLINE
from gazette_spark.framing.rows import BlockRefusal, Columns, HalvesParser, Row, RowFormat

_BOM = b"\xef\xbb\xbf"
_LONE_RETURN = re.compile(rb"\r(?!\n)")


@dataclass(frozen=True, slots=True)
class CsvFormat(RowFormat):
    """Format of CSV records and the wanted columns. Can be pickled."""

    style: CsvStyle = SPARKS_STYLE

    def __post_init__(self) -> None:
        RowFormat.__post_init__(self)
        if self.rescued_column is not None:
            raise OptionError("rescuedDataColumn", repr(self.rescued_column), "to be used with format=json")
        for field in self.data_fields:
            if not is_readable(field.type):
                raise OptionError("schema", f"{field.name} {field.type}", TYPES)
        if not self.data_fields:
            raise OptionError("schema", "no column of the records", "a column for each field, in order")


class CsvParser(HalvesParser):
    """Parses blocks of CSV records. For one thread.

    ``fast=False`` leaves out the fast half: for tests and for measuring.
    """

    def __init__(self, wanted: CsvFormat, *, header: bool = False, fast: bool = True) -> None:
        fields = wanted.data_fields
        reader = FastReader(fields, wanted.style, header=header) if fast else None
        super().__init__(wanted, ExactReader(fields, wanted.style, header=header), reader)
        self._style = wanted.style
        self._header = [field.name for field in fields] if header else []

    def record_batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Yield record batches; see :meth:`gazette_spark.framing.rows.RowParser.record_batches`.

        Raises:
            RecordError: also if a journal does not begin with the header it should have.
        """
        return super().record_batches(map(self._checked, blocks))

    def _checked(self, block: Block) -> Block:
        if self._header and block.offset == 0 and len(block):
            first = block.record(0).decode("utf-8", "replace").removeprefix("\ufeff")
            names = [text for text, _ in split(first, self._style)]
            if names != self._header:
                problem = f"is no header: header=true, and it has {names} where the schema has {self._header}"
                raise RecordError(block.journal, 0, problem)
        return block


class ExactReader:
    """Reads records by a schema. Immutable."""

    def __init__(self, fields: Sequence[pa.Field], style: CsvStyle, *, header: bool) -> None:
        self._fields = tuple(fields)
        self._style = style
        self._header = [field.name for field in fields] if header else None

    def row(self, record: bytes) -> Row:
        """Read one record. Never raises, whatever its bytes."""
        try:
            text = record.decode()
        except UnicodeDecodeError as error:
            return Row(None, f"not UTF-8 at byte {error.start}")
        cells = split(text, self._style)
        if self._header and [cell.removeprefix("\ufeff") for cell, _ in cells] == self._header:
            return Row(None, None, left_out=True)
        problems = []
        if len(cells) != len(self._fields):
            problems.append(f"has {len(cells)} fields, not {len(self._fields)}")
        values: dict[str, object] = {}
        for field, (cell, quoted) in zip(self._fields, cells, strict=False):
            meant = cell if cell or not quoted else self._style.empty_value
            if meant == self._style.null_value or (not cell and not quoted):
                continue
            found, bad = converted(pa.array([meant], pa.string()), field.type, self._style)
            # Values go through numbers where Python has no type wide enough: the year 0, for one.
            values[field.name] = found[0]
            problems += [f"field {field.name} is no {field.type}" for _ in bad]
        return Row(values, problems[0] if problems else None)


class FastReader:
    """Reads blocks by a schema. Immutable."""

    def __init__(self, fields: Sequence[pa.Field], style: CsvStyle, *, header: bool) -> None:
        self._fields = tuple(fields)
        self._style = style
        self._header = text_scalar(fields[0].name) if header else None
        names = [field.name for field in fields]
        self._convert = pcsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            # Then "" would be one, whatever emptyValue is.
            quoted_strings_can_be_null=False,
        )
        self._names = names

    @property
    def usable(self) -> bool:
        """Tell that it knows all types that there are."""
        return True

    def columns(self, block: Block) -> Columns | BlockRefusal:
        """Return the columns by name, or a refusal when a record has another number of fields."""
        suspect = _suspect(block, self._style)
        if suspect is not None:
            return BlockRefusal([suspect])
        wrong: list[int] = []

        def note(row: pcsv.InvalidRow) -> str:
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
        if table.num_rows != len(block):
            return BlockRefusal()
        texts = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table]
        if self._header is not None and len(at := places(pc.equal(texts[0], self._header))):
            return BlockRefusal(at[:1])
        return self._converted(texts, hexes=b"0x" in block.data or b"0X" in block.data)

    def _converted(self, texts: Sequence[pa.StringArray], *, hexes: bool) -> Columns:
        values: dict[str, pa.Array] = {}
        problems: dict[int, str] = {}
        for field, column in zip(self._fields, texts, strict=True):
            meant = self._meant(column)
            values[field.name], bad = converted(meant, field.type, self._style, hexes=hexes)
            for index in bad:
                problems.setdefault(index, f"field {field.name} is no {field.type}")
        return Columns(values, problems)

    def _meant(self, texts: pa.StringArray) -> pa.StringArray:
        """Return texts with the null value as null, and empty quoted fields as ``empty_value``."""
        style = self._style
        if style.empty_value:
            empty = pc.equal(texts, text_scalar(""))
            texts = pc.if_else(empty, text_scalar(style.empty_value), texts)
        null = pc.equal(texts, text_scalar(style.null_value))
        if pc.any(null).as_py():
            texts = pc.if_else(null, pa.nulls(1, pa.string())[0], texts)
        return texts


def split(record: str, style: CsvStyle) -> list[tuple[str, bool]]:
    r"""Return the fields of a record, and whether each is quoted; a ``\r`` at its end is left out."""
    text = record.removesuffix("\r")
    if not style.quote:
        return [(field, False) for field in text.split(style.separator)]
    expression, double = field_expression(style), style.quote * 2
    fields = []
    at = 0
    while found := expression.match(text, at):
        inside, after, plain, separator = found.groups()
        if inside is None:
            fields.append((plain, False))
        else:
            inside = inside.replace(double, style.quote)
            # Blanks behind a closing quote are left out; anything else makes quotes characters like others.
            as_is = f"{style.quote}{inside}{style.quote}{after}"
            fields.append((as_is if after.strip(BLANKS) else inside, True))
        if not separator:
            break
        at = found.end()
    return fields


@cache
def field_expression(style: CsvStyle) -> re.Pattern[str]:
    """Return the pattern of a field and the separator behind it."""
    quote, separator = re.escape(style.quote), re.escape(style.separator)
    inside = f"{quote}((?:[^{quote}]|{quote}{quote})*){quote}([^{separator}]*)"
    return re.compile(f"(?:{inside}|([^{separator}]*))({separator}|\\Z)")


def _suspect(block: Block, style: CsvStyle) -> int | None:
    """Return the first record that Arrow would read in another way, None if Arrow reads all of them well.

    Such a record is not UTF-8, or has an odd return, or a quote that neither begins a field nor ends one.
    """
    data = block.data
    found = [_odd_quote(data, style)]
    if data.startswith(_BOM):
        found.append(0)
    if (at := invalid_utf8_at(data)) >= 0:
        found.append(at)
    if b"\r" in data and (lone := _LONE_RETURN.search(data)):
        found.append(lone.start())
    odd = [at for at in found if at is not None]
    return int(np.searchsorted(block.ends, min(odd))) if odd else None


def _odd_quote(data: bytes, style: CsvStyle) -> int | None:
    """Return the index of the first quote inside a field, or of one that ends a field before its end."""
    quotes = quote_positions(data, style.quote)
    if not len(quotes):
        return None
    octets = np.frombuffer(data + b"\n\n", np.uint8)
    separator, quote = ord(style.separator), ord(style.quote)
    opening, closing = quotes[0::2], quotes[1::2]
    before, behind = octets[opening - 1], octets[closing + 1]
    begins = (before == separator) | (before == NEWLINE) | (opening == 0)
    begins[1:] |= opening[1:] - 1 == closing[: len(opening) - 1]
    ends = (behind == separator) | (behind == NEWLINE) | (behind == quote)
    ends |= (behind == RETURN) & (octets[closing + 2] == NEWLINE)
    odd = np.concatenate([opening[~begins][:1], closing[~ends][:1]])
    return int(odd.min()) if len(odd) else None
