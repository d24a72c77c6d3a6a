"""An upsert table has the last row of each key, at every version, despite crashes and stale writers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import DeltaSink, JournalOffsets, LedgerEntry, NewTable, Upsert
from gazette_spark._delta import writers
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.row_steps import AlignedRows
from gazette_spark.errors import OptionError, SchemaMismatchError, TableRefusedError, UpsertError
from gazette_spark.failpoints import FAILPOINT_VARIABLE, FailpointError, calling
from gazette_spark.testing.oracle import OracleVerdict
from tests.rig.upsert_oracle import check_upserts
from tests.spark.conftest import APP_ID, FileStream
from tests.spark.test_sink_writers import other_query

UPSERT = Upsert(("id",), delete_when="deleted")
COLUMNS = ("_journal", "_offset", "id", "body")
WORDS = "split(CAST(value AS STRING), ' ')"


class Changes(FileStream):
    """Journals of records ``KEY put …`` and ``KEY del``, where keys of different journals are different."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root)
        self.random = random.Random(18)

    def append(self, records: int, journal: str | None = None) -> None:
        for _ in range(records):
            name = journal or self.random.choice("ab")
            what = self.random.choice(["put", "put", "del"])
            self._written += 1
            with (self.journals / name).open("ab") as file:
                file.write(f"{name}{self.random.randrange(4)} {what} {self._written}\n".encode())

    def sink(self, **arguments: Any) -> DeltaSink:
        return DeltaSink(APP_ID, path=str(self.table), upsert=UPSERT, **arguments)

    def rows(self, **options: Any) -> DataFrame:
        return (
            super()
            .rows(**options)
            .selectExpr(
                "journal AS _journal",
                "offset AS _offset",
                f"{WORDS}[0] AS id",
                "CAST(value AS STRING) AS body",
                f"{WORDS}[1] = 'del' AS deleted",
            )
        )

    def verdict(self, *, complete: bool = True) -> OracleVerdict:
        truth = self.truth()
        return check_upserts(self.table, truth, read_change, COLUMNS, app_id=APP_ID, complete=complete)

    def check(self, *, complete: bool = True) -> OracleVerdict:
        verdict = self.verdict(complete=complete)
        assert verdict.exact, verdict
        return verdict


def read_change(journal: str, offset: int, value: bytes) -> tuple[str, tuple[Any, ...] | None]:
    body = value.decode()
    key, what, _ = body.split()
    return key, None if what == "del" else (journal, offset, key, body)


@pytest.fixture
def changes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Changes:
    monkeypatch.delenv(FAILPOINT_VARIABLE, raising=False)
    return Changes(spark, tmp_path)


@pytest.mark.parametrize(
    ("nth", "records"), [pytest.param(1, 6, id="first batch"), pytest.param(2, 10, marks=pytest.mark.soak)]
)
def test_a_crash_between_the_steps_of_a_batch_changes_nothing(
    changes: Changes, monkeypatch: pytest.MonkeyPatch, nth: int, records: int
) -> None:
    """Covers each point of the sink; every version is consistent, and the last one is complete.

    The run crashes in its first batch that reaches the point, or in the next batch.
    """
    max_bytes = 80 // nth
    for point in ("return", "after_write", "during_merge", "before_write", "entry"):
        changes.append(records)
        monkeypatch.setenv(FAILPOINT_VARIABLE, f"sink.{point}:{nth}:raise")
        with pytest.raises(StreamingQueryException, match=rf"sink\.{point}"):
            changes.run(maxBytesPerTrigger=max_bytes)
        changes.check(complete=False)
    monkeypatch.delenv(FAILPOINT_VARIABLE)
    changes.run(maxBytesPerTrigger=max_bytes)
    verdict = changes.check()
    assert 0 < verdict.rows <= 8
    assert verdict.entries == verdict.versions > (3 if nth == 1 else 7)


