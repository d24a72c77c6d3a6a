"""Defines the type of options that take a time, such as ``--from`` and ``--to``."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import click

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.durations import parse_duration

MAX_UNIX_S = 253_402_300_799
"""The last second of the year 9999. Larger numbers are usually milliseconds."""

_DAYS = re.compile(r"(\d{1,6})d(.*)")


class Time(click.ParamType[int]):
    """A time as seconds since 1970, ISO 8601 text, or a duration ago, converted to seconds since 1970."""

    name = "time"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder in ``--help``."""
        return "TIME"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time in whole seconds since 1970, rounded down."""
        if isinstance(value, int):
            return value
        unix_s = parse_time(value, time.time())
        if unix_s is None:
            expected = "'2h ago', '2026-11-27T09:30:00Z', '2026-11-27' or seconds since 1970"
            self.fail(f"{value!r} is not a time between 1970 and 9999. Examples: {expected}.", param, ctx)
        return unix_s


def parse_time(text: str, now_s: float) -> int | None:
    """Return a time in seconds since 1970, rounded down; None if the text is not a time, or is before 1970.

    A text without a zone is in UTC, like the times that commands print.

    >>> parse_time("90m ago", 10_000), parse_time("1 d 2 h ago", 100_000), parse_time("now", 7.9)
    (4600, 6400, 7)
    >>> parse_time("1970-01-02", 0), parse_time("1970-01-01T01:00:30+01:00", 0), parse_time("120", 0)
    (86400, 30, 120)
    """
    words = text.strip().lower()
    if words.isascii() and words.isdecimal():
        unix_s = float(words)
    elif words == "now":
        unix_s = now_s
    elif words.endswith("ago"):
        days, duration = 0, "".join(words.removesuffix("ago").split())
        # Go's durations have no days, because days have no fixed length. Here a day is 24 hours.
        if match := _DAYS.fullmatch(duration):
            days, duration = int(match[1]), match[2] or "0s"
        try:
            unix_s = now_s - 86_400 * days - parse_duration(duration).ToNanoseconds() / 1e9
        except ProtocolError:
            return None
        # "-2h ago" would be in the future.
        if duration.startswith(("-", "+")):
            return None
    else:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
        # UTC instead of this machine's zone, so that a command means the same everywhere.
        unix_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return int(unix_s) if 0 <= unix_s <= MAX_UNIX_S else None
