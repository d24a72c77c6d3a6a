"""Rows that do not fit go to a second table; a crash between the two commits loses and duplicates none.

Most tests write ranges of offsets, as a backfill does, in place of a query's batches: the sink treats them
the same way, and each range takes a fraction of the time. Record *n* begins at offset *n* and is one byte
long.
"""

from __future__ import annotations

import shutil
from collections import Counter
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from gazette_spark import DeadLetters, DeltaSink, JournalOffsets, LedgerEntry, Upsert
from gazette_spark._delta import dead_letter_table
from gazette_spark._delta.dead_letter_table import LETTERS
from gazette_spark._ledger.dead_letters import APP_ID_SUFFIX
from gazette_spark.errors import BadRowError, DeadLetterError, OptionError, TableRefusedError
from gazette_spark.failpoints import FAILPOINT_VARIABLE, FailpointError
from gazette_spark.testing.oracle import split_records
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream

POINTS = ("sink.entry", "sink.dead_letters_written", "sink.before_write", "sink.after_write", "sink.return")
UNREAD = "does not parse"
NAMELESS = "column Name is NULL but the table's is NOT NULL"


class TwoTables:
    """A table with rules and its dead letters.

    Record *n* does not parse if *n* ends in 0, has no name if it ends in 1, and violates a CHECK if it ends
    in 2.
    """

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.table = root / "table"
        self.dead = root / "dead letters' #1?+é %20"
        self.sql(
            "CREATE TABLE {t} (id BIGINT, Name STRING NOT NULL, _journal STRING, _offset BIGINT) USING delta"
        )
        self.sql("ALTER TABLE {t} ADD CONSTRAINT small CHECK (id % 10 <> 2)")

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.format(t=f"delta.`{self.table}`")).collect()

    def sink(self, *, dead: bool = True) -> DeltaSink:
        """Return a sink of the two tables, as a new process would create it."""
        letters = DeadLetters(path=str(self.dead)) if dead else None
        return DeltaSink(APP_ID, path=str(self.table), dead_letters=letters)

    def write(self, begin: int, end: int, *, dead: bool = True, without: str = "") -> bool:
        rows = records(
            self.spark.range(begin, end).selectExpr("'j' AS journal", "id AS offset", "id AS number")
        )
        first, last = (JournalOffsets({"j": at}) for at in (begin, end))
        return self.sink(dead=dead).write_batch(rows.drop(*without.split()), first, last)

    def letters(self) -> list[Row]:
        return self.spark.read.format("delta").load(str(self.dead)).orderBy("offset").collect()

    def dead_ledger(self) -> LedgerEntry:
        entry = DeltaSink(APP_ID + APP_ID_SUFFIX, path=str(self.dead)).ledger(self.spark)
        assert entry is not None
        return entry

    def fitting(self) -> list[int]:
        rows = self.spark.read.format("delta").load(str(self.table)).select("_offset").collect()
        return [row._offset for row in rows]

    def assert_parted(self, end: int) -> dict[int, str]:
        """Check that each record before ``end`` is in one table; return the reason of each dead letter."""
        letters = self.letters()
        assert Counter([*self.fitting(), *(row.offset for row in letters)]) == Counter(range(end))
        return {row.offset: row.reason for row in letters}


def records(reader: DataFrame) -> DataFrame:
    """Return rows with a journal, an offset and a number, as a query produces them."""
    return reader.selectExpr(
        "journal AS _journal",
        "offset AS _offset",
        "CAST(CAST(number AS STRING) AS BINARY) AS _record",
        "IF(number % 10 = 0, concat('{', number), NULL) AS _corrupt_record",
        "IF(number % 10 = 0, NULL, number) AS id",
        "IF(number % 10 < 2, NULL, 'a') AS name",
    )


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoTables:
    monkeypatch.delenv(FAILPOINT_VARIABLE, raising=False)
    return TwoTables(spark, tmp_path)


