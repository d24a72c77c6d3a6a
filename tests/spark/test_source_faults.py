"""Missing, damaged or unreachable bytes end a query with a specific error, or are skipped if allowed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import Client, DeltaSink, gaps
from gazette_spark._ledger.delta_reader import directory_history
from gazette_spark._ledger.entry import SkippedGap, parse_whole_entry
from gazette_spark.cli.main import main
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.rig.brokers import BrokerHandle
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

FRAGMENTS = 4
OLD_S = 7 * 3600
"""Age in seconds above which a broker treats a hole as deleted data instead of data to come."""


@dataclass
class Stored:
    """A journal whose fragments are stored, except for the last one."""

    journals: Journals
    content: bytes
    persisted: list[Fragment]

    @property
    def name(self) -> str:
        return self.journals.name("a")

    def path(self, fragment: Fragment) -> Path:
        return self.journals.broker.file_root / self.name / fragment.content_name

    def delete(self, fragment: Fragment, *, age_s: int = OLD_S) -> None:
        """Delete a fragment's file, and wait until the broker lists the others as ``age_s`` seconds old."""
        for each in self.persisted:
            modified = self.path(each).stat().st_mtime - age_s
            os.utime(self.path(each), (modified, modified))
        oldest = min(int(self.path(each).stat().st_mtime) for each in self.persisted)
        self.path(fragment).unlink()
        wait_until("the broker to list the store again", lambda: self._seen(fragment, oldest))

    def _seen(self, fragment: Fragment, oldest: int) -> bool:
        listed = [each.fragment for each in self.journals.client.list_fragments(self.name)]
        stored = [each.mod_time for each in listed if each.mod_time]
        return fragment.begin not in [each.begin for each in listed] and max(stored) < oldest + 3600

    def records_outside(self, fragment: Fragment) -> list[tuple[int, bytes]]:
        """Return the records outside the fragment, without the next one, which may be incomplete."""
        every = records(self.content)
        behind = self.next_record(fragment)
        return [(at, value) for at, value in every if at + len(value) < fragment.begin or at >= behind]

    def next_record(self, fragment: Fragment) -> int:
        """Return the begin of the first record that is certainly after the fragment."""
        return self.content.index(b"\n", fragment.end) + 1


@pytest.fixture
def stored(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Stored:
    """A journal of some 6 KB in uncompressed fragments of slightly more than 1 KB."""
    journals = Journals(spark, broker, client, fresh_prefix)
    journals.create("a", length=1024, codec="NONE", refresh_interval_s=1)
    content = b""
    for n in range(FRAGMENTS + 1):
        part = b"".join(b"record %d of part %d, of some length\n" % (i, n) for i in range(32))
        journals.append("a", part)
        content += part
    name = journals.name("a")

    def persisted() -> list[Fragment]:
        return [each.fragment for each in client.list_fragments(name) if each.fragment.mod_time]

    wait_until("fragments to be stored", lambda: len(persisted()) >= FRAGMENTS)
    return Stored(journals, content, persisted())


def test_fragments_are_read_from_their_files(stored: Stored) -> None:
    root = str(stored.journals.broker.file_root)
    frame = stored.journals.batch("a", fragmentRoot=root, maxBytesPerPartition="1k")
    assert raw(frame.collect()) == records(stored.content)
    assert raw(stored.journals.batch("a").collect()) == records(stored.content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        pytest.param(lambda data: data[:-100], "is corrupt", id="truncated", marks=pytest.mark.soak),
        pytest.param(lambda data: data[:50] + b"?" + data[51:], "is corrupt: .*SHA-1", id="changed"),
    ],
)
def test_a_damaged_fragment_is_named(stored: Stored, damage: Callable[[bytes], bytes], problem: str) -> None:
    fragment = stored.persisted[1]
    path = stored.path(fragment)
    path.write_bytes(damage(path.read_bytes()))
    frame = stored.journals.batch("a", fragmentRoot=str(stored.journals.broker.file_root))
    where = rf"journal '{stored.name}': fragment \[{fragment.begin}, {fragment.end}\)"
    with pytest.raises(PySparkException, match=f"{where}.*{problem}"):
        frame.collect()


