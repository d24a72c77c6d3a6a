"""The direct lane writes the same tables as the sink, on the same ledger, in any interleaving."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from deltalake import DeltaTable as Snapshot
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import Client, DeltaSink, NewTable, Upsert, ingest, ingest_batch
from gazette_spark._delta import file_commits
from gazette_spark._delta.heartbeat import Heartbeat
from gazette_spark._delta.session import session_settings
from gazette_spark.errors import OptionError, SchemaMismatchError, TableRefusedError
from gazette_spark.failpoints import FailpointError, calling
from gazette_spark.locations import local_path
from tests.rig.brokers import BrokerHandle
from tests.rig.object_store import ObjectStore
from tests.spark.source_queries import QUERY_TIMEOUT_S, Journals
from tests.waiting import wait_until

EVENT = (
    "id BIGINT, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, text STRING, ok BOOLEAN, small TINYINT, "
    "half SMALLINT, whole INT, real FLOAT, number DOUBLE, price DECIMAL(12, 2), big DECIMAL(38, 10), "
    "raw BINARY, tags ARRAY<STRING>, counts MAP<STRING, BIGINT>, "
    "item STRUCT<name: STRING, at: TIMESTAMP, parts: ARRAY<STRUCT<n: INT, s: STRING>>>, "
    "_journal STRING, _offset BIGINT"
)
"""DDL with a column of each type that the format ``json`` reads."""


def event(number: int) -> dict[str, Any]:
    """Return a record with a value for each column, some of them missing, long or unusual."""
    return {
        "id": number,
        "day": f"2026-{1 + number % 12:02}-0{1 + number % 9}",
        "at": f"2026-03-01T00:00:{number % 60:02}.{number:06}Z",
        "local": f"1969-12-31T23:59:{number % 60:02}.5",
        "text": ["", "é\U0001f600" * 20, "x" * 31 + "\U0010ffff" * 3, None, "plain"][number % 5],
        "ok": number % 2 == 0,
        "small": number % 100 - 50,
        "half": -number,
        "whole": number * 1000,
        "real": number / 8,
        "number": "NaN" if number == 7 else number / 3,
        "price": f"{number}.25",
        "big": f"{number}123456789012345678.0123456789",
        "raw": "AAEC",
        "tags": [] if number % 3 else ["a", None, str(number)],
        "counts": {"one": number} if number % 4 else None,
        "item": {"name": f"n{number}", "at": "2026-01-01T00:00:00Z", "parts": [{"n": number, "s": None}]},
    }


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    made = Journals(spark, broker, client, fresh_prefix)
    made.create("a", "b")
    append(made, 0, 40)
    return made


def append(journals: Journals, first: int, end: int) -> None:
    for short, rest in (("a", 0), ("b", 1)):
        lines = [json.dumps(event(n)).encode() + b"\n" for n in range(first, end) if n % 2 == rest]
        journals.append(short, b"".join(lines))


Lane = Literal["auto", "spark", "direct"]


class Lanes:
    """One query, with a table for each lane."""

    def __init__(self, journals: Journals, root: Path) -> None:
        self.journals = journals
        self.spark = journals.spark
        self.root = root

    def sink(self, name: str, **options: Any) -> DeltaSink:
        return DeltaSink("orders", path=str(self.root / name), **options)

    def reader(self, **options: Any) -> Any:
        reader = self.spark.readStream.format("gazette").schema(EVENT)
        return reader.options(
            brokerAddress=self.journals.broker.endpoint,
            path=self.journals.prefix,
            format="json",
            startingOffsets="earliest",
            **options,
        )

    def run(self, name: str, lane: Lane, *, checkpoint: str | None = None, **options: Any) -> None:
        sink, root = self.sink(name, **options), str(self.root / (checkpoint or f"{name}-checkpoint"))
        reader = self.reader(maxBytesPerTrigger=16000)
        if lane == "direct":
            query = ingest(reader, sink, checkpoint=root, availableNow=True)
            assert reader.load().columns == self.reader().load().columns, "ingest leaves the reader as it was"
        else:
            query = sink.start(reader.load(), checkpoint=root, lane=lane, availableNow=True)
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    def table(self, name: str) -> DataFrame:
        """Return the rows of a table as texts, because maps cannot be compared."""
        rows = self.spark.read.format("delta").load(str(self.root / name))
        return rows.withColumn("counts", rows.counts.cast("string"))

    def assert_equal(self, one: str, other: str) -> None:
        describe = "DESCRIBE TABLE delta.`{}`"
        kinds = [self.spark.sql(describe.format(self.root / name)).collect() for name in (one, other)]
        assert kinds[0] == kinds[1]
        assert self.table(one).exceptAll(self.table(other)).collect() == []
        assert self.table(other).exceptAll(self.table(one)).collect() == []


@pytest.fixture
def lanes(journals: Journals, tmp_path: Path) -> Lanes:
    return Lanes(journals, tmp_path)


def test_a_bare_stream_takes_the_direct_lane_by_itself(
    lanes: Lanes, caplog: pytest.LogCaptureFixture
) -> None:
    """Tables and queries that need Spark's writer fall back to it, and the log says why."""

    def taken(name: str) -> str:
        caplog.clear()
        with caplog.at_level("INFO", logger="gazette_spark.sink"):
            lanes.run(name, "auto")
        (line,) = [record.getMessage() for record in caplog.records if "lane=" in record.message]
        return line

    assert taken("table").startswith("lane=direct app_id=orders")
    assert "delta-rs" in Snapshot(lanes.root / "table").history(1)[0]["engineInfo"]
    append(lanes.journals, 40, 44)
    lanes.spark.sql(f"ALTER TABLE delta.`{lanes.root}/table` ADD CONSTRAINT positive CHECK (id >= 0)")
    assert "lane=spark app_id=orders" in (line := taken("table"))
    assert "positive" in line
    lanes.run("spark", "spark")
    lanes.assert_equal("table", "spark")


