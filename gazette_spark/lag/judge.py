"""Judges a query once, for jobs that fail if the query is behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gazette_spark._ledger.history import HistoryRow
from gazette_spark._ledger.positions import now_ms
from gazette_spark.client import Client
from gazette_spark.errors import InputError
from gazette_spark.lag.feeds import HeadFeed, TableFeed, poll_all
from gazette_spark.lag.group_lag import GroupLag
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Thresholds

FOREVER_S = 100 * 365 * 86_400


def judge_query(
    client: Client,
    table: str,
    *,
    journals: str = "",
    app_id: str | None = None,
    commits: int = 10,
    fetch: Callable[[int | None], Sequence[HistoryRow]] | None = None,
) -> GroupLag:
    """Return how far a query is behind, and Burrow's verdict on its last commits.

    The table's ledger is compared with the brokers' current write heads. To ask repeatedly, keep a
    :class:`Monitor` instead, as ``gazette-spark lag serve`` does.

    Args:
        client: A client of the brokers.
        table: A Delta table's directory or URL, or "iceberg:catalog/namespace.table".
        journals: A journal, or a prefix that ends in ``/``; empty for all journals.
        app_id: The stream's app id. It may be left out if only one stream fills the table.
        commits: Number of commits that are judged.
        fetch: Returns the newest rows of the table's history, newest first; None requests all of them. Pass
            it for a table that only Spark can read: ``lambda limit: sink.table.history(spark, limit)``. Then
            ``table`` is only a name.

    Returns:
        The verdict and the lag in bytes, in total and for each journal.

    Raises:
        InputError: the table or the write heads cannot be read, the table has no ledger, or ``app_id`` is
            missing or unknown.
    """
    selector = f"{'prefix' if journals.endswith('/') else 'name'}={journals}" if journals else ""
    # A monitor forgets a group that has been silent for a week, but the caller has named this one.
    history = History(HistoryOptions(intervals=commits, expire_group_s=FOREVER_S))
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds()))
    # Read the heads first. A commit between the two reads is then ahead of the heads, and its lag is 0.
    ledger = TableFeed(table, fetch=fetch)
    at = now_ms()
    if failures := poll_all([HeadFeed(client, selector), ledger], monitor, at):
        raise InputError("; ".join(failures))
    if not ledger.groups:
        raise InputError(
            f"{ledger!r} has no ledger: no query has committed to it by DeltaSink or IcebergSink"
        )
    if app_id is None and len(ledger.groups) > 1:
        raise InputError(f"{ledger!r} has the app ids {', '.join(ledger.groups)}: name one")
    if app_id is not None and app_id not in ledger.groups:
        raise InputError(f"{ledger!r} has no app id {app_id!r}, only {', '.join(ledger.groups)}")
    return monitor.lag(app_id or ledger.groups[0], at)
