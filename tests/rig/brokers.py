"""The real Gazette broker, run for tests.

:class:`DeployedBroker` owns two child processes, etcd and ``gazette serve``, on free ports of
127.0.0.1. They end with the context manager, and also when this process dies in any way: a third
child, the watcher, leads their process group, waits for the end of its standard input, which only
this process holds open, and then kills the group. (``PR_SET_PDEATHSIG`` follows the thread that
started the child, and needs code between fork and exec.)

The programs are made by ``tests/deployed/build.sh``.
"""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import urlsplit

from tests.rig.certificates import Certificates
from tests.rig.gazctl import (
    Binaries,
    BinaryNotFoundError,
    BrokerHandle,
    ProcessError,
    clean_environment,
    find_binaries,
    find_binary,
)

__all__ = [
    "Binaries",
    "BinaryNotFoundError",
    "BrokerHandle",
    "DeployedBroker",
    "ProcessError",
    "find_binaries",
    "find_binary",
    "free_ports",
]

START_TIMEOUT_S = 60.0
"""Maximum seconds until a server answers; half a second is usual."""

STOP_TIMEOUT_S = 10.0
"""Maximum seconds until a killed child process is gone."""

HAND_OVER_TIMEOUT_S = 120.0
"""Maximum seconds for a broker to hand over its journals; its peers try again after a minute."""

START_ATTEMPTS = 3
"""Attempts to start a server; another process may take the free port before the server binds it."""

LOG_TAIL_BYTES = 4096
"""Bytes at the end of a log that an error shows."""


class DeployedBroker(BrokerHandle):
    """A real broker and its Etcd as child processes. A context manager; any thread may use it.

    Args:
        directory: a new folder for data, logs and the file root; it is not removed.
        file_root: existing folder for ``file:///`` stores; made under ``directory`` if not given.
        broker_args: more flags of ``gazette serve``.
        program: name of the broker's program, for one of another version.
        auth_keys: base64 keys, as of ``BROKER_AUTH_KEYS``, by which tokens are asked for and checked.
        certificates: of the broker and of the clients that it takes; None is plain text.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        file_root: Path | str | None = None,
        broker_args: Sequence[str] = (),
        program: str = "gazette",
        auth_keys: str = "",
        certificates: Certificates | None = None,
    ) -> None:
        self.directory = Path(directory).resolve()
        super().__init__("", Path(file_root).resolve() if file_root else self.directory / "fragments")
        self.auth_keys = auth_keys
        self.certificates = certificates
        self._broker_args = tuple(broker_args)
        self._program = program
        self._group: _ProcessGroup | None = None
        self._etcd_url = ""
        self._etcd_prefix = ""
        self._peers: dict[str, _Child] = {}

    def __enter__(self) -> Self:
        binaries = find_binaries()
        self.file_root.mkdir(parents=True, exist_ok=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(START_ATTEMPTS):
            try:
                self._start(binaries, self.directory / f"run-{attempt}")
            except ProcessError:
                self.kill()
                if attempt == START_ATTEMPTS - 1:
                    raise
            except BaseException:
                self.kill()
                raise
            else:
                return self
        raise AssertionError("unreachable")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def log_path(self) -> Path:
        runs = sorted(self.directory.glob("run-*"))
        return (runs[-1] if runs else self.directory) / "gazette.log"

    @property
    def etcd_url(self) -> str:
        return self._etcd_url

    def log_tail(self) -> str:
        return _tail(self.log_path)

    def kill(self) -> None:
        """Kill broker and Etcd by SIGKILL: a single broker with journals never ends on SIGTERM."""
        if self._group is not None:
            self._group.kill()
            self._group = None
            self._peers.clear()

    @property
    def brokers(self) -> list[str]:
        """Endpoints of the brokers whose processes exist, including stopped ones."""
        return [endpoint for endpoint, child in self._peers.items() if child.process.poll() is None]

    def start_peer(self, *, zone: str = "local", port: int = 0, etcd_url: str = "") -> str:
        """Start another broker of the same cluster; return its endpoint.

        Args:
            zone: zone of the broker.
            port: where it listens; by default a free one.
            etcd_url: its address of Etcd; a proxy's address allows a test to separate the two.
        """
        for attempt in range(START_ATTEMPTS):
            try:
                return self._start_peer(zone, port or free_ports(1)[0], etcd_url)
            except ProcessError:
                if attempt == START_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _start_peer(self, zone: str, port: int, etcd_url: str) -> str:
        assert self._group is not None
        peer = BrokerHandle(self._url(port), self.file_root)
        peer.auth_keys, peer.certificates = self.auth_keys, self.certificates
        command = [*self._broker_command(port, etcd_url), f"--broker.zone={zone}"]
        child = self._group.start(f"gazette-{port}", command)
        _wait_ready(child, lambda: _answers(peer))
        self._peers[peer.endpoint] = child
        return peer.endpoint

    def kill_peer(self, endpoint: str) -> None:
        """Kill a broker by SIGKILL; the others notice when its lease expires."""
        child = self._peers.pop(endpoint)
        child.process.kill()
        child.process.wait(STOP_TIMEOUT_S)

    def hang_peer(self, endpoint: str) -> None:
        """Stop a broker by SIGSTOP: its connections stay open, without responses."""
        self._peers[endpoint].process.send_signal(signal.SIGSTOP)

    def resume_peer(self, endpoint: str) -> None:
        """Continue a broker after :meth:`hang_peer`. It exits if its lease has expired meanwhile."""
        self._peers[endpoint].process.send_signal(signal.SIGCONT)

    def retire_peer(self, endpoint: str) -> None:
        """End a broker by SIGTERM, so that it hands over its journals first."""
        child = self._peers.pop(endpoint)
        child.process.terminate()
        child.process.wait(HAND_OVER_TIMEOUT_S)

    def revoke_lease(self, endpoint: str) -> None:
        """Revoke a broker's lease: the others consider it gone, while it still runs."""
        port = endpoint.rpartition(":")[2]
        members = f"{self._etcd_prefix}/members/"
        found = self._etcd("kv/range", key=members, range_end=members[:-1] + "0")["kvs"]
        (lease,) = {
            each["lease"]
            for each in found
            if base64.b64decode(each["key"]).endswith(f"deployed-{port}".encode())
        }
        self._etcd("lease/revoke", ID=lease)

    def _etcd(self, call: str, ID: str = "", **keys: str) -> Any:  # noqa: N803 - Etcd's name.
        body = {name: base64.b64encode(key.encode()).decode() for name, key in keys.items()}
        connection = HTTPConnection(urlsplit(self._etcd_url).netloc, timeout=10)
        try:
            connection.request("POST", f"/v3/{call}", json.dumps(body | ({"ID": ID} if ID else {})))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def _start(self, binaries: Binaries, directory: Path) -> None:
        directory.mkdir()
        self._group = group = _ProcessGroup(directory)
        client_port, peer_port, broker_port = free_ports(3)
        etcd_url = self._etcd_url = f"http://127.0.0.1:{client_port}"
        self._etcd_prefix = f"/gazette/test-{broker_port}"
        etcd = group.start("etcd", _etcd_command(binaries.etcd, directory / "etcd", etcd_url, peer_port))
        _wait_ready(etcd, lambda: _is_healthy(client_port))
        self.endpoint = self._url(broker_port)
        broker = group.start("gazette", self._broker_command(broker_port))
        _wait_ready(broker, lambda: _answers(self))
        self._peers[self.endpoint] = broker

    def _url(self, port: int) -> str:
        return f"http{'s' if self.certificates else ''}://127.0.0.1:{port}"

    def _broker_command(self, port: int, etcd_url: str = "") -> list[str]:
        return [
            str(find_binary(self._program)),
            "serve",
            f"--broker.id=deployed-{port}",
            "--broker.host=127.0.0.1",
            f"--broker.port={port}",
            f"--broker.file-root={self.file_root}",
            # A journal occupies a slot until it is deleted, and tests do not delete their journals.
            "--broker.limit=65536",
            f"--etcd.address={etcd_url or self._etcd_url}",
            f"--etcd.prefix={self._etcd_prefix}",
            "--log.level=info",
            *([f"--broker.auth-keys={self.auth_keys}"] if self.auth_keys else []),
            *(_tls_flags(self.certificates) if self.certificates else []),
            *self._broker_args,
        ]


