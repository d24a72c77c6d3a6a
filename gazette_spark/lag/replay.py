"""Requests to Burrow's storage, recorded one JSON object a line, replayed on a :class:`History`.

A request that stores has no answer; one that fetches has an answer, in the names of Burrow's HTTP API. The
answer to a fetch of something unknown is null. The answer to ``fetch_consumer`` has the windows, as
``topics``, and the verdict on them, as ``status``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gazette_spark.errors import InputError
from gazette_spark.lag.history import MAX_INT64, History, windows_of
from gazette_spark.lag.recorded import Fields, parse_json
from gazette_spark.lag.report import group_json, topics_json
from gazette_spark.lag.rings import Outcome
from gazette_spark.lag.rules import Thresholds, evaluate_group

REQUEST_FIELDS = (
    "request",
    "cluster",
    "group",
    "topic",
    "partition",
    "offset",
    "order",
    "timestamp",
    "partition_count",
    "owner",
    "client_id",
    "now_ms",
)
"""A request may carry any of them; those it does not need are left alone."""

Store = Callable[[History, Fields, Callable[[], int]], Outcome]
"""Does a request that stores something."""

WARNED = (Outcome.UNKNOWN_CLUSTER,)
"""Outcomes that are logged. Burrow is silent about other dropped requests, for they are common."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request."""

    value: dict[str, Any] | None = None
    """JSON to be shown; None of a request that stores."""
    outcome: Outcome | None = None
    """Outcome of a request that stores."""


class Replay:
    """Does requests one after the other.

    Args:
        history: history that they are replayed on.
        thresholds: thresholds of the verdicts.
        any_cluster: a cluster becomes known by its first write head; else only those of ``history`` are.
        show_all: verdicts show all partitions; else those that are not OK.

    Time is ``now_ms`` of the request, or where it is missing, that of the request before.
    """

    def __init__(
        self, history: History, thresholds: Thresholds, *, any_cluster: bool = True, show_all: bool = True
    ) -> None:
        self._history = history
        self._thresholds = thresholds
        self._any_cluster = any_cluster
        self._show_all = show_all
        self._now_ms: int | None = None

    def __repr__(self) -> str:
        return f"Replay({self._history!r}, now_ms={self._now_ms})"

    def do(self, line: str) -> Answer:
        """Do the request on one line.

        Raises:
            InputError: it is not one.
        """
        fields = Fields(parse_json(line), "", REQUEST_FIELDS)
        kind = fields.text("request")
        if "now_ms" in fields:
            self._now_ms = fields.integer("now_ms")
        if store := STORE.get(kind):
            if kind == "broker_offset" and self._any_cluster:
                self._history.add_cluster(fields.text("cluster"))
            return Answer(outcome=store(self._history, fields, self._clock))
        if kind in FETCH:
            names, found = FETCH[kind]
            given = {name: fields.text(name) for name in names}
            return Answer({"request": kind} | given | {found: getattr(self._history, kind)(**given)})
        if kind == "fetch_consumer":
            return Answer({"request": kind} | self._fetch_consumer(fields))
        expected = ", ".join([*STORE, *FETCH, "fetch_consumer"])
        raise InputError(f"request: there is no {kind!r}; expected one of {expected}")

    def _clock(self) -> int:
        if self._now_ms is None:
            raise InputError(
                "now_ms: missing, and no request before had one; expected milliseconds since 1970"
            )
        return self._now_ms

    def _fetch_consumer(self, fields: Fields) -> dict[str, Any]:
        cluster, group, now_ms = fields.text("cluster"), fields.text("group"), self._clock()
        topics = self._history.fetch_consumer(cluster, group, now_ms=now_ms)
        status = evaluate_group(cluster, group, windows_of(topics), now_ms, self._thresholds)
        return {
            "cluster": cluster,
            "group": group,
            "topics": None if topics is None else topics_json(topics),
            "status": group_json(status, show_all=self._show_all),
        }


def _broker_offset(history: History, fields: Fields, _clock: Callable[[], int]) -> Outcome:
    return history.add_broker_offset(
        fields.text("cluster"),
        fields.text("topic"),
        _partition(fields),
        fields.integer("offset"),
        partition_count=fields.integer("partition_count"),
        timestamp_ms=fields.integer("timestamp", 0),
    )


def _consumer_offset(history: History, fields: Fields, clock: Callable[[], int]) -> Outcome:
    return history.add_consumer_offset(
        fields.text("cluster"),
        fields.text("group"),
        fields.text("topic"),
        _partition(fields),
        fields.integer("offset"),
        order=fields.integer("order", least=-MAX_INT64),
        timestamp_ms=fields.integer("timestamp", least=-MAX_INT64),
        now_ms=clock(),
    )


def _consumer_owner(history: History, fields: Fields, _clock: Callable[[], int]) -> Outcome:
    return history.add_consumer_owner(
        fields.text("cluster"),
        fields.text("group"),
        fields.text("topic"),
        _partition(fields),
        owner=fields.text("owner"),
        client_id=fields.text("client_id", ""),
    )


def _named(method: Callable[[History, str, str], Outcome], name: str) -> Store:
    """Return what does a request about a cluster and a group, or a topic, of it."""
    return lambda history, fields, _clock: method(history, fields.text("cluster"), fields.text(name))


STORE: Mapping[str, Store] = {
    "broker_offset": _broker_offset,
    "consumer_offset": _consumer_offset,
    "consumer_owner": _consumer_owner,
    "clear_consumer_owners": _named(History.clear_consumer_owners, "group"),
    "delete_topic": _named(History.delete_topic, "topic"),
    "delete_group": _named(History.delete_group, "group"),
}
"""Requests that store something."""


FETCH = {
    "fetch_clusters": ((), "clusters"),
    "fetch_consumers": (("cluster",), "consumers"),
    "fetch_topics": (("cluster",), "topics"),
    "fetch_topic": (("cluster", "topic"), "offsets"),
    "fetch_consumers_for_topic": (("cluster", "topic"), "consumers"),
}
"""Requests that ask for something and need no clock, named as the history's methods: the fields that they
take, and the one that they fill."""


def _partition(fields: Fields) -> int:
    return fields.integer("partition", least=-(2**31), most=2**31 - 1)
