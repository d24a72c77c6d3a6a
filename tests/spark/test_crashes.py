"""A schedule of crashes, zombies, lost and stale checkpoints and RESTOREs: exact after every step.

``make crash`` draws random ones, with SIGKILLs; this one takes no process beside the session's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gazette_spark.ledger.entry import LedgerEntry
from gazette_spark.sink import DeltaSink
from gazette_spark.table.delta_table import DeltaTable
from tests.rig.crashes.points import reachable
from tests.rig.crashes.scenario import APP_ID, Scenario, TableInexactError, WriteBatch
from tests.rig.crashes.schedules import Step

CYCLES = 25

SINK_CRASHES = Step("sink crashes", "before the write|before the read-back|before the commit log", records=9)
"""What follows until there were so many."""

AFTERWARDS = (
    Step("zombie", "sink.before_write", records=6, fraction=0.2),
    Step("roll"),
    Step("stale checkpoint", records=6),
    Step("restore", fraction=0.7),
    Step("lose checkpoint", records=6),
    Step("new journal"),
    Step("zombie", "sink.after_write", records=6, fraction=0.8),
    Step("optimize"),
    Step("other writer"),
)
"""What else happens. It comes last, for a checkpoint that is refused comes by no point of a batch."""

OVERTAKEN = (Step("run", records=9), Step("zombie", "sink.before_write", records=9))
"""A second writer brings the batch that a first one is about to write."""

pytestmark = pytest.mark.slow


@pytest.fixture
def quiet(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, without a stack trace in the log for each crash."""
    settings = {"spark.databricks.delta.snapshotPartitions": "1", "spark.sql.shuffle.partitions": "1"}
    before = {name: str(spark.conf.get(name)) for name in settings}
    spark.sparkContext.setLogLevel("OFF")
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.set(name, old)
    spark.sparkContext.setLogLevel("ERROR")


def crashes() -> Iterator[Step]:
    """Die at each point of a batch that an exception reaches, as soon as the point lets it."""
    for point in reachable(frozenset(), by_kill=False):
        yield Step("crash", point.name, point.nths[0], records=9)


@pytest.mark.timeout(900)
def test_crashes_lose_and_double_nothing(quiet: SparkSession, tmp_path: Path) -> None:
    """At each point of a batch that an exception reaches; and every record is there in the end."""
    scenario = Scenario(quiet, tmp_path)
    counts = scenario.counts
    for step in (*crashes(), *AFTERWARDS):
        scenario.carry_out(step)
    while counts.cycles + counts.retries < CYCLES:
        scenario.carry_out(SINK_CRASHES)
    assert scenario.finish().rows > 0
    assert counts.zombies > 0
    assert {point.name for point in reachable(frozenset(), by_kill=False)} <= counts.points.keys()


class Unfenced(DeltaTable):
    """A table whose appends carry the ledger and no transaction number: no compare-and-set."""

    def append(self, df: DataFrame, entry: LedgerEntry, **options: Any) -> None:
        """Append, whoever else has."""
        writer = df.write.format("delta").mode("append").option("userMetadata", entry.to_json())
        writer.save(self.path)


class Twofold(DeltaTable):
    """A table that gets rows in one commit and the ledger in the next."""

    def append(self, df: DataFrame, entry: LedgerEntry, **options: Any) -> None:
        """Append twice."""
        df.write.format("delta").mode("append").save(self.path)
        super().append(df.limit(0), entry, **options)


def with_table(kind: type[DeltaTable], scenario: Scenario, checkpoint: Path) -> WriteBatch:
    """Our sink on another kind of table."""
    sink = DeltaSink(APP_ID, path=str(scenario.table), checkpoint=str(checkpoint))
    sink._target = kind(path=str(scenario.table), table=None)
    return sink


@pytest.mark.parametrize("kind", [Unfenced, Twofold], ids=["no compare-and-set", "two commits"])
def test_a_broken_sink_is_caught(quiet: SparkSession, tmp_path: Path, kind: type[DeltaTable]) -> None:
    """A schedule our sink passes is too much for it."""
    scenario = Scenario(quiet, tmp_path / "scenario", make_sink=lambda made, at: with_table(kind, made, at))
    with pytest.raises(TableInexactError):
        scenario.run(OVERTAKEN)
