"""Burrow's HTTP API: paths, JSON shapes, status codes, and names of any kind in URLs."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from gazette_spark._ledger.entry import SkippedGap
from gazette_spark._ledger.positions import GroupCommit
from gazette_spark.lag.api import Api, HttpAnswer, HttpRequest
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Thresholds
from gazette_spark.query_progress import JournalTransactions, OpenTransaction

NOW_MS = 1_700_000_000_000
GROUP = "größe/%2F?#\r\nx"
"""Group name with the characters that are special in a URL or a header."""


def group_path(group: str) -> str:
    return f"/gazette/v1/groups/{quote(group, safe='')}"


CONFIG: dict[str, dict[str, Any]] = {
    "cluster": {"gazette": {"class-name": "gazette", "servers": ["http://127.0.0.1:8080"]}},
    "storage": {"default": {"intervals": 10}},
}


@pytest.fixture
def api() -> Api:
    """The API of a cluster with one group, which is behind in one of two journals."""
    monitor = empty_monitor()
    monitor.observe_heads({"shop/a": 1000, "shop/b": 50}, NOW_MS)
    step = GroupCommit(1, NOW_MS - 1000, {"shop/a": 400, "shop/b": 50})
    monitor.observe_commits(GROUP, [step], NOW_MS)
    return Api(monitor, lambda: NOW_MS, "a-host", CONFIG)


def empty_monitor(stale_after_ms: int | None = None) -> Monitor:
    """Return a monitor that has read nothing yet and does not cache verdicts."""
    history = History(HistoryOptions())
    evaluator = Evaluator(history, Thresholds(), expire_cache_s=0)
    return Monitor("gazette", history, evaluator, stale_after_ms=stale_after_ms)


@pytest.fixture
def blind() -> Api:
    """The API of a monitor that reads the table of one group, but neither the brokers nor another table."""
    monitor = empty_monitor()
    monitor.observe_commits("orders", [GroupCommit(1, NOW_MS - 1000, {"shop/a": 400})], NOW_MS)
    monitor.observe_feed("write heads", (), NOW_MS, "no broker", of_heads=True)
    monitor.observe_feed("table /lake/orders", ("orders",), NOW_MS)
    monitor.observe_feed("table /lake/lost", (), NOW_MS, "no such table")
    monitor.observe_round(NOW_MS)
    return Api(monitor, lambda: NOW_MS, "a-host", CONFIG)


def test_without_write_heads_a_lag_is_unknown(blind: Api) -> None:
    """Without a broker, a view must not say 0 bytes. Each view gives the reason."""
    orders, _ = fields(blind, "/gazette/v1/groups")["groups"]
    assert (orders["status"], orders["lag_bytes"], orders["unlisted_journals"]) == ("NOTFOUND", None, 1)
    assert orders["stale"] == "write heads: no broker"
    assert orders["freshness"] == {"least_ms": None, "most_ms": None}
    found = fields(blind, "/v3/kafka/gazette/consumer/orders/lag", status=404)
    assert (found["status"]["totallag"], found["stale"]) == (None, "write heads: no broker")
    text = ask(blind, "/metrics").body.decode()
    whose = '{cluster="gazette",consumer_group="orders"}'
    assert f"gazette_lag_feed_up{whose} 0.0\n" in text
    assert 'gazette_lag_heads_up{cluster="gazette"} 0.0\n' in text
    assert not any(
        name in text for name in ("lag_total{", "gazette_lag_bytes{", "heads_read_timestamp_seconds{")
    )
    read = 'gazette_lag_feed_read_timestamp_seconds{cluster="gazette",feed="table /lake/orders"}'
    assert f"{read} 1.7e+09\n" in text


def test_a_table_that_was_never_read_is_everywhere(blind: Api) -> None:
    name = "table /lake/lost"
    found = fields(blind, "/gazette/v1/groups")
    assert [each["group"] for each in found["groups"]] == ["orders", name]
    assert found["groups"][1]["stale"] == "no such table; write heads: no broker"
    assert found["feeds"][2] == {"feed": name, "groups": [], "read_ms": None, "failure": "no such table"}
    assert name in fields(blind, "/v3/kafka/gazette/consumer")["consumers"]
    assert fields(blind, group_path(name))["group"]["lag_bytes"] is None
    assert f'gazette_lag_feed_up{{cluster="gazette",consumer_group="{name}"}} 0.0\n' in (
        ask(blind, "/metrics").body.decode()
    )
    blind.monitor.observe_feed(name, ("lost",), NOW_MS)
    assert [each["group"] for each in fields(blind, "/gazette/v1/groups")["groups"]] == ["orders"]


def test_what_was_known_is_stale_while_heads_cannot_be_read(api: Api) -> None:
    monitor = api.monitor
    monitor.observe_feed("write heads of a", (), NOW_MS, "no broker", of_heads=True)
    monitor.observe_feed("write heads of b", (), NOW_MS, of_heads=True)
    monitor.observe_heads({"shop/b": 50}, NOW_MS)
    (summary,) = fields(api, "/gazette/v1/groups")["groups"]
    assert (summary["lag_bytes"], summary["stale"]) == (600, "write heads: no broker")
    text = ask(api, "/metrics").body.decode()
    assert 'gazette_lag_heads_up{cluster="gazette"} 0.0\n' in text
    up = text.split("\ngazette_lag_feed_up{")[1:]
    assert [line.partition("} ")[2].partition("\n")[0] for line in up] == ["0.0"]
    assert fields(api, f"/v3/kafka/gazette/consumer/{quote(GROUP, safe='')}/lag")["stale"] == summary["stale"]


def test_a_monitor_that_hangs_is_stale() -> None:
    monitor = empty_monitor(stale_after_ms=60_000)
    monitor.observe_heads({"shop/a": 1000}, NOW_MS)
    monitor.observe_commits("orders", [GroupCommit(1, NOW_MS, {"shop/a": 1000})], NOW_MS)
    monitor.observe_round(NOW_MS)
    now_ms = [NOW_MS + 60_000]
    api = Api(monitor, lambda: now_ms[0], "a-host", CONFIG)
    found = fields(api, "/gazette/v1/groups")
    assert (found["looked_ms"], found["stale"], found["groups"][0]["stale"]) == (NOW_MS, None, None)
    now_ms[0] += 1000
    found = fields(api, "/gazette/v1/groups")
    assert found["stale"] == found["groups"][0]["stale"] == "the last poll was 61 s ago"
    assert 'gazette_lag_feed_up{cluster="gazette",consumer_group="orders"} 0.0\n' in (
        ask(api, "/metrics").body.decode()
    )


def test_metrics_count_what_batches_left_out(api: Api) -> None:
    gaps = (SkippedGap("shop/a", 400, 450), SkippedGap("shop/a", 460, 500))
    step = GroupCommit(2, NOW_MS, {"shop/a": 500}, gaps=gaps, accepted_gaps=gaps[1:], trimmed_bytes=5)
    api.monitor.observe_commits("gappy", [step], NOW_MS)
    text = ask(api, "/metrics").body.decode()
    labels = 'cluster="gazette",consumer_group="gappy",journal="shop/a"'
    assert f'gazette_lag_gap_bytes_total{{accepted="no",{labels}}} 50.0\n' in text
    assert f'gazette_lag_gap_bytes_total{{accepted="yes",{labels}}} 40.0\n' in text
    assert "malformed_records_total{" not in text
    api.monitor.observe_progress("gappy", 7, 0)
    api.monitor.observe_progress("gappy", 0, 3)
    text = ask(api, "/metrics").body.decode()
    whose = '{cluster="gazette",consumer_group="gappy"}'
    assert f"gazette_lag_skipped_bytes_total{whose} 7.0\n" in text
    assert f"gazette_lag_trimmed_bytes_total{whose} 5.0\n" in text
    assert f"gazette_lag_malformed_records_total{whose} 3.0\n" in text


def test_open_transactions_are_shown_with_the_earliest_time_known(api: Api) -> None:
    api.monitor.observe_commits("copies", [GroupCommit(2, NOW_MS, {"shop/a": 500})], NOW_MS)

    def tell(now_ms: int, at: int, *found: OpenTransaction) -> None:
        opened = [JournalTransactions("shop/a", at, 3, found)] if found else []
        api.monitor.observe_progress("copies", 0, None, opened, now_ms)

    def told() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = fields(api, "/gazette/v1/groups/copies")["group"]["open_transactions"]
        return found

    # The clock of this producer is ahead of the monitor's.
    other = OpenTransaction("02", 450, NOW_MS + 60_000)
    tell(NOW_MS - 9000, 480, OpenTransaction("01", 400, NOW_MS - 20_000), other)
    tell(NOW_MS - 4000, 500, OpenTransaction("01", 400, NOW_MS - 5000), other)
    assert told() == [
        {
            "journal": "shop/a",
            "producer": producer,
            "begin": begin,
            "held_bytes": held,
            "age": {"least_ms": age, "most_ms": None},
        }
        for producer, begin, held, age in (("01", 400, 100, 20_000), ("02", 450, 50, 9000))
    ]
    text = ask(api, "/metrics").body.decode()
    of = '{cluster="gazette",consumer_group="copies",journal="shop/a"}'
    assert f"gazette_lag_open_transactions{of} 3.0\n" in text
    assert f"gazette_lag_open_transaction_age_seconds{of} 20.0\n" in text
    assert f"gazette_lag_open_transaction_bytes{of} 100.0\n" in text
    tell(NOW_MS, 500)
    assert told() == []
    assert "gazette_lag_open_transactions{" not in ask(api, "/metrics").body.decode()


def ask(api: Api, path: str, method: str = "GET", body: bytes = b"") -> HttpAnswer:
    return api.answer(HttpRequest(method, path, body))


def fields(api: Api, path: str, method: str = "GET", body: bytes = b"", status: int = 200) -> dict[str, Any]:
    answer = ask(api, path, method, body)
    assert (answer.status, answer.content_type) == (status, "application/json")
    value: dict[str, Any] = json.loads(answer.body)
    assert value.pop("request") == {"url": path, "host": "a-host"}
    assert isinstance(value.pop("message"), str)
    return value


def test_alive_and_ready_are_words(api: Api) -> None:
    assert ask(api, "/burrow/admin").body == b"GOOD"
    assert ask(api, "/burrow/admin/ready").body == b"STARTING"
    api.monitor.observe_round(NOW_MS)
    assert ask(api, "/burrow/admin/ready").body == b"READY"
    api.monitor.observe_feed("write heads", (), NOW_MS, "no broker", of_heads=True)
    answer = ask(api, "/burrow/admin/ready")
    assert (answer.status, answer.body) == (503, b"STARTING")


def test_a_cluster_and_what_it_has(api: Api) -> None:
    assert fields(api, "/v3/kafka") == {"error": False, "clusters": ["gazette"]}
    assert fields(api, "/v3/kafka/gazette") == {"error": False, "module": CONFIG["cluster"]["gazette"]}
    assert fields(api, "/v3/kafka/gazette/topic") == {"error": False, "topics": ["shop"]}
    assert fields(api, "/v3/kafka/gazette/topic/shop") == {"error": False, "offsets": [1000, 50]}
    assert fields(api, "/v3/kafka/gazette/topic/shop/consumers") == {"error": False, "consumers": [GROUP]}
    assert fields(api, "/v3/kafka/gazette/topic/none/consumers") == {"error": False, "consumers": []}
    assert fields(api, "/v3/kafka/gazette/consumer") == {"error": False, "consumers": [GROUP]}


def test_a_group_has_its_windows(api: Api) -> None:
    """As in Burrow, nulls come first, and ``current-lag`` has a hyphen."""
    found = fields(api, f"/v3/kafka/gazette/consumer/{quote(GROUP, safe='')}")
    first = found["topics"]["shop"][0]
    assert first["offsets"][-1] == {
        "offset": 400,
        "timestamp": NOW_MS - 1000,
        "observedAt": NOW_MS,
        "lag": 600,
    }
    assert first["offsets"][:-1] == [None] * 9
    assert (first["owner"], first["client_id"], first["current-lag"]) == (GROUP, "shop/a", 600)


def test_status_shows_what_is_bad_and_lag_shows_all(api: Api) -> None:
    path = f"/v3/kafka/gazette/consumer/{quote(GROUP, safe='')}"
    bad, every = (fields(api, f"{path}/{view}")["status"] for view in ("status", "lag"))
    assert [each["partition"] for each in bad["partitions"]] == [0]
    assert [each["partition"] for each in every["partitions"]] == [0, 1]
    assert bad["status"] == every["status"] == "ERR"
    assert bad["totallag"] == every["totallag"] == 600
    assert bad["maxlag"]["status"] == "STOP"


@pytest.mark.parametrize("view", ["status", "lag"])
def test_a_group_that_is_not_known_is_404_without_an_error(api: Api, view: str) -> None:
    """As in Burrow, an unknown group gives a 404 without an error, in any cluster."""
    for cluster in ("gazette", "else"):
        found = fields(api, f"/v3/kafka/{cluster}/consumer/none/{view}", status=404)
        assert found["error"] is False
        assert found["status"] == {
            "cluster": cluster,
            "group": "none",
            "status": "NOTFOUND",
            "complete": 1,
            "partitions": [],
            "partition_count": 0,
            "maxlag": None,
            "totallag": 0,
        }


@pytest.mark.parametrize(
    "path",
    [
        "/v3/kafka/else",
        "/v3/kafka/else/topic",
        "/v3/kafka/else/topic/x",
        "/v3/kafka/else/topic/x/consumers",
        "/v3/kafka/else/consumer",
        "/v3/kafka/else/consumer/x",
        "/v3/kafka/gazette/topic/none",
        "/v3/kafka/gazette/consumer/none",
        "/v3/config/storage/none",
        "/v3/config/cluster/none",
        "/gazette/v1/clusters/none/groups",
        "/gazette/v1/groups/none",
    ],
)
def test_what_is_not_known_is_an_error_of_404(api: Api, path: str) -> None:
    assert fields(api, path, status=404) == {"error": True}


@pytest.mark.parametrize("path", ["/v3", "/v3/kafka/gazette/more", "/x", "/v3/kafka/%FF", "//", "*"])
def test_another_path_is_a_404_in_plain_text(api: Api, path: str) -> None:
    """As in Burrow, the text looks like JSON, and a trailing slash is removed first."""
    answer = ask(api, path)
    if path.endswith("/"):
        assert (answer.status, dict(answer.headers)["Location"]) == (301, "/")
        return
    assert (answer.status, answer.content_type) == (404, "text/plain; charset=utf-8")
    assert json.loads(answer.body)["error"] is True


def test_a_slash_at_the_end_is_redirected(api: Api) -> None:
    """The redirect never leads to another host. It keeps every method except GET."""
    assert ask(api, "/v3/kafka/").headers == (("Location", "/v3/kafka"),)
    assert ask(api, "//evil.example/").headers == (("Location", "/evil.example"),)
    assert ask(api, "/v3/kafka/", "POST").status == 307


def test_a_wrong_method_is_a_405(api: Api) -> None:
    answer = ask(api, "/v3/kafka", "POST")
    assert (answer.status, answer.headers) == (405, (("Allow", "GET, OPTIONS"),))
    assert ask(api, "/v3/kafka/gazette/consumer/x", "DELETE").headers == (("Allow", "GET, OPTIONS"),)


def test_delete_forgets_if_it_is_enabled(api: Api) -> None:
    able = Api(api.monitor, api.clock, api.host, CONFIG, allow_delete=True)
    group = f"/v3/kafka/gazette/consumer/{quote(GROUP, safe='')}"
    for _ in range(2):
        assert fields(able, f"{group}/topic/shop", "DELETE") == {"error": False}
        assert fields(able, group) == {"error": False, "topics": {}}
    assert fields(able, "/v3/kafka/gazette/topic") == {"error": False, "topics": ["shop"]}
    for _ in range(2):
        assert fields(able, group, "DELETE") == {"error": False}
    assert ask(able, group).status == 404


def test_the_log_level_can_be_changed(api: Api) -> None:
    path = "/v3/admin/loglevel"
    try:
        assert fields(api, path, "POST", b'{"level":"DEBUG"}') == {"error": False}
        assert fields(api, path)["level"] == "debug"
        assert fields(api, path, "POST", b'{"level":"loud"}', status=404) == {"error": True}
        for body in (b"", b"{", b"[]", b'{"level":7}', b"\xff"):
            assert fields(api, path, "POST", body, status=400) == {"error": True}
    finally:
        api.logger.setLevel(logging.NOTSET)


def test_config_is_shown_by_section(api: Api) -> None:
    """The main view has Burrow's sections."""
    assert list(fields(api, "/v3/config")) == ["error", "general", "logging", "zookeeper", "httpserver"]
    storage = {"error": False, "coordinator": "storage", "modules": ["default"]}
    assert fields(api, "/v3/config/storage") == storage
    assert fields(api, "/v3/config/storage/default") == {"error": False, "module": {"intervals": 10}}
    assert fields(api, "/v3/config/cluster/gazette") == fields(api, "/v3/kafka/gazette")
    nothing = {"error": False, "coordinator": "notifier", "modules": []}
    assert fields(api, "/v3/config/notifier") == nothing


