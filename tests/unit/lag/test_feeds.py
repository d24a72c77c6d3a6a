"""Rounds of feeds, and what a monitor reports in the middle of one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gazette_spark._ledger.positions import GroupCommit
from gazette_spark.client import Client
from gazette_spark.errors import InputError
from gazette_spark.lag.feeds import CheckpointFeed, HeadFeed, poll_all
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.monitor import Monitor, prefix_of
from gazette_spark.lag.rules import Thresholds
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.testing.stub_broker import StubBroker, not_yet
from tests.oracles.brokers import FakeClient, FakeJournal
from tests.unit.client.listings import message


class Heads:
    groups = ()

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        monitor.observe_heads({"shop/a": 1}, now_ms)


class SlowTable:
    """A feed that records, while it reads, what the monitor reports, and then fails."""

    groups = ("orders",)

    def __init__(self) -> None:
        self.ready: list[bool] = []

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        assert monitor.heads_failure is None
        self.ready.append(monitor.ready)
        raise InputError("no table")


class Broken:
    groups = ("orders",)

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        raise KeyError("nobody expected")

    def __repr__(self) -> str:
        return "table /lake/orders"


def test_a_defect_of_one_feed_is_seen_and_stops_no_other() -> None:
    """An error of any other class is a failure too: the group is stale, and the round continues."""
    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    failures = poll_all([Broken(), Heads()], monitor, 1_700_000_000_000)
    assert failures == ["table /lake/orders: KeyError: 'nobody expected'"]
    assert monitor.lag("orders", 1_700_000_000_000).failure == "KeyError: 'nobody expected'"
    assert monitor.ready


def test_ready_is_who_has_looked_at_every_feed_once() -> None:
    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    table = SlowTable()
    before = monitor.ready
    assert len(poll_all([Heads(), table], monitor, 1_700_000_000_000)) == 1
    assert (before, monitor.ready) == (False, True)
    poll_all([Heads(), table], monitor, 1_700_000_000_001)
    assert table.ready == [False, True]


@pytest.mark.parametrize(
    ("selector", "failures"),
    [
        pytest.param(
            "name=shop/ordres",
            [
                (
                    "write heads of name=shop/ordres: journal 'shop/ordres': JOURNAL_NOT_FOUND: "
                    "did you mean 'shop/orders'? Check the name; "
                    "a token that does not cover the journal gets the same answer"
                )
            ],
            id="a misspelt journal",
        ),
        pytest.param("prefix=shop/eu/", [], id="a directory that may get journals"),
        pytest.param("", [], id="all journals"),
    ],
)
def test_one_journal_that_is_not_there_is_a_failure(selector: str, failures: list[str]) -> None:
    """Either the name is wrong or the journal is gone. In both cases its lag is unknown."""
    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    client = FakeClient({"shop/orders": FakeJournal(b"12345")})
    assert poll_all([HeadFeed(client, selector)], monitor, 1_000) == failures  # type: ignore[arg-type]  # as far as it asks


def test_a_journal_that_nobody_may_read_hides_no_other(gazette_client: Client, fresh_prefix: str) -> None:
    """Brokers refuse to report the write head of a write-only journal."""
    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    journal, write_only = journal_spec(f"{fresh_prefix}a"), journal_spec(f"{fresh_prefix}b")
    write_only.flags = pb.JournalSpec.O_WRONLY
    gazette_client.create_journals(journal, write_only)
    gazette_client.append(journal.name, b"12345")
    assert poll_all([HeadFeed(gazette_client, f"prefix={fresh_prefix}")], monitor, 1_000) == []
    assert history.fetch_topic("gazette", prefix_of(journal.name)) == [5]
    (refused,) = poll_all([HeadFeed(gazette_client, f"name={write_only.name}")], monitor, 1_000)
    assert "NOT_ALLOWED" in refused


@pytest.mark.parametrize("status", [pb.JOURNAL_NOT_FOUND, pb.INSUFFICIENT_JOURNAL_BROKERS])
def test_a_journal_without_a_head_hides_no_other(status: pb.Status) -> None:
    """If it was deleted after the listing, the next listing lacks it. Otherwise its groups are stale."""
    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    heads = {"a/one": not_yet(5), "b/two": not_yet(7)}
    with StubBroker() as broker, Client(broker.endpoint, timeout_s=30) as client:
        broker.script("Read", lambda request: [heads[request.journal]])
        both = [message("a/one", "b/two", revision=1)]
        broker.script("List", both, both, [message("a/one", revision=2)])
        feed = HeadFeed(client)
        assert poll_all([feed], monitor, 1_000) == []
        for group, journal in (("one", "a/one"), ("two", "b/two")):
            monitor.observe_commits(group, [GroupCommit(1, 1_000, {journal: 5})], 1_000)
        heads |= {"a/one": not_yet(6), "b/two": pb.ReadResponse(status=status)}
        problem = "journal 'b/two': INSUFFICIENT_JOURNAL_BROKERS"
        is_refused = status == pb.INSUFFICIENT_JOURNAL_BROKERS
        assert [problem in line for line in poll_all([feed], monitor, 2_000)] == [True] * is_refused
        assert [history.fetch_topic("gazette", topic) for topic in ("a", "b")] == [[6], [7]]
        failures = [monitor.failure(group, 2_000) or "" for group in ("one", "two")]
        assert [problem in failure for failure in failures] == [False, is_refused]
        assert (monitor.heads_ms, monitor.ready) == (1_000 if is_refused else 2_000, True)
        assert poll_all([feed], monitor, 3_000) == []
        assert [history.fetch_topic("gazette", topic) for topic in ("a", "b")] == [[6], None]
        assert monitor.failure("two", 3_000) is None


def test_a_journal_that_is_deleted_before_its_fragments_are_listed() -> None:
    """It does not lose the round."""
    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    with StubBroker() as broker, Client(broker.endpoint, timeout_s=30) as client:
        broker.script("List", [message("a/one", "b/two", revision=1)])
        broker.script("Read", [not_yet(7)])
        stored = pb.Fragment(journal="b/two", end=7, compression_codec=pb.NONE)
        fragments = {
            "a/one": pb.FragmentsResponse(status=pb.JOURNAL_NOT_FOUND),
            "b/two": pb.FragmentsResponse(fragments=[{"spec": stored}]),
        }
        broker.script("ListFragments", lambda request: [fragments[request.journal]])
        feed = HeadFeed(client)
        poll_all([feed], monitor, 1_000)
        monitor.observe_commits("orders", [GroupCommit(1, 1_000, {"a/one": 5, "b/two": 5})], 1_000)
        assert poll_all([feed], monitor, 1_000_000) == []
        assert list(monitor._stores) == ["b/two"]


def test_a_checkpoint_in_a_bucket_is_refused_at_once() -> None:
    """A URL was once treated as a local directory named ``s3a:``."""
    with pytest.raises(InputError, match=r"s3a://lake/orders is in an object store .* name its table"):
        CheckpointFeed("s3a://lake/orders", "orders")


def test_a_query_checkpoint_that_is_created_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Its batches are numbered from 0 again."""
    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    monitor.observe_heads({"a/b": 1000}, 1_000)
    feed = CheckpointFeed(str(tmp_path), "orders")
    offsets = []
    for batches in (30, 2):
        for log in ("offsets", "commits"):
            shutil.rmtree(tmp_path / log, ignore_errors=True)
            (tmp_path / log).mkdir()
            for batch in range(batches):
                position = JournalOffsets({"a/b": 10 * batch + batches})
                path = tmp_path / log / str(batch)
                path.write_text(f"v1\n{{}}\n{position.to_json()}\n")
                os.utime(path, (1, 1))
        assert poll_all([feed], monitor, 1_000) == []
        offsets.append(monitor.committed("orders", 1_000))
    assert offsets == [{"a/b": 320}, {"a/b": 12}]


def test_a_directory_that_is_no_query_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{tmp_path} cannot be read: {tmp_path}/offsets: No such file"):
        CheckpointFeed(str(tmp_path), "orders").commits(-1)
