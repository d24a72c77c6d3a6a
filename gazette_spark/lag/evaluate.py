"""Verdicts on request, each cached for some seconds.

So a dashboard, a scrape and a notifier that ask at once get one answer, made once. "There is no such group"
holds as long as any other verdict.
"""

from __future__ import annotations

from gazette_spark.errors import OptionError
from gazette_spark.lag.columns import MAX_TIME_MS, evaluate_columns
from gazette_spark.lag.history import History, windows_of
from gazette_spark.lag.rules import GroupStatus, Thresholds, evaluate_group

MAX_HELD = 100_000
"""Verdicts held at most: names that do not exist can be asked for without end."""


class Evaluator:
    """Judges the groups of a history.

    Args:
        history: history to judge. It is shared: hold its lock around each call.
        thresholds: thresholds of the verdicts.
        expire_cache_s: seconds that a verdict is cached; 0: no cache.

    Raises:
        OptionError: ``expire_cache_s`` is negative.
    """

    def __init__(self, history: History, thresholds: Thresholds, *, expire_cache_s: int = 10) -> None:
        if expire_cache_s < 0:
            raise OptionError("expire-cache", str(expire_cache_s), "0 or more seconds")
        self._history = history
        self._thresholds = thresholds
        self._expire_ms = expire_cache_s * 1000
        self._held: dict[tuple[str, str], tuple[int, GroupStatus]] = {}

    def __repr__(self) -> str:
        return f"Evaluator({self._history!r}, held={len(self._held)})"

    def status(self, cluster: str, group: str, *, now_ms: int) -> GroupStatus:
        """Return a group's verdict, with all partitions: a cached one, or a new one.

        A cached verdict from the future is replaced: the clock was set back, and the verdict might never
        expire.
        """
        held = self._held.get((cluster, group))
        if held and 0 <= now_ms - held[0] < self._expire_ms:
            return held[1]
        found = self._judge(cluster, group, now_ms)
        if len(self._held) >= MAX_HELD:
            self._held.clear()
        self._held[cluster, group] = (now_ms, found)
        return found

    def _judge(self, cluster: str, group: str, now_ms: int) -> GroupStatus:
        columns = self._history.fetch_columns(cluster, group, now_ms=now_ms)
        if columns is not None and columns.fits and abs(now_ms) < MAX_TIME_MS:
            return evaluate_columns(cluster, group, columns, now_ms, self._thresholds)
        windows = windows_of(self._history.fetch_consumer(cluster, group, now_ms=now_ms))
        return evaluate_group(cluster, group, windows, now_ms, self._thresholds)
