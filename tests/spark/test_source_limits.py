"""Limits, times and splits in Spark: the values that Spark passes to the source and reports back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gazette_spark import Client
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import (
    BOTH_BROKERS,
    Journals,
    raw,
    records,
    rows_of,
    run_available,
)
from tests.waiting import wait_until

PARTS = [b"".join(b"record %02d of part %d\n" % (at, part) for at in range(60)) for part in range(4)]
"""Appends that each become a fragment of slightly more than 1 KB."""
CONTENT = b"".join(PARTS)
ONE = len(PARTS[0])


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    journals = Journals(spark, broker, client, fresh_prefix)
    journals.create("a", length=1024, codec="GZIP")
    for part in PARTS:
        journals.append("a", part)
    return journals


def sizes(batches: dict[int, Any]) -> list[int]:
    """Return the bytes of each batch, newlines included."""
    return [sum(len(row.value) + 1 for row in rows) for rows in batches.values()]


def test_available_now_keeps_a_limit_of_fragments(journals: Journals, tmp_path: Path) -> None:
    """Spark has no limit in fragments and no minimum, so both come with a byte limit that is not reached."""

    def append(_batch: DataFrame, _batch_id: int) -> None:
        journals.append("a", b"appended while it runs\n")

    frame = journals.stream("a", maxFragmentsPerTrigger="3", minBytesPerTrigger="1g")
    batches = run_available(frame, tmp_path, append)
    assert sizes(batches) == [0, 3 * ONE, ONE]
    assert raw(rows_of(batches)) == records(CONTENT)


def test_a_record_larger_than_the_limit_goes_by_itself(journals: Journals, tmp_path: Path) -> None:
    long = b"x" * 5000 + b"\n"
    journals.create("long")
    journals.append("long", b"before\n" + long + b"after\n")
    batches = run_available(journals.stream("long", maxBytesPerTrigger="100"), tmp_path)
    assert sizes(batches) == [0, 7, len(long), 6]


def heads_by_end(query: StreamingQuery) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Return, for each batch in the progress, where it ended and the write heads at that time."""
    sources = [source for each in query.recentProgress for source in each.sources]
    positions = [(json.loads(each.endOffset), json.loads(each.latestOffset)) for each in sources]
    # Before the first look at the brokers, there is no head.
    return [(end["journals"], heads["journals"]) for end, heads in positions if heads is not None]


def test_a_stream_waits_for_its_minimum_and_shows_the_head(journals: Journals, tmp_path: Path) -> None:
    """The first batch starts at once; later ones wait, and Spark's progress shows the lag.

    Spark reports progress only for batches. The first offset of a new journal makes a batch without rows,
    which shows that the source has looked and ignored what is below the minimum.
    """
    rows: list[bytes] = []

    def take(batch: DataFrame, _batch_id: int) -> None:
        rows.extend(bytes(row.value) for row in batch.collect())

    a, new = journals.name("a"), journals.name("new")
    frame = journals.stream(minBytesPerTrigger="1k", maxTriggerDelay="1d")
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_until("the first batch", lambda: len(rows) == 240)
        journals.append("a", b"too little\n")
        journals.create("new")
        expected = ({a: len(CONTENT), new: 0}, {a: len(CONTENT) + 11})
        wait_until("the new journal in the progress", lambda: expected in heads_by_end(query))
        assert len(rows) == 240
        journals.append("a", PARTS[0])
        wait_until("the batch after it", lambda: len(rows) == 301)
    finally:
        query.stop()


def test_one_journal_uses_every_core(journals: Journals) -> None:
    whole = records(CONTENT)
    for wanted, least in (("4", 4), ("9", 9)):
        frame = journals.batch("a", minPartitions=wanted)
        assert frame.rdd.getNumPartitions() >= least
        assert raw(frame.collect()) == whole
    frame = journals.batch("a", maxBytesPerPartition="1k")
    assert frame.rdd.getNumPartitions() >= 4
    assert raw(frame.collect()) == whole


@BOTH_BROKERS
def test_a_query_starts_and_ends_by_time(journals: Journals, tmp_path: Path) -> None:
    assert raw(journals.batch("a", startingTimestamp="0").collect()) == records(CONTENT)
    assert journals.batch("a", endingTimestamp="0").collect() == []
    frame = journals.stream("a", startingTimestamp="0")
    assert raw(rows_of(run_available(frame, tmp_path / "some"))) == records(CONTENT)
    journals.create("empty")
    with pytest.raises(PySparkException, match="nothing was stored at startingTimestamp 9000 or later"):
        journals.batch("empty", startingTimestamp="9000").collect()
    frame = journals.stream("empty", startingTimestamp="9000")
    with pytest.raises(StreamingQueryException, match="startingOffsetsByTimestampStrategy=latest"):
        run_available(frame, tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param(
            {"startingOffsets": '{"no/such":0}'}, "'no/such'.*option 'startingOffsets'", id="missing"
        ),
        pytest.param(
            {"startingOffsets": '{"%s":99999}'}, "past the write head", id="beyond", marks=pytest.mark.soak
        ),
        pytest.param({"startingOffsets": '{"%s":3}'}, "in the middle of a record", id="inside"),
        pytest.param({"endingOffsets": '{"%s":99999}'}, "endingOffsets is past the write head", id="end"),
    ],
)
def test_offsets_that_cannot_be_are_named(journals: Journals, options: dict[str, str], problem: str) -> None:
    given = {name: text.replace("%s", journals.name("a")) for name, text in options.items()}
    with pytest.raises(PySparkException, match=problem):
        journals.batch("a", **given).collect()
