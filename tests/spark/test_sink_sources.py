"""Queries of several sources and queries with state: a crash at any step leaves no trace in their table."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from gazette_spark.failpoints import FAILPOINT_VARIABLE
from gazette_spark.testing.oracle import split_records
from tests.spark.conftest import DEADLINE_S, FileStream

POINTS = ("sink.entry", "sink.before_write", "sink.after_write", "sink.return")
RATE = "rate"
"""Text in place of a journal in rows of the other source."""


def with_rate(stream: FileStream) -> DataFrame:
    """Return the union of the journals and a source that has five new rows in each run."""
    rate = (
        stream.spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 5)
        .option("numPartitions", 1)
    )
    others = rate.load().selectExpr(f"'{RATE}' AS journal", "value AS offset", "CAST('' AS BINARY) AS value")
    return stream.rows().union(others)


def run(stream: FileStream, rows: DataFrame) -> None:
    query = stream.sink().start(rows, checkpoint=str(stream.checkpoint), availableNow=True)
    assert query.awaitTermination(DEADLINE_S)


def crash(stream: FileStream, rows: DataFrame, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, f"{point}:1:raise")
    with pytest.raises(StreamingQueryException, match=point):
        run(stream, rows)
    monkeypatch.delenv(FAILPOINT_VARIABLE)


def table(stream: FileStream) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in stream.spark.read.format("delta").load(str(stream.table)).collect())


def rows_of_both(stream: FileStream) -> list[tuple[object, ...]]:
    """Return the expected rows: the journals' records, and the other source's rows by the ledger."""
    entry = stream.sink().ledger()
    assert entry is not None
    assert isinstance(entry.end[1], str)
    others = [(RATE, at, b"") for at in range(json.loads(entry.end[1])["offset"])]
    journals = stream.truth().items()
    return sorted(
        [*others, *((name, *each) for name, content in journals for each in split_records(content))]
    )


def test_another_source_is_committed_with_the_journals(
    stream: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for records in (0, 4, 0):
        stream.append(records)
        run(stream, with_rate(stream))
    assert table(stream) == rows_of_both(stream)
    for point in POINTS:
        crash(stream, with_rate(stream), monkeypatch, point)
    stream.append(4)
    run(stream, with_rate(stream))
    held = table(stream)
    assert held == rows_of_both(stream)
    assert len(held) == 8 + 5 * 5
    stream.lose_checkpoint()
    with pytest.raises(StreamingQueryException, match=r"(?s)OverlapError.*source 1: the table ends at \{"):
        run(stream, with_rate(stream))
    assert table(stream) == held


@pytest.mark.soak  # The schedules of test_crashes cover this in every run.
def test_state_survives_a_crash_at_each_step(stream: FileStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key comes once, however its records are divided into batches and however often these run."""
    kept = "CAST(substring_index(CAST(value AS STRING), ' ', 2) AS STRING)"
    keys = stream.rows(maxBytesPerTrigger=150).selectExpr(f"substring({kept}, 1, 8) AS key")
    distinct = keys.dropDuplicates(["key"])
    stream.append(12)
    run(stream, distinct)
    stream.append(20)
    for point in POINTS:
        crash(stream, distinct, monkeypatch, point)
    run(stream, distinct)
    records = [value for content in stream.truth().values() for _, value in split_records(content)]
    wanted = {b" ".join(value.split()[:2])[:8].decode() for value in records}
    assert table(stream) == sorted((key,) for key in wanted)
    assert 1 < len(wanted) < len(records)
