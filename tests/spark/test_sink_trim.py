"""Checkpoints that overlap the table or skip bytes are trimmed, accepted or resumed if the caller says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from gazette_spark import DeltaSink
from gazette_spark._ledger.entry import SkippedGap
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream


def trimming(stream: FileStream) -> DeltaSink:
    return DeltaSink(APP_ID, path=str(stream.table), on_overlap="trim")


def run_rows(stream: FileStream, sink: DeltaSink, rows: DataFrame, checkpoint: Path) -> None:
    query = sink.start(rows, checkpoint=str(checkpoint), availableNow=True)
    assert query.awaitTermination(DEADLINE_S)


def test_a_stale_checkpoint_is_trimmed_on_request(stream: FileStream) -> None:
    stream.append(10)
    stream.run(maxBytesPerTrigger=60)
    stale = stream.copy_checkpoint("stale")
    stream.append(10)
    stream.run(maxBytesPerTrigger=60)
    stream.append(10)
    stream.run(trimming(stream), checkpoint=stale)
    stream.append(5)
    stream.run(checkpoint=stale)
    assert stream.assert_exact().rows == 35


def test_a_new_query_from_the_beginning_is_trimmed_on_request(stream: FileStream) -> None:
    stream.append(20)
    stream.run(maxBytesPerTrigger=70)
    stream.lose_checkpoint()
    stream.append(20)
    stream.run(trimming(stream), maxBytesPerTrigger=110)
    assert stream.assert_exact().rows == 40


def half_written(stream: FileStream) -> Path:
    """Fill the table, lose the checkpoint and append more records, so that the next query overlaps."""
    stream.append(10)
    stream.run()
    stream.lose_checkpoint()
    stream.append(10)
    return stream.checkpoint


def test_rows_that_do_not_say_where_they_come_from_are_refused(stream: FileStream) -> None:
    checkpoint = half_written(stream)
    with pytest.raises(
        StreamingQueryException, match=r"(?s)TrimError.*columns value.*_journal and _offset.*resume\(reader\)"
    ):
        run_rows(stream, trimming(stream), stream.rows().select("value"), checkpoint)
    assert stream.verdict(complete=False).exact


@pytest.mark.parametrize(
    "column",
    [
        pytest.param("offset + 100000 AS offset", id="offset"),
        pytest.param("'other' AS journal", id="journal", marks=pytest.mark.soak),
        pytest.param("CAST(null AS STRING) AS journal", id="null", marks=pytest.mark.soak),
    ],
)
def test_rows_of_elsewhere_end_the_query(stream: FileStream, column: str) -> None:
    """A row with a journal or offset outside the batch cannot be kept or trimmed; nothing is written."""
    checkpoint = half_written(stream)
    kept = [name for name in ("journal", "offset", "value") if not column.endswith(f" AS {name}")]
    with pytest.raises(
        StreamingQueryException, match=r"(?s)cannot trim: the batch has no row of journal, offset ="
    ):
        run_rows(stream, trimming(stream), stream.rows().selectExpr(*kept, column), checkpoint)
    assert stream.verdict(complete=False).exact


def test_metadata_columns_trim_too(stream: FileStream) -> None:
    """Rows with _journal and _offset are trimmed, too."""
    stream.append(10)
    rows = stream.rows().selectExpr("journal AS _journal", "offset AS _offset", "length(value) AS size")
    run_rows(stream, trimming(stream), rows, stream.checkpoint)
    stream.lose_checkpoint()
    stream.append(10)
    run_rows(stream, trimming(stream), rows, stream.checkpoint)
    table = stream.spark.read.format("delta").load(str(stream.table))
    assert (table.count(), table.select("_journal", "_offset").distinct().count()) == (20, 20)


def ahead(stream: FileStream) -> tuple[str, int, int]:
    """Prepare a query that starts past the table: its offset options, and the missing range of journal a."""
    stream.append(10)
    stream.run()
    stream.lose_checkpoint()
    before = {journal: len(content) for journal, content in stream.truth().items()}
    stream.append(6)
    heads = {journal: len(content) for journal, content in stream.truth().items()}
    starts = json.dumps({"format_version": 1, "journals": {"a": heads["a"], "b": before["b"]}})
    return starts, before["a"], heads["a"]


def test_a_gap_that_was_accepted_is_recorded(stream: FileStream) -> None:
    """The rows around the gap are in the table, and the ledger records the gap."""
    starts, begin, end = ahead(stream)
    sink = DeltaSink(APP_ID, path=str(stream.table), accept_gaps={"a": [(begin, end)]})
    stream.append(4)
    stream.run(sink, startingOffsets=starts)
    verdict = stream.verdict()
    assert (verdict.rows, verdict.lost, verdict.duplicated, verdict.altered) == (17, 3, 0, 0)
    history = stream.spark.sql(f"DESCRIBE HISTORY delta.`{stream.table}`").collect()
    named = [json.loads(row.userMetadata).get("accepted_gaps") for row in history]
    assert [gaps for gaps in named if gaps] == [[["a", begin, end]]]
    entry = stream.sink().ledger()
    assert entry is not None
    assert SkippedGap("a", begin, end) not in entry.accepted_gaps


def test_a_gap_that_was_not_named_to_the_byte_is_refused(stream: FileStream) -> None:
    starts, begin, end = ahead(stream)
    sink = DeltaSink(APP_ID, path=str(stream.table), accept_gaps={"a": [(begin, end + 1)]})
    with pytest.raises(
        StreamingQueryException, match=rf"GapError.*accept_gaps=\{{'a': \[\({begin}, {end}\)\]\}}"
    ):
        stream.run(sink, startingOffsets=starts)
    assert stream.verdict(complete=False).exact


def test_a_query_resumes_in_one_call(stream: FileStream) -> None:
    for lost in (False, False, True, True):
        if lost:
            stream.lose_checkpoint()
        stream.append(10)
        reader = stream.spark.readStream.format("file_journals").options(
            root=str(stream.journals), maxBytesPerTrigger="90"
        )
        sink = stream.sink()
        run_rows(stream, sink, sink.resume(reader).load(), stream.checkpoint)
    assert stream.assert_exact().rows == 40
