"""Runs several embedded brokers in this process, as one cluster that replicates.

``EmbeddedBroker.start(root, replicas=3)`` makes one. When a broker is killed, appends and reads continue::

    with EmbeddedBroker.start(root, replicas=3) as cluster, Client(cluster.endpoint) as client:
        client.create_journals(journal_spec("shop/orders"))
        client.append("shop/orders", b"one ")
        cluster.primary("shop/orders").kill()
        client.append("shop/orders", b"two ")

What is real: each broker has a separate port; journals have a primary and replicas, which replicate with the
Replicate RPC; calls are proxied, refused and re-routed by Gazette's rules; a replica that becomes primary has
every acknowledged byte in its spool.

What is not:

* Etcd. A :class:`~gazette_spark.broker.keyspace.Keyspace` in this process replaces it, so the other brokers
  learn immediately that a broker has died.
* The machine. All brokers share a process, its interpreter and its disk, so nothing here is faster or safer
  than one broker. To kill a broker means to stop its threads.
* Durability. As in Gazette, bytes that are not stored yet are lost with their last replica. A killed broker
  loses its spools, and so does the whole cluster when it is stopped, after storing what it can.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gazette_spark._server.serving import stop_at_exit
from gazette_spark._server.topology import Member, Slots, assign
from gazette_spark.broker.journal import LiveJournal
from gazette_spark.broker.registry import JOURNALS, JournalKeyspace, replica_count
from gazette_spark.broker.replication.pipeline import ReplicationError
from gazette_spark.broker.settings import BrokerMembership, StorageSettings
from gazette_spark.broker.single import SingleBroker
from gazette_spark.broker.storage.fragment_store import STATE_DIRECTORY
from gazette_spark.errors import OptionError
from gazette_spark.protocol import protocol_pb2 as pb

_log = logging.getLogger(__name__)

PULSE_INTERVAL_S = 1.0
"""Seconds between checks of an idle journal. Gazette's interval is a minute, which is too long for a test."""

HAND_OVER_TIMEOUT_S = 20.0
"""Time limit for handing a journal over, and for storing its fragments."""


