"""How a query treats journals that come, go and pause, by calling the driver's reader as Spark does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark._planning import listing
from gazette_spark.errors import (
    GazetteError,
    JournalNotFoundError,
    JournalRecreatedError,
    OffsetBeyondHeadError,
    ProtocolError,
    SuspendedError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.driver_query import Query
from tests.conformance.wire import spec, upsert
from tests.rig.brokers import BrokerHandle, free_ports
from tests.rig.tcp_proxy import TcpProxy

pytestmark = pytest.mark.brokers("embedded")


@pytest.fixture(autouse=True)
def _soon_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a query switch from polling its journals to watching them after a tenth of a second."""
    monkeypatch.setattr(listing, "FRESH_S", 0.1)


@pytest.fixture
def query(broker: BrokerHandle, client: Client, fresh_prefix: str) -> Iterator[Query]:
    """A query that has read the two records of journal ``a``, and is caught up."""
    made = Query(broker.endpoint, fresh_prefix, client)
    made.create("a")
    made.append("a", b"one\ntwo\n")
    made.start().settle()
    yield made
    made.stop()


@pytest.mark.brokers("embedded", "deployed")
def test_a_new_journal_is_read_from_its_first_byte(query: Query) -> None:
    query.start(startingOffsets="latest").settle()
    query.create("b")
    query.append("b", b"first\n")
    query.until("b is found", lambda: "b" in query.offsets)
    assert query.offsets == {"a": 8, "b": 0}
    assert query.batch() == {"b": 6}


def test_many_new_journals_at_once(query: Query) -> None:
    query.create(*(f"n{number:03}" for number in range(40)))
    query.until("they are found", lambda: len(query.offsets) > 1)
    query.until("all are", lambda: len(query.offsets) == 41)


def test_an_empty_journal_has_nothing_to_read(query: Query) -> None:
    query.create("b")
    query.until("b is found", lambda: query.offsets.get("b") == 0)
    assert query.batch() == {}
    query.append("b", b"first\n")
    assert query.batch() == {"b": 6}


@pytest.mark.brokers("embedded", "deployed")
def test_a_deleted_journal_that_was_read_is_no_loss(query: Query) -> None:
    query.create("b")
    query.append("b", b"all of it\n")
    query.until("b is read", lambda: query.offsets.get("b") == 10)
    query.settle()
    query.delete("b")
    query.until("that it is gone is recorded", lambda: "gone" in query.position)
    query.start()
    query.append("a", b"three\n")
    query.until("a is read", lambda: query.offsets["a"] == 14)
    assert query.offsets == {"a": 14, "b": 10}
    assert query.position["gone"] == {query.prefix + "b": True}


def test_a_journal_that_is_deleted_between_runs_is_a_loss_until_it_is_allowed(query: Query) -> None:
    """Appends after the last run are unknown, so one run with failOnDataLoss=false has to accept the loss."""
    query.create("b")
    query.append("b", b"all of it\n")
    query.until("b is read", lambda: query.offsets.get("b") == 10)
    query.settle()
    query.stop()
    query.append("b", b"appended later\n")
    query.delete("b")
    query.start()
    assert "deleted while the query did not run" in query.fails(JournalNotFoundError)
    query.start(failOnDataLoss="false")
    query.until("the loss is recorded", lambda: "gone" in query.position)
    query.start()
    query.append("a", b"three\n")
    query.until("a is read", lambda: query.offsets["a"] == 14)
    assert query.offsets == {"a": 14, "b": 10}


@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_deleted_journal_that_was_not_read_is_a_loss(query: Query, restarted: bool, allowed: bool) -> None:
    """The query saw half a record at its end, so the error says how much is lost."""
    query.start(failOnDataLoss=str(not allowed).lower())
    query.create("b")
    query.append("b", b"whole\nhalf")
    query.until("b is read", lambda: query.offsets.get("b") == 6)
    query.settle()
    if restarted:
        query.stop()
    query.delete("b")
    if restarted:
        query.start(failOnDataLoss=str(not allowed).lower())
    query.append("a", b"three\n")
    if allowed:
        query.until("a is read", lambda: query.offsets["a"] == 14)
        assert query.offsets == {"a": 14, "b": 6}
    else:
        assert "gone, with 4 unread bytes; set failOnDataLoss=false" in query.fails(JournalNotFoundError)


