"""A consumer of Gazette's own framework and one of ours answer the same requests alike."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gazette_spark import Client
from gazette_spark.consumer import LocalHost, Shard, ShardServer, shard_spec
from gazette_spark.consumer.client import ShardClient
from gazette_spark.consumer.specs import reduce_statuses
from gazette_spark.errors import (
    AuthError,
    BrokerError,
    NoShardPrimaryError,
    ShardNotFoundError,
    ShardStoppedError,
    ShardTransactionFailedError,
    UnavailableError,
)
from gazette_spark.protocol import consumer_pb2 as pc
from tests.conformance.goclient import running_go
from tests.rig.brokers import DeployedBroker
from tests.rig.consumers import Database, RemoteStore, Totals, create_journals, publish_number
from tests.waiting import wait_until

pytestmark = pytest.mark.deployed_broker

KEYS = "Y29uc3VtZXIncyBrZXk="
Change = pc.ApplyRequest.Change


class Forgetful(Totals):
    """Keeps no state between assignments, as the Go program does, and fails at "boom"."""

    def new_store(self, shard: Shard) -> RemoteStore:
        return RemoteStore(Database(), shard.fqn)


class Peer:
    def __init__(self, broker: DeployedBroker, endpoint: str, journal: str) -> None:
        self.broker, self.endpoint, self.journal = broker, endpoint, journal
        self.client = Client(broker.endpoint)
        self.shards = ShardClient(endpoint, auth_keys=KEYS, timeout_s=60)

    def publish(self, key: str) -> int:
        return publish_number(self.client, self.journal, key)

    def status(self, shard_id: str) -> pc.ReplicaStatus:
        (listed,) = self.shards.list_shards(f"id={shard_id}")
        return reduce_statuses(listed.status)

    def wait_status(self, shard_id: str, code: int) -> None:
        wait_until(f"{shard_id} is {code}", lambda: self.status(shard_id).code == code)


@contextmanager
def our_consumer(broker: DeployedBroker) -> Iterator[str]:
    app = Forgetful(Database(), refuses="boom")
    with (
        Client(broker.endpoint) as client,
        ShardServer(auth_keys=KEYS) as server,
        LocalHost(app, client, restart=None) as host,  # Go does not restart a failed shard by itself.
    ):
        host.serve_at(server.endpoint)
        server.start(host)
        yield server.endpoint


@contextmanager
def go_consumer(broker: DeployedBroker) -> Iterator[str]:
    flags = [f"--etcd={broker.etcd_url}", f"--auth-keys={KEYS}"]
    with running_go(broker.endpoint, "consume", *flags) as running:
        yield running.until("serving")["endpoint"]


@pytest.fixture(params=[our_consumer, go_consumer], ids=["ours", "go"])
def peer(
    request: pytest.FixtureRequest, deployed_broker: DeployedBroker, fresh_prefix: str
) -> Iterator[Peer]:
    with request.param(deployed_broker) as endpoint:
        made = Peer(deployed_broker, endpoint, f"{fresh_prefix}numbers")
        create_journals(made.client, made.journal)
        yield made
        made.shards.close()
        made.client.close()


def test_specs(peer: Peer) -> None:
    specs = [shard_spec(f"shard-{at}", [peer.journal], labels={"app": "x"}) for at in (2, 1)]
    revision = peer.shards.apply([Change(upsert=spec) for spec in specs])
    listed = peer.shards.list_shards("app=x")
    assert [each.spec for each in listed] == specs[::-1]
    assert {each.mod_revision for each in listed} == {each.create_revision for each in listed} == {revision}
    specs[0].disable = True
    stale = [Change(upsert=specs[0], expect_mod_revision=revision), Change(upsert=specs[1])]
    with pytest.raises(ShardTransactionFailedError):
        peer.shards.apply(stale)
    peer.shards.apply(stale[:1])
    wait_until("it ends", lambda: not peer.shards.list_shards("id=shard-2")[0].route.members)
    (disabled,) = peer.shards.list_shards("id=shard-2")
    assert (disabled.route.primary, disabled.create_revision) == (-1, revision)
    with pytest.raises(NoShardPrimaryError):
        peer.shards.stat("shard-2", timeout_s=1)
    peer.shards.apply([Change(delete="shard-1", expect_mod_revision=revision)])
    assert [each.spec.id for each in peer.shards.list_shards()] == ["shard-2"]
    with pytest.raises(ShardNotFoundError):
        peer.shards.stat("shard-1")
    with pytest.raises(BrokerError, match="duplicate key"):
        peer.shards.apply([Change(upsert=specs[1]), Change(upsert=specs[1])])


def test_progress(peer: Peer) -> None:
    peer.shards.apply([Change(upsert=shard_spec("shard-1", [peer.journal]))])
    assert peer.shards.stat("shard-1", {"other/journal": 9}) == ({peer.journal: 0}, {})
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[object] = pool.submit(peer.shards.stat, "shard-1", {peer.journal: 1})
        end = peer.publish("a")
        assert waiting.result(60) == ({peer.journal: end}, {})
    with pytest.raises(UnavailableError, match=r"no answer|cancelled"):
        peer.shards.stat("shard-1", {peer.journal: end + 1}, timeout_s=0.5)


def test_failure(peer: Peer) -> None:
    specs = [shard_spec("shard-1", [peer.journal]), shard_spec("shard-2", [])]
    peer.shards.apply([Change(upsert=spec) for spec in specs])
    peer.wait_status("shard-1", pc.ReplicaStatus.PRIMARY)
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[object] = pool.submit(peer.shards.stat, "shard-1", {peer.journal: 1 << 40})
        peer.publish("boom")
        with pytest.raises(ShardStoppedError):
            waiting.result(60)
    peer.wait_status("shard-1", pc.ReplicaStatus.FAILED)
    (error,) = peer.status("shard-1").errors
    assert "boom is" in error
    ids = ["shard-1", "shard-2"]
    assert peer.shards.unassign(ids, only_failed=True, dry_run=True) == ["shard-1"]
    assert peer.shards.unassign(ids, dry_run=True) == ids
    assert peer.status("shard-1").code == pc.ReplicaStatus.FAILED
    peer.shards.apply([Change(upsert=shard_spec("shard-1", []), expect_mod_revision=-1)])
    peer.shards.unassign(["shard-1"], only_failed=True)
    peer.wait_status("shard-1", pc.ReplicaStatus.PRIMARY)


def test_hints(peer: Peer) -> None:
    peer.shards.apply([Change(upsert=shard_spec("shard-1", [peer.journal], disable=True))])
    found = peer.shards.get_hints("shard-1")
    assert (found.primary_hints.HasField("hints"), list(found.backup_hints)) == (False, [])
    with pytest.raises(ShardNotFoundError):
        peer.shards.get_hints("shard-2")


def test_authorization(peer: Peer) -> None:
    with ShardClient(peer.endpoint) as stranger:
        for call in (
            stranger.list_shards,
            lambda: stranger.stat("shard-1"),
            lambda: stranger.unassign(["shard-1"]),
        ):
            with pytest.raises(AuthError):
                call()
