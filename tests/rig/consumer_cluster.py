"""Members of a consumer cluster as processes, of Gazette and of ours, that fail at random and restart."""

from __future__ import annotations

import logging
import os
import random
import signal
import statistics
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

log = logging.getLogger(__name__)

LEASE_S = 5
"""Lease, in seconds, of members that tests remove."""

SERVED_S = LEASE_S + 5
"""Maximum seconds until each shard has a primary again."""

LEASE_GONE = b'failed to announce key (will retry)" err="etcdserver: requested lease not found'
"""A member of Gazette's with this line in its log never joins."""


class MemberProcess:
    """A member that restarts with its own arguments whenever it ends, as under a supervisor."""

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
            # Gazette's program serves until its standard input closes.
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def supervise(self) -> None:
        # Gazette's members (v0.103.0) announce themselves with the same lease for ever, even after it ended.
        if LEASE_GONE in self._log.read_bytes().rpartition(b"\ntime=")[2]:
            self.end()
            with self._log.open("ab") as log:
                log.write(b"\ntime= The rig has killed this member.\n")
        if self._process.poll() is not None:
            self._reap()
            self._process = self._start()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def _reap(self) -> None:
        self._process.wait(END_S)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reap()


def our_member(
    name: str, broker: BrokerHandle, etcd_urls: Sequence[str], prefix: str, specs: Path
) -> list[str]:
    app = "gazette_spark.consumer.examples.stream_sum:StreamSum"
    return [
        sys.executable, "-m", "gazette_spark.cli", "consumer", "serve", app, "--port", "0",
        "--specs", str(specs), "--broker", broker.endpoint, "--prefix", prefix,
        "--id", name, "--lease", str(LEASE_S), "--zone", f"zone-{name[-1]}", "--max-restart-delay", "2",
        *(argument for url in etcd_urls for argument in ("--etcd", url)),
    ]  # fmt: skip


def go_member(name: str, broker: BrokerHandle, etcd_url: str, prefix: str) -> list[str | Path]:
    """Return the command of a member of Gazette's, which sums streams.

    It gets the addresses of the other members from Etcd.
    """
    return [
        find_binary("goclient"), "consume", f"--sums={SUMS_JOURNAL}", f"--broker={broker.endpoint}",
        f"--etcd={etcd_url}", f"--auth-keys={KEYS}", f"--prefix={prefix}", f"--id={name}",
        f"--lease={LEASE_S}s", f"--zone=zone-{name[-1]}",
    ]  # fmt: skip


class Observer:
    def __init__(self, etcd_urls: Sequence[str], prefix: str) -> None:
        self._etcd = EtcdClient(etcd_urls, call_s=1)
        self.mirror = ClusterMirror(self._etcd, prefix)
        self.mirror.start()

    def close(self) -> None:
        self.mirror.close()
        self._etcd.close()

    def leases(self, name: str) -> set[int]:
        return {member.lease for member in self.mirror.state.members.values() if member.suffix == name}

    def leader(self) -> str:
        members = self.mirror.state.members.values()
        return min(members, key=lambda member: member.create_revision).suffix if members else ""

    def primary(self, shard: str) -> str:
        """Return the name of the primary member of a shard; empty if there is none."""
        for assignment in self.mirror.state.by_shard.get(shard, ()):
            if assignment.slot == 0 and assignment.code == pc.ReplicaStatus.PRIMARY:
                return assignment.suffix
        return ""

    def missing(self, lost: set[int] | None = None) -> list[str]:
        """Return the shards without a running primary, leases in ``lost`` excluded."""
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
        """Return whether there are that many shards, each with a running primary."""
        return len(self.mirror.state.items) == shards and not self.missing()

    def wait_joined(self, members: Sequence[MemberProcess], timeout_s: float = 60) -> None:
        until_s = time.monotonic() + timeout_s
        while len(self.mirror.state.members) < len(members):
            assert time.monotonic() < until_s, f"not all are members: {self.mirror.state.members}"
            for member in members:
                member.supervise()
            threading.Event().wait(0.05)

    def wait_served(
        self, members: Sequence[MemberProcess], lost: set[int], timeout_s: float, *, at_least_s: float = 0.0
    ) -> float:
        """Supervise until each shard has a running primary, for at least a given time.

        Args:
            members: All members.
            lost: Leases that count no more.
            timeout_s: Longest that a shard may have no primary.
            at_least_s: Shortest time to look.

        Returns:
            The longest time that a shard had no primary, in seconds.
        """
        began_s = now_s = time.monotonic()
        missing_since_s: dict[str, float] = {}
        longest_s = 0.0
        while True:
            missing_since_s = {shard: missing_since_s.get(shard, now_s) for shard in self.missing(lost)}
            longest_s = max([longest_s, *(now_s - since_s for since_s in missing_since_s.values())])
            assert longest_s <= timeout_s, (
                f"{sorted(missing_since_s)} had no primary for {longest_s:.1f} s: {self.mirror.state}"
            )
            if not missing_since_s and now_s - began_s >= at_least_s:
                return longest_s
            for member in members:
                member.supervise()
            threading.Event().wait(0.05)
            now_s = time.monotonic()

    def wait_steady(self, members: Sequence[MemberProcess], hot_standbys: int, timeout_s: float = 60) -> None:
        """Supervise until each shard's primary runs and it has the given number of caught-up standbys."""
        until_s = time.monotonic() + timeout_s
        while not self.is_steady(hot_standbys):
            state = self.mirror.state
            assert time.monotonic() < until_s, f"standbys have not caught up: {state.by_shard}"
            failed = {
                assignment.suffix
                for assignment in state.assignments
                if assignment.code == pc.ReplicaStatus.FAILED
            }
            for member in members:
                # Gazette's members do not start a shard again that failed, for example because Etcd's leader
                # changed during the call that reads its hints.
                if member.name in failed and member.name.startswith("go-"):
                    member.end()
                member.supervise()
            threading.Event().wait(0.05)

    def is_steady(self, hot_standbys: int) -> bool:
        """Return whether each shard's primary runs and it has the given number of caught-up standbys."""
        state = self.mirror.state
        consistent = (pc.ReplicaStatus.STANDBY, pc.ReplicaStatus.PRIMARY)
        return not self.missing() and all(
            sum(assignment.code in consistent for assignment in state.by_shard.get(shard, ()))
            == 1 + hot_standbys
            for shard in state.items
        )


@contextmanager
def running(members: Sequence[MemberProcess]) -> Iterator[None]:
    try:
        yield
    finally:
        for member in members:
            member.end()


def log_times(what: str, seconds: Sequence[float]) -> None:
    p99 = statistics.quantiles(seconds, n=100, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    log.info(
        "%s: %d times, p50 %.1f s, p99 %.1f s, most %.1f s",
        what,
        len(seconds),
        statistics.median(seconds),
        p99,
        max(seconds),
    )


def fail(member: MemberProcess, fault: str) -> None:
    """Fail a member in one way; afterwards it is back, or starting."""
    if fault == "SIGSTOP":
        member.send(signal.SIGSTOP)
        threading.Event().wait(LEASE_S + random.uniform(0.5, 3))
        member.send(signal.SIGCONT)
        return
    member.send(signal.Signals[fault])
