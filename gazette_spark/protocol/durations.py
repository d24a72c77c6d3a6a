"""Converts durations from seconds, and from and to Go's text form, such as ``1h30m0s``."""

from __future__ import annotations

import re

from google.protobuf.duration_pb2 import Duration

from gazette_spark.errors import ProtocolError

_UNITS_NS = {
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "\u00b5s": 1_000,  # micro sign
    "\u03bcs": 1_000,  # Greek letter mu
    "ns": 1,
}
"""Nanoseconds of each unit."""

_PART = re.compile(r"(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(h|ms|m|s|us|\u00b5s|\u03bcs|ns)")
"""A number and its unit. The parser matches one at a time, because an expression that repeated them would try
every way to split a text."""

_MAX_DIGITS = 19
"""Number of digits of the largest 64-bit integer. Further digits of a fraction are less than nanoseconds."""


# Go's durations are 64-bit nanoseconds. It is also the maximum time that a thread of Python can wait.
MAX_DURATION_S = (1 << 63) // 1_000_000_000
"""Maximum seconds of a duration, about 292 years."""


def duration_of(seconds: float, where: str) -> Duration:
    """Return a number of seconds as a duration, rounded to nanoseconds. ``where`` names it in an error.

    Raises:
        ProtocolError: the number is infinite, or too large.
    """
    if not abs(seconds) < MAX_DURATION_S:
        raise ProtocolError(where, f"must be below 292 years, got {seconds:g} s")
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1_000_000_000))
    return duration


def parse_duration(text: str, where: str = "Duration") -> Duration:
    """Parse Go's text form of a duration.

    >>> parse_duration("1h30m").seconds
    5400
    """
    number = text.removeprefix("-" if text.startswith("-") else "+")
    at = total = 0
    while part := _PART.match(number, at):
        whole, decimals, unit = part[1].lstrip("0"), (part[2] or "")[:_MAX_DIGITS], _UNITS_NS[part[3]]
        if len(whole) > _MAX_DIGITS:
            raise ProtocolError(where, f"{text[:100]!r} is too long a duration")
        # Integers, because a float loses nanoseconds of durations over 104 days.
        total += int(whole or "0") * unit + int(decimals or "0") * unit // 10 ** len(decimals)
        at = part.end()
    # "0" is the only number that Go accepts without a unit.
    if not number or (at < len(number) and number != "0"):
        raise ProtocolError(where, f"{text[:100]!r} is not a duration such as '90s' or '1h30m'")
    if text.startswith("-"):
        total = -total
    # Go's durations are 64-bit nanoseconds, which limits them to 292 years.
    if not -(1 << 63) <= total < 1 << 63:
        raise ProtocolError(where, f"{text[:100]!r} is too long a duration")
    duration = Duration()
    duration.FromNanoseconds(total)
    return duration


def format_duration(duration: Duration) -> str:
    """Return Go's text form of a duration.

    >>> format_duration(Duration(seconds=5400))
    '1h30m0s'
    """
    total = duration.ToNanoseconds()
    sign, total = ("-", -total) if total < 0 else ("", total)
    # Below a second, Go uses the largest unit that fits.
    if total < _UNITS_NS["s"]:
        unit = next((unit for unit in ("ms", "\u00b5s", "ns") if total >= _UNITS_NS[unit]), None)
        return f"{sign}{_decimal(total, _UNITS_NS[unit])}{unit}" if unit else "0s"
    minutes, rest = divmod(total, _UNITS_NS["m"])
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, _UNITS_NS['s'])}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def _decimal(value: int, scale: int) -> str:
    whole, rest = divmod(value, scale)
    digits = f"{rest:0{len(str(scale)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)
