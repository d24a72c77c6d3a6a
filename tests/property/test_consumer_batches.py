"""Whatever crashes, and whenever, each message counts once: in the state and in what is published.

The tasks of the host on Spark run in this process here, and the state table is in memory.
``tests/spark/test_consumer.py`` covers Spark and Delta.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gazette_spark._options.write import parse_write_options
from gazette_spark.broker import EmbeddedBroker
from gazette_spark.client import AppendService, Client
from gazette_spark.client._append.futures import AsyncOperation
from gazette_spark.client._list import listing
from gazette_spark.consumer.application import JsonStore, Shard
from gazette_spark.consumer.batch_driver import BatchDriver
from gazette_spark.consumer.spark_shards import SparkShards
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.failpoints import FailpointError, calling
from gazette_spark.message import Envelope, Publisher, read_committed, write_ack_intents
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.examples import examples
from tests.rig.messages import Document
from tests.rig.micro_batches import (
    FencedOffError,
    KeyedWordCount,
    MemoryEngine,
    MemoryTable,
    WordCount,
    counted,
)

pytestmark = pytest.mark.slow

FAILPOINTS = (
    "micro_batch.opened",
    "micro_batch.planned",
    "micro_batch.published",
    "micro_batch.run",
    "micro_batch.committed",
    "micro_batch.acknowledged",
)
SHARDS = {"both": "ab", "only-b": "b", "late": "a"}
WORDS = st.sampled_from(["one", "two", "three"])

publish = st.tuples(st.just("publish"), st.sampled_from("ab"), st.lists(WORDS, min_size=1, max_size=3))
batch = st.tuples(st.just("batch"), st.sampled_from((None, None, *FAILPOINTS)), st.integers(1, 2))
steps = st.one_of(
    publish,
    publish,
    st.tuples(st.just("open"), st.sampled_from("ab"), st.lists(WORDS, min_size=1, max_size=2)),
    st.just(("close",)),
    st.tuples(st.just("poison"), st.sampled_from("ab")),
    batch,
    batch,
    st.just(("restart",)),
    st.just(("zombie",)),
    st.just(("add",)),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def endpoint(root: Path) -> Iterator[str]:
    with EmbeddedBroker(root) as broker:
        yield broker.endpoint


@pytest.fixture(scope="module")
def client(endpoint: str) -> Iterator[Client]:
    with Client(endpoint, timeout_s=30) as opened:
        yield opened


@dataclass
class World:
    client: Client
    app_kind: type[WordCount]
    limit: int
    table: MemoryTable = field(default_factory=MemoryTable)
    specs: dict[str, pc.ShardSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefix = f"test-{uuid.uuid4().hex[:12]}/"
        labels = {"content-type": CONTENT_TYPE_NDJSON}
        self.client.create_journals(
            *(journal_spec(f"{self.prefix}{name}", labels=labels) for name in ("a", "b", "out"))
        )
        self.options = parse_write_options(
            {"brokerAddress": self.client.endpoint, "requestTimeoutMs": "30000"}
        )
        self.service = AppendService(self.client)
        self.publisher = Publisher(self.service)
        self.opened: list[tuple[str, str]] = []
        self.poisoned: set[str] = set()
        for shard_id in ("both", "only-b"):
            self.add(shard_id)
        self.start()

    def start(self) -> None:
        self.app = self.app_kind(f"{self.prefix}out", echoes=True)
        self.shards = SparkShards("tests", self.specs.values(), self.client)
        self.driver = BatchDriver(self.shards, self.client, self.limit)
        self.engine = MemoryEngine(self.table, self.app, self.options)
        self.driver.open(self.engine)

    def add(self, shard_id: str) -> pc.ShardSpec:
        names = [f"{self.prefix}{name}" for name in SHARDS[shard_id]]
        self.specs[shard_id] = shard_spec(shard_id, names)
        return self.specs[shard_id]

    def publish(self, publisher: Publisher, journal: str, text: str) -> None:
        """Publish a document without committing it."""
        to = (f"{self.prefix}{journal}", CONTENT_TYPE_NDJSON)
        publisher.publish_uncommitted(lambda _: to, Document({"text": text}))

    def commit(self, publisher: Publisher) -> None:
        """Acknowledge everything that a publisher has published."""
        self.service.flush()
        write_ack_intents(self.client, publisher.build_ack_intents())

    def echoes(self) -> Counter[tuple[str, str, int]]:
        """Return shard, journal and offset of each echoed message."""
        with read_committed(self.client, f"{self.prefix}out") as reader:
            found = [json.loads(bytes(each.message)) for each in reader]
        return Counter((each["shard"], each["journal"], each["begin"]) for each in found if "begin" in each)

    def messages(self, journal: str) -> list[tuple[int, str]]:
        """Return offset and text of the journal's committed documents."""
        with read_committed(self.client, f"{self.prefix}{journal}") as reader:
            found = [(each.begin, json.loads(bytes(each.message))) for each in reader]
        return [(begin, each["text"]) for begin, each in found if "text" in each]


