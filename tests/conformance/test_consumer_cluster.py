"""Processes that share the shards of an application, by the same keys in Etcd as Gazette's own consumers."""

from __future__ import annotations

import json
import logging
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from gazette_spark import Client
from gazette_spark._server.topology import Member
from gazette_spark.consumer import Shard, ShardServer, shard_spec
from gazette_spark.consumer._cluster.etcd import EtcdClient, put
from gazette_spark.consumer._cluster.host import ClusterHost, _Leading
from gazette_spark.consumer._cluster.mirror import ClusterMirror
from gazette_spark.consumer.client import ShardClient
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL
from gazette_spark.errors import (
    PermanentError,
    ShardNotFoundError,
    ShardTransactionFailedError,
    UnavailableError,
)
from gazette_spark.protocol import consumer_pb2 as pc
from tests.conformance.test_consumer_examples import specs_file
from tests.rig.brokers import DeployedBroker
from tests.rig.consumer_cluster import (
    LEASE_S,
    SERVED_S,
    MemberProcess,
    Observer,
    fail,
    go_member,
    log_times,
    our_member,
    running,
)
from tests.rig.consumers import Database, RemoteStore, Totals, create_journals, publish_number
from tests.rig.etcd import EtcdCluster, EtcdProcess
from tests.rig.gazctl import clean_environment, find_binary
from tests.rig.stream_sum import sums_since, verifying
from tests.rig.tcp_proxy import TcpProxy, Toxics
from tests.waiting import wait_until

pytestmark = pytest.mark.deployed_broker

log = logging.getLogger(__name__)

Change = pc.ApplyRequest.Change


@dataclass
class TimedTotals(Totals):
    opened_s: list[float] = field(default_factory=list)

    def new_store(self, shard: Shard) -> RemoteStore:
        self.opened_s.append(time.monotonic())
        return super().new_store(shard)


class Peer:
    def __init__(
        self,
        etcd_urls: Sequence[str],
        client: Client,
        prefix: str,
        name: str,
        *,
        app: TimedTotals,
        lease_s: int,
    ) -> None:
        self.app = app
        self.etcd = EtcdClient(etcd_urls, call_s=lease_s / 4)
        self.server = ShardServer()
        member = Member("local", name, self.server.endpoint)
        self.host = ClusterHost(app, client, self.etcd, prefix, member, lease_s=lease_s)
        self.host.start()
        self.server.start(self.host)
        assert self.host.wait_joined(30)
        self.shards = ShardClient(self.server.endpoint, timeout_s=60)

    def runs(self) -> dict[str, int]:
        return {shard: running.status.code for shard, running in self.host._shards.by_id().items()}

    def primaries(self) -> list[str]:
        return sorted(shard for shard, code in self.runs().items() if code == pc.ReplicaStatus.PRIMARY)

    def close(self) -> None:
        """End the member without a hand-over."""
        self.shards.close()
        self.host.close()
        self.server.stop()
        self.etcd.close()


class Rig:
    def __init__(self, broker: DeployedBroker, client: Client, prefix: str) -> None:
        self.broker, self.client = broker, client
        self.prefix = f"/tests/{prefix.strip('/')}"
        self.journal = f"{prefix}numbers"
        self.database = Database()
        self.refuses_by: Callable[[str], Exception] = ValueError
        create_journals(client, self.journal)
        self.peers: list[Peer] = []

    def add(self, *etcd_urls: str, lease_s: int = 20) -> Peer:
        app = TimedTotals(self.database, refuses="boom", refuses_by=self.refuses_by)
        name = f"member-{len(self.peers)}"
        urls = etcd_urls or (self.broker.etcd_url,)
        self.peers.append(Peer(urls, self.client, self.prefix, name, app=app, lease_s=lease_s))
        return self.peers[-1]

    def specs(self, count: int) -> list[pc.ShardSpec]:
        return [shard_spec(f"shard-{n}", [self.journal], max_txn_s=0.1) for n in range(count)]

    def publish(self, key: str) -> int:
        return publish_number(self.client, self.journal, key)


