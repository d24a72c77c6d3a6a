"""JSON values to what one Arrow type holds, value by value: the exact and slow half of ``framing.json``.

A converter takes a value as the ``json`` module gives it (numbers as text, so that none loses a digit)
and its raw text, and answers with what :func:`pyarrow.array` takes for the type. It raises ValueError
when the value does not fit. Wherever ``pyarrow.json`` accepts a value, the answer here is the same.
"""

from __future__ import annotations

import base64
import decimal
import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa

Convert = Callable[[object, str], object]

_WHOLE = re.compile(r"-?[0-9]+")
_NUMBER_START = "-0123456789NI"
"""First characters of a JSON number, NaN and Infinity included, as both parsers read them."""

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[ T].*)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,9}))?)?)?"
    r"(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
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
_MICROS = 1_000_000


def converter(kind: pa.DataType) -> Convert | None:
    """Return the converter of a type without children, None when JSON cannot give it."""
    if pa.types.is_decimal128(kind):
        return lambda value, raw: _decimal(value, raw, kind.precision, kind.scale)
    if pa.types.is_signed_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return lambda _value, raw: _whole(raw, -most, most - 1)
    if pa.types.is_timestamp(kind):
        return _timestamp if kind.unit == "us" else None
    return _PLAIN.get(kind)


def utf8(value: str) -> str:
    """Return text that can be stored: a surrogate without its partner becomes ``?``, as in Java."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def decode_base64(value: str) -> bytes:
    """Decode base64 text, as Spark does for binary columns; ValueError when it is not."""
    return base64.b64decode(value, validate=True)


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
    text = raw if raw[0] in _NUMBER_START else value
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
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
    if raw[0] != '"' or not isinstance(value, str):
        raise ValueError("is not a string")
    return decode_base64(value)


def _date(value: object, raw: str) -> int:
    found = _DATE.fullmatch(value) if raw[0] == '"' and isinstance(value, str) else None
    if not found:
        raise ValueError("is not a date")
    return _days(*found.groups())


def _timestamp(value: object, raw: str) -> int:
    if _WHOLE.fullmatch(raw):
        return _whole(raw, -(2**63) // _MICROS + 1, 2**63 // _MICROS - 1) * _MICROS
    found = _TIMESTAMP.fullmatch(value) if raw[0] == '"' and isinstance(value, str) else None
    if not found:
        raise ValueError("is not a timestamp")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    hours, minutes, seconds = (int(part or 0) for part in (hour, minute, second))
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError("is not a time of day")
    of_day = (hours * 60 + minutes) * 60 + seconds - _zone_seconds(zone)
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    return (_days(year, month, day) * 86_400 + of_day) * _MICROS + micros


def _zone_seconds(zone: str | None) -> int:
    if zone in {None, "Z"}:
        return 0
    assert zone is not None
    hours, minutes = int(zone[1:3]), int(zone[-2:] if len(zone) > 3 else 0)
    if hours > 23 or minutes > 59:
        raise ValueError("is not a zone offset")
    return (hours * 60 + minutes) * (-60 if zone[0] == "-" else 60)


def _days(year: str, month: str, day: str) -> int:
    # numpy knows the year 0, which Arrow and Spark have and datetime has not.
    return int(np.datetime64(f"{year}-{month:0>2}-{day:0>2}", "D").astype(np.int64))


_PLAIN: dict[pa.DataType, Convert] = {
    pa.bool_(): _boolean,
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): _string,
    pa.binary(): _binary,
    pa.date32(): _date,
}
