"""A separate Etcd of one member or three, which a test may secure, kill and restart."""

from __future__ import annotations

import signal
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from tests.rig.brokers import free_ports
from tests.rig.certificates import Certificates
from tests.rig.gazctl import find_binary
from tests.waiting import wait_until


class EtcdProcess:
    """One member, which keeps its data and its address when it is killed."""

    def __init__(
        self,
        folder: Path,
        certificates: Certificates | None = None,
        *,
        name: str = "own",
        peers: dict[str, str] | None = None,
        token: str = "simple",
    ) -> None:
        """Start it, and wait until it serves, unless it has ``peers``.

        Args:
            folder: Folder for its data.
            certificates: Certificates to serve clients by TLS.
            name: Name of the member.
            peers: URLs for the other members, by name, its own included.
            token: Kind of the tokens of users, as in ``--auth-token``.
        """
        self.token = ""
        """Token of the administrator, if users are requested."""
        self._certificates = certificates
        client_port, peer_port = free_ports(2)
        scheme = "http" if certificates is None else "https"
        self.name, self.url = name, f"{scheme}://127.0.0.1:{client_port}"
        urls = peers or {name: f"http://127.0.0.1:{peer_port}"}
        self._command = [
            str(find_binary("etcd")), f"--data-dir={folder / name}", f"--name={name}",
            f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={urls[name]}", f"--initial-advertise-peer-urls={urls[name]}",
            "--initial-cluster=" + ",".join(f"{peer}={url}" for peer, url in urls.items()),
            "--log-level=error", "--unsafe-no-fsync", f"--auth-token={token}",
        ]  # fmt: skip
        if certificates is not None:
            pair = certificates.server
            self._command += [f"--cert-file={pair.cert}", f"--key-file={pair.key}"]
        self._process = subprocess.Popen(self._command)
        if peers is None:
            self.wait_serves()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)
        self.wait_serves()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def wait_serves(self) -> None:
        """Wait until it responds, which means that it has joined the others."""
        wait_until(f"{self.name} serves", self._serves)

    def ask(self, call: str, **fields: object) -> dict[str, Any]:
        # Loading all certificate authorities of the machine would take longer than the call.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._certificates is not None:
            context.load_verify_locations(str(self._certificates.ca))
        with httpx.Client(verify=context) as client:
            headers = {"Authorization": self.token} if self.token else {}
            response = client.post(f"{self.url}/v3/{call}", json=fields, headers=headers).raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    def _serves(self) -> bool:
        with suppress(httpx.HTTPError):
            self.ask("maintenance/status")
            return True
        return False


class EtcdCluster:
    """Three members, of which any two are enough. A context manager that kills all of them on exit."""

    def __init__(self, folder: Path) -> None:
        peers = {
            f"etcd-{number}": f"http://127.0.0.1:{port}" for number, port in enumerate(free_ports(3), start=1)
        }
        self.members = [EtcdProcess(folder, name=name, peers=peers) for name in peers]
        self.urls = [member.url for member in self.members]
        try:
            for member in self.members:
                member.wait_serves()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for member in self.members:
            member.kill()

    def leader(self) -> EtcdProcess:
        """Return the leader, once all members agree on it. All members must be running."""
        leaders: list[EtcdProcess] = []

        def agree() -> bool:
            with suppress(httpx.HTTPError):
                statuses = [member.ask("maintenance/status") for member in self.members]
                ids = [status["header"]["member_id"] for status in statuses]
                named = {status.get("leader", "0") for status in statuses}
                leaders[:] = [self.members[ids.index(leader)] for leader in named if leader in ids]
                return len(named) == len(leaders) == 1
            return False

        wait_until("the members of Etcd agree on a leader", agree)
        return leaders[0]

    def move_leader(self) -> None:
        leader = self.leader()
        other = self.members[self.members.index(leader) - 1]
        target = other.ask("maintenance/status")["header"]["member_id"]
        leader.ask("maintenance/transfer-leadership", targetID=target)
        assert self.leader() is other
