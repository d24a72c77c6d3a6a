"""A local cluster whose brokers can be harmed in every way that tests need.

:class:`~gazette_spark.broker.LocalCluster` starts, stops and kills brokers. Here they also hang, are cut off
from each other, and outlive their leases; leases lapse and assignments move when a test says so.
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
    """One broker of a cluster, and the ways to harm it. Any thread may call anything."""

    def __init__(self, cluster: EmbeddedCluster, zone: str, suffix: str) -> None:
        super().__init__(cluster, zone, suffix)
        self._harmed = cluster
        self._freezer = FreezeInterceptor()

    def membership(self, spools: Path) -> BrokerMembership:
        """Return the settings of a member whose calls can be held up and cut off."""
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
        """Whether it hangs or is cut off."""
        return self._freezer.is_shut or not self._harmed.can_talk(self.member, self.member)

    @property
    def can_agree(self) -> bool:
        """Whether it answers the other brokers."""
        return self.is_running and not self.is_harmed

    def stop(self) -> None:
        """Move its journals to other brokers unless it is harmed, and end."""
        if not self.is_harmed:
            super().stop()
            return
        if self.is_running:
            self._freezer.open()
            self.leave()
            self.end()

    def kill(self, *, lease_lapses: bool = True) -> None:
        """End it without a word, as SIGKILL does. Its spools are lost.

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
        """Accept calls and answer none, those under way included."""
        self._freezer.shut()

    def resume(self) -> None:
        """Go on after :meth:`hang` or :meth:`partition`, and join again if the lease lapsed meanwhile."""
        self._freezer.open()
        self._harmed.heal(self.member)
        if self._running is not None and self.member not in self._harmed.keyspace.state.members:
            self._harmed.keyspace.join(self.member, self._running.parts.registry)
            self._harmed.sync()

    def partition(self) -> None:
        """Cut it off from all other brokers, not from clients."""
        self._harmed.cut(self.member)

    def cut_calls(self) -> None:
        """End every call it makes to others."""
        if self._running is not None:
            self._running.parts.peers.cut()

    def cut_calls_to(self, member: Member) -> None:
        """End every call it makes to another."""
        if self._running is not None:
            self._running.parts.peers.cut(member)


class EmbeddedCluster(LocalCluster):
    """A local cluster of brokers that can be harmed."""

    def __init__(self, root: Path | str, *, replication: int | None = 3, **options: Any) -> None:
        """Prepare a cluster; see :class:`~gazette_spark.broker.LocalCluster`."""
        self._lock = threading.Lock()
        self._cut: set[Member] = set()
        super().__init__(root, replication=replication, **options)

    def new_broker(self, zone: str, suffix: str) -> ClusterBroker:
        """Return a broker that is not started yet."""
        return ClusterBroker(self, zone, suffix)

    @property
    def brokers(self) -> Sequence[ClusterBroker]:
        """The brokers, running or not."""
        return cast("Sequence[ClusterBroker]", super().brokers)

    def primary(self, journal: str) -> ClusterBroker:
        """Return the broker that is primary of a journal."""
        return cast("ClusterBroker", super().primary(journal))

    def replicas(self, journal: str) -> Sequence[ClusterBroker]:
        """Return the brokers that replicate a journal without being its primary."""
        return cast("Sequence[ClusterBroker]", super().replicas(journal))

    def others(self, journal: str) -> Sequence[ClusterBroker]:
        """Return the running brokers that have no part in a journal."""
        return cast("Sequence[ClusterBroker]", super().others(journal))

    def stop(self) -> None:
        """Let all brokers go on, then stop them."""
        if self._keyspace is not None:
            for broker in self.brokers:
                broker.resume()
        super().stop()

    close = stop

    def move_primary(self, journal: str, to: ClusterBroker | None = None) -> None:
        """Make another member the primary: the next replica, or ``to``. Appends under way end before.

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
        """Stop assignments: journals whose primary dies have none until :meth:`fill_slots`."""
        self.keyspace.hold_slots()

    def fill_slots(self) -> None:
        """Fill free slots."""
        self.keyspace.fill_slots()
        self.sync()

    def can_talk(self, one: Member, other: Member) -> bool:
        """Whether calls between two brokers go through."""
        with self._lock:
            return one not in self._cut and other not in self._cut

    def cut(self, member: Member) -> None:
        """Cut a broker off from the others."""
        with self._lock:
            self._cut.add(member)
        for broker in self.brokers:
            if broker.member == member:
                broker.cut_calls()
            else:
                broker.cut_calls_to(member)

    def heal(self, member: Member) -> None:
        """Let a broker talk to the others again."""
        with self._lock:
            self._cut.discard(member)


@contextmanager
def _turn(replica: LiveJournal | None) -> Iterator[None]:
    """Hold a journal's turn, once the append that has it is over.

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
