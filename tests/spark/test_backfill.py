"""The examples of docs/guides/backfill.md work while a writer appends and processes crash."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from gazette_spark import Client, DeltaSink, JournalOffsets, backfill
from gazette_spark._ledger.delta_reader import directory_history
from gazette_spark._ledger.entry import parse_whole_entry
from gazette_spark.errors import GapError, OverlapError
from gazette_spark.failpoints import FAILPOINT_VARIABLE, FailpointError
from gazette_spark.protocol.spans import joined
from tests.oracles.stores import MemoryFiles
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import QUERY_TIMEOUT_S, Journals
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "backfill.md"
SHORTS = ("a", "b")
SCHEMA = "id BIGINT, user STRING, amount DOUBLE, _journal STRING, _offset BIGINT"


def examples(journals: Journals, directory: Path) -> list[str]:
    """Return the page's code blocks, with this test's broker, journals and directories substituted."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    changes = {
        "http://localhost:8080": journals.broker.endpoint,
        "file:///data/fragments": f"file://{journals.broker.file_root}",
        '"/data/': f'"{directory}/',
        '"shop/"': f'"{journals.prefix}"',
    }
    for old, new in changes.items():
        blocks = [block.replace(old, new) for block in blocks]
    return blocks


class Writer:
    def __init__(self, journals: Journals) -> None:
        self.journals = journals
        self.orders: dict[tuple[str, int], int] = {}
        """Order ids by journal and offset."""
        self._lock = threading.Lock()

    def append(self, count: int = 30) -> None:
        with self._lock:
            for short in SHORTS:
                ids = range(len(self.orders), len(self.orders) + count)
                lines = [
                    json.dumps({"id": n, "user": f"user-{n % 3}", "amount": n / 4}).encode() + b"\n"
                    for n in ids
                ]
                at = self.journals.append(short, b"".join(lines))
                for n, line in zip(ids, lines, strict=True):
                    self.orders[self.journals.name(short), at] = n
                    at += len(line)

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.02):
                self.append(5)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)


