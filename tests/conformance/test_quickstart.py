"""The parts of ``gazette-spark quickstart`` start, answer and end, without Spark; tests/spark runs it all."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gazette_spark.demo.run import DemoOptions, QueryDiedError, run_demo

pytestmark = pytest.mark.brokers("embedded")


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show(self, phase: str, appended_rows: int, table_rows: int) -> None:
        assert (phase, appended_rows, table_rows) == ("waiting for Spark to start the query", 0, 0)

    def after(self, begin: str) -> str:
        (line,) = [line for line in self.lines if line.startswith(begin)]
        return line.removeprefix(begin).strip()


def options(directory: Path, code: str) -> DemoOptions:
    """Return options with a query that does not start Spark."""
    query = directory / "query.py"
    query.write_text(code)
    return DemoOptions(seconds=60, rate=100, kills=0, has_lag_page=True, query=query)


def test_the_page_is_served_until_the_end(tmp_path: Path) -> None:
    screen, statuses = Lines(), []

    def wait(_seconds: float) -> bool:
        statuses.append(httpx.get(screen.after("lag page")).status_code)
        return True

    assert run_demo(options(tmp_path, "import time; time.sleep(60)"), tmp_path, screen, wait) is None
    assert statuses == [200]
    assert "shop/orders" in screen.after("broker")
    assert "nothing to verify" in screen.lines[-1]
    with pytest.raises(httpx.ConnectError):
        httpx.get(screen.after("lag page"))


def test_a_query_that_fails_ends_it_with_its_log(tmp_path: Path) -> None:
    query = options(tmp_path, "raise SystemExit('no Spark')")
    with pytest.raises(QueryDiedError, match="ended by itself with exit code 1") as caught:
        run_demo(query, tmp_path, Lines(), lambda _seconds: False)
    assert "no Spark" in caught.value.log_tail
