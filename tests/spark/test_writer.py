"""Rows written by Spark become records of their journals; none is lost or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from gazette_spark import Client
from gazette_spark.client._append.mappings import ModuloMapping, RendezvousMapping
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import BOTH_BROKERS, QUERY_TIMEOUT_S, Journals

NDJSON = {"content-type": "application/x-ndjson"}


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    return Journals(spark, broker, client, fresh_prefix)


def write(journals: Journals, frame: DataFrame, short: str | None = None, **options: Any) -> None:
    """Write a batch to a journal, to the prefix (""), or to the journals that rows and options name."""
    writer = frame.write.format("gazette").mode("append")
    writer = writer.options(brokerAddress=journals.broker.endpoint, **options)
    writer.save(None if short is None else journals.name(short))


def stream(journals: Journals, frame: DataFrame, short: str, checkpoint: Path, **options: Any) -> None:
    writer = frame.writeStream.format("gazette").trigger(availableNow=True)
    writer = writer.options(
        brokerAddress=journals.broker.endpoint, checkpointLocation=str(checkpoint), **options
    )
    query = writer.start(journals.name(short))
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end in time"
    finally:
        query.stop()


def content(journals: Journals, short: str) -> bytes:
    head = journals.client.write_head(journals.name(short))
    with journals.client.read(journals.name(short), end_offset=head) as reader:
        return reader.read() if head else b""


def values(journals: Journals, short: str = "", **options: Any) -> Counter[bytes]:
    return Counter(bytes(row.value) for row in journals.batch(short, **options).select("value").collect())


@pytest.mark.parametrize(
    ("framing", "rows"),
    [
        pytest.param("lines", [b"", b"one", "zwei ü".encode(), b"\x00\xff\r"], id="lines"),
        pytest.param("fixed", [b"", b"a\nb", b"f3\x936", b"x" * 100_000], id="fixed"),
        pytest.param("csv", [b"1,a", b'2,"b\nc"', b'3,""'], id="csv"),
    ],
)
def test_what_is_written_is_read_again(journals: Journals, framing: str, rows: list[bytes]) -> None:
    journals.create("a")
    frame = journals.spark.createDataFrame([(bytearray(row),) for row in rows], "value BINARY")
    write(journals, frame, "a", framing=framing)
    assert values(journals, "a", framing=framing) == Counter(rows)


def test_bytes_without_framing_are_written_as_they_are(journals: Journals) -> None:
    journals.create("a")
    frame = journals.spark.range(0, 30_000, numPartitions=1).selectExpr("concat(id, ';') AS value")
    write(journals, frame, "a", framing="none")
    assert content(journals, "a") == b"".join(b"%d;" % n for n in range(30_000))


@BOTH_BROKERS
def test_rows_go_to_the_journals_they_name(journals: Journals) -> None:
    """Each journal's label sets the framing; a name in the option applies to all rows."""
    journals.create("lines", labels=NDJSON)
    journals.create("fixed", labels={"content-type": "application/x-protobuf-fixed"})
    frame = journals.spark.range(200).select(
        f.concat(f.lit(journals.prefix), f.when(f.col("id") % 2 == 0, "lines").otherwise("fixed")).alias(
            "Journal"
        ),
        f.col("id").cast("string").alias("VALUE"),
        f.col("id"),
    )
    write(journals, frame)
    assert values(journals, "lines") == Counter(b"%d" % n for n in range(0, 200, 2))
    assert values(journals, "fixed") == Counter(b"%d" % n for n in range(1, 200, 2))
    write(journals, frame.limit(3), "lines")
    assert values(journals, "lines").total() == 103


@pytest.mark.parametrize(
    ("mapping", "maps"),
    [
        pytest.param("modulo", ModuloMapping, id="modulo", marks=pytest.mark.soak),
        pytest.param("rendezvous", RendezvousMapping, id="rendezvous"),
    ],
)
def test_keys_choose_the_journals_that_other_clients_choose(
    journals: Journals, mapping: str, maps: Callable[..., Any]
) -> None:
    """The same hash chooses among the same journals; a journal beside the prefix gets no row."""
    journals.create("a", "b", "c")
    Journals(journals.spark, journals.broker, journals.client, journals.prefix[:-1] + "-beside/").create("a")
    frame = journals.spark.range(300).selectExpr("concat('key ', id) AS key", "cast(id AS string) AS value")
    write(journals, frame, "", mapping=mapping)
    expected = maps(lambda key: key, journals.client.list_journals(f"prefix={journals.prefix}"))
    found = {short: values(journals, short) for short in "abc"}
    for number in range(300):
        journal, _ = expected(b"key %d" % number)
        assert found[journal.removeprefix(journals.prefix)][b"%d" % number] == 1
    assert sum(each.total() for each in found.values()) == 300


def test_rows_without_a_key_are_shared_out(journals: Journals) -> None:
    """Rows without a key are spread over the journals at random; there are enough for each to get some."""
    journals.create("a", "b", labels={"app.gazette.dev/tag": journals.prefix + "tag"})
    frame = journals.spark.range(400).selectExpr("cast(id AS string) AS value")
    write(journals, frame, selector=f"app.gazette.dev/tag={journals.prefix}tag")
    assert values(journals) == Counter(b"%d" % n for n in range(400))
    assert min(values(journals, short).total() for short in "ab") > 100


