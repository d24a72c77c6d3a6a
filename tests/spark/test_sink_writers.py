"""Lost, stale and copied checkpoints, second writers and RESTORE are resumed, fenced or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from delta.exceptions import ConcurrentTransactionException
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from gazette_spark import JournalOffsets, LedgerEntry
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark.lag import now_ms
from tests.spark.conftest import DEADLINE_S, FileStream

Append = Any
COLUMNS = "journal STRING, offset BIGINT, value BINARY"


@pytest.mark.soak
def test_a_lost_checkpoint_resumes_from_the_table(stream: FileStream) -> None:
    stream.append(30)
    stream.run(maxBytesPerTrigger=100)
    stream.lose_checkpoint()
    stream.append(30)
    stream.run(startingOffsets=stream.sink().resume_offsets(), maxBytesPerTrigger=170)
    assert stream.assert_exact().rows == 60


def test_a_lost_checkpoint_that_starts_anew_is_refused(stream: FileStream) -> None:
    stream.append(10)
    stream.run()
    stream.lose_checkpoint()
    with pytest.raises(
        StreamingQueryException, match=r"(?s)OverlapError.*journal 'a'.*sink\.resume\(reader\)"
    ):
        stream.run()
    assert stream.assert_exact().rows == 10


def test_a_start_past_the_table_is_refused(stream: FileStream) -> None:
    """A later start would leave a silent gap."""
    stream.append(10)
    stream.run()
    stream.lose_checkpoint()
    stream.append(10)
    heads = {journal: len(content) for journal, content in stream.truth().items()}
    ahead = json.dumps({"format_version": 1, "journals": heads})
    with pytest.raises(StreamingQueryException, match=r"(?s)GapError.*journal 'a': the table ends at \d+"):
        stream.run(startingOffsets=ahead)
    assert stream.verdict(complete=False).exact


@pytest.mark.soak  # test_crashes has stale checkpoints in every run.
def test_a_stale_copy_of_the_checkpoint_is_refused(stream: FileStream) -> None:
    """It plans other batches over bytes that the table already has; none of them is written."""
    stream.append(10)
    stream.run(maxBytesPerTrigger=60)
    stale = stream.copy_checkpoint("stale")
    stream.append(10)
    stream.run(maxBytesPerTrigger=60)
    stream.append(10)
    with pytest.raises(StreamingQueryException, match="OverlapError"):
        stream.run(checkpoint=stale)
    stream.run()
    assert stream.assert_exact().rows == 30


def test_another_tables_checkpoint_is_refused(stream: FileStream) -> None:
    """A table without an entry is not continued from the middle of a journal."""
    stream.append(10)
    stream.run()
    stream.append(10)
    stream.table.rename(stream.table.with_name("moved"))
    with pytest.raises(StreamingQueryException, match=r"(?s)GapError.*has no record of it.*no such table"):
        stream.run()
    assert not stream.table.exists()


def before_append(monkeypatch: pytest.MonkeyPatch, batch_id: int, happen: Any) -> None:
    """Run an action once between the decision on a batch and its write."""
    append = DeltaTable.append
    left = [batch_id]

    def patched(self: DeltaTable, df: DataFrame, entry: LedgerEntry, **options: bool) -> None:
        if entry.batch_id in left:
            left.clear()
            happen()
        append(self, df, entry, **options)

    monkeypatch.setattr(DeltaTable, "append", patched)


def other_query(stream: FileStream) -> None:
    """Run a copy of the checkpoint to the end, under a new query id."""
    copy = stream.copy_checkpoint("successor")
    (copy / "metadata").write_text('{"id":"00000000-0000-4000-8000-000000000000"}')
    (copy / ".metadata.crc").unlink()
    stream.run(checkpoint=copy)


def test_a_zombie_is_fenced(stream: FileStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta silently skips the write of an overtaken sink, which then stops and names the other query."""
    stream.append(10)
    stream.run()
    stream.append(10)
    before_append(monkeypatch, 2, lambda: other_query(stream))
    with pytest.raises(StreamingQueryException, match=r"FencedError.*00000000-0000-4000-8000-000000000000"):
        stream.run()
    assert stream.assert_exact().rows == 20


