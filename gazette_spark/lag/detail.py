"""Details of a group beside Burrow's verdict, as JSON: units end the names, null is "not known"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gazette_spark.lag.alarms import Alarms
from gazette_spark.lag.estimates import Age
from gazette_spark.lag.monitor import FeedState, GroupLag, JournalLag, OpenInJournal, OpenSince
from gazette_spark.lag.report import commit_json, shortest
from gazette_spark.lag.rules import Status


def group_summary(name: str, lag: GroupLag, now_ms: int, alarms: Alarms) -> dict[str, Any]:
    """Return a group in one line: the verdict, the sum of the lag, how fresh its table is."""
    verdicts = Counter(each.status.status for each in lag.journals)
    return {
        "group": name,
        "status": lag.verdict.status.name,
        "complete": shortest(lag.verdict.complete),
        "lag_bytes": lag.lag_bytes,
        "journals": len(lag.journals),
        "verdicts": {status.name: verdicts[status] for status in sorted(verdicts, reverse=True)},
        "unlisted_journals": len(lag.unlisted),
        "recreated_journals": len(lag.recreated),
        "freshness": age_json(lag.freshness),
        "read_bytes_per_s": _rounded(lag.read_bytes_per_s),
        "append_bytes_per_s": _rounded(lag.append_bytes_per_s),
        "last_commit_age_ms": None if lag.last_commit_ms is None else max(0, now_ms - lag.last_commit_ms),
        "catch_up_ms": _longest([each.catch_up_ms for each in lag.journals]),
        "loss_in_ms": min(
            (each.loss_in_ms for each in lag.journals if each.loss_in_ms is not None), default=None
        ),
        "alarms": alarms.raised(lag),
        "stale": lag.failure,
    }


def group_detail(
    name: str, lag: GroupLag, now_ms: int, alarms: Alarms, journals: Sequence[JournalLag] | None = None
) -> dict[str, Any]:
    """Return a group with some of its journals; with all of them, worst first, if ``journals`` is None."""
    shown = worst_first(lag.journals) if journals is None else journals
    return group_summary(name, lag, now_ms, alarms) | {
        "unlisted": list(lag.unlisted),
        "recreated": list(lag.recreated),
        "journals": [journal_json(each, now_ms) for each in shown],
    }


def worst_first(journals: Iterable[JournalLag]) -> list[JournalLag]:
    """Return journals in the order in which to look at them: ERR, WARN, OK, the largest lag first."""
    return sorted(
        journals,
        key=lambda each: (-min(each.status.status, Status.ERR), -(each.lag_bytes or 0), each.journal),
    )


def leave_open(detail: dict[str, Any], undecided: Collection[str]) -> dict[str, Any]:
    """Return a group whose verdict is UNKNOWN in some journals; they count between OK and WARN."""
    if not undecided:
        return detail
    journals = [
        each | {"status": "UNKNOWN"} if each["journal"] in undecided else each for each in detail["journals"]
    ]
    decided = [Status[each["status"]] for each in journals if each["status"] != "UNKNOWN"]
    worst = max(decided, default=Status.OK)
    status = "UNKNOWN" if worst == Status.OK else min(worst, Status.ERR).name
    return detail | {"status": status, "journals": journals}


def transaction_json(opened: OpenSince, now_ms: int) -> dict[str, Any]:
    """Return an open transaction; how old it is at most is not known."""
    return {
        "journal": opened.journal,
        "producer": opened.producer,
        "begin": opened.begin,
        "held_bytes": opened.held_bytes,
        "age": age_json(Age(max(0, now_ms - opened.since_ms), None)),
    }


def opened_json(opened: OpenInJournal, now_ms: int) -> dict[str, Any]:
    """Return how many transactions of a journal are open, and the one that begins first."""
    oldest = opened.oldest and transaction_json(opened.oldest, now_ms)
    return {"count": opened.count, "oldest": oldest}


def journal_json(lag: JournalLag, now_ms: int) -> dict[str, Any]:
    """Return how far a group is behind in one journal."""
    return {
        "journal": lag.journal,
        "topic": lag.status.topic,
        "partition": lag.status.partition,
        "status": lag.status.status.name,
        "complete": shortest(lag.status.complete),
        "head": lag.head,
        "committed": commit_json(lag.status.end),
        "lag_bytes": lag.lag_bytes,
        "lag_records": lag.records,
        "lag_age": age_json(lag.age),
        "read_bytes_per_s": _rounded(lag.read_bytes_per_s),
        "append_bytes_per_s": _rounded(lag.append_bytes_per_s),
        "catch_up_ms": lag.catch_up_ms,
        "loss_in_ms": lag.loss_in_ms,
        "open_transactions": lag.opened and opened_json(lag.opened, now_ms),
    }


def feed_json(feed: FeedState) -> dict[str, Any]:
    """Return whether a feed can be read, and when it was read last."""
    return {"feed": feed.name, "groups": list(feed.groups), "read_ms": feed.read_ms, "failure": feed.failure}


def age_json(age: Age) -> dict[str, int | None]:
    """Return the bounds of an age."""
    return {"least_ms": age.least_ms, "most_ms": age.most_ms}


def _longest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _rounded(speed: float | None) -> float | None:
    return None if speed is None else round(speed, 1)
