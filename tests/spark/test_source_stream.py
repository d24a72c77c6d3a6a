"""A stream returns each complete record once, despite restarts, crashes, new journals and partial records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import Client
from gazette_spark.offsets import Fingerprint
from tests.rig.brokers import BrokerHandle
from tests.rig.upkeep import delete_journal
from tests.spark.source_queries import (
    BOTH_BROKERS,
    QUERY_TIMEOUT_S,
    Journals,
    raw,
    records,
    rows_of,
    run_available,
)
from tests.waiting import wait_until

LINES = b"".join(b"record %d of some length\n" % n for n in range(200))


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    return Journals(spark, broker, client, fresh_prefix)


@BOTH_BROKERS
def test_batches_keep_the_limit_and_restarts_go_on(journals: Journals, tmp_path: Path) -> None:
    """The first batch is empty; later ones end at a record and exceed the limit by at most one record."""
    journals.create("a", "b")
    journals.append("a", LINES)
    journals.append("b", LINES[:1000])
    first = run_available(journals.stream(maxBytesPerTrigger="2500"), tmp_path)
    assert first[0] == []
    sizes = [sum(len(row.value) + 1 for row in rows) for rows in first.values()]
    assert max(sizes) <= 2500 + 2 * 26
    assert len(sizes) >= 3

    journals.append("a", b"after the restart\n")
    second = run_available(journals.stream(maxBytesPerTrigger="2500"), tmp_path)
    assert list(second) == [len(first)]
    rows = rows_of(first | second)
    assert raw(rows, journals.name("a")) == records(LINES + b"after the restart\n")
    whole = LINES[: LINES.rindex(b"\n", 0, 1000) + 1]
    assert raw(rows, journals.name("b")) == records(whole)


def test_json_streams_as_typed_columns(journals: Journals, tmp_path: Path) -> None:
    journals.create("a", labels={"content-type": "application/x-ndjson"})
    journals.append("a", b"".join(b'{"id":%d,"name":"n%d"}\n' % (n, n) for n in range(50)))
    frame = journals.stream("a", schema="id BIGINT, name STRING, _offset BIGINT", format="json")
    rows = sorted(tuple(row)[:2] for row in rows_of(run_available(frame, tmp_path)))
    assert rows == [(n, f"n{n}") for n in range(50)]


def test_a_crash_in_the_first_batch_keeps_the_start(journals: Journals, tmp_path: Path) -> None:
    """Bytes appended between crash and restart are read, not skipped."""
    journals.create("a")
    journals.append("a", b"before the query\n")

    def crash(_batch: DataFrame, _batch_id: int) -> None:
        journals.append("a", b"after the start\n")
        raise RuntimeError("crash")

    frame = journals.stream("a", startingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="crash"):
        run_available(frame, tmp_path, crash)
    rows = rows_of(run_available(journals.stream("a", startingOffsets="latest"), tmp_path))
    assert raw(rows) == [(17, b"after the start")]


def test_a_failed_batch_is_read_again_with_the_same_range(journals: Journals, tmp_path: Path) -> None:
    """Bytes appended between crash and restart wait for the next batch."""
    journals.create("a")
    journals.append("a", LINES)

    def crash(_batch: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            journals.append("a", b"later\n")
            raise RuntimeError("crash")

    with pytest.raises(StreamingQueryException, match="crash"):
        run_available(journals.stream("a"), tmp_path, crash)
    again = run_available(journals.stream("a"), tmp_path)
    assert raw(again[1]) == records(LINES)
    assert raw(again[2]) == [(len(LINES), b"later")]


def test_trigger_once_records_its_start_first(journals: Journals, tmp_path: Path) -> None:
    """As documented, the first run of Trigger.Once returns no rows and the second one all."""
    journals.create("a")
    journals.append("a", LINES)
    found = []
    for _ in range(2):
        writer = journals.stream("a", maxBytesPerTrigger="100").writeStream.trigger(once=True)
        writer = writer.foreachBatch(lambda batch, _: found.append(raw(batch.collect())))
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)
    assert found == [[], records(LINES)]


def test_sources_that_are_swapped_are_refused(journals: Journals, tmp_path: Path) -> None:
    """A checkpoint stores positions in the order of the sources; none may get another's journals."""
    for name in ("a", "b"):
        journals.create(f"{name}/0")
        journals.append(f"{name}/0", LINES)
    a, b = journals.stream("a/"), journals.stream("b/")
    run_available(a.union(b), tmp_path)
    for swapped in (b.union(a), a.union(a)):
        with pytest.raises(StreamingQueryException, match="OtherJournalsError: option 'path': it selects"):
            run_available(swapped, tmp_path)
    journals.append("b/0", b"after the restart\n")
    rows = rows_of(run_available(a.union(b), tmp_path))
    assert raw(rows, journals.name("b/0")) == [(len(LINES), b"after the restart")]


