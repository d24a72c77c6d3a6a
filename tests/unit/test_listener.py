"""A listener keeps the latest lag of each query, logs it once, and survives errors of the user's callback."""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from gazette_spark.errors import OptionError
from gazette_spark.listener import ENDED_QUERIES, LagListener, count_malformed, lag_line
from gazette_spark.offsets import JournalOffsets
from gazette_spark.query_progress import JournalTransactions, OpenTransaction, ProgressLag, QueryLag

A = "shop/orders"


def query_id(number: int) -> str:
    return str(uuid.UUID(int=number))


def progress(batch_id: int, reached: int, head: int, query: int = 1, **fields: Any) -> QueryProgressEvent:
    """Return a batch's event as Spark Connect passes it."""
    source = {
        "description": "PythonMicroBatchStreamWithAdmissionControl@1b2c",
        "startOffset": None,
        "endOffset": JournalOffsets({A: reached}).to_dict(),
        "latestOffset": JournalOffsets({A: head}).to_dict(),
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "metrics": {},
    }
    made = {
        "id": query_id(query),
        "runId": query_id(0),
        "name": "orders",
        "timestamp": "2026-11-21T10:00:00.000Z",
        "batchId": batch_id,
        "batchDuration": 1,
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "sources": [source],
        "sink": {"description": "noop", "numOutputRows": -1, "metrics": {}},
        "observedMetrics": {},
    }
    return QueryProgressEvent.fromJson({"progress": made | fields})


def terminated(query: int) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(uuid.UUID(int=query), uuid.UUID(int=0), None, None)


def started(query: int) -> QueryStartedEvent:
    return QueryStartedEvent(
        uuid.UUID(int=query), uuid.UUID(int=0), "orders", "2026-11-21T10:00:00.000Z", set()
    )


def test_the_latest_lag_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gazette_spark.listener")
    told: list[QueryLag] = []
    listener = LagListener(told.append)
    assert listener.lags() == {}
    for event in (progress(1, 10, 50), progress(7, 5, 5, query=2), progress(2, 40, 60)):
        listener.onQueryProgress(event)
    found: list[dict[str, QueryLag]] = []
    reader = threading.Thread(target=lambda: found.append(listener.lags()))
    reader.start()
    reader.join()
    assert {name: lag.total_bytes for name, lag in found[0].items()} == {query_id(1): 20, query_id(2): 0}
    assert listener.lag(query_id(1)) == told[2]
    assert listener.lag(query_id(3)) is None
    assert [lag.batch_id for lag in told] == [1, 7, 2]
    assert [record.getMessage() for record in caplog.records] == [lag_line(lag) for lag in told]


def test_the_line_names_the_oldest_transaction_that_holds_most() -> None:
    few = JournalTransactions("shop/b", 500, 1, (OpenTransaction("02", 450, 0),))
    many = JournalTransactions(A, 100, 12, (OpenTransaction("01", 9, 0), OpenTransaction("03", 90, 0)))
    lag = QueryLag("id", "run", "", 3, "", (), transactions=(few, many))
    line = "open_transactions=13 held=shop/orders held_bytes=91 oldest=9 producer=01"
    assert lag_line(lag) == f"query lag query_id=id batch_id=3 journals=0 lag_bytes=0 {line}"


def test_a_query_without_our_source_is_none_of_our_business(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gazette_spark.listener")
    listener = LagListener(lambda _: pytest.fail("told"))
    listener.onQueryProgress(progress(1, 0, 0, sources=[]))
    assert (listener.lags(), caplog.records) == ({}, [])


def test_what_the_caller_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: QueryLag) -> None:
        raise RuntimeError("the caller's fault")

    listener = LagListener(fail)
    for batch_id in (1, 2):
        listener.onQueryProgress(progress(batch_id, 1, 2))
    assert listener.lags()[query_id(1)].batch_id == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"on_lag failed query_id={query_id(1)} batch_id={batch_id}" for batch_id in (1, 2)
    ]


def test_queries_that_ended_long_ago_are_forgotten() -> None:
    """A program that runs queries all day must not grow. A query that was restarted counts as running."""
    listener = LagListener()
    for number in range(ENDED_QUERIES + 2):
        listener.onQueryStarted(started(number))
        listener.onQueryProgress(progress(1, 1, 2, query=number))
        listener.onQueryTerminated(terminated(number))
        if number == 1:
            listener.onQueryStarted(started(0))
    assert len(listener.lags()) == ENDED_QUERIES + 1
    assert query_id(0) in listener.lags()
    assert query_id(1) not in listener.lags()


def test_a_line_says_what_an_alarm_needs() -> None:
    level = QueryLag("4f", "9c", "", 3, "", (ProgressLag(A, 5, 5),))
    behind = QueryLag("4f", "9c", "orders", 3, "", (ProgressLag(A, 5, 9), ProgressLag("shop/new", 0, None)))
    assert lag_line(level) == "query lag query_id=4f batch_id=3 journals=1 lag_bytes=0"
    assert lag_line(behind) == (
        "query lag query_id=4f name=orders batch_id=3 journals=2 lag_bytes=4 unseen=1 "
        "worst=shop/orders worst_bytes=4"
    )
    lossy = QueryLag("4f", "9c", "", 3, "", (ProgressLag(A, 5, 5),), skipped_bytes=7, malformed=2)
    assert lag_line(lossy).endswith("lag_bytes=0 skipped_bytes=7 malformed=2")
    assert lag_line(replace(lossy, skipped_bytes=0, malformed=0)) == lag_line(level)


def test_a_name_that_the_listener_would_not_find_is_refused() -> None:
    """The listener finds a query's figures by the prefix of their name."""
    with pytest.raises(OptionError, match="begins with 'gazette'"):
        count_malformed(None, name="orders")  # type: ignore[arg-type]  # Refused before it is used.
