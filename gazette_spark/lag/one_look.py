"""Whether one look is enough for a verdict: ``lag show`` has seen no write head but the present one.

A verdict on a journal with unread bytes needs to know how long they wait, or how the lag went. One look knows
the lags that the query's own commits recorded, and how old the oldest unread byte is at least.
"""

from __future__ import annotations

from gazette_spark.lag.monitor import GroupLag, Monitor
from gazette_spark.lag.rules import PartitionWindow, Status, is_silent


def undecided(
    monitor: Monitor, group: str, lag: GroupLag, now_ms: int, allowed_lag: int = 0
) -> frozenset[str]:
    """Return the journals of a group on which one look cannot tell the verdict."""
    with monitor.lock:
        topics = monitor.history.fetch_consumer(monitor.cluster, group, now_ms=now_ms) or {}
    windows = {window.client_id: window for each in topics.values() for window in each}
    return frozenset(
        each.journal
        for each in lag.journals
        if not is_decided(
            windows[each.journal], each.status.status, each.age.least_ms, now_ms, allowed_lag=allowed_lag
        )
    )


def is_decided(
    window: PartitionWindow, verdict: Status, least_age_ms: int | None, now_ms: int, *, allowed_lag: int = 0
) -> bool:
    """Return whether a verdict after one look is that of a monitor which had watched.

    Args:
        window: its write heads are the present one, and one that the newest commit recorded.
        verdict: the verdict of the rules.
        least_age_ms: minimum age of the oldest unread byte; None if unknown.
        now_ms: the time.
        allowed_lag: lag with which a partition is OK.
    """
    commits = [commit for commit in window.offset_commits if commit is not None]
    if commits and window.current_lag <= allowed_lag:
        return True
    # A single lag is the present one: no commit recorded what its query saw.
    lags = [commit.lag for commit in commits if commit.lag is not None]
    if len(commits) < 2 or len(lags) < 2:
        return False
    if not is_silent(commits, now_ms):
        return True
    window_ms = commits[-1].timestamp_ms - commits[0].timestamp_ms
    was_behind = commits[-1].lag is not None and commits[-1].lag > allowed_lag
    waits = least_age_ms is not None and least_age_ms > window_ms
    return verdict == Status.STOP and (was_behind or waits)
