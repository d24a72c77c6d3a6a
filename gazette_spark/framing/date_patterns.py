"""Dates and timestamps in a user's pattern, as Spark's readers accept them.

Patterns are those of Spark's documentation ("datetime patterns"), of which these letters are known:

======== ======================================= ========== =====================================
y        year; yy is 2000 to 2099                H, k       hour of the day, 0 to 23 or 1 to 24
M        month; MMM is Jan, MMMM January         h, K       hour of half a day, 1 to 12 or 0 to 11
d        day of the month                        a          AM or PM
m, s     minute, second                          S          fraction: SSS is one to three digits
X, x, Z  offset: X is Z or +01, XXX Z or +01:00  [ ], ' '   optional section, plain text
======== ======================================= ========== =====================================

A letter twice stands for exactly two digits, once for any number of them; from yyyy on a longer year needs a
sign. Text is compared in any case, names are English. Fields missing in a text default to those of 1970-01-01
00:00:00.

A pattern becomes a regular expression of possessive parts, which never backtrack, since Java's do not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gazette_spark.framing.timestamps import (
    MICROS_PER_S,
    date_in_range,
    days_of,
    in_range,
    offset_s,
    seconds_of,
)

_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
_TOKEN = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|([^A-Za-z'])")
_DAY_S = 86_400
_MAX_FRACTION = 9
_LARGEST_OFFSET = 18 * 3600

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
"""Smallest and largest number that each hour letter allows."""


@dataclass(frozen=True, slots=True)
class DatePattern:
    """A pattern, and texts that follow it. Can be pickled."""

    text: str

    def __post_init__(self) -> None:
        _expression(self.text)

    def date(self, text: str) -> int:
        """Return the days since 1970; ValueError when the text does not follow the pattern."""
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
        """Return the microseconds since 1970; ValueError when the text has a zone."""
        days, of_day, micros, offset = self._read(text)
        if offset is not None:
            raise ValueError("has a time zone")
        return in_range((days * _DAY_S + of_day) * MICROS_PER_S + micros)

    def _read(self, text: str) -> tuple[int, int, int, int | None]:
        """Return days, seconds of the day, microseconds and the offset in seconds, if there is one."""
        found = _expression(self.text).fullmatch(text)
        if not found:
            raise ValueError(f"is not of the form {self.text}")
        parts = found.groupdict()
        year = parts.get("y") or "1970"
        days = days_of(int(year) + (2000 if parts.get("yy") else 0), _month(parts), int(parts.get("d") or 1))
        of_day = seconds_of(_hour(parts), int(parts.get("m") or 0), int(parts.get("s") or 0))
        micros = int((parts.get("S") or "0")[:6].ljust(6, "0"))
        return days, of_day, micros, _offset(parts.get("X"))


@functools.lru_cache(maxsize=64)
def _expression(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern; ValueError names its first error."""
    if pattern.count("'") % 2:
        raise ValueError("an open quote")
    tokens = [found.group() for found in _TOKEN.finditer(pattern)]
    expression = "".join(_parts(tokens))
    try:
        return re.compile(expression, re.IGNORECASE | re.ASCII)
    except re.error:
        raise ValueError("brackets that do not match, or a letter twice") from None


def _parts(tokens: list[str]) -> Iterator[str]:
    letters = {part[0] for part in tokens if part[0].isalpha()}
    if len(letters & _HOURS.keys()) > 1 or ("a" in letters and not letters & {"h", "K"}):
        raise ValueError("an hour in two ways, or AM without an hour")
    for part, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if part[0].isalpha():
            yield _field(part, _is_number(following))
            if _is_number(part) and following[:1] == "S":
                raise ValueError("S right after another number")
        elif part == "[":
            yield "(?:"
        elif part == "]":
            yield ")?+"
        elif part in "{}#":
            raise ValueError(f"the reserved character {part}")
        else:
            text = part[1:-1].replace("''", "'") or "'" if part[0] == "'" else part
            yield re.escape(text)


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
    raise ValueError(f"{letters}, which is not known")


def _month(parts: dict[str, str | None]) -> int:
    name = parts.get("MMM")
    if name:
        return [month[:3].lower() for month in _MONTHS].index(name[:3].lower()) + 1
    return int(parts.get("M") or 1)


def _hour(parts: dict[str, str | None]) -> int:
    for letter, (low, high) in _HOURS.items():
        if (text := parts.get(letter)) is not None:
            hour = int(text)
            if not low <= hour <= high:
                raise ValueError("is no time of day")
            half = 12 if (parts.get("a") or "").upper() == "PM" else 0
            return hour % (high - low + 1) + half
    return 0


def _offset(text: str | None) -> int | None:
    if text is None:
        return None
    if text in ("Z", "z"):
        return 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    seconds = (hours * 60 + minutes) * 60
    if minutes > 59 or seconds > _LARGEST_OFFSET:
        raise ValueError("has a time zone out of range")
    return -seconds if text[0] == "-" else seconds
