"""Patterns of dates: which are refused, with what is wrong with them, and a few that are read."""

from __future__ import annotations

import pytest

from gazette_spark._formats.timestamps import DatePattern
from gazette_spark._formats.values import JsonDialect
from gazette_spark.errors import OptionError


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        pytest.param("yyyy-MM-dd 'at", "an open quote", id="quote"),
        pytest.param("yyyy-MM-dd [HH", "brackets", id="bracket"),
        pytest.param("yyyy-MM-dd yyyy", "a letter twice", id="twice"),
        pytest.param("HH:mm a", "an hour in two ways", id="hour_and_half"),
        pytest.param("hh:mm HH", "an hour in two ways", id="two_hours"),
        pytest.param("yyyyMMddHHmmssSSS", "S right after another number", id="fraction"),
        pytest.param("yMMdd", "y right before another number", id="year_of_any_length"),
        pytest.param("EEE, dd MMM yyyy", "EEE, which is not supported", id="day_of_the_week"),
        pytest.param("yyyy-MM-dd z", "z, which is not supported", id="zone_name"),
        pytest.param("yyyyyyy", "yyyyyyy, which is not supported", id="long_year"),
        pytest.param("yyyy#", "the reserved character #", id="reserved"),
    ],
)
def test_a_pattern_that_is_not_supported_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        DatePattern(pattern)
    with pytest.raises(OptionError, match=problem) as caught:
        JsonDialect(timestamp_format=pattern)
    assert caught.value.option == "timestampFormat"


def test_what_a_text_leaves_out() -> None:
    assert DatePattern("HH:mm").timestamp("01:02", "+01:00") == 120_000_000
    assert DatePattern("yyyy").date("1971") == 365
    assert DatePattern("HH:mm[X]").timestamp("01:02Z", "+01:00") == 3_720_000_000


def test_a_local_timestamp_has_no_offset() -> None:
    """The offset in the text is parsed, because the pattern allows it, but ignored."""
    pattern = DatePattern("ss[X]")
    assert pattern.local_timestamp("01") == 1_000_000
    with pytest.raises(ValueError, match="has a time zone"):
        pattern.local_timestamp("01Z")


@pytest.mark.parametrize("text", ["+120240102", "-999999990102"])
def test_dates_have_32_bits(text: str) -> None:
    pattern = DatePattern("yyyyMMdd")
    if text[0] == "+":
        assert pattern.date(text) == 3_672_149
    else:
        with pytest.raises(ValueError, match="out of a date's range"):
            pattern.date(text)
        with pytest.raises(ValueError, match="out of a timestamp's range"):
            pattern.timestamp(text, "UTC")


def test_a_part_takes_all_it_can() -> None:
    """Patterns are greedy without backtracking, as in Java."""
    assert DatePattern("d.M.yyyy").date("01.1.1970") == 0
    with pytest.raises(ValueError, match="is not of the form"):
        DatePattern("[yy]MM").date("01")


@pytest.mark.parametrize("zone", ["Nowhere", "+19:00"])
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(OptionError, match="timeZone"):
        JsonDialect(time_zone=zone)
