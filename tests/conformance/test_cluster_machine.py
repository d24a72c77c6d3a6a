"""No order of appends, rolls, moves, kills, restarts and reads loses, duplicates or moves a byte."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import Wire, spec, wait_for
from tests.rig.cluster import ClusterBroker, EmbeddedCluster
from tests.rig.examples import examples

NAME = "machine/journal"
BROKERS = 3
which_broker = st.integers(0, BROKERS - 1)


@dataclass
class Reader:
    offset: int = 0


class ClusterMachine(RuleBasedStateMachine):
    """Compares a cluster with the bytes it acknowledged. Broker 0, 1 or 2 serves each call."""

    def __init__(self) -> None:
        super().__init__()
        self.exit = ExitStack()
        root = self.exit.enter_context(tempfile.TemporaryDirectory(prefix="cluster-machine-"))
        self.cluster = self.exit.enter_context(
            EmbeddedCluster(root, brokers=BROKERS, replication=2, pulse_interval_s=0.1)
        )
        self.wires = [self.exit.enter_context(Wire(endpoint)) for endpoint in self.cluster.endpoints]
        self.committed = b""
        self.author = ""
        self.readers = [Reader(), Reader()]
        self.away: ClusterBroker | None = None

    def teardown(self) -> None:
        self.exit.close()

    @initialize()
    def create(self) -> None:
        """Create the journal. Fragments are small, so that appends roll by themselves, too."""
        self.wires[0].create(spec(NAME, length=1024, replication=2))

    def wire(self, which: int) -> Wire:
        broker = self.cluster.brokers[which]
        return self.wires[(which + 1) % BROKERS if broker is self.away else which]

    @rule(
        which=which_broker,
        content=st.binary(min_size=1, max_size=600),
        author=st.sampled_from(["", "x", "y"]),
    )
    def append(self, which: int, content: bytes, author: str) -> None:
        """Append at any broker; retry, because a broker that has just come back may not be reachable yet."""
        registers = pb.LabelSet(labels=[pb.Label(name="author", value=author)]) if author else None
        answer = _reached(lambda: self.wire(which).append(NAME, content, union_registers=registers))
        assert pb.Status.Name(answer.status) == "OK"
        assert answer.commit.begin == len(self.committed)
        self.committed += content
        self.author = author or self.author
        assert [label.value for label in answer.registers.labels] == [self.author] * bool(self.author)

    @rule(which=which_broker, content=st.binary(min_size=1, max_size=600))
    def break_off(self, which: int, content: bytes) -> None:
        with ExitStack() as stack:
            try:
                self.wire(which).send([pb.AppendRequest(journal=NAME), pb.AppendRequest(content=content)])
            except grpc.RpcError as error:
                stack.callback(error.code)
            else:
                raise AssertionError("an append without its marker was answered")

    @rule(which=which_broker)
    def barrier(self, which: int) -> None:
        answer = _reached(lambda: self.wire(which).append(NAME))
        assert (answer.status, answer.commit.end) == (pb.OK, len(self.committed))

    @rule()
    def roll(self) -> None:
        self.cluster.primary(NAME).roll(NAME)

    @rule()
    def move(self) -> None:
        self.cluster.move_primary(NAME)

    @precondition(lambda self: self.away is None)
    @rule(which=which_broker, harm=st.sampled_from(["kill", "stop"]))
    def lose(self, which: int, harm: str) -> None:
        """Stop one broker; the third replaces it where it was a member."""
        self.away = self.cluster.brokers[which]
        getattr(self.away, harm)()

    @precondition(lambda self: self.away is not None)
    @rule()
    def restart(self) -> None:
        assert self.away is not None
        self.away.restart()
        self.away = None

    @rule(which=which_broker, reader=st.integers(0, 1))
    def read_on(self, which: int, reader: int) -> None:
        one = self.readers[reader]
        for message in _reached(lambda: self.wire(which).read(NAME, offset=one.offset)):
            assert message.offset == one.offset
            end = one.offset + len(message.content)
            assert message.content == self.committed[one.offset : end]
            one.offset = end

    @invariant()
    def members_agree(self) -> None:
        slots = self.cluster.slots(NAME)
        if self.committed and slots:
            held = [
                replica.committed()
                for broker in self.cluster.brokers
                if broker.member in slots and (replica := broker.replica(NAME)) is not None
            ]
            assert held == [held[0]] * 2

    @precondition(lambda self: self.committed)
    @rule(which=which_broker)
    def read_all(self, which: int) -> None:
        whole = self.committed
        self.roll()
        wait_for(lambda: self.wire(which).content(NAME) == whole, "the whole journal")


def _reached(call: Callable[[], Any]) -> Any:
    """Call until the broker can be reached; repeat calls that were refused before they began."""
    answers: list[Any] = []

    def attempt() -> bool:
        try:
            answers.append(call())
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or "connect" not in (error.details() or ""):
                raise
        return bool(answers)

    wait_for(attempt, "broker to be reached")
    return answers[0]


ClusterMachine.TestCase.settings = settings(
    max_examples=examples(12),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCluster = ClusterMachine.TestCase
