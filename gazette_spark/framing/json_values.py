"""JSON values to values of one Arrow type, value by value: the exact and slow half of ``framing.json``.

A converter gets a value from the ``json`` module (numbers as text, so that no digit is lost) and its raw
text. It returns a value that :func:`pyarrow.array` accepts for the type. It raises ValueError when the value
does not fit. Wherever ``pyarrow.json`` accepts a value, the answer here is the same.
"""

from __future__ import annotations

import base64
import decimal
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from gazette_spark.errors import OptionError
from gazette_spark.framing.timestamps import (
    MICROS_PER_S,
    UTC,
    gregorian,
    in_range,
    offset_s,
    parse_date,
    parse_local_timestamp,
    parse_timestamp,
)

if TYPE_CHECKING:
    from gazette_spark.framing.date_patterns import DatePattern

Convert = Callable[[object, str], object]

_WHOLE = re.compile(r"-?[0-9]+")
_NUMBER_START = "-0123456789NI"
"""First characters of a JSON number, NaN and Infinity included, as both parsers read them."""

_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DAYS = re.compile(r"[+-]?\d{1,12}")
_BASE64 = re.compile(r"([\0- ]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*+[\0- ]*")
_NON_FINITE = {
    "NaN": "nan",
    "+INF": "inf",
    "+Infinity": "inf",
    "Infinity": "inf",
    "-INF": "-inf",
    "-Infinity": "-inf",
}
"""Strings that Spark reads as floating point numbers."""

_DECIMALS = decimal.Context(
    prec=76, rounding=decimal.ROUND_HALF_UP, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX
)


def _pattern(text: str | None) -> DatePattern | None:
    """Return a pattern, None for a missing one; ValueError when it is unknown."""
    if text is None:
        return None
    # Few queries have one.
    from gazette_spark.framing.date_patterns import DatePattern

    return DatePattern(text)


@dataclass(frozen=True, slots=True)
class JsonDialect:
    """Allowed forms of JSON values: the options of Spark's JSON reader by their names. Can be pickled."""

    time_zone: str = UTC
    """The zone of timestamps that name none."""
    allow_single_quotes: bool = True
    allow_non_numeric_numbers: bool = True
    date_format: str | None = None
    """Pattern of dates; None: any of the shapes in ``framing.moments``, as for the other two."""
    timestamp_format: str | None = None
    timestamp_ntz_format: str | None = None

    def __post_init__(self) -> None:
        formats = {
            "dateFormat": self.date_format,
            "timestampFormat": self.timestamp_format,
            "timestampNTZFormat": self.timestamp_ntz_format,
        }
        for option, text in formats.items():
            try:
                _pattern(text)
            except ValueError as error:
                expected = "a pattern such as yyyy-MM-dd HH:mm:ss.SSSXXX"
                raise OptionError(option, f"{text!r} ({error})", expected) from None
        try:
            offset_s(self.time_zone, 0)
        except ValueError:
            expected = "a time zone such as Europe/Paris, UTC or +01:00"
            raise OptionError("timeZone", repr(self.time_zone), expected) from None

    def usual_zone(self, kind: pa.DataType) -> str | None:
        """Return the zone of a type's texts that name none; None where they follow a pattern."""
        given = self.timestamp_ntz_format if pa.types.is_timestamp(kind) and kind.tz is None else None
        given = self.timestamp_format if pa.types.is_timestamp(kind) and kind.tz else given
        given = self.date_format if pa.types.is_date(kind) else given
        return None if given else self.time_zone


SPARKS = JsonDialect()
"""Default dialect of Spark's reader, in a session whose zone is UTC."""


def converter(kind: pa.DataType, dialect: JsonDialect = SPARKS) -> Convert | None:
    """Return the converter of a type without children, None when JSON cannot give it."""
    if pa.types.is_decimal128(kind):
        return lambda value, raw: _decimal(value, raw, kind.precision, kind.scale)
    if pa.types.is_signed_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return lambda _value, raw: _whole(raw, -most, most - 1)
    if pa.types.is_timestamp(kind):
        return _timestamps(dialect, local=kind.tz is None) if kind.unit == "us" else None
    if pa.types.is_date32(kind) and dialect.date_format:
        dates = _pattern(dialect.date_format)
        assert dates is not None
        return lambda value, raw: dates.date(_text(value, raw))
    if pa.types.is_floating(kind) and not dialect.allow_non_numeric_numbers:
        return _finite(_PLAIN[kind])
    return _PLAIN.get(kind)


