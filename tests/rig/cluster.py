"""A local cluster whose brokers tests can harm in every way they need.

:class:`~gazette_spark.broker.LocalCluster` starts, stops and kills brokers. Here brokers also hang, are cut
off from each other, and outlive their leases. Leases expire and assignments move when a test says so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, cast

from gazette_spark._server.topology import Member
from gazette_spark.broker import LocalBroker, LocalCluster
from gazette_spark.broker.cluster import HAND_OVER_TIMEOUT_S
from gazette_spark.broker.journal import LiveJournal
from gazette_spark.broker.settings import BrokerMembership
from tests.rig.freeze import FreezeInterceptor


class ClusterBroker(LocalBroker):
    """One broker of a cluster, and the ways to harm it. All methods are thread-safe."""

    def __init__(self, cluster: EmbeddedCluster, zone: str, suffix: str) -> None:
        super().__init__(cluster, zone, suffix)
        self._harmed = cluster
        self._freezer = FreezeInterceptor()

    def membership(self, spools: Path) -> BrokerMembership:
        """Return the settings of a member whose calls can be delayed and cut off."""
        self._freezer.open()
        return BrokerMembership(
            self._harmed.keyspace,
            spools,
            zone=self.zone,
            suffix=self.suffix,
            interceptors=(self._freezer,),
            is_reachable=lambda other: self._harmed.can_talk(self.member, other),
        )

    @property
    def is_harmed(self) -> bool:
        return self._freezer.is_shut or not self._harmed.can_talk(self.member, self.member)

    @property
    def can_agree(self) -> bool:
        return self.is_running and not self.is_harmed

    def stop(self) -> None:
        """Move its journals to other brokers unless it is harmed, and stop."""
        if not self.is_harmed:
            super().stop()
            return
        if self.is_running:
            self._freezer.open()
            self.leave()
            self.end()

    def kill(self, *, lease_lapses: bool = True) -> None:
        """Stop without any notice, as after SIGKILL. Its spools are lost.

        Args:
            lease_lapses: whether the others learn of it now, or not before :meth:`leave`.
        """
        self._freezer.open()
        if lease_lapses:
            super().kill()
        elif self._running is not None:
            running, self._running = self._running, None
            running.kill()

    def hang(self) -> None:
        """Accept calls without responding, including those in progress."""
        self._freezer.shut()

    def resume(self) -> None:
        """Continue after :meth:`hang` or :meth:`partition`, and rejoin if the lease has expired meanwhile."""
        self._freezer.open()
        self._harmed.heal(self.member)
        if self._running is not None and self.member not in self._harmed.keyspace.state.members:
            self._harmed.keyspace.join(self.member, self._running.parts.registry)
            self._harmed.sync()

    def partition(self) -> None:
        """Cut it off from all other brokers, but not from clients."""
        self._harmed.cut(self.member)

    def cut_calls(self) -> None:
        if self._running is not None:
            self._running.parts.peers.cut()

    def cut_calls_to(self, member: Member) -> None:
        if self._running is not None:
            self._running.parts.peers.cut(member)


class EmbeddedCluster(LocalCluster):
    def __init__(self, root: Path | str, *, replication: int | None = 3, **options: Any) -> None:
        self._lock = threading.Lock()
        self._cut: set[Member] = set()
        super().__init__(root, replication=replication, **options)

    def new_broker(self, zone: str, suffix: str) -> ClusterBroker:
        return ClusterBroker(self, zone, suffix)

    @property
    def brokers(self) -> Sequence[ClusterBroker]:
        return cast("Sequence[ClusterBroker]", super().brokers)

    def primary(self, journal: str) -> ClusterBroker:
        return cast("ClusterBroker", super().primary(journal))

    def replicas(self, journal: str) -> Sequence[ClusterBroker]:
        """Return the brokers that replicate a journal without being its primary."""
        return cast("Sequence[ClusterBroker]", super().replicas(journal))

    def others(self, journal: str) -> Sequence[ClusterBroker]:
        """Return the running brokers without a replica of a journal."""
        return cast("Sequence[ClusterBroker]", super().others(journal))

    def stop(self) -> None:
        if self._keyspace is not None:
            for broker in self.brokers:
                broker.resume()
        super().stop()

    close = stop

    def move_primary(self, journal: str, to: ClusterBroker | None = None) -> None:
        """Make another member the primary: the next replica, or ``to``. Appends in progress end first.

        Raises:
            LookupError: the journal has no such member.
            TimeoutError: an append under way did not end in time.
        """
        present = self.primary(journal)
        chosen = to or next(iter(self.replicas(journal)), None)
        if chosen is None or chosen.member not in self.slots(journal):
            raise LookupError(f"journal {journal} has no such replica")
        with _turn(present.replica(journal)):
            self.keyspace.move_primary(journal, chosen.member)
        self.sync()

    def hold_slots(self) -> None:
        """Suspend assignments, so that journals whose primary dies have none until :meth:`fill_slots`."""
        self.keyspace.hold_slots()

    def fill_slots(self) -> None:
        self.keyspace.fill_slots()
        self.sync()

    def can_talk(self, one: Member, other: Member) -> bool:
        with self._lock:
            return one not in self._cut and other not in self._cut

    def cut(self, member: Member) -> None:
        with self._lock:
            self._cut.add(member)
        for broker in self.brokers:
            if broker.member == member:
                broker.cut_calls()
            else:
                broker.cut_calls_to(member)

    def heal(self, member: Member) -> None:
        with self._lock:
            self._cut.discard(member)


@contextmanager
def _turn(replica: LiveJournal | None) -> Iterator[None]:
    """Hold a journal's turn, once the current append is over.

    Raises:
        TimeoutError: it did not end in time.
    """
    if replica is None:
        yield
        return
    deadline = monotonic() + HAND_OVER_TIMEOUT_S
    alarm = threading.Timer(HAND_OVER_TIMEOUT_S, replica.wake)
    alarm.start()
    try:
        with replica.fair_lock.turn(lambda: monotonic() < deadline and not replica.closed) as granted:
            alarm.cancel()
            if not granted and not replica.closed:
                raise TimeoutError(f"an append to {replica.name} did not end in {HAND_OVER_TIMEOUT_S:g} s")
            yield
    finally:
        alarm.cancel()