def _tls_flags(made: Certificates) -> list[str]:
    return [
        f"--broker.server-cert-file={made.server.cert}",
        f"--broker.server-cert-key-file={made.server.key}",
        f"--broker.server-ca-file={made.ca}",
        f"--broker.peer-cert-file={made.client.cert}",
        f"--broker.peer-cert-key-file={made.client.key}",
        f"--broker.peer-ca-file={made.ca}",
    ]


def _answers(broker: BrokerHandle) -> bool:
    try:
        broker.gazctl("journals", "list", "-l", "name=ready/check", "-o", "json")
    except ProcessError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return distinct TCP ports of 127.0.0.1 on which nothing listens."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _etcd_command(binary: Path, data: Path, client_url: str, peer_port: int) -> list[str]:
    peer_url = f"http://127.0.0.1:{peer_port}"
    return [
        str(binary),
        f"--data-dir={data}",
        "--name=test",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=test={peer_url}",
        "--log-level=warn",
        # The data must survive the run, not the machine.
        "--unsafe-no-fsync",
    ]


@dataclass(frozen=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log_path: Path


@dataclass
class _ProcessGroup:
    """Child processes that end together, at the latest with this process.

    The watcher's standard input closes when this process ends, for any reason.
    """

    directory: Path
    _watcher: subprocess.Popen[bytes] | None = None
    _children: list[_Child] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str]) -> _Child:
        if self._watcher is None:
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", "read -r _; kill -KILL 0"], stdin=subprocess.PIPE, process_group=0
            )
        log_path = self.directory / f"{name}.log"
        with log_path.open("wb") as log:
            process = self._popen(command, log)
        child = _Child(name, process, log_path)
        self._children.append(child)
        return child

    def _popen(self, command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        assert self._watcher is not None
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env=clean_environment(),
            process_group=self._watcher.pid,
        )

    def kill(self) -> None:
        for child in self._children:
            child.process.kill()
            child.process.wait(STOP_TIMEOUT_S)
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait(STOP_TIMEOUT_S)
            assert self._watcher.stdin is not None
            self._watcher.stdin.close()
        self._children.clear()
        self._watcher = None


def _wait_ready(child: _Child, is_ready: Callable[[], bool]) -> None:
    deadline = monotonic() + START_TIMEOUT_S
    while not is_ready():
        try:
            code = child.process.wait(timeout=0.05)  # Also the pause between two attempts.
        except subprocess.TimeoutExpired:
            if monotonic() < deadline:
                continue
            problem = f"not ready after {START_TIMEOUT_S:g} s"
        else:
            problem = f"ended with code {code} before it was ready"
        raise ProcessError(child.name, problem, _tail(child.log_path))


def _is_healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    return path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
