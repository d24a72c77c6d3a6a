"""Tests that a keyspace can contain items of any kind, with shards as the example."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from gazette_spark._server.catalog import MAX_OPERATIONS, ItemKind, check_transaction
from gazette_spark._server.topology import Member
from gazette_spark.broker.keyspace import Keyspace, KeyspaceState
from gazette_spark.broker.registry import JOURNALS
from gazette_spark.errors import BrokerRootError, ProtocolError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import ID, label_set, parse_selector, union

ONE, TWO = Member("a", "one", "http://one:1"), Member("b", "two", "http://two:1")
SOON = 20

SHARDS = ItemKind(
    plural="shards",
    new_spec=pc.ShardSpec,
    name_of=lambda spec: spec.id,
    labels_of=lambda spec: union(spec.labels, label_set({ID: spec.id})),
)


class Consumer:
    """A member that records the shards it is assigned."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.told: list[tuple[str, list[str]]] = []

    def prepare(
        self,
        before: KeyspaceState[pc.ShardSpec],
        after: KeyspaceState[pc.ShardSpec],
        names: Collection[str],
    ) -> None:
        self.told.append(("prepare", sorted(after.items_of(self.member))))

    def settle(
        self,
        before: KeyspaceState[pc.ShardSpec],
        after: KeyspaceState[pc.ShardSpec],
        names: Collection[str],
    ) -> None:
        self.told.append(("settle", sorted(before.items_of(self.member))))


def open_keyspace(root: Path) -> Keyspace[pc.ShardSpec]:
    return Keyspace(root, SHARDS, fsync=False, replica_count=lambda spec: 1 + spec.hot_standbys)


@pytest.fixture
def keyspace(tmp_path: Path) -> Iterator[Keyspace[pc.ShardSpec]]:
    opened = open_keyspace(tmp_path)
    yield opened
    opened.close()


def upsert(name: str, *, expect: int = 0, standbys: int = 0, app: str = "words") -> pc.ApplyRequest.Change:
    spec = pc.ShardSpec(id=name, hot_standbys=standbys, labels=label_set({"app": app}))
    return pc.ApplyRequest.Change(expect_mod_revision=expect, upsert=spec)


def delete(name: str, expect: int) -> pc.ApplyRequest.Change:
    return pc.ApplyRequest.Change(expect_mod_revision=expect, delete=name)


def test_changes_are_transactions(keyspace: Keyspace[pc.ShardSpec]) -> None:
    assert keyspace.apply([upsert("app/one"), upsert("app/two")]) == 2
    assert keyspace.apply([upsert("app/three"), upsert("app/one")]) is None
    assert keyspace.apply([upsert("app/one", expect=2, standbys=1), delete("app/two", 2)]) == 3
    catalog = keyspace.state.catalog
    assert {name: (each.create_revision, each.mod_revision) for name, each in catalog.items.items()} == {
        "app/one": (2, 3)
    }
    assert catalog.items["app/one"].spec.hot_standbys == 1
    assert catalog.ever_had("app/two")
    assert not catalog.ever_had("app/three")


def test_shards_are_selected_by_labels_and_id(keyspace: Keyspace[pc.ShardSpec]) -> None:
    """An item has to match the request's selector and the token's selector."""
    keyspace.apply([upsert("b"), upsert("a"), upsert("c", app="sums")])
    catalog = keyspace.state.catalog
    words, a_to_c = parse_selector("app=words"), parse_selector("id in (a,c)")
    assert [each.spec.id for each in catalog.select(words)] == ["a", "b"]
    assert [each.spec.id for each in catalog.select(words, a_to_c)] == ["a"]
    assert len(catalog.select(pb.LabelSelector())) == 3


def test_shards_are_assigned_as_their_specs_want(keyspace: Keyspace[pc.ShardSpec]) -> None:
    """Members are notified before and after; a standby takes over when the primary leaves."""
    one, two = Consumer(ONE), Consumer(TWO)
    keyspace.join(ONE, one)
    keyspace.join(TWO, two)
    keyspace.apply([upsert("app/hot", standbys=1)])
    route = keyspace.state.route("app/hot")
    assert list(route.endpoints) == [ONE.endpoint, TWO.endpoint]
    primary, standby = (one, two) if route.primary == 0 else (two, one)
    assert standby.told[-2:] == [("prepare", ["app/hot"]), ("settle", [])]
    keyspace.leave(primary.member)
    assert keyspace.state.slots == {"app/hot": (standby.member,)}


def test_a_catalog_of_shards_survives(tmp_path: Path) -> None:
    """A broker refuses to open a catalog of shards as one of journals."""
    first = open_keyspace(tmp_path)
    first.apply([upsert("app/one", standbys=2)])
    first.close()
    again = open_keyspace(tmp_path)
    assert again.state.catalog == first.state.catalog
    again.close()
    with pytest.raises(BrokerRootError, match="journals"):
        Keyspace(tmp_path, JOURNALS, fsync=False, replica_count=lambda _spec: 1)


def test_a_revision_is_waited_for(keyspace: Keyspace[pc.ShardSpec]) -> None:
    """A waiter returns when the revision appears, or when it is no longer needed."""
    found: list[bool] = []
    wanted = threading.Event()
    wanted.set()

    def wait(revision: int) -> None:
        found.append(keyspace.wait_for(lambda catalog: catalog.revision >= revision, wanted.is_set))

    def apply() -> None:
        keyspace.apply([upsert("app/one")])

    for revision, happens in ((2, apply), (9, wanted.clear)):
        waiter = threading.Thread(target=wait, args=(revision,))
        waiter.start()
        happens()
        keyspace.wake()
        waiter.join(SOON)
    assert found == [True, False]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param([upsert("app/one"), delete("app/one", 1)], "duplicate key", id="twice"),
        pytest.param([upsert(f"app/{each}") for each in range(MAX_OPERATIONS + 1)], "too many", id="many"),
    ],
)
def test_what_etcd_refuses(changes: list[pc.ApplyRequest.Change], problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        check_transaction(SHARDS, changes)
    check_transaction(SHARDS, changes[:1])
