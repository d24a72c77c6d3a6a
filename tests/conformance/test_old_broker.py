"""Our client works against Gazette v0.99, whose List answers once, with one message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gazette_spark import Client
from gazette_spark.client import PolledList, WatchedList
from gazette_spark.errors import EtcdTransactionFailedError, JournalNotFoundError, WatchUnsupportedError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.driver_query import Query
from tests.conformance.goclient import end_of, run_go
from tests.conformance.wire import Wire, labels, selector, spec
from tests.rig.brokers import DeployedBroker

pytestmark = [pytest.mark.deployed_broker, pytest.mark.soak]

JOURNALS = 60
"""Number of journals: more than twice what one message of a streamed List holds."""


@pytest.fixture(scope="module")
def old_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedBroker]:
    """A broker of v0.99, built without ZSTANDARD."""
    with DeployedBroker(tmp_path_factory.mktemp("v0.99"), program="gazette-v0.99") as broker:
        yield broker


@pytest.fixture
def old_client(old_broker: DeployedBroker) -> Iterator[Client]:
    with Client(old_broker.endpoint, timeout_s=30) as client:
        yield client


def test_list_comes_in_one_message(old_broker: DeployedBroker, old_client: Client, fresh_prefix: str) -> None:
    """Gazette v0.99 sends the whole list in one message; newer brokers send several."""
    names = [f"{fresh_prefix}{number:03}" for number in range(JOURNALS)]
    old_client.create_journals(*map(spec, names))
    chosen = selector(labels(("prefix", fresh_prefix)))
    with Wire(old_broker.endpoint) as wire:
        (message,) = wire.stub.List(pb.ListRequest(selector=chosen), timeout=20)
        assert len(message.journals) == JOURNALS
    assert [each.spec.name for each in old_client.list_journals(f"prefix={fresh_prefix}")] == names
    assert old_client.get_journal(names[-1]).spec.replication == 1


def test_apply_and_its_refusal(old_client: Client, journal_name: str) -> None:
    old_client.create_journals(spec(journal_name))
    with pytest.raises(EtcdTransactionFailedError):
        old_client.create_journals(spec(journal_name))
    found = old_client.get_journal(journal_name)
    found.spec.fragment.length = 1 << 21
    change = pb.ApplyRequest.Change(expect_mod_revision=found.mod_revision, upsert=found.spec)
    revision = old_client.apply([change])
    again = old_client.get_journal(journal_name)
    assert (again.mod_revision, again.spec.fragment.length) == (revision, 1 << 21)
    old_client.apply([pb.ApplyRequest.Change(expect_mod_revision=revision, delete=journal_name)])
    with pytest.raises(JournalNotFoundError):
        old_client.get_journal(journal_name)


def test_append_and_read(old_broker: DeployedBroker, old_client: Client, journal_name: str) -> None:
    old_client.create_journals(spec(journal_name))
    assert old_client.append(journal_name, b"ours ").end == 5
    end_of(run_go(old_broker.endpoint, "append", f"--journal={journal_name}", content=b"theirs"))
    with old_client.read(journal_name) as reader:
        assert reader.read() == b"ours theirs"
    assert end_of(run_go(old_broker.endpoint, "retry-reader", f"--journal={journal_name}"))["bytes"] == 11
    assert old_client.write_head(journal_name) == 11
    assert [each.fragment.begin for each in old_client.list_fragments(journal_name)] == [0, 5]


def test_gazctl_reads_from_it(old_broker: DeployedBroker, old_client: Client, journal_name: str) -> None:
    """Today's gazctl can list, because one message is a stream of length one."""
    old_client.create_journals(spec(journal_name))
    shown = old_broker.gazctl("journals", "list", "-l", f"name={journal_name}", "-o", "json")
    assert journal_name in shown


def test_a_polled_list_follows_it(old_client: Client, fresh_prefix: str) -> None:
    with PolledList(old_client, f"prefix={fresh_prefix}", interval_s=0.05) as polled:
        before = polled.list()
        assert list(before.journals) == []
        old_client.create_journals(spec(f"{fresh_prefix}one"))
        created = polled.wait_for_update(before, timeout_s=30)
        while created is not None and not created.journals:
            created = polled.wait_for_update(created, timeout_s=30)
        assert created is not None
        assert [each.spec.name for each in created.journals] == [f"{fresh_prefix}one"]


def test_a_watch_is_not_to_be_had(old_broker: DeployedBroker, fresh_prefix: str) -> None:
    """Gazette v0.99 never sends a complete watch listing, so the start raises an error immediately."""
    with Client(old_broker.endpoint, timeout_s=30) as client:
        watched = WatchedList(client, f"prefix={fresh_prefix}")
        with pytest.raises(WatchUnsupportedError, match="before a listing was complete"):
            watched.start()


def test_a_query_finds_new_journals_without_a_watch(
    old_broker: DeployedBroker, old_client: Client, fresh_prefix: str
) -> None:
    """A query polls the list at most once a second, and reads as on any broker."""
    query = Query(old_broker.endpoint, fresh_prefix, old_client)
    query.create("a")
    query.append("a", b"one\n")
    query.start().settle()
    try:
        query.create("b")
        query.append("b", b"first\n")
        query.until("b is read", lambda: query.offsets == {"a": 4, "b": 6})
        query.delete("b")
        query.append("a", b"two\n")
        query.until("a is read", lambda: query.offsets == {"a": 8, "b": 6})
    finally:
        query.stop()
