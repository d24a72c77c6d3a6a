"""What a cluster's brokers answer and do when members are elsewhere, move, hang, are cut off or die."""

from __future__ import annotations

import errno
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest

from gazette_spark import Client
from gazette_spark._server.topology import assign
from gazette_spark.broker import EmbeddedBroker, GatewaySettings
from gazette_spark.broker.api import append_fsm
from gazette_spark.broker.journal import LiveJournal
from gazette_spark.broker.registry import JournalRegistry
from gazette_spark.broker.storage.commit_log import Registers
from gazette_spark.client import journal_spec
from gazette_spark.errors import (
    InsufficientJournalBrokersError,
    NoJournalPrimaryBrokerError,
    NotJournalBrokerError,
    NotJournalPrimaryBrokerError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import CALL_TIMEOUT_S, COMMIT, Wire, delete, labels, spec, wait_for
from tests.rig.cluster import ClusterBroker, EmbeddedCluster

NAME = "cluster/journal"


@contextmanager
def running(root: Path, *, replication: int = 2, brokers: int = 3) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(root, brokers=brokers, replication=replication) as cluster:
        with Wire(cluster.endpoints[0]) as wire:
            wire.create(spec(NAME, replication=replication))
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def stranger(cluster: EmbeddedCluster) -> Iterator[Wire]:
    """A connection to the broker that does not have the journal."""
    with Wire(cluster.others(NAME)[0].endpoint) as wire:
        yield wire


def append(broker: ClusterBroker, content: bytes, **fields: object) -> pb.AppendResponse:
    with Wire(broker.endpoint) as wire:
        return wire.append(NAME, content, **fields)


def content_at(broker: ClusterBroker) -> bytes:
    """Return what a member serves of the journal, from its spools and the store."""
    with Wire(broker.endpoint) as wire:
        messages = wire.read(NAME)
    assert messages[0].header.process_id == broker.member.process_id
    return b"".join(each.content for each in messages)


def in_background(call: Callable[[], object]) -> Future[object]:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call)
    finally:
        pool.shutdown(wait=False)


def client_of(broker: ClusterBroker, *others: ClusterBroker, **options: object) -> Client:
    endpoints = ",".join(one.endpoint for one in (broker, *others))
    return Client(endpoints, timeout_s=20, connect_timeout_s=5, **options)  # type: ignore[arg-type]  # Fields by name, of mixed types.


# -- Routes.


def test_any_broker_serves_any_journal(cluster: EmbeddedCluster, stranger: Wire) -> None:
    answer = stranger.append(NAME, b"one\n", b"two\n")
    assert answer.status == pb.OK
    assert (answer.commit.begin, answer.commit.end, answer.total_chunks) == (0, 8, 3)
    assert answer.header.process_id == cluster.primary(NAME).member.process_id
    messages = stranger.read(NAME)
    assert b"".join(each.content for each in messages) == b"one\ntwo\n"
    assert messages[0].header.process_id in [one.member.process_id for one in members(cluster)]
    assert stranger.spans(NAME) == [(0, 8)]


def members(cluster: EmbeddedCluster) -> list[ClusterBroker]:
    """Return the brokers that have the journal, the primary first."""
    return [cluster.primary(NAME), *cluster.replicas(NAME)]


def test_routes_name_every_member(cluster: EmbeddedCluster) -> None:
    routes = []
    for broker in cluster.brokers:
        with Wire(broker.endpoint) as wire:
            routes += [each.route for each in wire.list(pb.LabelSelector())]
    assert routes == [routes[0]] * 3
    addresses = dict(zip([each.suffix for each in routes[0].members], routes[0].endpoints, strict=True))
    assert addresses == {one.suffix: one.endpoint for one in members(cluster)}
    assert routes[0].members[routes[0].primary] == cluster.primary(NAME).member.process_id