BURROWS = """
GET /burrow/admin
GET /burrow/admin/ready
GET /metrics
GET /v3/kafka
GET /v3/kafka/gazette
GET /v3/kafka/gazette/consumer
GET /v3/kafka/gazette/consumer/orders
DELETE /v3/kafka/gazette/consumer/orders
DELETE /v3/kafka/gazette/consumer/orders/topic/shop
GET /v3/kafka/gazette/consumer/orders/status
GET /v3/kafka/gazette/consumer/orders/lag
GET /v3/kafka/gazette/topic
GET /v3/kafka/gazette/topic/shop
GET /v3/kafka/gazette/topic/shop/consumers
GET /v3/admin/loglevel
POST /v3/admin/loglevel
GET /v3/config
GET /v3/config/storage
GET /v3/config/storage/default
GET /v3/config/evaluator
GET /v3/config/evaluator/default
GET /v3/config/cluster
GET /v3/config/cluster/gazette
GET /v3/config/consumer
GET /v3/config/consumer/default
GET /v3/config/notifier
GET /v3/config/notifier/webhook
"""
"""All requests that Burrow 1.9 answers, for a cluster with the group ``orders`` and the topic ``shop``."""


def test_each_of_burrows_requests_is_answered() -> None:
    """Clients of Burrow disagree on escaping topic names, so escaping is optional."""
    monitor = empty_monitor()
    monitor.observe_heads({"shop/a": 1000}, NOW_MS)
    monitor.observe_round(NOW_MS)
    sections = {"evaluator": "default", "consumer": "default", "notifier": "webhook"}
    config = CONFIG | {section: {name: {}} for section, name in sections.items()}
    api = Api(monitor, lambda: NOW_MS, "a-host", config, allow_delete=True)
    requests = [line.split(" ") for line in BURROWS.strip().splitlines()]
    assert len(requests) == 27
    for method, path in requests:
        monitor.observe_commits("orders", [GroupCommit(1, NOW_MS, {"shop/a": 1000})], NOW_MS)
        body = b'{"level": "info"}' if method == "POST" else b""
        assert ask(api, path, method, body).status == 200, f"{method} {path}"


