"""The client of Etcd: one that asks for TLS and users, and endpoints of which not all answer."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from gazette_spark.client._transport.credentials import TlsOptions
from gazette_spark.consumer._cluster.etcd import EtcdClient, put, unchanged
from gazette_spark.errors import BrokerError, OptionError, TlsError, UnavailableError
from tests.rig.brokers import DeployedBroker, free_ports
from tests.rig.certificates import Certificates
from tests.rig.gazctl import find_binary
from tests.waiting import wait_until

pytestmark = pytest.mark.deployed_broker


class SecuredEtcd:
    """An Etcd with a certificate, whose user ``app`` may use the keys below ``/app``."""

    def __init__(self, folder: Path) -> None:
        made = Certificates(folder / "certificates")
        self.ca = str(made.ca)
        client_port, peer_port = free_ports(2)
        self.url, peer_url = f"https://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
        command = [
            str(find_binary("etcd")), f"--data-dir={folder / 'etcd'}", "--name=secured",
            f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=secured={peer_url}", "--log-level=error", "--unsafe-no-fsync",
            f"--cert-file={made.server.cert}", f"--key-file={made.server.key}",
        ]  # fmt: skip
        self.process = subprocess.Popen(command)

    def ask(self, call: str, **fields: object) -> None:
        """Make a call of an administrator."""
        with httpx.Client(verify=ssl.create_default_context(cafile=self.ca)) as client:
            client.post(f"{self.url}/v3/{call}", json=fields).raise_for_status()

    def is_up(self) -> bool:
        """Return whether it answers."""
        with suppress(httpx.HTTPError):
            self.ask("maintenance/status")
            return True
        return False


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredEtcd]:
    """An Etcd that asks for users."""
    etcd = SecuredEtcd(tmp_path)
    try:
        wait_until("it serves", etcd.is_up)
        for user in ("root", "app"):
            etcd.ask("auth/user/add", name=user, password="secret")
            etcd.ask("auth/role/add", name=user)
            etcd.ask("auth/user/grant", user=user, role=user)
        # In base64: from "/app/" up to "/app0".
        allowed = {"permType": "READWRITE", "key": "L2FwcC8=", "range_end": "L2FwcDA="}
        etcd.ask("auth/role/grant", name="app", perm=allowed)
        etcd.ask("auth/enable")
        yield etcd
    finally:
        etcd.process.kill()
        etcd.process.wait(10)


def test_tls_and_a_user(secured: SecuredEtcd) -> None:
    """Who has both reads, writes, watches and holds a lease; others are told what is missing."""
    tls = TlsOptions(ca_file=secured.ca)
    with EtcdClient([secured.url], user="app", password="secret", tls=tls) as etcd:
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
        EtcdClient([secured.url], user="app", password="wrong", tls=tls) as etcd,
        pytest.raises(OptionError, match="a user and a password that Etcd accepts"),
    ):
        etcd.range("/app/")
    with EtcdClient([secured.url], tls=tls) as etcd, pytest.raises(BrokerError, match="user name is empty"):
        etcd.range("/app/")
    with EtcdClient([secured.url]) as etcd, pytest.raises(TlsError):
        etcd.range("/app/")


def test_an_endpoint_that_does_not_answer(deployed_broker: DeployedBroker) -> None:
    """The next one is called; if none answers, the error names the address, in time."""
    (port,) = free_ports(1)
    nobody = f"http://127.0.0.1:{port}"
    with EtcdClient([nobody, deployed_broker.etcd_url], call_s=4) as etcd:
        assert etcd.range("/nothing/")[1] == []
    began_s = time.monotonic()
    with EtcdClient([nobody], call_s=1) as etcd, pytest.raises(UnavailableError, match=nobody):
        etcd.range("/nothing/")
    assert time.monotonic() - began_s < 3


@pytest.mark.parametrize("endpoints", [[], ["localhost:2379"]])
def test_what_is_no_address(endpoints: list[str]) -> None:
    """It is refused before anything is called."""
    with pytest.raises(OptionError, match="--etcd"):
        EtcdClient(endpoints)
