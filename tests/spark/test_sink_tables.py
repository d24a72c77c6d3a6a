"""The sink creates tables, adds columns, and keeps files few, with every record in the table once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.exceptions import MetadataChangedException
from deltalake import write_deltalake
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from gazette_spark import DeltaSink, JournalOffsets, LedgerEntry, NewTable, Upsert
from gazette_spark._delta.delta_table import DeltaTable, TableDetail
from gazette_spark._delta.session import current_catalog, private_session
from gazette_spark.errors import OffsetError, SchemaMismatchError, TableRefusedError, UpsertError
from gazette_spark.failpoints import FAILPOINT_VARIABLE
from gazette_spark.testing.oracle import OracleVerdict, check_table
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream
from tests.spark.test_sink_conflicts import in_another_catalog

RAW_DDL = "journal STRING NOT NULL COMMENT 'it''s whose', offset BIGINT, value BINARY, part INT"


def run_rows(stream: FileStream, sink: DeltaSink, *columns: str, **options: Any) -> None:
    rows = stream.rows(**options).selectExpr("*", *columns)
    query = sink.start(rows, checkpoint=str(stream.checkpoint), availableNow=True)
    assert query.awaitTermination(DEADLINE_S)


def detail(stream: FileStream, table: str) -> Row:
    row: Row = stream.spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]
    return row


def verdict_on(stream: FileStream, location: str) -> OracleVerdict:
    return check_table(Path(location.removeprefix("file:")), stream.truth(), app_id=APP_ID)


def test_a_table_whose_making_was_killed_is_made_as_asked(stream: FileStream) -> None:
    """Delta treats a log without a commit as a table: CREATE TABLE IF NOT EXISTS would leave it as it is."""
    log = stream.table / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.5f1c.tmp").write_text("{")
    (stream.table / "part-00000-5f1c-c000.parquet").write_text("not committed")
    stream.append(4)
    new = NewTable("journal STRING, offset BIGINT, value BINARY", partition_by=["journal"])
    stream.run(DeltaSink(APP_ID, path=str(stream.table), new_table=new))
    detail = stream.spark.sql(f"DESCRIBE DETAIL delta.`{stream.table}`").collect()[0]
    assert detail.partitionColumns == ["journal"]
    stream.assert_exact()


def version(reader: int, writer: int) -> str:
    return f"TBLPROPERTIES (delta.minReaderVersion = {reader}, delta.minWriterVersion = {writer})"


LAYOUTS = {
    "columns": "PARTITIONED BY (part, `größe`)",
    "properties": "TBLPROPERTIES (note = 'it''s \"so\"', delta.appendOnly = true)",
    "features": "TBLPROPERTIES (delta.enableDeletionVectors = true, delta.enableRowTracking = true)",
    "mapping": "PARTITIONED BY (part) TBLPROPERTIES (delta.columnMapping.mode = 'name')",
    **{f"writer {number}": version(min(number, 2) if number > 4 else 1, number) for number in range(2, 7)},
}
"""The end of CREATE TABLE; a table of an old protocol has features that are not named."""


def test_a_detail_is_that_of_the_statement_without_its_jobs(stream: FileStream) -> None:
    spark = stream.spark
    spark.sql("CREATE DATABASE IF NOT EXISTS detailed")
    columns = ("location", "id", "partitionColumns", "properties", "tableFeatures")
    jobs = spark.sparkContext.statusTracker()
    try:
        for number, (what, layout) in enumerate(LAYOUTS.items()):
            path = f"{stream.table} %20é {number}"
            table = DeltaTable.named(f"detailed.t{number}" if number % 2 else f"delta.`{path}`")
            spark.sql(f"CREATE TABLE {table.name} (id INT, part INT, `größe` STRING) USING delta {layout}")
            spark.sql(f"INSERT INTO {table.name} VALUES (1, 2, 'x')")
            before = jobs.getJobIdsForGroup(None)
            detail = table.detail(spark)
            assert jobs.getJobIdsForGroup(None) == before, what
            location, table_id, partitions, properties, features = (
                spark.sql(f"DESCRIBE DETAIL {table.name}").selectExpr(*columns).collect()[0]
            )
            told = TableDetail(location, table_id, tuple(partitions), properties, frozenset(features))
            assert detail == told, what
        spark.sql("CREATE VIEW detailed.v AS SELECT * FROM detailed.t1")
        with pytest.raises(AnalysisException, match="EXPECT_TABLE_NOT_VIEW"):
            DeltaTable.named("detailed.v").detail(spark)
        assert DeltaTable.named("detailed.none").detail(spark) is None
    finally:
        spark.sql("DROP DATABASE detailed CASCADE")


@pytest.mark.parametrize(
    "named", [pytest.param(False, id="path"), pytest.param(True, id="catalog", marks=pytest.mark.soak)]
)
def test_a_new_table_is_what_was_asked(stream: FileStream, named: bool) -> None:
    stream.spark.sql("CREATE DATABASE IF NOT EXISTS made")
    try:
        where: dict[str, Any] = {"table": "made.orders"} if named else {"path": str(stream.table)}
        layout: dict[str, Any] = {"cluster_by": ["offset"]} if named else {"partition_by": ["PART"]}
        new = NewTable(
            RAW_DDL, properties={"delta.appendOnly": "true", "note": "it's ${spark.app.name}"}, **layout
        )
        sink = DeltaSink(APP_ID, new_table=new, target_file_bytes=150, **where)
        run_rows(stream, sink, "CAST(offset % 2 AS TINYINT) AS part")
        entry = sink.ledger(stream.spark)
        assert entry is not None
        assert (entry.batch_id, entry.txn_version) == (0, 0)
        stream.append(30)
        run_rows(stream, sink, "CAST(offset % 2 AS TINYINT) AS part")
        name = where.get("table", f"delta.`{stream.table}`")
        found = detail(stream, name)
        assert (found.partitionColumns, found.clusteringColumns) == (
            ([], ["offset"]) if named else (["part"], [])
        )
        assert found.properties["note"] == "it's ${spark.app.name}"
        columns = stream.spark.table(name).schema
        assert columns.simpleString() == "struct<journal:string,offset:bigint,value:binary,part:int>"
        assert not columns["journal"].nullable
        assert columns["journal"].metadata["comment"] == "it's whose"
        verdict = verdict_on(stream, found.location)
        assert verdict.exact, verdict
        other = DeltaSink(APP_ID, new_table=NewTable(RAW_DDL, partition_by=["offset"]), **where)
        with pytest.raises(TableRefusedError, match=r"new_table requests \(offset\)"):
            run_rows(stream, other)
    finally:
        stream.spark.sql("DROP DATABASE made CASCADE")


TABLE_DDL = (
    "id BIGINT NOT NULL, text STRING, at STRUCT<x: INT, y: STRING>, list ARRAY<STRUCT<x: INT>>, d DOUBLE"
)

STEPS = [
    # The batch, and the outcome: the rejected columns, or a value in the row that it adds.
    ("1L AS id, 'a' AS text", ("text", "a")),
    ("2 AS ID, named_struct('Y', 'b', 'X', 7S) AS at", ("at.x", 7)),
    ("3L AS id, array(named_struct('x', 3Y)) AS list, CAST(0.5 AS FLOAT) AS d", ("list[0].x", 3)),
    ("4L AS id, null AS text, named_struct('y', 'c') AS at", ("at.y", "c")),
    ("'5' AS id", ["id"]),
    ("6L AS id, 6L AS d, 6 AS text", ["text", "d"]),
    ("'a' AS text", ["id"]),
    ("7L AS id, 7 AS `a b`, 7 AS new", ["a b"]),
    ("8L AS id, 8 AS new, named_struct('x', 8, 'z', 8) AS at", ("at.z", 8)),
    ("9L AS id, map('k', array(named_struct('n', 9))) AS deep", ("deep['k'][0].n", 9)),
    ("10L AS id, map('k', array(named_struct('n', 1S, 'm', 10))) AS deep", ("deep['k'][0].m", 10)),
    ("11L AS id, 11 AS new, array(named_struct('w', 11)) AS list", ("list[0].w", 11)),
]

BY_NAME = [STEPS[1], STEPS[2], STEPS[4], STEPS[8]]
"""Steps that Delta treats differently for a table by name than by path, and steps that add columns."""


def commit_actions(table: Path, version: int) -> dict[str, Any]:
    """Return the actions of one commit by their kind, one of each."""
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return {kind: action for line in lines for kind, action in json.loads(line).items()}


def test_a_table_that_the_catalog_has_forgotten_is_continued(spark: SparkSession, tmp_path: Path) -> None:
    """A catalog in memory, such as that of ``local_spark``, has no table of an earlier session."""
    location = tmp_path / "forgotten" / "orders"
    spark.sql(f"CREATE DATABASE forgotten LOCATION '{location.parent}'")
    try:
        rows = spark.range(1)
        rows.write.format("delta").save(str(location))
        begin, end = JournalOffsets({"a/b": 0}), JournalOffsets({"a/b": 10})
        for new_table in (NewTable(), None):
            sink = DeltaSink(APP_ID, table="forgotten.orders", new_table=new_table)
            with pytest.raises(TableRefusedError, match=r"run CREATE TABLE ") as refused:
                sink.write_batch(rows, begin, end)
        advice = re.search(r"run (CREATE TABLE .*) first", str(refused.value))
        assert advice is not None
        spark.sql(advice[1])
        assert sink.write_batch(rows, begin, end)
        assert spark.table("forgotten.orders").count() == 2
    finally:
        spark.sql("DROP DATABASE forgotten CASCADE")


def test_a_copy_of_a_session_is_in_the_schema_of_the_session(spark: SparkSession) -> None:
    """Spark copies only the current schema of its own catalog."""
    with in_another_catalog(spark, {"spark.sql.defaultCatalog": "elsewhere"}):
        spark.catalog.setCurrentDatabase("SYS")  # A schema that each database of Derby has.
        with private_session(spark, {}) as copy:
            assert current_catalog(copy) == ("elsewhere", "SYS")


def test_batches_look_up_the_table_in_the_catalog_of_the_start(stream: FileStream) -> None:
    """Spark runs them in a session whose current catalog is the default one, where they made a table."""
    spark = stream.spark
    with in_another_catalog(spark):
        # No catalog but Spark's has Delta tables here, and this one says that it cannot make one.
        with pytest.raises(StreamingQueryException, match=r"elsewhere|JDBC|derby"):
            stream.run(DeltaSink(APP_ID, table="looked_up"))
        with private_session(spark, {}) as copy:
            assert current_catalog(copy) == current_catalog(spark)
    assert not spark.catalog.tableExists("default.looked_up")


def test_a_new_table_may_have_a_relative_path(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is relative to the directory of this process."""
    monkeypatch.chdir(tmp_path)
    rows = spark.range(2).selectExpr("'j' AS _journal", "id AS _offset", "'a' AS name")
    first, last = (JournalOffsets({"j": at}) for at in (0, 2))
    assert DeltaSink(APP_ID, path="shop/orders").write_batch(rows, first, last)
    assert not DeltaSink(APP_ID, path="shop/orders").write_batch(rows, first, last)
    assert spark.read.format("delta").load(str(tmp_path / "shop" / "orders")).count() == 2


