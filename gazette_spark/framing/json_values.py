"""The types that JSON can give, the forms of their values, and the conversion of one text."""

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
    UTC,
    offset_s,
    parse_date,
    parse_local_timestamp,
    parse_timestamp,
)

if TYPE_CHECKING:
    from gazette_spark.framing.date_patterns import DatePattern

# Possessive: what gives digits back takes quadratic time, which is minutes for a text of 30 KB.
_DECIMAL = re.compile(r"[+-]?(\d++(?:\.\d*+)?|\.\d++)([eE][+-]?\d++)?")
_BASE64 = re.compile(r"([\0- ]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*+[\0- ]*")
_DECIMALS = decimal.Context(
    prec=76, rounding=decimal.ROUND_HALF_UP, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX
)
_LEAST_EXPONENT = -(1 << 29)
"""Java raises ten to no higher power, so to Spark a number with a smaller exponent is malformed; 0 is not."""
_LARGEST_SCALE = (1 << 31) - 1
"""Largest scale of Java's decimals, either way."""


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
    """Pattern of dates; None: any of the shapes in ``framing.timestamps``, as for the other two."""
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


def is_variant(kind: pa.DataType) -> bool:
    """Tell whether an Arrow type is the one Spark has for VARIANT."""
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["value", "metadata"]:
        return False
    return (kind.field("metadata").metadata or {}).get(b"variant") == b"true"


def readable(kind: pa.DataType) -> bool:
    """Tell whether JSON can give values of a type."""
    if is_variant(kind):
        return True
    if pa.types.is_struct(kind):
        return all(readable(field.type) for field in kind)
    if pa.types.is_list(kind):
        return readable(kind.value_type)
    if pa.types.is_map(kind):
        return bool(pa.types.is_string(kind.key_type)) and readable(kind.item_type)
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    plain = (pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float32(), pa.float64())
    return kind in plain or pa.types.is_signed_integer(kind) or pa.types.is_decimal128(kind)


def text_converter(kind: pa.DataType, dialect: JsonDialect) -> Callable[[str], object] | None:
    """Return the converter of one string's content, which raises ValueError; None where no string fits."""
    if pa.types.is_decimal128(kind):
        return lambda text: decimal_of(text.replace(",", ""), kind)
    if pa.types.is_timestamp(kind):
        return _timestamps(dialect, local=kind.tz is None)
    if pa.types.is_date32(kind):
        dates = _pattern(dialect.date_format)
        return dates.date if dates else lambda text: _forgiving(parse_date, text)
    return decode_base64 if pa.types.is_binary(kind) else None


def decimal_of(text: str, kind: pa.Decimal128Type) -> decimal.Decimal:
    """Return a decimal, rounded half up; ValueError when it does not fit."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError("is not a decimal number")
    try:
        unit = decimal.Decimal(1).scaleb(-kind.scale)
        number = _DECIMALS.create_decimal(text)
        least = _LEAST_EXPONENT if number else -_LARGEST_SCALE
        if not least <= number.adjusted() <= _LARGEST_SCALE:
            raise ValueError("has an exponent out of range")
        number = number.quantize(unit, context=_DECIMALS)
    except decimal.DecimalException as error:
        raise ValueError("is out of range") from error
    if len(number.as_tuple().digits) > kind.precision:
        raise ValueError("has more digits than the column")
    return number


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


def _timestamps(dialect: JsonDialect, *, local: bool) -> Callable[[str], int]:
    """Return the converter of timestamps, whose texts have no zone if they are ``local``."""
    zone, given = dialect.time_zone, dialect.timestamp_ntz_format if local else dialect.timestamp_format
    pattern = _pattern(given)
    if local:
        return pattern.local_timestamp if pattern else parse_local_timestamp
    if pattern:
        return lambda text: pattern.timestamp(text, zone)
    return lambda text: _forgiving(lambda t: parse_timestamp(t, zone), text)


def _forgiving(parse: Callable[[str], int], text: str) -> int:
    """Parse a text, or if that fails, without "GMT" in it, as Spark does for its first versions' sake."""
    try:
        return parse(text)
    except ValueError:
        if "GMT" not in text:
            raise
        return parse(text.replace("GMT", ""))
