"""Decides a replica's answer to a proposal, and a primary's next step after its replicas' answers.

Replication uses *proposals*. A proposal names an extent of the journal (begin, end, codec, and SHA-1 of all
its bytes) and the registers at its end. A replica compares the proposal with its extent and with the extent
that it would have after a commit of the staged content::

    beyond its extents      it begins at the proposal's end; it agrees if the proposal is empty
    empty, at its own end   it begins an extent there: the primary rolls
    its committed extent    it drops the staged bytes
    its staged extent       it commits
    anything else           it disagrees, and returns its extent

That is the table :data:`REPLICA_TRANSITIONS`; Gazette's brokers decide the same way. If replicas disagree,
the primary decides by :func:`decide_sync`: it rolls to the largest end of any replica and adopts that
replica's registers, or it rolls at its own end, so that a replica without the extent's beginning can follow.
If replicas disagree with an extent on which they have just agreed, the append fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from gazette_spark._server.topology import same_route
from gazette_spark.broker.storage.commit_log import Registers, label_set_of, registers_of
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

NO_SUM = bytes(20)
"""Sum of an extent without bytes."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of a journal that are in one spool."""

    begin: int
    end: int
    codec: int
    sum: bytes = NO_SUM

    @classmethod
    def empty(cls, at: int, codec: int) -> Extent:
        """Return an extent without bytes."""
        return cls(at, at, codec)

    @property
    def is_empty(self) -> bool:
        """Whether it has no bytes."""
        return self.begin == self.end

    def to_pb(self, journal: str) -> pb.Fragment:
        """Return the extent as a proposal's fragment."""
        return Fragment(journal, self.begin, self.end, self.sum, self.codec).to_pb()

    @classmethod
    def from_pb(cls, message: pb.Fragment) -> Extent:
        """Return the extent of a fragment.

        Raises:
            ProtocolError: the fragment is not a valid extent.
        """
        fragment = Fragment.from_pb(message)
        return cls(fragment.begin, fragment.end, fragment.codec, fragment.sum)


class ReplicaSpool(Protocol):
    """Interface of a journal's spool for replication. One thread at a time uses it."""

    name: str

    def committed(self) -> tuple[Extent, Registers]:
        """Return the committed extent and its registers."""

    def staged(self) -> Extent:
        """Return the extent after a commit of the staged content."""

    def stage(self, content: bytes) -> None:
        """Write content behind the committed and staged bytes."""

    def roll_back(self) -> None:
        """Drop the staged bytes."""

    def commit_staged(self, registers: Registers) -> None:
        """Make the staged bytes part of the extent, and readable."""

    def begin_at(self, offset: int, codec: int, registers: Registers) -> None:
        """Close the extent, if it has bytes, and begin an empty one."""


class Relation(Enum):
    """Relation of a proposal to a replica's spool."""

    BEYOND_EMPTY = auto()
    """The proposal is empty, at a larger offset than any of the replica."""
    BEYOND = auto()
    """The proposal ends at a larger offset, and has bytes that the replica lacks."""
    ROLL = auto()
    """The proposal is empty, at the replica's end."""
    ROLL_OTHER_REGISTERS = auto()
    """The proposal is empty, at the replica's end, but the registers differ."""
    SAME = auto()
    NEXT = auto()
    """The proposal is the staged extent."""
    FOREIGN = auto()


class Action(Enum):
    """Action of a replica on its spool."""

    BEGIN_THERE = auto()
    """Begin an empty extent at the proposal's end, with the proposal's registers."""
    BEGIN_HERE = auto()
    """Like the previous action, but with the replica's registers."""
    ROLL_BACK = auto()
    COMMIT = auto()
    NOTHING = auto()


