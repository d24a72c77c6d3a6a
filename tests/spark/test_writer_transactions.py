"""Gazette's committed reader returns rows of an exactly-once write once, despite failures."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gazette_spark import Client, EmbeddedBroker
from gazette_spark._write.transaction_journal import read_state
from gazette_spark.broker import Faults
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.goclient import end_of, run_go
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import BOTH_BROKERS, QUERY_TIMEOUT_S, Journals

FAULTS = Faults()
DOCUMENTS = {"content-type": "application/x-ndjson"}
SHORTS = ("a", "b")


@pytest.fixture(scope="module")
def faulty_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    """An embedded broker that fails on request."""
    root = tmp_path_factory.mktemp("faulty")
    with EmbeddedBroker(root, faults=FAULTS) as broker:
        yield BrokerHandle(broker.endpoint, root)


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    return made(Journals(spark, broker, client, fresh_prefix))


@pytest.fixture
def faulty(spark: SparkSession, faulty_broker: BrokerHandle, fresh_prefix: str) -> Iterator[Journals]:
    """The same journals on the broker that fails."""
    with Client(faulty_broker.endpoint, timeout_s=30) as client:
        yield made(Journals(spark, faulty_broker, client, fresh_prefix))
        FAULTS.clear()


def made(journals: Journals) -> Journals:
    journals.create("from", "transactions")
    journals.create(*SHORTS, labels=DOCUMENTS)
    return journals


def options(journals: Journals) -> dict[str, str]:
    return {
        "brokerAddress": journals.broker.endpoint,
        "deliveryGuarantee": "exactly_once",
        "transactionJournal": journals.name("transactions"),
        "requestTimeoutMs": "30000",
    }


def start(journals: Journals, checkpoint: Path) -> StreamingQuery:
    rows = journals.stream("from").selectExpr(
        f"concat('{journals.prefix}', if(cast(value AS STRING) % 2 = 0, 'a', 'b')) AS journal",
        "concat('{\"n\":', cast(value AS STRING), '}') AS value",
    )
    writer = rows.writeStream.format("gazette").options(**options(journals))
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def end(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end in time"
    finally:
        query.stop()


def stream(journals: Journals, checkpoint: Path) -> None:
    end(start(journals, checkpoint))


def feed(journals: Journals, numbers: range) -> None:
    journals.append("from", b"".join(b"%d\n" % number for number in numbers))


def committed(journals: Journals) -> tuple[Counter[int], int]:
    """Return the numbers that Go's reader reads from both journals, and the number of open transactions."""
    numbers: Counter[int] = Counter()
    unfinished = 0
    for short in SHORTS:
        events = run_go(journals.broker.endpoint, "read-committed", f"--journal={journals.name(short)}")
        unfinished += end_of(events)["open"]
        values = [json.loads(each["value"]) for each in events if each["event"] == "message"]
        numbers.update(value["n"] for value in values if "n" in value)
    return numbers, unfinished


def set_flags(journals: Journals, short: str, flags: int) -> None:
    listed = journals.client.get_journal(journals.name(short))
    changed = pb.JournalSpec()
    changed.CopyFrom(listed.spec)
    changed.flags = flags
    journals.client.apply([pb.ApplyRequest.Change(expect_mod_revision=listed.mod_revision, upsert=changed)])


@BOTH_BROKERS
def test_a_stream_is_committed_once(journals: Journals, tmp_path: Path) -> None:
    feed(journals, range(100))
    set_flags(journals, "transactions", pb.JournalSpec.O_RDONLY)
    with pytest.raises(PySparkException, match="NOT_ALLOWED"):
        stream(journals, tmp_path / "checkpoint")
    assert committed(journals)[0] == Counter()
    set_flags(journals, "transactions", pb.JournalSpec.O_RDWR)
    stream(journals, tmp_path / "checkpoint")
    assert committed(journals)[0] == Counter(range(100))
    feed(journals, range(100, 150))
    stream(journals, tmp_path / "checkpoint")
    assert committed(journals)[0] == Counter(range(150))
    read = journals.batch(isolationLevel="read_committed").filter("journal LIKE '%/a'")
    assert read.count() == 75


def test_a_batch_that_died_at_any_step_is_repeated(faulty: Journals, tmp_path: Path) -> None:
    """A response is lost, then one of the intents is refused: the next run appends the recorded ones."""
    checkpoint = tmp_path / "checkpoint"
    feed(faulty, range(0, 10, 2))
    stream(faulty, checkpoint)
    feed(faulty, range(10, 20))
    barrier = FAULTS.stall(rpc="Append", journal=faulty.name("transactions"))
    FAULTS.lose_answer(journal=faulty.name("transactions"), times=2)
    query = start(faulty, checkpoint)
    assert FAULTS.wait_hit(barrier, QUERY_TIMEOUT_S)
    set_flags(faulty, "b", pb.JournalSpec.O_RDONLY)
    barrier.release()
    with pytest.raises(PySparkException, match="NOT_ALLOWED"):
        end(query)
    recorded = read_state(faulty.client, faulty.name("transactions")).newest
    assert recorded is not None
    assert committed(faulty)[0] == Counter(range(0, 20, 2))
    set_flags(faulty, "b", pb.JournalSpec.O_RDWR)
    stream(faulty, checkpoint)
    assert committed(faulty) == (Counter([*range(0, 10, 2), *range(10, 20)]), 0)
    taken = read_state(faulty.client, faulty.name("transactions")).newest
    assert taken is not None
    assert (taken.batch, taken.intents, taken.rows) == (recorded.batch, recorded.intents, 10)
    assert taken.replaced[recorded.author] == recorded.batch


