"""A listener gets the lag of each batch for any query, and its page in the docs is right."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import Client, LagListener, count_malformed
from gazette_spark.lag import QueryLag, query_lag
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import QUERY_TIMEOUT_S, Journals
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "monitor.md"


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    return Journals(spark, broker, client, fresh_prefix)


@pytest.fixture
def seen(spark: SparkSession) -> Iterator[list[QueryLag]]:
    """The events of a listener that fails each time after recording one."""
    told: list[QueryLag] = []

    def take(lag: QueryLag) -> None:
        told.append(lag)
        raise RuntimeError("the caller's fault")

    listener = LagListener(take)
    spark.streams.addListener(listener)
    yield told
    spark.streams.removeListener(listener)


def test_each_batch_tells_its_lag(
    journals: Journals, seen: list[QueryLag], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Limits leave a lag that falls batch by batch; a new journal's head is seen a batch later."""
    caplog.set_level(logging.INFO, logger="gazette_spark.listener")
    journals.create("a", "b")
    a, b, c = (journals.name(short) for short in "abc")
    journals.append("a", b"123456789\n" * 6 + b"half")
    journals.append("b", b"x\n")

    def append(_batch: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            journals.create("c")
            journals.append("c", b"first\n")

    frame = journals.stream(maxBytesPerTrigger="40")
    writer = frame.writeStream.foreachBatch(append).option("checkpointLocation", str(tmp_path))
    query = writer.queryName("lagging").start()
    try:
        wait_until("c is read", lambda: bool(seen) and seen[-1].by_journal() == {a: 4, b: 0, c: 0})
    finally:
        query.stop()
    lags = [lag for lag in seen if lag.name == "lagging"]
    assert [lag.batch_id for lag in lags] == list(range(len(lags)))
    assert {lag.query_id for lag in lags} == {query.id}
    assert lags[0].by_journal() == {a: None, b: None}
    assert lags[1].total_bytes == 34
    assert lags[1].worst is not None
    assert lags[1].worst.journal == a
    totals = [total for lag in lags[1:] if (total := lag.by_journal()[a]) is not None]
    assert len(totals) == len(lags) - 1
    assert totals == sorted(totals, reverse=True)
    (pinned,) = [lag for lag in lags if lag.by_journal().get(c, 0) is None]
    assert pinned.unseen == 1
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert f"query lag query_id={query.id} name=lagging batch_id=1 journals=2 lag_bytes=34" in lines[1]


def test_a_batch_tells_what_is_malformed(journals: Journals, seen: list[QueryLag], tmp_path: Path) -> None:
    journals.create("a", labels={"content-type": "application/x-ndjson"})
    journals.append("a", b'{"id":1}\nnone\n{"id":2}\n{"id":"x"}\n')
    frame = journals.stream("a", schema="id BIGINT, _corrupt_record STRING", format="json")
    writer = count_malformed(frame).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    wait_until("both batches are told", lambda: len(seen) == 2)
    assert [lag.malformed for lag in seen] == [0, 2]


def test_the_page_is_right(spark: SparkSession, broker: BrokerHandle, client: Client, tmp_path: Path) -> None:
    """The page's examples run, its JSON parses as a position, and its statements about sizes are true."""
    from gazette_spark import JournalOffsets
    from gazette_spark.client import journal_spec

    page = PAGE.read_text()
    listen, parse = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    prefix = f"{tmp_path.name.replace('_', '-')}-shop/"
    client.create_journals(journal_spec(f"{prefix}orders"))
    client.append(f"{prefix}orders", b"one\ntwo\nhalf")
    names: dict[str, Any] = {"spark": spark}
    exec(listen.replace("http://localhost:8080", broker.endpoint).replace("shop/", prefix), names)
    listener, query = names["listener"], names["query"]
    try:
        wait_until("the lag is told", lambda: getattr(listener.lag(query.id), "total_bytes", None) == 4)
        exec(parse, names)
        assert query_lag(query.lastProgress.json) == listener.lags()[query.id]
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    (position,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert JournalOffsets.from_json(position).to_dict() == json.loads(position)
    many = JournalOffsets({f"shop/orders/part-{n:03}": 10**9 + n for n in range(1000)})
    assert 34_000 < len(many.to_json()) < 38_000
