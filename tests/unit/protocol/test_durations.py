"""Durations read and write Go's text form; ``test_answers`` compares many with Go's own."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.durations import format_duration, parse_duration


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
    """A duration is written in its largest units, and read back the same."""
    duration = Duration(seconds=seconds, nanos=nanos)
    assert format_duration(duration) == text
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "60", "1 m", "1d", "m", "1h-1m", "9223372037s", "\u0661s"])
def test_other_texts(text: str) -> None:
    """Text without a unit, with an unknown one, or out of range is refused where it stands."""
    with pytest.raises(ProtocolError) as caught:
        parse_duration(text, "spec.retention")
    assert caught.value.where == "spec.retention"
