"""Tests that durations are read and written in Go's text form; ``test_answers`` compares many with Go's."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.durations import duration_of, format_duration, parse_duration


@pytest.mark.parametrize(
    ("seconds", "nanos", "text"),
    [
        (0, 0, "0s"),
        (0, 1, "1ns"),
        (0, 1_500, "1.5\u00b5s"),
        (0, 20_000_000, "20ms"),
        (1, 0, "1s"),
        (60, 0, "1m0s"),
        (3661, 500_000_000, "1h1m1.5s"),
        (-90, 0, "-1m30s"),
        (2_592_000, 0, "720h0m0s"),
    ],
)
def test_text_form(seconds: int, nanos: int, text: str) -> None:
    duration = Duration(seconds=seconds, nanos=nanos)
    assert format_duration(duration) == text
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("+1.s", 1_000_000_000),
        ("-.5s.5s", -1_000_000_000),
        ("0." + "3" * 5_000 + "h", 1_199_999_999_999),
        ("0" * 5_000 + "1s", 1_000_000_000),
        ("1ns" * 100_000, 100_000),
    ],
    ids=["zero", "minus zero", "no decimals", "decimals alone", "many decimals", "zeros", "many parts"],
)
def test_long_texts(text: str, nanoseconds: int) -> None:
    """Parsing must take linear time, and the sum must be exact."""
    assert parse_duration(text).ToNanoseconds() == nanoseconds


@pytest.mark.parametrize(
    "text",
    ["12345678s" * 12 + "x", "1" * 5_000 + "s", "9" * 30 + "h", "+", "-", "+-1s", "00"],
    ids=lambda t: t[:20],
)
def test_texts_that_hung_or_overflowed(text: str) -> None:
    """The error must not repeat the whole text."""
    with pytest.raises(ProtocolError, match="duration") as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1e300, 9_223_372_036])
def test_seconds_that_are_no_duration(seconds: float) -> None:
    with pytest.raises(ProtocolError, match=r"^spec.retention: must be below 292 years, got "):
        duration_of(seconds, "spec.retention")


@pytest.mark.parametrize("text", ["", "60", "1 m", "1d", "m", "1h-1m", "9223372037s", "\u0661s"])
def test_other_texts(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_duration(text, "spec.retention")
    assert caught.value.where == "spec.retention"
