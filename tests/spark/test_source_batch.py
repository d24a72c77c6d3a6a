"""A batch query returns each complete record of the selected journals once, on every broker."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from gazette_spark import Client
from gazette_spark._formats.fixed import frame
from tests.oracles.messages import descriptor_set, order_class
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import BOTH_BROKERS, Journals, raw, records, run_available

LINES = b"".join(b"record %d of some length\n" % n for n in range(500))


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    return Journals(spark, broker, client, fresh_prefix)


@BOTH_BROKERS
def test_a_prefix_reads_every_journal_under_it(journals: Journals) -> None:
    """Each row says where its record begins; an empty journal and one beside the prefix have no rows."""
    journals.create("a", "deep/b", "empty")
    Journals(journals.spark, journals.broker, journals.client, journals.prefix[:-1] + "-beside/").create("c")
    journals.append("a", LINES)
    journals.append("deep/b", b"\n\nafter two empty records\r\n")
    rows = journals.batch().collect()
    assert raw(rows, journals.name("a")) == records(LINES)
    assert raw(rows, journals.name("deep/b")) == [(0, b""), (1, b""), (2, b"after two empty records\r")]
    assert {row.journal for row in rows} == {journals.name("a"), journals.name("deep/b")}


@BOTH_BROKERS
def test_journals_are_selected_by_name_and_by_label(journals: Journals) -> None:
    journals.create("a", "b", labels={"app.gazette.dev/tag": journals.prefix + "tag"})
    journals.create("c")
    for short in "abc":
        journals.append(short, b"of %s\n" % short.encode())
    names = ",".join(journals.name(short) for short in "ab")
    by_name = journals.batch(journals=names).collect()
    by_label = journals.batch(selector=f"app.gazette.dev/tag={journals.prefix}tag").collect()
    assert sorted(by_name) == sorted(by_label)
    assert sorted(bytes(row.value) for row in by_name) == [b"of a", b"of b"]


def test_a_schema_is_a_projection(journals: Journals) -> None:
    """Any of the raw columns can be selected, in any order; the others are not built."""
    journals.create("a")
    journals.append("a", b"one\ntwo\n")
    frame = journals.batch("a", schema="value BINARY, offset BIGINT NOT NULL")
    assert [(bytes(value), offset) for value, offset in frame.collect()] == [(b"one", 0), (b"two", 4)]


def test_a_record_that_is_half_written_is_left_out(journals: Journals) -> None:
    journals.create("a")
    journals.append("a", b"whole\nhalf")
    assert raw(journals.batch("a").collect()) == [(0, b"whole")]
    journals.append("a", b" no more\n")
    assert raw(journals.batch("a").collect()) == [(0, b"whole"), (6, b"half no more")]


@pytest.mark.parametrize("options", [{"maxBytesPerPartition": "1k"}, {"minPartitions": "7"}], ids=str)
def test_cutting_a_range_changes_no_row(journals: Journals, options: dict[str, str]) -> None:
    """A record that spans a cut is read once, by the task whose piece has its first byte."""
    journals.create("a")
    journals.append("a", LINES)
    frame = journals.batch("a", **options).withColumn("task", f.spark_partition_id())
    rows = frame.collect()
    assert raw(rows) == records(LINES)
    assert len({row.task for row in rows}) >= 7


def test_a_batch_has_the_ends_it_is_told(journals: Journals) -> None:
    journals.create("a")
    journals.append("a", LINES)
    begin, end = records(LINES)[100][0], records(LINES)[200][0]
    frame = journals.batch(
        "a",
        startingOffsets=f'{{"{journals.name("a")}":{begin}}}',
        endingOffsets=f'{{"format_version":1,"journals":{{"{journals.name("a")}":{end + 3}}}}}',
    )
    assert raw(frame.collect()) == records(LINES)[100:200]


def test_json_gives_typed_columns(journals: Journals) -> None:
    journals.create("a", labels={"content-type": "application/x-ndjson"})
    journals.append(
        "a",
        b'{"id":1,"at":"2026-01-02T03:04:05.678901Z","day":"2026-01-02","price":12.34,"ok":true,'
        b'"tags":["x","y"],"who":{"name":"L\xc3\xa4rm"},"more":{"k":1.5},"extra":0}\n'
        b'{"id":null}\n',
    )
    schema = (
        "_offset BIGINT, id BIGINT, at TIMESTAMP, day DATE, price DECIMAL(10,2), ok BOOLEAN, "
        "tags ARRAY<STRING>, who STRUCT<name: STRING>, more MAP<STRING, DOUBLE>, _journal STRING"
    )
    full, empty = sorted(journals.batch("a", schema=schema, format="json").collect(), key=lambda r: r._offset)
    assert (full.id, full.ok, full.tags, full.more) == (1, True, ["x", "y"], {"k": 1.5})
    assert full.at == datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 - Spark's, in UTC.
    assert (full.day, full.price) == (datetime.date(2026, 1, 2), decimal.Decimal("12.34"))
    assert (full.who.name, full._journal) == ("Lärm", journals.name("a"))
    assert [empty[name] for name in ("id", "at", "tags", "who", "more")] == [None] * 5


def test_a_schema_is_inferred(journals: Journals) -> None:
    journals.create("a", labels={"content-type": "application/x-ndjson"})
    journals.append("a", b'{"id":1,"day":"02.01.2026"}\n{"id":2.5,"day":"03.01.2026","who":{"name":"x"}}\n')
    frame = journals.batch("a", format="json", inferSchema="true")
    assert frame.schema.simpleString() == "struct<day:string,id:double,who:struct<name:string>>"
    assert sorted(row.id for row in frame.collect()) == [1.0, 2.5]
    assert journals.stream("a", inferSchema="true").schema == frame.schema
    typed = journals.batch("a", schema="day DATE", format="json", dateFormat="dd.MM.yyyy").collect()
    assert {row.day for row in typed} == {datetime.date(2026, 1, 2), datetime.date(2026, 1, 3)}


def test_a_stream_keeps_its_inferred_schema(journals: Journals, tmp_path: Path) -> None:
    """A restart has the columns of the first start, including hints."""
    journals.create("a", "b")
    journals.append("a", b'{"id":1}\n{"id":2}\n{"id":3}\n')
    options = {
        "journalsPattern": f"{journals.prefix}[a]",
        "inferSchema": "true",
        "schemaHints": "id DECIMAL(9,2), more VARIANT, _offset BIGINT",
        "inferredSchemaLocation": str(tmp_path / "schema"),
        "maxRecordsPerTrigger": "2",
    }
    expected = "struct<id:decimal(9,2),more:variant,_offset:bigint>"
    frame = journals.stream(**options)
    assert frame.schema.simpleString() == expected
    batches = run_available(frame.drop("more"), tmp_path / "checkpoint")
    assert [sorted(row._offset for row in rows) for rows in batches.values() if rows] == [[0, 9], [18]]
    journals.append("a", b'{"id":"x","note":5}\n')
    again = journals.stream(**options)
    assert again.schema.simpleString() == expected
    batches = run_available(again.drop("more"), tmp_path / "checkpoint")
    assert [row.id for rows in batches.values() for row in rows] == [None]


MALFORMED = b'{"id":1}\n{"id":\n\xff\xfe\n[2]\n{"id":3}\n'


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param(
            "PERMISSIVE",
            [(0, 1, None), (9, None, '{"id":'), (16, None, "\ufffd\ufffd"), (19, None, "[2]"), (23, 3, None)],
            id="permissive",
        ),
        pytest.param("dropMalformed", [(0, 1, None), (23, 3, None)], id="drop_malformed"),
    ],
)
def test_malformed_records(journals: Journals, mode: str, expected: list[tuple[object, ...]]) -> None:
    """The mode chooses between a row of nulls with the record's text, and no row."""
    journals.create("a")
    journals.append("a", MALFORMED)
    frame = journals.batch(
        "a",
        schema="_offset BIGINT, id BIGINT, bad STRING",
        format="json",
        mode=mode,
        columnNameOfCorruptRecord="bad",
    )
    assert sorted(tuple(row) for row in frame.collect()) == expected


