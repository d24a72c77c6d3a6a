r"""Records of CSV to the user's columns: field by field, in the order of the schema.

The fast half splits a whole block with ``pyarrow.csv`` and converts each column at once; the exact half
splits one record. A field's value comes from its text alone and from one function, for both: Arrow's own
conversion, or else one that knows more forms of dates, timestamps and decimals. So a row never depends on
its neighbours. A field that is no value of its column becomes null and makes its record malformed, as too
few or too many fields do; the other fields count.

As in Spark's CSV reader an empty field is null, and ``""`` is an empty string. Where this differs, on
purpose: timestamps and dates have the forms that they have in JSON (a timestamp without a zone is UTC),
white space is part of a field, and the only separator is the comma.

Every writer may begin with a header, so a header is known by what it says and not by where it stands: with
``header`` set, a record that names the columns in the schema's order gives no row, wherever it is. And the
first record of a journal has to be one: a header that names other columns would fill the wrong ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from gazette_spark.errors import OptionError, RecordError
from gazette_spark.framing.base import Block, text_scalar
from gazette_spark.framing.json_values import converter
from gazette_spark.framing.rows import Columns, Refusal, Row, RowFormat, RowParser

FEW = 8
"""Cells that are converted one by one where a column cannot be converted at once."""

_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"([^,]*)|([^,]*))(,|\Z)')
_HEX = r"^-?0[xX]"
"""How a number begins that Arrow reads and nobody else does."""
_BOM = b"\xef\xbb\xbf"
_LONE_RETURN = re.compile(rb"\r(?!\n)")


class CsvFormat(RowFormat):
    """What is wanted from CSV records. Can be pickled."""

    def __post_init__(self) -> None:
        RowFormat.__post_init__(self)
        if self.rescued_column is not None:
            raise OptionError("rescuedDataColumn", repr(self.rescued_column), "to be used with format=json")
        for field in self.data_fields:
            if converter(field.type) is None:
                raise OptionError("schema", f"{field.name} {field.type}", _TYPES)
        if not self.data_fields:
            raise OptionError("schema", "no column of the records", "a column for each field, in order")


class CsvParser(RowParser):
    """Parses blocks of CSV records. For one thread.

    ``fast=False`` leaves out the fast half: for tests and for measuring.
    """

    def __init__(self, wanted: CsvFormat, *, header: bool = False, fast: bool = True) -> None:
        fields = wanted.data_fields
        reader = FastReader(fields, header=header) if fast else None
        super().__init__(wanted, ExactReader(fields, header=header), reader)
        self._header = [field.name for field in fields] if header else []

    def record_batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Yield record batches; see :meth:`RowParser.record_batches`.

        Raises:
            RecordError: also if a journal does not begin with the header it should have.
        """
        return super().record_batches(map(self._checked, blocks))

    def _checked(self, block: Block) -> Block:
        if self._header and block.offset == 0 and len(block):
            first = block.record(0).decode("utf-8", "replace").removeprefix("\ufeff")
            names = [text for text, _ in split(first)]
            if names != self._header:
                problem = f"is no header: header=true, and it has {names} where the schema has {self._header}"
                raise RecordError(block.journal, 0, problem)
        return block


class ExactReader:
    """Reads records by a schema. Immutable."""

    def __init__(self, fields: Sequence[pa.Field], *, header: bool) -> None:
        self._fields = tuple(fields)
        self._header = [field.name for field in fields] if header else None

    def row(self, record: bytes) -> Row:
        """Read one record. Never raises, whatever the bytes."""
        try:
            text = record.decode()
        except UnicodeDecodeError as error:
            return Row(None, f"not UTF-8 at byte {error.start}")
        cells = split(text)
        if self._header and [cell.removeprefix("\ufeff") for cell, _ in cells] == self._header:
            return Row(None, None, left_out=True)
        problems = []
        if len(cells) != len(self._fields):
            problems.append(f"has {len(cells)} fields, not {len(self._fields)}")
        values: dict[str, object] = {}
        for field, (cell, quoted) in zip(self._fields, cells, strict=False):
            if not cell and not quoted:
                continue
            found, bad = converted(pa.array([cell], pa.string()), field.type)
            # Values go through numbers where Python has no type wide enough: the year 0, for one.
            values[field.name] = found[0]
            problems += [f"field {field.name} is no {field.type}" for _ in bad]
        return Row(values, problems[0] if problems else None)


