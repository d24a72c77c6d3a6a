"""The host on Spark counts each message once in its state and its published results, despite failures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import Client, LedgerEntry
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.session import current_catalog, session_settings
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.consumer import Application, ResolveArgs, SparkHost, shard_spec
from gazette_spark.consumer import spark as spark_host
from gazette_spark.consumer.batch_driver import BatchDriver
from gazette_spark.consumer.micro_batch import STATE
from gazette_spark.consumer.spark import SparkBatchEngine
from gazette_spark.failpoints import FailpointError, calling
from gazette_spark.message import Publisher, read_committed, write_ack_intents
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.brokers import BrokerHandle
from tests.rig.messages import Document
from tests.rig.micro_batches import KeyedWordCount, Refusing, Waiting, WordCount, counted
from tests.spark.test_sink_conflicts import held_up, in_another_catalog, wait_for
from tests.waiting import wait_until

WAIT_S = 120
LABELS = {"content-type": CONTENT_TYPE_NDJSON}


@dataclass
class Consumer:
    spark: SparkSession
    client: Client
    endpoint: str
    prefix: str
    root: Path

    def name(self, short: str) -> str:
        return f"{self.prefix}{short}"

    def create(self, *shorts: str) -> None:
        self.client.create_journals(*(journal_spec(self.name(short), labels=LABELS) for short in shorts))

    def publish(self, texts: Mapping[str, Iterable[str]]) -> None:
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
        return shard_spec(shard_id, [self.name(short) for short in shorts], max_txn_s=60)

    def host(self, app: Application[Any], *shards: pc.ShardSpec, state: str = "") -> SparkHost:
        return SparkHost(
            app,
            self.spark,
            shards,
            checkpoint=str(self.root / "checkpoint"),
            state=state or str(self.root / "state"),
            broker={"brokerAddress": self.endpoint, "requestTimeoutMs": "30000"},
        )

    def drain(self, host: SparkHost) -> SparkHost:
        query = host.start(availableNow=True)
        assert query.awaitTermination(WAIT_S), "the query did not end in time"
        return host

    def wait_through(self, host: SparkHost, shard: str, *shorts: str) -> pc.Status:
        """Wait, as a caller of Stat does, until a shard has read the journals or has failed."""
        heads = {self.name(short): self.client.write_head(self.name(short)) for short in shorts}
        return host.shards.resolve(ResolveArgs(shard, read_through=heads, timeout_s=WAIT_S)).status

    def totals(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        for each in self.published("out"):
            found.setdefault((each["shard"], each["word"]), []).append(each["total"])
        return found

    def state(self) -> dict[str, dict[str, Any]]:
        rows = self.spark.read.format("delta").load(str(self.root / "state")).where(f"kind = '{STATE}'")
        found: dict[str, dict[str, Any]] = {}
        for row in rows.collect():
            found.setdefault(row.shard, {})[row.key] = json.loads(row.value)
        return found

    def published(self, short: str) -> list[dict[str, Any]]:
        """Return the documents that a committed reader reads from a journal."""
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


@pytest.mark.soak
def test_words_are_counted_once(consumer: Consumer) -> None:
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


def dying(point: str) -> AbstractContextManager[None]:
    def die() -> None:
        raise FailpointError(point)

    return calling(point, die)


@pytest.mark.soak
def test_a_transaction_that_died_is_whole_or_is_not(consumer: Consumer) -> None:
    """A crash before the commit discards the transaction; after it, the next start acknowledges it."""
    app, shard = WordCount(consumer.name("out")), consumer.shard("both", "a", "b")
    consumer.publish({"a": ["one two"], "b": ["two"]})
    with dying("micro_batch.run"), pytest.raises(StreamingQueryException, match=r"micro_batch\.run"):
        consumer.drain(consumer.host(app, shard))
    assert consumer.state() == {}
    with dying("micro_batch.committed"), pytest.raises(StreamingQueryException):
        consumer.drain(consumer.host(app, shard))
    assert consumer.state() == {"both": {"one": 1, "two": 2}}
    assert consumer.totals() == {}
    consumer.publish({"b": ["two"]})
    consumer.drain(consumer.host(app, shard))
    assert consumer.state() == {"both": {"one": 1, "two": 3}}
    assert consumer.totals() == {("both", "one"): [1], ("both", "two"): [2, 3]}


@pytest.mark.soak
def test_a_start_deletes_only_the_files_of_hosts_that_it_has_fenced_off(consumer: Consumer) -> None:
    """A table of states may even be beside them."""
    app, shard = WordCount(consumer.name("out")), consumer.shard("on-a", "a")
    files = consumer.root / "checkpoint" / "consumer"
    earlier, later = files / "host-earlier", files / "host-later"
    earlier.mkdir(parents=True)
    seen = []

    def opened() -> None:
        seen.append(earlier.exists())
        later.mkdir()

    consumer.publish({"a": ["one"]})
    with calling("micro_batch.opened", opened):
        consumer.drain(consumer.host(app, shard, state=str(files / "state")))
    assert seen == [True]
    assert (earlier.exists(), later.exists()) == (False, True)
    consumer.drain(consumer.host(app, shard, state=str(files / "state")))
    assert consumer.totals() == {("on-a", "one"): [1]}


@pytest.mark.soak
def test_a_host_that_is_fenced_off_late_commits_all_or_nothing(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host of the checkpoint starts when one of two tasks of a transaction has ended."""
    spark, go = consumer.spark, consumer.root / "go"
    rows = spark.range(-1, 100).selectExpr("if(id < 0, '', concat('w', id)) AS word")
    placed = rows.selectExpr("word", "pmod(hash('both', word), 2) AS part").collect()
    parts = {row.word: row.part for row in placed}
    slow = next(word for word, part in parts.items() if word and part == parts[""])
    fast = next(word for word, part in parts.items() if part != parts[""])
    app, shard = Waiting(consumer.name("out"), slow, str(go)), consumer.shard("both", "a")
    open_table = spark_host.StateTable.open

    def open_late(self: spark_host.StateTable, session: SparkSession) -> Any:
        go.touch()
        wait_until("a commit", lambda: not query.isActive or bool(consumer.state()), WAIT_S)
        return open_table(self, session)

    with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        query = consumer.host(app, shard).start(processingTime="200 milliseconds")
        try:
            consumer.publish({"a": [slow, fast]})
            files = consumer.root / "checkpoint" / "consumer"
            wait_until("the end of a task", lambda: any(files.glob("*/results/_temporary/0/task_*")), WAIT_S)
            monkeypatch.setattr(spark_host.StateTable, "open", open_late)
            consumer.drain(consumer.host(app, shard))
        finally:
            query.stop()
    assert consumer.state() == {"both": {slow: 1, fast: 1}}