def test_a_table_of_appended_rows_goes_on_by_key_where_each_key_is_there_once(changes: Changes) -> None:
    """A duplicate key would be updated twice in every later merge, so the first merged batch is refused."""
    columns = "ID STRING, body STRING, _journal STRING, _offset BIGINT"
    changes.spark.sql(f"CREATE TABLE delta.`{changes.table}` ({columns}) USING delta").collect()
    for body in ("one", "two"):
        changes.sql(f"INSERT INTO {{t}} VALUES ('a1', '{body}', 'x', 0)")
    changes.append(10)
    with pytest.raises(StreamingQueryException, match=r"UpsertError.*2 rows .*id=.a1"):
        changes.run()
    assert changes.spark.read.format("delta").load(str(changes.table)).count() == 2
    changes.sql("DELETE FROM {t} WHERE body = 'one'")
    changes.run()
    keys = [row.ID for row in changes.spark.read.format("delta").load(str(changes.table)).collect()]
    assert len(keys) == len(set(keys)) > 0


@pytest.mark.soak  # test_crashes has such states in every run.
def test_a_lost_a_stale_and_a_restored_state_are_continued(changes: Changes) -> None:
    """The ledger continues the state; batches that overlap the table must be trimmed by ``on_overlap``."""
    clustered = NewTable("id STRING, body STRING, _journal STRING, _offset BIGINT", cluster_by=["id"])
    changes.append(20)
    changes.run(changes.sink(new_table=clustered), maxBytesPerTrigger=60)
    stale = changes.copy_checkpoint("stale")
    changes.append(20)
    changes.lose_checkpoint()
    changes.run(startingOffsets=changes.sink().resume_offsets(), maxBytesPerTrigger=110)
    changes.check()
    changes.append(20)
    with pytest.raises(StreamingQueryException, match="OverlapError"):
        changes.run(checkpoint=stale)
    changes.run(changes.sink(on_overlap="trim"), checkpoint=stale)
    changes.check()
    changes.sql("RESTORE TABLE {t} TO VERSION AS OF 3")
    changes.append(2)
    with pytest.raises(StreamingQueryException, match="GapError"):
        changes.run(checkpoint=stale)
    changes.lose_checkpoint()
    changes.run(startingOffsets=changes.sink().resume_offsets())
    changes.check()


@contextmanager
def before_merge(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], None]) -> Iterator[None]:
    """Run an action once between the decision on a batch and its MERGE."""
    merge_rows, left = writers.merge_rows, [happen]

    def patched(
        target: DeltaTable, ready: AlignedRows, entry: LedgerEntry, upsert: Upsert, *, complete: bool = False
    ) -> None:
        if left:
            left.pop()()
        merge_rows(target, ready, entry, upsert, complete=complete)

    with monkeypatch.context() as patch:
        patch.setattr(writers, "merge_rows", patched)
        yield
    assert not left