def test_available_now_ends_while_journals_grow(journals: Journals, tmp_path: Path) -> None:
    """A run ends at the heads of its start; journals that appear later wait for the next run."""
    journals.create("a")
    journals.append("a", LINES)

    def append(_batch: DataFrame, batch_id: int) -> None:
        journals.append("a", b"appended by batch %d\n" % batch_id)
        if batch_id == 0:
            journals.create("new")
            journals.append("new", b"first of a new journal\n")

    frame = journals.stream(maxBytesPerTrigger="2k")
    first = run_available(frame, tmp_path, append)
    assert raw(rows_of(first)) == records(LINES)

    second = rows_of(run_available(journals.stream(), tmp_path))
    assert raw(second, journals.name("new")) == [(0, b"first of a new journal")]
    assert len(raw(second, journals.name("a"))) == len(first)


@BOTH_BROKERS
def test_a_running_query_follows_its_journals(journals: Journals, tmp_path: Path) -> None:
    """Partial records wait, new journals are read in full, deleted ones end the query if data is unread."""
    journals.create("a")
    journals.append("a", b"whole\nhalf")
    rows: list[tuple[str, int, bytes]] = []

    def take(batch: DataFrame, _batch_id: int) -> None:
        rows.extend((row.journal, row.offset, bytes(row.value)) for row in batch.collect())

    # A call without a response ends the query with a specific error before the test times out.
    frame = journals.stream(requestTimeoutMs="20000")
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    query = writer.start()

    def has_come(*expected: tuple[str, int, bytes]) -> bool:
        if (failure := query.exception()) is not None:
            raise failure
        return rows == list(expected)

    try:
        a, b, c = (journals.name(short) for short in "abc")
        read = [(a, 0, b"whole")]
        wait_until("the whole record", lambda: has_come(*read))
        journals.append("a", b" and half\n")
        read.append((a, 6, b"half and half"))
        wait_until("the record's other half", lambda: has_come(*read))
        journals.create("b")
        journals.append("b", b"of b\nhalf")
        read.append((b, 0, b"of b"))
        wait_until("the new journal", lambda: has_come(*read))
        journals.create("c")
        journals.append("c", b"of c\n")
        read.append((c, 0, b"of c"))
        wait_until("another one", lambda: has_come(*read))
        delete_journal(journals.client, c)
        journals.append("a", b"after c\n")
        read.append((a, 20, b"after c"))
        wait_until("that its end is no loss", lambda: has_come(*read))
        delete_journal(journals.client, b)
        with pytest.raises(StreamingQueryException, match=f"'{b}': .*4 unread bytes.*failOnDataLoss=false"):
            assert query.awaitTermination(60), "the query did not notice"
    finally:
        query.stop()


SOAK_DAMAGES = {
    '{"format_version":1,"journals":{"%s":3}}': "position is in the middle of a record of .* \\(offset 3\\)",
    '{"format_version":1,"journals":{"%s":"3"}}': "an offset must be an integer, got '3'; expected the form",
    '{"format_version":9,"journals":{"%s":6}}': "a later release of gazette_spark wrote it",
    '{"orders":{"0":23}}': "OffsetError: format_version is None; expected the form",
}
"""Positions that are edited, foreign or from a later release, with the error of each."""

DAMAGES = {
    "null": "OffsetError: a position must be a JSON object, got None",
    '{"format_version":1,"journals":{"%s":999}}': "offset 999 was already read, but .* at 6",
}
"""A value that is not a position, and a position that only the broker can refuse, with the error of each."""


@pytest.mark.parametrize(
    "damages",
    [pytest.param(DAMAGES, id="offset"), pytest.param(SOAK_DAMAGES, id="all", marks=pytest.mark.soak)],
)
def test_a_damaged_position_is_refused(journals: Journals, tmp_path: Path, damages: dict[str, str]) -> None:
    """Spark passes on the file's contents; the source says what is wrong with them and how to recover."""
    journals.create("a")
    journals.append("a", b"whole\n")
    run_available(journals.stream("a"), tmp_path)
    newest = tmp_path / "offsets" / "1"
    lines = newest.read_text().splitlines()
    newest.with_name(".1.crc").unlink()
    for damage, error in damages.items():
        newest.write_text("\n".join([*lines[:-1], damage.replace("%s", journals.name("a"))]))
        with pytest.raises(StreamingQueryException, match=error):
            run_available(journals.stream("a"), tmp_path)
    newest.write_text("\n".join(lines))
    journals.append("a", b"more\n")
    assert raw(rows_of(run_available(journals.stream("a"), tmp_path))) == [(6, b"more")]


def test_positions_in_the_query_checkpoint_are_what_the_documentation_says(
    journals: Journals, tmp_path: Path
) -> None:
    """The sink and other tools read the positions there."""
    journals.create("a")
    journals.append("a", b"whole\nhalf")
    run_available(journals.stream("a"), tmp_path)
    stored = [json.loads((tmp_path / "offsets" / name).read_text().splitlines()[-1]) for name in ("0", "1")]
    a = journals.name("a")
    created = journals.client.get_journal(a).create_revision
    seen = {"format_version": 1, "revision": stored[0]["revision"], "heads": {a: 10}}
    assert seen["revision"] >= created
    prints = (Fingerprint(0, 0, create_revision=created), Fingerprint.of(b"whole\n", 6, created))
    first, second = ({"fingerprints": {a: each.to_text()}} for each in prints)
    assert stored == [
        seen | first | {"journals": {a: 0}, "position": "pinned"},
        seen | second | {"journals": {a: 6}},
    ]
