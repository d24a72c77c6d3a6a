"""Rows and offsets reach a Delta table in one commit, and crashes neither lose nor duplicate any."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import DeltaSink, LedgerEntry
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.heartbeat import Heartbeat
from gazette_spark._delta.session import session_settings
from gazette_spark._ledger.history import HistoryRow
from gazette_spark.errors import OptionError, QueryCheckpointError, TableRefusedError
from gazette_spark.failpoints import FailpointError, calling
from gazette_spark.testing.oracle import check_table
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream
from tests.waiting import wait_until


def test_every_version_holds_rows_and_offsets_that_agree(
    stream: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After many batches in two runs, the oracle finds each record once and each version consistent.

    The history is searched before the table exists, and before the first batch of a later run if it is too
    long to be read by name; after that it is followed.
    """
    searched: list[int] = []
    history = DeltaTable.history

    def counted(self: DeltaTable, spark: SparkSession, limit: int) -> list[HistoryRow]:
        searched.append(limit)
        return history(self, spark, limit)

    monkeypatch.setattr(DeltaTable, "history", counted)
    stream.append(40)
    stream.run(maxBytesPerTrigger=70)
    stream.append(10)
    stream.run(maxBytesPerTrigger=70)
    verdict = stream.assert_exact()
    assert verdict.rows == 50
    assert verdict.entries == verdict.versions > 5
    assert len(searched) == 2


def test_the_first_batch_makes_the_table_and_its_first_entry(stream: FileStream) -> None:
    """A query without records leaves an empty table that records where it starts."""
    stream.run()
    entry = stream.sink().ledger()
    assert entry is not None
    assert (entry.batch_id, entry.txn_version, entry.parent) == (0, 0, None)
    assert entry.read_through == {"a": 0, "b": 0}
    assert stream.assert_exact().rows == 0


def test_a_journal_that_appears_later_is_read_from_its_first_byte(stream: FileStream) -> None:
    stream.append(4)
    stream.run()
    stream.append(3, "late")
    stream.append(2)
    stream.run()
    assert stream.assert_exact().rows == 9


def test_a_catalog_table_is_as_good_as_a_path(stream: FileStream, spark: SparkSession) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS sinks")
    try:
        sink = DeltaSink(APP_ID, table="sinks.orders")
        stream.append(20)
        stream.run(sink, maxBytesPerTrigger=100)
        stream.append(5)
        stream.run(sink)
        location = spark.sql("DESCRIBE DETAIL sinks.orders").collect()[0].location
        verdict = check_table(Path(location.removeprefix("file:")), stream.truth(), app_id=APP_ID)
        assert verdict.exact, verdict
        assert verdict.rows == 25
    finally:
        spark.sql("DROP DATABASE sinks CASCADE")


def test_foreach_batch_finds_its_checkpoint(stream: FileStream) -> None:
    """A sink may serve several runs. What another one has written in between is no second writer's."""
    sink = stream.sink()
    for records, run in ((6, stream.run_batches), (2, stream.run), (2, stream.run_batches)):
        stream.append(records)
        run(sink)
    assert stream.assert_exact().rows == 10


def test_the_checkpoint_of_another_query_is_refused(stream: FileStream) -> None:
    """Its offsets are not those of the rows, which would be skipped because the table has these offsets."""
    stream.append(6)
    stream.run(checkpoint=stream.checkpoint.parent / "first")
    stream.append(2)
    sink = DeltaSink(APP_ID, path=str(stream.table), checkpoint=f"{stream.checkpoint.parent}/first")
    with pytest.raises(StreamingQueryException, match="it belongs to query"):
        stream.run_batches(sink)
    stream.run(checkpoint=stream.checkpoint.parent / "first")
    assert stream.assert_exact().rows == 8


def test_a_session_may_reserve_keywords(stream: FileStream) -> None:
    stream.append(6)
    with session_settings(stream.spark, {"spark.sql.ansi.enforceReservedKeywords": "true"}):
        stream.run()
        stream.append(2)
        stream.run()
    assert stream.assert_exact().rows == 8


def test_a_function_passes_all_rows_of_a_batch_at_once(stream: FileStream) -> None:
    """The table would have the batch after the first half, so the second half would be skipped."""
    stream.append(6)
    sink = stream.sink()

    def write_halves(df: DataFrame, batch_id: int) -> None:
        for half in (0, 1):
            sink(df.where(f"offset % 2 = {half}"), batch_id)

    with pytest.raises(StreamingQueryException, match="other rows of batch 0, which this sink has written"):
        stream.run_batches(write_halves)

    def write_again(df: DataFrame, batch_id: int) -> None:
        for _ in range(2):  # As a function does whose next step failed.
            sink(df.select("*"), batch_id)

    stream.run_batches(write_again)
    assert stream.assert_exact().rows == 6


STEPS = ("sink.entry", "sink.before_write", "sink.after_write", "sink.return")


def die(point: str) -> None:
    raise FailpointError(point)


def test_a_crash_between_the_steps_of_a_batch_changes_nothing(stream: FileStream) -> None:
    """The failed batch is written once, by the same run or the next one.

    First the batch that creates the table crashes at each step, then batches of an existing table.
    """
    for point in (*STEPS, "sink.after_write", "sink.before_write", "sink.return", "sink.entry"):
        stream.append(4)
        with calling(point, partial(die, point)), pytest.raises(StreamingQueryException, match=point):
            stream.run()
    stream.run()
    assert stream.assert_exact().rows == 32


