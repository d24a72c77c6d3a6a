"""Schedules of crashes, zombies, lost and stale checkpoints and RESTOREs; tables are exact after every step.

There is one schedule for each kind of sink. Together with those of soak, they cover every step and point that
a schedule without kills can reach.

``make crash`` draws random schedules with SIGKILLs. The ones here start no process beside the session's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import DeltaSink, IcebergSink, LedgerEntry
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._iceberg.iceberg_table import IcebergTable
from tests.rig.brokers import BrokerHandle
from tests.rig.crashes import backfills
from tests.rig.crashes.points import BY_NAME, reachable
from tests.rig.crashes.scenario import APP_ID, Scenario, TableInexactError
from tests.rig.crashes.schedules import WEIGHTS, Step
from tests.rig.crashes.sinks import SINKS, iceberg_sink

ALONE = ("upsert", "dead letters", "committed")
"""Kinds whose sink also crashes alone; of the 21 crashes in total, most are of whole queries."""

IN_SOAK = ("raw", "format", "iceberg", "dead letters", "stateful", "complete", "replace")
"""Kinds that only ``make soak`` runs here. ``test_sink``, ``test_delta_format``, ``test_iceberg_crashes``,
``test_sink_dead_letters``, ``test_sink_stateful``, ``test_sink_modes`` and ``test_consumer_state`` cover
them in every run."""

DIRECTORY: Mapping[str, str] = {
    "raw": "day%201",
    "direct": "day 1 +#?%",
    "format": "no#1 what?",
    "iceberg": "two words, größe",
    "upsert": "back`tick",
    "dead letters": 'it\'s "so"',
    "stateful": "größe",
    "complete": "two words",
    "committed": "100%",
    "replace": "a+b",
}
"""Directory name for table, checkpoints and states, by kind; random schedules draw one."""

POINTS: Mapping[str, tuple[str, ...]] = {
    "raw": ("before the WAL", "at the sink's entry", "in a task", "after the commit log"),
    "direct": ("files half written", "before the write", "before the read-back", "before the commit log"),
    "format": ("in a task", "before the write", "before the read-back", "before the commit log"),
    "iceberg": (
        "in a task",
        "manifests written, not committed",
        "at the sink's entry",
        "manifests written, not committed",
        "before the read-back",
        "before the commit log",
    ),
    "upsert": ("after the WAL", "files half written", "before the read-back", "during MERGE"),
    "dead letters": ("at the sink's entry", "before the read-back", "between dead letters and rows"),
    "stateful": ("before the write", "before the read-back", "before the commit log", "after the WAL"),
    "complete": ("at the sink's entry", "before the write", "before the read-back", "before the commit log"),
    "committed": ("before the states are visible", "in a task", "states written", "after the WAL"),
    "replace": ("files half written", "during replacement", "before the read-back", "before the commit log"),
}
"""Crash points of the queries by kind of sink; all kinds together cover every point."""

SINK_CRASHES = Step("sink crashes", "before the write|before the read-back", records=2)
"""One of each on a batch."""

AFTERWARDS: Mapping[str, tuple[Step, ...]] = {
    "raw": (
        Step("zombie", "sink.before_write", records=6, fraction=0.2),
        Step("roll"),
        Step("stale checkpoint", records=6),
        Step("new journal"),
    ),
    "direct": (
        Step("zombie", "sink.before_write", records=6, fraction=0.2),
        Step("restore", records=6, fraction=0.7),
        Step("optimize"),
        Step("lose checkpoint", records=6),
    ),
    "format": (
        Step("restore", records=6, fraction=0.7),
        Step("optimize"),
        Step("stale checkpoint", records=6),
        Step("lose checkpoint", records=6),
    ),
    "iceberg": (
        Step("zombie", "sink.before_write", records=6, fraction=0.2),
        Step("optimize"),
        Step("restore", records=6, fraction=0.7),
        Step("run", records=6),
        Step("expire", fraction=0.4),
        Step("stale checkpoint", records=6),
        Step("other writer"),
        Step("lose checkpoint", records=6),
        Step("expire", fraction=0.6),
    ),
    "upsert": (
        Step("zombie", "sink.after_write", records=6, fraction=0.8),
        Step("other writer"),
        Step("optimize"),
    ),
    "dead letters": (
        Step("restore", fraction=0.7),
        Step("lose checkpoint", records=6),
    ),
    "stateful": (
        Step("restore", records=6, fraction=0.7),
        Step("stale checkpoint", records=6),
        Step("lose checkpoint"),
    ),
    "complete": (
        Step("zombie", "sink.before_write", records=6, fraction=0.2),
        Step("optimize"),
        Step("lose checkpoint", records=6),
    ),
    "committed": (
        Step("lose states", records=6, fraction=0.3),
        Step("recreate", records=6, fraction=0.5),
        Step("stale checkpoint", records=6, fraction=0.2),
        Step("lose checkpoint", records=6, fraction=0.4),
    ),
    "replace": (
        Step("zombie", "sink.before_write", records=6, fraction=0.2),
        Step("optimize"),
        Step("restore", records=6, fraction=0.7),
        Step("lose checkpoint", records=6),
    ),
}
"""Other steps by kind of sink. They run last, because a refused checkpoint reaches no point of a batch."""

OVERTAKEN = (Step("run", records=9), Step("zombie", "sink.before_write", records=9))
"""Steps in which a second writer commits the batch that the first one is about to write."""

pytestmark = pytest.mark.slow


@pytest.fixture
def quiet(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, without a stack trace in the log for each crash."""
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.sparkContext.setLogLevel("ERROR")


