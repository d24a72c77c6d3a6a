"""An Etcd of its own, which a test may secure, kill and start again."""

from __future__ import annotations

import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import httpx

from tests.rig.brokers import free_ports
from tests.rig.certificates import Certificates
from tests.rig.gazctl import find_binary
from tests.waiting import wait_until


class EtcdProcess:
    """One member, which keeps its data and its address when it is killed."""

    def __init__(self, folder: Path, certificates: Certificates | None = None) -> None:
        """Start it."""
        self._certificates = certificates
        client_port, peer_port = free_ports(2)
        scheme = "http" if certificates is None else "https"
        self.url, peer_url = f"{scheme}://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
        self._command = [
            str(find_binary("etcd")), f"--data-dir={folder / 'etcd'}", "--name=own",
            f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=own={peer_url}", "--log-level=error", "--unsafe-no-fsync",
        ]  # fmt: skip
        if certificates is not None:
            pair = certificates.server
            self._command += [f"--cert-file={pair.cert}", f"--key-file={pair.key}"]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._process = subprocess.Popen(self._command)
        wait_until("Etcd serves", self._serves)

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def ask(self, call: str, **fields: object) -> None:
        """Make a call as an administrator."""
        trusted = self._certificates and ssl.create_default_context(cafile=str(self._certificates.ca))
        with httpx.Client(verify=trusted or True) as client:
            client.post(f"{self.url}/v3/{call}", json=fields).raise_for_status()

    def _serves(self) -> bool:
        with suppress(httpx.HTTPError):
            self.ask("maintenance/status")
            return True
        return False
