"""Measures the lag of queries and judges by Burrow's rules, without thresholds, whether it is getting worse.

``feeds`` read brokers, tables and checkpoints, and report to the ``monitor``. ``history`` keeps windows of
commits, ``rules`` judges them one by one and ``columns`` all together, and ``estimates`` adds ages and
forecasts. ``metrics`` is the table of all displayed values, ``api`` answers requests, and ``server`` runs
everything. The decisions are pure: the clock is an argument, and only feeds, senders and the server have side
effects.

The words *cluster*, *group*, *topic* and *partition* are from Burrow's JSON: a cluster of brokers, a query, a
prefix or selector of journals, and one journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_spark._exports import lazy_exports

if TYPE_CHECKING:
    from gazette_spark._ledger.positions import GroupCommit as GroupCommit
    from gazette_spark._ledger.positions import now_ms as now_ms
    from gazette_spark.lag.feeds import CheckpointFeed as CheckpointFeed
    from gazette_spark.lag.feeds import HeadFeed as HeadFeed
    from gazette_spark.lag.feeds import ProgressFeed as ProgressFeed
    from gazette_spark.lag.feeds import TableFeed as TableFeed
    from gazette_spark.lag.feeds import poll_all as poll_all
    from gazette_spark.lag.group_lag import GroupLag as GroupLag
    from gazette_spark.lag.history import Evaluator as Evaluator
    from gazette_spark.lag.history import History as History
    from gazette_spark.lag.history import HistoryOptions as HistoryOptions
    from gazette_spark.lag.judge import judge_query as judge_query
    from gazette_spark.lag.monitor import Monitor as Monitor
    from gazette_spark.lag.rules import GroupStatus as GroupStatus
    from gazette_spark.lag.rules import OffsetCommit as OffsetCommit
    from gazette_spark.lag.rules import PartitionStatus as PartitionStatus
    from gazette_spark.lag.rules import PartitionWindow as PartitionWindow
    from gazette_spark.lag.rules import Status as Status
    from gazette_spark.lag.rules import Thresholds as Thresholds
    from gazette_spark.query_progress import QueryLag as QueryLag
    from gazette_spark.query_progress import query_lag as query_lag

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "feeds": ("CheckpointFeed", "HeadFeed", "ProgressFeed", "TableFeed", "poll_all"),
        "group_lag": ("GroupLag",),
        "history": ("Evaluator", "History", "HistoryOptions"),
        "judge": ("judge_query",),
        "monitor": ("Monitor",),
        ".._ledger.positions": ("GroupCommit", "now_ms"),
        "..query_progress": ("QueryLag", "query_lag"),
        "rules": (
            "GroupStatus",
            "OffsetCommit",
            "PartitionStatus",
            "PartitionWindow",
            "Status",
            "Thresholds",
        ),
    },
)
