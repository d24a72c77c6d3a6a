"""A query's progress gives a monitor what brokers and tables would."""

from __future__ import annotations

import pytest

from gazette_spark.errors import InputError
from gazette_spark.lag import ProgressFeed
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Thresholds
from gazette_spark.query_progress import ProgressLag, QueryLag

NOW_MS = 1_700_000_000_000


@pytest.fixture
def monitor() -> Monitor:
    """A monitor that has read nothing yet and does not cache verdicts."""
    history = History(HistoryOptions(intervals=3))
    return Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))


def progress(batch_id: int, *journals: ProgressLag, name: str = "orders", query_id: str = "q") -> QueryLag:
    return QueryLag(query_id, "run", name, batch_id, "2026-01-01T00:00:00Z", journals)


def test_batches_make_a_window(monitor: Monitor) -> None:
    ticks = iter(range(NOW_MS, NOW_MS + 60_000, 1000))
    feed = ProgressFeed(monitor, lambda: next(ticks))
    for batch_id in range(1, 4):
        feed(progress(batch_id, ProgressLag("shop/a", 100 * batch_id, 300 * batch_id)))
    verdict = monitor.lag("orders", NOW_MS + 3000).verdict
    assert (verdict.status.name, verdict.total_lag) == ("WARN", 600)
    feed(progress(4, ProgressLag("shop/a", 900, 900)))
    assert monitor.lag("orders", NOW_MS + 4000).verdict.status.name == "OK"


def test_a_journal_of_two_sources_is_as_far_as_the_slower(monitor: Monitor) -> None:
    feed = ProgressFeed(monitor, lambda: NOW_MS)
    feed(
        progress(
            1,
            ProgressLag("shop/a", 50, 100),
            ProgressLag("shop/a", 20, 100, 1),
            ProgressLag("x/new", 0, None),
        )
    )
    (journal,) = monitor.lag("orders", NOW_MS).journals
    assert (journal.journal, journal.status.current_lag) == ("shop/a", 80)


def test_a_query_without_a_name_goes_by_its_id(monitor: Monitor) -> None:
    feed = ProgressFeed(monitor, lambda: NOW_MS)
    feed(progress(1, ProgressLag("shop/a", 50, 100), name=""))
    assert monitor.groups() == ["q"]
    feed(progress(1, ProgressLag("shop/a", 50, 100)))
    with pytest.raises(InputError, match="group 'orders' is both that of the progress of query q and of"):
        feed(progress(1, ProgressLag("shop/a", 50, 100), query_id="other"))
