"""Queries with state write the same rows as with Spark's own Delta sink, run by run, despite crashes.

Spark runs batches in which no source has moved, to emit closed windows, outer joins and timers. A sink that
takes such a batch for a replay loses its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from gazette_spark import DeltaSink, Upsert
from gazette_spark.errors import OptionError
from gazette_spark.failpoints import FAILPOINT_VARIABLE
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream
from tests.waiting import wait_until

POINTS = ("sink.entry", "sink.before_write", "sink.after_write", "sink.return")

Shape = Callable[[DataFrame], DataFrame]


def timed(rows: DataFrame) -> DataFrame:
    """Return records with their number, and a time of one second for each."""
    number = "CAST(split(CAST(value AS STRING), ' ')[1] AS BIGINT)"
    return rows.selectExpr("journal", f"{number} AS number", f"timestamp_seconds({number}) AS time")


def windows(rows: DataFrame) -> DataFrame:
    """Count in windows of ten seconds, each emitted once its window is closed."""
    kept = timed(rows).withWatermark("time", "2 seconds").selectExpr("window(time, '10 seconds') AS w", "*")
    return kept.groupBy("w", "journal").count().selectExpr("w.start AS start", "journal", "count")


def outer_join(rows: DataFrame) -> DataFrame:
    """Join records of one journal with those of the other up to a second later, or with nothing."""
    left = timed(rows.where("journal = 'a'")).withWatermark("time", "2 seconds")
    right = timed(rows.where("journal = 'b'")).withWatermark("time", "2 seconds")
    left = left.selectExpr("number AS a", "time AS a_time")
    right = right.where("number % 3 = 0").selectExpr("number AS b", "time AS b_time")
    near = "a + 1 = b AND b_time >= a_time AND b_time <= a_time + INTERVAL 1 SECOND"
    return left.join(right, F.expr(near), "leftOuter").select("a", "b")


def distinct(rows: DataFrame) -> DataFrame:
    """Keep one record of each six, within the watermark."""
    keyed = timed(rows).selectExpr("number DIV 6 AS key", "time").withWatermark("time", "3 seconds")
    return keyed.dropDuplicatesWithinWatermark(["key"]).select("key")


def timers(rows: DataFrame) -> DataFrame:
    """Emit one row for each twelve records when its timer fires, in a batch without new records."""
    return (
        timed(rows)
        .selectExpr("number DIV 12 AS key")
        .groupBy("key")
        .applyInPandasWithState(
            ring_once, "key BIGINT", "rung BOOLEAN", "append", GroupStateTimeout.ProcessingTimeTimeout
        )
    )


def ring_once(key: tuple[Any, ...], frames: Any, state: Any) -> Iterator[Any]:
    """Set a key's timer at its first record; emit the key when the timer fires."""
    import pandas as pd  # type: ignore[import-untyped] # Spark's frames; no stubs are installed

    if state.hasTimedOut:
        state.update((True,))
        yield pd.DataFrame({"key": [key[0]]})
        return
    if not state.exists:
        state.update((False,))
        state.setTimeoutDuration(1)
    elif not state.get[0]:
        state.setTimeoutDuration(1)


CASES = [
    pytest.param(windows, POINTS[1:2], id="windows"),
    pytest.param(windows, POINTS, id="windows at each point", marks=pytest.mark.soak),
    pytest.param(outer_join, POINTS, id="outer join", marks=pytest.mark.soak),
    pytest.param(distinct, POINTS, id="distinct", marks=pytest.mark.soak),
]


class BothSinks:
    """One query, written by our sink and by Spark's, each with its own table and checkpoint."""

    def __init__(self, stream: FileStream, shape: Shape) -> None:
        self.stream = stream
        self.shape = shape
        self.theirs = stream.table.with_name("theirs")

    def run_theirs(self) -> None:
        writer = self.shape(self.stream.rows()).writeStream.format("delta").trigger(availableNow=True)
        checkpoint = self.stream.checkpoint.with_name("theirs-checkpoint")
        query = writer.option("checkpointLocation", str(checkpoint)).start(str(self.theirs))
        assert query.awaitTermination(DEADLINE_S)

    def run_ours(self) -> None:
        rows = self.shape(self.stream.rows())
        query = self.stream.sink().start(rows, checkpoint=str(self.stream.checkpoint), availableNow=True)
        assert query.awaitTermination(DEADLINE_S)

    def crash(self, monkeypatch: pytest.MonkeyPatch, point: str, hit: int) -> None:
        """Run our sink until it has reached a failpoint the given number of times, if it does."""
        monkeypatch.setenv(FAILPOINT_VARIABLE, f"{point}:{hit}:raise")
        with pytest.raises(StreamingQueryException, match=point):
            self.run_ours()
        monkeypatch.delenv(FAILPOINT_VARIABLE)

    def rows_of(self, table: Path) -> list[Row]:
        return sorted(self.stream.spark.read.format("delta").load(str(table)).collect(), key=repr)

    def assert_equal(self) -> list[Row]:
        """Check that both tables have the same rows, and return them."""
        ours = self.rows_of(self.stream.table)
        assert ours == self.rows_of(self.theirs)
        return ours