def crashes(kind: str) -> Iterator[Step]:
    for name in POINTS[kind]:
        yield Step("crash", name, BY_NAME[name].nths[0], records=6)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.soak) if kind in IN_SOAK else kind for kind in SINKS]
)
def test_crashes_lose_and_double_nothing(
    quiet: SparkSession, embedded_broker: BrokerHandle, tmp_path: Path, kind: str
) -> None:
    root = tmp_path / DIRECTORY[kind]
    store = embedded_broker.file_root
    scenario = Scenario(quiet, root, sink=kind, broker=embedded_broker.endpoint, store=store)
    counts = scenario.counts
    alone = (SINK_CRASHES,) if kind in ALONE else ()
    for step in (*crashes(kind), *alone, *AFTERWARDS[kind]):
        scenario.carry_out(step)
    assert counts.cycles == len(POINTS[kind])
    assert counts.retries >= 2 * len(alone)
    assert scenario.finish().rows > 0
    assert set(POINTS[kind]) <= counts.points.keys()
    assert counts.zombies == sum(step.kind == "zombie" for step in AFTERWARDS[kind])


def test_all_points_and_steps_are_there() -> None:
    """All kinds of sink together cover each point that an exception reaches, and each step except kills."""
    points = {point.name for point in reachable(frozenset(SINKS), by_kill=False)}
    assert {name for names in POINTS.values() for name in names} == points
    steps = {step.kind for steps in AFTERWARDS.values() for step in steps}
    assert steps | {"crash", "sink crashes", "run", "property", "backfill"} == WEIGHTS.keys()


LEFT, LEFT_AND_KILLED, ENDED, ENDED_AND_KILLED = 0.75, 0.27, 0.64, 0.16
"""Step fractions that choose what follows a dead backfill (nothing, or another one that reads a store and
ends), and whether it dies by an exception or by SIGKILL of a task's worker."""


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_backfills_of_committed_messages_leave_no_seam(
    quiet: SparkSession, broker: BrokerHandle, tmp_path: Path
) -> None:
    """Backfills crash at each point while transactions are open; streams then continue from them."""
    scenario = Scenario(quiet, tmp_path, sink="committed", broker=broker.endpoint, store=broker.file_root)
    wanted: set[str] = set()
    for point in backfills.points(by_kill=False):
        ways = {LEFT: "backfill", ENDED: "backfill"}
        if backfills.is_of_task(point):
            ways |= dict.fromkeys((LEFT_AND_KILLED, ENDED_AND_KILLED), "backfill, worker killed")
        wanted |= {f"{point.name}, {way}" for way in ways.values()}
        for fraction in ways:
            scenario.carry_out(Step("backfill", point.name, records=30, fraction=fraction))
            scenario.carry_out(Step("run", records=6))
    assert scenario.finish().rows > 100
    assert scenario.counts.points.keys() >= wanted
    assert not scenario.trims, "no query had to begin at the journals' begin"


class Unfenced(DeltaTable):
    """A table whose appends have the ledger but no transaction number, so there is no compare-and-set."""

    def append(self, df: DataFrame, entry: LedgerEntry, **options: Any) -> None:
        writer = df.write.format("delta").mode("append").option("userMetadata", entry.to_json())
        writer.save(self.path)


class Twofold(DeltaTable):
    """A table that gets rows in one commit and the ledger in the next."""

    def append(self, df: DataFrame, entry: LedgerEntry, **options: Any) -> None:
        df.write.format("delta").mode("append").save(self.path)
        super().append(df.limit(0), entry, **options)


class Rebased(IcebergTable):
    """A table whose commits are rebased on whatever was committed meanwhile, as pyiceberg's are."""

    def commit_files(self, files: Sequence[Any], entry: LedgerEntry) -> Exception | None:
        table = self.load()
        assert table is not None
        self._base = table, entry.parent
        return super().commit_files(files, entry)


def with_table(kind: type[DeltaTable], scenario: Scenario, checkpoint: Path) -> DeltaSink:
    sink = DeltaSink(APP_ID, path=str(scenario.table), checkpoint=str(checkpoint))
    sink._target = sink._writer._target = kind(path=str(scenario.table), table=None)
    return sink


@pytest.mark.parametrize("kind", [Unfenced, Twofold], ids=["no compare-and-set", "two commits"])
def test_a_broken_sink_is_caught(quiet: SparkSession, tmp_path: Path, kind: type[DeltaTable]) -> None:
    """The oracle must reject these sinks on a schedule that our sink passes."""
    scenario = Scenario(quiet, tmp_path / "scenario", make_sink=lambda made, at: with_table(kind, made, at))
    with pytest.raises(TableInexactError):
        scenario.run(OVERTAKEN)


@pytest.mark.soak
def test_a_broken_iceberg_sink_is_caught(quiet: SparkSession, tmp_path: Path) -> None:
    """If a commit is rebased on the newest snapshot, two writers of one batch both commit."""

    def rebased(scenario: Scenario, checkpoint: Path) -> IcebergSink:
        sink = iceberg_sink(APP_ID, scenario.table)
        sink._table.__class__ = Rebased
        return sink

    scenario = Scenario(quiet, tmp_path / "scenario", sink="iceberg", make_sink=rebased)
    with pytest.raises(TableInexactError):
        scenario.run(OVERTAKEN)
