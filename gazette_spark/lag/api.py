"""Answers requests of Burrow's HTTP API, version 3, and our additions, without a socket.

Paths, shapes and codes are Burrow's. Values that its JSON lacks, such as a journal's name, are under
``/gazette/v1``. A name in a path is percent-encoded.

================================================  =========================================================
GET  /burrow/admin, /burrow/admin/ready           alive; heads are known and each feed has been polled
GET  /metrics                                     Prometheus
GET  /v3/kafka[/CLUSTER[/…]]                      clusters, topics, groups, verdicts
DELETE of a consumer, or of a topic of one        405, unless enabled
GET, POST /v3/admin/loglevel                      of the monitor's log
GET  /v3/config[/SECTION[/MODULE]]                the monitor's configuration
GET  /gazette/v1/groups                           lag in bytes and time, estimates, incidents, feeds
GET  /gazette/v1/groups/GROUP                     its journals, worst first, and its charts;
                                                  ?match=TEXT&ok=no&limit=N for some of them
GET  /gazette/v1/clusters/CLUSTER/groups[/GROUP]  the same of another monitor, for the page
GET  /                                            a page with these values
================================================  =========================================================
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, quote, unquote_to_bytes

import httpx

from gazette_spark.errors import InputError, JsonError
from gazette_spark.lag import metrics
from gazette_spark.lag.burrow_json import group_json, topics_json
from gazette_spark.lag.detail import (
    feed_json,
    group_detail,
    group_summary,
    incident_json,
    trend,
    worst_first,
)
from gazette_spark.lag.group_lag import JournalLag
from gazette_spark.lag.metrics import Kind, Level, columns, transaction_json
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Status
from gazette_spark.strict_json import parse_json

LOGGER = logging.getLogger("gazette_spark.lag")

JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

NOT_FOUND = '{"error":true,"message":"invalid request type","result":{}}'
"""Burrow's answer, as plain text, to a path that does not exist."""

LOG_LEVELS = ("debug", "info", "warning", "error")

OTHER_TIMEOUT_S = 10
"""Timeout of a request to the monitor of another cluster."""

MAX_BODY_BYTES = 4096
"""Maximum size of a request's body. The only request with a body sets a log level."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as it arrived."""

    method: str
    path: str
    """Path of the request line: percent-encoded, without query."""
    body: bytes = b""
    query: str = ""
    """The query after the ``?``, percent-encoded."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class _NotFoundError(Exception):
    """The cluster, topic or group does not exist."""


Handler = Callable[["Api", tuple[str, ...], HttpRequest], HttpAnswer]


@dataclass(frozen=True)
class Api:
    """Answers requests about a monitor.

    Args:
        monitor: The monitor that answers.
        clock: Returns the milliseconds since 1970.
        host: This machine's name, which Burrow puts in every answer.
        config: Configuration of the monitor by section and name of a module, without secrets.
        allow_delete: Whether groups and topics may be deleted.
        logger: Logger whose level is shown and set.
        more_metrics: Returns additional metrics in Prometheus' text format.
        other_clusters: Addresses of monitors whose groups the page shows as well, by the name of the cluster.
    """

    monitor: Monitor
    clock: Callable[[], int]
    host: str
    config: Mapping[str, Mapping[str, Mapping[str, Any]]]
    allow_delete: bool = False
    logger: logging.Logger = LOGGER
    more_metrics: Callable[[], str] = str
    other_clusters: Mapping[str, str] = field(default_factory=dict)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request. Never raises for an invalid request."""
        if request.path != "/" and request.path.endswith("/"):
            # Two slashes at the beginning would name a host.
            target = "/" + request.path.strip("/")
            return HttpAnswer(301 if request.method == "GET" else 307, PLAIN, b"", (("Location", target),))
        try:
            # Split before decoding, because a group's name may have an encoded slash.
            names = tuple(unquote_to_bytes(part).decode() for part in request.path.split("/")[1:])
        except UnicodeDecodeError:
            return _no_such_path()
        for pattern, methods in ROUTES:
            # A list and not a tree: about thirty paths are compared in microseconds.
            if len(pattern) != len(names):
                continue
            if any(part not in ("*", name) for part, name in zip(pattern, names, strict=True)):
                continue
            at_stars = tuple(name for part, name in zip(pattern, names, strict=True) if part == "*")
            # As in Burrow, a path that exists with another method gets 405, not 404.
            handler = methods.get(request.method)
            if handler is None or (request.method == "DELETE" and not self.allow_delete):
                allowed = [name for name in methods if name != "DELETE" or self.allow_delete]
                return HttpAnswer(
                    405, PLAIN, b"Method Not Allowed\n", (("Allow", ", ".join([*allowed, "OPTIONS"])),)
                )
            try:
                return handler(self, at_stars, request)
            except _NotFoundError as error:
                return self.error(404, str(error), request)
        return _no_such_path()

    def ok(self, request: HttpRequest, message: str, **fields: object) -> HttpAnswer:
        """Return an answer in Burrow's form."""
        return self._json(200, {"error": False, "message": message} | fields, request)

    def error(self, status: int, message: str, request: HttpRequest) -> HttpAnswer:
        """Return an error in Burrow's form."""
        return self._json(status, {"error": True, "message": message}, request)

    def _json(self, status: int, value: dict[str, Any], request: HttpRequest) -> HttpAnswer:
        # Burrow's clients expect the request in every answer.
        value["request"] = {"url": request.path, "host": self.host}
        return HttpAnswer(status, JSON, json.dumps(value, separators=(",", ":")).encode())

    @cached_property
    def page(self) -> bytes:
        """The status page: one self-contained file, with the columns of the table of metrics."""
        page = resources.files("gazette_spark.lag").joinpath("page.html").read_text()
        for name, level in (("GROUP_METRICS", Level.JUDGED), ("JOURNAL_METRICS", Level.JOURNAL)):
            # The page has no second table of metrics; see metrics.METRICS.
            shown = [metric.for_page() for metric in columns(level) if metric.kind is not Kind.OPEN_FOR]
            page = page.replace(f"const {name} = [];", f"const {name} = {json.dumps(shown)};")
        return page.encode()

    def check_cluster(self, cluster: str) -> None:
        """Raise if there is no cluster with that name."""
        if cluster != self.monitor.cluster:
            raise _NotFoundError("cluster not found")


