"""Filters on where rows come from save reading, and give the same rows as without push-down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from gazette_spark.client import Client
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import Journals, records
from tests.waiting import wait_until

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
LINES = b"".join(b'{"n":%d}\n' % n for n in range(1000, 1400))
LAST = records(LINES)[-1][0]


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    """Three journals of two regions, 400 records each."""
    made = Journals(spark, broker, client, fresh_prefix)
    for short, region in (("a", "eu"), ("b", "us"), ("c", "eu")):
        made.create(short, labels={"region": region, "content-type": "application/x-ndjson"})
        made.append(short, LINES)
    return made


@contextmanager
def pushdown(spark: SparkSession, *, on: bool) -> Iterator[None]:
    """Switch push-down, and back."""
    spark.conf.set(PUSHDOWN, str(on).lower())
    try:
        yield
    finally:
        spark.conf.unset(PUSHDOWN)


def read_bytes(journals: Journals, frame: DataFrame) -> tuple[set[tuple[object, ...]], int, str]:
    """Return a frame's rows without their labels, its tasks that read something, and its plan."""
    rows = [(*row[:-1], str(row[-1])) for row in frame.collect()]
    assert len(rows) == len(set(rows))
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return set(rows), frame.rdd.getNumPartitions(), plan


COLUMNS = "_journal STRING, _offset BIGINT, n BIGINT, _labels STRUCT<region: STRING, none: ARRAY<STRING>>"

FILTERS: dict[str, tuple[Callable[[str], object], int, bool]] = {
    "journal": (lambda p: f.col("_journal") == p + "b", 1, True),
    "journals": (lambda p: f.col("_journal").isin(p + "a", p + "c"), 2, True),
    "prefix": (lambda p: f.col("_journal").startswith(p + "a"), 1, True),
    "not": (lambda p: ~f.col("_journal").endswith("a"), 2, True),
    "label": (lambda _: f.col("_labels.region") == "us", 1, True),
    "offset": (lambda _: (f.col("_offset") >= LAST - 100) & (f.col("_offset") < LAST), 3, False),
    "both": (lambda p: (f.col("_journal") > p + "b") & (f.col("_offset") == 0), 1, False),
    "nothing": (lambda _: f.col("_labels.region") == "asia", 0, True),
    "either": (lambda p: (f.col("_journal") == p + "a") | (f.col("_offset") == 0), 3, False),
}
"""Filter, journals that are read, and whether Spark has nothing left to check."""


OFTEN = ("prefix", "label", "both", "nothing")
"""One filter of each kind; the others are for the soak tier."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in OFTEN else pytest.mark.soak) for case in FILTERS]
)
def test_rows_are_the_same_with_and_without_push_down(journals: Journals, case: str) -> None:
    """Rows are the same with push-down, which does not read journals that no row is wanted of."""
    condition, read, done = FILTERS[case]
    wanted = condition(journals.prefix)

    def frame() -> DataFrame:
        return journals.batch(schema=COLUMNS, format="json").where(wanted)  # type: ignore[arg-type]

    with pushdown(journals.spark, on=False):
        every, _, _ = read_bytes(journals, frame())
    with pushdown(journals.spark, on=True):
        some, tasks, plan = read_bytes(journals, frame())
    assert some == every
    assert bool(some) == (case != "nothing")
    assert tasks == max(read, 1)
    assert ("Filter (" not in plan) == done, plan


def test_entries_of_a_map_stay_with_spark(journals: Journals) -> None:
    """The rows are the same; all journals are read."""
    schema = "_journal STRING, n BIGINT, _labels MAP<STRING, ARRAY<STRING>>"
    with pushdown(journals.spark, on=True):
        frame = journals.batch(schema=schema, format="json").where("_labels['region'][0] = 'us'")
        rows = frame.select("_journal").distinct().collect()
        assert [row._journal for row in rows] == [journals.name("b")]
        assert frame.rdd.getNumPartitions() == 3


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param("_fragment_mod_time < '2000-01-01'", marks=pytest.mark.soak),
        pytest.param("_fragment_mod_time IS NULL", marks=pytest.mark.soak),
        "_fragment_mod_time >= '2000-01-01' AND _offset > 1500",
    ],
)
def test_what_was_stored_at_other_times_is_not_read(journals: Journals, condition: str) -> None:
    """Bytes not stored yet are read in any case, and Spark looks at them again."""
    journals.create("stored", length=1024, codec="NONE", refresh_interval_s=1)
    name = journals.name("stored")
    for part in range(3):
        journals.append("stored", LINES[part * 1200 : (part + 1) * 1200])
    wait_until("fragments to be stored", lambda: len(stored_of(journals, name)) >= 2)
    schema = "_offset BIGINT, _fragment_mod_time TIMESTAMP, n BIGINT"
    frame = journals.batch("stored", schema=schema, format="json", maxBytesPerPartition="300")
    tasks, rows = {}, {}
    for on in (False, True):
        with pushdown(journals.spark, on=on):
            chosen = frame.where(condition).select("_offset", "n")
            rows[on] = sorted(map(tuple, chosen.collect()))
            tasks[on] = chosen.rdd.getNumPartitions()
    assert rows[True] == rows[False]
    assert tasks[True] < tasks[False]


def stored_of(journals: Journals, name: str) -> list[int]:
    """Return the begins of a journal's stored fragments."""
    listed = [each.fragment for each in journals.client.list_fragments(name)]
    return [each.begin for each in listed if each.mod_time]
