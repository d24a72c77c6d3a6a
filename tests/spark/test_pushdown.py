"""Each query of a DataFrame gets the right rows, in any order, also where Spark can push filters."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from gazette_spark import Client
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import Journals

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    made = Journals(spark, broker, client, fresh_prefix)
    for short in "abc":
        made.create(short, labels={"content-type": "application/x-ndjson"})
        made.append(short, b'{"n":1}\n{"n":2}\n')
    return made


@pytest.mark.parametrize("pushdown", ["true", pytest.param("false", marks=pytest.mark.soak)])
def test_a_filter_is_that_of_its_query_alone(journals: Journals, pushdown: str) -> None:
    """Spark shares a reader with pushed filters among all queries of a DataFrame, so we accept no filters."""
    journals.spark.conf.set(PUSHDOWN, pushdown)
    try:
        frame = journals.batch(schema="_journal STRING, _offset BIGINT, n BIGINT", format="json")
        one, other = (frame.where(f"_journal = '{journals.name(short)}'") for short in "ab")
        assert [each.count() for each in (one, frame, other)] == [2, 6, 2]
        assert one.union(frame).where("n = 1").count() == 4
        assert frame.where("_offset > 0").count() == 3
    finally:
        journals.spark.conf.unset(PUSHDOWN)


def test_a_frame_reads_the_range_of_its_first_action(journals: Journals) -> None:
    """Spark plans a loaded DataFrame once, so later records need another load."""
    frame = journals.batch(schema="n BIGINT", format="json")
    assert frame.count() == 6
    journals.append("a", b'{"n":3}\n')
    assert frame.count() == 6
    assert journals.batch(schema="n BIGINT", format="json").count() == 7