@pytest.fixture
def writer(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Writer:
    journals = Journals(spark, broker, client, fresh_prefix)
    journals.create(*SHORTS, length=1024, codec="GZIP", refresh_interval_s=1)
    made = Writer(journals)
    for _ in range(3):
        made.append()
    stored = [path for short in SHORTS for path in [broker.file_root / journals.name(short)]]
    wait_until("fragments to be stored", lambda: all(len(list(each.glob("0*.gz"))) > 1 for each in stored))
    return made


def rows_of(spark: SparkSession, table: Path) -> dict[tuple[str, int], int]:
    """Return the table's ids by journal and offset; fail on duplicates."""
    rows = spark.read.format("delta").load(str(table)).select("_journal", "_offset", "id").collect()
    found = {(row._journal, row._offset): row.id for row in rows}
    assert len(found) == len(rows)
    return found


def crash(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, f"{point}:1:raise")


@pytest.mark.parametrize(
    "broker",
    [
        pytest.param("embedded", marks=pytest.mark.soak),
        pytest.param("deployed", marks=pytest.mark.deployed_broker),
    ],
    indirect=True,
)
def test_the_page(
    spark: SparkSession,
    writer: Writer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Backfill and stream crash and restart during appends; each order must be in the table once."""
    fill, stream, check = examples(writer.journals, tmp_path)
    table = tmp_path / "orders"
    with writer.running():
        for point in ("sink.after_write", "sink.return"):  # The commit that pins, then the rows'.
            crash(monkeypatch, point)
            with pytest.raises(FailpointError):
                exec(fill, {"spark": spark})
        monkeypatch.delenv(FAILPOINT_VARIABLE)
        exec(fill, {"spark": spark})
        # A restarted program has only the code and the table.
        names: dict[str, Any] = {
            "spark": spark,
            "schema": SCHEMA,
            "sink": DeltaSink("orders", path=str(table)),
        }
        crash(monkeypatch, "sink.before_write")
        exec(stream, names)
        with pytest.raises(StreamingQueryException, match="failpoint"):
            names["query"].awaitTermination(QUERY_TIMEOUT_S)
        monkeypatch.delenv(FAILPOINT_VARIABLE)
        filled = len(rows_of(spark, table))
        assert 100 < filled < len(writer.orders)
        exec(stream, names)
        query = names["query"]
        wait_until("a batch of the stream", lambda: any(p.numInputRows for p in query.recentProgress))
    names["query"].processAllAvailable()
    names["query"].stop()
    assert rows_of(spark, table) == writer.orders
    exec(check, names)
    assert f"{len(writer.orders)} records, 0 of them twice" in capsys.readouterr().out
    heads = writer.journals.client.write_heads([writer.journals.name(short) for short in SHORTS])
    entry = DeltaSink("orders", path=str(table)).ledger(spark)
    assert entry is not None
    assert entry.read_through == heads


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
def test_a_second_backfill_finds_the_first(spark: SparkSession, writer: Writer, tmp_path: Path) -> None:
    sink = DeltaSink("orders", path=str(tmp_path / "orders"))
    options = {
        "brokerAddress": writer.journals.broker.endpoint,
        "path": writer.journals.prefix,
        "format": "json",
    }
    first = backfill(sink, options, schema=SCHEMA, bytes_per_commit=4000, spark=spark)
    assert first.written
    entry = sink.ledger(spark)
    assert entry is not None
    assert entry.txn_version > 2
    assert rows_of(spark, tmp_path / "orders") == writer.orders
    again = backfill(sink, options, schema=SCHEMA, spark=spark)
    assert (again.begin, again.end, again.written) == (first.end, first.end, False)
    writer.append()
    writer.journals.create("c")
    writer.journals.append("c", b'{"id":-1}\n')
    writer.orders[writer.journals.name("c"), 0] = -1
    assert backfill(sink, options, schema=SCHEMA, spark=spark).written
    assert rows_of(spark, tmp_path / "orders") == writer.orders


@pytest.mark.parametrize("bytes_per_commit", [None, 30], ids=["at once", "in steps"])
def test_the_ledger_names_what_a_backfill_skipped(
    spark: SparkSession, tmp_path: Path, bytes_per_commit: int | None
) -> None:
    """If a fragment is missing from the store, its bytes are gaps in the commits that read past them."""
    files = MemoryFiles()
    for begin in (0, 40, 120):  # The file for [80, 120) is missing.
        files.put("log/a", begin, b"".join(b'{"id":%2d}\n' % n for n in range(begin // 10, begin // 10 + 4)))
    files.write_to(tmp_path / "store")
    sink = DeltaSink("orders", path=str(tmp_path / "orders"))
    options = {
        "fragmentStore": f"file://{tmp_path}/store",
        "path": "log/",
        "format": "json",
        "framing": "lines",
        "failOnDataLoss": "false",
    }
    found = backfill(sink, options, schema=SCHEMA, bytes_per_commit=bytes_per_commit, spark=spark)
    assert found.written
    rows = rows_of(spark, tmp_path / "orders")
    assert not any(80 <= offset < 120 for _, offset in rows)
    history = [
        parse_whole_entry(row.user_metadata, "orders") for row in directory_history(tmp_path / "orders")
    ]
    gaps = [(gap.begin, gap.end) for entry in reversed(history) if entry for gap in entry.gaps]
    kept = [(offset, offset + 10) for _, offset in sorted(rows)]
    assert joined([*gaps, *kept]) == [(0, 160)]
    assert joined(gaps)[0][0] == 80


def test_only_what_continues_a_table_is_written(spark: SparkSession, tmp_path: Path) -> None:
    """A repeated batch is skipped; a batch that skips bytes or overlaps the table is refused."""
    sink = DeltaSink("orders", path=str(tmp_path / "orders"))
    frame = spark.createDataFrame([(7,)], "id BIGINT")

    def at(offset: int) -> JournalOffsets:
        return JournalOffsets({"log/a": offset})

    assert sink.write_batch(frame, at(10), at(20))
    assert not sink.write_batch(frame, at(10), at(20))
    with pytest.raises(GapError, match="the table ends at 20"):
        sink.write_batch(frame, at(21), at(30))
    for begin in (5, 15):
        with pytest.raises(OverlapError):
            sink.write_batch(frame, at(begin), at(30))
    assert spark.read.format("delta").load(str(tmp_path / "orders")).count() == 1
