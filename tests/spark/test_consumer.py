"""The host on Spark: each message counts once in the state and in what is published, whatever fails."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gazette_spark.client import AppendService, Client
from gazette_spark.consumer.application import Application, ResolveArgs
from gazette_spark.consumer.micro_batch import STATE
from gazette_spark.consumer.spark import SparkHost
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.message import Publisher, read_committed, write_ack_intents
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol.journals import journal_spec
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.brokers import BrokerHandle
from tests.rig.messages import Document
from tests.rig.micro_batches import WordCount, counted

WAIT_S = 120
LABELS = {"content-type": CONTENT_TYPE_NDJSON}


@dataclass
class Consumer:
    """A consumer's journals, its state table, and who starts it."""

    spark: SparkSession
    client: Client
    endpoint: str
    prefix: str
    root: Path

    def name(self, short: str) -> str:
        """Return a journal's name."""
        return f"{self.prefix}{short}"

    def create(self, *shorts: str) -> None:
        """Make journals of documents."""
        self.client.create_journals(*(journal_spec(self.name(short), labels=LABELS) for short in shorts))

    def publish(self, texts: Mapping[str, Iterable[str]]) -> None:
        """Publish documents to journals, as one transaction."""
        with AppendService(self.client) as service:
            publisher = Publisher(service)
            for short, each in texts.items():
                for text in each:
                    publisher.publish_uncommitted(self._to, Document({"text": text, "to": self.name(short)}))
            service.flush()
            write_ack_intents(self.client, publisher.build_ack_intents())

    def _to(self, message: Document) -> tuple[str, str]:
        return str(message.fields["to"]), CONTENT_TYPE_NDJSON

    def shard(self, shard_id: str, *shorts: str) -> pc.ShardSpec:
        """Return the spec of a shard of some journals."""
        return shard_spec(shard_id, [self.name(short) for short in shorts], max_txn_s=60)

    def host(self, app: Application[Any], *shards: pc.ShardSpec, state: str = "") -> SparkHost:
        """Return a host, as a new process would make it."""
        return SparkHost(
            app,
            self.spark,
            shards,
            checkpoint=str(self.root / "checkpoint"),
            state=state or str(self.root / "state"),
            broker={"brokerAddress": self.endpoint, "requestTimeoutMs": "30000"},
        )

    def drain(self, host: SparkHost) -> SparkHost:
        """Have a host consume what is there."""
        query = host.start(availableNow=True)
        assert query.awaitTermination(WAIT_S), "the query did not end in time"
        return host

    def wait_through(self, host: SparkHost, shard: str, *shorts: str) -> pc.Status:
        """Wait as a caller of Stat does, until a shard has read what is in journals, or has failed."""
        heads = {self.name(short): self.client.write_head(self.name(short)) for short in shorts}
        return host.shards.resolve(ResolveArgs(shard, read_through=heads, timeout_s=WAIT_S)).status

    def totals(self) -> dict[tuple[str, str], list[int]]:
        """Return the totals that were published of each shard and word."""
        found: dict[tuple[str, str], list[int]] = {}
        for each in self.published("out"):
            found.setdefault((each["shard"], each["word"]), []).append(each["total"])
        return found

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the state of each shard, as anybody reads it from the table."""
        rows = self.spark.read.format("delta").load(str(self.root / "state")).where(f"kind = '{STATE}'")
        found: dict[str, dict[str, Any]] = {}
        for row in rows.collect():
            found.setdefault(row.shard, {})[row.key] = json.loads(row.value)
        return found

    def published(self, short: str) -> list[dict[str, Any]]:
        """Return the documents that a committed reader gets of a journal."""
        with read_committed(self.client, self.name(short)) as reader:
            found = [json.loads(bytes(each.message)) for each in reader]
        return [each for each in found if each.keys() > {"_meta"}]


@pytest.fixture
def consumer(
    spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str, tmp_path: Path
) -> Consumer:
    """A consumer of journals ``a`` and ``b`` that publishes to ``out``."""
    made = Consumer(spark, client, broker.endpoint, fresh_prefix, tmp_path)
    made.create("a", "b", "out")
    return made


def test_words_are_counted_once(consumer: Consumer) -> None:
    """Two shards, one of them of two journals, count words across starts and publish each new total."""
    app = WordCount(consumer.name("out"))
    shards = (consumer.shard("both", "a", "b"), consumer.shard("only-b", "b"))
    consumer.publish({"a": ["one two", "two"], "b": ["two three"]})
    consumer.drain(consumer.host(app, *shards))
    both, only_b = counted(["one two", "two", "two three"]), counted(["two three"])
    assert consumer.state() == {"both": both, "only-b": only_b}
    totals = {(each["shard"], each["word"]): each["total"] for each in consumer.published("out")}
    assert totals == {("both", word): both[word] for word in both} | {
        ("only-b", word): only_b[word] for word in only_b
    }
    consumer.publish({"b": ["three"]})
    consumer.drain(consumer.host(app, *shards))
    assert consumer.state() == {"both": both | {"three": 2}, "only-b": only_b | {"three": 2}}
    new = consumer.published("out")[len(totals) :]
    assert [(each["shard"], each["word"], each["total"]) for each in new] == [
        ("both", "three", 2),
        ("only-b", "three", 2),
    ]