def do(world: World, step: tuple[Any, ...]) -> None:
    match step:
        case ("publish", journal, words):
            publisher = Publisher(world.service)
            for word in words:
                world.publish(publisher, journal, word)
            world.commit(publisher)
        case ("open", journal, words):
            for word in words:
                world.publish(world.publisher, journal, word)
            world.service.flush()
        case ("close",):
            world.commit(world.publisher)
        case ("poison", journal):
            publisher = Publisher(world.service)
            world.publish(publisher, journal, "poison")
            world.commit(publisher)
            world.poisoned.add(journal)
        case ("batch", point, attempts):
            run_batch(world, point, attempts)
        case ("restart",):
            world.start()
        case ("zombie",):
            old_driver, old_engine = world.driver, world.engine
            world.start()
            with suppress(FencedOffError):
                old_driver.transaction(old_engine)
        case ("add",):
            if "late" not in world.specs:
                spec = world.add("late")
                done = world.shards.table.apply([pc.ApplyRequest.Change(upsert=spec)])
                assert done.status == pc.Status.OK


def run_batch(world: World, point: str | None, attempts: int) -> None:
    world.engine.attempts = attempts

    def die() -> None:
        raise FailpointError(str(point))

    with ExitStack() as stack:
        if point is not None:
            stack.enter_context(calling(point, die))
        try:
            if point == "micro_batch.opened":
                world.start()
            world.driver.transaction(world.engine)
        except FailpointError:
            world.start()
    world.engine.attempts = 1