@pytest.mark.parametrize(("shape", "points"), CASES)
def test_tables_are_equal_run_by_run(
    stream: FileStream, monkeypatch: pytest.MonkeyPatch, shape: Shape, points: Sequence[str]
) -> None:
    """The second batch of each run moves no offset; our sink crashes in it at each of its steps."""
    both = BothSinks(stream, shape)
    sizes = []
    for point in points:
        stream.append(13)
        both.run_theirs()
        both.crash(monkeypatch, point, 2)
        both.run_ours()
        sizes.append(len(both.assert_equal()))
    assert sizes == sorted(sizes)
    assert sizes[-1] > 0


def newest_batch(stream: FileStream) -> int:
    entry = stream.sink().ledger()
    assert entry is not None
    return entry.batch_id


@pytest.mark.soak  # In every run, windows have state.
def test_timers_ring_once(stream: FileStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """With such timers Spark runs a batch at each trigger; a crash in one loses and duplicates no row."""

    def start() -> StreamingQuery:
        rows = timers(stream.rows())
        return stream.sink().start(rows, checkpoint=str(stream.checkpoint), processingTime="0 seconds")

    def keys() -> list[int]:
        if not stream.table.exists():
            return []
        return sorted(row.key for row in stream.spark.read.format("delta").load(str(stream.table)).collect())

    stream.append(13)
    monkeypatch.setenv(FAILPOINT_VARIABLE, "sink.after_write:4:raise")
    with pytest.raises(StreamingQueryException, match="after_write"):
        start().awaitTermination(DEADLINE_S)
    monkeypatch.delenv(FAILPOINT_VARIABLE)
    query = start()
    try:
        wait_until("both timers ring", lambda: len(keys()) >= 2, DEADLINE_S)
        reached = newest_batch(stream) + 2
        wait_until("two batches more", lambda: newest_batch(stream) >= reached, DEADLINE_S)
    finally:
        query.stop()
    assert keys() == [0, 1]


def totals(rows: DataFrame) -> DataFrame:
    """Counts by journal and parity, which later records change."""
    numbered = timed(rows).selectExpr("journal", "number % 4 AS part")
    return numbered.groupBy("journal", "part").count()


@pytest.mark.parametrize("mode", ["update", pytest.param("complete", marks=pytest.mark.soak)])
def test_a_mode_that_repeats_rows_is_merged_by_the_grouping_keys(
    stream: FileStream, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The table ends as a batch query's result, though a batch runs again; other keys are refused."""

    def run(*keys: str) -> None:
        sink = DeltaSink(APP_ID, path=str(stream.table), upsert=Upsert(keys))
        rows = totals(stream.rows())
        checkpoint = str(stream.checkpoint)
        query = sink.start(rows, checkpoint=checkpoint, output_mode=mode, availableNow=True)
        assert query.awaitTermination(DEADLINE_S)

    stream.append(9)
    run("journal", "part")
    stream.append(9)
    monkeypatch.setenv(FAILPOINT_VARIABLE, "sink.after_write:1:raise")
    with pytest.raises(StreamingQueryException, match="after_write"):
        run("journal", "part")
    monkeypatch.delenv(FAILPOINT_VARIABLE)
    run("journal", "part")
    held = stream.spark.read.format("delta").load(str(stream.table))
    assert {tuple(row) for row in held.collect()} == {
        ("a", 0, 5), ("a", 2, 4), ("b", 1, 5), ("b", 3, 4),
    }  # fmt: skip
    stream.append(9)
    with pytest.raises(StreamingQueryException, match=r"a key \(journal\) occurs twice"):
        run("journal")


def test_a_mode_that_repeats_rows_is_refused_without_keys(stream: FileStream) -> None:
    """Every batch would be appended in full, whether the sink starts the query or foreachBatch calls it."""
    stream.append(9)
    rows = totals(stream.rows())
    with pytest.raises(OptionError, match=r"outputMode.*upsert"):
        stream.sink().start(rows, checkpoint=str(stream.checkpoint), output_mode="complete")
    writer = rows.writeStream.foreachBatch(stream.sink()).outputMode("update").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(stream.checkpoint)).start()
    with pytest.raises(StreamingQueryException, match=r"outputMode.*update.*upsert"):
        query.awaitTermination(DEADLINE_S)
    assert not stream.table.exists()
