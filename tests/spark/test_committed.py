"""Committed messages in Spark, by stream and batch, and their rows in Delta tables after any failure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import Client, DeadLetters, DeltaSink, JournalOffsets, Upsert, backfill, verify_table
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark.cli.main import main
from gazette_spark.client import journal_spec
from gazette_spark.errors import OptionError, TableRefusedError
from gazette_spark.lag import query_lag
from gazette_spark.message import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, Clock, ProducerId, build_uuid
from gazette_spark.query_progress import OpenTransaction
from tests.rig.brokers import BrokerHandle
from tests.spark.conftest import DEADLINE_S

NOW = Clock.at(1_700_000_000_000_000_000)
SCHEMA = "id INT, _journal STRING, _offset BIGINT, _ack_offset BIGINT"


class Messages:
    def __init__(self, client: Client, journal: str) -> None:
        self.journal = journal
        self._client = client
        client.create_journals(journal_spec(journal, labels={"content-type": "application/x-ndjson"}))

    def send(self, *messages: tuple[int, int, int | None]) -> None:
        """Append messages; a negative clock is outside a transaction, and one without an id is an ACK."""
        lines = []
        for producer, clock, number in messages:
            flags = ACK_TXN if number is None else CONTINUE_TXN if clock > 0 else OUTSIDE_TXN
            uuid = build_uuid(
                ProducerId(bytes([1, 0, 0, 0, 0, producer])), Clock(NOW + 16 * abs(clock)), flags
            )
            document = {"_meta": {"uuid": str(uuid)}} | ({} if number is None else {"id": number})
            lines.append(json.dumps(document, separators=(",", ":")).encode() + b"\n")
        self._client.append(self.journal, b"".join(lines))

    def head(self) -> int:
        return self._client.write_head(self.journal)


@pytest.fixture
def messages(broker: BrokerHandle, request: pytest.FixtureRequest) -> Iterator[Messages]:
    with Client(broker.endpoint) as client:
        yield Messages(client, f"committed/{request.node.name.partition('[')[0]}/{id(client)}")


class Query:
    def __init__(self, spark: SparkSession, broker: BrokerHandle, journal: str, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.table = str(root / "table")
        self.schema = SCHEMA
        self.checkpoint = root / "checkpoint"
        self.options = {
            "brokerAddress": broker.endpoint,
            "journals": journal,
            "format": "json",
            "isolationLevel": "read_committed",
        }

    def run(
        self, sink: DeltaSink | None = None, *, resume: bool = False, **options: str
    ) -> list[OpenTransaction]:
        """Run to the current write heads; return the open transactions in the query's progress."""
        sink = sink or DeltaSink("app", path=self.table)
        given = {"stateLocation": str(self.root / "states"), "startingOffsets": "earliest"} | options
        reader = self.spark.readStream.format("gazette").options(**self.options, **given).schema(self.schema)
        if resume:
            reader = sink.resume(reader)
        checkpoint = str(self.checkpoint)
        query = sink.start(reader.load(), checkpoint=checkpoint, lane="spark", availableNow=True)
        assert query.awaitTermination(DEADLINE_S)
        lags = [query_lag(each.json) for each in query.recentProgress]
        return [one for lag in lags for each in lag.transactions for one in each.oldest]

    def batch(self) -> DataFrame:
        return self.spark.read.format("gazette").options(**self.options).schema(SCHEMA).load()

    def ids(self) -> list[int]:
        return ids(self.spark.read.format("delta").load(self.table))


def ids(rows: DataFrame) -> list[int]:
    return sorted(row.id for row in rows.select("id").collect())


