"""Members of a consumer's cluster as processes: of Gazette and of ours, failed at random and restarted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gazette_spark.consumer._cluster.etcd import EtcdClient
from gazette_spark.consumer._cluster.mirror import ClusterMirror
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL
from gazette_spark.protocol import consumer_pb2 as pc
from tests.rig.brokers import BrokerHandle
from tests.rig.gazctl import find_binary
from tests.rig.stream_sum import END_S, KEYS

LEASE_S = 5
"""Leases of members that are to be lost, in seconds."""

SERVED_S = LEASE_S + 10
"""Longest until each shard has a primary again. Half of it is usual; the machine may be busy."""


class MemberProcess:
    """A member that is started again with its own arguments whenever it ends, as by a supervisor."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log
        self.restarts = -1
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.restarts += 1
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CONSUMER_AUTH_KEYS": KEYS}
        with self._log.open("ab") as log:
            # Gazette's program serves until its input ends.
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def supervise(self) -> None:
        """Start it again, if it has ended."""
        if self._process.poll() is not None:
            self._reap()
            self._process = self._start()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Wait until it has ended; return its status."""
        return self._process.wait(timeout_s)

    def _reap(self) -> None:
        self._process.wait(END_S)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """End it in any way."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reap()


def our_member(name: str, broker: BrokerHandle, etcd_url: str, prefix: str, specs: Path) -> list[str]:
    """Return the command of a member of ours, which sums streams."""
    app = "gazette_spark.consumer.examples.stream_sum:StreamSum"
    return [
        sys.executable, "-m", "gazette_spark.cli", "consumer", "serve", app, "--port", "0",
        "--specs", str(specs), "--broker", broker.endpoint, "--etcd", etcd_url, "--prefix", prefix,
        "--id", name, "--lease", str(LEASE_S), "--zone", f"zone-{name[-1]}", "--max-restart-delay", "2",
    ]  # fmt: skip


def go_member(name: str, broker: BrokerHandle, etcd_url: str, prefix: str) -> list[str | Path]:
    """Return the command of a member of Gazette's, which does the same."""
    return [
        find_binary("goclient"), "consume", f"--sums={SUMS_JOURNAL}", f"--broker={broker.endpoint}",
        f"--etcd={etcd_url}", f"--auth-keys={KEYS}", f"--prefix={prefix}", f"--id={name}",
        f"--lease={LEASE_S}s", f"--zone=zone-{name[-1]}",
    ]  # fmt: skip


class Observer:
    """Sees in Etcd who runs what."""

    def __init__(self, etcd_url: str, prefix: str) -> None:
        self._etcd = EtcdClient([etcd_url])
        self.mirror = ClusterMirror(self._etcd, prefix)
        self.mirror.start()

    def close(self) -> None:
        """Look no more."""
        self.mirror.close()
        self._etcd.close()

    def leases(self, name: str) -> set[int]:
        """Return the lease of a member; empty if it is none now."""
        return {member.lease for member in self.mirror.state.members.values() if member.suffix == name}

    def leader(self) -> str:
        """Return the name of the member that came first."""
        members = self.mirror.state.members.values()
        return min(members, key=lambda member: member.create_revision).suffix if members else ""

    def missing(self, lost: set[int] | None = None) -> list[str]:
        """Return the shards that have no primary that runs, leases that are ``lost`` left out."""
        state = self.mirror.state
        running = {
            assignment.shard
            for assignment in state.assignments
            if assignment.slot == 0
            and assignment.code == pc.ReplicaStatus.PRIMARY
            and assignment.lease not in (lost or ())
        }
        return sorted(state.items.keys() - running)

    def serves(self, shards: int) -> bool:
        """Return whether there are so many shards, and each has a primary that runs."""
        return len(self.mirror.state.items) == shards and not self.missing()

    def wait_joined(self, members: Sequence[MemberProcess], timeout_s: float = 60) -> None:
        """Supervise until all are members."""
        until_s = time.monotonic() + timeout_s
        while len(self.mirror.state.members) < len(members):
            assert time.monotonic() < until_s, f"not all are members: {self.mirror.state.members}"
            for member in members:
                member.supervise()
            threading.Event().wait(0.05)

    def wait_served(self, members: Sequence[MemberProcess], lost: set[int], timeout_s: float) -> float:
        """Supervise until each shard has a primary that runs; return the seconds that it took."""
        began_s = time.monotonic()
        while missing := self.missing(lost):
            for member in members:
                member.supervise()
            if (took_s := time.monotonic() - began_s) > timeout_s:
                raise AssertionError(f"after {took_s:.1f} s, {missing} have no primary: {self.mirror.state}")
            threading.Event().wait(0.05)
        return time.monotonic() - began_s


@contextmanager
def running(members: Sequence[MemberProcess]) -> Iterator[None]:
    """End all members at the end."""
    try:
        yield
    finally:
        for member in members:
            member.end()


def fail(member: MemberProcess, fault: str) -> None:
    """Fail a member in one way; it is back afterwards, or starting."""
    if fault == "SIGSTOP":
        member.send(signal.SIGSTOP)
        threading.Event().wait(LEASE_S + random.uniform(0.5, 3))
        member.send(signal.SIGCONT)
        return
    member.send(signal.Signals[fault])
