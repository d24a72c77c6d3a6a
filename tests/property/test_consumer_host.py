"""Whatever producers send, and wherever hosts die, state and output are those of a plain model.

Two shards read two journals and publish to two others. Producers send single messages, transactions,
rollbacks and repeated messages. Hosts die at each of their actions, or hang there until another host has done
their work, and then continue.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.broker.settings import ServingSettings, StorageSettings
from gazette_spark.client import Client
from gazette_spark.consumer import ResolveArgs
from gazette_spark.consumer.local import LocalHost
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.failpoints import calling
from gazette_spark.message import Clock, ProducerId, build_uuid
from gazette_spark.message.uuids import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN
from gazette_spark.protocol import consumer_pb2 as pc
from tests.rig.consumers import Database, Totals, create_journals, number, published_totals
from tests.rig.examples import examples
from tests.rig.messages import Document

pytestmark = pytest.mark.slow

POINTS = [
    "app.consumed",
    "consumer.finalized",
    "store.committing",
    "store.committed",
    "consumer.committing",
    "consumer.acknowledging",
    "consumer.committed",
    "consumer.acknowledged",
    "consumer.acknowledged_again",
]
SHARDS = {"shard-of-both": (0, 1), "shard-of-one": (0,)}
KEYS = ["a", "bb", "c", "defer"]
WAIT_S = 60.0
NUMBERS = iter(range(1 << 20))


class Crash(BaseException):
    """The process ends here."""


@dataclass
class Producer:
    producer: ProducerId
    clock: int = 1 << 62
    acked: int = (1 << 62) - 1
    open: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    last: bytes = b""

    def send(self, what: str, key: str) -> bytes:
        match what:
            case "alone":
                self.clock += 160
                self.open.clear()
                self.committed.append(key)
                self.acked = self.clock
                return self._message(key, OUTSIDE_TXN)
            case "in transaction":
                self.clock += 160
                self.open.append(key)
                return self._message(key, CONTINUE_TXN)
            case "acknowledge":
                self.clock += 160
                self.committed += self.open
                self.open.clear()
                self.acked = self.clock
                return self._message("", ACK_TXN)
            case "roll back" if self.open:
                # Like a producer whose commit failed: its clock goes back to the last acknowledgement.
                self.open.clear()
                self.clock = self.acked
                return self._message("", ACK_TXN)
            case "repeat" if self.open:
                return self.last
        return b""

    def _message(self, key: str, flags: int) -> bytes:
        document = number(key) if key else Document()
        document.set_uuid(build_uuid(self.producer, Clock(self.clock), flags))
        self.last = bytes(document) + b"\n"
        return self.last


@dataclass(frozen=True)
class Round:
    messages: list[tuple[int, int, str, str]]
    """Journal, producer, kind of message, and key of each message."""
    point: str
    nth: int
    hangs: bool
    """Whether the host hangs and continues only after the next one has read everything."""


MESSAGES = st.tuples(
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from(["alone", "in transaction", "in transaction", "acknowledge", "roll back", "repeat"]),
    st.sampled_from(KEYS),
)
ROUNDS = st.builds(
    Round,
    st.lists(MESSAGES, max_size=12),
    st.sampled_from(["", *POINTS]),
    st.integers(1, 4),
    st.booleans(),
)
OPTIONS = st.fixed_dictionaries(
    {
        "ring_buffer_size": st.sampled_from([1, 2, 100]),
        "read_channel_size": st.sampled_from([1, 100]),
        "min_txn_s": st.sampled_from([0.0, 0.01]),
        "max_txn_s": st.sampled_from([0.001, 0.05]),
        "disable_wait_for_ack": st.booleans(),
    }
)


class World:
    def __init__(self, broker: EmbeddedBroker, client: Client) -> None:
        prefix = f"consumer/{next(NUMBERS)}/"
        self.client = client
        self.sources = [f"{prefix}in/{name}" for name in "ab"]
        self.outputs = [f"{prefix}out/{name}" for name in "ab"]
        create_journals(client, *self.sources, *self.outputs)
        self.producers: defaultdict[tuple[int, int], Producer] = defaultdict(self._new_producer)
        self.database = Database()

    def _new_producer(self) -> Producer:
        return Producer(ProducerId(bytes([1, *uuid.uuid4().bytes[:5]])))

    def append(self, messages: list[tuple[int, int, str, str]]) -> None:
        """Append what producers send, then a committed message to each journal."""
        content: defaultdict[int, bytes] = defaultdict(bytes)
        marks = [(journal, 9, "alone", "mark") for journal in range(len(self.sources))]
        for journal, producer, what, key in [*messages, *marks]:
            content[journal] += self.producers[journal, producer].send(what, key)
        for journal, appended in content.items():
            self.client.append(self.sources[journal], appended)

    def expected(self) -> dict[str, dict[str, int]]:
        found = {}
        for shard, journals in SHARDS.items():
            found[shard] = dict(
                Counter(
                    key
                    for (journal, _), producer in self.producers.items()
                    if journal in journals
                    for key in producer.committed
                )
            )
        return found

    def host(self, options: dict[str, object]) -> LocalHost:
        specs = [
            shard_spec(shard, [self.sources[at] for at in journals], **options)  # type: ignore[arg-type]  # Fields by name, of mixed types.
            for shard, journals in SHARDS.items()
        ]
        return LocalHost(
            Totals(self.database, self.outputs), self.client, specs, name="machine", restart=None
        )

    def is_through(self, host: LocalHost, cancelled: Future[None]) -> bool:
        """Wait until the shards have read everything; return False if the host dies or hangs first."""
        for shard, journals in SHARDS.items():
            heads = {self.sources[at]: self.client.write_head(self.sources[at]) for at in journals}
            asked = ResolveArgs(shard, read_through=heads, timeout_s=WAIT_S, cancelled=cancelled)
            try:
                with host.resolve(asked) as found:
                    if found.status != pc.OK:
                        assert cancelled.done(), host.list_shards().shards
                        return False
            except TimeoutError:
                assert cancelled.done(), f"{shard} does not reach {heads}"
                return False
        return True


class Fate:
    def __init__(self, *, hangs: bool) -> None:
        self.reached: Future[None] = Future()
        self._hangs = hangs
        self._released = threading.Event()

    def happen(self) -> None:
        self.reached.set_result(None)
        if not self._hangs:
            raise Crash
        assert self._released.wait(WAIT_S)

    def release(self) -> None:
        self._released.set()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    root, storage = tmp_path_factory.mktemp("broker"), StorageSettings(fsync=False)
    # The test is not about slow machines, so it accepts slow appends.
    with EmbeddedBroker(root, storage=storage, serving=ServingSettings(min_append_rate=1)) as one:
        yield one


@settings(max_examples=examples(20))
@given(rounds=st.lists(ROUNDS, min_size=1, max_size=4), options=OPTIONS)
def test_hosts_that_die_do_what_a_model_does(
    broker: EmbeddedBroker, rounds: list[Round], options: dict[str, object]
) -> None:
    with Client(broker.endpoint) as client, ExitStack() as zombies:
        world = World(broker, client)
        for turn in rounds:
            world.append(turn.messages)
            fate = Fate(hangs=turn.hangs)
            host = world.host(options)
            zombies.callback(host.close)
            zombies.callback(fate.release)
            with calling(turn.point, fate.happen, turn.nth):
                host.start()
                through = world.is_through(host, fate.reached)
                if through:
                    # Its shards are idle, but work after the last report may still reach the point.
                    host.close()
        world.append([])
        with world.host(options) as last:
            assert world.is_through(last, Future())
            zombies.close()
            # The zombies have changed nothing.
            assert world.is_through(last, Future())
        assert world.database.state() == world.expected()
        totals = {
            (shard, key, total)
            for shard, state in world.expected().items()
            for key, count in state.items()
            for total in range(1, count + 1)
        }
        assert published_totals(client, world.outputs) == dict.fromkeys(totals, 1)
