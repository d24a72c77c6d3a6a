"""A query falls behind, stops, is restored and catches up; the monitor and its page report each step."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gazette_spark import Client, DeltaSink
from gazette_spark.lag import (
    Evaluator,
    HeadFeed,
    History,
    HistoryOptions,
    Monitor,
    TableFeed,
    Thresholds,
    now_ms,
    poll_all,
)
from gazette_spark.lag.api import Api
from gazette_spark.lag.feeds import Feed
from gazette_spark.lag.server import LagService
from tests.browser import browse
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import Journals
from tests.waiting import wait_until

RECORD = b"x" * 99 + b"\n"


class Watch:
    """A monitor of one table that refreshes on request, and its page."""

    def __init__(self, client: Client, journal: str, table: Path) -> None:
        history = History(HistoryOptions(intervals=3))
        self.monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
        self.feeds: list[Feed] = [HeadFeed(client, f"name={journal}"), TableFeed(str(table))]
        self.api = Api(self.monitor, now_ms, "a-host", {})

    def look(self) -> tuple[str, str]:
        """Refresh once; return the verdicts on the group and on its journal."""
        assert poll_all(self.feeds, self.monitor, now_ms()) == []
        verdict = self.monitor.lag("orders", now_ms()).verdict
        return verdict.status.name, verdict.partitions[0].status.name


@pytest.mark.soak  # property/test_lag.py and conformance/test_lag_service.py test the verdicts in every run.
def test_verdicts_follow_a_query(
    embedded_broker: BrokerHandle, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """WARN while falling behind, ERR (STOP) at the end, ERR (REWIND) after a RESTORE, OK when caught up."""
    table = tmp_path / "orders"
    with Client(embedded_broker.endpoint) as client:
        journals = Journals(spark, embedded_broker, client, f"lag/{request.node.name}/")
        journals.create("orders")
        journals.append("orders", RECORD * 20)
        sink = DeltaSink("orders", path=str(table))
        query = sink.start(
            journals.stream("orders", maxBytesPerTrigger=100), checkpoint=str(tmp_path / "checkpoint")
        )
        watch = Watch(client, journals.name("orders"), table)

        def shown(*words: str) -> bool:
            page = browse(service.address, tmp_path / "profile")
            return set(words) <= set(page.words) and page.charts == [journals.name("orders")]

        def falls_behind() -> bool:
            assert query.exception() is None
            journals.append("orders", RECORD * 10)
            return watch.look() == ("WARN", "WARN") and watch.monitor.last_order("orders") > 3

        with LagService(watch.api, [], listen="127.0.0.1:0") as service:
            wait_until("the first entry", lambda: sink.ledger() is not None)
            # A browser may take longer than the window, and without a refresh in the window the verdict is
            # STOP.
            wait_until("the page says that the query falls behind", lambda: falls_behind() and shown("WARN"))
            query.stop()
            wait_until("it is silent for longer than its window", lambda: watch.look() == ("ERR", "STOP"))
            assert shown("ERR", "STOP")
            spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 1")
            assert watch.look() == ("ERR", "REWIND")
            assert shown("ERR", "REWIND")
            resumed = journals.stream("orders", startingOffsets=sink.resume_offsets())
            again = sink.start(resumed, checkpoint=str(tmp_path / "again"), availableNow=True)
            assert again.awaitTermination(120)
            assert watch.look() == ("OK", "OK")
            assert shown("OK", "0 B")
