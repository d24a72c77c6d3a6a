"""Texts of dates and timestamps become Spark's values, over all years that a column supports."""

from __future__ import annotations

import datetime
import pickle
import zoneinfo

import pytest

from gazette_spark._formats.timestamps import (
    days_of,
    offset_s,
    parse_date,
    parse_local_timestamp,
    parse_timestamp,
)
from gazette_spark.errors import MissingZonesError

NEW_YEAR_S = 1_704_067_200
"""2024-01-01T00:00:00Z in seconds since 1970."""


@pytest.mark.parametrize(
    ("text", "days"),
    [
        pytest.param("1970-01-01", 0, id="epoch"),
        pytest.param(" 2024-2-9\t", 19_762, id="short"),
        pytest.param("2024", 19_723, id="year"),
        pytest.param("2024-01-01 what follows", 19_723, id="what_follows"),
        pytest.param("0000-01-01", -719_528, id="year_0"),
        pytest.param("-0001-01-01", -719_893, id="year_before_0"),
        pytest.param("5881580-07-11", 2**31 - 1, id="last"),
    ],
)
def test_dates(text: str, days: int) -> None:
    assert parse_date(text) == days


@pytest.mark.parametrize("text", ["", "24-01-01", "2024-02-30", "1900-02-29", "5881580-07-12", "2024-01-01x"])
def test_no_dates(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is |^has "):
        parse_date(text)


def test_days_are_those_of_datetime() -> None:
    """All days of a 400-year cycle, and of the cycles before and after it, equal those of ``datetime``."""
    for ordinal in range(1, 146_098, 11):
        day = datetime.date.fromordinal(ordinal)
        days = ordinal - 719_163
        assert days_of(day.year, day.month, day.day) == days
        assert days_of(day.year + 400, day.month, day.day) == days + 146_097
        assert days_of(day.year - 400, day.month, day.day) == days - 146_097


@pytest.mark.parametrize(
    ("zone", "seconds"),
    [
        ("Z", 0),
        ("UTC", 0),
        ("GMT", 0),
        ("UT+1", 3600),
        ("+1", 3600),
        ("+1:2", 3720),
        ("-08:30", -30_600),
        ("+010030", 3630),
        ("+18:00", 64_800),
        ("EST", -18_000),
        ("Europe/Paris", 3600),
        ("Etc/GMT+3", -10_800),
    ],
)
def test_zones(zone: str, seconds: int) -> None:
    assert offset_s(zone, NEW_YEAR_S) == seconds
    assert parse_timestamp(f"2024-01-01T00:00:00{zone}") == (NEW_YEAR_S - seconds) * 1_000_000


@pytest.mark.parametrize(
    "zone", ["", "z", "+", "+18:01", "+01:60", "+0:1:2:3", "PST", "Nowhere", "../etc", "posix/UTC"]
)
def test_no_zones(zone: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        offset_s(zone, 0)


@pytest.mark.parametrize(
    ("local", "offset"),
    [
        pytest.param("2024-03-31T02:30:00", 1, id="skipped"),
        pytest.param("2024-10-27T02:30:00", 2, id="twice"),
        pytest.param("12024-07-01T00:00:00", 2, id="far_away"),
    ],
)
def test_clocks_that_change(local: str, offset: int) -> None:
    """A repeated local time is the first one. A skipped one moves ahead by the length of the gap."""
    assert parse_timestamp(local, "Europe/Paris") == parse_timestamp(local) - offset * 3_600_000_000


def test_a_local_timestamp_has_no_zone() -> None:
    assert parse_local_timestamp("1970-01-01 00:00:01.5") == 1_500_000
    with pytest.raises(ValueError, match="has a time zone"):
        parse_local_timestamp("1970-01-01T00:00:01Z")


@pytest.mark.parametrize(
    ("text", "fits"), [("294247-01-10T04:00:54.775807Z", True), ("294247-01-10T04:00:54.775808Z", False)]
)
def test_the_last_timestamp(text: str, fits: bool) -> None:
    if fits:
        assert parse_timestamp(text) == 2**63 - 1
    else:
        with pytest.raises(ValueError, match="out of"):
            parse_timestamp(text)


def test_a_machine_without_zones_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Null in place of a timestamp would make rows depend on the machine."""

    def none(name: str) -> zoneinfo.ZoneInfo:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", none)
    with pytest.raises(MissingZonesError, match="install") as caught:
        offset_s("Asia/Kathmandu", 0)
    assert pickle.loads(pickle.dumps(caught.value)).zone == "Asia/Kathmandu"