@pytest.mark.soak  # The kind `upsert` of test_crashes has such commits in every run.
def test_other_commits_between_decision_and_merge_are_seen(
    changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conflicts are retried, a zombie whose MERGE Delta silently skips is fenced, a RESTORE is reported."""

    def conflict() -> None:
        raise ConcurrentAppendException("turned down")

    changes.append(20)
    changes.run()
    changes.append(10)
    with before_merge(monkeypatch, conflict):
        changes.run()
    changes.append(10)
    with (
        before_merge(monkeypatch, lambda: other_query(changes)),
        pytest.raises(StreamingQueryException, match=r"FencedError.*00000000-0000-4000-8000-000000000000"),
    ):
        changes.run()
    changes.check()
    changes.append(10)
    newest = len(list((changes.table / "_delta_log").glob("*.json"))) - 1
    with (
        before_merge(monkeypatch, lambda: changes.sql("RESTORE TABLE {t} TO VERSION AS OF 1")),
        pytest.raises(StreamingQueryException, match=rf"RestoredError.* AS OF {newest} repairs the table"),
    ):
        changes.run()
    changes.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {newest}")
    changes.run()
    verdict = changes.verdict()
    assert verdict.violations
    assert all(f"version {newest + 2} " in each.replace(":", " ") for each in verdict.violations), verdict


class Keyed:
    """A table that gets one batch after the other of one journal, in a shared session."""

    def __init__(self, spark: SparkSession, sink: DeltaSink, schema: str) -> None:
        self.spark = spark
        self.sink = sink
        self.schema = schema
        self.at = 0

    def bring(self, *rows: tuple[Any, ...], sink: DeltaSink | None = None) -> bool:
        """Commit the next ten bytes of the journal as a batch with these rows."""
        begin, end = (JournalOffsets({"x": at}) for at in (self.at, self.at + 10))
        df = self.spark.createDataFrame(rows, self.schema)
        brought = (sink or self.sink).write_batch(df, begin, end)
        self.at += 10
        return brought

    def history(self) -> list[tuple[str, bool]]:
        """Return the operation of each version but the first, and whether it has an entry."""
        rows = self.spark.sql(f"DESCRIBE HISTORY {self.sink._target.name}").orderBy("version").collect()
        return [(row.operation, bool(row.userMetadata)) for row in rows[1:]]

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        table = self.spark.sql(f"SELECT * FROM {self.sink._target.name}")
        return sorted(tuple(row) for row in table.select(*(columns or ["*"])).collect())


CHANGE = "id STRING, n INT, deleted BOOLEAN, _journal STRING, _offset BIGINT"
SETTINGS = (
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
    "spark.databricks.delta.commitInfo.userMetadata",
)


@pytest.fixture
def keyed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keyed:
    """A table with the key ``id`` and one batch."""
    monkeypatch.delenv(FAILPOINT_VARIABLE, raising=False)
    upsert = Upsert(["id"], "deleted", leave_out=["_journal", "_offset"])
    made = Keyed(spark, DeltaSink(APP_ID, path=str(tmp_path / "table"), upsert=upsert), CHANGE)
    made.bring(
        ("x", 1, False, "x", 1), ("x", 2, None, "x", 2), ("y", 3, False, "x", 3), ("y", 4, True, "x", 4)
    )
    return made


def test_one_commit_brings_the_last_of_each_key(keyed: Keyed, tmp_path: Path) -> None:
    assert keyed.rows() == [("x", 2)]
    steps: list[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = [
        ([("x", 5, True, "x", 11)], []),
        ([], []),
        ([("z", 6, True, "x", 31)], []),
        ([("x", 7, False, "x", 41), ("x", 8, True, "x", 43), ("x", 9, None, "x", 42)], []),
        (
            [("x", 7, True, "x", 51), ("x", 8, None, "x", 52), ("w", None, False, "x", 53)],
            [("w", None), ("x", 8)],
        ),
        (
            [("x", 1, False, "x", 62), ("x", 2, False, "a", 69), ("x", 3, False, "x", 61)],
            [("w", None), ("x", 1)],
        ),
    ]
    for rows, expected in steps:
        assert keyed.bring(*rows)
        assert keyed.rows() == expected
    entry = keyed.sink.ledger(keyed.spark)
    assert entry is not None
    assert (entry.read_through, entry.mode) == ({"x": 70}, "upsert")
    assert keyed.history() == [("MERGE", True)] * 7
    keyed.at -= 10
    assert keyed.bring(("x", 99, False, "x", 61)) is False
    assert len(keyed.history()) == 7
    files = [pq.ParquetFile(file).metadata for file in (tmp_path / "table").glob("*.parquet")]
    assert {each.row_group(0).column(0).compression for each in files if each.num_rows} == {"ZSTD"}


def test_statements_of_a_shared_session_do_not_take_the_place_of_a_batch(keyed: Keyed) -> None:
    """Delta takes the transaction of a MERGE from its session, and skips a number that it has seen."""
    table = keyed.sink._target
    other = DeltaSink("other", path=table.path, upsert=keyed.sink._upsert)
    row = keyed.spark.createDataFrame([("o", 1, False, "y", 1)], CHANGE)
    rdd = keyed.spark.sparkContext.parallelize([("r", 1)])

    def assert_not_set() -> None:
        # RDDs have no session: PySpark gives them the last one that it has made.
        for session in (keyed.spark, rdd.toDF("id string, n int").sparkSession):
            assert [session.conf.get(key, None) for key in SETTINGS] == [None, None, None]

    def meanwhile() -> None:
        assert_not_set()
        keyed.spark.sql(f"INSERT INTO {table.name} VALUES ('i', 1)")
        assert other.write_batch(row, JournalOffsets({"y": 0}), JournalOffsets({"y": 10}))

    with calling("sink.during_merge", meanwhile):
        assert keyed.bring(("b", 1, False, "x", 12))
    assert keyed.rows() == [("b", 1), ("i", 1), ("o", 1), ("x", 2)]
    # Each entry is that of its own commit: the pin and the batch of the other app id, and the batch.
    assert keyed.history()[1:] == [("WRITE", False), ("MERGE", True), ("MERGE", True), ("MERGE", True)]
    assert_not_set()


def test_batches_that_do_not_fit_are_refused(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed.spark.conf.set(SETTINGS[2], "mine")
    try:
        with pytest.raises(
            UpsertError, match=r"batch 1: .*a key is null \(id\), in .* _journal, _offset = x 12\."
        ):
            keyed.bring(("v", 1, False, "x", 11), (None, 1, True, "x", 12))
        monkeypatch.setenv(FAILPOINT_VARIABLE, "sink.during_merge:1:raise")
        with pytest.raises(FailpointError):
            keyed.bring(("v", 1, False, "x", 11))
        monkeypatch.delenv(FAILPOINT_VARIABLE)
        assert [keyed.spark.conf.get(key, None) for key in SETTINGS] == [None, None, "mine"]
    finally:
        keyed.spark.conf.unset(SETTINGS[2])
    path = keyed.sink._target.path
    with pytest.raises(UpsertError, match="no column missing"):
        keyed.bring(sink=DeltaSink(APP_ID, path=path, upsert=Upsert(("missing",))))
    with pytest.raises(TableRefusedError, match="keeps one row for each key by upsert"):
        keyed.bring(sink=DeltaSink(APP_ID, path=path))
    with pytest.raises(OptionError, match=r"without \$\{"):
        DeltaSink("${user.name}", path=path, upsert=UPSERT)
    assert keyed.rows() == [("x", 2)]
    keyed.bring(("v", 1, False, "x", 11))
    assert keyed.rows() == [("v", 1), ("x", 2)]


def test_deltas_own_compaction_after_a_merge_does_not_disturb(keyed: Keyed) -> None:
    """Compaction commits in the MERGE's session, so the entry is there twice; the next batch continues."""
    automatic = {
        "spark.databricks.delta.autoCompact.enabled": "true",
        "spark.databricks.delta.autoCompact.minNumFiles": "2",
        "spark.databricks.delta.autoCompact.nonBlindAppend.enabled": "true",
    }
    for key, value in automatic.items():
        keyed.spark.conf.set(key, value)
    try:
        for name in "abc":
            keyed.bring((name, 1, False, "x", keyed.at))
    finally:
        for key in automatic:
            keyed.spark.conf.unset(key)
    assert ("OPTIMIZE", True) in keyed.history()
    assert [name for name, _ in keyed.rows()] == ["a", "b", "c", "x"]


@pytest.mark.parametrize(
    ("kind", "works"), [("CHAR(5)", False), pytest.param("VARCHAR(5)", True, marks=pytest.mark.soak)]
)
def test_keys_of_a_length_are_merged_or_refused(
    spark: SparkSession, tmp_path: Path, kind: str, works: bool
) -> None:
    """Delta's own MERGE by a CHAR column fails with an internal error of Spark."""
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/table` (id {kind}, n INT) USING delta").collect()
    upsert = Upsert(["id"], leave_out=["deleted", "_journal", "_offset"])
    table = Keyed(spark, DeltaSink(APP_ID, path=f"{tmp_path}/table", upsert=upsert), CHANGE)
    if not works:
        with pytest.raises(
            TableRefusedError, match=r"no MERGE by a column of the type CHAR: id\. Use STRING"
        ):
            table.bring(("x", 1, False, "x", 1))
        return
    table.bring(("x", 1, False, "x", 1))
    table.bring(("x", 2, False, "x", 11), ("y", 3, False, "x", 12))
    assert table.rows() == [("x", 2), ("y", 3)]


ODD = "`a.b` STRING, `new``` INT, `where` STRING, at TIMESTAMP, _journal STRING, _offset BIGINT"


def test_order_by_decides_in_a_batch_and_against_the_table(spark: SparkSession) -> None:
    """The catalog table is partitioned, its names need quoting, and batches lack one of its columns."""
    spark.sql("CREATE DATABASE IF NOT EXISTS upserts")
    try:
        spark.sql(
            "CREATE TABLE upserts.odd "
            "(`a.b` STRING, `new``` INT, `where` STRING, at TIMESTAMP, note STRING) "
            "USING delta PARTITIONED BY (`where`) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        )
        upsert = Upsert(("a.b", "new`"), order_by="at", leave_out=("_journal", "_offset"))
        table = Keyed(spark, DeltaSink(APP_ID, table="upserts.odd", upsert=upsert), ODD)
        last = fill_randomly(table)
        assert table.rows("`a.b`", "`new```", "`where`", "at") == sorted(last.values())
        spark.sql("UPDATE upserts.odd SET note = 'kept'")
        table.bring(*[(*row, "x", table.at) for row in last.values()])
        assert {note for (note,) in table.rows("note")} == {"kept"}
        table.schema += ", extra INT"
        newest = ("k", 0, "p", datetime(2030, 1, 1), "x", table.at, 5)  # noqa: DTZ001 - as Spark has it
        with pytest.raises(SchemaMismatchError, match="extra"):
            table.bring(newest)
        adding = DeltaSink(APP_ID, table="upserts.odd", upsert=upsert, schema_evolution="addNewColumns")
        table.bring(newest, sink=adding)
    finally:
        spark.sql("DROP DATABASE upserts CASCADE")


def test_a_new_column_can_order_rows_but_not_identify_them(spark: SparkSession, tmp_path: Path) -> None:
    """A MERGE adds columns, but its conditions can only use those that the table has."""
    schema, where = "id STRING, n INT, _journal STRING, _offset BIGINT", str(tmp_path / "table")
    table = Keyed(spark, DeltaSink(APP_ID, path=where, upsert=Upsert(["id"])), schema)
    table.bring(("x", 9, "x", 1), ("y", 9, "x", 2))
    table.schema += ", At INT"
    by = Upsert(["id"], order_by="At")
    table.sink = DeltaSink(APP_ID, path=where, upsert=by, schema_evolution="addNewColumns")
    table.bring(("x", 2, "x", 11, 7), ("x", 1, "x", 12, 5))
    table.bring(("x", 3, "x", 21, 6), ("y", 4, "x", 22, None))
    assert table.rows("id", "n", "at") == [("x", 2, 7), ("y", 4, None)]
    other = DeltaSink(APP_ID, path=where, upsert=Upsert(["key"]), schema_evolution="addNewColumns")
    table.schema = "key STRING, _journal STRING, _offset BIGINT"
    with pytest.raises(UpsertError, match=r"the table does not have the key key\b"):
        table.bring(("x", "x", 31), sink=other)


def fill_randomly(table: Keyed) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Write batches whose rows are in random order, from any journal; return the last row of each key."""
    rng = random.Random(6)
    moments = [datetime.fromtimestamp(second, UTC).replace(tzinfo=None) for second in range(600)]
    rng.shuffle(moments)
    last: dict[tuple[str, int], tuple[Any, ...]] = {}
    for _ in range(3):
        batch = []
        for _ in range(150):
            row = (rng.choice("kl"), rng.randrange(20), rng.choice("pqr"), moments.pop())
            batch.append((*row, rng.choice("xy"), rng.randrange(1000)))
            key = row[:2]
            last[key] = max(last.get(key, row), row, key=lambda each: each[3])
        table.bring(*batch)
    return last


def test_a_key_may_have_the_name_of_the_count(spark: SparkSession, tmp_path: Path) -> None:
    """The rows of each key are counted before the first batch is merged into a table with other rows."""
    where = str(tmp_path / "table")
    spark.sql(f"CREATE TABLE delta.`{where}` (Copies INT, n INT) USING delta").collect()
    upsert = Upsert(["copies"], leave_out=["_journal", "_offset"])
    schema = "copies INT, n INT, _journal STRING, _offset BIGINT"
    table = Keyed(spark, DeltaSink(APP_ID, path=where, upsert=upsert), schema)
    table.bring((1, 2, "x", 1))
    assert table.rows() == [(1, 2)]
