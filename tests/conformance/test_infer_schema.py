"""Columns that a query infers from a sample of its journals: which records count, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from gazette_spark import Client
from gazette_spark._formats.fixed import frame
from gazette_spark._options.source import parse_options
from gazette_spark._planning.inference import (
    MAX_JOURNALS,
    SAMPLING_TIMEOUT_S,
    infer_schema,
    plan_sample,
    sampled,
)
from gazette_spark.client import journal_spec
from gazette_spark.errors import OptionError, RecordError
from gazette_spark.source import GazetteDataSource
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")


class Journals:
    def __init__(self, broker: BrokerHandle, client: Client, prefix: str) -> None:
        self.client = client
        self.given = {
            "brokerAddress": broker.endpoint,
            "path": prefix,
            "format": "json",
            "inferSchema": "true",
        }
        self.prefix = prefix

    def append(self, short: str, content: bytes, **labels: str) -> str:
        name = self.prefix + short
        named = {key.replace("_", "-"): value for key, value in labels.items()}
        self.client.create_journals(journal_spec(name, labels=named))
        if content:
            self.client.append(name, content)
        return name

    def columns(self, **options: str) -> str:
        found = GazetteDataSource(CaseInsensitiveDict(self.given | options)).schema()
        assert isinstance(found, StructType)
        return found.simpleString()


@pytest.fixture
def journals(broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    return Journals(broker, client, fresh_prefix)


@pytest.mark.brokers("embedded", "deployed")
def test_all_journals_count(journals: Journals) -> None:
    """A stream from the latest offsets is sampled from the earliest; an empty journal has no influence."""
    journals.append("a", b'{"id":1,"at":"2026-01-01"}\n{"id":2}\n')
    journals.append("b", b'{"id":1.5,"tags":["x"],"_offset":1}\nhalf')
    journals.append("c", b"")
    expected = "struct<at:string,id:double,tags:array<string>>"
    assert journals.columns() == expected
    assert journals.columns(startingOffsets="latest") == expected


def test_the_sample_is_bounded(journals: Journals) -> None:
    first, rest = b'{"a":1}\n{"b":2}\n', b'{"c":3}\n' * 100_000
    journals.append("00", first + rest)
    for at in range(1, MAX_JOURNALS):
        journals.append(f"{at:02}", b'{"a":2}\n')
    journals.append("zz", b'{"z":1}\n')
    assert journals.columns(samplingBytes="9") == "struct<a:bigint,b:bigint>"
    assert journals.columns(samplingBytes="8") == "struct<a:bigint>"
    assert journals.columns() == "struct<a:bigint,b:bigint,c:bigint>"


def test_the_sample_begins_where_the_query_does(journals: Journals) -> None:
    name = journals.append("a", b'{"a":1}\n{"b":2}\n{"c":3}\n')
    start, end = f'{{"{name}":8}}', f'{{"{name}":16}}'
    assert journals.columns(startingOffsets=start, endingOffsets=end) == "struct<b:bigint>"


@pytest.mark.parametrize("option", ["startingOffsets", "resumeOffsets"])
def test_a_range_without_records_is_sampled_from_the_earliest_on(journals: Journals, option: str) -> None:
    """Otherwise a query that continues at the end of the journals would have no columns."""
    name = journals.append("a", b'{"a":1}\n')
    journals.append("b", b"")
    at_end = f'{{"{name}":8}}'
    assert journals.columns(**{option: at_end}) == "struct<a:bigint>"
    journals.client.append(name, b'{"b":1}\n')
    assert journals.columns(**{option: at_end}) == "struct<b:bigint>"


def test_malformed_records_by_mode(journals: Journals) -> None:
    name = journals.append("a", b'{"a":1}\noops\n')
    assert journals.columns(columnNameOfCorruptRecord="bad") == "struct<a:bigint,bad:string>"
    assert journals.columns(mode="DROPMALFORMED") == "struct<a:bigint>"
    assert journals.columns(rescuedDataColumn="rest") == "struct<a:bigint,rest:string>"
    with pytest.raises(RecordError, match=f"journal '{name}', record at offset 8: malformed"):
        journals.columns(mode="FAILFAST")


def test_the_label_tells_the_format(journals: Journals) -> None:
    del journals.given["format"]
    journals.append("a", b'{"a":1}\n', content_type="application/x-ndjson")
    assert journals.columns() == "struct<a:bigint>"
    journals.append("b", frame(b"x"), content_type="application/x-protobuf-fixed")
    with pytest.raises(OptionError, match=r"inferSchema.*framings are fixed and lines"):
        journals.columns()


def test_names_of_metadata_are_no_fields(journals: Journals) -> None:
    journals.append("a", b'{"a":1,"_clock":"x","_offset":"y"}\n')
    assert journals.columns() == "struct<_clock:string,a:bigint>"
    assert journals.columns(isolationLevel="read_committed") == "struct<a:bigint>"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "whose journals have no record yet", id="empty"),
        pytest.param(b'{"a":1}', "whose journals have no record yet", id="half_a_record"),
        pytest.param(b'{}\n{"_offset":1}\nnull\n', "whose first records have no fields", id="no_field"),
    ],
)
def test_a_sample_without_a_column_is_refused(journals: Journals, content: bytes, problem: str) -> None:
    journals.append("a", content)
    with pytest.raises(OptionError, match=f"inferSchema.*{problem}.*schema"):
        journals.columns()


def test_hints_come_before_the_sample(journals: Journals) -> None:
    journals.append("a", b'{"id":1,"user":{"since":"2026-01-01"}}\n')
    hints = "user.since DATE, note STRING, _offset BIGINT"
    expected = "struct<id:bigint,user:struct<since:date>,note:string,_offset:bigint>"
    assert journals.columns(schemaHints=hints) == expected
    assert journals.columns(schemaHints=hints, rescuedDataColumn="rest") == f"{expected[:-1]},rest:string>"
    with pytest.raises(OptionError, match=r"'schemaHints': got 'id\.x', but 'id' is of type long"):
        journals.columns(schemaHints="id.x INT")


def test_a_restart_has_the_columns_of_the_first_start(journals: Journals, tmp_path: Path) -> None:
    """A field that appears later gets no column until a hint names it, or the file is deleted."""
    given = {"inferredSchemaLocation": str(tmp_path / "schema")}
    name = journals.append("a", b'{"id":1}\n')
    assert journals.columns(**given) == "struct<id:bigint>"
    journals.client.append(name, b'{"id":1.5,"note":"x"}\n')
    assert journals.columns() == "struct<id:double,note:string>"
    assert journals.columns(**given) == "struct<id:bigint>"
    assert journals.columns(**given, schemaHints="note STRING") == "struct<id:bigint,note:string>"
    assert journals.columns(**given, rescuedDataColumn="rest") == "struct<id:bigint,rest:string>"
    (tmp_path / "schema" / "schema.json").unlink()
    assert journals.columns(**given) == "struct<id:double,note:string>"


@pytest.mark.parametrize("form", ["raw", "protobuf"])
def test_formats_without_names_are_refused(journals: Journals, form: str) -> None:
    more = {"descriptorFile": "/none", "messageName": "none"} if form == "protobuf" else {}
    with pytest.raises(OptionError, match=rf"inferSchema.*format={form}"):
        journals.columns(format=form, **more)


def test_a_sample_that_takes_too_long_is_an_error(journals: Journals) -> None:
    """Part of a sample could give a different schema."""
    journals.append("a", b'{"a":1}\n')
    options = parse_options(journals.given)
    sample = plan_sample(journals.client, options)
    times = iter([0.0, SAMPLING_TIMEOUT_S + 1])
    with pytest.raises(OptionError, match="samplingBytes"):
        list(sampled(journals.client, options, sample, clock=lambda: next(times)))
    assert infer_schema(journals.client, options).names == ["a"]
