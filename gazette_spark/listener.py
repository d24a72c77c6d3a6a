"""Reports the lag of queries with each batch, per journal and in bytes.

::

    listener = LagListener()
    spark.streams.addListener(listener)

The listener runs on a thread of PySpark in the program that adds it, also with Spark Connect. Spark reports
each micro-batch when the batch is done, and nothing while a query is idle.
:mod:`gazette_spark.query_progress` defines the figures. Each batch logs one INFO line.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pyspark.sql import DataFrame, functions
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from gazette_spark.errors import OptionError
from gazette_spark.query_progress import OBSERVED, QueryLag, query_lag

log = logging.getLogger(__name__)

ENDED_QUERIES = 100
"""Number of ended queries whose last lag is kept."""

OnLag = Callable[[QueryLag], object]


class LagListener(StreamingQueryListener):
    """Keeps the latest lag of each query. Thread-safe.

    Args:
        on_lag: Called with each new lag on the listener's thread, which waits for it. Its exceptions are
            logged.
    """

    def __init__(self, on_lag: OnLag | None = None) -> None:
        self._on_lag = on_lag
        self._lock = threading.Lock()
        self._lags: dict[str, QueryLag] = {}
        # In the order of their ends, so that the oldest is forgotten first. Their lags are kept for a while,
        # because programs often read them after the end.
        self._ended: list[str] = []

    def __repr__(self) -> str:
        return f"LagListener({len(self._lags)} queries)"

    def lags(self) -> dict[str, QueryLag]:
        """Return the latest lag of each query by its id, including queries that have ended.

        A query is missing until its first batch after the listener was added.
        """
        with self._lock:
            return dict(self._lags)

    def lag(self, query_id: str) -> QueryLag | None:
        """Return the latest lag of the query with this ``StreamingQuery.id``; None before its first batch."""
        with self._lock:
            return self._lags.get(query_id)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name, like those below.
        """Count a restarted query as running."""
        with self._lock:
            if str(event.id) in self._ended:
                # The id comes from the query checkpoint, so a restarted query keeps it.
                self._ended.remove(str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Store and log the lag after a batch, and call ``on_lag``."""
        lag = query_lag(event.progress.json)
        # The query has no Gazette source, or the batch has no position yet.
        if not lag.journals:
            return
        with self._lock:
            self._lags[lag.query_id] = lag
        # Outside the lock, like the callback, because both may take long and lags() must not wait.
        log.info("%s", lag_line(lag))
        if self._on_lag is not None:
            try:
                self._on_lag(lag)
            except Exception:  # This is the caller's code. Spark would only print its error.
                log.exception("on_lag failed query_id=%s batch_id=%d", lag.query_id, lag.batch_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: an idle query's lag does not change."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget queries that ended long ago."""
        with self._lock:
            self._ended.append(str(event.id))
            # Otherwise a program that starts a query for each file would keep all of them.
            for query_id in self._ended[:-ENDED_QUERIES]:
                self._lags.pop(query_id, None)
            del self._ended[:-ENDED_QUERIES]


def count_malformed(rows: DataFrame, column: str = "_corrupt_record", name: str = OBSERVED) -> DataFrame:
    """Count the malformed records of a query, for :attr:`QueryLag.malformed`.

    Spark counts them as observed metrics while it processes the rows, also with Spark Connect. A sink that
    reads a batch twice counts it twice.

    Args:
        rows: Rows of the source, read under ``mode=PERMISSIVE``, with the column in their schema.
        column: Column with the text of malformed records, as in the option ``columnNameOfCorruptRecord``.
        name: Name of the metric. It must begin with ``gazette`` and differ for each source of a query.
    """
    # Otherwise query_lag could not distinguish this metric from the user's metrics.
    if not name.startswith(OBSERVED):
        raise OptionError("name", repr(name), f"a name that begins with {OBSERVED!r}")
    records, malformed = functions.count(functions.lit(1)), functions.count(functions.col(column))
    return rows.observe(name, records.alias("records"), malformed.alias("malformed"))


def lag_line(lag: QueryLag) -> str:
    """Return a lag as one log line."""
    parts = [
        f"query lag query_id={lag.query_id}",
        *([f"name={lag.name}"] if lag.name else []),
        f"batch_id={lag.batch_id} journals={len(lag.journals)} lag_bytes={lag.total_bytes}",
        *([f"unseen={lag.unseen}"] if lag.unseen else []),
        *([f"skipped_bytes={lag.skipped_bytes}"] if lag.skipped_bytes else []),
        *([f"malformed={lag.malformed}"] if lag.malformed else []),
    ]
    if (worst := lag.worst) is not None:
        parts.append(f"worst={worst.journal} worst_bytes={worst.lag_bytes}")
    if lag.transactions:
        count = sum(transactions.count for transactions in lag.transactions)
        # The journal whose transactions keep the most bytes from being pruned is the most urgent one.
        largest = max(lag.transactions, key=lambda transactions: transactions.held_bytes)
        oldest = largest.oldest[0]
        parts.append(
            f"open_transactions={count} held={largest.journal} held_bytes={largest.held_bytes} "
            f"oldest={oldest.begin} producer={oldest.producer}"
        )
    return " ".join(parts)