def test_a_group_in_detail(api: Api) -> None:
    (summary,) = fields(api, "/gazette/v1/groups")["groups"]
    assert (summary["group"], summary["status"], summary["lag_bytes"]) == (GROUP, "ERR", 600)
    assert (summary["journals"], summary["last_commit_age_ms"], summary["stale"]) == (2, 1000, None)
    behind, level = fields(api, group_path(GROUP))["group"]["journals"]
    assert (behind["journal"], behind["lag_bytes"], behind["lag_age"]) == (
        "shop/a",
        600,
        {"least_ms": 0, "most_ms": None},
    )
    assert behind["lag_history"] == []
    api.monitor.observe_round(NOW_MS)
    detail = fields(api, group_path(GROUP))["group"]
    behind, _ = detail["journals"]
    assert behind["lag_history"] == detail["lag_history"] == [[NOW_MS, 600]]
    assert (detail["age_history"], detail["read_history"]) == ([[NOW_MS, 0]], [[NOW_MS, 0]])
    assert detail["marks"] == [[NOW_MS - 1000, "commit"]]
    assert (detail["verdicts"], detail["matched"]) == ({"STOP": 1, "OK": 1}, 2)
    assert (behind["catch_up_ms"], level["catch_up_ms"], level["lag_age"]["most_ms"]) == (None, 0, 0)


