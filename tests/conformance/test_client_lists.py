"""Watched and polled lists, and changes in batches, against both brokers."""

from __future__ import annotations

import pytest

from gazette_spark import Client
from gazette_spark.client import Listing, PolledList, WatchedList
from gazette_spark.client._list.watch import LiveList
from gazette_spark.errors import BrokerError, EtcdTransactionFailedError, PartialApplyError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import delete, spec, upsert
from tests.rig.brokers import BrokerHandle
from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics

pytestmark = pytest.mark.brokers("embedded", "deployed")

WAIT_S = 20.0
"""Maximum seconds a test waits for a change to become visible."""


def wait_until_listed(watched: LiveList, *names: str) -> Listing:
    listing = watched.list()
    while listing.names != sorted(names):
        newer = watched.wait_for_update(listing, timeout_s=WAIT_S)
        assert newer is not None, f"still {listing.names}"
        listing = newer
    return listing


@pytest.mark.parametrize("kind", ["watched", "polled"])
def test_a_list_follows_its_journals(client: Client, fresh_prefix: str, kind: str) -> None:
    one, two = f"{fresh_prefix}one", f"{fresh_prefix}two"
    selector = f"prefix={fresh_prefix}"
    made = (
        WatchedList(client, selector) if kind == "watched" else PolledList(client, selector, interval_s=0.1)
    )
    with made as live:
        assert live.list().names == []
        client.apply([upsert(spec(one)), upsert(spec(two))])
        both = wait_until_listed(live, one, two)
        changed = client.apply([upsert(spec(one, length=1 << 20), -1), delete(two, -1)])
        alone = wait_until_listed(live, one)
        assert alone.revision >= changed
        journal = alone.get(one)
        assert journal is not None
        assert journal.spec.fragment.length == 1 << 20
        difference = alone.changes_since(both)
        assert (difference.updated, difference.removed, difference.recreated) == ((one,), (two,), ())
        client.apply([delete(one, -1)])
        wait_until_listed(live)
        client.apply([upsert(spec(one))])
        again = wait_until_listed(live, one)
        assert again.changes_since(alone).recreated == (one,)


def test_pages_of_a_watch_are_joined(client: Client, fresh_prefix: str) -> None:
    names = [f"{fresh_prefix}many-{index:03}" for index in range(60)]
    client.apply([upsert(spec(name)) for name in names])
    with WatchedList(client, f"prefix={fresh_prefix}") as watched:
        assert watched.list().names == names
    assert client.list_all_journals(f"prefix={fresh_prefix}").names == names
    client.apply([delete(name, -1) for name in names])


def test_a_watch_survives_its_connections(broker: BrokerHandle, fresh_prefix: str) -> None:
    names = [f"{fresh_prefix}one", f"{fresh_prefix}two"]
    with (
        TcpProxy(broker.endpoint) as proxy,
        Client(broker.endpoint, timeout_s=30) as direct,
        Client(proxy.endpoint, timeout_s=30) as client,
        WatchedList(client, f"prefix={fresh_prefix}") as watched,
    ):
        for at, name in enumerate(names):
            proxy.cut()
            direct.apply([upsert(spec(name))])
            wait_until_listed(watched, *names[: at + 1])


def test_more_changes_than_etcd_takes(client: Client, fresh_prefix: str) -> None:
    """Etcd refuses 129 changes as one transaction; the error advises batches, and two batches succeed."""
    names = [f"{fresh_prefix}many-{index:03}" for index in range(129)]
    creations = [upsert(spec(name)) for name in names]
    with pytest.raises(
        ProtocolError, match="129 changes are too many for one transaction; apply them in batches"
    ):
        client.apply(creations)
    assert client.list_journals(f"prefix={fresh_prefix}") == []
    client.apply_in_batches(creations, 128)
    assert client.list_all_journals(f"prefix={fresh_prefix}").names == names
    client.apply_in_batches([delete(name, -1) for name in names])


def test_what_was_applied_before_a_failure_stays(client: Client, fresh_prefix: str) -> None:
    names = [f"{fresh_prefix}many-{index}" for index in range(6)]
    client.apply([upsert(spec(names[4]))])
    with pytest.raises(PartialApplyError) as caught:
        client.apply_in_batches([upsert(spec(name)) for name in names], 2)
    error = caught.value
    assert (error.batch, error.applied, error.changes) == (2, 4, 6)
    assert isinstance(error.cause, EtcdTransactionFailedError)
    listing = client.list_all_journals(f"prefix={fresh_prefix}")
    assert listing.names == names[:5]
    last = listing.get(names[3])
    assert last is not None
    assert last.mod_revision == error.revision


def test_store_health(client: Client) -> None:
    assert client.store_health("file:///").is_healthy
    health = client.store_health("file:///not/there/")
    assert not health.is_healthy
    assert health.problem


def test_a_change_of_one_journal_twice(client: Client, fresh_prefix: str) -> None:
    name = f"{fresh_prefix}one"
    with pytest.raises(BrokerError, match="duplicate key given in txn request"):
        client.apply([upsert(spec(name)), pb.ApplyRequest.Change(expect_mod_revision=-1, delete=name)])


def test_a_watch_goes_on_at_another_broker(broker: BrokerHandle, fresh_prefix: str) -> None:
    names = [f"{fresh_prefix}one", f"{fresh_prefix}two"]
    with (
        TcpProxy(broker.endpoint) as first,
        TcpProxy(broker.endpoint) as second,
        Client(broker.endpoint, timeout_s=30) as direct,
        Client(f"{first.endpoint},{second.endpoint}", timeout_s=30) as client,
        WatchedList(client, f"prefix={fresh_prefix}") as watched,
    ):
        for at, (name, proxy) in enumerate(zip(names, (first, second), strict=True)):
            proxy.down()
            direct.apply([upsert(spec(name))])
            wait_until_listed(watched, *names[: at + 1])
            proxy.up()


def test_a_watch_leaves_a_connection_that_hangs(broker: BrokerHandle, fresh_prefix: str) -> None:
    names = [f"{fresh_prefix}many-{index}" for index in range(25)]

    def plan(number: int) -> tuple[Toxics, Toxics] | None:
        return (Toxics(limit_bytes=2000, at_limit="silence"), CLEAN) if number == 0 else None

    with (
        TcpProxy(broker.endpoint, plan) as proxy,
        Client(broker.endpoint, timeout_s=30) as direct,
        Client(proxy.endpoint, timeout_s=30, idle_timeout_s=2) as client,
        WatchedList(client, f"prefix={fresh_prefix}", renew_s=2) as watched,
    ):
        direct.apply([upsert(spec(name)) for name in names])
        wait_until_listed(watched, *names)
        direct.apply([delete(name, -1) for name in names])


def test_journals_that_exist_can_be_left_alone(client: Client, fresh_prefix: str) -> None:
    one, two = f"{fresh_prefix}one", f"{fresh_prefix}two"
    revision = client.create_journals(spec(one))
    with pytest.raises(EtcdTransactionFailedError, match=f"'{one}'.*exists already, at revision {revision};"):
        client.create_journals(spec(one), spec(two))
    assert client.journals_named([one, two]).keys() == {one}
    assert client.create_journals(spec(one, length=1 << 20), spec(two), exist_ok=True) > revision
    found = client.journals_named([one, two])
    assert (found[one].mod_revision, set(found)) == (revision, {one, two})
    assert client.create_journals(spec(one), spec(two), exist_ok=True) == 0
