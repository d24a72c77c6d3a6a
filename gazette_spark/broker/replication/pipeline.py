"""The primary's side of replication: one journal's spool, and a stream to each other replica.

Whoever has the journal's turn uses its pipeline::

    sync -> (roll) -> write ... write -> commit_append   or   roll_back

Content goes to all replicas as it comes. A commit is proposed to the other replicas first and made in
the primary's own spool when all have acknowledged it. So a primary shows its readers nothing that could
be lost with it, and a replica that becomes primary has everything that was acknowledged. A replica may
hold a commit the primary gave up on; the next sync rolls everyone to its end, and the client, whose
append failed, appends again: appends are at-least-once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gazette_spark.broker.replication.rules import (
    PIPELINE_TRANSITIONS,
    Extent,
    PipelineEvent,
    PipelineState,
    ReplicaSpool,
    SyncStep,
    decide_sync,
)
from gazette_spark.broker.storage.commit_log import Registers, label_set_of
from gazette_spark.errors import GazetteError
from gazette_spark.protocol import protocol_pb2 as pb

SYNC_ROUNDS = 4
"""Proposals a sync makes before it gives up; one or two are usual, three with a replica that lags."""


@dataclass(eq=False)
class ReplicationError(GazetteError):
    """A replica is lost or disagrees. The append failed; another try makes a new pipeline."""

    journal: str
    problem: str

    def __str__(self) -> str:
        return f"journal {self.journal}: replication: {self.problem}"


@dataclass(eq=False)
class StaleRouteError(GazetteError):
    """A replica knows a newer route. Stays inside the broker."""

    revision: int


class PeerLostError(GazetteError):
    """A replica's stream broke. Stays inside the broker."""

    problem: str


