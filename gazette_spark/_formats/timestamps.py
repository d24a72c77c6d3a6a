"""Converts texts to dates and timestamps as Spark's readers and casts do, or by a user's pattern.

A date is a number of days since 1970-01-01, a timestamp a number of microseconds, both in the proleptic
Gregorian calendar and within the column's bits: years 0 and 10000 are valid. Without a pattern, these texts
are accepted::

    [+-]yyyy*[-[m]m[-[d]d[( |T)...]]]                             a date
    [+-]yyyy*[-[m]m[-[d]d[( |T)[h]h[:[m]m[:[s]s[.[f*]][zone]]]]]] a timestamp

with white space around them. Text after a date is ignored, and so are digits of a fraction after the sixth.
Zones are those of Java: ``Z``, offsets up to 18 hours such as ``+1``, ``+01:30`` and ``+013000``, the same
after ``UTC``, ``GMT`` or ``UT``, and names such as ``Europe/Paris``, which require a time zone database on
the machine. Spark reads a time without a date as a time of today. Here it is invalid, because a record must
not give a different row tomorrow.

Patterns are those of Spark's documentation ("datetime patterns"). These letters are supported:

======== ======================================= ========== =====================================
y        year; yy is 2000 to 2099                H, k       hour of the day, 0 to 23 or 1 to 24
M        month; MMM is Jan, MMMM January         h, K       hour of half a day, 1 to 12 or 0 to 11
d        day of the month                        a          AM or PM
m, s     minute, second                          S          fraction: SSS is one to three digits
X, x, Z  offset: X is Z or +01, XXX Z or +01:00  [ ], ' '   optional section, plain text
======== ======================================= ========== =====================================

Two letters stand for exactly two digits, one letter for any number of digits; with yyyy or more, a longer
year needs a sign. Text matches in any case, and names are English. A missing field defaults to that of
1970-01-01 00:00:00. A pattern becomes a regular expression with possessive parts, which never backtrack,
because Java's parser does not.
"""

from __future__ import annotations

import datetime
import functools
import re
from dataclasses import dataclass
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
_MAX_ZONE = 64
"""Maximum number of characters of a zone that is looked up; the longest existing name has 32. A text from a
record must not become a path of thousands of directories, nor stay in a cache."""


def parse_date(text: str) -> int:
    """Return the days of a date's text; raise ValueError if the text is invalid."""
    match = _DATE.fullmatch(text.strip(_SPACE))
    if not match:
        raise ValueError("is not a date")
    sign, year, month, day = match.groups()
    return date_in_range(days_of(_signed(sign, year), int(month or 1), int(day or 1)))


def parse_timestamp(text: str, zone: str = UTC) -> int:
    """Return the microseconds of a timestamp's text; in ``zone`` if the text names none.

    Raises:
        ValueError: it is not a timestamp.
    """
    local_s, micros, named = _local(text)
    return in_range((local_s - offset_s(named or zone, local_s)) * MICROS_PER_S + micros)


def parse_local_timestamp(text: str) -> int:
    """Return the microseconds of a timestamp's text without a zone; raise ValueError if it has one."""
    local_s, micros, named = _local(text)
    if named is not None:
        raise ValueError("has a time zone")
    return in_range(local_s * MICROS_PER_S + micros)


def _local(text: str) -> tuple[int, int, str | None]:
    """Return seconds and microseconds as they are in the text, and the zone, if it has one."""
    match = _TIMESTAMP.fullmatch(text.strip(_SPACE))
    if not match:
        raise ValueError("is not a timestamp")
    sign, year, month, day, hour, minute, second, fraction, named = match.groups()
    days = days_of(_signed(sign, year), int(month or 1), int(day or 1))
    of_day = seconds_of(int(hour or 0), int(minute or 0), int(second or 0))
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    return days * _DAY_S + of_day, micros, None if named is None else named.strip(_SPACE)


def _signed(sign: str, digits: str) -> int:
    return -int(digits) if sign == "-" else int(digits)


def date_in_range(days: int) -> int:
    """Return days that fit into 32 bits; raise ValueError for others."""
    if not -(2**31) <= days < 2**31:
        raise ValueError("is out of a date's range")
    return days


def in_range(micros: int) -> int:
    """Return microseconds that fit into 64 bits; raise ValueError for others."""
    if not -(2**63) <= micros < 2**63:
        raise ValueError("is out of a timestamp's range")
    return micros


