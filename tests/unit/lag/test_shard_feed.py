"""Shards appear as groups of the monitor, with Burrow's verdicts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gazette_spark.consumer.application import Progress
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.errors import UnavailableError
from gazette_spark.lag.feeds import ShardFeed, poll_all, reached
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Status, Thresholds
from gazette_spark.protocol import consumer_pb2 as pc

START_MS = 1_700_000_000_000
ROUND_MS = 10_000


class Consumer:
    """A consumer whose shards and progress are set by the test."""

    endpoint = "http://consumer:8080"

    def __init__(self, *ids: str) -> None:
        self.specs = {each: shard_spec(each, {"shop/orders": 0}) for each in ids}
        self.read: dict[str, int] = dict.fromkeys(ids, 0)
        self.is_up = True
        self.errors: dict[str, str] = {}
        """Errors of FAILED shards."""

    def list_shards(self) -> list[pc.ListResponse.Shard]:
        if not self.is_up:
            raise UnavailableError(self.endpoint, "it is down")
        failed = {
            shard_id: [pc.ReplicaStatus(code=pc.ReplicaStatus.FAILED, errors=[error])]
            for shard_id, error in self.errors.items()
        }
        return [
            pc.ListResponse.Shard(spec=spec, status=failed.get(shard_id, ()))
            for shard_id, spec in self.specs.items()
        ]

    def progress_of(self, shards: Iterable[pc.ListResponse.Shard]) -> dict[str, Progress]:
        ids = [each.spec.id for each in shards if each.spec.id in self.read]
        return {each: Progress({"shop/orders": self.read[each]}, {}) for each in ids}


class Heads:
    groups = ()

    def __init__(self) -> None:
        self.head = 0

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        monitor.observe_heads({"shop/orders": self.head}, now_ms)


class Watched:
    """A monitor of a consumer that is advanced round by round."""

    def __init__(self, *ids: str) -> None:
        self.consumer, self.heads = Consumer(*ids), Heads()
        history = History(HistoryOptions())
        self.monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
        self.feeds = [self.heads, ShardFeed(self.consumer)]
        self.now_ms = START_MS

    def rounds(self, count: int, appended: int, **read: int) -> list[str]:
        """Run rounds, each after an append and after shards have read; return the failures."""
        failures = []
        for _ in range(count):
            self.now_ms += ROUND_MS
            self.heads.head += appended
            for name, read_bytes in read.items():
                self.consumer.read[f"shard-{name}"] += read_bytes
            failures = poll_all(self.feeds, self.monitor, self.now_ms)  # type: ignore[arg-type]  # One is a test's.
        return failures

    def verdict(self, shard_id: str) -> tuple[Status, int | None]:
        lag = self.monitor.lag(f"shard:{shard_id}", self.now_ms)
        return lag.verdict.status, lag.lag_bytes


def test_a_shard_that_follows_is_well() -> None:
    watched = Watched("shard-a", "shard-b")
    watched.rounds(15, 0)
    assert watched.verdict("shard-a") == (Status.OK, 0)
    watched.rounds(15, 100, a=100, b=100)
    assert watched.verdict("shard-a") == (Status.OK, 0)
    watched.rounds(60, 0)
    assert watched.verdict("shard-b") == (Status.OK, 0)


def test_a_shard_that_stands_is_stopped() -> None:
    watched = Watched("shard-a", "shard-b")
    watched.rounds(15, 100, a=100, b=90)
    assert watched.verdict("shard-b")[0] == Status.WARN
    del watched.consumer.read["shard-a"]
    watched.rounds(15, 100, b=200)
    assert watched.verdict("shard-a") == (Status.ERR, 1500)
    partition = watched.monitor.lag("shard:shard-a", watched.now_ms).verdict.partitions[0]
    assert (partition.status, partition.client_id) == (Status.STOP, "shop/orders")
    assert watched.verdict("shard-b")[0] == Status.OK


def test_the_error_of_a_failed_shard_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its verdict may be UNKNOWN, which does not say why."""
    watched = Watched("shard-a", "shard-b")
    watched.consumer.errors["shard-a"] = "store:\n is full"
    watched.rounds(2, 100)
    assert caplog.messages == ["lag.shard_failed group=shard:shard-a error=store: is full"]
    watched.consumer.errors.clear()
    watched.rounds(1, 100)
    watched.consumer.errors["shard-a"] = "again"
    watched.rounds(1, 100)
    assert caplog.messages[1:] == ["lag.shard_failed group=shard:shard-a error=again"]


def test_a_monitor_that_starts_calls_no_shard_stopped() -> None:
    watched = Watched("shard-a")
    watched.heads.head, watched.consumer.read["shard-a"] = 5000, 10
    watched.rounds(1, 0)
    assert watched.verdict("shard-a") == (Status.OK, 4990)
    watched.rounds(8, 1)
    assert watched.verdict("shard-a")[0] == Status.OK
    watched.rounds(8, 1)
    assert watched.verdict("shard-a")[0] == Status.ERR


def test_a_consumer_that_is_down_makes_its_shards_stale() -> None:
    watched = Watched("shard-a", "shard-b")
    watched.rounds(3, 100, a=50, b=50)
    watched.consumer.is_up = False
    (failure,) = watched.rounds(1, 100)
    assert failure.startswith("shards of http://consumer:8080: broker http://consumer:8080: unavailable")
    stale = watched.monitor.lag("shard:shard-a", watched.now_ms).failure
    assert stale is not None
    assert "it is down" in stale
    watched.consumer.is_up = True
    del watched.consumer.specs["shard-a"]
    assert watched.rounds(1, 0) == []
    assert watched.monitor.groups() == ["shard:shard-b"]


def test_where_a_shard_is_in_its_journals() -> None:
    spec = shard_spec("shard-a", {"shop/clicks": 70, "shop/orders": 0, "shop/orders;meta": 0})
    at = {"shop/orders": 9, "shop/orders;meta": 5}
    assert reached(spec, at) == {"shop/clicks": 70, "shop/orders": 5}
    assert reached(spec, at | {"shop/clicks": 71})["shop/clicks"] == 71
