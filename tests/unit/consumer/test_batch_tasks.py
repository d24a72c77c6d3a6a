"""Tests micro-batches with hostile records; tasks run in this process, on an embedded broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark._options.write import parse_write_options
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.client._read.heads import SettledHead
from gazette_spark.consumer import Application, JsonStore, Shard
from gazette_spark.consumer.batch_driver import BatchDriver
from gazette_spark.consumer.batch_tasks import BATCH_BYTES, Job, Row
from gazette_spark.consumer.spark_shards import SparkShards
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.message import ACK_TXN, Envelope, Message, Publisher, split_uuid
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.messages import Document
from tests.rig.micro_batches import MemoryEngine, MemoryTable, read_document

HALF = "half \ud800"
"""A text of a record that escapes half of a surrogate pair."""


class LastText(Application[JsonStore]):
    """Keeps the last text of a shard in its state."""

    def new_store(self, shard: Shard) -> JsonStore:
        return shard.json_store(initial={})

    def new_message(self, _spec: pb.JournalSpec, record: bytes) -> Message:
        return read_document(record)

    def consume_message(
        self, _shard: Shard, store: JsonStore, envelope: Envelope, _publisher: Publisher
    ) -> None:
        if split_uuid(envelope.message.get_uuid())[2] != ACK_TXN:
            self.keep(store, text_of(envelope))

    def finalize_txn(self, _shard: Shard, _store: JsonStore, _publisher: Publisher) -> None:
        """Publish nothing."""

    def keep(self, store: JsonStore, text: str) -> None:
        store.state["last"] = text


class ByText(LastText):
    """Uses each text as a key of the state."""

    def keep(self, store: JsonStore, text: str) -> None:
        store.state[text] = True


class KeyedByText(ByText):
    """Declares the text as the message's key."""

    def key_of(self, envelope: Envelope) -> str:
        return text_of(envelope)


class Quoting(LastText):
    """Refuses the hostile text with an error that quotes it."""

    def keep(self, store: JsonStore, text: str) -> None:
        if text == HALF:
            raise ValueError(f"cannot count {text}")
        super().keep(store, text)


def its_journal(message: Message) -> tuple[str, str]:
    assert isinstance(message, Document)
    return message.fields["journal"], CONTENT_TYPE_NDJSON


def text_of(envelope: Envelope) -> str:
    assert isinstance(envelope.message, Document)
    return str(envelope.message.fields["text"])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker,
        Client(broker.endpoint, timeout_s=30) as opened,
    ):
        yield opened


Consumer = Callable[[Application[JsonStore]], tuple[SparkShards, MemoryTable]]


@pytest.fixture
def consume(client: Client) -> Consumer:
    """Consume a hostile text in one shard and a usual one in another."""

    def run(app: Application[JsonStore]) -> tuple[SparkShards, MemoryTable]:
        prefix = f"test-{uuid.uuid4().hex[:12]}"
        texts = {"hostile": HALF, "usual": "usual"}
        labels = {"content-type": CONTENT_TYPE_NDJSON}
        client.create_journals(*(journal_spec(f"{prefix}/{name}", labels=labels) for name in texts))
        with AppendService(client) as service:
            publisher = Publisher(service)
            for name, text in texts.items():
                document = Document({"journal": f"{prefix}/{name}", "text": text})
                publisher.publish_committed(its_journal, document).result()
        options = parse_write_options({"brokerAddress": client.endpoint, "requestTimeoutMs": "30000"})
        shards = SparkShards("/tests", [shard_spec(name, [f"{prefix}/{name}"]) for name in texts], client)
        table = MemoryTable()
        driver, engine = BatchDriver(shards, client, 1 << 20), MemoryEngine(table, app, options)
        driver.open(engine)
        driver.drain(engine)
        return shards, table

    return run


def failures(shards: SparkShards) -> dict[str, str]:
    statuses = {shard.spec.id: shard.status for shard in shards.table.running()}
    return {name: "".join(status.errors) for name, status in statuses.items() if status.errors}


def test_a_state_may_have_half_of_a_surrogate_pair(consume: Consumer) -> None:
    shards, table = consume(LastText())
    assert failures(shards) == {}
    assert table.state["hostile"] == {("state", "last"): r'"half \ud800"'}
    assert table.state["usual"] == {("state", "last"): '"usual"'}


@pytest.mark.parametrize("app", [ByText(), KeyedByText()], ids=["in the state", "of a message"])
def test_a_key_that_no_table_can_store_fails_its_shard_only(
    consume: Consumer, app: Application[JsonStore]
) -> None:
    shards, table = consume(app)
    failed = failures(shards)
    assert list(failed) == ["hostile"]
    assert r"the key 'half \ud800', which has half of a surrogate pair" in failed["hostile"]
    assert table.state == {"usual": {("state", "usual"): "true"}}


def test_an_error_that_quotes_a_record_fails_its_shard_only(consume: Consumer) -> None:
    """The quoted text can be stored neither in a table nor in a protobuf message, so it is escaped."""
    shards, table = consume(Quoting())
    assert failures(shards).keys() == {"hostile"}
    assert r"cannot count half \ud800" in failures(shards)["hostile"]
    assert table.state == {"usual": {("state", "last"): '"usual"'}}


def test_a_source_that_is_deleted_after_the_listing_fails_its_shard_only(
    client: Client, consume: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled_heads = client.settled_heads

    def delete_first(reached: Mapping[str, int]) -> dict[str, SettledHead]:
        monkeypatch.setattr(client, "settled_heads", settled_heads)
        client.apply([pb.ApplyRequest.Change(delete=min(reached), expect_mod_revision=-1)])
        return settled_heads(reached)

    monkeypatch.setattr(client, "settled_heads", delete_first)
    shards, table = consume(LastText())
    assert "it does not exist" in failures(shards)["hostile"]
    assert table.state == {"usual": {("state", "last"): '"usual"'}}


def test_a_task_holds_a_few_large_rows_of_state_at_a_time(client: Client) -> None:
    """Result batches are limited like message batches, although state is text."""
    options = parse_write_options({"brokerAddress": client.endpoint})
    job = Job("tests", LastText(), options, (), {"shard": shard_spec("shard", ["a/journal"])}, {})
    large = "x" * (BATCH_BYTES // 2)
    rows = [Row("shard", nth=nth, kind="state", key=str(nth), value=large) for nth in range(6)]
    batches = pa.RecordBatch.from_pylist([row._asdict() for row in rows])
    assert [batch.num_rows for batch in job.run([batches])] == [2, 2, 2]