def _no_such_path() -> HttpAnswer:
    return HttpAnswer(404, PLAIN, NOT_FOUND.encode())


PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'"
)
"""The page may load only this server's answers."""


def _ready(api: Api, _: tuple[str, ...], __: HttpRequest) -> HttpAnswer:
    if api.monitor.ready:
        return HttpAnswer(200, PLAIN, b"READY")
    return HttpAnswer(503, PLAIN, b"STARTING")


def _metrics(api: Api, _: tuple[str, ...], __: HttpRequest) -> HttpAnswer:
    text = metrics.exposition(api.monitor, api.clock()) + api.more_metrics().encode()
    return HttpAnswer(200, metrics.CONTENT_TYPE, text)


def _clusters(api: Api, _: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    with api.monitor.lock:
        return api.ok(request, "cluster list returned", clusters=api.monitor.history.fetch_clusters())


def _cluster(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    api.check_cluster(names[0])
    return api.ok(request, "cluster module detail returned", module=dict(api.config["cluster"][names[0]]))


def _topics(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    api.check_cluster(names[0])
    with api.monitor.lock:
        return api.ok(request, "topic list returned", topics=api.monitor.history.fetch_topics(names[0]))


def _topic(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    api.check_cluster(names[0])
    with api.monitor.lock:
        offsets = api.monitor.history.fetch_topic(*names)
    if offsets is None:
        raise _NotFoundError("cluster or topic not found")
    return api.ok(request, "topic offsets returned", offsets=offsets)


def _topic_consumers(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    api.check_cluster(names[0])
    with api.monitor.lock:
        groups = api.monitor.history.fetch_consumers_for_topic(*names)
    return api.ok(request, "consumers of topic returned", consumers=groups)


def _consumers(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    api.check_cluster(names[0])
    with api.monitor.lock:
        # The names of feeds that were never read follow, so that a table that has been unreadable since the
        # start is not missing from the list.
        groups = api.monitor.history.fetch_consumers(names[0]) or []
    unread = [group for feed in api.monitor.feeds() for group in feed.unread_groups]
    return api.ok(request, "consumer list returned", consumers=list(dict.fromkeys([*groups, *unread])))


def _consumer(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    api.check_cluster(names[0])
    with api.monitor.lock:
        topics = api.monitor.history.fetch_consumer(*names, now_ms=api.clock())
    stale = _stale(api, names[1])
    if topics is None:
        why = f": {stale['stale']}" if stale else ""
        raise _NotFoundError(f"cluster or consumer not found{why}")
    return api.ok(request, "consumer detail returned", topics=topics_json(topics), **stale)


def _stale(api: Api, group: str) -> dict[str, Any]:
    """Return a field with the reason if a group's values are stale. Burrow lacks this."""
    # A name that no feed reports is unknown, not stale.
    if group not in api.monitor.groups():
        return {}
    failure = api.monitor.failure(group, api.clock())
    return {} if failure is None else {"stale": failure}


def _status(api: Api, names: tuple[str, ...], request: HttpRequest, *, show_all: bool = False) -> HttpAnswer:
    with api.monitor.lock:
        verdict = api.monitor.evaluator.status(*names, now_ms=api.clock())
    value = {"status": group_json(verdict, show_all=show_all)} | _stale(api, names[1])
    if verdict.status != Status.NOTFOUND:
        return api.ok(request, "consumer status returned", **value)
    if "stale" in value:
        # Without a group the lag would be 0, which looks fine, although the lag is unknown.
        value["status"]["totallag"] = None
    message = "cluster or consumer not found"
    return api._json(404, {"error": False, "message": message} | value, request)


def _delete_consumer(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    with api.monitor.lock:
        # Burrow gives the same answer if the group does not exist. A group that still commits comes back with
        # its next commit.
        api.monitor.history.delete_group(*names)
    return api.ok(request, "consumer group removed")


def _delete_topic(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    with api.monitor.lock:
        api.monitor.history.delete_topic_of_group(*names)
    return api.ok(request, "consumer topic removed")


def _log_level(api: Api, _: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    level = logging.getLevelName(api.logger.getEffectiveLevel()).lower()
    return api.ok(request, "log level returned", level=level)


def _set_log_level(api: Api, _: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    try:
        value = parse_json(request.body)
    except JsonError:
        value = None
    match value:
        case {"level": str(level)}:
            if level.lower() not in LOG_LEVELS:
                return api.error(404, "unknown log level", request)
            api.logger.setLevel(level.upper())
            return api.ok(request, "set log level")
    return api.error(400, "could not decode message body", request)


def _config(api: Api, _: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    level = logging.getLevelName(api.logger.getEffectiveLevel()).lower()
    # The monitor has no log file, process file or ZooKeeper. Clients of Burrow expect their fields.
    sections = {
        "general": {"pidfile": "", "stdout-logfile": "", "access-control-allow-origin": ""},
        "logging": {
            "filename": "",
            "max-size": 0,
            "max-backups": 0,
            "max-age": 0,
            "use-local-time": False,
            "use-compression": False,
            "level": level,
        },
        "zookeeper": {"servers": [], "timeout": 0, "root-path": ""},
        "httpserver": dict(api.config.get("httpserver", {})),
    }
    return api.ok(request, "main config returned", **sections)


def _modules(api: Api, _: tuple[str, ...], request: HttpRequest, *, section: str) -> HttpAnswer:
    modules = list(api.config.get(section, {}))
    return api.ok(request, "module list returned", coordinator=section, modules=modules)


def _module(api: Api, names: tuple[str, ...], request: HttpRequest, *, section: str) -> HttpAnswer:
    module = api.config.get(section, {}).get(names[0])
    if module is None:
        raise _NotFoundError(f"{section} module not found")
    return api.ok(request, f"{section} module detail returned", module=dict(module))


def _other_cluster(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    """Forward a request of the page to the monitor of another cluster."""
    name, *rest = names
    address = api.other_clusters.get(name)
    if address is None:
        raise _NotFoundError("cluster not found")
    # Quoted again, so that a name with a slash or a question mark does not change the path.
    path = "/".join(["/gazette/v1/groups", *(quote(part, safe="") for part in rest)])
    try:
        answer = httpx.get(f"{address}{path}?{request.query}", timeout=OTHER_TIMEOUT_S)
    except httpx.HTTPError as error:
        return api.error(502, f"the monitor of cluster {name} does not answer: {error}", request)
    return HttpAnswer(answer.status_code, JSON, answer.content)


def _groups(api: Api, _: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    now_ms = api.clock()
    monitor = api.monitor
    return api.ok(
        request,
        "groups returned",
        cluster=monitor.cluster,
        other_clusters=list(api.other_clusters),
        now_ms=now_ms,
        looked_ms=monitor.looked_ms,
        heads_ms=monitor.heads_ms,
        failure=monitor.heads_failure,
        stale=monitor.round_failure(now_ms),
        feeds=[feed_json(feed) for feed in monitor.feeds()],
        incidents=[incident_json(incident) for incident in monitor.incidents()],
        groups=[
            group_summary(name, monitor.lag(name, now_ms), monitor.alarms)
            | {"lag_trend": trend(monitor.lag_history(name), now_ms)}
            for name in monitor.groups()
        ],
    )


def _group(api: Api, names: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
    if names[0] not in api.monitor.groups():
        raise _NotFoundError("group not found")
    now_ms = api.clock()
    lag = api.monitor.lag(names[0], now_ms)
    try:
        matched, shown = JournalFilter.parse(request.query).of(worst_first(lag.journals))
    except InputError as error:
        return api.error(400, str(error), request)
    histories = api.monitor.journal_lag_histories(names[0], [journal.journal for journal in shown])
    detail = group_detail(names[0], lag, api.monitor.alarms, shown)
    for journal in detail["journals"]:
        journal["lag_history"] = histories.get(journal["journal"], [])
    more = {
        "matched": matched,
        **api.monitor.histories(names[0]),
        "open_transactions": [
            transaction_json(opened, opened.age(now_ms)) for opened in lag.totals.transactions
        ],
    }
    return api.ok(request, "group returned", group=detail | more)


@dataclass(frozen=True, slots=True)
class JournalFilter:
    """Filter of a group's journals in a request. Without a query, it selects all."""

    text: str = ""
    """Part of the journal's name; case is ignored."""
    ok: bool = True
    """Whether to include journals with the verdict OK."""
    limit: int | None = None

    @classmethod
    def parse(cls, query: str) -> JournalFilter:
        """Read ``match=TEXT&ok=no&limit=N``.

        Raises:
            InputError: the query is invalid.
        """
        expected = "expected match=TEXT, ok=yes or ok=no, and limit=NUMBER"
        try:
            fields = dict(parse_qsl(query, max_num_fields=8))
        except ValueError:
            raise InputError(expected) from None
        limit, ok = fields.get("limit", ""), fields.get("ok", "yes")
        # isdecimal before int, and at most nine digits, because int of a long text takes quadratic time.
        if (limit and not limit.isdecimal()) or len(limit) > 9 or ok not in ("yes", "no"):
            raise InputError(expected)
        return cls(fields.get("match", "").lower(), ok == "yes", int(limit) if limit else None)

    def of(self, journals: Sequence[JournalLag]) -> tuple[int, Sequence[JournalLag]]:
        """Return the number of matching journals, and those within the limit."""
        matching = [
            journal
            for journal in journals
            if (self.ok or journal.status.status != Status.OK) and self.text in journal.journal.lower()
        ]
        return len(matching), matching[: self.limit]


def _path(text: str) -> tuple[str, ...]:
    return tuple(text.split("/"))


ROUTES: tuple[tuple[tuple[str, ...], Mapping[str, Handler]], ...] = (
    (
        ("",),
        {"GET": lambda api, *_: HttpAnswer(200, HTML, api.page, (("Content-Security-Policy", PAGE_POLICY),))},
    ),
    (_path("burrow/admin"), {"GET": lambda *_: HttpAnswer(200, PLAIN, b"GOOD")}),
    (_path("burrow/admin/ready"), {"GET": _ready}),
    (_path("metrics"), {"GET": _metrics}),
    (_path("v3/kafka"), {"GET": _clusters}),
    (_path("v3/kafka/*"), {"GET": _cluster}),
    (_path("v3/kafka/*/topic"), {"GET": _topics}),
    (_path("v3/kafka/*/topic/*"), {"GET": _topic}),
    (_path("v3/kafka/*/topic/*/consumers"), {"GET": _topic_consumers}),
    (_path("v3/kafka/*/consumer"), {"GET": _consumers}),
    (_path("v3/kafka/*/consumer/*"), {"GET": _consumer, "DELETE": _delete_consumer}),
    (_path("v3/kafka/*/consumer/*/status"), {"GET": _status}),
    (_path("v3/kafka/*/consumer/*/lag"), {"GET": partial(_status, show_all=True)}),
    (_path("v3/kafka/*/consumer/*/topic/*"), {"DELETE": _delete_topic}),
    (_path("v3/admin/loglevel"), {"GET": _log_level, "POST": _set_log_level}),
    (_path("v3/config"), {"GET": _config}),
    (_path("v3/config/cluster/*"), {"GET": _cluster}),
    *(
        route
        for section in ("storage", "evaluator", "cluster", "consumer", "notifier")
        for route in (
            (_path(f"v3/config/{section}"), {"GET": partial(_modules, section=section)}),
            (_path(f"v3/config/{section}/*"), {"GET": partial(_module, section=section)}),
        )
    ),
    (_path("gazette/v1/groups"), {"GET": _groups}),
    (_path("gazette/v1/groups/*"), {"GET": _group}),
    (_path("gazette/v1/clusters/*/groups"), {"GET": _other_cluster}),
    (_path("gazette/v1/clusters/*/groups/*"), {"GET": _other_cluster}),
)
"""Paths and their handlers, by method. A star matches a name."""