def is_variant(kind: pa.DataType) -> bool:
    """Tell whether an Arrow type is the one Spark has for VARIANT."""
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["value", "metadata"]:
        return False
    return (kind.field("metadata").metadata or {}).get(b"variant") == b"true"


def utf8(value: str) -> str:
    """Return text that can be stored: a surrogate without its partner becomes ``?``, as in Java."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def decode_base64(value: str) -> bytes:
    """Decode base64 text, as Spark does for binary columns; ValueError when it is not."""
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        if not _BASE64.fullmatch(value):
            raise
    # White space before each four letters, and letters after a padding: Spark's parser allows both.
    letters = re.sub(r"[\0- ]", "", value)
    return b"".join(base64.b64decode(letters[at : at + 4]) for at in range(0, len(letters), 4))


def _boolean(value: object, _raw: str) -> object:
    if isinstance(value, bool):
        return value
    raise ValueError("is not true or false")


def _whole(raw: str, least: int, most: int) -> int:
    # A 64-bit number has 19 digits: longer texts are refused unread, int() takes quadratic time on them.
    if not _WHOLE.fullmatch(raw) or len(raw) > 20:
        raise ValueError("is not a whole number in range")
    number = int(raw)
    if not least <= number <= most:
        raise ValueError("is out of range")
    return number


def _double(value: object, raw: str) -> float:
    return float(_floating(value, raw))


def _float(value: object, raw: str) -> object:
    # Arrow's own cast: going through a double would round twice.
    return pa.scalar(_floating(value, raw)).cast(pa.float32()).as_py()


def _floating(value: object, raw: str) -> str:
    if raw[0] in _NUMBER_START:
        return raw
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    raise ValueError("is not a number")


def _decimal(value: object, raw: str, precision: int, scale: int) -> decimal.Decimal:
    text = raw if raw[0] in _NUMBER_START else value.replace(",", "") if isinstance(value, str) else ""
    if not _DECIMAL.fullmatch(text):
        raise ValueError("is not a decimal number")
    try:
        number = _DECIMALS.create_decimal(text).quantize(decimal.Decimal(1).scaleb(-scale), context=_DECIMALS)
    except decimal.DecimalException as error:
        raise ValueError("is out of range") from error
    if len(number.as_tuple().digits) > precision:
        raise ValueError("has more digits than the column")
    return number


def _string(value: object, raw: str) -> str:
    return utf8(value if raw[0] == '"' and isinstance(value, str) else raw)


def _binary(value: object, raw: str) -> bytes:
    return decode_base64(_text(value, raw))


def _finite(convert: Convert) -> Convert:
    def finite(value: object, raw: str) -> object:
        if raw[0] == '"':
            raise ValueError("is not a number")
        return convert(value, raw)

    return finite


def _date(value: object, raw: str) -> int:
    text = _text(value, raw)
    try:
        return _forgiving(parse_date, text)
    except ValueError:
        # As Spark 1.5 wrote dates; Spark reads them to this day.
        if not _DAYS.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
            raise
        return gregorian(int(text))


def _timestamps(dialect: JsonDialect, *, local: bool) -> Convert:
    """Return the converter of timestamps, whose texts have no zone if they are ``local``."""
    zone, given = dialect.time_zone, dialect.timestamp_ntz_format if local else dialect.timestamp_format
    pattern = _pattern(given)

    def parse(text: str) -> int:
        if local:
            return pattern.local_timestamp(text) if pattern else parse_local_timestamp(text)
        return (
            pattern.timestamp(text, zone) if pattern else _forgiving(lambda t: parse_timestamp(t, zone), text)
        )

    def timestamp(value: object, raw: str) -> int:
        if _WHOLE.fullmatch(raw):
            return in_range(_whole(raw, -(2**63), 2**63 - 1) * MICROS_PER_S)
        return parse(_text(value, raw))

    return timestamp if not local else lambda value, raw: parse(_text(value, raw))


def _text(value: object, raw: str) -> str:
    if raw[0] != '"' or not isinstance(value, str):
        raise ValueError("is not a string")
    return value


def _forgiving(parse: Callable[[str], int], text: str) -> int:
    """Parse a text, or if that fails, without "GMT" in it, as Spark does for its first versions' sake."""
    try:
        return parse(text)
    except ValueError:
        if "GMT" not in text:
            raise
        return parse(text.replace("GMT", ""))


_PLAIN: dict[pa.DataType, Convert] = {
    pa.bool_(): _boolean,
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): _string,
    pa.binary(): _binary,
    pa.date32(): _date,
}