def test_a_query_that_goes_back_is_refused(faulty: Journals, tmp_path: Path) -> None:
    """An old copy of the checkpoint, and another query, are refused and commit nothing."""
    feed(faulty, range(10))
    stream(faulty, tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    for numbers in (range(10, 20), range(20, 30)):
        feed(faulty, numbers)
        stream(faulty, tmp_path / "checkpoint")
    with pytest.raises(PySparkException, match=r"batch \d of query \S+ comes after batch \d was committed"):
        stream(faulty, tmp_path / "copy")
    with pytest.raises(PySparkException, match=r"it belongs to query \S+, not to"):
        stream(faulty, tmp_path / "another")
    assert committed(faulty)[0] == Counter(range(30))


def write(journals: Journals, frame: DataFrame, short: str = "a", **more: str) -> None:
    writer = frame.write.format("gazette").mode("append").options(**options(journals) | more)
    writer.save(journals.name(short))


def numbered(journals: Journals, begin: int, end: int) -> DataFrame:
    frame = journals.spark.range(begin, end, numPartitions=2)
    return frame.selectExpr("concat('{\"n\":', id, '}') AS value")


def test_a_batch_write_is_committed_once(faulty: Journals) -> None:
    """A write with the id of an earlier one changes nothing; one without an id is always a new write."""
    for _ in range(2):
        write(faulty, numbered(faulty, 0, 40), transactionId="monday")
    write(faulty, numbered(faulty, 40, 60), transactionId="tuesday")
    write(faulty, numbered(faulty, 0, 40), transactionId="monday")
    for _ in range(2):
        write(faulty, numbered(faulty, 60, 70))
    expected = Counter(range(70)) + Counter(range(60, 70))
    assert committed(faulty) == (expected, 0)
    stored = journal_bytes(faulty, "a")
    write(faulty, numbered(faulty, 0, 0))
    assert journal_bytes(faulty, "a").startswith(stored)
    assert committed(faulty)[0] == expected


def test_from_journal_to_journal(faulty: Journals, tmp_path: Path) -> None:
    """Committed messages are read and written with new UUIDs, once each, although the first attempt fails."""
    write(faulty, numbered(faulty, 0, 30))
    faulty.create("second")
    more = {"isolationLevel": "read_committed", "stateLocation": str(tmp_path / "states")}
    target = {"transactionJournal": faulty.name("second")}

    def copy() -> None:
        rows = faulty.stream("a", framing="lines", **more).select("value")
        writer = rows.writeStream.format("gazette").options(**options(faulty) | target)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        end(writer.trigger(availableNow=True).start(faulty.name("b")))

    set_flags(faulty, "second", pb.JournalSpec.O_RDONLY)
    with pytest.raises(PySparkException, match="NOT_ALLOWED"):
        copy()
    set_flags(faulty, "second", pb.JournalSpec.O_RDWR)
    copy()
    write(faulty, numbered(faulty, 30, 40))
    copy()
    assert committed(faulty)[0] == Counter(range(40)) + Counter(range(40))


def journal_bytes(journals: Journals, short: str) -> bytes:
    head = journals.client.write_head(journals.name(short))
    with journals.client.read(journals.name(short), end_offset=head) as reader:
        return reader.read()


def test_a_task_that_fails_rolls_its_rows_back(faulty: Journals) -> None:
    """The failed task's rows neither count nor stay open, including those of earlier record batches."""
    rows_at_once = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(faulty.spark.conf.get(rows_at_once))
    faulty.spark.conf.set(rows_at_once, "10")
    frame = numbered(faulty, 0, 100).coalesce(1).selectExpr("if(value LIKE '%99%', '[99]', value) AS value")
    try:
        with pytest.raises(
            PySparkException, match=r"row 99 .*no place for a UUID: not a JSON object.*uuidPath"
        ):
            write(faulty, frame)
    finally:
        faulty.spark.conf.set(rows_at_once, before)
    assert len(journal_bytes(faulty, "a")) > 1000
    assert committed(faulty) == (Counter(), 0)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        pytest.param({"framing": "none"}, "'framing': got none for journal", id="framing"),
        pytest.param({"uuidPath": "7"}, "'uuidPath': got '7'; expected a JSON pointer", id="uuid_path"),
        pytest.param({"transactionFirstBatch": "3"}, "to be used by a stream only", id="first_batch"),
    ],
)
def test_what_is_wrong_fails_before_anything_is_written(
    faulty: Journals, more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(faulty, numbered(faulty, 0, 5), **more)
    assert problem in str(caught.value)
    with pytest.raises(PySparkException, match="which rows are written to"):
        write(faulty, numbered(faulty, 0, 5), "transactions")
    assert journal_bytes(faulty, "a") == b""