@pytest.mark.brokers("embedded", "deployed")
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_journal_made_again_goes_on_if_its_bytes_are_the_same(query: Query, restarted: bool) -> None:
    def create_again(content: bytes) -> None:
        if restarted:
            query.stop()
        query.delete("b")
        query.client.apply([upsert(spec(query.prefix + "b", stores=[]))])
        query.append("b", content)
        if restarted:
            query.start(failOnDataLoss="false")

    query.client.apply([upsert(spec(query.prefix + "b", stores=[]))])
    query.append("b", b"all of it\n")
    query.until("b is read", lambda: query.offsets.get("b") == 10)
    query.settle()
    create_again(b"all of it\nand more\n")
    query.until("b is read on", lambda: query.offsets["b"] == 19)
    query.settle()
    create_again(b"something else and more\n")
    assert f"{query.prefix}b': it was deleted and created again" in query.fails(JournalRecreatedError)


def test_a_journal_that_is_not_selected_pauses(query: Query) -> None:
    query.create("b")
    query.append("b", b"first\n")
    query.until("b is read", lambda: query.offsets.get("b") == 6)
    query.start(journals=query.prefix + "a")
    query.append("b", b"second\n")
    query.append("a", b"three\n")
    query.until("a is read", lambda: query.offsets["a"] == 14)
    assert query.offsets["b"] == 6
    query.start()
    assert query.batch() == {"b": 7}


@pytest.mark.parametrize(
    ("content", "level"),
    [
        pytest.param(b"first\n", pb.JournalSpec.Suspend.PARTIAL, id="partly"),
        pytest.param(b"", pb.JournalSpec.Suspend.FULL, id="wholly"),
    ],
)
def test_a_suspended_journal_has_nothing_to_read(query: Query, content: bytes, level: int) -> None:
    query.create("b")
    if content:
        query.append("b", content)
    query.until("b is read", lambda: query.offsets.get("b") == len(content))
    with pytest.raises(SuspendedError):
        query.client.append(query.prefix + "b", b"", suspend=pb.AppendRequest.SUSPEND_NOW)
    assert query.client.get_journal(query.prefix + "b").spec.suspend.level == level
    query.settle()
    query.start().settle()
    assert query.offsets == {"a": 8, "b": len(content)}
    query.append("b", b"second\n")
    query.until("b is read", lambda: query.offsets["b"] == len(content) + 7)


def test_a_head_below_the_offset_is_an_error(query: Query) -> None:
    """Otherwise offsets would be reused for different bytes."""
    query.position["journals"][query.prefix + "a"] = 999
    query.position.pop("heads", None)
    assert "offset 999 was already read, but the journal now ends at 8" in query.fails(OffsetBeyondHeadError)


def test_a_position_of_offsets_alone_goes_on(query: Query) -> None:
    """An idle query keeps the old format; the next batch adds the state of the journals."""
    query.position = old = {"format_version": 1, "journals": query.position["journals"]}
    query.start()
    assert query.batch() == {}
    assert query.position == old
    query.append("a", b"three\n")
    assert query.batch() == {"a": 6}
    assert query.position.keys() >= {"revision", "fingerprints"}


@pytest.mark.brokers("embedded", "deployed")
def test_a_watch_that_breaks_is_no_loss(broker: BrokerHandle, client: Client, fresh_prefix: str) -> None:
    with TcpProxy(broker.endpoint) as proxy:
        query = Query(proxy.endpoint, fresh_prefix, client)
        query.create("a", "b")
        query.append("b", b"all of it\n")
        query.start().settle()
        try:
            proxy.cut()
            query.create("c")
            query.append("c", b"first\n")
            query.delete("b")
            query.until("c is read", lambda: query.offsets.get("c") == 6)
            proxy.cut()
            query.append("a", b"one\n")
            query.until("a is read", lambda: query.offsets["a"] == 4)
            assert query.offsets == {"a": 4, "b": 10, "c": 6}
        finally:
            query.stop()


@pytest.mark.parametrize(
    ("restarted", "error", "text"),
    [
        pytest.param(False, ProtocolError, "of another Etcd", id="running"),
        pytest.param(True, UnavailableError, "it lacks journal 'shop/a' at Etcd rev", id="restarted"),
    ],
)
def test_a_cluster_made_anew_is_no_loss(
    tmp_path: Path, restarted: bool, error: type[GazetteError], text: str
) -> None:
    (port,) = free_ports(1)
    old = EmbeddedBroker(tmp_path / "old", port=port)
    with old, Client(old.endpoint) as client:
        query = Query(old.endpoint, "shop/", client)
        query.create("a", "b")
        query.append("a", b"one\n")
        query.start(failOnDataLoss="false", requestTimeoutMs="2000").settle()
    if restarted:
        query.start(failOnDataLoss="false", requestTimeoutMs="2000")
    try:
        with EmbeddedBroker(tmp_path / "new", port=port):
            assert text in query.fails(error)
        with EmbeddedBroker(tmp_path / "old", port=port) as back, Client(back.endpoint) as client:
            client.append("shop/a", b"two\n")
            query.start()
            query.until("a is read", lambda: query.offsets == {"a": 8, "b": 0})
    finally:
        query.stop()
