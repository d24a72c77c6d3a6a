"""Spark's filters become conditions on where rows come from, or stay with Spark."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

from gazette_spark.errors import OptionError
from gazette_spark.framing.label_columns import Labels
from gazette_spark.options.source import parse_options
from gazette_spark.scan.conditions import Comparison, Condition, Subject
from gazette_spark.source import FilteringReader, GazetteDataSource
from gazette_spark.spark_versions import PUSHING_WORKER, filters_are_pushed

RAW = StructType().add("journal", StringType()).add("offset", LongType()).add("value", BinaryType())
JSON = (
    StructType()
    .add("_journal", StringType())
    .add("_offset", LongType())
    .add("_fragment_mod_time", TimestampType())
    .add("_labels", StructType().add("app.gazette.dev/region", StringType()))
    .add("journal", StringType())
    .add("offset", LongType())
)
REGION = ("_labels", "app.gazette.dev/region")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = 1_767_268_800_000_000


def reader(schema: StructType, **options: str) -> FilteringReader:
    """Make the reader that filters are pushed into."""
    given = {"brokerAddress": "http://broker.test:80", "path": "log/"} | options
    return FilteringReader(parse_options(given, "batch", environ={}), schema)


CONDITIONS = [
    (EqualTo(("_journal",), "a"), Condition(Subject.JOURNAL, Comparison.EQUAL, ("a",))),
    (EqualNullSafe(("_journal",), None), Condition(Subject.JOURNAL, Comparison.SAME, (None,))),
    (Not(In(("_journal",), ("a", "b"))), Condition(Subject.JOURNAL, Comparison.IN, ("a", "b"), negated=True)),
    (StringStartsWith(("_journal",), "a"), Condition(Subject.JOURNAL, Comparison.STARTS, ("a",))),
    (StringEndsWith(("_journal",), "a"), Condition(Subject.JOURNAL, Comparison.ENDS, ("a",))),
    (StringContains(("_journal",), "a"), Condition(Subject.JOURNAL, Comparison.CONTAINS, ("a",))),
    (IsNull(("_offset",)), Condition(Subject.OFFSET, Comparison.IS_NULL)),
    (IsNotNull(("_offset",)), Condition(Subject.OFFSET, Comparison.IS_NULL, negated=True)),
    (LessThan(("_offset",), 5), Condition(Subject.OFFSET, Comparison.LESS, (5,))),
    (LessThanOrEqual(("_offset",), 5), Condition(Subject.OFFSET, Comparison.AT_MOST, (5,))),
    (GreaterThan(("_fragment_mod_time",), NOON), Condition(Subject.MOD_TIME, Comparison.MORE, (NOON_US,))),
    (
        GreaterThanOrEqual(REGION, "eu"),
        Condition(Subject.LABEL, Comparison.AT_LEAST, ("eu",), label="app.gazette.dev/region"),
    ),
]


@pytest.mark.parametrize(("pushed", "condition"), CONDITIONS, ids=lambda each: type(each).__name__)
def test_a_filter_on_where_rows_come_from_is_taken(pushed: Filter, condition: Condition) -> None:
    """Spark checks offsets and times again; a journal is wanted or not as a whole."""
    made = reader(JSON, format="json")
    left = list(made.pushFilters([pushed]))
    assert made._wanted.conditions == (condition,)
    assert left == ([] if condition.subject in (Subject.JOURNAL, Subject.LABEL) else [pushed])


LEFT: list[Filter] = [
    EqualTo(("journal",), "a"),
    EqualTo(("offset",), 5),
    EqualTo(("id",), 5),
    EqualTo(("_labels", "app.gazette.dev/region", "more"), "x"),
    IsNull(("_labels",)),
    EqualTo(("_offset",), 5.5),
    EqualTo(("_offset",), True),
    EqualTo(("_fragment_mod_time",), NOON.replace(tzinfo=None)),
]


@pytest.mark.parametrize("pushed", LEFT, ids=str)
def test_what_is_about_something_else_stays_with_spark(pushed: Filter) -> None:
    """Fields of records, types that do not belong to a column, and structs as a whole."""
    made = reader(JSON, format="json")
    assert list(made.pushFilters([pushed])) == [pushed]
    assert made._wanted.conditions == ()


def test_journal_and_offset_are_where_rows_come_from_in_raw_only() -> None:
    """Filters on journal and offset push in raw only; a column for corrupt records is no journal's name."""
    filters: list[Filter] = [EqualTo(("journal",), "a"), EqualTo(("offset",), 5)]
    raw = reader(RAW)
    assert list(raw.pushFilters(filters)) == filters[1:]
    assert [each.subject for each in raw._wanted.conditions] == [Subject.JOURNAL, Subject.OFFSET]
    pushed: list[Filter] = [EqualTo(("_journal",), "a")]
    corrupt = reader(JSON, format="json", columnNameOfCorruptRecord="_journal")
    assert list(corrupt.pushFilters(pushed)) == pushed


def test_labels_decide_on_journals() -> None:
    """A label that is not there is null; one of several values is no string; the column itself is there."""
    made = reader(JSON, format="json")
    assert not list(made.pushFilters([IsNotNull(("_labels",)), Not(EqualTo(REGION, "eu"))]))

    def has(*values: str) -> bool:
        labels: Labels = (("app.gazette.dev/region", values),) if values else ()
        return made._wanted.has_journal("log/a", lambda _: labels)

    assert (has("us"), has("eu"), has()) == (True, False, False)
    with pytest.raises(
        OptionError, match=r"journal 'log/a' has the values eu, us; expected .* array<string>"
    ):
        has("eu", "us")


def test_a_process_that_pushes_filters_knows_it() -> None:
    """A reader that takes filters is an error for Spark where push-down is off, so there it is another."""
    assert not filters_are_pushed()
    options = CaseInsensitiveDict({"brokerAddress": "http://broker.test:80", "path": "log/"})
    assert "pushFilters" not in vars(type(GazetteDataSource(options).reader(RAW)))
    code = f"import {PUSHING_WORKER}; from gazette_spark.spark_versions import filters_are_pushed; "
    code += "assert filters_are_pushed()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