class FastReader:
    """Reads blocks by a schema. Immutable."""

    def __init__(self, fields: Sequence[pa.Field], *, header: bool) -> None:
        self._fields = tuple(fields)
        self._header = text_scalar(fields[0].name) if header else None
        names = [field.name for field in fields]
        self._convert = pcsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        self._names = names

    @property
    def usable(self) -> bool:
        """Tell that it knows all types that there are."""
        return True

    def columns(self, block: Block) -> Columns | Refusal:
        """Return the columns by name, or a refusal when a record is none of so many fields."""
        suspect = _suspect(block)
        if suspect is not None:
            return Refusal(suspect)
        wrong: list[int] = []

        def note(row: pcsv.InvalidRow) -> str:
            wrong.append(row.number or 0)
            return "error"

        read = pcsv.ReadOptions(use_threads=False, block_size=len(block.data) + 1, column_names=self._names)
        parse = pcsv.ParseOptions(newlines_in_values=True, invalid_row_handler=note)
        try:
            table = pcsv.read_csv(pa.BufferReader(block.data), read, parse, self._convert)
        except pa.ArrowException:
            return Refusal(min(max(0, wrong[0] - 1), len(block) - 1) if wrong else None)
        if table.num_rows != len(block):
            return Refusal(None)
        texts = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table]
        if self._header is not None and len(at := _places(pc.equal(texts[0], self._header))):
            return Refusal(at[0])
        return self._converted(texts, hexes=b"0x" in block.data or b"0X" in block.data)

    def _converted(self, texts: Sequence[pa.StringArray], *, hexes: bool) -> Columns:
        values: dict[str, pa.Array] = {}
        problems: dict[int, str] = {}
        for field, column in zip(self._fields, texts, strict=True):
            values[field.name], bad = converted(column, field.type, hexes=hexes)
            for index in bad:
                problems.setdefault(index, f"field {field.name} is no {field.type}")
        return Columns(values, problems)


def split(record: str) -> list[tuple[str, bool]]:
    r"""Return the fields of a record, and whether each is quoted; a ``\r`` at its end is left out."""
    text = record.removesuffix("\r")
    fields = []
    at = 0
    while found := _FIELD.match(text, at):
        inside, after, plain, comma = found.groups()
        fields.append((plain, False) if inside is None else (inside.replace('""', '"') + after, True))
        if not comma:
            break
        at = found.end()
    return fields


def converted(texts: pa.StringArray, kind: pa.DataType, *, hexes: bool = True) -> tuple[pa.Array, list[int]]:
    """Convert texts to values of a type.

    Args:
        texts: Any texts, and nulls.
        kind: What they are to be.
        hexes: Whether there may be a hexadecimal number among them.

    Returns:
        The values, and the indices of texts that are none: their values are null.
    """
    found = _at_once(texts, kind, hexes=hexes)
    if found is not None:
        return found, []
    if len(texts) > FEW:
        middle = len(texts) // 2
        left, bad = converted(texts[:middle], kind, hexes=hexes)
        right, more = converted(texts[middle:], kind, hexes=hexes)
        return pa.concat_arrays([left, right]), bad + [index + middle for index in more]
    cells = [_one(texts[index : index + 1], kind) for index in range(len(texts))]
    lost = [index for index, cell in enumerate(cells) if cell is None]
    return pa.concat_arrays([pa.nulls(1, kind) if cell is None else cell for cell in cells]), lost


def _at_once(texts: pa.StringArray, kind: pa.DataType, *, hexes: bool) -> pa.Array | None:
    """Convert all texts as Arrow does, None when it cannot do that with each of them."""
    if kind == texts.type:
        return texts
    if pa.types.is_boolean(kind):
        return _booleans(texts)
    if hexes and pa.types.is_signed_integer(kind) and _any(pc.match_substring_regex(texts, _HEX)):
        return None
    kinds = [kind, pa.timestamp(kind.unit), kind] if pa.types.is_timestamp(kind) and kind.tz else [kind]
    for first in kinds[:2]:
        try:
            found = texts.cast(first)
        except pa.ArrowException:
            continue
        return found if first == kind else found.cast(kind)
    return None


def _booleans(texts: pa.StringArray) -> pa.BooleanArray | None:
    lower = pc.utf8_lower(texts)
    true = pc.equal(lower, text_scalar("true"))
    return None if _any(pc.invert(pc.or_(true, pc.equal(lower, text_scalar("false"))))) else true


def _one(text: pa.StringArray, kind: pa.DataType) -> pa.Array | None:
    """Convert one text, None when it is no value of the type."""
    found = _at_once(text, kind, hexes=True)
    if found is not None:
        return found
    convert = converter(kind)
    assert convert is not None
    try:
        return pa.array([convert(text[0].as_py(), '"')], kind)
    except ValueError:
        return None


def _any(flags: pa.BooleanArray) -> bool:
    return pc.any(flags).as_py() is True


def _places(flags: pa.BooleanArray) -> list[int]:
    if not _any(flags):
        return []
    return [int(at) for at in pc.indices_nonzero(flags.fill_null(False)).to_pylist()]  # noqa: FBT003 - Arrow's name.


def _suspect(block: Block) -> int | None:
    """Return the first record that Arrow would read in another way: not UTF-8, or with an odd return."""
    data = block.data
    at = 0 if data.startswith(_BOM) else -1
    if at < 0 and not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            at = error.start
    if b"\r" in data and (lone := _LONE_RETURN.search(data, 0, len(data) if at < 0 else at)):
        at = lone.start()
    return None if at < 0 else int(np.searchsorted(block.ends, at))


_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp or "
    "timestamp_ntz"
)