def test_rows_without_bytes_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink, at = DeltaSink(APP_ID, path=str(tmp_path / "t")), JournalOffsets({"j": 2})
    rows = spark.range(2).selectExpr("'j' AS _journal", "id AS _offset")
    with pytest.raises(OffsetError, match="the batch has rows, but its start and its end are the same"):
        sink.write_batch(rows, at, at)
    assert not (tmp_path / "t").exists()
    assert not sink.write_batch(rows.limit(0), at, at)


@pytest.mark.parametrize(
    ("named", "steps"),
    [
        pytest.param(False, STEPS, id="path"),
        pytest.param(True, BY_NAME, id="catalog", marks=pytest.mark.soak),
    ],
)
def test_what_is_decided_is_what_delta_takes(
    stream: FileStream, named: bool, steps: list[tuple[str, Any]]
) -> None:
    spark = stream.spark
    name = "fitted" if named else f"delta.`{stream.table}`"
    spark.sql(f"CREATE TABLE {name} ({TABLE_DDL}) USING delta")
    try:
        location = Path(detail(stream, name).location.removeprefix("file:"))
        where: dict[str, Any] = {"table": name} if named else {"path": str(stream.table)}
        evolving = DeltaSink(APP_ID, schema_evolution="addNewColumns", **where)
        at = 0
        for select, outcome in steps:
            rows = spark.sql(f"SELECT {select}")
            begin, end = (JournalOffsets({"a": offset}) for offset in (at, at + 10))
            columns = spark.table(name).schema
            if isinstance(outcome, list):
                with pytest.raises(SchemaMismatchError) as caught:
                    evolving.write_batch(rows, begin, end)
                assert [each.column for each in caught.value.problems] == outcome, select
                assert spark.table(name).schema == columns
                continue
            assert evolving.write_batch(rows, begin, end), select
            at += 10
            where_id = f"id = {select.split()[0].removesuffix('L')}"
            (row,) = spark.table(name).where(where_id).selectExpr(outcome[0]).collect()
            assert row[0] == outcome[1], select
            version = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()[0].version
            actions = commit_actions(location, version)
            assert ("metaData" in actions) == (spark.table(name).schema != columns), select
            assert actions["add"]
            assert json.loads(actions["commitInfo"]["userMetadata"])["end"][0]["journals"] == {"a": at}
        fail = DeltaSink(APP_ID, **where)
        with pytest.raises(
            SchemaMismatchError, match="column 'extra' is not in the table, but is int in the batch"
        ):
            fail.write_batch(
                spark.sql("SELECT 1L AS id, 1 AS extra"), *(JournalOffsets({"a": n}) for n in (at, at + 1))
            )
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}" if named else "SELECT 1")