def crash_at(tables: TwoTables, monkeypatch: pytest.MonkeyPatch, point: str, begin: int, end: int) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, f"{point}:1:raise")
    with pytest.raises(FailpointError, match=point):
        tables.write(begin, end)
    monkeypatch.delenv(FAILPOINT_VARIABLE)


@pytest.mark.soak  # The schedules of test_crashes cover this in every run.
def test_a_crash_at_any_step_parts_each_record_once(
    tables: TwoTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.write(0, 10)
    for number, point in enumerate(POINTS, 1):
        begin, end = 10 * number, 10 * number + 10
        crash_at(tables, monkeypatch, point, begin, end)
        ends = [begin + 1, end] if point == "sink.dead_letters_written" else [end]
        for first, last in zip([begin, *ends], ends, strict=False):
            landed = point in ("sink.after_write", "sink.return")
            assert tables.write(first, last) is not landed
    reasons = tables.assert_parted(60)
    check = "CHECK small (id % 10 <> 2)"
    assert reasons == {at: (UNREAD, NAMELESS, check)[at % 10] for at in range(60) if at % 10 < 3}
    letters = tables.letters()
    assert [bytes(row.raw) for row in letters] == [b"%d" % row.offset for row in letters]
    assert {(row.app_id, row.journal, row.end_offset) for row in letters} == {(APP_ID, "j", None)}


def test_a_check_is_evaluated_as_delta_does(tables: TwoTables) -> None:
    """A null violates it, values have the table's types, and a column may have a default."""
    tables.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')")
    tables.sql("ALTER TABLE {t} ADD COLUMNS (size INT, at STRUCT<n: BIGINT, zip: STRING>)")
    tables.sql("ALTER TABLE {t} ADD CONSTRAINT near CHECK (at.n + 1 > 0 AND at.zip IS NULL)")
    tables.sql("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id + 1 > 0)")
    rows = tables.spark.sql("SELECT * FROM VALUES (0L, NULL), (1L, 2147483647) AS (_offset, id)")
    more = "'a' AS name", "named_struct('n', 2147483647) AS at"
    rows = rows.selectExpr("'j' AS _journal", "_offset", "CAST(id AS INT) AS id", *more)
    tables.sink().write_batch(rows, JournalOffsets({"j": 0}), JournalOffsets({"j": 2}))
    both = "CHECK positive (id + 1 > 0); CHECK small (id % 10 <> 2)"
    assert tables.assert_parted(2) == {0: both}
    tables.sql("ALTER TABLE {t} ALTER COLUMN size SET DEFAULT 5")
    tables.sql("ALTER TABLE {t} ADD CONSTRAINT sized CHECK (size > 0 OR id > 9)")
    tables.sql("ALTER TABLE {t} ADD CONSTRAINT present CHECK (size IS NOT NULL OR id > 9)")
    rows = rows.selectExpr("_journal", "_offset + 2 AS _offset", "_offset AS id", *more)
    tables.sink().write_batch(rows, JournalOffsets({"j": 2}), JournalOffsets({"j": 4}))
    assert tables.assert_parted(4) == {0: both}


@pytest.mark.soak  # property/test_ledger.py draws this in every run.
def test_rules_that_change_between_the_commits_part_each_record_once(
    tables: TwoTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead letters stay dead letters; records that are in neither table yet follow the new rules."""
    crash_at(tables, monkeypatch, "sink.dead_letters_written", 0, 20)
    tables.sql("ALTER TABLE {t} DROP CONSTRAINT small")
    tables.sql("ALTER TABLE {t} ADD CONSTRAINT odd CHECK (id % 10 <> 3)")
    tables.write(0, 30)
    reasons = Counter(reason.split()[1] for reason in tables.assert_parted(30).values())
    assert reasons == {"not": 3, "Name": 3, "small": 2, "odd": 3}


@pytest.mark.soak  # property/test_ledger.py draws this in every run.
def test_committed_messages_are_parted_by_what_commits_them(
    tables: TwoTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message goes to one table with the batch that has its acknowledgement, however batches are cut."""
    tables.spark.createDataFrame([], LETTERS).write.format("delta").save(str(tables.dead))  # By others.
    sink = DeltaSink(
        APP_ID, path=str(tables.table), dead_letters=DeadLetters(path=str(tables.dead)), on_overlap="trim"
    )

    def write(begin: int, end: int, *, crash: bool = False, starts: bool = True) -> bool:
        every = tables.spark.range(0, end).selectExpr("'j' AS journal", "id AS offset", "id AS number")
        acks = records(every).withColumn("_ack_offset", f.expr("IF(_offset % 3 = 0, _offset + 15, _offset)"))
        rows = acks.where(f.col("_ack_offset").between(begin, end - 1))
        last = JournalOffsets({"j": end}, starts={"j": 0} if starts else {})
        if not crash:
            return sink.write_batch(rows, JournalOffsets({"j": begin}), last)
        monkeypatch.setenv(FAILPOINT_VARIABLE, "sink.dead_letters_written:1:raise")
        with pytest.raises(FailpointError):
            sink.write_batch(rows, JournalOffsets({"j": begin}), last)
        monkeypatch.delenv(FAILPOINT_VARIABLE)
        return False

    write(0, 20)
    write(20, 40, crash=True)
    assert write(20, 24)
    assert write(10, 45), "what the table has is trimmed, by acknowledgement"
    committed = {at for at in range(45) if at % 3 or at + 15 < 45}
    letters = tables.letters()
    found = Counter([*tables.fitting(), *(row.offset for row in letters)])
    assert found == Counter(committed)
    assert {row.offset: row.ack_offset for row in letters} == {
        at: at + 15 if at % 3 == 0 else at for at in committed if at % 10 < 3
    }
    with pytest.raises(TableRefusedError, match="isolationLevel=read_committed"):
        write(45, 46, starts=False)


@pytest.mark.parametrize("second", ["7", "-"], ids=["other record", "none"])
def test_a_record_that_changes_its_mind_is_in_one_table(
    tables: TwoTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    """A dead letter stays one even if it fits in the second pass; a row that stops fitting is an error."""
    unread = tmp_path / "unread"
    unread.write_text("3")
    bad = tables.spark.read.text(str(unread)).select(f.expr("try_cast(value AS BIGINT)").alias("bad"))
    numbers = tables.spark.range(5, 15).withColumn("name", f.lit("a")).crossJoin(bad)
    rows = numbers.selectExpr(
        "'j' AS _journal",
        "id - 5 AS _offset",
        "id * 10 AS id",
        "name",
        "IF(id - 5 = bad, 'x', NULL) AS _corrupt_record",
    )
    monkeypatch.setattr(dead_letter_table, "failpoint", lambda _: unread.write_text(second))
    begin, end = (JournalOffsets({"j": at}) for at in (0, 10))
    if second != "-":
        with pytest.raises(BadRowError, match=r"two evaluations.* does not parse .*_offset = j 7"):
            tables.sink().write_batch(rows, begin, end)
        assert tables.fitting() == []
    assert tables.sink().write_batch(rows, begin, end)
    assert set(tables.assert_parted(10)) == ({3} if second == "-" else {3, 7})


@pytest.mark.soak
def test_dead_letters_are_switched_on_and_off(tables: TwoTables, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = "_corrupt_record _record"
    # The table of dead letters exists, with a column for which Delta accepts no values, and one without any.
    letters, columns = f"delta.`{tables.dead}`", f"{dead_letter_table.LETTERS}, part STRING"
    columns += ", number BIGINT GENERATED ALWAYS AS IDENTITY"
    tables.spark.sql(f"CREATE TABLE {letters} ({columns}) USING delta PARTITIONED BY (part)")
    tables.write(3, 9, dead=False, without=extra)
    crash_at(tables, monkeypatch, "sink.dead_letters_written", 9, 20)
    with pytest.raises(DeadLetterError, match="stopped between its two commits"):
        tables.write(9, 10, dead=False, without=extra)
    tables.write(9, 20)
    tables.write(20, 23)
    tables.spark.sql(f"RESTORE TABLE {letters} TO VERSION AS OF 1")
    tables.write(23, 33)
    tables.write(33, 36, dead=False, without=extra)
    assert tables.dead_ledger().dead_letters is None
    tables.write(36, 43)
    offsets = [*tables.fitting(), *(row.offset for row in tables.letters())]
    assert sorted(offsets) == [*range(3, 20), *range(23, 43)]


@pytest.mark.soak  # The schedules of test_crashes cover this in every run.
def test_a_restored_table_does_not_double_its_dead_letters(tables: TwoTables) -> None:
    """Dead letters stay and the other rows come again; without _record, a row's JSON is its raw text."""
    for begin in (0, 10, 20):
        tables.write(begin, begin + 10, without="_record")
    tables.sql("RESTORE TABLE {t} TO VERSION AS OF 3")
    restored = tables.sink().ledger(tables.spark)
    assert restored is not None
    tables.write(restored.read_through["j"], 30, without="_record")
    tables.assert_parted(30)
    raw = {row.reason.split()[1]: bytes(row.raw)[:9] for row in tables.letters() if row.offset < 10}
    assert raw == {"not": b"{0", "Name": b'{"_journa', "small": b'{"_journa'}


def test_copies_go_on_without_the_originals(tables: TwoTables, tmp_path: Path) -> None:
    """A copied table names the dead letters of the original, which it neither waits for nor writes to."""
    tables.write(0, 10)
    twin = copy(tables)
    twin.table, twin.dead = tmp_path / "twin", tmp_path / "twin's dead letters"
    shutil.copytree(tables.table, twin.table)
    shutil.copytree(tables.dead, twin.dead)
    tables.write(10, 20)
    before = tables.dead_ledger()
    twin.write(10, 15)
    assert tables.dead_ledger() == before
    twin.assert_parted(15)
    tables.write(20, 30)
    tables.assert_parted(30)


def test_a_row_that_takes_another_away_need_not_fit(tables: TwoTables) -> None:
    """A deletion without a name is no dead letter, but a change is; dead letters need no key."""
    upsert = Upsert(("id",), delete_when="gone")
    sink = DeltaSink(
        APP_ID, path=str(tables.table), upsert=upsert, dead_letters=DeadLetters(path=str(tables.dead))
    )
    schema = "id BIGINT, name STRING, _journal STRING, _offset BIGINT, gone BOOLEAN, _corrupt_record STRING"
    batches: list[list[tuple[Any, ...]]] = [
        [(3, "a", "j", 0, None, None), (4, "a", "j", 1, False, None)],
        [
            (3, None, "j", 2, True, None),
            (5, None, "j", 3, None, None),
            (4, None, "j", 4, False, None),
            (None, None, "j", 5, None, "{"),
        ],
    ]
    at = 0
    for batch in batches:
        begin, end = (JournalOffsets({"j": offset}) for offset in (at, at + len(batch)))
        assert sink.write_batch(tables.spark.createDataFrame(batch, schema), begin, end)
        at += len(batch)
    assert tables.fitting() == [1]
    letters = [(row.offset, row.reason) for row in tables.letters()]
    assert letters == [(3, NAMELESS), (4, NAMELESS), (5, UNREAD)]


def test_nulls_that_delta_does_not_look_for_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """A null in an array of non-null elements is a dead letter, or ends the query if there are none."""
    where = str(tmp_path / "table")
    required = StructType([StructField("x", IntegerType(), nullable=False)])
    columns = StructType([StructField("at", required), StructField("list", ArrayType(IntegerType(), False))])
    DeltaTable.createIfNotExists(spark).location(where).addColumns(columns).execute()
    given = "at STRUCT<x: INT>, list ARRAY<INT>, _journal STRING, _offset BIGINT"
    values: list[Any] = [((1,), [1, 2]), ((None,), [1]), (None, None), ((1,), [1, None]), ((1,), None)]
    rows = spark.createDataFrame([(*row, "j", at) for at, row in enumerate(values)], given)
    begin, end = (JournalOffsets({"j": at}) for at in (0, len(values)))
    plain = DeltaSink(APP_ID, path=where, schema_evolution="addNewColumns")
    with pytest.raises(BadRowError, match=r"column list\.element is NULL .*_journal, _offset = j 3"):
        plain.write_batch(rows.where("_offset = 3"), begin, end)
    letters = DeadLetters(path=str(tmp_path / "dead"))
    assert DeltaSink(APP_ID, path=where, dead_letters=letters).write_batch(rows, begin, end)
    dead = spark.read.format("delta").load(str(tmp_path / "dead")).orderBy("offset").collect()
    assert [(row.offset, row.reason.split()[1]) for row in dead] == [
        (1, "at.x"),
        (2, "at.x"),
        (3, "list.element"),
    ]
    assert spark.read.format("delta").load(where).count() == 2


def test_what_cannot_be_parted_is_refused(tables: TwoTables, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    rate = tables.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    with pytest.raises(DeadLetterError, match="do not say where they come from"):
        tables.sink().start(rate, checkpoint=checkpoint)
    rows = rate.selectExpr("'j' AS _journal", "value AS _offset", "value AS id", "'a' AS name")
    same = DeltaSink(APP_ID, path=str(tables.table), dead_letters=DeadLetters(path=str(tables.table)))
    with pytest.raises(OptionError, match="a place outside"):
        same.start(rows, checkpoint=checkpoint)
    query = tables.sink().start(rows, checkpoint=checkpoint, availableNow=True)
    with pytest.raises(StreamingQueryException, match=r"DeadLetterError.*other sources"):
        query.awaitTermination(DEADLINE_S)
    assert not tables.dead.exists()


@pytest.mark.soak  # The schedules of test_crashes cover this in every run.
def test_a_stream_without_its_checkpoint_goes_on(
    stream: FileStream, tables: TwoTables, monkeypatch: pytest.MonkeyPatch, searches: Counter[str]
) -> None:
    """The stream continues even if new batches cover the same bytes, and it follows both histories."""
    for max_bytes in (1000, 100):
        reader = stream.spark.readStream.format("file_journals").options(
            root=str(stream.journals), maxBytesPerTrigger=str(max_bytes)
        )
        stream.append(20)
        sink = tables.sink()
        number = "CAST(split(CAST(value AS STRING), ' ')[1] AS BIGINT) AS number"
        rows = records(sink.resume(reader, stream.spark).load().selectExpr("journal", "offset", number))
        if max_bytes == 1000:
            monkeypatch.setenv(FAILPOINT_VARIABLE, "sink.dead_letters_written:1:raise")
            with pytest.raises(StreamingQueryException, match="dead_letters_written"):
                run(sink, rows, stream.checkpoint)
            monkeypatch.delenv(FAILPOINT_VARIABLE)
            stream.lose_checkpoint()
            searches.clear()
        else:
            run(sink, rows, stream.checkpoint)
    assert len(list((stream.checkpoint / "commits").glob("[0-9]*"))) >= 4
    assert searches == {f"delta.`{tables.table}`": 1}
    parted = stream.spark.read.format("delta").load(str(stream.table)).selectExpr("_journal", "_offset")
    letters = stream.spark.read.format("delta").load(str(tables.dead)).select("journal", "offset")
    truth = {(name, at) for name, content in stream.truth().items() for at, _ in split_records(content)}
    assert Counter(tuple(row) for row in parted.union(letters).collect()) == Counter(truth)
    assert letters.count() == 12


def run(sink: DeltaSink, rows: DataFrame, checkpoint: Path) -> None:
    query = sink.start(rows, checkpoint=str(checkpoint), availableNow=True)
    assert query.awaitTermination(DEADLINE_S)