REPLICA_TRANSITIONS: dict[Relation, tuple[Action, int]] = {
    # The replica is new or has missed commits. An empty extent needs none of the bytes before it, so the
    # replica can begin there. Its peers and the stores have the bytes that it lacks.
    Relation.BEYOND_EMPTY: (Action.BEGIN_THERE, pb.OK),
    # The replica lacks bytes of the extent and cannot continue it. It still moves to the proposal's end, so
    # that it agrees with the roll that the primary proposes next.
    Relation.BEYOND: (Action.BEGIN_THERE, pb.PROPOSAL_MISMATCH),
    # All replicas close the extent at the same offset, so they will store the same fragments.
    Relation.ROLL: (Action.BEGIN_HERE, pb.OK),
    # The extents agree, but the registers differ after the last commit.
    Relation.ROLL_OTHER_REGISTERS: (Action.BEGIN_HERE, pb.PROPOSAL_MISMATCH),
    # The primary withdraws the content that it sent, or makes sure that the replica has everything.
    Relation.SAME: (Action.ROLL_BACK, pb.OK),
    # This is the only relation in which bytes become part of the journal: the replica has computed the sum
    # itself.
    Relation.NEXT: (Action.COMMIT, pb.OK),
    # The replica has other bytes, or more of them. It changes nothing and reports its extent, because they
    # may be acknowledged, and the primary has to decide.
    Relation.FOREIGN: (Action.NOTHING, pb.PROPOSAL_MISMATCH),
}
"""Maps a relation to (action on the spool, status of the answer)."""


def relate(
    committed: tuple[Extent, Registers], staged: Extent, proposal: Extent, registers: Registers
) -> Relation:
    """Return the relation of a proposal to a replica's spool."""
    extent, own_registers = committed
    # The order of these tests is Gazette's. A larger end comes first, because a replica that is behind cannot
    # decide about other cases.
    if proposal.end > staged.end:
        return Relation.BEYOND_EMPTY if proposal.is_empty else Relation.BEYOND
    if (proposal, registers) == committed:
        return Relation.SAME
    if proposal.is_empty and proposal.end == extent.end:
        return Relation.ROLL if registers == own_registers else Relation.ROLL_OTHER_REGISTERS
    # Compare the whole extents, including the sums: if one byte was lost or changed on the way, the staged
    # extent differs and is not committed.
    if staged != extent and proposal == staged:
        return Relation.NEXT
    return Relation.FOREIGN


def apply_request(spool: ReplicaSpool, request: pb.ReplicateRequest) -> pb.ReplicateResponse:
    """Apply one valid message of a Replicate stream to a replica's spool, and return the answer to it.

    Raises:
        ProtocolError: content does not continue the staged bytes.
        OSError: the disk failed.
    """
    if not request.HasField("proposal"):
        extent, staged = spool.committed()[0], spool.staged()
        # gRPC does not lose or reorder messages of one stream. This check also detects a primary that counts
        # incorrectly.
        if request.content_delta != staged.end - extent.end:
            problem = f"invalid ContentDelta ({request.content_delta}; expected {staged.end - extent.end})"
            raise ProtocolError("ReplicateRequest", problem)
        spool.stage(request.content)
        return pb.ReplicateResponse()
    proposal, registers = Extent.from_pb(request.proposal), registers_of(request.registers)
    action, status = REPLICA_TRANSITIONS[relate(spool.committed(), spool.staged(), proposal, registers)]
    match action:
        case Action.COMMIT:
            spool.commit_staged(registers)
        case Action.ROLL_BACK:
            spool.roll_back()
        case Action.BEGIN_THERE | Action.BEGIN_HERE:
            spool.roll_back()
            # At a larger end, the primary has a later commit, and with it later registers. At the same end,
            # this replica may have the later ones, so it keeps its own and reports them.
            adopted = registers if action is Action.BEGIN_THERE else spool.committed()[1]
            spool.begin_at(proposal.end, proposal.codec, adopted)
    if status == pb.OK:
        return pb.ReplicateResponse()
    extent, own_registers = spool.committed()
    return pb.ReplicateResponse(
        status=pb.PROPOSAL_MISMATCH,
        fragment=extent.to_pb(spool.name),
        registers=label_set_of(own_registers),
    )


class SyncStep(Enum):
    """Next step of a primary after its replicas answered a proposal."""

    AGREED = auto()
    ROLL = auto()
    """Propose an empty extent at ``offset``."""
    READ_THROUGH = auto()
    """A replica has a newer route, at ``revision``."""
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class SyncDecision:
    """The next step and its arguments."""

    step: SyncStep
    offset: int = 0
    registers: Registers | None = None
    """Registers to adopt; None keeps the primary's own."""
    revision: int = 0
    problem: str = ""