class LocalBroker:
    """One broker of a local cluster: it can be stopped, killed and started again, by any thread."""

    def __init__(self, cluster: LocalCluster, zone: str, suffix: str) -> None:
        self.zone = zone
        self.suffix = suffix
        self._cluster = cluster
        self._port = 0
        self._running: SingleBroker | None = None

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopped"
        return f"LocalBroker({self.suffix!r}, {self.endpoint}, {state})"

    @property
    def is_running(self) -> bool:
        """Whether the broker runs: it was started, and neither stopped nor killed since."""
        return self._running is not None

    @property
    def endpoint(self) -> str:
        """Address of the broker, which does not change when the broker is started again."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def gateway_endpoint(self) -> str | None:
        """Address of its HTTP gateway, if it runs and has one."""
        return None if self._running is None else self._running.gateway_endpoint

    @property
    def member(self) -> Member:
        """The broker as a member in assignments."""
        return Member(self.zone, self.suffix, self.endpoint)

    def replica(self, journal: str) -> LiveJournal | None:
        """Return its replica of a journal, for inspection by a test."""
        return self._running.parts.registry.get(journal) if self._running is not None else None

    def start(self) -> None:
        """Start the broker with empty spools, at its previous port. If it is running, this does nothing."""
        if self._running is not None:
            return
        # A killed broker whose lease has not expired is still a member. With the same name, it would be
        # assigned journals whose bytes it no longer has.
        if self._port and self.member in self._cluster.keyspace.state.members:
            self.leave()
        spools = self._cluster.root / STATE_DIRECTORY / "brokers" / self.suffix
        shutil.rmtree(spools, ignore_errors=True)  # The new primary may have continued elsewhere.
        # Use the same port, so that clients and routes find the broker again.
        options = {**self._cluster.options, "port": self._port}
        broker = SingleBroker(self._cluster.root, membership=self.membership(spools), **options)
        broker.run()
        self._port, self._running = broker.port, broker
        self._cluster.sync()

    restart = start

    def membership(self, spools: Path) -> BrokerMembership:
        """Return the settings that make the broker a member of the cluster."""
        return BrokerMembership(self._cluster.keyspace, spools, zone=self.zone, suffix=self.suffix)

    def leave(self) -> None:
        """Make the other brokers consider it dead, as when its lease in Etcd expires."""
        self._cluster.keyspace.leave(self.member)
        self._cluster.sync()

    @property
    def can_agree(self) -> bool:
        """Whether the broker answers other brokers."""
        return self.is_running

    def stop(self) -> None:
        """Move the broker's journals to other brokers, store its fragments, and end it."""
        running = self._running
        if running is None:
            return
        # A broker that hangs cannot hand anything over, so it leaves as if it had died.
        if self.can_agree:
            self._cluster.hand_over(self)
        self._cluster.keyspace.leave(self.member)
        self._running = None
        running.stop()
        self._cluster.sync()

    def end(self) -> None:
        """End the broker together with all others, without handing its journals over."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def kill(self) -> None:
        """End the broker abruptly, as SIGKILL does. Its spools are lost, and others take over immediately."""
        running, self._running = self._running, None
        if running is not None:
            running.kill()
            self.leave()

    def pulse(self, journal: str) -> None:
        """Make the journal's replicas agree, if this broker is its primary.

        Raises:
            ReplicationError: a replica is lost.
        """
        if self._running is not None and (replica := self.replica(journal)) is not None:
            self._running.parts.agree(replica)

    def roll(self, journal: str) -> None:
        """Close the journal's spool at every replica, and store it, if this broker is its primary.

        Raises:
            ReplicationError: a replica is lost.
        """
        if self._running is not None and (replica := self.replica(journal)) is not None:
            self._running.parts.roll(replica)

    def store(self, journal: str) -> None:
        """Store the broker's closed fragments of a journal before this returns.

        Raises:
            OSError: the store failed.
        """
        if (replica := self.replica(journal)) is not None:
            replica.persist()

    def flush(self, timeout_s: float = HAND_OVER_TIMEOUT_S) -> None:
        """Close and store the fragments of the journals of which this broker is the primary.

        Raises:
            TimeoutError: uploads did not end in time.
        """
        if self._running is not None:
            self._running.flush(timeout_s)


class LocalCluster:
    """Brokers that share a keyspace and a root. A context manager; any thread may call anything."""

    def __init__(
        self,
        root: Path | str,
        *,
        brokers: int = 3,
        replication: int | None = 3,
        zones: Sequence[str] = ("local",),
        pulse_interval_s: float = PULSE_INTERVAL_S,
        **options: Any,  # noqa: ANN401 - those of EmbeddedBroker
    ) -> None:
        """Prepare a cluster; entering it starts the brokers.

        Args:
            root: directory of the fragment stores, which all brokers share.
            brokers: number of brokers.
            replication: number of replicas of every journal, regardless of its spec; None uses the spec.
            zones: zones of the brokers, used in turn.
            pulse_interval_s: maximum interval between checks of an idle journal.
            options: further arguments of ``EmbeddedBroker``, for each broker.

        Raises:
            OptionError: an option is invalid, or is not allowed for a cluster.
        """
        if "tls" in options:
            raise OptionError("tls", "set", "none: the brokers of a cluster call each other in plain text")
        if options.get("port"):
            raise OptionError(
                "port", str(options["port"]), "none: each broker of a cluster takes a free port"
            )
        if brokers < 1:
            raise OptionError("brokers", str(brokers), "at least 1")
        self.root = Path(root)
        # A killed broker loses its spools in any case, so syncing the disk would gain nothing.
        storage = StorageSettings(fsync=False, pulse_interval_s=pulse_interval_s)
        options.pop("port", None)
        self.options: dict[str, Any] = {"storage": storage, **options}
        self._brokers = [
            self.new_broker(zones[number % len(zones)], f"broker-{number}") for number in range(brokers)
        ]
        self._replication = replication
        self._keyspace: JournalKeyspace | None = None

    def __repr__(self) -> str:
        running = sum(broker.is_running for broker in self.brokers)
        return f"LocalCluster({str(self.root)!r}, {running} of {len(self.brokers)} brokers run)"

    def new_broker(self, zone: str, suffix: str) -> LocalBroker:
        """Return a broker that is not started yet."""
        return LocalBroker(self, zone, suffix)

    @property
    def brokers(self) -> Sequence[LocalBroker]:
        """The brokers, running or not."""
        return self._brokers

    def __enter__(self) -> Self:
        return self.run()

    def run(self) -> Self:
        """Start the brokers. If the cluster is running, this does nothing."""
        if self._keyspace is not None:
            return self

        def desired_replicas(spec: pb.JournalSpec) -> int:
            return replica_count(spec, self._replication)

        self._keyspace = JournalKeyspace(self.root, JOURNALS, fsync=False, replica_count=desired_replicas)
        try:
            for broker in self.brokers:
                broker.start()
        except BaseException:
            self.stop()
            raise
        stop_at_exit[self] = self.stop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def keyspace(self) -> JournalKeyspace:
        """Keyspace of the running cluster, which replaces Etcd."""
        if self._keyspace is None:
            raise RuntimeError("the cluster is not running")
        return self._keyspace

    @property
    def endpoint(self) -> str:
        """Address of the first broker that runs; every broker serves every journal.

        Raises:
            LookupError: no broker is running.
        """
        for broker in self.brokers:
            if broker.is_running:
                return broker.endpoint
        raise LookupError("no broker of the cluster is running: start one")

    @property
    def endpoints(self) -> list[str]:
        """Address of each broker, running or not."""
        return [broker.endpoint for broker in self.brokers]

    def slots(self, journal: str) -> Slots:
        """Return a journal's members; the first is the primary, or None."""
        return self.keyspace.state.slots.get(journal, ())

    def primary(self, journal: str) -> LocalBroker:
        """Return the broker that is the primary of a journal.

        Raises:
            LookupError: the journal has no primary.
        """
        slots = self.slots(journal)
        return self._broker(slots[0] if slots else None)

    def replicas(self, journal: str) -> Sequence[LocalBroker]:
        """Return the brokers that replicate a journal without being its primary."""
        return [self._broker(member) for member in self.slots(journal)[1:]]

    def others(self, journal: str) -> Sequence[LocalBroker]:
        """Return the running brokers that do not replicate a journal."""
        slots = self.slots(journal)
        return [broker for broker in self.brokers if broker.is_running and broker.member not in slots]

    def flush(self) -> None:
        """Close and store every journal at its primary.

        Raises:
            TimeoutError: uploads did not end in time.
        """
        for broker in self.brokers:
            broker.flush()

    def settle(self) -> None:
        """Store closed fragments and list them at every replica, so that another broker may die.

        A replica that joins a journal starts at its write head. Until earlier bytes are stored, only the
        brokers that had the journal have them, and the new replica does not find them until it lists the
        store, which a real broker does at each ``refresh_interval`` of the journal.

        Raises:
            OSError: the store failed.
        """
        journals = list(self.keyspace.state.slots)
        for broker in self.brokers:
            for journal in journals:
                broker.store(journal)
        for broker in self.brokers:
            for journal in journals:
                if (replica := broker.replica(journal)) is not None:
                    replica.refresh()

    def sync(self) -> None:
        """Make the members of each journal agree if they have changed since they last did, as Gazette does.

        A journal that cannot be synced now, because a member hangs or is cut off, is left unchanged.
        """
        for name in list(self.keyspace.state.slots):
            if self.keyspace.was_synced(name) and not self.keyspace.is_synced(name):
                self._sync(name)

    def _sync(self, journal: str) -> None:
        slots = self.slots(journal)
        if not slots or slots[0] is None:
            return
        # Syncing would wait for the member that hangs.
        if not all(self._broker(member).can_agree for member in slots if member is not None):
            return
        try:
            self._broker(slots[0]).pulse(journal)
        except (ReplicationError, OSError, LookupError) as error:
            _log.warning("sync_failed journal=%s error=%s", journal, error)

    def hand_over(self, leaving: LocalBroker) -> None:
        """Hand a broker's journals over: other brokers join, then all agree, and then this one leaves."""
        keyspace = self.keyspace
        # Determine the journals' members without the broker, as the allocator would decide.
        state = keyspace.state
        journals, items = state.items_of(leaving.member), state.catalog.items.items()
        replica_counts = {name: keyspace.replica_count(entry.spec) for name, entry in items}
        after = assign(replica_counts, state.members - {leaving.member}, state.slots)
        # For some time, a journal has both its old and its new members. The old ones come first, so the
        # primary stays.
        joint: dict[str, Slots] = {}
        for name in journals:
            if keyspace.was_synced(name):
                before = state.slots[name]
                joint[name] = (*before, *(member for member in after[name] if member not in before))
        # The new members take part in the next agreement, so they have the write head before the old ones
        # leave.
        keyspace.put_slots(joint)
        for name in journals:
            if not keyspace.was_synced(name):
                continue
            try:
                # The roll makes all of them begin at one offset, and closes what the leaving broker has,
                # which is then stored.
                self.primary(name).roll(name)
                leaving.store(name)
                if after[name]:
                    keyspace.put_slots({name: after[name]})
            except (ReplicationError, OSError, LookupError) as error:
                _log.warning("hand_over_failed journal=%s error=%s", name, error)

    def stop(self) -> None:
        """Store fragments where possible and stop all brokers. A second call does nothing."""
        keyspace = self._keyspace
        if keyspace is None:
            return
        for broker in self.brokers:
            try:
                broker.flush()
            except (TimeoutError, ReplicationError, OSError) as error:
                _log.warning("flush_failed broker=%r error=%s", broker, error)
        for broker in self.brokers:
            broker.end()
        self._keyspace = None
        keyspace.close()
        stop_at_exit.pop(self, None)

    def _broker(self, member: Member | None) -> LocalBroker:
        for broker in self.brokers:
            if broker.member == member:
                return broker
        raise LookupError("the journal has no such member now")
