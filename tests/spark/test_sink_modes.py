"""In each output mode, our table equals the one of Spark's own Delta writers after every batch.

For ``append`` and ``complete`` the reference is Delta's sink. It has no ``update`` mode: Delta's
documentation merges each batch by the grouping keys instead, and these tests do so with Delta's API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from delta.tables import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark import DeltaSink, JournalOffsets, Upsert
from gazette_spark.errors import TableRefusedError
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream

BATCHES = [
    ["a 1", "b 2", "c 3", "c 4", "d 5"],
    ["a 6", "a 7", "c 8", "e 9"],
    ["b 20", "d 21", "d 22", "f 23"],
]
"""Lines of each batch: a key, and a number that is also the time in seconds."""


def counts(rows: DataFrame) -> DataFrame:
    """Groups whose rows change and never leave the result."""
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.max("number").alias("last"))


def few(rows: DataFrame) -> DataFrame:
    """HAVING: groups leave the result as they grow."""
    return counts(rows).where("n < 3")


def top(rows: DataFrame) -> DataFrame:
    """The two largest groups, which change over time."""
    return counts(rows).orderBy(F.desc("n"), "key").limit(2)


def averages(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.avg(F.col("number") % 7).alias("mean"))


def windows(rows: DataFrame) -> DataFrame:
    """Windows that close behind a watermark, and are then dropped from the state."""
    late = rows.withWatermark("time", "5 seconds")
    return (
        late.groupBy(F.window("time", "10 seconds").alias("w"), "key")
        .count()
        .selectExpr("w.start AS start", "key", "count AS n")
    )


def distinct(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["key"]).select("key")


def joined(rows: DataFrame) -> DataFrame:
    """Rows of the stream joined with a static table."""
    static = rows.sparkSession.createDataFrame([("a", 1), ("c", 3), ("c", 4)], "key STRING, x INT")
    return rows.join(static, "key", "left").select("key", "number", "x")


class Case(NamedTuple):
    query: Callable[[DataFrame], DataFrame]
    mode: str
    upsert: Upsert | None = None


KEY = Upsert(["key"])

CASES = {
    "HAVING, complete": Case(few, "complete", KEY),
    "top 2, complete": Case(top, "complete", KEY),
    "falling values, complete": Case(averages, "complete", Upsert(["key"], order_by="mean")),
    "windows, complete": Case(windows, "complete", Upsert(["start", "key"])),
    "counts, complete": Case(counts, "complete", KEY),
    "counts, update": Case(counts, "update", KEY),
    "HAVING, update": Case(few, "update", KEY),
    "windows, update": Case(windows, "update", Upsert(["start", "key"])),
    "windows, append": Case(windows, "append"),
    "distinct, append": Case(distinct, "append"),
    "distinct, update": Case(distinct, "update", KEY),
    "static join, append": Case(joined, "append"),
}
QUICK = {"HAVING, complete"}
"""Cases of every run; the others run in ``make soak`` only."""


class Both:
    def __init__(self, spark: SparkSession, root: Path, case: Case) -> None:
        self.spark = spark
        self.root = root
        self.case = case
        self.merged: dict[int, list[Row]] = {}
        """Rows of the merged table after each batch."""
        (root / "lines").mkdir()
        for number, lines in enumerate(BATCHES):
            file = root / "lines" / f"{number}.txt"
            file.write_text("\n".join(lines) + "\n")
            os.utime(file, (number + 1, number + 1))  # Spark reads the oldest file first.

    def stream(self) -> DataFrame:
        """Return the query over the lines, with one file per batch."""
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.root / "lines"))
        numbered = lines.selectExpr(
            "split(value, ' ')[0] AS key", "CAST(split(value, ' ')[1] AS BIGINT) AS number"
        )
        return self.case.query(numbered.selectExpr("*", "timestamp_seconds(number) AS time"))

    def run_ours(self) -> dict[int, list[Row]]:
        """Run our sink over all batches; return the table's rows after each batch."""
        sink = DeltaSink(APP_ID, path=str(self.root / "ours"), upsert=self.case.upsert)
        query = sink.start(
            self.stream(),
            checkpoint=str(self.root / "ours-checkpoint"),
            output_mode=self.case.mode,
            availableNow=True,
        )
        assert query.awaitTermination(DEADLINE_S)
        entries = {row.version: json.loads(row.userMetadata) for row in self.history("ours")}
        return {entry["batch_id"]: self.rows("ours", version) for version, entry in entries.items()}

    def run_theirs(self) -> dict[int, list[Row]]:
        """Run Delta's own sink, or its recipe for the mode update, like :meth:`run_ours`."""
        writer = self.stream().writeStream.outputMode(self.case.mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.root / "theirs-checkpoint"))
        if self.case.mode == "update":
            query = writer.foreachBatch(self.merge).start()
            assert query.awaitTermination(DEADLINE_S)
            return self.merged
        query = writer.format("delta").start(str(self.root / "theirs"))
        assert query.awaitTermination(DEADLINE_S)
        batches = {row.version: int(row.operationParameters["epochId"]) for row in self.history("theirs")}
        return {batch_id: self.rows("theirs", version) for version, batch_id in batches.items()}

    def merge(self, df: DataFrame, batch_id: int) -> None:
        assert self.case.upsert is not None
        path, spark = str(self.root / "theirs"), df.sparkSession
        if batch_id == 0:
            df.write.format("delta").save(path)
        else:
            same_key = " AND ".join(f"old.{name} = new.{name}" for name in self.case.upsert.keys)
            merged = DeltaTable.forPath(spark, path).alias("old").merge(df.alias("new"), same_key)
            merged.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        self.merged[batch_id] = sorted(spark.read.format("delta").load(path).collect(), key=repr)

    def rows(self, table: str, version: int) -> list[Row]:
        frame = self.spark.read.format("delta").option("versionAsOf", version).load(str(self.root / table))
        return sorted(frame.collect(), key=repr)

    def history(self, table: str) -> list[Row]:
        return DeltaTable.forPath(self.spark, str(self.root / table)).history().collect()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.soak) for name in CASES]
)
def test_each_batch_leaves_the_rows_of_sparks_own_sink(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    both = Both(spark, tmp_path, CASES[name])
    ours = both.run_ours()
    assert ours == both.run_theirs()
    assert len(ours) >= len(BATCHES)
    assert ours[max(ours)]


@pytest.fixture
def result(stream: FileStream) -> Callable[..., None]:
    """Starts a query in complete mode that keeps the counts of the stream's records in a table."""

    def run(sink: DeltaSink | None = None) -> None:
        kept = sink or DeltaSink(APP_ID, path=str(stream.table), upsert=Upsert(["journal"]))
        rows = stream.rows().groupBy("journal").count()
        query = kept.start(rows, checkpoint=str(stream.checkpoint), output_mode="complete", availableNow=True)
        query.awaitTermination(DEADLINE_S)

    return run


def test_a_complete_result_takes_no_rows_of_others_away(
    stream: FileStream, result: Callable[..., None]
) -> None:
    """A table that has other rows at first, or gets those of another stream later, is refused."""
    stream.sql("CREATE TABLE {t} (journal STRING, count BIGINT) USING delta")
    stream.sql("INSERT INTO {t} VALUES ('x', 1)")
    stream.append(4)
    with pytest.raises(TableRefusedError, match="it has rows that app id 'orders' did not write"):
        result()
    stream.sql("DELETE FROM {t}")
    result()
    other = DeltaSink("others", path=str(stream.table))
    rows = stream.spark.createDataFrame([("y", 2)], "journal STRING, count BIGINT")
    other.write_batch(rows, JournalOffsets({"y": 0}), JournalOffsets({"y": 2}))
    stream.append(4)
    with pytest.raises(TableRefusedError, match="app id 'others' writes to it, too"):
        result()
    held = stream.spark.read.format("delta").load(str(stream.table))
    assert {tuple(row) for row in held.collect()} == {("a", 2), ("b", 2), ("y", 2)}


def test_the_mode_is_seen_in_any_session_and_of_each_query(stream: FileStream) -> None:
    """A sink that has served a query in append mode must refuse one in update mode from a new session."""
    sink = DeltaSink(APP_ID, path=str(stream.table), checkpoint=str(stream.checkpoint))
    stream.append(4)
    stream.run_batches(sink)
    stream.lose_checkpoint()
    numbers = stream.spark.newSession().readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    writer = numbers.groupBy("value").count().writeStream.outputMode("update").foreachBatch(sink)
    query = writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"outputMode.*update.*upsert"):
        query.awaitTermination(DEADLINE_S)


def test_a_mode_that_cannot_be_seen_is_refused_where_it_matters(stream: FileStream) -> None:
    """A thread of a user's function does not know its query; the mode matters for stateful queries only."""

    def elsewhere(df: DataFrame, batch_id: int) -> None:
        sink = DeltaSink(APP_ID, path=str(stream.table), checkpoint=str(stream.checkpoint))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(sink, df, batch_id).result()

    stream.append(4)
    stream.run_batches(elsewhere)
    assert stream.assert_exact().rows == 4
    stream.lose_checkpoint()
    writer = stream.rows().groupBy("journal").count().writeStream.outputMode("update").foreachBatch(elsewhere)
    query = writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"outputMode.*unknown mode.*DeltaSink\.start"):
        query.awaitTermination(DEADLINE_S)