@pytest.mark.parametrize(
    ("query", "matched", "journals"),
    [
        ("", 4, ["shop/Z", "shop/a", "shop/b", "shop/%"]),
        ("limit=2", 4, ["shop/Z", "shop/a"]),
        ("ok=no", 2, ["shop/Z", "shop/a"]),
        ("match=z&ok=yes", 1, ["shop/Z"]),
        ("match=%25", 1, ["shop/%"]),
        ("match=none", 0, []),
    ],
)
def test_a_group_answers_with_the_journals_that_are_asked_for(
    api: Api, query: str, matched: int, journals: list[str]
) -> None:
    api.monitor.observe_heads({"shop/Z": 2000, "shop/%": 1}, NOW_MS)
    step = GroupCommit(2, NOW_MS - 1000, {"shop/a": 400, "shop/b": 40, "shop/Z": 400, "shop/%": 0})
    api.monitor.observe_commits("other", [step], NOW_MS)
    far = GroupCommit(3, NOW_MS, {"shop/b": 50, "shop/%": 1})
    api.monitor.observe_commits("other", [far], NOW_MS)
    answer = api.answer(HttpRequest("GET", "/gazette/v1/groups/other", b"", query))
    found = json.loads(answer.body)["group"]
    assert found["matched"] == matched
    assert sorted(each["journal"] for each in found["journals"]) == sorted(journals)
    assert [each["journal"] for each in found["journals"][:2]] == journals[:2]