@pytest.mark.soak  # property/test_ledger.py draws such writers in every run.
def test_a_zombie_between_batches_is_fenced(stream: FileStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running query that finds another query's entry stops, even though its own batch is in the table."""
    stream.append(10)
    stream.run()
    stream.append(10)
    sink = stream.sink()
    fenced = False

    def overtake(df: DataFrame, batch_id: int) -> None:
        nonlocal fenced
        sink(df, batch_id)
        if not fenced:
            fenced = True
            other_query(stream)

    with pytest.raises(StreamingQueryException, match="FencedError"):
        stream.run_batches(overtake, maxBytesPerTrigger=60)
    assert stream.assert_exact().rows == 20


def test_two_writers_at_once_leave_one_stream(stream: FileStream) -> None:
    stream.append(10)
    stream.run()
    copy = stream.copy_checkpoint("twin")
    (copy / "metadata").write_text('{"id":"00000000-0000-4000-8000-000000000000"}')
    (copy / ".metadata.crc").unlink()
    stream.append(60)
    queries = [
        stream.sink().start(
            stream.rows(maxBytesPerTrigger=100), checkpoint=str(checkpoint), availableNow=True
        )
        for checkpoint in (stream.checkpoint, copy)
    ]
    failures = []
    for query in queries:
        try:
            assert query.awaitTermination(DEADLINE_S)
        except StreamingQueryException as error:
            failures.append(str(error))
    assert len(failures) <= 1
    assert all("FencedError" in failure for failure in failures), failures
    stream.run(checkpoint=stream.checkpoint if queries[0].exception() is None else copy)
    assert stream.assert_exact().rows == 70


def test_a_lost_answer_is_no_lost_write(stream: FileStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta may raise a conflict for a successful commit: the history reveals it, and the query continues."""
    append = DeltaTable.append
    raised = []

    def patched(self: DeltaTable, df: DataFrame, entry: LedgerEntry, **options: bool) -> None:
        append(self, df, entry, **options)
        raised.append(entry.batch_id)
        raise ConcurrentTransactionException("the answer was lost")

    monkeypatch.setattr(DeltaTable, "append", patched)
    stream.append(10)
    stream.run(maxBytesPerTrigger=60)
    assert len(raised) > 2
    assert stream.assert_exact().rows == 10


@pytest.mark.soak
def test_a_write_that_was_turned_down_is_tried_again(
    stream: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a property changes during the write, Delta rejects the commit; the second attempt succeeds."""
    append = DeltaTable.append
    tries = []

    def patched(self: DeltaTable, df: DataFrame, entry: LedgerEntry, **options: bool) -> None:
        tries.append(entry.attempt)
        if len(tries) == 2:
            raise ConcurrentTransactionException("turned down")
        append(self, df, entry, **options)

    monkeypatch.setattr(DeltaTable, "append", patched)
    stream.append(10)
    stream.run()
    assert len(tries) == len(set(tries)) == 3
    assert stream.assert_exact().rows == 10


@pytest.mark.soak  # test_crashes has RESTOREs in every run.
def test_a_restored_table_is_continued_from_where_it_is(stream: FileStream) -> None:
    """The old checkpoint is refused because of a gap; a new one at the ledger's offsets fills it."""
    began = now_ms()
    stream.append(10)
    stream.run()
    stream.append(10)
    stream.run()
    stream.sql("RESTORE TABLE {t} TO VERSION AS OF 1")
    stream.append(10)
    with pytest.raises(StreamingQueryException, match="GapError"):
        stream.run()
    stream.lose_checkpoint()
    stream.run(startingOffsets=stream.sink().resume_offsets())
    assert stream.assert_exact().rows == 30
    steps = {step.order: step for step in stream.sink().commits()}
    assert list(steps) == [0, 1, 2, 3, 4]
    assert steps[3].read_through == steps[1].read_through != steps[2].read_through, "the RESTORE, version 3"
    assert JournalOffsets(steps[4].read_through).to_json() == stream.sink().resume_offsets()
    times = [began, *(step.timestamp_ms for step in steps.values()), now_ms()]
    assert times == sorted(times)


@pytest.mark.soak  # property/test_delta_history.py has histories of all kinds.
def test_a_table_restored_to_before_its_first_entry_is_filled_again(stream: FileStream) -> None:
    """`resume` starts where the rows began, not at the end of the journals, which is Spark's default."""
    stream.spark.sql(f"CREATE TABLE delta.`{stream.table}` ({COLUMNS}) USING delta").collect()
    stream.append(10)
    stream.run()
    stream.sql("RESTORE TABLE {t} TO VERSION AS OF 0")
    stream.append(2)
    with pytest.raises(StreamingQueryException, match=r"(?s)GapError.*before its first entry.*resume"):
        stream.run()
    stream.lose_checkpoint()
    reader = stream.spark.readStream.format("file_journals").option("root", str(stream.journals))
    rows = stream.sink().resume(reader).load()
    query = stream.sink().start(rows, checkpoint=str(stream.checkpoint), availableNow=True)
    assert query.awaitTermination(DEADLINE_S)
    assert stream.spark.read.format("delta").load(str(stream.table)).distinct().count() == 12
    assert stream.spark.read.format("delta").load(str(stream.table)).count() == 12


@pytest.mark.soak
def test_a_table_restored_to_a_time_is_continued_from_where_it_is(stream: FileStream) -> None:
    """The log does not name the restored version; the one with the same files and rows is used."""
    for _ in range(3):
        stream.append(6)
        stream.run()
    history = stream.spark.sql(f"DESCRIBE HISTORY delta.`{stream.table}`")
    [second] = history.where("version = 2").selectExpr("CAST(timestamp AS STRING) AS at").collect()
    stream.sql(f"RESTORE TABLE {{t}} TO TIMESTAMP AS OF '{second.at}'")
    held = stream.spark.read.format("delta").load(str(stream.table)).count()
    assert held == 12
    entry = stream.sink().ledger()
    assert entry is not None
    assert entry.batch_id == 2
    stream.lose_checkpoint()
    stream.run(startingOffsets=stream.sink().resume_offsets())
    rows = stream.spark.read.format("delta").load(str(stream.table))
    assert (rows.count(), rows.distinct().count()) == (18, 18)


@pytest.mark.soak  # property/test_ledger.py draws restores between a read and a write in every run.
def test_a_restore_that_slips_in_is_seen(stream: FileStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore does not conflict with the append; reading back finds the wrong parent and names a remedy."""
    stream.append(10)
    stream.run()
    stream.append(10)
    stream.run()
    stream.append(10)
    before_append(monkeypatch, 3, lambda: stream.sql("RESTORE TABLE {t} TO VERSION AS OF 1"))
    with pytest.raises(
        StreamingQueryException, match=r"(?s)RestoredError.*RESTORE TABLE … TO VERSION AS OF 2"
    ):
        stream.run()
    stream.sql("RESTORE TABLE {t} TO VERSION AS OF 2")
    stream.run()
    verdict = stream.verdict()
    assert (verdict.rows, verdict.lost, verdict.duplicated, verdict.altered) == (30, 0, 0, 0)


def test_a_ledger_that_was_cleaned_up_is_refused(stream: FileStream) -> None:
    """Delta skips the write because it knows the transaction, but its offsets are lost: this is an error."""
    rows = stream.spark.createDataFrame([("a", 0, b"x")], "journal STRING, offset BIGINT, value BINARY")
    writer = rows.write.format("delta").option("txnAppId", "gazette_spark/orders").option("txnVersion", 7)
    writer.save(str(stream.table))
    stream.append(10)
    with pytest.raises(StreamingQueryException, match="LedgerLostError"):
        stream.run()
    assert stream.spark.read.format("delta").load(str(stream.table)).count() == 1
