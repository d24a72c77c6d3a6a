"""A client that follows routes appends and reads like one that does not, on brokers that return them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gazette_spark import Client
from tests.conformance.wire import spec, wait_for
from tests.rig.brokers import BrokerHandle, DeployedBroker

pytestmark = pytest.mark.brokers("embedded", "deployed")

JOURNALS = 9
LINES = [b"line %04d\n" % index for index in range(200)]


@pytest.fixture
def routed(broker: BrokerHandle) -> Iterator[Client]:
    """A client of ``broker`` that follows routes, all of which name that broker."""
    with Client(broker.endpoint, timeout_s=30, route_cache_size=100) as opened:
        yield opened


def test_stored_fragments_are_read_whichever_way(
    broker: BrokerHandle, routed: Client, journal_name: str
) -> None:
    """The routed client forbids proxying; it still gets all bytes, with and without the store's root."""
    routed.create_journals(spec(journal_name, length=1024))
    for line in LINES:
        routed.append(journal_name, line * 10)
    expected = b"".join(line * 10 for line in LINES)
    wait_for(lambda: routed.list_fragments(journal_name)[0].fragment.mod_time, "stored fragment")
    assert routed.read(journal_name).read() == expected
    with Client(broker.endpoint, route_cache_size=100, fragment_root=str(broker.file_root)) as direct:
        assert direct.read(journal_name).read() == expected
        assert direct.write_head(journal_name) == len(expected)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedBroker]:
    directory = tmp_path_factory.mktemp("cluster")
    with DeployedBroker(directory, broker_args=["--etcd.lease=3s"]) as broker:
        yield broker


@pytest.mark.deployed_broker
def test_each_journal_is_called_where_it_is(cluster: DeployedBroker, fresh_prefix: str) -> None:
    peers = {cluster.start_peer(zone=zone) for zone in ("one", "two")}
    names = [f"{fresh_prefix}{index}" for index in range(JOURNALS)]
    with Client(cluster.endpoint, timeout_s=60, route_cache_size=100, zone="one") as client:
        client.create_journals(*(spec(name) for name in names))
        for name in names:
            client.append(name, name.encode())
            assert client.read(name).read() == name.encode()
            assert client.write_head(name) == len(name)
        homes = {
            each.spec.name: each.route.endpoints[0] for each in client.list_journals(f"prefix={fresh_prefix}")
        }
        assert set(homes.values()) & peers, "all journals are with the broker that was asked"
        dialer = client._dialer
        assert {name: dialer.for_primary(name).endpoint.text for name in names} == homes
        assert {name: dialer.for_member(name).endpoint.text for name in names} == homes
    for peer in peers:
        cluster.kill_peer(peer)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.deployed_broker
def test_the_primary_is_killed(cluster: DeployedBroker, fresh_prefix: str) -> None:
    peers = [cluster.start_peer(zone=zone) for zone in ("one", "two")]
    names = [f"{fresh_prefix}{index}" for index in range(JOURNALS)]
    with Client(cluster.endpoint, timeout_s=90, idle_timeout_s=5, route_cache_size=100) as client:
        client.create_journals(*(spec(name, replication=2) for name in names))
        primaries = {name: client._dialer.for_primary(name).endpoint.text for name in names}
        name, primary = next((name, primary) for name, primary in primaries.items() if primary in peers)
        with client.read(name, block=True) as reader:
            client.append(name, b"before")
            assert reader.read(6) == b"before"
            cluster.kill_peer(primary)
            client.append(name, b" after")
            assert reader.read(6) == b" after"
        assert client._dialer.for_primary(name).endpoint.text != primary
        assert client.read(name).read() == b"before after"