@pytest.mark.soak  # The kind `committed` of test_crashes checks this in every run.
@pytest.mark.brokers("embedded", "deployed")
def test_a_table_has_each_committed_message_once(
    delta_spark: SparkSession, broker: BrokerHandle, messages: Messages, tmp_path: Path
) -> None:
    """Transactions span batches, and checkpoints and producer states get lost."""
    query = Query(delta_spark, broker, messages.journal, tmp_path)
    messages.send((1, 1, 10), (2, 1, 20), (3, -1, 30), (1, 2, 11))
    query.run()
    assert query.ids() == [30]
    messages.send((1, 2, 11), (2, 2, 21), (1, 3, None), (1, 4, 12))
    query.run()
    assert query.ids() == [10, 11, 30]
    # The checkpoint is lost; the table and the states determine where to continue.
    query.checkpoint = tmp_path / "second"
    messages.send((2, 3, None), (1, 3, None))
    query.run(resume=True)
    assert query.ids() == [10, 11, 20, 21, 30]
    # Without checkpoint and states the query reads everything again, but the table already has the rows.
    query.checkpoint = tmp_path / "third"
    at = messages.head()
    messages.send((1, 5, 13), (1, 6, 14), (1, 5, None))
    opened = query.run(
        DeltaSink("app", path=query.table, on_overlap="trim"),
        stateLocation=str(tmp_path / "others"),
        maxBytesPerTrigger="150",
    )
    assert query.ids() == [10, 11, 13, 20, 21, 30]
    assert {(each.producer, each.begin) for each in opened} == {("010000000001", at)}
    rows = query.batch()
    assert ids(rows) == query.ids()
    assert ids(rows.where("_ack_offset = _offset")) == [30]
    assert ids(rows.where("_offset < 100 AND id > 10")) == [20], "conditions are about rows, not about bytes"


def test_a_stream_goes_on_behind_a_backfill(
    delta_spark: SparkSession, broker: BrokerHandle, messages: Messages, tmp_path: Path
) -> None:
    """A transaction that begins in the backfill and ends in the stream must be complete in the table."""
    query = Query(delta_spark, broker, messages.journal, tmp_path)
    letters = DeadLetters(path=str(tmp_path / "dead"))
    sink = DeltaSink("app", path=query.table, audit=True, dead_letters=letters)
    states = {"stateLocation": str(tmp_path / "states")}
    schema = f"{SCHEMA}, _corrupt_record STRING"
    messages.send((1, 1, 10), (2, -1, 20), (3, 1, 30), (3, 1, None), (1, 2, 1 << 40), (2, -2, 21))
    with pytest.raises(OptionError, match="stateLocation"):
        backfill(sink, query.options, schema=schema, spark=delta_spark)
    backfill(sink, query.options | states, schema=schema, bytes_per_commit=300, spark=delta_spark)
    assert query.ids() == [20, 21, 30]
    messages.send((1, 3, 12), (1, 3, None), (4, 2, 41))
    query.schema = schema
    query.run(sink, resume=True)
    assert query.ids() == [10, 12, 20, 21, 30]
    [letter] = delta_spark.read.format("delta").load(str(tmp_path / "dead")).collect()
    assert (letter.reason, letter.offset < letter.ack_offset) == ("does not parse", True)
    with Client(broker.endpoint) as client:
        table = DeltaTable(path=query.table, table=None)
        report = verify_table(delta_spark, table, client, {"brokerAddress": broker.endpoint})
    assert (report.result, sum(report.records.values()), report.audited > 1) == ("verified", 6, True)


