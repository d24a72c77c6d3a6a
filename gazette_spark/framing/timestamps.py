"""Texts to dates and timestamps, as Spark's readers and casts read them when no pattern is given.

A date is days since 1970-01-01, a timestamp microseconds since then, both in the proleptic Gregorian
calendar and as far as the column's bits go: years 0 and 10000 are fine. Accepted texts::

    [+-]yyyy*[-[m]m[-[d]d[( |T)...]]]                             a date
    [+-]yyyy*[-[m]m[-[d]d[( |T)[h]h[:[m]m[:[s]s[.[f*]][zone]]]]]] a timestamp

with white space around it. Text after a date is ignored, and so are digits of a fraction past the
sixth. Zones are those of Java: ``Z``, offsets up to 18 hours such as ``+1``, ``+01:30`` and ``+013000``,
these after ``UTC``, ``GMT`` or ``UT``, and names such as ``Europe/Paris``, for which the machine needs a time
zone database. A time alone, which Spark reads as a time of today, is no timestamp here: a record must not
give another row tomorrow.
"""

from __future__ import annotations

import datetime
import functools
import re
from typing import TYPE_CHECKING

from gazette_spark.errors import MissingZonesError

if TYPE_CHECKING:
    import zoneinfo

UTC = "UTC"

_SPACE = "".join(map(chr, [*range(0x21), 0x7F]))
"""White space that may surround a value and is not part of it."""

_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*+))?((?![0-9.]).+)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(r"([+-])(?:([0-9])|([0-9]{2})(?::([0-9]{2})(?::([0-9]{2}))?|([0-9]{2})([0-9]{2})?)?)")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")

MICROS_PER_S = 1_000_000
_DAY_S = 86_400
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LONGEST_OFFSET_S = 18 * 3600
_MAX_ZONE = 64
"""Characters of the longest zone that is looked up; the longest name that exists has 32. A text from a record
must not become a path of thousands of directories, nor stay in a cache."""


def parse_date(text: str) -> int:
    """Return the days of a date's text; ValueError when the text is invalid."""
    found = _DATE.fullmatch(text.strip(_SPACE))
    if not found:
        raise ValueError("is not a date")
    sign, year, month, day = found.groups()
    return date_in_range(days_of(_signed(sign, year), int(month or 1), int(day or 1)))


def parse_timestamp(text: str, zone: str = UTC) -> int:
    """Return the microseconds of a timestamp's text; in ``zone`` if the text names none.

    Raises:
        ValueError: it is no timestamp.
    """
    local_s, micros, named = _local(text)
    return in_range((local_s - offset_s(named or zone, local_s)) * MICROS_PER_S + micros)


def parse_local_timestamp(text: str) -> int:
    """Return the microseconds of a timestamp's text without a zone; ValueError when it has one."""
    local_s, micros, named = _local(text)
    if named is not None:
        raise ValueError("has a time zone")
    return in_range(local_s * MICROS_PER_S + micros)


def _local(text: str) -> tuple[int, int, str | None]:
    """Return seconds and microseconds as the text says them, and the zone, if it has one."""
    found = _TIMESTAMP.fullmatch(text.strip(_SPACE))
    if not found:
        raise ValueError("is not a timestamp")
    sign, year, month, day, hour, minute, second, fraction, named = found.groups()
    days = days_of(_signed(sign, year), int(month or 1), int(day or 1))
    of_day = seconds_of(int(hour or 0), int(minute or 0), int(second or 0))
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    return days * _DAY_S + of_day, micros, None if named is None else named.strip(_SPACE)


def _signed(sign: str, digits: str) -> int:
    return -int(digits) if sign == "-" else int(digits)


def date_in_range(days: int) -> int:
    """Return days that fit into 32 bits; ValueError for others."""
    if not -(2**31) <= days < 2**31:
        raise ValueError("is out of a date's range")
    return days


def in_range(micros: int) -> int:
    """Return microseconds that fit into 64 bits; ValueError for others."""
    if not -(2**63) <= micros < 2**63:
        raise ValueError("is out of a timestamp's range")
    return micros


def days_of(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date in the proleptic Gregorian calendar, with a year 0."""
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1]:
        raise ValueError("is no day of any year")
    if (month, day) == (2, 29) and (year % 4 or (year % 100 == 0 and year % 400)):
        raise ValueError("is no day of that year")
    # datetime knows the years 1 to 9999; the calendar repeats after 400.
    cycles, place = divmod(year - 1, 400)
    return datetime.date(place + 1, month, day).toordinal() + cycles * 146_097 - 719_163


def seconds_of(hour: int, minute: int, second: int) -> int:
    """Return the seconds of a time of day."""
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("is no time of day")
    return (hour * 60 + minute) * 60 + second


def offset_s(zone: str, local_s: int) -> int:
    """Return how far a zone is ahead of UTC when its clocks show a time.

    Of a time that they show twice the first counts; one that they skip counts as if they had not yet
    been put forward.

    Raises:
        ValueError: there is no such zone.
    """
    if len(zone) > _MAX_ZONE:
        raise ValueError("has a time zone that nobody knows")
    found = _zone(zone)
    if isinstance(found, int):
        return found
    # Outside the years that datetime knows zones do as they did in the first, or do in 400-year turns.
    days, of_day = divmod(local_s, _DAY_S)
    ordinal = days + 719_163
    if ordinal > 3_652_000:
        ordinal -= (ordinal - 3_652_000 + 146_096) // 146_097 * 146_097
    day = datetime.date.fromordinal(max(ordinal, 1))
    time = datetime.time(of_day // 3600, of_day // 60 % 60, of_day % 60)
    offset = datetime.datetime.combine(day, time, found).utcoffset()
    assert offset is not None, "a zone has an offset at all times"
    return int(offset.total_seconds())


@functools.lru_cache(maxsize=256)
def _zone(name: str) -> int | zoneinfo.ZoneInfo:
    """Return an offset in seconds, or a zone whose offset changes."""
    name = re.sub(r"([+-])([0-9]):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-][0-9]{2}):([0-9])$", r"\1:0\2", name)
    for prefix in ("UTC", "GMT", "UT", ""):
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and ((prefix and not rest) or (rest == "Z" and not prefix)):
            return 0
        if name.startswith(prefix) and rest[:1] in ("+", "-"):
            return _offset(rest)
    return _named(name)


def _offset(text: str) -> int:
    found = _OFFSET.fullmatch(text)
    if not found:
        raise ValueError("has a time zone that is none")
    sign, hour, hours, *rest = found.groups()
    minutes, seconds = (int(a or b or 0) for a, b in zip(rest[:2], rest[2:], strict=True))
    total = (int(hour or hours) * 60 + minutes) * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _LONGEST_OFFSET_S:
        raise ValueError("has a time zone out of range")
    return -total if sign == "-" else total


def _named(name: str) -> zoneinfo.ZoneInfo:
    if not _NAME.fullmatch(name) or name.startswith(("posix", "right")):
        raise ValueError("has a time zone that is none")
    # Most records name no zone, and Spark starts many processes.
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except Exception:  # noqa: BLE001  # A directory's name, or that of another file, may raise anything.
        if not _has_zones():
            raise MissingZonesError(name) from None
        raise ValueError("has a time zone that nobody knows") from None


def _has_zones() -> bool:
    import zoneinfo

    try:
        zoneinfo.ZoneInfo("Europe/Paris")
    except zoneinfo.ZoneInfoNotFoundError:
        return False
    return True