def test_a_stream_is_written_and_goes_on(journals: Journals, tmp_path: Path) -> None:
    journals.create("from", "to")
    journals.append("from", b"1\n2\n")
    frame = journals.stream("from").select("value")
    stream(journals, frame, "to", tmp_path / "checkpoint")
    assert content(journals, "to") == b"1\n2\n"
    journals.append("from", b"3\n")
    stream(journals, frame, "to", tmp_path / "checkpoint")
    assert content(journals, "to") == b"1\n2\n3\n"


def test_a_query_without_rows_writes_nothing(journals: Journals) -> None:
    journals.create("a")
    write(journals, journals.spark.range(0).selectExpr("'x' AS value"), "a")
    assert content(journals, "a") == b""


@pytest.mark.parametrize(
    ("column", "options", "problem"),
    [
        pytest.param("id AS value", {}, "column value bigint; expected value binary or string", id="column"),
        pytest.param("'a' AS value", {"framing": "fixed"}, "framing lines or none", id="label"),
        pytest.param("'a' AS value", {"startingOffsets": "latest"}, "an unknown option", id="option"),
    ],
)
def test_what_is_wrong_with_all_rows_fails_before_anything_is_written(
    journals: Journals, column: str, options: dict[str, str], problem: str
) -> None:
    journals.create("a", labels=NDJSON)
    with pytest.raises(PySparkException) as caught:
        write(journals, journals.spark.range(3).selectExpr(column), "a", **options)
    assert problem in str(caught.value)
    assert content(journals, "a") == b""


def test_journals_that_do_not_exist_are_not_made(journals: Journals) -> None:
    """This applies to journals named by an option, a selector or a row."""
    frame = journals.spark.range(1).selectExpr("'a' AS value")
    with pytest.raises(PySparkException, match="JOURNAL_NOT_FOUND: option 'path' names it"):
        write(journals, frame, "missing")
    with pytest.raises(PySparkException, match="which matches no journal"):
        write(journals, frame, "")
    named = frame.withColumn("journal", f.lit(journals.name("missing")))
    with pytest.raises(PySparkException, match="JOURNAL_NOT_FOUND: the column journal names it"):
        write(journals, named)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(
            "concat(id, '\\n')", "row 7 .*its value contains a newline.*framing=fixed", id="newline"
        ),
        pytest.param("cast(null AS string)", "row 7 .*its value is null", id="null"),
        pytest.param(
            "repeat('x', 2000)", "row 7 .*2000 bytes, more than the 1024 of maxRecordBytes", id="long"
        ),
    ],
)
def test_a_row_that_cannot_be_written_is_named(journals: Journals, value: str, problem: str) -> None:
    journals.create("a")
    frame = journals.spark.range(0, 10, numPartitions=1)
    frame = frame.selectExpr(f"if(id = 7, {value}, cast(id AS string)) AS value")
    with pytest.raises(PySparkException, match=problem):
        write(journals, frame, "a", maxRecordBytes="1k")
    assert content(journals, "a") == b""


def test_journals_are_not_overwritten(journals: Journals) -> None:
    journals.create("a")
    frame = journals.spark.range(1).selectExpr("'a' AS value")
    writer = frame.write.format("gazette").mode("overwrite").option("brokerAddress", journals.broker.endpoint)
    with pytest.raises(PySparkException, match="journals only grow"):
        writer.save(journals.name("a"))


def test_an_option_of_writing_is_refused_when_reading(journals: Journals) -> None:
    """Spark does not tell the source whether options are for reading or writing.

    Spark 4.2 does not call a source with a given schema before the query runs.
    """
    with pytest.raises(PySparkException, match="'journal': got an unknown option; expected 'journals'"):
        journals.spark.read.format("gazette").schema("value BINARY").options(
            brokerAddress=journals.broker.endpoint, journal=journals.name("a")
        ).load().collect()


def test_only_appending_is_a_way_to_write(journals: Journals, tmp_path: Path) -> None:
    journals.create("from", "to")
    rows = journals.batch("from").select("value")
    with pytest.raises(PySparkException, match=r"Please use either the .Append. or"):
        rows.write.format("gazette").save(journals.name("to"))
    streamed = journals.stream("from").selectExpr("count(*) || '' AS value")
    address = journals.broker.endpoint
    for mode, problem in {"update": "does not support.*[Uu]pdate", "complete": "journals only grow"}.items():
        writer = streamed.writeStream.format("gazette").outputMode(mode).option("brokerAddress", address)
        writer = writer.option("checkpointLocation", str(tmp_path / mode)).trigger(availableNow=True)
        with pytest.raises(PySparkException, match=problem):
            writer.start(journals.name("to")).awaitTermination(QUERY_TIMEOUT_S)


def test_a_micro_batch_that_failed_is_written_again(journals: Journals, tmp_path: Path) -> None:
    """Rows of the failed attempt may be duplicated, but none is missing."""
    journals.create("from", "to")
    expected = [b"%d" % n for n in range(500)] + [b"x" * 2000]
    journals.append("from", b"".join(line + b"\n" for line in expected))
    frame = journals.stream("from").select("value")
    rows_at_once = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(journals.spark.conf.get(rows_at_once))
    journals.spark.conf.set(rows_at_once, "100")
    try:
        with pytest.raises(PySparkException, match=r"row 500 .*maxRecordBytes"):
            stream(journals, frame, "to", tmp_path / "checkpoint", maxRecordBytes="1k")
    finally:
        journals.spark.conf.set(rows_at_once, before)
    left = values(journals, "to")
    stream(journals, frame, "to", tmp_path / "checkpoint")
    assert values(journals, "to") == left + Counter(expected)
    assert left <= Counter(expected)
