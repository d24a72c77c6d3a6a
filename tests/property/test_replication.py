"""Replicas agree, and keep acknowledged bytes, whichever of them fails at whichever message."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gazette_spark._server.topology import Member, make_route
from gazette_spark.broker.replication.pipeline import PeerLostError, Pipeline, ReplicationError
from gazette_spark.broker.replication.rules import (
    NO_SUM,
    PIPELINE_TRANSITIONS,
    REPLICA_TRANSITIONS,
    Action,
    Extent,
    PipelineEvent,
    PipelineState,
    Relation,
    apply_request,
)
from gazette_spark.broker.storage.commit_log import Registers
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.requests import validate_replicate_request

NAME = "prop/journal"
CODEC = int(pb.NONE)
MEMBERS = [Member("local", f"broker-{number}") for number in range(3)]


def checksum(content: bytes) -> bytes:
    """Return twenty bytes that identify the content: zeros for no content, as replicas have it."""
    return hashlib.sha1(content, usedforsecurity=False).digest() if content else NO_SUM


@dataclass
class MemorySpool:
    """A replica's spool, and its closed extents, which go to the shared store."""

    store: dict[int, int]
    name: str = NAME
    begin: int = 0
    content: bytes = b""
    waiting: bytes = b""
    registers: Registers = ()
    committed_bytes: dict[int, int] = field(default_factory=dict)
    """Committed bytes by offset."""

    def committed(self) -> tuple[Extent, Registers]:
        end = self.begin + len(self.content)
        return Extent(self.begin, end, CODEC, checksum(self.content)), self.registers

    def staged(self) -> Extent:
        whole = self.content + self.waiting
        return Extent(self.begin, self.begin + len(whole), CODEC, checksum(whole))

    def stage(self, content: bytes) -> None:
        self.waiting += content

    def roll_back(self) -> None:
        self.waiting = b""

    def commit_staged(self, registers: Registers) -> None:
        self.content, self.waiting = self.content + self.waiting, b""
        self.registers = registers
        self.committed_bytes |= dict(enumerate(self.content, self.begin))

    def begin_at(self, offset: int, codec: int, registers: Registers) -> None:
        assert not self.waiting
        assert codec == CODEC
        assert offset >= self.begin + len(self.content)
        self.store |= dict(enumerate(self.content, self.begin))
        self.begin, self.content, self.registers = offset, b"", registers


@dataclass(frozen=True)
class Failure:
    """At which message a stream breaks, and whether the replica still applies and answers that message."""

    at: int
    is_taken: bool
    is_heard: bool


@dataclass
class MemoryPeer:
    """A stream to a replica that applies messages immediately, until it breaks."""

    member: pb.ProcessSpec.ID
    spool: MemorySpool
    failure: Failure | None
    sent: int = 0
    is_over: bool = False
    answers: deque[pb.ReplicateResponse] = field(default_factory=deque)

    def send(self, request: pb.ReplicateRequest) -> None:
        if self.is_over:
            raise PeerLostError("over")
        validate_replicate_request(request)
        failure = self.failure if self.failure is not None and self.failure.at == self.sent else None
        self.sent += 1
        if failure is None or failure.is_taken:
            answer = apply_request(self.spool, request)
            if request.acknowledge and (failure is None or failure.is_heard):
                self.answers.append(answer)
        if failure is not None:
            self.end()
            if not failure.is_taken:
                raise PeerLostError("broken")

    def receive(self) -> pb.ReplicateResponse:
        if not self.answers:
            raise PeerLostError("no answer")
        return self.answers.popleft()

    def end(self) -> None:
        self.is_over = True
        self.spool.roll_back()

    close = cancel = end


failures = st.builds(Failure, at=st.integers(0, 7), is_taken=st.booleans(), is_heard=st.booleans())


class ReplicationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store: dict[int, int] = {}
        self.alive: dict[Member, MemorySpool] = {}
        self.slots: list[Member] = []
        self.pipeline: Pipeline | None = None
        self.acknowledged: dict[int, tuple[int, frozenset[int]]] = {}
        """Acknowledged bytes by offset, each with the spools that held it when it was acknowledged."""
        self.head = 0

    @initialize()
    def start(self) -> None:
        for member in MEMBERS:
            self.join(member)

    def join(self, member: Member) -> None:
        self.alive[member] = MemorySpool(self.store)
        self.slots.append(member)
        self.drop_pipeline()

    def drop_pipeline(self) -> None:
        if self.pipeline is not None:
            self.pipeline.cancel()
            self.pipeline = None

    def ready(self, broken: dict[int, Failure]) -> Pipeline:
        """Return a synced pipeline, a new one if the old one is unusable."""
        if self.pipeline is None or not self.pipeline.is_usable:
            self.drop_pipeline()
            primary, *others = self.slots
            peers = [
                MemoryPeer(member.process_id, self.alive[member], broken.get(at))
                for at, member in enumerate(others)
            ]
            header = pb.Header(process_id=primary.process_id, route=make_route(tuple(self.slots)))
            header.etcd.cluster_id = header.etcd.member_id = header.etcd.raft_term = 1
            header.etcd.revision = 1
            self.pipeline = Pipeline(self.alive[primary], peers, header)
            self.pipeline.sync()
        else:
            for at, peer in enumerate(self.pipeline._peers):
                assert isinstance(peer, MemoryPeer)
                peer.sent, peer.failure = 0, broken.get(at)
        return self.pipeline

    @rule(
        chunks=st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=3),
        author=st.none() | st.sampled_from("xyz"),
        broken=st.dictionaries(st.integers(0, 1), failures, max_size=2),
        rolls=st.booleans(),
        commits=st.booleans(),
    )
    def append(
        self,
        chunks: list[bytes],
        author: str | None,
        broken: dict[int, Failure],
        rolls: bool,
        commits: bool,
    ) -> None:
        primary = self.alive[self.slots[0]]
        try:
            pipeline = self.ready(broken)
            if rolls:
                pipeline.roll(primary.committed()[0].end, CODEC)
            begin, registers = primary.committed()[0].end, primary.registers
            assert begin >= self.head
            for chunk in chunks:
                pipeline.write(chunk)
            if not commits:
                pipeline.roll_back()
                return
            after = (("author", author),) if author else registers
            pipeline.commit_append(after)
        except ReplicationError:
            assert broken, "an append fails only where a stream breaks"
            assert self.pipeline is not None
            assert self.pipeline.state is PipelineState.BROKEN
            self.drop_pipeline()
            primary.roll_back()
            return
        holders = frozenset(id(spool) for spool in self.alive.values())
        for offset, byte in enumerate(b"".join(chunks), begin):
            self.acknowledged[offset] = (byte, holders)
        self.head = begin + sum(map(len, chunks))
        for spool in self.alive.values():
            assert spool.committed() == primary.committed()
            assert spool.registers == after

    @precondition(lambda self: len(self.alive) > 1)
    @rule(which=st.integers(0, 2))
    def kill(self, which: int) -> None:
        """Lose a replica, and everything of it that is not in a store."""
        member = self.slots.pop(which % len(self.slots))
        self.drop_pipeline()
        del self.alive[member]

    @precondition(lambda self: len(self.alive) < len(MEMBERS))
    @rule()
    def start_again(self) -> None:
        """Add an empty replica; the others then synchronize with it, as on any change of members."""
        self.join(next(member for member in MEMBERS if member not in self.alive))
        self.ready({})

    @rule(which=st.integers(0, 2))
    def move(self, which: int) -> None:
        self.drop_pipeline()
        self.slots.insert(0, self.slots.pop(which % len(self.slots)))

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        living = {id(spool) for spool in self.alive.values()}
        readable = dict(self.store)
        for spool in self.alive.values():
            readable |= spool.committed_bytes
        for offset, (byte, holders) in self.acknowledged.items():
            if holders & living:
                assert readable.get(offset) == byte

    @invariant()
    def replicas_agree(self) -> None:
        spools = list(self.alive.values())
        for at, one in enumerate(spools):
            for other in spools[at + 1 :]:
                both = one.committed_bytes.keys() & other.committed_bytes.keys()
                assert all(one.committed_bytes[offset] == other.committed_bytes[offset] for offset in both)


TestReplication = ReplicationMachine.TestCase


def test_the_tables_are_whole() -> None:
    """Each relation of a proposal has an action, and no event leads a broken pipeline back to agreement."""
    assert set(REPLICA_TRANSITIONS) == set(Relation)
    assert {action for action, _ in REPLICA_TRANSITIONS.values()} == set(Action)
    for (state, event), after in PIPELINE_TRANSITIONS.items():
        assert (state is PipelineState.BROKEN) <= (after is PipelineState.BROKEN), (state, event)
        assert (event is PipelineEvent.LOST) <= (after is PipelineState.BROKEN), (state, event)


@given(
    held=st.binary(max_size=5),
    staged=st.binary(max_size=5),
    proposed=st.tuples(st.integers(0, 8), st.integers(0, 8)),
)
def test_a_replica_that_agrees_holds_the_proposal(
    held: bytes, staged: bytes, proposed: tuple[int, int]
) -> None:
    spool = MemorySpool({})
    spool.stage(held)
    if held:
        spool.commit_staged((("author", "x"),))
    spool.stage(staged)
    begin, end = min(proposed), max(proposed)
    whole = held + staged
    proposal = Extent(begin, end, CODEC, checksum(whole[begin:end]))
    request = pb.ReplicateRequest(proposal=proposal.to_pb(NAME), acknowledge=True)
    answer = apply_request(spool, request)
    if answer.status == pb.OK:
        assert spool.committed() == (proposal, ())
        assert not spool.waiting
    else:
        extent, registers = spool.committed()
        assert (answer.fragment.begin, answer.fragment.end) == (extent.begin, extent.end)
        assert [(label.name, label.value) for label in answer.registers.labels] == list(registers)