@pytest.mark.soak  # test_sink_conflicts has commits of others in every run.
def test_commits_of_others_do_not_disturb(stream: FileStream) -> None:
    """OPTIMIZE, VACUUM, log checkpoints, a changed property and another app id leave the ledger intact."""
    stream.append(6)
    stream.run(maxBytesPerTrigger=60)
    stream.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    stream.sql("OPTIMIZE {t}")
    stream.sql("VACUUM {t}")
    assert list((stream.table / "_delta_log").glob("*.checkpoint.parquet"))
    nothing = stream.spark.read.format("delta").load(str(stream.table)).limit(0)
    nothing.write.format("delta").mode("append").option("txnAppId", "other").option("txnVersion", 99).option(
        "userMetadata", '{"app_id":"other","format_version":1}'
    ).save(str(stream.table))
    stream.append(6)
    stream.run()
    assert stream.assert_exact().rows == 12


def test_values_are_written_as_zstd_without_a_dictionary(stream: FileStream) -> None:
    stream.append(10)
    stream.run()
    columns = [
        pq.ParquetFile(file).metadata.row_group(0).column(2)
        for file in stream.table.glob("*.parquet")
        if pq.ParquetFile(file).metadata.num_rows
    ]
    assert {(column.path_in_schema, column.compression) for column in columns} == {("value", "ZSTD")}
    assert not any(column.has_dictionary_page for column in columns)
    assert stream.spark.conf.get("parquet.enable.dictionary#value", None) is None


def test_a_table_that_forgets_transactions_is_refused(stream: FileStream) -> None:
    """The sink refuses the table at start, with the statement that fixes it."""
    stream.run()
    stream.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 day')"
    )
    with pytest.raises(TableRefusedError, match="UNSET TBLPROPERTIES"):
        stream.run()


def test_a_checkpoint_inside_the_table_is_refused(stream: FileStream) -> None:
    """VACUUM would delete the checkpoint."""
    with pytest.raises(TableRefusedError, match="lies inside the table"):
        stream.run(checkpoint=stream.table / "_checkpoint")


def test_a_directory_of_other_files_is_refused(stream: FileStream) -> None:
    """The table could not be created over other files, and VACUUM would delete them."""
    stream.table.mkdir()
    (stream.table / "notes.txt").write_text("mine")
    with pytest.raises(TableRefusedError, match="has files but no Delta table"):
        stream.run()


def test_a_table_that_is_being_made_is_made(stream: FileStream) -> None:
    """Another query, or a killed one, may have written files before the table's first commit."""
    (stream.table / "_delta_log").mkdir(parents=True)
    (stream.table / "part-00000-c000.zstd.parquet").write_bytes(b"")
    stream.append(5)
    stream.run()
    stream.assert_exact()


def test_a_batch_outside_a_query_is_refused(stream: FileStream) -> None:
    """Without the query's checkpoint, the offsets of a batch are unknown."""
    rows = stream.spark.createDataFrame([("a", 0, b"x")], "journal STRING, offset BIGINT, value BINARY")
    with pytest.raises(QueryCheckpointError, match="pass checkpoint="):
        stream.sink()(rows, 3)
    sink = DeltaSink(APP_ID, path=str(stream.table), checkpoint=str(stream.checkpoint))
    with pytest.raises(QueryCheckpointError, match="the file is missing"):
        sink(rows, 3)
    assert not stream.table.exists()


def test_start_needs_a_checkpoint_and_a_trigger_with_batches(stream: FileStream) -> None:
    """Real-time and continuous queries have no batches to commit."""
    with pytest.raises(OptionError, match="'checkpoint'"):
        stream.sink().start(stream.rows())
    with pytest.raises(OptionError, match="realTime"):
        stream.sink().start(stream.rows(), checkpoint="/c", realTime="5 seconds")
    with pytest.raises(OptionError, match="continuous"):
        stream.sink().start(stream.rows(), checkpoint="/c", continuous="5 seconds")


def test_names_are_quoted() -> None:
    """A backtick in a path does not end the quoted name."""
    assert DeltaTable(path="/a`b", table=None).name == "delta.`/a``b`"
    assert DeltaTable(path=None, table="c.d.t").name == "c.d.t"


def test_an_idle_query_keeps_its_ledger(stream: FileStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without new records the newest entry is written again before Delta cleans it up.

    If that raises an error after its commit, the entry is not taken for that of another writer.
    """
    append_entry, is_failing = DeltaTable.append_entry, threading.Event()

    def append_and_fail(self: DeltaTable, spark: SparkSession, entry: LedgerEntry) -> None:
        append_entry(self, spark, entry)
        if is_failing.is_set():
            raise ConnectionError("the answer is lost")

    monkeypatch.setattr(DeltaTable, "append_entry", append_and_fail)
    sink = stream.sink()
    sink._heartbeat = Heartbeat(0.5)
    stream.append(4)
    query = sink.start(
        stream.rows(), checkpoint=str(stream.checkpoint), lane="spark", processingTime="0 seconds"
    )

    def newest() -> LedgerEntry | None:
        return stream.sink().ledger(stream.spark) if stream.table.exists() else None

    def written(batch_id: int, times: int) -> bool:
        entry = newest()
        return (
            entry is not None and entry.batch_id >= batch_id and entry.txn_version >= entry.batch_id + times
        )

    try:
        wait_until("the entry is written again", lambda: written(1, 2), DEADLINE_S)
        is_failing.set()
        wait_until("it is written in spite of errors", lambda: written(1, 4), DEADLINE_S)
        stream.append(4)
        # A batch may begin between two of these appends, and then the next one has the other records.
        wait_until("the next batch is written", lambda: written(2, 1) and stream.verdict().exact, DEADLINE_S)
    finally:
        query.stop()
    assert query.exception() is None
    assert stream.assert_exact().rows == 8
