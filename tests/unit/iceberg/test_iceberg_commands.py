"""The commands work on an Iceberg table as on a Delta table: offsets, lag and verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg import catalog as catalog_module
from pyiceberg.utils.config import Config
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark import Client, EmbeddedBroker, IcebergSink, JournalOffsets, LedgerEntry
from gazette_spark._verify import driver_engine
from gazette_spark.cli.main import main
from gazette_spark.client import journal_spec
from gazette_spark.errors import OptionError, TableRefusedError
from gazette_spark.lag.feeds import TableFeed
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Thresholds
from gazette_spark.offsets import Fingerprint
from gazette_spark.spark_versions import arrow_schema
from tests.rig.iceberg import NAME, IcebergStream, catalog_properties
from tests.rig.upkeep import delete_journal

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
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = catalog_properties(tmp_path)
    for key, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{key.upper()}", value)
    monkeypatch.setattr(catalog_module, "_ENV_CONFIG", Config())


@pytest.fixture
def stream(catalog: None) -> IcebergStream:
    """A query that has written half of the journal."""
    made = IcebergStream({}, schema=RAW)
    made.run(0, 0, 0, journal=JOURNAL)
    write(made, 1, 0, 160)
    return made


def write(stream: IcebergStream, batch_id: int, begin: int, end: int, *more: int) -> None:
    rows = records(JOURNAL, begin, end, *more)
    stream.run(batch_id, begin, end, journal=JOURNAL, write=lambda: stream.files(rows))


def records(journal: str, begin: int, end: int, *more: int) -> pa.RecordBatch:
    offsets = [*range(begin, end, RECORD_BYTES), *more]
    values = [TEXT[at : at + RECORD_BYTES - 1] for at in offsets]
    return pa.RecordBatch.from_pydict(
        {"journal": [journal] * len(offsets), "offset": offsets, "value": values}, schema=arrow_schema(RAW)
    )


def test_offsets_show_reads_the_ledger(stream: IcebergStream) -> None:
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


def rows_end(broker: str) -> JournalOffsets:
    command = ["offsets", "show", str(NAME), "--from-data", "--broker", broker, "--format", "json"]
    done = CliRunner(catch_exceptions=False).invoke(main, [*command, "--timeout", "1"])
    return JournalOffsets.from_json(done.stdout)


def test_offsets_show_reads_where_rows_end(stream: IcebergStream, broker: EmbeddedBroker) -> None:
    write(stream, 2, 160, 240)
    assert rows_end(broker.endpoint) == JournalOffsets({JOURNAL: 240})
    rows = pa.table({"journal": [JOURNAL], "offset": [240], "value": [b"other"]}, schema=arrow_schema(RAW))
    stream.load().append(rows)
    refused = CliRunner().invoke(
        main, ["offsets", "show", str(NAME), "--from-data", "--broker", broker.endpoint]
    )
    assert refused.exit_code == 1
    assert "has other bytes there" in refused.output


@pytest.mark.usefixtures("catalog")
def test_rows_of_an_iceberg_table_that_say_where_they_end_need_no_broker() -> None:
    schema = StructType().add("_journal", StringType()).add("_offset", LongType())
    stream = IcebergStream({}, schema=schema.add("_end_offset", LongType()))
    stream.table.prepare(stream.schema)
    for names, offsets, ends in ((["a", "b"], [0, 5], [7, 9]), (["b"], [0], [5])):
        stream.load().append(pa.table({"_journal": names, "_offset": offsets, "_end_offset": ends}))
    assert rows_end("http://127.0.0.1:1") == JournalOffsets({"a": 7, "b": 9})


def test_a_ledger_goes_on_in_a_journal_that_was_created_again(
    stream: IcebergStream, broker: EmbeddedBroker
) -> None:
    again, options = "shop/again", {"brokerAddress": broker.endpoint}
    sink = IcebergSink("again", table=NAME.identifier, catalog=NAME.catalog)
    query = stream.other(app_id="again", query="again", seen=None)

    def adopt(journal: str = again) -> LedgerEntry:
        return sink.adopt(JournalOffsets({journal: 0}), recreated=True, options=options)

    with Client(broker.endpoint) as client:
        client.create_journals(journal_spec(again))
        client.append(again, TEXT[:40])
        prints = {again: Fingerprint.of(TEXT[:40], 40, client.get_journal(again).create_revision)}
        query.run(0, 0, 0, journal=again)
        query.run(
            1, 0, 40, journal=again, write=lambda: query.files(records(again, 0, 40)), fingerprints=prints
        )
        with pytest.raises(TableRefusedError, match=r"bytes up to offset 40.*IcebergSink\.resume\(reader\)"):
            adopt()
        delete_journal(client, again)
        client.create_journals(journal_spec(again))
        client.append(again, TEXT[80:160])
        entry = adopt()
    assert (entry.recreated, entry.read_through) == ({again: 40}, {again: 0})
    assert adopt().attempt == entry.attempt
    with pytest.raises(TableRefusedError, match="does not name journal 'shop/new'"):
        adopt("shop/new")
    with pytest.raises(OptionError, match="options of the query's reader"):
        sink.adopt(JournalOffsets({again: 0}), recreated=True)
    query = stream.other(app_id="again", query="resumed", seen=None)
    query.run(0, 0, 0, journal=again)
    query.run(1, 0, 80, journal=again, write=lambda: query.files(records(again, 0, 80)))
    assert query.load().scan().to_arrow().column("journal").to_pylist().count(again) == 15


def test_the_lag_monitor_follows_the_ledger(stream: IcebergStream) -> None:
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


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_verify_compares_the_table_with_the_journal(
    stream: IcebergStream, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(driver_engine, "SMALL_BYTES", 1)
        monkeypatch.setattr(driver_engine, "CHUNK_ROWS", 7)
    command = ["verify", str(NAME), "--broker", broker.endpoint]
    whole = CliRunner(catch_exceptions=False).invoke(main, command)
    assert "VERIFIED: 20 records, each once; table version 2" in whole.stdout
    assert whole.exit_code == 0
    for rows, problem in (
        (records(JOURNAL, 160, 320, 400), "offset 400: the table has a row here that no visible entry"),
        (records(JOURNAL, 160, 320, 168), "offset 168: the record is in the table more than once"),
        (records(JOURNAL, 160, 312), "offset 312: the record has no row in the table"),
    ):
        stream.run(2, 160, 320, journal=JOURNAL, write=partial(stream.files, rows))
        wrong = CliRunner(catch_exceptions=False).invoke(main, command)
        assert problem in wrong.stdout
        assert wrong.exit_code == 1
        stream.roll_back(1)
        stream.seen = None
    other = CliRunner(catch_exceptions=False).invoke(main, [*command, "--spark"])
    assert "leave out Spark's options" in other.output


def test_a_ledger_begins_on_a_table_with_rows(stream: IcebergStream) -> None:
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


@pytest.mark.usefixtures("catalog")
def test_rows_of_other_programs_are_read_in_any_arrow_type() -> None:
    """The type of a text is that of its file: polars and pandas write large texts, tasks small ones."""
    schema = StructType().add("_journal", StringType()).add("_offset", LongType())
    stream = IcebergStream({}, schema=schema.add("_end_offset", LongType()))
    stream.table.prepare(stream.schema)
    for kind, offset in ((pa.string(), 0), (pa.large_string(), 7)):
        names = pa.array(["a"], kind)
        stream.load().append(pa.table({"_journal": names, "_offset": [offset], "_end_offset": [offset + 7]}))
    assert rows_end("http://127.0.0.1:1") == JournalOffsets({"a": 14})