def test_tasks_list_no_journals(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a listing a shard, a thousand shards would send a thousand requests."""
    world = World(client, WordCount, 1 << 20)
    for journal in ("a", "b"):
        do(world, ("publish", journal, ["word"]))
    listings: list[object] = []
    list_journals = listing.list_journals

    def counted_listing(*args: Any, **asked: Any) -> Any:
        listings.append(args)
        return list_journals(*args, **asked)

    monkeypatch.setattr(listing, "list_journals", counted_listing)
    assert world.driver.transaction(world.engine)
    assert len(listings) == 1


class Waiting(WordCount):
    """A consumer whose shard ``both`` starts an append that ends when the next shard consumes."""

    def __init__(self, output: str, *, echoes: bool) -> None:
        super().__init__(output, echoes=echoes)
        self.next_consumes: AsyncOperation[None] = AsyncOperation()

    def consume_message(
        self, shard: Shard, store: JsonStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        if shard.spec.id == "both":
            with shard.append_service.start_append(self.output, dependencies=[self.next_consumes]) as append:
                append.write(b"")
        elif not self.next_consumes.done():
            self.next_consumes.resolve()
        super().consume_message(shard, store, envelope, publisher)


def test_a_shard_consumes_while_another_one_publishes(client: Client) -> None:
    world = World(client, Waiting, 1 << 20)
    for journal in ("a", "b"):
        do(world, ("publish", journal, ["word"]))
    assert world.driver.transaction(world.engine)
    assert [each.status[0].code for each in world.shards.table.list_shards().shards] == [
        pc.ReplicaStatus.PRIMARY,
        pc.ReplicaStatus.PRIMARY,
    ]
    assert world.table.checkpoints.keys() == {"both", "only-b"}


def test_a_source_that_was_made_again_fails_its_shards(client: Client, root: Path) -> None:
    """The error names the shard, the journal, both offsets and the remedy; other shards continue."""
    world = World(client, WordCount, 1 << 20)
    for journal in ("a", "b"):
        do(world, ("publish", journal, ["word"]))
    assert world.driver.transaction(world.engine)
    name = f"{world.prefix}a"
    reached, spec = client.write_head(name), client.get_journal(name)
    client.apply([pb.ApplyRequest.Change(delete=name, expect_mod_revision=spec.mod_revision)])
    shutil.rmtree(root / name)
    client.create_journals(spec.spec)
    do(world, ("publish", "b", ["word"]))
    world.start()
    assert world.driver.transaction(world.engine)
    both, only_b = (each.status[0] for each in world.shards.table.list_shards().shards)
    assert (both.code, only_b.code) == (pc.ReplicaStatus.FAILED, pc.ReplicaStatus.PRIMARY)
    assert "shard 'both'" in both.errors[0]
    assert f"journal '{name}': the shard has read up to offset {reached}" in both.errors[0]
    assert "ends at 0." in both.errors[0]
    assert "under another id" in both.errors[0]


def at_each_point(test: Callable[..., None]) -> Callable[..., None]:
    """Add an explicit example with a crash at each failpoint."""
    for point in FAILPOINTS:
        history = [("publish", "a", ["one"]), ("batch", point, 1), ("publish", "b", ["one"])]
        test = example(history, WordCount, 1 << 20)(test)
        test = example(history, KeyedWordCount, 150)(test)
    return test


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(steps, max_size=14),
    st.sampled_from([WordCount, KeyedWordCount]),
    st.sampled_from([150, 1 << 20]),
)
@at_each_point
@example([("publish", "b", ["one"]), ("poison", "a"), ("batch", None, 1)], WordCount, 1 << 20)
@example([("publish", "b", ["one"]), ("poison", "a"), ("batch", None, 1)], KeyedWordCount, 1 << 20)
@example([("open", "a", ["one"]), ("batch", None, 1), ("close",)], WordCount, 150)
def test_each_message_counts_once(
    client: Client,
    history: list[tuple[Any, ...]],
    kind: type[WordCount],
    limit: int,
) -> None:
    world = World(client, kind, limit)
    with world.service:
        for step in history:
            do(world, step)
        world.start()
        world.driver.drain(world.engine)
        echoes = world.echoes()
        messages = {journal: world.messages(journal) for journal in "ab"}
        for shard_id, sources in SHARDS.items():
            if shard_id not in world.specs:
                continue
            status = next(
                each for each in world.shards.table.list_shards().shards if each.spec.id == shard_id
            ).status[0]
            mine = {
                (shard_id, f"{world.prefix}{journal}", begin)
                for journal in sources
                for begin, _ in messages[journal]
            }
            got = {each: count for each, count in echoes.items() if each[0] == shard_id}
            if world.poisoned & set(sources):
                assert status.code == pc.ReplicaStatus.FAILED
                assert "a word that nobody may count" in status.errors[0]
                assert got.keys() <= mine
                assert set(got.values()) <= {1}
                continue
            assert status.code == pc.ReplicaStatus.PRIMARY
            assert got == dict.fromkeys(mine, 1)
            texts = [text for journal in sources for _, text in messages[journal]]
            rows = world.table.state.get(shard_id, {})
            found = {key: json.loads(text) for (kind, key), text in rows.items() if kind == "state"}
            assert found == counted(texts)