def test_a_malformed_record_fails_fast_with_journal_and_offset(journals: Journals) -> None:
    journals.create("a")
    journals.append("a", MALFORMED)
    with pytest.raises(
        PySparkException, match=f"journal '{journals.name('a')}', record at offset 9: malformed"
    ):
        journals.batch("a", schema="id BIGINT", format="json", mode="FAILFAST").collect()


@pytest.mark.parametrize(
    ("mode", "tail", "offset"),
    [
        pytest.param("PERMISSIVE", b"\nlast\n", 6, id="inside"),
        # The search runs backwards from the head; reaching the first byte would cost the whole record.
        pytest.param("DROPMALFORMED", b"", 3981, id="at_the_head"),
    ],
)
def test_an_oversized_record_is_named(journals: Journals, mode: str, tail: bytes, offset: int) -> None:
    """This holds in every mode, with or without an end; no record is dropped silently."""
    journals.create("a")
    journals.append("a", b"first\n" + b"x" * 5000 + tail)
    expected = rf"journal '{journals.name('a')}', record at offset {offset}: .*maxRecordBytes=1024"
    with pytest.raises(PySparkException, match=expected):
        journals.batch("a", schema="id BIGINT", format="json", mode=mode, maxRecordBytes="1k").collect()


def test_a_record_as_long_as_allowed_is_read(journals: Journals) -> None:
    """The newline does not count towards the limit."""
    journals.create("a")
    journals.append("a", b"x" * 1024 + b"\n")
    assert raw(journals.batch("a", maxRecordBytes="1k").collect()) == [(0, b"x" * 1024)]