def decide_sync(end: int, header: pb.Header, answers: Sequence[pb.ReplicateResponse]) -> SyncDecision:
    """Decide the next step by the replicas' answers to a proposal that ends at ``end``."""
    roll: SyncDecision | None = None
    revision = 0
    for answer in answers:
        if answer.status == pb.OK:
            continue
        # A replica with an older view has waited for this revision, so a refusal because of the route means
        # that it has a newer one. With the same or an older revision, its answer contradicts itself, which
        # is a failure below.
        newer = answer.header.etcd.revision
        if (
            answer.status == pb.WRONG_ROUTE
            and newer > header.etcd.revision
            and not same_route(answer.header.route, header.route)
        ):
            revision = max(revision, newer)
            continue
        theirs = answer.fragment
        # Only an extent that ends later, or is empty at this end, can be rolled to. Anything else means that
        # the replica's bytes differ from the primary's, and no proposal can repair that.
        follows = theirs.end > end or (theirs.end == end and theirs.begin == theirs.end)
        if answer.status != pb.PROPOSAL_MISMATCH or not follows:
            name = pb.Status.Name(answer.status)
            text = f"unexpected {name}: [{theirs.begin}, {theirs.end}) against an end of {end}"
            return SyncDecision(SyncStep.FAILED, problem=text)
        if roll is None or theirs.end > roll.offset:
            # The replica that is ahead has the latest commit, and so the latest registers.
            adopted = registers_of(answer.registers) if theirs.end > end else None
            roll = SyncDecision(SyncStep.ROLL, theirs.end, adopted)
    # Check the route first: with a newer route, other brokers have to agree, and a roll would be useless.
    if revision:
        return SyncDecision(SyncStep.READ_THROUGH, revision=revision)
    return roll or SyncDecision(SyncStep.AGREED)


class PipelineState(Enum):
    """State of replication at the primary."""

    OPENED = auto()
    """The replicas have not agreed yet."""
    SYNCED = auto()
    """All replicas have the same extent and registers."""
    STREAMING = auto()
    """Content is staged, but no proposal covers it yet."""
    BROKEN = auto()
    """A replica is lost, or disagrees. Only a new pipeline can find out each replica's extent."""


class PipelineEvent(Enum):
    """Event of a pipeline."""

    AGREED = auto()
    """All replicas acknowledged a proposal."""
    DISAGREED = auto()
    """A replica did not, while syncing."""
    CONTENT = auto()
    WITHDRAWN = auto()
    """Staged bytes are rolled back at all replicas."""
    LOST = auto()


PIPELINE_TRANSITIONS: dict[tuple[PipelineState, PipelineEvent], PipelineState] = {
    # Disagreement is normal only while a pipeline opens. Later it means that a replica is lost.
    (PipelineState.OPENED, PipelineEvent.AGREED): PipelineState.SYNCED,
    (PipelineState.OPENED, PipelineEvent.DISAGREED): PipelineState.OPENED,
    (PipelineState.OPENED, PipelineEvent.LOST): PipelineState.BROKEN,
    # An agreement without content is a barrier or a roll. An append may also be withdrawn before its first
    # byte.
    (PipelineState.SYNCED, PipelineEvent.AGREED): PipelineState.SYNCED,
    (PipelineState.SYNCED, PipelineEvent.CONTENT): PipelineState.STREAMING,
    (PipelineState.SYNCED, PipelineEvent.WITHDRAWN): PipelineState.SYNCED,
    (PipelineState.SYNCED, PipelineEvent.LOST): PipelineState.BROKEN,
    # Staged content ends in one of three ways: all commit, all drop it, or the pipeline is lost.
    (PipelineState.STREAMING, PipelineEvent.CONTENT): PipelineState.STREAMING,
    (PipelineState.STREAMING, PipelineEvent.AGREED): PipelineState.SYNCED,
    (PipelineState.STREAMING, PipelineEvent.WITHDRAWN): PipelineState.SYNCED,
    (PipelineState.STREAMING, PipelineEvent.LOST): PipelineState.BROKEN,
    # A broken pipeline still drops what this broker has staged.
    (PipelineState.BROKEN, PipelineEvent.WITHDRAWN): PipelineState.BROKEN,
    (PipelineState.BROKEN, PipelineEvent.LOST): PipelineState.BROKEN,
}
"""Maps (state, event) to the next state. Missing pairs never happen, because a broken pipeline agrees on
nothing."""