@BOTH_BROKERS
def test_a_hole_is_data_loss(stored: Stored) -> None:
    """The error is the default; if skipping is allowed, nothing else is skipped."""
    fragment = stored.persisted[1]
    stored.delete(fragment)
    begin, end = fragment.begin, fragment.end
    lost = f"journal '{stored.name}': cannot read offset {begin}: the next available byte is at {end}"
    with pytest.raises(PySparkException, match=lost):
        stored.journals.batch("a").collect()
    rows = raw(stored.journals.batch("a", failOnDataLoss="false").collect())
    assert rows == stored.records_outside(fragment)
    cut = stored.journals.batch("a", failOnDataLoss="false", maxBytesPerPartition="700")
    assert raw(cut.collect()) == rows


def test_a_hole_that_may_still_be_filled_is_waited_for_and_then_named(stored: Stored) -> None:
    """A broker does not skip young fragments; the query must end at its deadline."""
    fragment = stored.persisted[1]
    stored.delete(fragment, age_s=0)
    began = monotonic()
    waited_for = f"journal '{stored.name}': offset {fragment.begin} cannot be read yet"
    with pytest.raises(PySparkException, match=waited_for):
        stored.journals.batch("a", requestTimeoutMs="2000").collect()
    assert monotonic() - began < 60


def test_a_stream_whose_next_bytes_are_gone_ends(stored: Stored, tmp_path: Path) -> None:
    """Retention has deleted the next bytes; with failOnDataLoss=false the query continues after the gap."""
    options = {"maxBytesPerTrigger": "300"}

    def stop(_batch: object, batch_id: int) -> None:
        if batch_id == 1:
            raise RuntimeError("stop here")

    with pytest.raises(StreamingQueryException, match="stop here"):
        run_available(stored.journals.stream("a", **options), tmp_path, stop)
    stored.delete(stored.persisted[0])
    lost = f"cannot read offset 0: the next available byte is at {stored.persisted[0].end}"
    with pytest.raises(StreamingQueryException, match=lost):
        run_available(stored.journals.stream("a"), tmp_path)
    rest = run_available(stored.journals.stream("a", failOnDataLoss="false"), tmp_path)
    assert raw(rows_of(rest)) == stored.records_outside(stored.persisted[0])


def test_a_journal_that_was_made_again_is_not_merged(stored: Stored, tmp_path: Path) -> None:
    """The new journal reuses offsets for other bytes, so the error says that it was recreated."""
    client, name = stored.journals.client, stored.name
    run_available(stored.journals.stream("a"), tmp_path)
    client.apply([pb.ApplyRequest.Change(delete=name, expect_mod_revision=-1)])
    for each in stored.persisted:
        stored.path(each).unlink()
    stored.journals.create("a")
    stored.journals.append("a", b"another life\n")
    with pytest.raises(
        StreamingQueryException, match=f"'{name}': it was deleted and created again at revision [0-9]+"
    ):
        run_available(stored.journals.stream("a"), tmp_path)


