"""Implements the primary's side of replication: one journal's spool, and a stream to each other replica.

The thread with the journal's turn uses its pipeline::

    sync -> (roll) -> write ... write -> commit_append   or   roll_back

Content goes to all replicas as it arrives. A commit is proposed to the other replicas first and made in the
primary's own spool when all have acknowledged it. So a primary shows its readers nothing that could be lost
with it, and a replica that becomes primary has everything that was acknowledged. A replica may have a commit
on which the primary gave up. Then the next sync rolls all replicas to its end, and the client, whose append
failed, appends again: appends are at-least-once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
"""Maximum number of proposals in a sync. Usually one or two are needed, and three if a replica lags."""


@dataclass(eq=False)
class ReplicationError(GazetteError):
    """A replica is lost or disagrees. The append failed; the next one opens a new pipeline."""

    journal: str
    problem: str

    def __str__(self) -> str:
        return f"journal {self.journal}: replication: {self.problem}"


@dataclass(eq=False)
class StaleRouteError(GazetteError):
    """A replica has a newer route. Never raised outside the broker."""

    revision: int


class PeerLostError(GazetteError):
    """A replica's stream broke. Never raised outside the broker."""

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
        """Half-close the stream: no message follows."""

    def cancel(self) -> None:
        """End the stream now; threads that wait for it fail. Any thread may call it."""