def days_of(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date in the proleptic Gregorian calendar, with a year 0."""
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1]:
        raise ValueError("is not a day of any year")
    if (month, day) == (2, 29) and (year % 4 or (year % 100 == 0 and year % 400)):
        raise ValueError("is not a day of that year")
    # datetime supports the years 1 to 9999; the calendar repeats every 400 years.
    cycles, place = divmod(year - 1, 400)
    return datetime.date(place + 1, month, day).toordinal() + cycles * 146_097 - 719_163


def seconds_of(hour: int, minute: int, second: int) -> int:
    """Return the seconds of a time of day."""
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("is not a time of day")
    return (hour * 60 + minute) * 60 + second


def offset_s(zone: str, local_s: int) -> int:
    """Return how many seconds a zone is ahead of UTC when its clocks show a local time.

    If clocks show a time twice, the first counts. A time that they skip is read with the offset before the
    change.

    Raises:
        ValueError: the zone does not exist.
    """
    if len(zone) > _MAX_ZONE:
        raise ValueError("has an unknown time zone")
    fixed_or_named = _zone(zone)
    if isinstance(fixed_or_named, int):
        return fixed_or_named
    # Outside datetime's years, zones behave as in the first year, or repeat every 400 years.
    days, of_day = divmod(local_s, _DAY_S)
    ordinal = days + 719_163
    if ordinal > 3_652_000:
        ordinal -= (ordinal - 3_652_000 + 146_096) // 146_097 * 146_097
    day = datetime.date.fromordinal(max(ordinal, 1))
    time = datetime.time(of_day // 3600, of_day // 60 % 60, of_day % 60)
    # With the default `fold` of 0, Python chooses the same offset as Java for a time that occurs twice or
    # never.
    offset = datetime.datetime.combine(day, time, fixed_or_named).utcoffset()
    assert offset is not None, "a zone has an offset at all times"
    return int(offset.total_seconds())


@functools.lru_cache(maxsize=256)
def _zone(name: str) -> int | zoneinfo.ZoneInfo:
    """Return an offset in seconds, or a zone whose offset changes."""
    # Spark pads these two forms, `+h:mm` and `+hh:m`, before it looks up the zone in Java.
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
    match = _OFFSET.fullmatch(text)
    if not match:
        raise ValueError("has an invalid time zone")
    sign, hour, hours, *rest = match.groups()
    minutes, seconds = (int(a or b or 0) for a, b in zip(rest[:2], rest[2:], strict=True))
    total = (int(hour or hours) * 60 + minutes) * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _LONGEST_OFFSET_S:
        raise ValueError("has a time zone out of range")
    return -total if sign == "-" else total


def _named(name: str) -> zoneinfo.ZoneInfo:
    # The name becomes a path below the time zone database, so it must not leave it. Java does not support the
    # directories `posix` and `right` there; the second has leap seconds.
    if not _NAME.fullmatch(name) or name.startswith(("posix", "right")):
        raise ValueError("has an invalid time zone")
    # Imported here because most records name no zone, and Spark starts many processes.
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except Exception:  # noqa: BLE001  # A directory's name, or that of another file, may raise anything.
        # A machine without the database would make every record with a zone malformed. That is an error of
        # the machine, not of the records.
        try:
            zoneinfo.ZoneInfo("Europe/Paris")
        except zoneinfo.ZoneInfoNotFoundError:
            raise MissingZonesError(name) from None
        raise ValueError("has an unknown time zone") from None


_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
_TOKEN = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|([^A-Za-z'])")
_MAX_FRACTION = 9
_LONGEST_OFFSET_S = 18 * 3600

_OFFSETS = {
    "X": r"Z|[+-]\d\d(?:\d\d)?",
    "XX": r"Z|[+-]\d{4}",
    "XXX": r"Z|[+-]\d\d:\d\d",
    "x": r"[+-]\d\d(?:\d\d)?",
    "xx": r"[+-]\d{4}",
    "xxx": r"[+-]\d\d:\d\d",
    "Z": r"[+-]\d{4}",
    "ZZ": r"[+-]\d{4}",
    "ZZZ": r"[+-]\d{4}",
}
_HOURS = {"H": (0, 23), "k": (1, 24), "h": (1, 12), "K": (0, 11)}
"""Smallest and largest number that each letter for hours allows."""


@dataclass(frozen=True, slots=True)
class DatePattern:
    """A pattern, and texts that follow it. Can be pickled."""

    text: str

    def __post_init__(self) -> None:
        _expression(self.text)

    @classmethod
    def of(cls, text: str | None) -> DatePattern | None:
        """Return the pattern of a text, or None without one; raise ValueError if it is invalid."""
        return None if text is None else cls(text)

    def date(self, text: str) -> int:
        """Return the days since 1970; raise ValueError if the text does not follow the pattern."""
        return date_in_range(self._read(text)[0])

    def timestamp(self, text: str, zone: str) -> int:
        """Return the microseconds since 1970; in ``zone`` if the text names none.

        Raises:
            ValueError: the text does not follow the pattern.
        """
        days, of_day, micros, offset = self._read(text)
        local_s = days * _DAY_S + of_day
        ahead = offset_s(zone, local_s) if offset is None else offset
        return in_range((local_s - ahead) * MICROS_PER_S + micros)

    def local_timestamp(self, text: str) -> int:
        """Return the microseconds since 1970; raise ValueError if the text has a zone."""
        days, of_day, micros, offset = self._read(text)
        if offset is not None:
            raise ValueError("has a time zone")
        return in_range((days * _DAY_S + of_day) * MICROS_PER_S + micros)

    def _read(self, text: str) -> tuple[int, int, int, int | None]:
        """Return days, seconds of the day, microseconds and the offset in seconds, if there is one."""
        match = _expression(self.text).fullmatch(text)
        if not match:
            raise ValueError(f"is not of the form {self.text}")
        parts = match.groupdict()
        # Java completes two digits from the year 2000 on.
        year = int(parts.get("y") or "1970") + (2000 if parts.get("yy") else 0)
        month = int(parts.get("M") or 1)
        if name := parts.get("MMM"):
            month = [month_name[:3].lower() for month_name in _MONTHS].index(name[:3].lower()) + 1
        days = days_of(year, month, int(parts.get("d") or 1))
        hour = 0
        for letter, (low, high) in _HOURS.items():
            if (hour_text := parts.get(letter)) is not None:
                if not low <= int(hour_text) <= high:
                    raise ValueError("is not a time of day")
                # Counted from 0: `k` has 24 and `h` has 12 where `H` and `K` have 0.
                half = 12 if (parts.get("a") or "").upper() == "PM" else 0
                hour = int(hour_text) % (high - low + 1) + half
        of_day = seconds_of(hour, int(parts.get("m") or 0), int(parts.get("s") or 0))
        micros = int((parts.get("S") or "0")[:6].ljust(6, "0"))
        zone = parts.get("X")
        if zone is None or zone in ("Z", "z"):
            return days, of_day, micros, None if zone is None else 0
        # `+01` is an hour, not a minute.
        digits = zone[1:].replace(":", "").ljust(4, "0")
        minutes = int(digits[2:])
        offset = (int(digits[:2]) * 60 + minutes) * 60
        if minutes > 59 or offset > _LONGEST_OFFSET_S:
            raise ValueError("has a time zone out of range")
        return days, of_day, micros, -offset if zone[0] == "-" else offset


@functools.lru_cache(maxsize=64)
def _expression(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern; raise ValueError with its first error."""
    if pattern.count("'") % 2:
        raise ValueError("an open quote")
    tokens = [token.group() for token in _TOKEN.finditer(pattern)]
    letters = {part[0] for part in tokens if part[0].isalpha()}
    if len(letters & _HOURS.keys()) > 1 or ("a" in letters and not letters & {"h", "K"}):
        raise ValueError("an hour in two ways, or AM without an hour")
    expression = ""
    for part, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if part[0].isalpha():
            expression += _field(part, _is_number(following))
            if _is_number(part) and following[:1] == "S":
                raise ValueError("S right after another number")
        elif part == "[":
            expression += "(?:"
        elif part == "]":
            expression += ")?+"
        elif part in "{}#":
            raise ValueError(f"the reserved character {part}")
        else:
            text = part[1:-1].replace("''", "'") or "'" if part[0] == "'" else part
            expression += re.escape(text)
    try:
        # Without `ASCII`, `\d` would match the digits of every script.
        return re.compile(expression, re.IGNORECASE | re.ASCII)
    except re.error:
        raise ValueError("brackets that do not match, or a letter twice") from None


def _is_number(token: str) -> bool:
    return token[:1] in set("ydHkhKmsS") or token in ("M", "MM")


def _field(letters: str, number_follows: bool) -> str:  # noqa: FBT001, PLR0911 - private; a kind each.
    """Return the expression of a run of one letter."""
    letter, count = letters[0], len(letters)
    if letters in _OFFSETS:
        return f"(?P<X>{_OFFSETS[letters]})"
    if letter == "S" and count <= _MAX_FRACTION:
        return rf"(?P<S>\d{{1,{count}}}+)"
    if letters == "yy":
        return r"(?P<yy>(?P<y>\d\d))"
    if letter == "y" and count in (4, 5, 6):
        return rf"(?P<y>\d{{{count}}}|-\d{{{count},9}}|\+\d{{{count + 1},9}})"
    if letters in ("MMM", "MMMM"):
        names = [name if count == 4 else name[:3] for name in _MONTHS]
        return f"(?P<MMM>{'|'.join(names)})"
    if letters == "a":
        return "(?P<a>AM|PM)"
    if letter in "yMdHkhKms" and count <= 2:
        if count == 2:
            return rf"(?P<{letter}>\d\d)"
        if number_follows:
            raise ValueError(f"{letter} right before another number")
        sign = "-?" if letter == "y" else ""
        return rf"(?P<{letter}>{sign}\d{{1,19}}+)"
    raise ValueError(f"{letters}, which is not supported")
