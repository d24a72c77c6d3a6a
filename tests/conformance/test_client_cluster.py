"""A client that follows routes, on a cluster whose brokers stop, die, hang and lose their journals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from gazette_spark import Client
from gazette_spark.errors import NoJournalPrimaryBrokerError
from tests.conformance.wire import spec
from tests.rig.cluster import ClusterBroker, EmbeddedCluster

JOURNALS = 6
PIECES = 60


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), brokers=4, zones=("near", "far")) as brokers:
        yield brokers


@pytest.fixture
def cluster(shared: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    yield shared
    for broker in shared.brokers:
        broker.resume()
        broker.start()
    shared.fill_slots()


@pytest.fixture
def client(cluster: EmbeddedCluster) -> Iterator[Client]:
    """A client that follows routes, has all brokers' addresses, and detects hung brokers soon."""
    with Client(
        ",".join(cluster.endpoints), timeout_s=60, idle_timeout_s=1, route_cache_size=100, zone="far"
    ) as opened:
        yield opened


@pytest.fixture
def journal(client: Client, journal_name: str) -> str:
    client.create_journals(spec(journal_name, replication=3))
    return journal_name


def test_calls_go_where_the_journal_is(client: Client, cluster: EmbeddedCluster, fresh_prefix: str) -> None:
    names = [f"{fresh_prefix}{index}" for index in range(JOURNALS)]
    client.create_journals(*(spec(name, replication=3) for name in names))
    for name in names:
        client.append(name, name.encode())
        assert client.read(name).read() == name.encode()
        assert client._dialer.for_primary(name).endpoint.text == cluster.primary(name).endpoint
        member = broker_at(cluster, reads_from(client, name))
        assert member.zone == "far"
        assert member.member in cluster.slots(name)


def reads_from(client: Client, journal: str) -> str:
    return client._dialer.for_member(journal).endpoint.text


def broker_at(cluster: EmbeddedCluster, endpoint: str) -> ClusterBroker:
    return next(each for each in cluster.brokers if each.endpoint == endpoint)


HARMS: dict[str, Callable[[Client, EmbeddedCluster, str], object]] = {
    "nothing happens": lambda _client, _cluster, _journal: None,
    "the primary moves": lambda _client, cluster, journal: cluster.move_primary(journal),
    "the primary stops": lambda _client, cluster, journal: cluster.primary(journal).stop(),
    "the primary is killed": lambda _client, cluster, journal: cluster.primary(journal).kill(),
    "who is read from is killed": lambda client, cluster, journal: broker_at(
        cluster, reads_from(client, journal)
    ).kill(),
}
"""Disturbances while a journal is appended to and read."""


@pytest.mark.parametrize("harm", HARMS)
def test_appends_and_a_read_go_on(client: Client, cluster: EmbeddedCluster, journal: str, harm: str) -> None:
    """Acknowledged bytes are read in order; an append whose answer was lost may be there twice."""
    pieces = [b"%04d" % index for index in range(PIECES)]
    harmed = threading.Thread(target=HARMS[harm], args=(client, cluster, journal))
    with client.read(journal, block=True) as reader:
        for index, piece in enumerate(pieces):
            if index == PIECES // 3:
                harmed.start()
            client.append(journal, piece)
        harmed.join(60)
        head = client.write_head(journal)
        got = reader.read(head)
    found = [got[at : at + 4] for at in range(0, len(got), 4)]
    assert list(dict.fromkeys(found)) == pieces
    assert found == sorted(found)
    assert client.read(journal).read() == got


def test_the_member_that_is_read_from_hangs(client: Client, cluster: EmbeddedCluster, journal: str) -> None:
    """A read moves to another member after the idle timeout, and avoids the hung one for a while."""
    client.append(journal, b"0123456789")
    chosen = reads_from(client, journal)
    broker_at(cluster, chosen).hang()
    assert client.read(journal).read() == b"0123456789"
    assert reads_from(client, journal) != chosen


def test_no_primary_for_a_while(client: Client, cluster: EmbeddedCluster, journal: str) -> None:
    client.append(journal, b"before")
    cluster.hold_slots()
    cluster.primary(journal).kill()
    with pytest.raises(NoJournalPrimaryBrokerError):
        client.append(journal, b"never", timeout_s=1)
    filled = threading.Timer(0.5, cluster.fill_slots)
    filled.start()
    client.append(journal, b" after")
    filled.join()
    assert client.read(journal).read() == b"before after"


def test_without_a_cache_brokers_proxy(cluster: EmbeddedCluster, client: Client, journal: str) -> None:
    (outsider,) = cluster.others(journal)
    with Client(outsider.endpoint, timeout_s=60) as plain:
        plain.append(journal, b"0123")
        assert plain.read(journal).read() == b"0123"
        assert plain.write_head(journal) == 4
        cluster.move_primary(journal)
        plain.append(journal, b"4567")
    with Client(outsider.endpoint, timeout_s=60, route_cache_size=10) as routed:
        assert routed.read(journal).read() == b"01234567"
        assert routed._dialer.for_primary(journal).endpoint.text == cluster.primary(journal).endpoint