def test_an_empty_journal_has_no_rows(journals: Journals) -> None:
    """Spark plans one empty task for it."""
    journals.create("a")
    assert journals.batch("a").collect() == []
    assert journals.batch("a", schema="id BIGINT", format="json").count() == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param({"journals": "{prefix}none"}, "'{prefix}none': JOURNAL_NOT_FOUND", id="name"),
        pytest.param(
            {"selector": "name={prefix}none"},
            "which matches no journal",
            id="selector",
            marks=pytest.mark.soak,
        ),
        pytest.param({"startingOffsets": '{"{prefix}a":7}'}, "past the write head 6", id="past_head"),
        pytest.param(
            {"endingOffsets": '{"{prefix}a":7}'},
            "past the write head 6",
            id="past_end",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            {"startingOffsets": '{"{prefix}none":0}'},
            "JOURNAL_NOT_FOUND",
            id="no_such_start",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_what_cannot_be_read_is_named(journals: Journals, options: dict[str, str], error: str) -> None:
    journals.create("a")
    journals.append("a", b"whole\n")
    filled = {name: text.replace("{prefix}", journals.prefix) for name, text in options.items()}
    with pytest.raises(PySparkException, match=error.replace("{prefix}", journals.prefix)):
        journals.batch("a", **filled).collect()


def test_a_framing_that_contradicts_the_label_is_refused(journals: Journals) -> None:
    journals.create("a", labels={"content-type": "application/x-protobuf-fixed"})
    journals.append("a", frame(b"one") + frame(b"t\nwo"))
    with pytest.raises(PySparkException, match=r"got lines, but journal .*application/x-protobuf-fixed"):
        journals.batch("a", framing="lines").collect()
    assert raw(journals.batch("a").collect()) == [(0, b"one"), (11, b"t\nwo")]
    assert raw(journals.batch("a", framing="none").collect()) == [(0, frame(b"one") + frame(b"t\nwo"))]


def test_csv_and_messages_become_columns(journals: Journals, tmp_path: Path) -> None:
    journals.create("a", labels={"content-type": "text/csv", "app": "shop"})
    journals.append("a", b'id,name,at\n1,"a\nb",2024-01-02T03:04:05Z\n')
    columns = "id bigint, name string, at timestamp, _end_offset bigint, _labels map<string,array<string>>"
    (row,) = journals.batch("a", schema=columns, header="true").collect()
    assert (row.id, row.name, row._end_offset, row._labels["app"]) == (1, "a\nb", 40, ["shop"])
    assert row._labels["content-type"] == ["text/csv"]
    journals.create("b", labels={"content-type": "application/x-protobuf-fixed"})
    journals.append("b", frame(order_class()(id=7, counts={"x": 1}).SerializeToString()))
    file = tmp_path / "shop.desc"
    file.write_bytes(descriptor_set())
    given = {"descriptorFile": str(file), "messageName": "shop.Order"}
    columns = "counts map<string,bigint>, id bigint, lines array<struct<sku: string>>"
    (row,) = journals.batch("b", schema=columns, **given).collect()
    assert (row.counts, row.id, row.lines) == ({"x": 1}, 7, [])


def test_every_journal_of_a_batch_is_split_by_one_plan(journals: Journals) -> None:
    shorts = [f"part-{n:02}" for n in range(12)]
    journals.create(*shorts)
    for n, short in enumerate(shorts):
        journals.append(short, LINES[: 100 * n])
    rows = journals.batch(minPartitions="30").collect()
    for n, short in enumerate(shorts):
        assert raw(rows, journals.name(short)) == records(LINES[: 100 * n])


@pytest.mark.parametrize("use", ["read", "readStream"])
def test_a_wrong_option_is_refused_at_load(spark: SparkSession, use: str) -> None:
    """No broker listens at the address, so the option is refused before any connection."""
    reader = getattr(spark, use).format("gazette").option("brokerAddress", "http://127.0.0.1:9")
    with pytest.raises(AnalysisException, match="option 'failondataloss2': got an unknown option; expected "):
        reader.option("failOnDataLoss2", True).load("some/journal")