class Pipeline:
    """Replicates one journal under one route. The thread with the journal's turn uses it."""

    def __init__(self, spool: ReplicaSpool, peers: Sequence[PeerStream], header: pb.Header) -> None:
        self.header = header
        # The extents of a new pipeline's replicas are unknown: a replica may have a commit of an earlier
        # primary, or nothing. Nothing may be appended before `sync`.
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
        # A replica may have ended its stream since the last append. Content sent now would only fail later.
        is_whole = not self.is_cancelled and not any(peer.is_over for peer in self._peers)
        return is_whole and self.state is PipelineState.SYNCED

    def sync(self) -> None:
        """Bring all replicas to one extent and one set of registers.

        Raises:
            StaleRouteError: a replica has a newer route.
            ReplicationError: a replica is lost, or the replicas cannot agree.
        """
        spool = self._spool
        # No other replica has the bytes that an earlier append staged here: they rolled them back when their
        # stream ended.
        spool.roll_back()
        extent, registers = spool.committed()
        # The first proposal is the primary's own extent. If all replicas have the same extent, as usual, one
        # round is enough. The bound ends a disagreement that no proposal can resolve.
        for _ in range(SYNC_ROUNDS):
            answers = self._propose(extent, registers)
            decision = decide_sync(extent.end, self.header, answers)
            match decision.step:
                case SyncStep.AGREED:
                    self._transition(PipelineEvent.AGREED)
                    return
                case SyncStep.READ_THROUGH:
                    self._transition(PipelineEvent.LOST)
                    raise StaleRouteError(decision.revision)
                case SyncStep.FAILED:
                    raise self._lost(decision.problem)
            # A replica is ahead, or cannot join in the middle of an extent. All can begin an empty extent at
            # the largest end. Commits that only some replicas have remain readable there and are stored from
            # there.
            self._transition(PipelineEvent.DISAGREED)
            registers = registers if decision.registers is None else decision.registers
            extent = Extent.empty(decision.offset, extent.codec)
            spool.begin_at(extent.end, extent.codec, registers)
        raise self._lost(f"no agreement after {SYNC_ROUNDS} proposals")

    def roll(self, offset: int, codec: int) -> None:
        """Make every replica close its extent and begin an empty one at an offset.

        Raises:
            ReplicationError: a replica is lost.
        """
        # A roll moves no bytes, so the registers stay.
        registers = self._spool.committed()[1]
        extent = Extent.empty(offset, codec)
        # The other replicas come first: if one is lost, this spool is unchanged and the next sync starts from
        # it.
        self._agree(extent, registers)
        self._spool.begin_at(offset, codec, registers)

    def write(self, content: bytes) -> None:
        """Stage content at every replica.

        Raises:
            ReplicationError: a replica is lost.
            OSError: the primary's disk refused.
        """
        # Send the content before writing it here, so that the replicas' disks work at the same time. The
        # delta lets a replica detect a lost or repeated message.
        if self._peers:
            delta = self._spool.staged().end - self._spool.committed()[0].end
            self._send(pb.ReplicateRequest(content=content, content_delta=delta))
        self._spool.stage(content)
        self._transition(PipelineEvent.CONTENT)

    def commit_append(self, registers: Registers) -> None:
        """Commit the staged bytes: at every other replica, then here.

        Raises:
            ReplicationError: not every replica committed. Some may have.
            OSError: the primary's disk failed, and there are no other replicas.
        """
        # Readers of this broker see the bytes once its own spool has them. If that were before every replica
        # had acknowledged, they could see bytes that are lost with this broker.
        if self._peers:
            self._agree(self._spool.staged(), registers)
        else:
            self._transition(PipelineEvent.AGREED)
        # A crash before this line leaves a commit that the others have but this broker lacks. The next
        # primary's sync rolls all replicas to its end, and the append counts, although its client saw a
        # failure or no answer. The same is true if this broker's disk is full.
        try:
            self._spool.commit_staged(registers)
        except OSError as error:
            if self._peers:
                raise self._lost(f"the primary cannot commit: {error}") from error
            raise

    def barrier(self) -> None:
        """Make every replica confirm its extent.

        Raises:
            ReplicationError: a replica is lost.
        """
        if self._peers:
            self._agree(*self._spool.committed())

    def roll_back(self) -> None:
        """Drop the staged bytes at all replicas.

        A replica that cannot be reached rolls back when its stream ends.
        """
        self._spool.roll_back()
        if self.state is PipelineState.STREAMING and self._peers:
            extent, registers = self._spool.committed()
            # Proposing the committed extent makes a replica drop what it staged. There is no need to wait for
            # the answer: a replica that does not comply breaks its stream, which the next append notices.
            try:
                self._send(self._proposal(extent, registers, acknowledge=False))
            except ReplicationError:
                return
        self._transition(PipelineEvent.WITHDRAWN)

    def close(self) -> None:
        """End the streams; replicas keep their committed bytes."""
        for peer in self._peers:
            peer.close()

    def cancel(self) -> None:
        """Break the pipeline, because its route has ended or its client has gone. Any thread may call it."""
        self.is_cancelled = True
        for peer in self._peers:
            peer.cancel()

    def _agree(self, extent: Extent, registers: Registers) -> None:
        answers = self._propose(extent, registers)
        # All answers have been read, so the streams are in step even if one of them refuses.
        for answer in answers:
            if answer.status != pb.OK:
                raise self._lost(f"unexpected {pb.Status.Name(answer.status)}")
        self._transition(PipelineEvent.AGREED)

    def _propose(self, extent: Extent, registers: Registers) -> list[pb.ReplicateResponse]:
        # Send to all before waiting for the first answer, so that the replicas' disks work at the same time.
        # A stream keeps the order, so the proposal arrives after the content that it covers.
        self._send(self._proposal(extent, registers, acknowledge=True))
        answers = []
        for peer in self._peers:
            with self._reaching(peer):
                answers.append(peer.receive())
        return answers

    def _proposal(self, extent: Extent, registers: Registers, *, acknowledge: bool) -> pb.ReplicateRequest:
        return pb.ReplicateRequest(
            proposal=extent.to_pb(self._spool.name),
            registers=label_set_of(registers),
            acknowledge=acknowledge,
        )

    def _send(self, request: pb.ReplicateRequest) -> None:
        for peer in self._peers:
            message = request
            if not self._is_greeted:
                # A stream's first message names its route and the replica for which it is meant.
                message = pb.ReplicateRequest()
                message.CopyFrom(request)
                message.header.CopyFrom(self.header)
                message.header.process_id.CopyFrom(peer.member)
                message.deprecated_journal = self._spool.name
            with self._reaching(peer):
                peer.send(message)
        self._is_greeted = True

    @contextmanager
    def _reaching(self, peer: PeerStream) -> Iterator[None]:
        try:
            yield
        except PeerLostError as error:
            raise self._lost(f"{peer.member.zone}/{peer.member.suffix}: {error}") from error

    def _lost(self, problem: str) -> ReplicationError:
        # The extent of the lost replica is now unknown, and the other streams may have unread answers. A new
        # pipeline requests the extents of all replicas again.
        self._transition(PipelineEvent.LOST)
        self.cancel()
        return ReplicationError(self._spool.name, problem)

    def _transition(self, event: PipelineEvent) -> None:
        self.state = PIPELINE_TRANSITIONS[self.state, event]