def test_who_may_not_proxy_says_where_to_go(cluster: EmbeddedCluster, stranger: Wire) -> None:
    refused = stranger.append(NAME, b"x", do_not_proxy=True)
    assert refused.status == pb.NOT_JOURNAL_PRIMARY_BROKER
    read = stranger.read(NAME, do_not_proxy=True)[0]
    listed = stranger.fragments(NAME, do_not_proxy=True)
    assert (read.status, listed.status) == (pb.NOT_JOURNAL_BROKER, pb.NOT_JOURNAL_BROKER)
    for header in (refused.header, read.header, listed.header):
        assert header.process_id == cluster.others(NAME)[0].member.process_id
        assert set(header.route.endpoints) == {one.endpoint for one in members(cluster)}
    replica = cluster.replicas(NAME)[0]
    assert append(replica, b"x", do_not_proxy=True).status == pb.NOT_JOURNAL_PRIMARY_BROKER
    assert content_at(replica) == b""


def test_client_reports_and_follows_routes(cluster: EmbeddedCluster) -> None:
    stranger = cluster.others(NAME)[0]
    with Client(stranger.endpoint, timeout_s=1) as client:
        with pytest.raises(NotJournalPrimaryBrokerError, match=NAME):
            client.append(NAME, b"x", do_not_proxy=True)
        with pytest.raises(NotJournalBrokerError, match=NAME):
            client.reader(NAME, do_not_proxy=True).read()
    with client_of(stranger, route_cache_size=8) as client:
        client.append(NAME, b"direct")
        assert client.read(NAME, end_offset=6).read() == b"direct"


def test_client_follows_a_primary_that_moves(cluster: EmbeddedCluster) -> None:
    with client_of(cluster.others(NAME)[0], route_cache_size=8) as client:
        for number in range(6):
            client.append(NAME, b"%d" % number)
            cluster.move_primary(NAME)
        assert client.read(NAME, end_offset=6).read() == b"012345"