@pytest.mark.parametrize("query", ["limit=x", "limit=-1", "ok=maybe", "&".join(["a=b"] * 9)])
def test_an_invalid_query_is_a_400(api: Api, query: str) -> None:
    answer = api.answer(HttpRequest("GET", group_path(GROUP), b"", query))
    assert (answer.status, json.loads(answer.body)["error"]) == (400, True)


def test_metrics_have_those_of_the_monitors_client(api: Api) -> None:
    text = ask(replace(api, more_metrics=lambda: "gazette_read_bytes_total 1\n"), "/metrics").body.decode()
    assert text.endswith("\ngazette_read_bytes_total 1\n")
    assert text.startswith(ask(api, "/metrics").body.decode())


def test_metrics_have_burrows_names_and_labels(api: Api) -> None:
    text = ask(api, "/metrics").body.decode()
    labels = f'cluster="gazette",consumer_group="{GROUP}"'.replace("\n", r"\n")
    assert f"burrow_kafka_consumer_lag_total{{{labels}}} 600.0\n" in text
    assert f"burrow_kafka_consumer_status{{{labels}}} 3.0\n" in text
    assert f'burrow_kafka_consumer_partition_lag{{{labels},partition="0",topic="shop"}} 600.0\n' in text
    assert (
        'burrow_kafka_topic_partition_offset{cluster="gazette",partition="0",topic="shop"} 1000.0\n' in text
    )
    assert "burrow_kafka_topic_partition_status{" not in text
    assert f'gazette_lag_bytes{{{labels},journal="shop/a"}} 600.0\n' in text
    for order in range(2, 11):
        step = GroupCommit(order, NOW_MS, {"shop/a": 400 + order})
        api.monitor.observe_commits(GROUP, [step], NOW_MS)
    text = ask(api, "/metrics").body.decode()
    place = f'{{{labels},partition="0",topic="shop"}}'
    assert f"burrow_kafka_topic_partition_status{place} 1.0\n" in text
    assert f"burrow_kafka_consumer_current_offset{place} 410.0\n" in text


def test_the_page_may_load_nothing_else(api: Api) -> None:
    """The page is a single file, and its Content-Security-Policy allows no other source."""
    answer = ask(api, "/")
    assert answer.status == 200
    assert b"<script src" not in answer.body
    assert b"http://www.w3.org" in answer.body  # SVG's namespace: a name, not an address.
    assert dict(answer.headers)["Content-Security-Policy"].startswith("default-src 'none'")