def test_a_table_whose_making_was_killed_is_made(lanes: Lanes) -> None:
    """Delta treats a log without a commit, and files without a log, as a table and does not create one."""
    log = lanes.root / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.5f1c.tmp").write_text("{")
    (lanes.root / "table" / "part-00000-5f1c-c000.parquet").write_text("not committed")
    lanes.run("table", "direct")
    assert lanes.table("table").count() == 40


def test_a_table_that_was_moved_is_not_made_again(lanes: Lanes) -> None:
    """An empty table would be in its way. Only the first batch of a query may find no table."""
    lanes.run("table", "direct")
    table = lanes.root / "table"
    moved = table.rename(lanes.root / "moved")
    append(lanes.journals, 40, 50)
    with pytest.raises(TableRefusedError, match="there is no such table, but the query of the checkpoint"):
        lanes.run("table", "direct")
    with pytest.raises(StreamingQueryException, match=r"GapError.*there is no such table"):
        lanes.run("table", "auto")
    assert not table.exists()
    moved.rename(table)
    lanes.run("table", "auto")
    assert lanes.table("table").count() == 50


def test_the_direct_lane_is_refused_to_rows_that_are_transformed(lanes: Lanes) -> None:
    rows = lanes.reader().load().where("id >= 0")
    start = partial(lanes.sink("table").start, rows, checkpoint=str(lanes.root / "checkpoint"))
    with pytest.raises(OptionError, match=r"'lane': got direct, of a stream with transformations"):
        start(lane="direct")
    with pytest.raises(OptionError, match=r"'lane': got 'fast'; expected 'auto', 'spark' or 'direct'"):
        start(lane="fast")  # type: ignore[arg-type]  # on purpose
    assert not (lanes.root / "table").exists()


def test_both_lanes_leave_the_same_table(lanes: Lanes) -> None:
    new = NewTable(partition_by=["ok", "day"])
    lanes.run("spark", "spark", new_table=new)
    lanes.run("direct", "direct", new_table=new)
    append(lanes.journals, 40, 60)
    lanes.run("spark", "direct", new_table=new)
    lanes.run("direct", "spark", new_table=new)
    lanes.assert_equal("spark", "direct")
    assert lanes.table("direct").count() == 60
    filters = (
        "id > 57",
        "at >= '2026-03-01T00:00:10.000010Z'",
        "at <= '2026-03-01T00:00:10.000010Z'",
        "number > 1000",
        "text >= repeat('x', 31)",
        "price = 17.25",
        "big > 50123456789012345678",
        "item.name = 'n9'",
        "local < '1969-12-31T23:59:01'",
        "day = '2026-02-02'",
        "small IS NULL",
        "text IS NULL",
    )
    for text in filters:
        counts = [lanes.table(name).where(text).count() for name in ("spark", "direct")]
        assert counts[0] == counts[1], text
    read = Snapshot(str(lanes.root / "direct")).to_pyarrow_table(columns=["id", "at", "item"])
    assert sorted(read.column("id").to_pylist()) == list(range(60))
    entries = [lanes.sink(name).ledger() for name in ("spark", "direct")]
    assert entries[0] is not None
    assert entries[1] is not None
    assert entries[0].end == entries[1].end


def partition_values(table: Path) -> set[str]:
    """Return the values of a table's partitions, as its log records them."""
    logs = (path.read_text().splitlines() for path in (table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for lines in logs for line in lines]
    return {json.dumps(each["add"]["partitionValues"], sort_keys=True) for each in actions if "add" in each}


EXTREMES: tuple[dict[str, Any], ...] = (
    {"day": "+10000-01-01", "at": "+10000-01-01T00:00:00Z", "local": "+10000-01-01T00:00:00"},
    {"day": "0000-01-01", "at": "0000-01-01T00:00:00Z", "local": "0000-01-01T00:00:00"},
    {"day": "-0001-12-31", "at": "-0001-12-31T00:00:00Z"},
    {"day": "9999-12-31", "at": "9999-12-31T23:59:59.999999Z", "number": "NaN", "real": "-Infinity"},
    {"day": None, "text": "", "number": -0.0, "real": -0.0, "price": "-0.00", "small": -128},
    {"price": "9999999999.99", "small": 127},
    {"text": "null", "price": "-9999999999.99", "big": "9" * 28 + "." + "9" * 10},
    {"text": "a/b=c%20d%é#?&'\"`\\{}[]*:", "number": 5e-324, "real": 1e-45},
    {"text": " blank ", "number": 1.7976931348623157e308},
    {"text": "\t\n\x7f\U0001f600\ud7ff\ue000", "half": -32768, "whole": -(2**31), "id": -(2**63)},
)
"""Records with values that libraries write differently, or not at all."""


def test_both_lanes_write_extreme_values_alike(lanes: Lanes) -> None:
    """The values include partition values; deltalake must be able to open both tables."""
    lines = [json.dumps(event(100 + n) | each) + "\n" for n, each in enumerate(EXTREMES)]
    lanes.journals.append("a", "".join(lines).encode())
    for lane in ("spark", "direct"):
        lanes.run(lane, lane, new_table=NewTable(partition_by=["day", "text", "small"]))
    lanes.assert_equal("spark", "direct")
    written, expected = (partition_values(lanes.root / name) for name in ("direct", "spark"))
    assert written == expected
    assert lanes.table("direct").where("day > '9999-12-31' OR day < '0001-01-01'").count() == 3
    assert lanes.table("direct").where("at > '9999-12-31T23:59:59.9999995Z' OR id = 101").count() == 2
    # Spark applies the Julian calendar to ancient times unless a file names Spark as its writer.
    with session_settings(lanes.spark, {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY"}):
        lanes.assert_equal("spark", "direct")


def test_readers_with_the_parser_of_spark_2_find_all_rows(lanes: Lanes) -> None:
    """That parser takes all digits after the point for milliseconds, also in the statistics of a file."""
    lanes.run("direct", "direct")
    lanes.journals.append("a", json.dumps(event(100) | {"at": "2026-04-01T00:00:00.5Z"}).encode() + b"\n")
    lanes.run("direct", "direct")
    with session_settings(lanes.spark, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}):
        found = lanes.table("direct").where("at > '2026-04-01T00:00:00Z' AND at < '2026-04-01T00:00:01Z'")
        assert [row.id for row in found.collect()] == [100]


STEPS = ("sink.entry", "sink.before_write", "sink.after_write", "sink.return")


def die(point: str) -> None:
    raise FailpointError(point)


@pytest.mark.soak  # The kind `direct` of test_crashes reaches these points in every run.
def test_a_crash_between_the_steps_of_a_batch_changes_nothing(lanes: Lanes) -> None:
    lanes.run("direct", "direct")
    for number, point in enumerate(STEPS):
        append(lanes.journals, 40 + 4 * number, 44 + 4 * number)
        with calling(point, partial(die, point)), pytest.raises(StreamingQueryException, match=point):
            lanes.run("direct", "direct")
        lanes.run("direct", ("spark", "direct")[number % 2])
        assert lanes.table("direct").count() == 44 + 4 * number
    assert lanes.table("direct").select("id").distinct().count() == 56


@pytest.mark.soak  # The kind `direct` of test_crashes has a zombie in every run.
def test_another_lane_fences_a_writer_that_has_decided(lanes: Lanes) -> None:
    """A copy of the query commits the batch by the other lane after the decision; the first one stops."""
    lanes.run("direct", "direct")
    turns: list[tuple[Lane, Lane]] = [("direct", "spark"), ("spark", "direct")]
    for number, (first, second) in enumerate(turns):
        append(lanes.journals, 40 + 4 * number, 44 + 4 * number)
        copy = shutil.copytree(lanes.root / "direct-checkpoint", lanes.root / f"copy-{second}")
        (copy / "metadata").write_text(f'{{"id":"00000000-0000-4000-8000-00000000000{number}"}}')
        (copy / ".metadata.crc").unlink()
        left = [copy.name]

        def overtake(second: Lane = second, left: list[str] = left) -> None:
            if left:
                lanes.run("direct", second, checkpoint=left.pop())

        with (
            calling("sink.before_write", overtake),
            pytest.raises(StreamingQueryException, match=f"FencedError.*00000000000{number}"),
        ):
            lanes.run("direct", first)
        lanes.run("direct", first)
        assert lanes.table("direct").count() == 44 + 4 * number


def test_a_backfill_joins_a_stream(lanes: Lanes) -> None:
    options = {
        "brokerAddress": lanes.journals.broker.endpoint,
        "path": lanes.journals.prefix,
        "format": "json",
    }
    done = ingest_batch(lanes.sink("direct"), options, schema=EVENT, bytes_per_commit=5000, spark=lanes.spark)
    assert done.written
    assert not ingest_batch(lanes.sink("direct"), options, schema=EVENT, spark=lanes.spark).written
    append(lanes.journals, 40, 50)
    sink = lanes.sink("direct")
    query = ingest(
        sink.resume(lanes.reader()), sink, checkpoint=str(lanes.root / "checkpoint"), availableNow=True
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    assert sorted(row.id for row in lanes.table("direct").select("id").collect()) == list(range(50))


def test_what_the_lane_does_not_do_is_refused_by_name(lanes: Lanes) -> None:
    for options in ({"upsert": Upsert(["id"])}, {"audit": True}, {"on_overlap": "trim"}):
        with pytest.raises(OptionError, match=f"{next(iter(options))}.*lane='spark'"):
            lanes.run("t", "direct", **options)
    tables = {
        "CHECK": ("id BIGINT", "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)"),
        "rowTracking": ("id BIGINT", "ALTER TABLE {t} SET TBLPROPERTIES (delta.enableRowTracking = true)"),
        "generated": ("id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2)", ""),
    }
    reasons = {
        "CHECK": "constraint positive",
        "rowTracking": "rowTracking",
        "generated": "twice is generated",
    }
    rest = EVENT.partition(",")[2]
    for name, (columns, then) in tables.items():
        table = f"delta.`{lanes.root / name}`"
        lanes.spark.sql(f"CREATE TABLE {table} ({columns}, {rest}) USING delta")
        if then:
            lanes.spark.sql(then.format(t=table))
        with pytest.raises(TableRefusedError, match=f"{reasons[name]}.*DeltaSink.start"):
            lanes.run(name, "direct")
        assert lanes.sink(name).ledger(lanes.spark) is None
    lanes.spark.sql(f"CREATE TABLE delta.`{lanes.root / 'other'}` (id STRING) USING delta")
    with pytest.raises(SchemaMismatchError, match="'id' is string in the table but bigint"):
        lanes.run("other", "direct")


def test_a_null_where_the_table_takes_none_ends_the_query(lanes: Lanes) -> None:
    new = NewTable(EVENT.replace("text STRING", "text STRING NOT NULL"))
    with pytest.raises(StreamingQueryException, match=r"column text is NOT NULL, but .* journal="):
        lanes.run("direct", "direct", new_table=new)
    assert lanes.table("direct").count() == 0


@pytest.mark.soak
def test_a_table_in_an_object_store(
    journals: Journals, object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks put files and the driver commits, also after crashes; the other lane leaves the same rows.

    Spark reads the table's objects as files.
    """

    def object_location(location: str) -> str:
        return f"s3://lake/{Path(local_path(location) or '').relative_to(object_store.root)}"

    monkeypatch.setattr(file_commits, "deltalake_location", object_location)
    lanes = Lanes(journals, object_store.root)
    sink = lanes.sink("direct", new_table=NewTable(partition_by=["day"]))

    def run() -> None:
        query = ingest(
            lanes.reader(maxBytesPerTrigger=16000),
            sink,
            checkpoint=str(tmp_path / "checkpoint"),
            storage_options=object_store.options(),
            availableNow=True,
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    run()
    for number, point in enumerate(("sink.before_write", "sink.after_write")):
        append(journals, 40 + 4 * number, 44 + 4 * number)
        with calling(point, partial(die, point)), pytest.raises(StreamingQueryException, match=point):
            run()
        run()
    options = {"brokerAddress": journals.broker.endpoint, "path": journals.prefix, "format": "json"}
    append(journals, 48, 52)
    done = ingest_batch(
        sink, options, schema=EVENT, storage_options=object_store.options(), spark=journals.spark
    )
    assert done.written
    read = Snapshot("s3://lake/direct", storage_options=object_store.options())
    assert sorted(read.to_pyarrow_table(columns=["id"]).column("id").to_pylist()) == list(range(52))
    assert any(key.endswith(".parquet") for key in object_store.requests("put"))
    assert object_store.requests("put if absent")
    assert not object_store.requests("denied")
    lanes.run("spark", "spark", new_table=NewTable(partition_by=["day"]))
    lanes.assert_equal("spark", "direct")


@pytest.mark.soak
def test_an_idle_query_keeps_its_ledger(lanes: Lanes) -> None:
    sink = lanes.sink("direct")
    sink._heartbeat = Heartbeat(0.5)
    query = ingest(
        lanes.reader(), sink, checkpoint=str(lanes.root / "checkpoint"), processingTime="0 seconds"
    )

    def written(batch_id: int, times: int) -> bool:
        entry = lanes.sink("direct").ledger(lanes.spark)
        return (
            entry is not None and entry.batch_id >= batch_id and entry.txn_version >= entry.batch_id + times
        )

    try:
        wait_until("the entry is written again", lambda: written(1, 2), QUERY_TIMEOUT_S)
        append(lanes.journals, 40, 44)
        wait_until("the next batch is written", lambda: written(2, 1), QUERY_TIMEOUT_S)
    finally:
        query.stop()
    assert query.exception() is None
    assert lanes.table("direct").count() == 44
    history = Snapshot(str(lanes.root / "direct")).history()
    assert [each["version"] for each in history if "Apache-Spark" in each.get("engineInfo", "")] == [0]