def test_the_gateway_passes_appends_on(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, brokers=2, replication=1, gateway=GatewaySettings()) as cluster:
        with Wire(cluster.endpoints[0]) as wire:
            wire.create(spec(NAME))
        gateway = cluster.others(NAME)[0].gateway_endpoint
        assert gateway is not None
        assert httpx.put(f"{gateway}/{NAME}", content=iter([b"who", b"le"])).status_code == 204
        head = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        parts = urlsplit(gateway)
        with socket.create_connection((parts.hostname, parts.port), CALL_TIMEOUT_S) as connection:
            connection.sendall(f"PUT /{NAME} HTTP/1.1\r\n".encode() + head + b"4\r\nlost\r\n-1\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
        assert content_at(cluster.primary(NAME)) == b"whole"


def test_zones(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, brokers=4, replication=2, zones=("east", "west")) as cluster:
        with Wire(cluster.endpoints[0]) as wire:
            wire.create(spec(NAME))
        assert {one.zone for one in members(cluster)} == {"east", "west"}
        for stranger in cluster.others(NAME):
            with Wire(stranger.endpoint) as wire:
                served = wire.read(NAME, metadata_only=True)[0].header.process_id
                assert served.zone == stranger.zone


def test_no_primary(cluster: EmbeddedCluster) -> None:
    append(cluster.primary(NAME), b"before,")
    replica, stranger = cluster.replicas(NAME)[0], cluster.others(NAME)[0]
    cluster.hold_slots()
    cluster.primary(NAME).kill()
    assert append(stranger, b"x").status == pb.NO_JOURNAL_PRIMARY_BROKER
    assert content_at(replica) == b"before,"
    with (
        Client(stranger.endpoint, timeout_s=0.5) as impatient,
        pytest.raises((NoJournalPrimaryBrokerError, UnavailableError)),
    ):
        impatient.append(NAME, b"x")
    with client_of(stranger) as client:
        waiting = in_background(lambda: client.append(NAME, b"after"))
        cluster.fill_slots()
        waiting.result(CALL_TIMEOUT_S)
    assert content_at(cluster.primary(NAME)) == b"before,after"


def test_too_few_brokers(tmp_path: Path) -> None:
    with running(tmp_path, replication=3) as cluster:
        append(cluster.brokers[0], b"before,")
        lost = cluster.replicas(NAME)[0]
        lost.kill()
        assert append(cluster.primary(NAME), b"x").status == pb.INSUFFICIENT_JOURNAL_BROKERS
        with (
            Client(cluster.primary(NAME).endpoint, timeout_s=0.5) as impatient,
            pytest.raises((InsufficientJournalBrokersError, UnavailableError)),
        ):
            impatient.append(NAME, b"x")
        with client_of(cluster.primary(NAME)) as client:
            waiting = in_background(lambda: client.append(NAME, b"after"))
            lost.restart()
            waiting.result(CALL_TIMEOUT_S)
        assert content_at(cluster.primary(NAME)) == b"before,after"


def test_no_members_at_all(cluster: EmbeddedCluster) -> None:
    cluster.hold_slots()
    with Wire(cluster.endpoints[0]) as wire:
        assert wire.apply(pb.ApplyRequest.Change(upsert=spec("cluster/new"))).status == pb.OK
        assert wire.read("cluster/new")[0].status == pb.INSUFFICIENT_JOURNAL_BROKERS
        assert wire.append("cluster/new", b"x").status == pb.NO_JOURNAL_PRIMARY_BROKER
        cluster.fill_slots()
        assert wire.append("cluster/new", b"x").status == pb.OK


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param("process", "ProcessId doesn't match", id="process"),
        pytest.param("cluster", "ClusterId doesn't match", id="cluster"),
    ],
)
def test_proxied_by_mistake(cluster: EmbeddedCluster, stranger: Wire, change: str, text: str) -> None:
    header = stranger.append(NAME, b"x").header
    if change == "cluster":
        header.process_id.CopyFrom(cluster.others(NAME)[0].member.process_id)
        header.etcd.cluster_id += 1
    calls: list[Callable[[], object]] = [
        lambda: stranger.append(NAME, b"x", header=header),
        lambda: stranger.read(NAME, header=header),
        lambda: stranger.fragments(NAME, header=header),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() == grpc.StatusCode.UNKNOWN
        assert text in (caught.value.details() or "")


# -- Replication.


def replicate(broker: ClusterBroker, *requests: pb.ReplicateRequest) -> list[pb.ReplicateResponse]:
    with Wire(broker.endpoint) as wire:
        return list(wire.stub.Replicate(iter(requests), timeout=CALL_TIMEOUT_S))


def greeting(cluster: EmbeddedCluster, broker: ClusterBroker, begin: int, end: int) -> pb.ReplicateRequest:
    with Wire(broker.endpoint) as wire:
        header = wire.read(NAME, metadata_only=True)[0].header
    header.process_id.CopyFrom(broker.member.process_id)
    fragment = pb.Fragment(journal=NAME, begin=begin, end=end, compression_codec=pb.SNAPPY)
    if end > begin:
        fragment.sum.part1 = 1
    request = pb.ReplicateRequest(header=header, proposal=fragment, acknowledge=True)
    request.registers.SetInParent()
    return request


def test_wrong_route(cluster: EmbeddedCluster) -> None:
    replica = cluster.replicas(NAME)[0]
    request = greeting(cluster, replica, 0, 0)
    request.header.route.primary = 1 - request.header.route.primary
    answers = replicate(replica, request)
    assert [answer.status for answer in answers] == [pb.WRONG_ROUTE]
    assert {*answers[0].header.route.endpoints} == {one.endpoint for one in members(cluster)}


def test_replica_answers_proposals(cluster: EmbeddedCluster) -> None:
    """A replica accepts an empty extent at a higher offset, answers others with its own, stages nothing."""
    replica = cluster.replicas(NAME)[0]
    agreed = replicate(replica, greeting(cluster, replica, 7, 7), pb.ReplicateRequest(content=b"lost"))
    assert [answer.status for answer in agreed] == [pb.OK]
    assert agreed[0].header.process_id == replica.member.process_id
    answers = replicate(replica, greeting(cluster, replica, 7, 9))
    assert [answer.status for answer in answers] == [pb.PROPOSAL_MISMATCH]
    assert (answers[0].fragment.begin, answers[0].fragment.end) == (9, 9)
    assert append(cluster.primary(NAME), b"x").commit.begin == 9


def test_replicas_are_identical(cluster: EmbeddedCluster) -> None:
    author = labels(("author", "me"))
    for number in range(5):
        append(cluster.brokers[number % 3], b"%d," % number * 1000, union_registers=author)
        extents = [one.replica(NAME).committed() for one in members(cluster)]  # type: ignore[union-attr]  # Members have a replica.
        assert extents == [extents[0]] * 2
        assert extents[0][1] == (("author", "me"),)
        contents = [content_at(one) for one in members(cluster)]
        assert contents == [contents[0]] * 2


def test_rolled_back_append_is_nowhere(cluster: EmbeddedCluster, stranger: Wire) -> None:
    for broker in (cluster.primary(NAME), cluster.others(NAME)[0]):
        with Wire(broker.endpoint) as wire, pytest.raises(grpc.RpcError, match="unexpected EOF"):
            wire.send([pb.AppendRequest(journal=NAME), pb.AppendRequest(content=b"lost")])
    assert stranger.append(NAME, b"kept").commit.begin == 0
    assert [content_at(one) for one in members(cluster)] == [b"kept", b"kept"]


# -- Failures.


def test_an_append_that_only_the_primary_lacks(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts, so the primary whose disk is full must not answer that nothing was changed."""
    append(cluster.primary(NAME), b"one\n")
    commit, failures = LiveJournal.commit_staged, [OSError(errno.ENOSPC, "No space left on device")]

    def fail_once(journal: LiveJournal, registers: Registers) -> None:
        if journal.pipeline is not None and failures:
            raise failures.pop()
        commit(journal, registers)

    monkeypatch.setattr(LiveJournal, "commit_staged", fail_once)
    with pytest.raises(grpc.RpcError) as caught:
        append(cluster.primary(NAME), b"two\n")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    append(cluster.primary(NAME), b"three\n")
    assert content_at(cluster.replicas(NAME)[0]) == b"one\ntwo\nthree\n"


def test_kill_of_the_primary_in_an_append(cluster: EmbeddedCluster) -> None:
    append(cluster.primary(NAME), b"kept,", union_registers=labels(("author", "me")))
    primary, replica, stranger = cluster.primary(NAME), cluster.replicas(NAME)[0], cluster.others(NAME)[0]
    messages: queue.Queue[pb.AppendRequest] = queue.Queue()
    messages.put(pb.AppendRequest(journal=NAME))
    messages.put(pb.AppendRequest(content=b"lost" * 1000))
    with Wire(stranger.endpoint) as wire:
        call = wire.stub.Append.future(iter(messages.get, None), timeout=CALL_TIMEOUT_S)
        wait_for(lambda: replica.replica(NAME).staged().end > 5, "staged content")  # type: ignore[union-attr]  # Members have a replica.
        primary.kill()
        with pytest.raises(grpc.RpcError) as caught:
            call.result(CALL_TIMEOUT_S)
        messages.put(COMMIT)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert cluster.primary(NAME) is replica
    answer = append(stranger, b"after", check_registers=pb.LabelSelector(include=labels(("author", "me"))))
    assert (answer.status, answer.commit.begin) == (pb.OK, 5)
    assert content_at(replica) == b"kept,after"


@pytest.mark.parametrize("harm", ["kill", "stop"])
def test_one_replica_after_the_other(cluster: EmbeddedCluster, harm: str) -> None:
    expected = b""
    for number in range(6):
        broker = cluster.primary(NAME)
        append(broker, b"%d," % number)
        expected += b"%d," % number
        getattr(broker, harm)()
        append(cluster.primary(NAME), b"then,")
        expected += b"then,"
        broker.restart()
        cluster.primary(NAME).roll(NAME)

        def is_whole(wanted: bytes = expected) -> bool:
            return content_at(cluster.primary(NAME)) == wanted

        wait_for(is_whole, "whole journal")


def test_lone_replica_hands_over(tmp_path: Path) -> None:
    with running(tmp_path, replication=1) as cluster:
        first = cluster.primary(NAME)
        append(first, b"moved,", union_registers=labels(("author", "me")))
        first.stop()
        answer = append(cluster.primary(NAME), b"on")
        assert (answer.status, answer.commit.begin) == (pb.OK, 6)
        assert answer.registers == labels(("author", "me"))
        assert cluster.primary(NAME) is not first
        wait_for(lambda: content_at(cluster.primary(NAME)) == b"moved,on", "the stored fragment")


def test_hung_replica(cluster: EmbeddedCluster) -> None:
    """An append waits for a replica that hangs; when its lease expires, another one replaces it."""
    append(cluster.primary(NAME), b"one,")
    hung = cluster.replicas(NAME)[0]
    hung.hang()
    with client_of(cluster.primary(NAME)) as client:
        waiting = in_background(lambda: client.append(NAME, b"two,"))
        hung.leave()
        waiting.result(CALL_TIMEOUT_S)
    hung.resume()
    assert append(hung, b"three").status == pb.OK
    kept = content_at(cluster.primary(NAME))
    assert kept in (b"one,two,three", b"one,two,two,three")


def test_hung_broker_answers_nothing(cluster: EmbeddedCluster) -> None:
    broker = cluster.others(NAME)[0]
    broker.hang()
    with Client(broker.endpoint, timeout_s=0.3) as client, pytest.raises(UnavailableError):
        client.list_journals()
    with client_of(broker) as client:
        waiting = in_background(client.list_journals)
        broker.resume()
        assert len(waiting.result(CALL_TIMEOUT_S)) == 1  # type: ignore[arg-type]  # A future of any result.


def test_partitioned_replica(cluster: EmbeddedCluster) -> None:
    """No append commits without an unreachable replica, until that is back or its lease has expired."""
    append(cluster.primary(NAME), b"one,")
    cut = cluster.replicas(NAME)[0]
    cut.partition()
    with pytest.raises(grpc.RpcError) as caught:
        append(cluster.primary(NAME), b"x")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert content_at(cut) == b"one,"
    cut.resume()
    assert append(cluster.primary(NAME), b"two,").commit.begin == 4
    assert content_at(cut) == b"one,two,"
    cut.partition()
    cut.leave()
    assert append(cluster.primary(NAME), b"three").status == pb.OK


def test_primary_restarts_at_its_port(cluster: EmbeddedCluster) -> None:
    """F1: a client with a single address recovers when that broker is killed and comes back."""
    broker = cluster.primary(NAME)
    with client_of(broker) as client:
        client.append(NAME, b"before,")
        broker.kill()
        waiting = in_background(lambda: client.append(NAME, b"after"))
        broker.restart()
        waiting.result(CALL_TIMEOUT_S)
        assert client.read(NAME, end_offset=12, block=True).read() == b"before,after"


def test_broker_gone_for_good(cluster: EmbeddedCluster) -> None:
    """F2: a client of a broker that never comes back fails at its deadline, and names the broker."""
    broker = cluster.others(NAME)[0]
    with Client(broker.endpoint, timeout_s=1) as client:
        client.append(NAME, b"x")
        broker.kill()
        with pytest.raises(UnavailableError, match=broker.endpoint):
            client.append(NAME, b"y")


def test_proxy_dies_in_a_read(cluster: EmbeddedCluster) -> None:
    """F6: a read whose proxy dies continues at the same byte through another broker."""
    content = bytes(range(256)) * 4096
    append(cluster.primary(NAME), content)
    proxy = cluster.others(NAME)[0]
    with client_of(proxy, cluster.primary(NAME)) as client:
        reader = client.read(NAME, end_offset=2 * len(content), block=True)
        got = reader.read(len(content) // 3)
        proxy.kill()
        append(cluster.primary(NAME), content)
        while chunk := reader.read(1 << 20):
            got += chunk
    assert got == content * 2


def test_assignment_moves_in_a_read(cluster: EmbeddedCluster) -> None:
    """F11: a tailing read at a member that leaves ends cleanly, and the client continues elsewhere."""
    append(cluster.primary(NAME), b"before,")
    leaving = cluster.replicas(NAME)[0]
    with Wire(leaving.endpoint) as wire, client_of(leaving, cluster.primary(NAME)) as client:
        tail = wire.open_read(NAME, offset=7, block=True)
        reader = client.read(NAME, end_offset=12, block=True)
        assert reader.read(7) == b"before,"
        leaving.leave()
        assert list(tail) == []
        append(cluster.primary(NAME), b"after")
        assert reader.read(5) == b"after"


def test_appends_and_reads_while_brokers_die(tmp_path: Path) -> None:
    """Primaries are killed and moved during appends and reads: acknowledged bytes stay, in order.

    A failed append is retried and may be there as well: at most twice, and before the next one.
    """
    with running(tmp_path, replication=2) as cluster:
        first, second, third = cluster.brokers
        stop, answered = threading.Event(), 0

        def write() -> int:
            number = 0
            with client_of(first, second, third) as client:
                while not stop.is_set():
                    client.append(NAME, b"%d\n" % number)
                    number += 1
            return number

        with client_of(third, second, first) as client:
            writing = in_background(write)
            reader = client.read(NAME, block=True)
            lines = b""
            for turn in range(4):
                while lines.count(b"\n") < 10 * (turn + 1):
                    lines += next(reader).content
                victim = cluster.primary(NAME)
                if turn % 2:
                    cluster.move_primary(NAME)
                else:
                    victim.kill()
                    victim.restart()
            stop.set()
            answered = int(writing.result(CALL_TIMEOUT_S))  # type: ignore[call-overload]  # A future of any result.
            end = client.append(NAME, b"end\n").end
            while len(lines) < end:
                lines += next(reader).content
        numbers = [int(line) for line in lines.split()[:-1]]
        assert sorted(set(numbers)) == list(range(answered))
        assert numbers == sorted(numbers)
        contents = [content_at(one) for one in members(cluster)]
        wait_for(lambda: content_at(cluster.primary(NAME)) == lines, "the same bytes at the primary")
        assert all(lines.startswith(content) for content in contents)


def test_cluster_with_keys(tmp_path: Path) -> None:
    """Brokers sign what they proxy and replicate, so a client needs only a token for appends."""
    keys = "c2VjcmV0LWtleS1vZi10aGUtdGVzdHMtYW5kLW5vLW9uZS1lbHNl"
    with EmbeddedCluster(tmp_path, brokers=3, replication=2, auth_keys=keys) as cluster:
        with Client(cluster.endpoints[0], auth_keys=keys) as client:
            client.create_journals(spec(NAME))
            client.append(NAME, b"signed")
        for broker in cluster.brokers:
            with Client(broker.endpoint, auth_keys=keys) as client:
                client.append(NAME, b",")
                assert client.read(NAME, end_offset=6).read() == b"signed"
        with Wire(cluster.endpoints[0]) as wire, pytest.raises(grpc.RpcError) as caught:
            wire.append(NAME, b"unsigned")
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_suspended_journals_lose_and_regain_members(cluster: EmbeddedCluster) -> None:
    append(cluster.primary(NAME), b"first")
    now = pb.AppendRequest.SUSPEND_NOW
    with Wire(cluster.endpoints[0]) as wire:
        assert wire.append(NAME, suspend=now).status == pb.SUSPENDED
        assert len(cluster.slots(NAME)) == 1
        answer = wire.append(NAME, b"second")
        assert (answer.status, answer.commit.begin) == (pb.OK, 5)
        assert len(cluster.slots(NAME)) == 2
        wire.create(spec("cluster/empty"))
        assert wire.append("cluster/empty", suspend=now).status == pb.SUSPENDED
        assert cluster.slots("cluster/empty") == ()
        assert wire.read("cluster/empty")[0].status == pb.SUSPENDED
        assert wire.append("cluster/empty", b"x").status == pb.OK


def test_a_former_primary_suspends_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has none of the bytes that its successor has acknowledged, so the journal looks empty to it."""
    suspend_level = append_fsm.suspend_level
    with running(tmp_path, replication=1) as cluster:
        former, successor = cluster.primary(NAME), cluster.others(NAME)[0]

        def suspend_after_a_move(*state: Any, **options: Any) -> int:
            monkeypatch.setattr(append_fsm, "suspend_level", suspend_level)
            cluster.keyspace.put_slots({NAME: (successor.member,)})
            append(successor, b"acknowledged")
            return suspend_level(*state, **options)

        monkeypatch.setattr(append_fsm, "suspend_level", suspend_after_a_move)
        assert append(former, b"", suspend=pb.AppendRequest.SUSPEND_NOW).status == pb.SUSPENDED
        assert content_at(successor) == b"acknowledged"


def test_a_journal_that_is_created_again_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins at 0, not at the offset at which its predecessor was suspended."""
    set_suspension = JournalRegistry.set_suspension
    with EmbeddedBroker(tmp_path) as broker, Client(broker.endpoint) as client:
        suspended = journal_spec(NAME)
        suspended.suspend.level, suspended.suspend.offset = pb.JournalSpec.Suspend.FULL, 100
        client.apply([pb.ApplyRequest.Change(upsert=suspended)])

        def create_again(registry: JournalRegistry, *arguments: Any) -> None:
            client.apply([pb.ApplyRequest.Change(delete=NAME, expect_mod_revision=-1)])
            client.apply([pb.ApplyRequest.Change(upsert=journal_spec(NAME))])
            set_suspension(registry, *arguments)

        monkeypatch.setattr(JournalRegistry, "set_suspension", create_again)
        assert client.append(NAME, b"x").begin == 0


def test_a_replica_stores_what_it_gives_up(tmp_path: Path) -> None:
    """A primary that has just joined has none of its bytes, and suspends the journal as empty."""
    with running(tmp_path) as cluster:
        primary, replica, joins = cluster.primary(NAME), cluster.replicas(NAME)[0], cluster.others(NAME)[0]
        append(primary, b"first,")
        cluster.keyspace.put_slots({NAME: (joins.member, replica.member)})
        assert append(joins, b"", suspend=pb.AppendRequest.SUSPEND_NOW).status == pb.SUSPENDED
        wait_for(lambda: any(path.is_file() for path in (tmp_path / NAME).rglob("*")), "the stored fragment")
        assert append(joins, b"second").commit.begin == 6
        assert content_at(cluster.primary(NAME)) == b"first,second"


def test_a_journal_is_deleted_and_a_broker_dies_during_a_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, replication=2) as cluster, Wire(cluster.endpoints[0]) as wire:
        leaving, dies = cluster.primary(NAME), cluster.replicas(NAME)[0]
        wire.create(spec("cluster/other", replication=2))
        cluster.keyspace.put_slots({"cluster/other": (leaving.member, dies.member)})
        append(leaving, b"kept")
        assert wire.append("cluster/other", b"x").status == pb.OK

        def change_first(*state: Any, **options: Any) -> object:
            monkeypatch.setattr("gazette_spark.broker.cluster.assign", assign)
            assigned = assign(*state, **options)
            wire.apply(delete("cluster/other", -1))
            dies.kill()
            return assigned

        monkeypatch.setattr("gazette_spark.broker.cluster.assign", change_first)
        leaving.stop()
        (last,) = (broker for broker in cluster.brokers if broker.is_running)
        assert cluster.slots(NAME) == (last.member,)
        wait_for(lambda: content_at(last) == b"kept", "the stored fragment")
