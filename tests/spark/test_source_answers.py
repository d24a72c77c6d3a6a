"""Through Spark and a broker, records of CSV and JSON become the rows of the golden answers.

tests/unit/framing tests the parsers against all answers. These tests cover some types and the modes end to
end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from gazette_spark import Client
from tests.oracles import json_questions
from tests.oracles.spark_answers import Question, load, rows_of
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import Journals


@pytest.fixture
def journals(spark: SparkSession, embedded_broker: BrokerHandle, fresh_prefix: str) -> Iterator[Journals]:
    with Client(embedded_broker.endpoint, timeout_s=30) as client:
        yield Journals(spark, embedded_broker, client, fresh_prefix)


def fill(journals: Journals, question: Question, content_type: str) -> None:
    journals.create("a", labels={"content-type": content_type})
    journals.append("a", b"".join(record.encode() + b"\n" for record in question.records))


def test_csv_fields_are_sparks(journals: Journals) -> None:
    question, answers = load("csv").answered["fields"]
    fill(journals, question, "text/csv")
    for kind in ("double", "decimal(10,2)", "timestamp"):
        found = journals.batch("a", schema=question.asks[kind].ddl, format="csv").toArrow()
        assert repr(rows_of(found, question.records)) == repr(answers.found[kind])


def test_json_fields_are_sparks(journals: Journals) -> None:
    """Values, nulls and malformed records are those of ``from_json``, except for the listed differences."""
    question, answers = load("json").answered["rows"]
    fill(journals, question, "application/x-ndjson")
    for kind in ("timestamp", "map<string,int>", "struct<x:int,y:array<int>>"):
        found = journals.batch("a", schema=question.asks[kind].ddl, format="json").toArrow()
        mine = [json_questions.plain_row(row) for row in rows_of(found, question.records)]
        theirs = [json_questions.plain_row(row) for row in answers.found[kind]]
        assert list(json_questions.compare(question.records, kind, theirs, mine, set())) == []


@pytest.mark.parametrize(
    ("form", "title", "label"),
    [
        pytest.param("csv", "modes", "text/csv", id="csv"),
        pytest.param("json", "file", "application/x-ndjson", id="json"),
    ],
)
def test_modes_do_what_they_do_in_spark(journals: Journals, form: str, title: str, label: str) -> None:
    question, answers = load(form).answered[title]
    fill(journals, question, label)
    schema = question.asks["DROPMALFORMED"].ddl
    found = journals.batch("a", schema=schema, format=form, mode="DROPMALFORMED").toArrow()
    assert repr(rows_of(found)) == repr(answers.found["DROPMALFORMED"])
    assert "error" in answers.found["FAILFAST"]
    with pytest.raises(Exception, match="RecordError"):  # Spark wraps errors of tasks.
        journals.batch("a", schema=schema, format=form, mode="FAILFAST").collect()
