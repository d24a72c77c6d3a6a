"""Each batch logs one line about what it reads, and the user decides whether it is shown."""

from __future__ import annotations

import logging
import re
import subprocess
import sys

import pytest

from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.pieces import OffsetRange
from gazette_spark._planning.plan import batch_line
from tests.oracles.brokers import FakeJournal, at, lines, planner_of


def test_a_small_batch_shows_its_ranges() -> None:
    ranges = [OffsetRange("log/a", 10, 30), OffsetRange("log/b", 0, 40)]
    behind = {"log/a": 30, "log/b": 40, "log/c": 5, "log/d": 7}
    line = batch_line(ranges, 3, behind, {"log/a": 30, "log/b": 90, "log/c": 6})
    assert line == (
        "batch planned journals=2 bytes=60 pieces=3 ranges=log/b[0,40),log/a[10,30) lag_bytes=51 unseen=1"
    )


def test_a_large_batch_shows_its_largest_ranges() -> None:
    """A thousand ranges would not fit in a line."""
    ranges = [OffsetRange(f"log/{number:04}", 0, 1 + number) for number in range(1000)]
    line = batch_line(ranges, 1000, {}, {})
    assert line == (
        "batch planned journals=1000 bytes=500500 pieces=1000 "
        "ranges=log/0999[0,1000),log/0998[0,999),log/0997[0,998),+997"
    )


def test_a_stream_logs_a_line_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gazette_spark")
    planner, _ = planner_of({"log/a": FakeJournal(lines(3) + b"half")}, startingOffsets="earliest")
    position = planner.next(planner.initial())
    for _ in range(4):
        end = planner.next(position, ReadLimits(max_bytes=20))
        if end != position:
            planner.pieces(position, end)
        position = end
    assert position == at(a=30)
    assert [record.getMessage() for record in caplog.records] == [
        "query starts journals=1 lag_bytes=34",
        "batch planned journals=1 bytes=20 pieces=1 ranges=log/a[0,20) lag_bytes=14",
        "batch planned journals=1 bytes=10 pieces=1 ranges=log/a[20,30) lag_bytes=4",
    ]


LOGGING = """
import logging, sys
from gazette_spark._planning.access import show_logs
{setup}
show_logs({level!r}); show_logs({level!r})
log = logging.getLogger("gazette_spark._planning.plan")
log.info("one line"); log.warning("a warning"); logging.getLogger("other").info("not ours")
"""


@pytest.mark.parametrize(
    ("level", "setup", "shown"),
    [
        pytest.param(None, "", ["a warning"], id="nothing said"),
        pytest.param(
            "info",
            "",
            [
                r"\d{4}-\d\d-\d\d \S+ INFO gazette_spark._planning.plan: one line",
                r"\d{4}-\d\d-\d\d \S+ WARNING gazette_spark._planning.plan: a warning",
            ],
            id="info",
        ),
        pytest.param("error", "", [], id="error"),
        pytest.param(
            "info",
            "logging.basicConfig(format='%(message)s', level=logging.WARNING)",
            ["one line", "a warning"],
            id="set up by the user",
        ),
    ],
)
def test_a_level_is_shown_where_nobody_set_up_logging(
    level: str | None, setup: str, shown: list[str]
) -> None:
    code = LOGGING.format(level=level, setup=setup)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    found = done.stderr.splitlines()
    assert len(found) == len(shown), done.stderr
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(shown, found, strict=True)), found
