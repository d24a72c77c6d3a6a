"""Keeps the pipelines of the journals of which a broker is the primary.

A pipeline is opened when an append needs it and kept for the next one. Each occupies a thread at every other
replica, so their number is limited; the least recently used one is closed first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from gazette_spark._server.identity import BrokerIdentity
from gazette_spark._server.topology import Member, Slots, make_route, same_route
from gazette_spark.broker.journal import LiveJournal
from gazette_spark.broker.registry import JournalRegistry
from gazette_spark.broker.replication.peers import Peers, ReplicateStream
from gazette_spark.broker.replication.pipeline import PeerLostError, Pipeline, ReplicationError

MAX_PIPELINES = 16
"""Maximum number of pipelines that a broker keeps open between appends."""


class Replicator:
    """Opens and closes pipelines. Except for ``slots``, the caller has the turn of the journal it passes."""

    def __init__(self, registry: JournalRegistry, identity: BrokerIdentity, peers: Peers) -> None:
        self._registry = registry
        self._identity = identity
        self._peers = peers
        self._lock = threading.Lock()
        # An ordered dict as a queue by last use: the oldest is at its front.
        self._open: OrderedDict[LiveJournal, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"Replicator({len(self._open)} pipelines)"

    def slots(self, journal: LiveJournal) -> Slots:
        """Return the journal's current members."""
        return self._registry.keyspace.state.slots.get(journal.name, ())

    def prepare(self, journal: LiveJournal, slots: Slots) -> bool:
        """Make all replicas of a journal agree, so that an append can proceed.

        The caller has the turn. A journal without other replicas has no pipeline.

        Returns:
            Whether ``slots`` are still the journal's members. If not, the caller has to resolve again.

        Raises:
            ReplicationError: a replica is lost.
        """
        replicas = [member for member in slots if member is not None and member != self._registry.member]
        if not replicas:
            # The pipeline belongs to an earlier route, with replicas that the journal no longer has.
            self._close(journal)
            # A cluster hands over only journals whose members have agreed. One member agrees with itself.
            if not self._registry.is_alone:
                self._registry.keyspace.note_synced(journal.name, slots)
            return self._is_current(journal, slots)
        route = make_route(slots)
        # An open pipeline saves the round trips of a sync. It cannot be used with another route: its replicas
        # are other brokers, or have another primary.
        pipeline = journal.pipeline
        if pipeline is None or not pipeline.is_usable or not same_route(pipeline.header.route, route):
            self._close(journal)
            if not self._sync(journal, slots, replicas):
                return False
        # The most recently used pipelines stay open, up to a number.
        with self._lock:
            self._open[journal] = None
            self._open.move_to_end(journal)
            surplus = list(self._open)[:-MAX_PIPELINES]
        # A journal whose turn is taken is using its pipeline. Waiting for it here could deadlock with an
        # append that holds that turn and waits for this one.
        for other in surplus:
            with other.fair_lock.turn_if_free() as granted:
                if granted:
                    self._close(other)
        # Syncing takes time. If the members have changed in the meantime, the append must also reach the new
        # ones.
        return self._is_current(journal, slots)

    def pulse(self, journal: LiveJournal) -> None:
        """Act like an empty append, if this broker is the primary: agree, and roll if a roll is due.

        The caller has the turn.

        Raises:
            ReplicationError: a replica is lost.
        """
        if not self._registry.is_primary(journal.name):
            return
        # An idle journal has no append that would close its fragment when the flush interval ends, or because
        # it is the journal's first one.
        offset = journal.due_roll()
        if offset is not None and self.prepare(journal, self.slots(journal)):
            journal.roll(offset)

    def close(self) -> None:
        """Cancel every pipeline."""
        with self._lock:
            journals = list(self._open)
            self._open.clear()
        for journal in journals:
            if (pipeline := journal.pipeline) is not None:
                pipeline.cancel()

    def _is_current(self, journal: LiveJournal, slots: Slots) -> bool:
        return self.slots(journal) == slots and self._registry.get(journal.name) is journal

    def _sync(self, journal: LiveJournal, slots: Slots, replicas: list[Member]) -> bool:
        """Open a pipeline to the other members and make all agree; return False if ``slots`` are outdated."""
        header = self._identity.header(self._registry.catalog.revision, make_route(slots))
        streams: list[ReplicateStream] = []
        try:
            for member in replicas:
                streams.append(ReplicateStream(member, self._peers, journal.name))  # noqa: PERF401 - may fail
            journal.pipeline = pipeline = Pipeline(journal, streams, header)
            # A change of the route cancels the journal's pipeline. A change before this pipeline was set did
            # not cancel it, so check again.
            if not self._is_current(journal, slots):
                self._discard(journal)
                return False
            pipeline.sync()
        except PeerLostError as error:  # A stream could not be opened, so the journal has no pipeline yet.
            for stream in streams:
                stream.cancel()
            if not self._is_current(journal, slots):
                return False
            raise ReplicationError(journal.name, str(error)) from error
        except Exception:
            # If a pipeline fails because the route changed, that is not an error: the append continues with
            # the new route.
            is_current = self._is_current(journal, slots)
            self._discard(journal)
            if not is_current:
                return False
            raise
        self._registry.keyspace.note_synced(journal.name, slots)
        return True

    def _discard(self, journal: LiveJournal) -> None:
        pipeline, journal.pipeline = journal.pipeline, None
        if pipeline is not None:
            pipeline.cancel()

    def _close(self, journal: LiveJournal) -> None:
        pipeline, journal.pipeline = journal.pipeline, None
        if pipeline is not None:
            # Half-close it instead of cancelling: the replicas have everything and keep what is committed.
            pipeline.close()
        with self._lock:
            self._open.pop(journal, None)
