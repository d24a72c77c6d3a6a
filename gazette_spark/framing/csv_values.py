r"""Texts of CSV fields to values, as Spark's CSV reader has them.

A field's value comes from its text alone. Arrow converts a whole column at once where it and Spark agree on
the values of its texts. Where they do not, the column is halved until the rest is small, and the rest is
converted one by one. The forms of numbers are Java's, those of dates and timestamps are
:mod:`gazette_spark.framing.timestamps`' or a pattern's.

Where this differs from Spark, on purpose: digits are ASCII's, hexadecimal floating point numbers are invalid,
and timestamps need a date (Spark takes today's).
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark.framing.base import text_scalar
from gazette_spark.framing.csv_style import CsvStyle
from gazette_spark.framing.json_values import JsonDialect, decimal_of, text_converter
from gazette_spark.framing.text_columns import conversion, from_texts
from gazette_spark.framing.timestamps import parse_date

FEW = 8
"""Cells that are converted one by one where a column cannot be converted at once."""

TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp or "
    "timestamp_ntz"
)
"""Spark's types that fields can have."""

_HEX = r"^-?0[xX]"
"""Start of numbers that Arrow accepts and Spark does not."""
_WORDS = r"(?i)^[+-]?(nan|inf(inity)?)$"
_SPARKS_WORDS = r"^([+-]?(NaN|Infinity)|-?Inf)$"
"""Words that are numbers to Spark; Arrow reads them in any case."""

_WHOLE = re.compile(r"[+-]?[0-9]+")
# Possessive: what gives digits back takes quadratic time, which is minutes for a cell of 30 KB.
_FLOAT = re.compile(r"([+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?")
BLANKS = "".join(map(chr, range(33)))
"""Characters that Java's ``trim`` removes."""


def is_readable(kind: pa.DataType) -> bool:
    """Tell whether fields can be of a type."""
    plain = kind in (pa.bool_(), pa.string(), pa.binary(), pa.date32()) or _one_of(kind) is not None
    return plain or pa.types.is_decimal128(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")


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
        found = from_texts(texts, kind, _moment(kind, times), times.usual_zone(kind))
        return found.column, sorted(found.problems)
    if pa.types.is_decimal128(kind):
        found = from_texts(texts, kind, lambda text: _decimal(text, kind))
        return found.column, sorted(found.problems)
    return _converted(texts, kind, hexes=hexes)


def _converted(texts: pa.StringArray, kind: pa.DataType, *, hexes: bool) -> tuple[pa.Array, list[int]]:
    found = _at_once(texts, kind, hexes=hexes)
    if found is not None:
        return found, []
    if len(texts) > FEW:
        middle = len(texts) // 2
        left, bad = _converted(texts[:middle], kind, hexes=hexes)
        right, more = _converted(texts[middle:], kind, hexes=hexes)
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
    try:
        found = texts.cast(kind)
    except pa.ArrowException:
        return None
    return None if pa.types.is_floating(kind) and not _are_sparks(texts, found) else found


def _are_sparks(texts: pa.StringArray, numbers: pa.Array) -> bool:
    """Tell whether what Arrow read as no finite number is one to Spark."""
    odd = pc.invert(pc.is_finite(numbers))
    if not _any(odd):
        return True
    words = texts.filter(odd)
    words = words.filter(pc.match_substring_regex(words, _WORDS))
    return pc.all(pc.match_substring_regex(words, _SPARKS_WORDS)).as_py() is not False


def _booleans(texts: pa.StringArray) -> pa.BooleanArray | None:
    lower = pc.utf8_lower(texts)
    true = pc.equal(lower, text_scalar("true"))
    return None if _any(pc.invert(pc.or_(true, pc.equal(lower, text_scalar("false"))))) else true


def _one(text: pa.StringArray, kind: pa.DataType) -> pa.Array | None:
    """Convert one text, None when it is no value of the type."""
    found = _at_once(text, kind, hexes=True)
    if found is not None:
        return found
    convert = _one_of(kind)
    if convert is None:
        return None
    return conversion(lambda cell: pa.array([convert(cell, kind)], kind), text[0].as_py())[0]


def _one_of(kind: pa.DataType) -> Callable[[str, pa.DataType], object] | None:
    if pa.types.is_signed_integer(kind):
        return _whole
    return {pa.float32(): _floating, pa.float64(): _floating}.get(kind)


def _whole(text: str, _kind: pa.DataType) -> int:
    # A 64-bit number has 19 digits; int() takes quadratic time on long texts.
    if not _WHOLE.fullmatch(text) or len(text.lstrip("+-0")) > 19:
        raise ValueError("is no whole number")
    return int(text)


def _floating(text: str, kind: pa.DataType) -> object:
    found = _FLOAT.fullmatch(text.strip(BLANKS))
    trimmed = found[1] if found else text.strip(BLANKS)
    if not found and not re.fullmatch(_SPARKS_WORDS, trimmed):
        raise ValueError("is no number")
    # Arrow's own cast: going through a double would round twice.
    return pa.array([trimmed.removeprefix("+")]).cast(kind)[0].as_py()


def _decimal(text: str, kind: pa.DataType) -> decimal.Decimal:
    if not text.isascii():
        raise ValueError("is no decimal number")
    return decimal_of(text.replace(",", ""), kind)


def _moment(kind: pa.DataType, times: JsonDialect) -> Callable[[str], object]:
    """Return the converter of the text of a date or timestamp."""
    if pa.types.is_date(kind) and not times.date_format:
        return _date
    convert = text_converter(kind, times)
    assert convert is not None
    return convert


def _date(text: str) -> int:
    try:
        return parse_date(text)
    except ValueError:
        # Spark reads the format of its first versions; unlike in JSON, a number of days is no date.
        if "GMT" not in text:
            raise
        return parse_date(text.replace("GMT", ""))


def _any(flags: pa.BooleanArray) -> bool:
    return pc.any(flags).as_py() is True


def places(flags: pa.BooleanArray) -> list[int]:
    """Return the indices of set flags."""
    if not _any(flags):
        return []
    return [int(at) for at in pc.indices_nonzero(flags.fill_null(False)).to_pylist()]  # noqa: FBT003 - Arrow's name.