@pytest.mark.soak  # test_verify adopts a table in every run.
def test_a_table_of_committed_messages_is_adopted(
    delta_spark: SparkSession, broker: BrokerHandle, messages: Messages, tmp_path: Path
) -> None:
    """The query trims from where the table began; offsets that do not say where are refused."""
    query = Query(delta_spark, broker, messages.journal, tmp_path)
    messages.send((1, 1, 10), (2, -1, 20), (1, 2, 11))
    query.run()
    sink = DeltaSink("other", path=query.table, on_overlap="trim")
    found = CliRunner().invoke(
        main, ["offsets", "show", query.table, "--from-data", "--broker", broker.endpoint, "--format", "json"]
    )
    assert found.exit_code == 0, found.output
    ends = JournalOffsets.from_json(found.stdout)
    with pytest.raises(TableRefusedError, match="where their query began"):
        sink.adopt(ends, delta_spark)
    starts = {messages.journal: 0}
    with pytest.raises(TableRefusedError, match="to continue at 3"):
        sink.adopt(JournalOffsets({messages.journal: 3}, starts=starts), delta_spark)
    entry = sink.adopt(replace(ends, starts=starts), delta_spark)
    assert (entry.isolation, entry.starts) == ("read_committed", starts)
    assert sink.adopt(replace(ends, starts=starts), delta_spark) == entry
    messages.send((1, 2, None))
    query.checkpoint = tmp_path / "second"
    query.run(sink, stateLocation=str(tmp_path / "others"))
    assert query.ids() == [10, 11, 20]


def test_the_stream_of_the_page_runs(
    delta_spark: SparkSession, broker: BrokerHandle, messages: Messages, tmp_path: Path
) -> None:
    """The streaming example of docs/guides/messages.md runs as printed."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "messages.md"
    [block] = re.findall(r"```python\n(stream = .*?)```", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {"spark": delta_spark}
    for printed, here in (
        ("http://localhost:8080", broker.endpoint),
        ("shop/orders", messages.journal),
        ("/data", str(tmp_path)),
    ):
        block = block.replace(printed, here)
    exec(block, names)
    started = names["stream"].writeStream.format("noop").option("checkpointLocation", str(tmp_path / "query"))
    assert started.trigger(availableNow=True).start().awaitTermination(DEADLINE_S)
    messages.send((1, 1, 10), (1, 1, None))
    found = names["stream"].writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
    seen: list[Any] = []
    again = found.option("checkpointLocation", str(tmp_path / "query")).trigger(availableNow=True).start()
    assert again.awaitTermination(DEADLINE_S)
    assert [(row._offset, row._ack_offset > 0) for row in seen] == [(0, True)]
    assert list((tmp_path / "states" / "orders").rglob("*[0-9]"))


def test_other_messages_are_refused(
    delta_spark: SparkSession, broker: BrokerHandle, messages: Messages, tmp_path: Path
) -> None:
    """A table of committed messages refuses uncommitted ones, and queries that lack open transactions."""
    query = Query(delta_spark, broker, messages.journal, tmp_path)
    messages.send((1, 1, 10), (2, -1, 20))
    query.run()
    messages.send((1, 2, None))
    query.checkpoint = tmp_path / "second"
    with pytest.raises(StreamingQueryException, match="stateLocation does not have the states"):
        query.run(resume=True, stateLocation=str(tmp_path / "others"))
    end = query.spark.read.format("delta").load(query.table).count()
    assert end == 1
    query.checkpoint = tmp_path / "third"
    query.options["isolationLevel"] = "read_uncommitted"
    reader = query.spark.readStream.format("gazette").options(**query.options).schema("id INT")
    sink = DeltaSink("app", path=query.table)
    with pytest.raises(StreamingQueryException, match="isolationLevel=read_committed"):
        sink.start(
            sink.resume(reader).load(), checkpoint=str(query.checkpoint), availableNow=True
        ).awaitTermination(DEADLINE_S)
    assert query.ids() == [20]


def test_the_last_of_a_key_is_the_last_committed(
    delta_spark: SparkSession, broker: BrokerHandle, messages: Messages, tmp_path: Path
) -> None:
    """An upsert uses commit order: a message that is sent first but committed last wins."""
    query = Query(delta_spark, broker, messages.journal, tmp_path)
    messages.send((1, 1, 7), (2, 1, 7), (2, 2, None), (1, 2, None))
    query.run(DeltaSink("app", path=query.table, upsert=Upsert(keys=("id",))))
    [row] = query.spark.read.format("delta").load(query.table).collect()
    assert (row.id, row._offset) == (7, 0)
