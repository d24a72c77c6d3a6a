"""Background appends get through a broken network, whole and in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.errors import AuthError, JournalNotFoundError
from tests.conformance.wire import spec
from tests.rig.brokers import BrokerHandle, DeployedBroker
from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics

pytestmark = pytest.mark.brokers("embedded", "deployed")

SOON = 60
"""Maximum seconds until an expected event."""

RESETS = {"embedded": 100, "cluster": 25, "deployed": 25}
"""Number of resets by broker in `make soak`; `make test` runs a fifth of them.

The real broker takes ten times as long to notice a reset, and the replicas of a cluster have to agree.
"""


@pytest.fixture
def journals(client: Client, fresh_prefix: str) -> list[str]:
    names = [f"{fresh_prefix}part-{each}" for each in range(3)]
    client.create_journals(*map(journal_spec, names))
    return names


@pytest.fixture
def proxy(broker: BrokerHandle) -> Iterator[TcpProxy]:
    with TcpProxy(broker.endpoint) as opened:
        yield opened


def lines_of(client: Client, journal: str) -> list[bytes]:
    """Return the lines of a journal in order, each once, because lost answers lead to repeats."""
    content = client.read(journal, end_offset=client.write_head(journal)).read() or b""
    return list(dict.fromkeys(content.splitlines(keepends=True)))


def a_line(serial: int, size: int) -> bytes:
    """Return a line whose content shows where it was cut."""
    return b"%d " % serial + b"%d," % serial * (size // 5) + b"\n"


@pytest.mark.parametrize("share", [0.2, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("way", ["bytes sent", "bytes received"])
def test_resets_at_random_bytes(
    broker: BrokerHandle,
    client: Client,
    journals: list[str],
    *,
    way: str,
    share: float,
    request: pytest.FixtureRequest,
) -> None:
    choose = random.Random(5)

    def plan(_: int) -> tuple[Toxics, Toxics]:
        if way == "bytes sent":
            return CLEAN, Toxics(limit_bytes=choose.randrange(20_000))
        return Toxics(limit_bytes=choose.randrange(200, 2_000)), CLEAN

    serial = 0
    with (
        TcpProxy(broker.endpoint, plan) as proxy,
        Client(proxy.endpoint, timeout_s=SOON, connect_timeout_s=SOON) as spoiled,
        AppendService(spoiled) as service,
    ):
        while proxy.connections < share * RESETS[request.node.callspec.params["broker"]]:
            appends = []
            for journal in journals:
                serial += 1
                appends.append(service.append(journal, a_line(serial, choose.randrange(4_000))))
            for each in appends:
                each.result(SOON)
    found = [lines_of(client, journal) for journal in journals]
    for at, lines in enumerate(found):
        assert [int(line.split()[0]) for line in lines] == list(range(at + 1, serial + 1, len(journals)))
        assert all(line == a_line(int(line.split()[0]), 5 * line.count(b",")) for line in lines)


def test_a_half_open_connection(broker: BrokerHandle, client: Client, journals: list[str]) -> None:
    """A silent connection costs part of the deadline, but the journal accepts later appends."""
    silent = (Toxics(silent=True), Toxics(silent=True))
    with (
        TcpProxy(broker.endpoint) as proxy,
        Client(proxy.endpoint, timeout_s=4, connect_timeout_s=4) as spoiled,
        AppendService(spoiled) as service,
    ):
        service.append(journals[0], b"before\n").result(SOON)
        proxy.to_client, proxy.to_server = silent
        first = service.append(journals[0], b"during\n")
        with pytest.raises(TimeoutError):
            first.result(0.05)
        proxy._plan = lambda _: (CLEAN, CLEAN)
        first.result(SOON)
        service.append(journals[0], b"after\n").result(SOON)
    assert lines_of(client, journals[0]) == [b"before\n", b"during\n", b"after\n"]


def test_a_broker_that_is_away_for_a_while(proxy: TcpProxy, client: Client, journals: list[str]) -> None:
    with Client(proxy.endpoint, timeout_s=SOON) as spoiled, AppendService(spoiled) as service:
        service.append(journals[0], b"0\n").result(SOON)
        proxy.down()
        for serial in range(1, 100):
            service.append(journals[serial % 3], b"%d\n" % serial)
        assert len(service.pending_except("")) == 3
        proxy.up()
        service.flush(SOON)
    for at, journal in enumerate(journals):
        assert lines_of(client, journal) == [b"%d\n" % serial for serial in range(at, 100, 3)]


@pytest.mark.parametrize("slice_bytes", [1, 1000], ids=["one byte", "a thousand"])
def test_small_slices(proxy: TcpProxy, client: Client, journals: list[str], slice_bytes: int) -> None:
    proxy.to_server = proxy.to_client = Toxics(slice_bytes=slice_bytes)
    content = random.Random(7).randbytes(slice_bytes * 3_000)
    with Client(proxy.endpoint, timeout_s=SOON) as spoiled, AppendService(spoiled) as service:
        service.append(journals[0], content).result(SOON)
    assert client.read(journals[0], end_offset=len(content)).read() == content


@pytest.mark.parametrize("keys", ["", "b3RoZXIgc2VjcmV0", "c2VjcmV0"], ids=["none", "others", "shared"])
def test_a_refused_token_fails_at_once(tmp_path: Path, keys: str) -> None:
    with EmbeddedBroker(tmp_path, auth_keys="c2VjcmV0") as broker:
        with Client(broker.endpoint, auth_keys="c2VjcmV0") as owner:
            owner.create_journals(journal_spec("a/journal"))
        with Client(broker.endpoint, auth_keys=keys or None) as client, AppendService(client) as service:
            append = service.append("a/journal", b"x")
            if keys == "c2VjcmV0":
                assert append.result(SOON).end == 1
            else:
                with pytest.raises((AuthError, JournalNotFoundError)) as caught:
                    append.result(SOON)
                assert not caught.value.retryable


@pytest.mark.slow
@pytest.mark.deployed_broker
def test_a_primary_is_killed(tmp_path: Path, fresh_prefix: str) -> None:
    name = f"{fresh_prefix}journal"
    with DeployedBroker(tmp_path, broker_args=["--etcd.lease=3s"]) as cluster:
        peers = [cluster.start_peer(zone=zone) for zone in ("one", "two")]
        with Client(cluster.endpoint, timeout_s=90, route_cache_size=100) as client:
            names = [f"{name}-{each}" for each in range(6)]
            client.create_journals(*(spec(each, replication=2) for each in names))
            with AppendService(client) as service:
                for serial in range(300):
                    appended = [service.append(each, a_line(serial, 100)) for each in names]
                    if serial == 100:
                        appended[0].result(SOON)
                        cluster.kill_peer(peers[0])
            for each in names:
                assert lines_of(client, each) == [a_line(serial, 100) for serial in range(300)]
