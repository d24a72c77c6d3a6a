"""The Etcd client with TLS and users, and with endpoints of which only some answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gazette_spark.client._transport.credentials import TlsOptions
from gazette_spark.consumer._cluster.etcd import EtcdClient, put, unchanged
from gazette_spark.errors import BrokerError, OptionError, TlsError, UnavailableError
from tests.rig.brokers import DeployedBroker, free_ports
from tests.rig.certificates import Certificates
from tests.rig.etcd import EtcdProcess
from tests.rig.tcp_proxy import TcpProxy, Toxics

pytestmark = pytest.mark.deployed_broker


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[str, TlsOptions]]:
    """The URL of an Etcd whose user ``app`` may use the keys below ``/app``, and the CA to trust."""
    made = Certificates(tmp_path / "certificates")
    etcd = EtcdProcess(tmp_path, made)
    try:
        ask_for_users(etcd)
        yield etcd.url, TlsOptions(ca_file=str(made.ca))
    finally:
        etcd.kill()


def ask_for_users(etcd: EtcdProcess) -> None:
    for user in ("root", "app"):
        etcd.ask("auth/user/add", name=user, password="secret")
        etcd.ask("auth/role/add", name=user)
        etcd.ask("auth/user/grant", user=user, role=user)
    # This is base64 for the range from "/app/" to "/app0".
    allowed = {"permType": "READWRITE", "key": "L2FwcC8=", "range_end": "L2FwcDA="}
    etcd.ask("auth/role/grant", name="app", perm=allowed)
    etcd.ask("auth/enable")


def test_tls_and_a_user(secured: tuple[str, TlsOptions]) -> None:
    url, tls = secured
    with EtcdClient([url], user="app", password="secret", tls=tls) as etcd:
        lease = etcd.grant(5)
        assert etcd.keep_alive(lease.id) == 5
        made = etcd.txn([unchanged("/app/a", 0)], [put("/app/a", b"1", lease.id)])
        header, kvs = etcd.range("/app/")
        assert (header.revision, [kv.value for kv in kvs]) == (made.header.revision, [b"1"])
        cancelled = threading.Event()
        for response in etcd.watch("/app/", made.header.revision, cancelled):
            if response.events:
                assert [event.kv.value for event in response.events] == [b"1"]
                cancelled.set()
        etcd.revoke(lease.id)
        assert etcd.range("/app/")[1] == []
        with pytest.raises(BrokerError, match="permission denied"):
            etcd.range("/other/")
    with (
        EtcdClient([url], user="app", password="wrong", tls=tls) as etcd,
        pytest.raises(OptionError, match="a user and a password that Etcd accepts"),
    ):
        etcd.range("/app/")
    with EtcdClient([url], tls=tls) as etcd, pytest.raises(BrokerError, match="user name is empty"):
        etcd.range("/app/")
    with EtcdClient([url]) as etcd, pytest.raises(TlsError):
        etcd.range("/app/")


def test_a_token_from_before_a_change_of_roles(tmp_path: Path) -> None:
    """Etcd refuses such a JWT until it expires, so the client requests a new one immediately."""
    made = Certificates(tmp_path / "certificates")
    token = f"jwt,priv-key={made.client.key},sign-method=ES256,ttl=10m"
    etcd = EtcdProcess(tmp_path, made, token=token)
    try:
        ask_for_users(etcd)
        with EtcdClient(
            [etcd.url], user="app", password="secret", tls=TlsOptions(ca_file=str(made.ca))
        ) as client:
            assert client.range("/app/")[1] == []
            etcd.token = etcd.ask("auth/authenticate", name="root", password="secret")["token"]
            etcd.ask("auth/role/add", name="another")
            assert client.txn([unchanged("/app/a", 0)], [put("/app/a", b"1")]).succeeded
            cancelled = threading.Event()
            assert next(client.watch("/app/", 0, cancelled)).created
    finally:
        etcd.kill()


def test_a_user_and_an_endpoint_that_hangs(secured: tuple[str, TlsOptions]) -> None:
    url, tls = secured
    with socket.create_server(("127.0.0.1", 0)) as hangs, ThreadPoolExecutor(4) as threads:
        nobody = f"https://127.0.0.1:{hangs.getsockname()[1]}"
        with EtcdClient([nobody, url], user="app", password="secret", tls=tls, call_s=6) as etcd:
            began_s = time.monotonic()
            calls = [
                threads.submit(etcd.txn, [unchanged(f"/app/{number}", 0)], [put(f"/app/{number}", b"1")])
                for number in range(4)
            ]
            assert all(call.result().succeeded for call in calls)
            assert time.monotonic() - began_s < 6
        with EtcdClient([nobody, url], user="app", password="secret", tls=tls, call_s=2) as etcd:
            with pytest.raises(UnavailableError):
                next(etcd.watch("/app/", 0, threading.Event()))
            next(etcd.watch("/app/", 0, threading.Event()))


def test_an_endpoint_that_does_not_answer(deployed_broker: DeployedBroker) -> None:
    (port,) = free_ports(1)
    nobody = f"http://127.0.0.1:{port}"
    with EtcdClient([nobody, deployed_broker.etcd_url], call_s=4) as etcd:
        assert etcd.range("/nothing/")[1] == []
    began_s = time.monotonic()
    with EtcdClient([nobody], call_s=1) as etcd, pytest.raises(UnavailableError, match=nobody):
        etcd.range("/nothing/")
    assert time.monotonic() - began_s < 3


def test_a_transaction_that_was_not_sent(deployed_broker: DeployedBroker) -> None:
    """A transaction that was never sent was not applied, so the next endpoint may get it."""
    (port,) = free_ports(1)
    with EtcdClient([f"http://127.0.0.1:{port}", deployed_broker.etcd_url], call_s=4) as etcd:
        assert etcd.txn([unchanged("/unsent", 0)], [put("/unsent", b"1")]).succeeded


def test_a_lease_may_be_ended_twice(deployed_broker: DeployedBroker) -> None:
    """If the first answer is lost, the next endpoint no longer has the lease."""
    with EtcdClient([deployed_broker.etcd_url]) as etcd:
        lease = etcd.grant(60)
        etcd.revoke(lease.id)
        etcd.revoke(lease.id)
        assert etcd.keep_alive(lease.id) == 0


def test_keys_that_fit_into_no_message(deployed_broker: DeployedBroker) -> None:
    """The keys are read in smaller parts, because specs with thousands of sources can be this large."""
    value = bytes(1_200_000)
    with EtcdClient([deployed_broker.etcd_url]) as etcd:
        lease = etcd.grant(60)
        for number in range(15):
            etcd.txn([], [put(f"/large/{number:02}", value, lease.id)])
        assert [kv.value == value for kv in etcd.range("/large/")[1]] == [True] * 15
        etcd.revoke(lease.id)


def test_a_watch_on_an_endpoint_that_hangs(deployed_broker: DeployedBroker) -> None:
    with (
        TcpProxy(deployed_broker.etcd_url) as proxy,
        EtcdClient([proxy.endpoint, deployed_broker.etcd_url], call_s=1) as etcd,
    ):
        cancelled = threading.Event()
        watched = etcd.watch("/hangs/", 0, cancelled)
        next(watched)  # Now the watch has begun.
        proxy.to_client = proxy.to_server = Toxics(silent=True)
        began_s = time.monotonic()
        with pytest.raises(UnavailableError, match=r"^etcd .* it has not answered for"):
            list(watched)
        assert time.monotonic() - began_s < 4
        revision = etcd.txn([unchanged("/hangs/a", 0)], [put("/hangs/a", b"1")]).header.revision
        for response in etcd.watch("/hangs/", revision, cancelled):
            if response.events:
                cancelled.set()


@pytest.mark.parametrize("endpoints", [[], ["localhost:2379"]])
def test_what_is_no_address(endpoints: list[str]) -> None:
    with pytest.raises(OptionError, match="--etcd"):
        EtcdClient(endpoints)