def test_a_broker_that_is_not_there_is_named(spark: SparkSession) -> None:
    frame = (
        spark.read.format("gazette")
        .option("brokerAddress", "http://127.0.0.1:9")
        .option("connectTimeoutMs", 500)
        .option("requestTimeoutMs", 1000)
        .load("some/journal")
    )
    began = monotonic()
    with pytest.raises(PySparkException, match=r"broker http://127\.0\.0\.1:9: unavailable"):
        frame.collect()
    assert monotonic() - began < 60


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """An address that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def hold() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for connection in held:
            connection.close()


def test_a_broker_that_never_answers_is_given_up(
    spark: SparkSession, silent_broker: str, tmp_path: Path
) -> None:
    frame = (
        spark.readStream.format("gazette")
        .option("brokerAddress", silent_broker)
        .option("connectTimeoutMs", 500)
        .option("requestTimeoutMs", 1000)
        .load("some/journal")
    )
    began = monotonic()
    with pytest.raises(StreamingQueryException, match=f"broker {silent_broker}: unavailable"):
        run_available(frame, tmp_path)
    assert monotonic() - began < 60


def test_fragments_stored_between_planning_and_reading_change_no_row(
    spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str, tmp_path: Path
) -> None:
    """A broker has the bytes at planning; the batch is read again when they are files in a store."""
    journals = Journals(spark, broker, client, fresh_prefix)
    journals.create("a", length=1024, codec="GZIP", refresh_interval_s=1)
    content = b"".join(b"record %d\n" % n for n in range(60))
    journals.append("a", content)
    again: list[tuple[int, bytes]] = []

    def is_stored() -> bool:
        fragments = [each.fragment for each in client.list_fragments(journals.name("a"))]
        return any(each.mod_time and each.end >= len(content) for each in fragments)

    def store(batch: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            journals.append("a", b"x" * 1024 + b"\n")
            journals.append("a", b"a fragment begins\n")
            wait_until("the fragment to be stored", is_stored)
            again.extend(raw(batch.collect()))

    options = {"fragmentRoot": str(broker.file_root), "minPartitions": "2"}
    batches = run_available(journals.stream("a", **options), tmp_path, store)
    assert raw(batches[1]) == records(content)
    assert again == records(content)


@pytest.mark.parametrize("fail", ["true", pytest.param("false", marks=pytest.mark.soak)])
def test_fragments_deleted_between_planning_and_reading_are_data_loss(
    stored: Stored, tmp_path: Path, fail: str
) -> None:
    """The batch fails as a whole or skips exactly those records; it never drops rows silently."""
    fragment = stored.persisted[1]
    again: list[tuple[int, bytes]] = []

    def delete(batch: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            stored.delete(fragment)
            again.extend(raw(batch.collect()))

    root = str(stored.journals.broker.file_root)
    stream = stored.journals.stream("a", failOnDataLoss=fail, fragmentRoot=root, maxBytesPerPartition="700")
    if fail == "false":
        run_available(stream, tmp_path, delete)
        assert again == stored.records_outside(fragment)
        return
    lost = f"DataLossError: journal '{stored.name}': cannot read offset {fragment.begin}: the next available"
    with pytest.raises(StreamingQueryException, match=lost):
        run_available(stream, tmp_path, delete)
    assert again == []


def test_gaps_are_rows(stored: Stored) -> None:
    """Each gap in the options' range is a row, which Spark can filter; a journal without gaps has none."""
    first, second = stored.persisted[0], stored.persisted[2]
    spark, endpoint = stored.journals.spark, stored.journals.broker.endpoint
    assert gaps(spark, stored.name, brokerAddress=endpoint).collect() == []
    stored.delete(second)
    stored.persisted.remove(second)
    stored.delete(first)
    expected = [(stored.name, each.begin, each.end, each.length) for each in (first, second)]
    found = gaps(spark, stored.name, brokerAddress=endpoint)
    assert found.columns == ["journal", "begin", "end", "bytes"]
    assert [tuple(row) for row in found.collect()] == expected[1:]
    whole = gaps(
        spark,
        stored.journals.prefix,
        brokerAddress=endpoint,
        startingOffsets=f'{{"{stored.name}":0}}',
        endingOffsets=f'{{"{stored.name}":{second.end - 1}}}',
    )
    assert [tuple(row) for row in whole.orderBy("begin").collect()] == [
        expected[0],
        (stored.name, second.begin, second.end - 1, second.length - 1),
    ]
    assert whole.where("bytes > 100000").count() == 0


def test_skipped_bytes_are_in_the_ledger(stored: Stored, tmp_path: Path) -> None:
    """The batch's entry lists the skipped bytes, the table the other records; the command shows the gap."""
    table, fragment = tmp_path / "table", stored.persisted[1]
    stored.delete(fragment)
    frame = stored.journals.stream("a", failOnDataLoss="false")
    sink = DeltaSink("orders", path=str(table))
    query = sink.start(frame, checkpoint=str(tmp_path / "checkpoint"), availableNow=True)
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    entries = [parse_whole_entry(row.user_metadata, "orders") for row in directory_history(table)]
    skipped = {entry.batch_id: entry.gaps for entry in entries if entry is not None}
    gap = SkippedGap(stored.name, fragment.begin, stored.next_record(fragment))
    assert skipped == {0: (), 1: (gap,)}
    rows = [row for file in table.glob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
    assert sorted((row["offset"], row["value"]) for row in rows) == stored.records_outside(fragment)
    shown = CliRunner().invoke(main, ["offsets", "show", str(table)]).stdout.splitlines()
    assert shown[-1].split()[-4:] == [stored.name, *map(str, (gap.begin, gap.end, gap.end - gap.begin))]