@pytest.mark.parametrize("upsert", [None, Upsert(("id",))], ids=["append", "upsert"])
def test_columns_that_the_table_computes_are_computed(
    spark: SparkSession, tmp_path: Path, upsert: Upsert | None
) -> None:
    """Computed columns may be missing from a batch, although they are NOT NULL and partition the table."""
    name = f"delta.`{tmp_path}/table`"
    ddl = "id BIGINT, _journal STRING, _offset BIGINT, half BIGINT NOT NULL GENERATED ALWAYS AS (id DIV 2)"
    ddl += ", number BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY"
    spark.sql(f"CREATE TABLE {name} ({ddl}) USING delta PARTITIONED BY (half)")
    rows = spark.range(10).selectExpr("id", "'a' AS _journal", "id AS _offset")
    sink = DeltaSink(APP_ID, path=f"{tmp_path}/table", upsert=upsert, target_file_bytes=5)
    # Delta refuses values for an identity column, also from an entry without rows.
    assert sink.adopt(JournalOffsets({"a": 0}), spark).adopted
    assert sink.write_batch(rows, JournalOffsets({"a": 0}), JournalOffsets({"a": 10}))
    found = spark.table(name).orderBy("id").select("id", "half").collect()
    assert found == [(number, number // 2) for number in range(10)]
    assert spark.table(name).select("number").distinct().count() == 10


def test_rows_that_a_session_has_cached_decide_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads a cached table as it was, until a statement of the same application writes to it."""
    path = str(tmp_path / "table")
    at = [JournalOffsets({"j": offset}) for offset in range(5)]
    rows = spark.range(4).selectExpr("id", "'j' AS _journal", "id AS _offset")

    def commit_elsewhere(offset: int) -> None:
        assert spark.sql(f"SELECT * FROM delta.`{path}`").cache().count() < offset
        row = pa.table({"id": [1], "_journal": ["j"], "_offset": [offset]})
        write_deltalake(path, row, mode="append")

    rows.where("id < 1").write.format("delta").save(path)
    commit_elsewhere(2)
    with pytest.raises(TableRefusedError, match="up to offset 2, but the journal is to continue at 2"):
        DeltaSink(APP_ID, path=path).adopt(at[2], spark)
    assert DeltaSink(APP_ID, path=path).adopt(at[3], spark).adopted
    commit_elsewhere(3)
    with pytest.raises(UpsertError, match="2 rows of the table have the key id=1"):
        DeltaSink(APP_ID, path=path, upsert=Upsert(["id"])).write_batch(rows.limit(1), at[3], at[4])


def test_rows_that_come_during_an_adoption_are_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    rows = spark.range(3).selectExpr("id", "'j' AS _journal", "id AS _offset")
    rows.where("id = 0").write.format("delta").save(path)
    sink, append_entry = DeltaSink(APP_ID, path=path), DeltaTable.append_entry

    def append_first(table: DeltaTable, spark: SparkSession, entry: LedgerEntry) -> None:
        rows.where("id > 0").write.format("delta").mode("append").save(path)
        append_entry(table, spark, entry)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "append_entry", append_first)
        problem = r"up to offset 2, but the journal is to continue at 1\..* RESTORE the table to version 1, "
        with pytest.raises(TableRefusedError, match=problem):
            sink.adopt(JournalOffsets({"j": 1}), spark)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1")
    assert sink.adopt(JournalOffsets({"j": 3}), spark).adopted


def test_a_partition_that_the_rows_lack_is_null(spark: SparkSession, tmp_path: Path) -> None:
    """Other columns and the direct lane do the same; Delta's writer would look for the column in the rows."""
    name = f"delta.`{tmp_path}/table`"
    ddl = "id BIGINT, kind STRING, Day DATE, half BIGINT GENERATED ALWAYS AS (id DIV 2)"
    mapped = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    spark.sql(f"CREATE TABLE {name} ({ddl}) USING delta PARTITIONED BY (kind, Day) {mapped}")
    rows = spark.range(4).selectExpr("id", "concat('k', id % 2) AS kind")
    sink = DeltaSink(APP_ID, path=f"{tmp_path}/table", target_file_bytes=2)
    for begin, column in ((0, "Day"), (4, "`a.day`")):
        if begin:
            spark.sql(f"ALTER TABLE {name} RENAME COLUMN Day TO {column}")
        assert sink.write_batch(rows, JournalOffsets({"a": begin}), JournalOffsets({"a": begin + 4}))
    expected = [(at, f"k{at % 2}", None, at // 2) for at in range(4) for _ in range(2)]
    assert spark.table(name).orderBy("id").collect() == expected


def evolving(stream: FileStream) -> DeltaSink:
    return DeltaSink(APP_ID, path=str(stream.table), schema_evolution="addNewColumns")


def test_a_crash_after_columns_were_added_is_a_replay(
    stream: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns, rows and entry are one commit, so the batch is skipped and the query continues."""
    stream.append(10)
    stream.run()
    stream.append(10)
    with pytest.raises(SchemaMismatchError, match="column 'size' is not in the table"):
        run_rows(stream, stream.sink(), "length(value) AS size")
    assert stream.verdict(complete=False).rows == 10
    monkeypatch.setenv(FAILPOINT_VARIABLE, "sink.after_write:1:raise")
    with pytest.raises(StreamingQueryException, match=r"sink\.after_write"):
        run_rows(stream, evolving(stream), "length(value) AS size")
    monkeypatch.delenv(FAILPOINT_VARIABLE)
    stream.append(10)
    run_rows(stream, evolving(stream), "length(value) AS size")
    assert stream.assert_exact().rows == 30
    table = stream.spark.read.format("delta").load(str(stream.table))
    assert table.where("size IS NULL").count() == 10
    assert "metaData" in commit_actions(stream.table, 2)
    assert "metaData" not in commit_actions(stream.table, 3)


@pytest.mark.parametrize(
    ("added", "error"),
    [
        pytest.param("size BIGINT", MetadataChangedException("others changed the table"), id="conflict"),
        pytest.param("size STRING", None, id="other type"),
    ],
)
def test_columns_that_change_meanwhile_are_looked_at_again(
    stream: FileStream, monkeypatch: pytest.MonkeyPatch, added: str, error: Exception | None
) -> None:
    """The batch is cast to a column that somebody adds before the write, or refused by the column's name."""
    stream.append(10)
    stream.run()
    append = DeltaTable.append
    left = [1]

    def patched(self: DeltaTable, df: DataFrame, entry: LedgerEntry, **options: bool) -> None:
        if left:
            left.clear()
            stream.sql(f"ALTER TABLE {{t}} ADD COLUMNS ({added})")
            if error is not None:
                raise error
        append(self, df, entry, **options)

    monkeypatch.setattr(DeltaTable, "append", patched)
    stream.append(10)
    if error is None:
        with pytest.raises(StreamingQueryException, match="column 'size' is string in the table but int"):
            run_rows(stream, evolving(stream), "length(value) AS size")
        assert stream.verdict(complete=False).rows == 10
        return
    run_rows(stream, evolving(stream), "length(value) AS size")
    assert stream.assert_exact().rows == 20
    assert (
        stream.spark.read.format("delta").load(str(stream.table)).schema["size"].dataType.typeName() == "long"
    )


def test_a_batch_is_few_files_and_the_table_is_compacted(stream: FileStream) -> None:
    sink = DeltaSink(APP_ID, path=str(stream.table), target_file_bytes=1 << 20, compact_every=3)
    for _ in range(2):
        stream.append(12)
        stream.run(sink, maxBytesPerTrigger=70)
    stream.assert_exact()
    history = stream.spark.sql(f"DESCRIBE HISTORY delta.`{stream.table}`").collect()[::-1]
    numbers = [json.loads(row.userMetadata)["txn_version"] if row.userMetadata else -1 for row in history]
    entries = max(numbers) + 1
    compacted = [numbers[at - 1] for at, row in enumerate(history) if row.operation == "OPTIMIZE"]
    assert compacted == list(range(2, entries, 3))
    files = [row.operationMetrics["numFiles"] for row in history if row.operation == "WRITE"]
    assert set(files[1:]) == {"1"}
    assert detail(stream, f"delta.`{stream.table}`").numFiles <= 3