class PeerStream(Protocol):
    """A Replicate stream to one replica. Sends may run ahead of answers."""

    member: pb.ProcessSpec.ID

    def send(self, request: pb.ReplicateRequest) -> None:
        """Send a message. Raises PeerLostError."""

    def receive(self) -> pb.ReplicateResponse:
        """Return the next answer. Raises PeerLostError."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""

    def close(self) -> None:
        """Say that nothing follows."""

    def cancel(self) -> None:
        """End the stream now; whoever waits for it fails. Any thread."""


class Pipeline:
    """Replicates one journal under one route. The thread with the journal's turn uses it."""

    def __init__(self, spool: ReplicaSpool, peers: Sequence[PeerStream], header: pb.Header) -> None:
        self.header = header
        self.state = PipelineState.OPENED
        self.is_cancelled = False
        self._spool = spool
        self._peers = peers
        self._is_greeted = False

    def __repr__(self) -> str:
        return f"Pipeline({self._spool.name!r}, {len(self._peers)} peers, {self.state.name})"

    @property
    def is_usable(self) -> bool:
        """Whether appends may use it."""
        is_whole = not self.is_cancelled and not any(peer.is_over for peer in self._peers)
        return is_whole and self.state is PipelineState.SYNCED

    def sync(self) -> None:
        """Bring all replicas to one extent and one set of registers.

        Raises:
            StaleRouteError: a replica knows a newer route.
            ReplicationError: a replica is lost, or cannot be agreed with.
        """
        spool = self._spool
        spool.roll_back()
        extent, registers = spool.held()
        for _ in range(SYNC_ROUNDS):
            answers = self._propose(extent, registers)
            decision = decide_sync(extent.end, self.header, answers)
            match decision.step:
                case SyncStep.AGREED:
                    self._moved(PipelineEvent.AGREED)
                    return
                case SyncStep.READ_THROUGH:
                    self._moved(PipelineEvent.LOST)
                    raise StaleRouteError(decision.revision)
                case SyncStep.FAILED:
                    raise self._lost(decision.problem)
            self._moved(PipelineEvent.DISAGREED)
            registers = registers if decision.registers is None else decision.registers
            extent = Extent.empty(decision.offset, extent.codec)
            spool.begin_at(extent.end, extent.codec, registers)
        raise self._lost(f"no agreement after {SYNC_ROUNDS} proposals")

    def roll(self, offset: int, codec: int) -> None:
        """Have every replica close its extent and begin an empty one at an offset.

        Raises:
            ReplicationError: a replica is lost.
        """
        registers = self._spool.held()[1]
        extent = Extent.empty(offset, codec)
        self._agree(extent, registers)
        self._spool.begin_at(offset, codec, registers)

    def write(self, content: bytes) -> None:
        """Stage content at every replica.

        Raises:
            ReplicationError: a replica is lost.
            OSError: the primary's disk refused.
        """
        if self._peers:
            delta = self._spool.staged().end - self._spool.held()[0].end
            self._send(pb.ReplicateRequest(content=content, content_delta=delta))
        self._spool.stage(content)
        self._moved(PipelineEvent.CONTENT)

    def commit_append(self, registers: Registers) -> None:
        """Commit the staged bytes: at every other replica, then here.

        Raises:
            ReplicationError: not every replica acknowledged. Some may have committed.
            OSError: the primary's disk failed.
        """
        if self._peers:
            self._agree(self._spool.staged(), registers)
        else:
            self._moved(PipelineEvent.AGREED)
        self._spool.commit_staged(registers)

    def barrier(self) -> None:
        """Have every replica confirm its extent.

        Raises:
            ReplicationError: a replica is lost.
        """
        if self._peers:
            self._agree(*self._spool.held())

    def roll_back(self) -> None:
        """Drop the staged bytes at all replicas.

        A replica that cannot be reached rolls back when its stream ends.
        """
        self._spool.roll_back()
        if self.state is PipelineState.STREAMING and self._peers:
            extent, registers = self._spool.held()
            try:
                self._send(self._proposal(extent, registers, acknowledge=False))
            except ReplicationError:
                return
        self._moved(PipelineEvent.WITHDRAWN)

    def close(self) -> None:
        """End the streams; replicas keep their committed bytes."""
        for peer in self._peers:
            peer.close()

    def cancel(self) -> None:
        """Break the pipeline, because its route is over or its client is gone. Any thread."""
        self.is_cancelled = True
        for peer in self._peers:
            peer.cancel()

    def _agree(self, extent: Extent, registers: Registers) -> None:
        answers = self._propose(extent, registers)
        for answer in answers:
            if answer.status != pb.OK:
                raise self._lost(f"unexpected {pb.Status.Name(answer.status)}")
        self._moved(PipelineEvent.AGREED)

    def _propose(self, extent: Extent, registers: Registers) -> list[pb.ReplicateResponse]:
        self._send(self._proposal(extent, registers, acknowledge=True))
        return [self._attempt(peer, peer.receive) for peer in self._peers]

    def _proposal(self, extent: Extent, registers: Registers, *, acknowledge: bool) -> pb.ReplicateRequest:
        return pb.ReplicateRequest(
            proposal=extent.to_pb(self._spool.name),
            registers=label_set_of(registers),
            acknowledge=acknowledge,
        )

    def _send(self, request: pb.ReplicateRequest) -> None:
        for peer in self._peers:
            if not self._is_greeted:
                request.header.CopyFrom(self.header)
                request.header.process_id.CopyFrom(peer.member)
                request.deprecated_journal = self._spool.name
                greeting = pb.ReplicateRequest()
                greeting.CopyFrom(request)
                self._attempt(peer, lambda peer=peer, greeting=greeting: peer.send(greeting))  # type: ignore[misc]
            else:
                self._attempt(peer, lambda peer=peer: peer.send(request))  # type: ignore[misc]
        self._is_greeted = True

    def _attempt(self, peer: PeerStream, act: Callable[[], pb.ReplicateResponse]) -> pb.ReplicateResponse:
        try:
            return act()
        except PeerLostError as error:
            raise self._lost(f"{peer.member.zone}/{peer.member.suffix}: {error}") from error

    def _lost(self, problem: str) -> ReplicationError:
        self._moved(PipelineEvent.LOST)
        self.cancel()
        return ReplicationError(self._spool.name, problem)

    def _moved(self, event: PipelineEvent) -> None:
        self.state = PIPELINE_TRANSITIONS[self.state, event]
