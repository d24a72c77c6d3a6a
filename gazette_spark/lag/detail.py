"""Formats groups and journals as JSON, in addition to Burrow's. Names end with units; null means unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gazette_spark.lag.burrow_json import commit_json, shortest
from gazette_spark.lag.group_lag import Alarms, FeedState, GroupLag, JournalLag
from gazette_spark.lag.incidents import PastIncident
from gazette_spark.lag.metrics import Level, metrics_json
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import PartitionWindow, Status, is_silent

UNKNOWN = "UNKNOWN"
"""Verdict if one poll is not enough to decide."""


def group_summary(name: str, lag: GroupLag, alarms: Alarms) -> dict[str, Any]:
    """Return a group's summary: the verdict, the total lag, and the freshness of its table."""
    verdicts = Counter(journal.status.status for journal in lag.journals)
    return {
        "group": name,
        "status": lag.verdict.status.name,
        "complete": shortest(lag.verdict.complete),
        "journals": len(lag.journals),
        "verdicts": {status.name: verdicts[status] for status in sorted(verdicts, reverse=True)},
        **metrics_json(Level.JUDGED, lag),
        "alarms": alarms.raised(lag),
        "stale": lag.failure,
    }


def group_detail(name: str, lag: GroupLag, alarms: Alarms, journals: Sequence[JournalLag]) -> dict[str, Any]:
    """Return a group with the given journals."""
    return group_summary(name, lag, alarms) | {
        "unlisted": list(lag.unlisted),
        "recreated": list(lag.recreated),
        "journals": [journal_json(journal) for journal in journals],
    }


def worst_first(journals: Iterable[JournalLag]) -> list[JournalLag]:
    """Return journals in order of urgency: by verdict, then by lag, the worst first."""
    return sorted(
        journals,
        key=lambda lag: (-min(lag.status.status, Status.ERR), -(lag.lag_bytes or 0), lag.journal),
    )


def journal_json(lag: JournalLag) -> dict[str, Any]:
    """Return the lag of a group in one journal."""
    return {
        "journal": lag.journal,
        "topic": lag.status.topic,
        "partition": lag.status.partition,
        "status": lag.status.status.name,
        "complete": shortest(lag.status.complete),
        "head": lag.head,
        "committed": commit_json(lag.status.end),
        **metrics_json(Level.JOURNAL, lag),
    }


TREND_MS, TREND_STEP_MS = 6 * 3_600_000, 10 * 60_000
"""Length of the small chart of each group, and length of its steps."""


def trend(points: Iterable[tuple[int, int | None]], now_ms: int) -> list[tuple[int, int | None]]:
    """Return the highest lag of each ten minutes of the last six hours, as (time, bytes or None for unknown).

    >>> trend([(0, 1), (60_000, 7), (61_000, None), (70_000, None), (1_260_000, 3)], 1_300_000)
    [(60000, 7), (61000, None), (1260000, 3)]
    """
    shown: list[tuple[int, int | None]] = []
    for time_ms, lag in points:
        if time_ms <= now_ms - TREND_MS:
            continue
        # Before the first point, start with a step that contains no point.
        last_ms, last = shown[-1] if shown else (-TREND_STEP_MS, None)
        if lag is None:
            if last is not None:
                shown.append((time_ms, None))
        elif last is None or last_ms // TREND_STEP_MS != time_ms // TREND_STEP_MS:
            shown.append((time_ms, lag))
        elif lag >= last:
            shown[-1] = (time_ms, lag)
    return shown


def incident_json(incident: PastIncident) -> dict[str, Any]:
    """Return an incident of a group."""
    return {
        "group": incident.group,
        "begin_ms": incident.begin_ms,
        "end_ms": incident.end_ms,
        "status": incident.status.name,
        "alarms": list(incident.alarms),
    }


def feed_json(feed: FeedState) -> dict[str, Any]:
    """Return whether a feed can be read, and when it was last read."""
    return {"feed": feed.name, "groups": list(feed.groups), "read_ms": feed.read_ms, "failure": feed.failure}


def ambiguous_journals(monitor: Monitor, group: str, lag: GroupLag, allowed_lag: int = 0) -> frozenset[str]:
    """Return the journals of a group for which one poll cannot decide the verdict."""
    with monitor.lock:
        topics = monitor.history.fetch_consumer(monitor.cluster, group, now_ms=lag.now_ms) or {}
    windows = {window.client_id: window for partitions in topics.values() for window in partitions}
    return frozenset(
        journal.journal
        for journal in lag.journals
        if not is_decided(
            windows[journal.journal],
            journal.status.status,
            journal.age.least_ms,
            lag.now_ms,
            allowed_lag=allowed_lag,
        )
    )


def is_decided(
    window: PartitionWindow, verdict: Status, least_age_ms: int | None, now_ms: int, *, allowed_lag: int = 0
) -> bool:
    """Return whether a verdict after one poll equals the verdict of a monitor that has been watching.

    A verdict on a journal with unread bytes depends on how long they have waited, or how the lag has changed.
    After one poll, only the lags that the query's commits recorded, and the minimum age of the oldest unread
    byte, are known.

    Args:
        window: Window with the current write head, and the one that the newest commit recorded.
        verdict: Verdict of the rules.
        least_age_ms: Minimum age of the oldest unread byte; None if unknown.
        now_ms: The current time.
        allowed_lag: Lag up to which a partition is OK.
    """
    commits = [commit for commit in window.offset_commits if commit is not None]
    if commits and window.current_lag <= allowed_lag:
        return True
    # A single lag is the current one, because no commit recorded the head that its query saw.
    lags = [commit.lag for commit in commits if commit.lag is not None]
    if len(commits) < 2 or len(lags) < 2:
        return False
    # The query runs, and its commits recorded the lags, so a monitor would have seen the same.
    if not is_silent(commits, now_ms):
        return True
    window_ms = commits[-1].timestamp_ms - commits[0].timestamp_ms
    # If it was behind at its last commit, or the unread bytes are older than the window, bytes were waiting
    # during the silence, and STOP is right. Otherwise they may have arrived a second ago.
    was_behind = commits[-1].lag is not None and commits[-1].lag > allowed_lag
    waits = least_age_ms is not None and least_age_ms > window_ms
    return verdict == Status.STOP and (was_behind or waits)


def mark_unknown(detail: dict[str, Any], ambiguous: Collection[str]) -> dict[str, Any]:
    """Return a group with the verdict UNKNOWN, between OK and WARN, for the ambiguous journals."""
    if not ambiguous:
        return detail
    journals = [
        journal | {"status": UNKNOWN} if journal["journal"] in ambiguous else journal
        for journal in detail["journals"]
    ]
    decided = [Status[journal["status"]] for journal in journals if journal["status"] != UNKNOWN]
    # A bad verdict on one journal is certain, regardless of the others.
    worst = max(decided, default=Status.OK)
    status = UNKNOWN if worst == Status.OK else min(worst, Status.ERR).name
    return detail | {"status": status, "journals": journals}
