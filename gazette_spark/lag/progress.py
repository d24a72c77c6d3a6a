"""A query's progress as a feed: for a monitor in the query's own program.

::

    listener = LagListener(ProgressFeed(monitor))
    spark.streams.addListener(listener)

Each batch reports the write heads the query saw and the query's position. Between batches the monitor learns
nothing, so a query that hangs shows as silent, while its lag does not change. Poll the brokers, too, where
that is not enough.
"""

from __future__ import annotations

from collections.abc import Callable

from gazette_spark.lag.monitor import Monitor
from gazette_spark.ledger.positions import GroupCommit, now_ms
from gazette_spark.query_progress import QueryLag


class ProgressFeed:
    """Reports each batch to a monitor. The group is the query's name, or the id of a query without a name.

    Args:
        monitor: monitor to report to.
        clock: returns the milliseconds since 1970; a batch counts as committed when its progress comes.
    """

    def __init__(self, monitor: Monitor, clock: Callable[[], int] = now_ms) -> None:
        self._monitor = monitor
        self._clock = clock

    def __repr__(self) -> str:
        return f"ProgressFeed({self._monitor!r})"

    def __call__(self, lag: QueryLag) -> None:
        """Take the progress of a batch. Of a journal that several sources read, the least offset counts.

        Raises:
            InputError: another query, or a table, has the same name.
        """
        now = self._clock()
        heads = {each.journal: each.head for each in lag.journals if each.head is not None}
        reached: dict[str, int] = {}
        for each in lag.journals:
            reached[each.journal] = min(each.reached, reached.get(each.journal, each.reached))
        if heads:
            self._monitor.observe_heads(heads, now)
        step = GroupCommit(lag.batch_id, now, reached)
        group = lag.name or lag.query_id
        self._monitor.observe_commits(group, [step], now, source=f"the progress of query {lag.query_id}")
        self._monitor.observe_progress(group, lag.skipped_bytes, lag.malformed, lag.transactions, now)
        self._monitor.observe_round(now)
