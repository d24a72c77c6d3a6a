"""``gazette-spark quickstart`` without Spark: its parts start, answer and end. tests/spark has the whole."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from gazette_spark.demo.child import QueryDiedError
from gazette_spark.demo.quickstart import QuickstartOptions, run_quickstart
from gazette_spark.demo.scenario import Progress

pytestmark = pytest.mark.brokers("embedded")


class Lines:
    """A screen that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, progress: Progress) -> None:
        assert progress.phase == "starting"

    def told(self, begin: str) -> str:
        """Return the rest of the line that begins so."""
        (line,) = [each for each in self.said if each.startswith(begin)]
        return line.removeprefix(begin).strip()


def options(code: str) -> QuickstartOptions:
    """Return options with a query that is no Spark."""
    return QuickstartOptions(rate=100, seconds=60, query=(sys.executable, "-c", code))


def test_the_page_is_served_until_the_end(tmp_path: Path) -> None:
    """The address is printed and answers; an end before the first commit leaves nothing to verify."""
    lines, statuses = Lines(), []

    def wait(_seconds: float) -> bool:
        statuses.append(httpx.get(lines.told("lag page")).status_code)
        return True

    assert run_quickstart(options("input()"), tmp_path, lines, wait) == 0
    assert statuses == [200]
    assert "shop/orders" in lines.told("broker")
    assert "nothing to verify" in lines.said[-1]
    with pytest.raises(httpx.ConnectError):
        httpx.get(lines.told("lag page"))


def test_a_query_that_fails_ends_it_with_its_log(tmp_path: Path) -> None:
    """The error has the last lines of the query's log."""
    with pytest.raises(QueryDiedError, match="ended by itself with exit code 1") as caught:
        run_quickstart(options("raise SystemExit('no Spark')"), tmp_path, Lines(), lambda _seconds: False)
    assert "no Spark" in caught.value.log_tail
