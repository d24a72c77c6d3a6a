"""The commands on an Iceberg table: offsets, lag and verify read what they read of a Delta table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg import catalog as catalog_module
from pyiceberg.utils.config import Config
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark import Client, EmbeddedBroker, IcebergSink, JournalOffsets
from gazette_spark.cli.main import main
from gazette_spark.client import journal_spec
from gazette_spark.errors import TableRefusedError
from gazette_spark.lag.feeds import TableFeed
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Thresholds
from gazette_spark.spark_versions import arrow_schema
from tests.rig.iceberg import NAME, IcebergStream, catalog_properties

RAW = StructType().add("journal", StringType()).add("offset", LongType()).add("value", BinaryType())

JOURNAL = "shop/orders"

RECORD_BYTES = 8

TEXT = b"".join(b"row %03d\n" % number for number in range(40))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with a journal of 40 records."""
    with EmbeddedBroker.start(tmp_path_factory.mktemp("broker")) as started:
        with Client(started.endpoint) as client:
            client.create_journals(journal_spec(JOURNAL))
            client.append(JOURNAL, TEXT)
        yield started


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergStream:
    """A query that has written half of the journal, into a catalog of pyiceberg's configuration."""
    properties = catalog_properties(tmp_path)
    for key, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{key.upper()}", value)
    monkeypatch.setattr(catalog_module, "_ENV_CONFIG", Config())
    made = IcebergStream({}, schema=RAW)
    made.run(0, 0, 0, journal=JOURNAL)
    write(made, 1, 0, 160)
    return made


def write(stream: IcebergStream, batch_id: int, begin: int, end: int, *more: int) -> None:
    """Write the records of a range, and the records at further offsets."""
    offsets = [*range(begin, end, RECORD_BYTES), *more]
    values = [TEXT[at : at + RECORD_BYTES - 1] for at in offsets]
    rows = pa.RecordBatch.from_pydict(
        {"journal": [JOURNAL] * len(offsets), "offset": offsets, "value": values}, schema=arrow_schema(RAW)
    )
    stream.run(batch_id, begin, end, journal=JOURNAL, write=lambda: stream.files(rows))


def test_offsets_show_reads_the_ledger(stream: IcebergStream) -> None:
    """The newest entry that counts; a table that is not there is named."""

    def shown() -> dict[str, int]:
        done = CliRunner().invoke(main, ["offsets", "show", str(NAME), "--format", "json"])
        (entry,) = json.loads(done.stdout)
        assert entry["app_id"] == "orders"
        return dict(entry["end"][0]["journals"])

    write(stream, 2, 160, 240)
    assert shown() == {JOURNAL: 240}
    stream.roll_back(1)
    assert shown() == {JOURNAL: 160}
    missing = CliRunner().invoke(main, ["offsets", "show", "iceberg:prod/shop.other"])
    assert missing.exit_code == 1
    assert "NoSuchTableError" in missing.output
    refused = CliRunner().invoke(main, ["offsets", "show", str(NAME), "--from-data"])
    assert "--from-data reads Delta tables only" in refused.output


def test_the_lag_monitor_follows_the_ledger(stream: IcebergStream) -> None:
    """A group of each app id."""
    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    monitor.observe_heads({JOURNAL: len(TEXT)}, 1)
    feed = TableFeed(str(NAME))
    feed.poll(monitor, 1)
    assert feed.groups == ("orders",)
    assert monitor.committed("orders", 1) == {JOURNAL: 160}
    write(stream, 2, 160, 240)
    feed.poll(monitor, 2)
    assert monitor.committed("orders", 2) == {JOURNAL: 240}


def test_verify_compares_the_table_with_the_journal(stream: IcebergStream, broker: EmbeddedBroker) -> None:
    """Every record once; then a row that is there twice."""
    command = ["verify", str(NAME), "--broker", broker.endpoint]
    whole = CliRunner(catch_exceptions=False).invoke(main, command)
    assert "VERIFIED: 20 records, each once; table version 2" in whole.stdout
    assert whole.exit_code == 0
    write(stream, 2, 160, 320, 168)
    wrong = CliRunner(catch_exceptions=False).invoke(main, command)
    assert "offset 168: the record is in the table more than once" in wrong.stdout
    assert wrong.exit_code == 1
    other = CliRunner(catch_exceptions=False).invoke(main, [*command, "--spark"])
    assert "leave out Spark's options" in other.output


def test_a_ledger_begins_on_a_table_with_rows(stream: IcebergStream) -> None:
    """Offsets that the rows contradict are refused; the query goes on at the others."""
    sink = IcebergSink("late", table=NAME.identifier, catalog=NAME.catalog)
    assert sink.ledger() is None
    assert sink.resume_offsets() is None
    with pytest.raises(TableRefusedError, match=r"rows of journal 'shop/orders' up to offset 152"):
        sink.adopt(JournalOffsets({JOURNAL: 80}))
    entry = sink.adopt(JournalOffsets({JOURNAL: 160}))
    assert entry.adopted
    assert sink.adopt(JournalOffsets({JOURNAL: 160})).attempt == entry.attempt
    with pytest.raises(TableRefusedError, match="app id 'late' has a ledger"):
        sink.adopt(JournalOffsets({JOURNAL: 240}))
    assert json.loads(sink.resume_offsets() or "")["journals"] == {JOURNAL: 160}
    assert [step.read_through for step in sink.commits()] == [{JOURNAL: 160}]
    late = stream.other(app_id="late", query="late", seen=None)
    late.run(0, 160, 160, journal=JOURNAL)
    write(late, 1, 160, 240)
    assert late.load().scan().to_arrow().num_rows == 30