@pytest.fixture
def rig(deployed_broker: DeployedBroker, fresh_prefix: str) -> Iterator[Rig]:
    with Client(deployed_broker.endpoint) as client:
        made = Rig(deployed_broker, client, fresh_prefix)
        yield made
        for peer in made.peers:
            peer.close()


def test_shards_are_spread_and_found_from_anywhere(rig: Rig) -> None:
    first, second = rig.add(), rig.add()
    revision = first.shards.apply([Change(upsert=spec) for spec in rig.specs(4)])
    wait_until("all run", lambda: len(first.primaries()) == len(second.primaries()) == 2)
    end = rig.publish("a")
    for peer in (first, second):
        for shard in range(4):
            assert peer.shards.stat(f"shard-{shard}", {rig.journal: end}).read_through == {rig.journal: end}
    with pytest.raises(ShardTransactionFailedError):
        second.shards.apply([Change(delete="shard-0", expect_mod_revision=revision + 1)])
    second.shards.apply([Change(delete="shard-0", expect_mod_revision=revision)])
    assert [shard.spec.id for shard in first.shards.list_shards()] == ["shard-1", "shard-2", "shard-3"]
    with pytest.raises(ShardNotFoundError):
        first.shards.stat("shard-0")
    # No member runs for a while, but Etcd keeps the specs.
    for peer in rig.peers:
        peer.close()
    third = rig.add()
    rig.peers = [third]
    wait_until("it runs all", lambda: len(third.primaries()) == 3)


def test_a_member_whose_watch_has_ended_finds_the_shards_of_others(rig: Rig) -> None:
    """It has read all keys again, at a revision that the others see only with their next change."""
    first, second = rig.add(), rig.add()
    first.shards.apply([Change(upsert=spec) for spec in rig.specs(2)])
    observer = Observer([rig.broker.etcd_url], rig.prefix)
    wait_until("both run", lambda: observer.serves(2))
    wait_until("one each", lambda: len(first.primaries()) == len(second.primaries()) == 1)
    end = rig.publish("a")
    with EtcdClient([rig.broker.etcd_url]) as etcd:
        etcd.txn([], [put(f"/hints{rig.prefix}", b"of another application")])
    assert first.host._mirror.wait_read(first.host._mirror.read_again(), 30)
    (shard,) = second.primaries()
    assert first.shards.stat(shard, {rig.journal: end}, timeout_s=10).read_through == {rig.journal: end}
    observer.close()


def test_a_leader_with_old_keys_assigns_no_shard_twice(rig: Rig) -> None:
    """Its mirror is behind, for example, if the answer to its last transaction was lost."""
    first = rig.add()
    rig.add()
    spec = rig.specs(1)[0]
    spec.hot_standbys = 1
    first.shards.apply([Change(upsert=spec)])
    observer = Observer([rig.broker.etcd_url], rig.prefix)
    wait_until("standbys have caught up", lambda: observer.serves(1) and observer.is_steady(1))
    state = observer.mirror.state
    with EtcdClient([rig.broker.etcd_url]) as etcd:
        keys = etcd.range(f"{rig.prefix}/assign/")
        for me in state.members.values():
            # The keys before the assignments, and before the other member had joined.
            old = replace(state, revision=state.items[spec.id].mod_revision, members={me.id: me})
            _Leading(etcd, observer.mirror).converge(replace(old, assignments=[], by_shard={}), me)
        assert etcd.range(f"{rig.prefix}/assign/")[1] == keys[1]
    observer.close()


