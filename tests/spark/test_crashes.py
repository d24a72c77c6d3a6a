"""Random schedules of crashes, zombies, lost and stale checkpoints and RESTOREs: exact after every step.

``make crash`` runs more of them, with SIGKILLs; what is here takes no process of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gazette_spark.ledger import LedgerEntry
from gazette_spark.sink import DeltaSink
from gazette_spark.table.delta_table import DeltaTable
from gazette_spark.testing.crashes.points import reachable
from gazette_spark.testing.crashes.schedules import Settings, Step, draw
from gazette_spark.testing.crashes.trial import APP_ID, TableInexactError, Trial, WriteBatch

SEED = 176
"""Of a schedule that comes by every point, and has most of what else may happen."""

CYCLES = 100
OVERTAKEN = (Step("run", records=9), Step("zombie", "sink.before_write", records=9))
"""A second writer brings the batch that a first one is about to write."""

STEPS = 36
"""Of each schedule: a new table costs some seconds."""

pytestmark = pytest.mark.slow


@pytest.fixture
def quiet(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, without a stack trace in the log for each crash."""
    settings = {"spark.databricks.delta.snapshotPartitions": "1", "spark.sql.shuffle.partitions": "1"}
    before = {name: spark.conf.get(name) for name in settings}
    spark.sparkContext.setLogLevel("OFF")
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.set(name, old)
    spark.sparkContext.setLogLevel("ERROR")


@pytest.mark.timeout(1800)
def test_a_hundred_crashes_lose_and_double_nothing(quiet: SparkSession, tmp_path: Path) -> None:
    """At each point of a batch that an exception reaches; and every record is there in the end."""
    crashes = overtaken = 0
    wanted = {point.name for point in reachable(frozenset(), by_kill=False)}
    points: set[str] = set()
    for seed in itertools.count(SEED):
        if crashes >= CYCLES and points >= wanted:
            break
        trial = Trial(quiet, tmp_path / str(seed))
        assert trial.run(draw(seed, Settings(STEPS))).rows > 0
        crashes += trial.counts.cycles + trial.counts.retries
        overtaken += trial.counts.zombies
        points |= trial.counts.points.keys()
    assert overtaken > 0


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


def with_table(kind: type[DeltaTable], trial: Trial, checkpoint: Path) -> WriteBatch:
    """Our sink on another kind of table."""
    sink = DeltaSink(APP_ID, path=str(trial.table), checkpoint=str(checkpoint))
    sink._target = kind(path=str(trial.table), table=None)
    return sink


@pytest.mark.parametrize("kind", [Unfenced, Twofold], ids=["no compare-and-set", "two commits"])
def test_a_broken_sink_is_caught(quiet: SparkSession, tmp_path: Path, kind: type[DeltaTable]) -> None:
    """A schedule our sink passes is too much for it."""
    trial = Trial(quiet, tmp_path / "trial", make_sink=lambda trial, at: with_table(kind, trial, at))
    with pytest.raises(TableInexactError):
        trial.run(OVERTAKEN)