@pytest.mark.soak
def test_transactions_look_up_the_table_in_the_catalog_of_the_start(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, seen = consumer.spark, []

    def transaction(_self: BatchDriver, engine: SparkBatchEngine, _journals: object = None) -> bool:
        seen.append(current_catalog(engine.spark))
        return False

    # Only Spark's own catalog has Delta tables here.
    monkeypatch.setattr(BatchDriver, "open", lambda *_: None)
    monkeypatch.setattr(BatchDriver, "transaction", transaction)
    with in_another_catalog(spark):
        host = SparkHost(
            WordCount(consumer.name("out")),
            spark,
            [consumer.shard("on-a", "a")],
            checkpoint=str(consumer.root / "checkpoint"),
            table="words",
            broker={"brokerAddress": consumer.endpoint},
        )
        consumer.drain(host)
        assert set(seen) == {current_catalog(spark)}


@pytest.mark.soak
def test_compaction_changes_nothing(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others compact the state table at every step of a transaction and during its commit, then the host.

    Each transaction has a new word and so adds a file, which gives compaction something to do.
    """
    app, shard, table = WordCount(consumer.name("out")), consumer.shard("on-a", "a"), consumer.root / "state"
    counts: dict[str, int] = {}
    tries: list[str] = []

    def transaction(text: str) -> None:
        consumer.publish({"a": [text]})
        consumer.drain(consumer.host(app, shard))
        for word in text.split():
            counts[word] = counts.get(word, 0) + 1
        assert consumer.state() == {"on-a": counts}

    def optimize() -> None:
        consumer.spark.sql(f"OPTIMIZE delta.`{table}`").collect()

    def optimize_meanwhile(reached: Path, go: Path) -> None:
        try:
            wait_for(str(reached))
            optimize()
        finally:
            go.touch()

    replace = DeltaTable.replace

    def replace_late(
        self: DeltaTable, df: DataFrame, entry: LedgerEntry, location: str, condition: str
    ) -> None:
        tries.append(entry.attempt)
        if len(tries) > 1:
            replace(self, df, entry, location, condition)
            return
        reached, go = consumer.root / "reached", consumer.root / "go"
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(optimize_meanwhile, reached, go)
            replace(self, held_up(df, reached, go), entry, location, condition)
            others.result()

    transaction("one")
    transaction("two")
    for point in ("micro_batch.planned", "micro_batch.run"):
        with calling(point, optimize):
            transaction(f"after-{point}")
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "replace", replace_late)
        transaction("one three")
    assert len(tries) == 2, "Delta turns the commit down once"
    monkeypatch.setattr(spark_host, "COMPACT_EVERY", 1)
    transaction("four")
    history = consumer.spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    assert [row.operation for row in history].count("OPTIMIZE") == 4
    assert consumer.totals() == {("on-a", word): list(range(1, n + 1)) for word, n in counts.items()}


@pytest.mark.soak  # conformance/test_local_host.py tests the same with the other host in every run.
def test_shards_fail_and_come_and_go_while_the_query_runs(consumer: Consumer, tmp_path: Path) -> None:
    """A shard whose code raises stops alone, and resumes when it is reassigned; a new shard reads everything.

    A host that starts later fences off the running one.
    """
    app = Refusing(consumer.name("out"), str(tmp_path / "refused"))
    host = consumer.host(app, consumer.shard("on-a", "a"), consumer.shard("on-b", "b"))
    query = host.start(processingTime="200 milliseconds")
    try:
        (tmp_path / "refused").touch()
        consumer.publish({"a": ["poison"], "b": ["fine"]})
        assert consumer.wait_through(host, "on-b", "b") == pc.OK
        assert consumer.wait_through(host, "on-a", "a") == pc.SHARD_STOPPED
        failed = host.shards.list_shards().shards[0].status[0]
        assert failed.code == pc.ReplicaStatus.FAILED
        assert "consume_message of journal" in failed.errors[0]
        (tmp_path / "refused").unlink()
        late = pc.ApplyRequest.Change(upsert=consumer.shard("on-both", "a", "b"))
        assert host.shards.apply([late]).status == pc.OK
        assert list(host.shards.unassign(["on-a", "on-b"], only_failed=True).shards) == ["on-a"]
        assert consumer.wait_through(host, "on-a", "a") == pc.OK
        assert consumer.wait_through(host, "on-both", "a", "b") == pc.OK
        expected = {"on-a": {"poison": 1}, "on-b": {"fine": 1}, "on-both": {"fine": 1, "poison": 1}}
        assert consumer.state() == expected
        consumer.root = tmp_path / "other"
        late_host = consumer.host(app, consumer.shard("on-b", "b"), state=str(tmp_path / "state"))
        consumer.drain(late_host)
        consumer.publish({"b": ["fine"]})
        with pytest.raises(StreamingQueryException, match="fenced by"):
            query.awaitTermination(WAIT_S)
        consumer.drain(consumer.host(app, consumer.shard("on-b", "b"), state=str(tmp_path / "state")))
        consumer.root = tmp_path
        assert consumer.state() == expected | {"on-b": {"fine": 2}}
        assert consumer.totals()["on-b", "fine"] == [1, 2]
    finally:
        query.stop()


@pytest.mark.soak  # A notebook runs an application on Spark in every run.
def test_an_application_with_keys_gets_the_entry_of_each(consumer: Consumer) -> None:
    """Keys are spread over tasks, but the shard still has one checkpoint and one transaction."""
    app, shard = KeyedWordCount(consumer.name("out")), consumer.shard("both", "a", "b")
    consumer.publish({"a": ["one", "two"], "b": ["two", "three"]})
    consumer.drain(consumer.host(app, shard))
    consumer.publish({"a": ["one"]})
    # Only keys with messages go through tasks; the state of other keys need not be loaded.
    table = spark_host.StateTable("anybody", path=str(consumer.root / "state"), table=None)
    touched = consumer.spark.createDataFrame([("both", "one"), ("other", "two")], "shard STRING, key STRING")
    rows = table.state(consumer.spark, ["both", "other"], touched).collect()
    assert [(row.shard, row.key, row.value) for row in rows] == [("both", "one", "1")]
    consumer.drain(consumer.host(app, shard))
    assert consumer.state() == {"both": {"one": 2, "two": 2, "three": 1}}
    assert consumer.totals() == {
        ("both", "one"): [1, 2],
        ("both", "two"): [2],
        ("both", "three"): [1],
    }