def test_gazettes_command_works_at_any_member(rig: Rig) -> None:
    first, second = rig.add(), rig.add()
    first.shards.apply([Change(upsert=spec) for spec in rig.specs(2)])
    wait_until("both run", lambda: len(first.primaries()) == len(second.primaries()) == 1)
    rig.publish("a")

    def gazctl(*args: str, given: str = "") -> str:
        addresses = {"BROKER_ADDRESS": rig.broker.endpoint, "CONSUMER_ADDRESS": second.server.endpoint}
        return subprocess.run(
            [str(find_binary("gazctl")), "shards", *args],
            input=given,
            env=clean_environment() | addresses,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    listed = json.loads(gazctl("list", "-o", "json"))["shards"]
    assert [shard["spec"]["id"] for shard in listed] == ["shard-0", "shard-1"]
    assert gazctl("list", "--lag").count(f"{rig.journal}:0") == 2
    specs = gazctl("list", "-l", "id=shard-0", "-o", "yaml")
    gazctl("apply", "--specs", "-", given=specs.replace("100ms", "200ms"))
    (changed,) = first.shards.list_shards("id=shard-0")
    assert changed.spec.max_txn_duration.ToMilliseconds() == 200
    gazctl("prune", "-l", "id:prefix=shard", "--dry-run")
    before = [peer.app.opened_s[:] for peer in rig.peers]
    gazctl("unassign", "-l", "id=shard-1")
    wait_until("it starts again", lambda: [peer.app.opened_s for peer in rig.peers] != before)


def test_a_member_that_leaves_hands_its_shards_over(rig: Rig) -> None:
    first = rig.add()
    first.shards.apply([Change(upsert=spec) for spec in rig.specs(2)])
    wait_until("it runs both", lambda: len(first.primaries()) == 2)
    second = rig.add()
    rig.publish("a")
    first.host.leave()
    assert first.host.wait_left(30)
    wait_until("the other one runs both", lambda: len(second.primaries()) == 2)
    end = rig.publish("a")
    second.shards.stat("shard-0", {rig.journal: end})
    second.shards.stat("shard-1", {rig.journal: end})
    states = rig.database.state()
    assert states == {"shard-0": {"a": 2}, "shard-1": {"a": 2}}
    assert [list(shard.route.members) for shard in second.shards.list_shards()] == [
        [Member("local", "member-1").process_id]
    ] * 2


def test_a_lease_that_is_lost(rig: Rig) -> None:
    first = rig.add()
    first.shards.apply([Change(upsert=spec) for spec in rig.specs(1)])
    wait_until("it runs", lambda: first.primaries() == ["shard-0"])
    second = rig.add()
    membership = first.host._membership
    assert membership is not None
    first.etcd.revoke(membership.lease)
    wait_until("the other one runs it", lambda: second.primaries() == ["shard-0"])
    wait_until("it stops", lambda: first.primaries() == [])
    end = rig.publish("a")
    wait_until("it is back", lambda: len(second.host._mirror.state.members) == 2)
    assert first.shards.stat("shard-0", {rig.journal: end}).read_through == {rig.journal: end}


def test_a_shard_that_fails_says_so_everywhere(rig: Rig) -> None:
    first, second = rig.add(), rig.add()
    first.shards.apply([Change(upsert=spec) for spec in rig.specs(1)])
    wait_until("it runs", lambda: first.primaries() + second.primaries() == ["shard-0"])
    rig.publish("boom")

    def errors() -> str:
        (shard,) = second.shards.list_shards("id=shard-0")
        return " ".join(error for status in shard.status for error in status.errors)

    wait_until("it failed", lambda: "boom" in errors() and "the host starts it again" in errors())
    assert second.shards.unassign(["shard-0"], only_failed=True, dry_run=True) == ["shard-0"]
    assert second.shards.unassign(["shard-0"]) == ["shard-0"]


def test_a_permanent_error_of_the_application(rig: Rig) -> None:
    """Any member lists the error. The shard starts again only after an apply or an unassignment."""
    rig.refuses_by = PermanentError
    first, second = rig.add(), rig.add()
    (spec,) = rig.specs(1)
    first.shards.apply([Change(upsert=spec)])
    wait_until("it runs", lambda: first.primaries() + second.primaries() == ["shard-0"])
    rig.publish("boom")

    def starts() -> int:
        return sum(len(peer.app.opened_s) for peer in rig.peers)

    def has_failed(times: int) -> bool:
        statuses = [
            status for peer in rig.peers for shard in peer.shards.list_shards() for status in shard.status
        ]
        return (
            starts() == times
            and bool(statuses)
            and all(
                status.code == pc.ReplicaStatus.FAILED and "calls this error permanent" in status.errors[-1]
                for status in statuses
            )
        )

    wait_until("it failed", lambda: has_failed(1))
    second.shards.apply([Change(upsert=spec, expect_mod_revision=-1)])
    wait_until("it failed again", lambda: has_failed(2))

    def unassigned() -> bool:
        # The listed failure may be the previous one. Etcd then has a newer status with another revision, and
        # refuses the unassignment.
        with suppress(ShardTransactionFailedError):
            return second.shards.unassign(["shard-0"], only_failed=True) == ["shard-0"]
        return False

    wait_until("it is unassigned", unassigned)
    wait_until("it failed once more", lambda: has_failed(3))


def test_changes_that_etcd_has_forgotten(rig: Rig) -> None:
    """A mirror that missed changes, which were compacted meanwhile, reads all keys again."""
    peer = rig.add()
    peer.shards.apply([Change(upsert=spec) for spec in rig.specs(2)])
    with (
        TcpProxy(rig.broker.etcd_url) as proxy,
        EtcdClient([proxy.endpoint]) as etcd,
        ClusterMirror(etcd, rig.prefix) as mirror,
    ):
        mirror.start()
        wait_until("it sees both", lambda: len(mirror.state.items) == 2)
        proxy.down()
        peer.shards.apply([Change(delete="shard-0", expect_mod_revision=-1)])
        revision = peer.shards.apply([Change(upsert=spec) for spec in rig.specs(3)[2:]])
        compacted = {"revision": str(revision), "physical": True}
        httpx.post(f"{rig.broker.etcd_url}/v3/kv/compaction", json=compacted).raise_for_status()
        proxy.up()
        wait_until("it sees the others", lambda: sorted(mirror.state.items) == ["shard-1", "shard-2"])


@pytest.mark.soak
@pytest.mark.parametrize("restored", [False, True], ids=["its data is lost", "restored from a backup"])
def test_etcd_comes_back_with_other_data(rig: Rig, tmp_path: Path, restored: bool) -> None:
    data, backup = tmp_path / "own", tmp_path / "backup"
    etcd = EtcdProcess(tmp_path)
    try:
        first, second = rig.add(etcd.url, lease_s=4), rig.add(etcd.url, lease_s=4)
        first.host.create_missing(rig.specs(3))
        wait_until("all run", lambda: len(first.primaries() + second.primaries()) == 3)
        etcd.kill()
        shutil.copytree(data, backup)
        etcd.start()
        # The third member takes over a shard that the backup assigns to another member.
        third = rig.add(etcd.url, lease_s=4)
        wait_until("each runs one", lambda: all(len(peer.primaries()) == 1 for peer in rig.peers))

        def publish() -> None:
            end = rig.publish("a")
            for shard in range(3):
                assert third.shards.stat(f"shard-{shard}", {rig.journal: end}).read_through == {
                    rig.journal: end
                }

        publish()
        leases = leases_of(rig.peers)
        with counting_primaries(rig.peers) as counted:
            etcd.kill()
            shutil.rmtree(data)
            if restored:
                backup.rename(data)
            etcd.start()
            wait_until("all have joined again", lambda: not leases & leases_of(rig.peers))
            wait_until("each runs one", lambda: all(len(peer.primaries()) == 1 for peer in rig.peers))
        assert max(counted.values()) == 1, counted
        publish()
        assert rig.database.state() == {f"shard-{shard}": {"a": 2} for shard in range(3)}
        for peer in rig.peers:
            peer.close()
        rig.peers = []
    finally:
        etcd.kill()


def leases_of(peers: Sequence[Peer]) -> set[int]:
    return {peer.host._membership.lease for peer in peers if peer.host._membership is not None}


@contextmanager
def counting_primaries(peers: Sequence[Peer]) -> Iterator[Counter[str]]:
    """Yield the highest number of members that were primary of each shard at the same time."""
    counted, ended = Counter[str](), threading.Event()

    def count() -> None:
        while not ended.wait(0.01):
            for shard, primaries in Counter(shard for peer in peers for shard in peer.primaries()).items():
                counted[shard] = max(counted[shard], primaries)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield counted
    finally:
        ended.set()
        thread.join()


def test_etcd_is_killed_and_started_again(rig: Rig, tmp_path: Path) -> None:
    """Shards continue, and members keep their leases, which outlast the outage."""
    etcd = EtcdProcess(tmp_path)
    try:
        first, second = rig.add(etcd.url), rig.add(etcd.url)
        first.shards.apply([Change(upsert=spec) for spec in rig.specs(2)])
        wait_until("both run", lambda: len(first.primaries()) == len(second.primaries()) == 1)
        leases = {member.lease for member in first.host._mirror.state.members.values()}

        def publish() -> None:
            end = rig.publish("a")
            for peer in (first, second):
                (shard,) = peer.primaries()
                assert peer.shards.stat(shard, {rig.journal: end}).read_through == {rig.journal: end}

        publish()  # A shard that has read a message has stored its hints, which needs Etcd.
        etcd.kill()
        publish()
        etcd.start()
        second.shards.apply([Change(upsert=spec) for spec in rig.specs(3)[2:]])
        wait_until("the new one runs", lambda: len(first.primaries() + second.primaries()) == 3)
        assert {member.lease for member in second.host._mirror.state.members.values()} == leases
        for peer in rig.peers:
            peer.close()
        rig.peers.clear()
    finally:
        etcd.kill()


def test_an_etcd_of_three_members(rig: Rig, tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as etcd:
        first, second = rig.add(*etcd.urls, lease_s=10), rig.add(*etcd.urls, lease_s=10)
        specs = rig.specs(4)
        first.shards.apply([Change(upsert=spec) for spec in specs[:2]])
        wait_until("both run", lambda: len(first.primaries()) == len(second.primaries()) == 1)
        leases = {member.lease for member in first.host._mirror.state.members.values()}

        def is_applied(spec: pc.ShardSpec) -> bool:
            # Etcd may lose a change without an answer when its leader changes. A user applies it again.
            with suppress(UnavailableError):
                return second.shards.apply([Change(upsert=spec, expect_mod_revision=-1)]) > 0
            return False

        def use(count: int) -> None:
            wait_until("the new one is applied", lambda: is_applied(specs[count - 1]))
            wait_until("it runs", lambda: len(first.primaries() + second.primaries()) == count)
            end = rig.publish("a")
            for shard in range(count):
                read = first.shards.stat(f"shard-{shard}", {rig.journal: end}).read_through
                assert read == {rig.journal: end}

        etcd.move_leader()
        use(3)
        leader = etcd.leader()
        leader.kill()
        use(4)
        leader.start()
        assert {member.lease for member in second.host._mirror.state.members.values()} == leases
        for peer in (first, second):
            peer.close()
        rig.peers.clear()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [pytest.param("refused", marks=pytest.mark.soak), "silent"])
def test_a_member_that_cannot_reach_etcd(rig: Rig, fault: str) -> None:
    """It stops being primary before its lease can expire, and joins again afterwards."""
    with TcpProxy(rig.broker.etcd_url) as proxy:
        first = rig.add(proxy.endpoint, lease_s=LEASE_S)
        first.shards.apply([Change(upsert=spec) for spec in rig.specs(1)])
        wait_until("it runs", lambda: first.primaries() == ["shard-0"])
        second = rig.add(lease_s=LEASE_S)
        ended_s: list[float] = []
        shard = first.host._shards.get("shard-0")
        assert shard is not None

        def note_end(stopping: threading.Event = shard.stopping) -> None:
            stopping.wait(60)
            ended_s.append(time.monotonic())

        threading.Thread(target=note_end).start()
        if fault == "refused":
            proxy.down()
        else:
            proxy.to_client = proxy.to_server = Toxics(silent=True)
        began_s = time.monotonic()
        wait_until("the other one runs it", lambda: second.primaries() == ["shard-0"])
        (ended,), (opened, *_) = ended_s, second.app.opened_s
        assert ended < opened
        log.info("%s: ended after %.1f s, taken over after %.1f s", fault, ended - began_s, opened - began_s)
        if fault == "refused":
            proxy.up()
        else:
            proxy.to_client = proxy.to_server = Toxics()
        wait_until("it is back", lambda: len(second.host._mirror.state.members) == 2)
        end = rig.publish("a")
        assert first.shards.stat("shard-0", {rig.journal: end}).read_through == {rig.journal: end}
        first.close()
        rig.peers.remove(first)


@pytest.mark.soak
def test_three_replicas_of_one_command(
    deployed_broker: DeployedBroker, fresh_prefix: str, tmp_path: Path
) -> None:
    with Client(deployed_broker.endpoint) as client:
        path, specs = specs_file(client, fresh_prefix, tmp_path)
    prefix = f"/tests/{fresh_prefix.strip('/')}"
    etcd_url = deployed_broker.etcd_url
    observer = Observer([etcd_url], prefix)
    members = [
        MemberProcess(
            name, our_member(name, deployed_broker, [etcd_url], prefix, path), tmp_path / f"{name}.log"
        )
        for name in ("py-1", "py-2", "py-3")
    ]
    with running(members):
        # A process that is still starting does not handle signals yet.
        observer.wait_joined(members)
        wait_until("they run", lambda: observer.serves(len(specs)))
        lost = observer.leases("py-1")
        members[0].send(signal.SIGTERM)
        assert members[0].wait(30) == 0
        observer.wait_served(members[1:], lost, SERVED_S)
        lost |= observer.leases("py-2")
        members[1].send(signal.SIGKILL)
        observer.wait_served(members[2:], lost, SERVED_S)
        members[0].supervise()
        wait_until("it is back", lambda: bool(observer.leases("py-1")))
    observer.close()


KILLS = 50
"""Number of primaries to kill."""


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("hot_standbys", [0, 1])
def test_how_long_a_shard_has_no_primary(
    deployed_broker: DeployedBroker, fresh_prefix: str, hot_standbys: int, tmp_path: Path
) -> None:
    prefix, etcd_url = f"/tests/{fresh_prefix.strip('/')}", deployed_broker.etcd_url
    with Client(deployed_broker.endpoint) as client:
        path, specs = specs_file(client, fresh_prefix, tmp_path, hot_standbys=hot_standbys)
        begin = client.write_head(SUMS_JOURNAL)
        members = {
            name: MemberProcess(
                name, our_member(name, deployed_broker, [etcd_url], prefix, path), tmp_path / f"{name}.log"
            )
            for name in ("py-1", "py-2", "py-3")
        }
        observer, took_s = Observer([etcd_url], prefix), list[float]()
        with (
            running(list(members.values())),
            verifying(deployed_broker.endpoint, tmp_path, chunks=30) as chunker,
        ):
            while len(took_s) < KILLS:
                observer.wait_joined(list(members.values()))
                wait_until("they run", lambda: observer.serves(len(specs)))
                # Members that start together renew their leases together, so vary the time of the kill.
                threading.Event().wait(random.uniform(0, LEASE_S / 4))
                observer.wait_steady(list(members.values()), hot_standbys)
                primary = observer.primary(random.choice(specs).id)
                if not primary:
                    continue  # The shard is moving right now.
                lost = observer.leases(primary)
                members[primary].send(signal.SIGKILL)
                took_s.append(observer.wait_served(list(members.values()), lost, SERVED_S))
                log.info("%s is killed, and its shards have a primary after %.2f s", primary, took_s[-1])
                chunker.check()
        log_times(f"takeover with {hot_standbys} hot standbys", took_s)
        assert sums_since(client, begin) > 0
    observer.close()


ETCD_FAULTS = ("move the leader", "kill the leader", "kill a follower", "stop the leader")


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_members_of_etcd_fail_under_load(
    deployed_broker: DeployedBroker, fresh_prefix: str, stream_minutes: float, tmp_path: Path
) -> None:
    prefix = f"/tests/{fresh_prefix.strip('/')}"
    with Client(deployed_broker.endpoint) as client, EtcdCluster(tmp_path) as etcd:
        path, specs = specs_file(client, fresh_prefix, tmp_path, hot_standbys=1)
        begin = client.write_head(SUMS_JOURNAL)
        commands: dict[str, Sequence[str | Path]] = {
            "py-1": our_member("py-1", deployed_broker, etcd.urls, prefix, path),
            "go-2": go_member("go-2", deployed_broker, etcd.urls[0], prefix),
            "py-3": our_member("py-3", deployed_broker, etcd.urls, prefix, path),
        }
        members = [
            MemberProcess(name, command, tmp_path / f"{name}.log") for name, command in commands.items()
        ]
        observer, took = Observer(etcd.urls, prefix), dict[str, list[float]]()
        with running(members), verifying(deployed_broker.endpoint, tmp_path, chunks=30) as chunker:
            wait_until("they run", lambda: observer.serves(len(specs)))
            until_s = time.monotonic() + max(20, 60 * stream_minutes)
            while time.monotonic() < until_s:
                observer.wait_joined(members)
                observer.wait_steady(members, 1)
                fault, lost = random.choice(ETCD_FAULTS), set[int]()
                if random.random() < 0.5:
                    primary = observer.primary(random.choice(specs).id)
                    for victim in (member for member in members if member.name == primary):
                        lost = observer.leases(primary)
                        victim.send(signal.SIGKILL)
                leader = etcd.leader()
                failed = etcd.members[etcd.members.index(leader) - (fault == "kill a follower")]
                if fault == "move the leader":
                    etcd.move_leader()
                elif fault == "stop the leader":
                    failed.send(signal.SIGSTOP)
                else:
                    failed.kill()
                seconds = observer.wait_served(members, lost, SERVED_S, at_least_s=LEASE_S)
                if fault == "stop the leader":
                    failed.send(signal.SIGCONT)
                elif fault != "move the leader":
                    failed.start()
                if lost:
                    # Until its lease ends, which a new leader prolongs, it looks like one that has joined.
                    wait_until("the killed member has left", lambda: not lost & observer.leases(primary))  # noqa: B023
                what = f"{fault}, with a member killed" if lost else fault
                took.setdefault(what, []).append(seconds)
                log.info("%s: a shard had no primary for %.2f s", what, seconds)
                chunker.check()
        for what, seconds_of in took.items():
            log_times(what, seconds_of)
        observer.close()
        assert sums_since(client, begin) > 0


FAULTS = ("SIGKILL", "SIGTERM", "SIGSTOP")


@pytest.mark.slow
def test_gazettes_members_and_ours_share_shards(
    deployed_broker: DeployedBroker, fresh_prefix: str, stream_minutes: float, tmp_path: Path
) -> None:
    prefix, etcd_url = f"/tests/{fresh_prefix.strip('/')}", deployed_broker.etcd_url
    with Client(deployed_broker.endpoint) as client:
        path, specs = specs_file(client, fresh_prefix, tmp_path, hot_standbys=1)
        begin = client.write_head(SUMS_JOURNAL)
        observer = Observer([etcd_url], prefix)
        commands: dict[str, Sequence[str | Path]] = {
            "py-1": our_member("py-1", deployed_broker, [etcd_url], prefix, path),
            "go-2": go_member("go-2", deployed_broker, etcd_url, prefix),
            "py-2": our_member("py-2", deployed_broker, [etcd_url], prefix, path),
            "go-1": go_member("go-1", deployed_broker, etcd_url, prefix),
        }
        members = [
            MemberProcess(name, command, tmp_path / f"{name}.log") for name, command in commands.items()
        ]
        took: dict[str, list[float]] = {}
        leaders = set()
        with running(members), verifying(deployed_broker.endpoint, tmp_path, chunks=30) as chunker:
            wait_until("they run", lambda: observer.serves(len(specs)))
            until_s = time.monotonic() + 60 * max(1, stream_minutes)
            while time.monotonic() < until_s:
                leaders.add(observer.leader()[:2])
                # At most one member is away at a time.
                observer.wait_joined(members)
                observer.wait_steady(members, 1)
                member, fault = random.choice(members), random.choice(FAULTS)
                leases = observer.leases(member.name)
                thread = threading.Thread(target=fail, args=(member, fault))
                thread.start()
                if fault == "SIGTERM":
                    # It runs its shards until other members have taken them over.
                    seconds = observer.wait_served(members, set(), SERVED_S, at_least_s=3)
                else:
                    seconds = observer.wait_served(members, leases, SERVED_S)
                took.setdefault(fault, []).append(seconds)
                thread.join()
                # Until its lease ends, a killed member looks like one that has joined, and has caught up.
                wait_until("it has left", lambda: not leases & observer.leases(member.name))  # noqa: B023
                chunker.check()
        summed = sums_since(client, begin)
        observer.close()
    log.info("leaders were %s, %d sums verified", leaders, summed)
    for fault, times_s in took.items():
        log_times(fault, times_s)
    assert summed > 0
