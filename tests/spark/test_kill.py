"""SIGKILL at exact steps of a batch and at random moments: the table loses and duplicates nothing.

Most tests of this file kill drivers that fill one growing table from the same journals, while a writer keeps
appending; each test leaves the table to the next one as it is. The broker lives in the test process. A kill
costs one JVM: afterwards, the tests' session continues the query. The next drivers get ready while one runs.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from gazette_spark import Client, EmbeddedBroker, register
from gazette_spark.client import journal_spec
from gazette_spark.errors import BrokerError, UnavailableError
from gazette_spark.testing.oracle import OracleVerdict, Version, check_table, read_versions, split_records
from tests.rig.brokers import DeployedBroker
from tests.rig.crashes.child import recover
from tests.rig.crashes.children import CrashChildren, Query, command_to_die
from tests.rig.crashes.journals import MessageJournals
from tests.rig.crashes.oracles import check
from tests.rig.crashes.points import BY_NAME
from tests.rig.crashes.sinks import COLUMNS, KEYS, dead_table, fits, read_keyed
from tests.rig.crashes.two_writers import run_two_writers
from tests.rig.upsert_oracle import check_upserts
from tests.spark.conftest import FileStream
from tests.waiting import wait_until

APP_ID = "kills"
JOURNALS = ("kills/a", "kills/b", "kills/c")
START_WITHIN_S = 240
"""Maximum seconds to wait for a new driver. Most commit within 25 s; a busy machine takes many times that."""

SEED = 20260

RANDOM_KILLS = 8
"""Number of kills at random moments."""

AT_ONCE = {"maxBytesPerTrigger": "100000000"}
"""Source options where only the result matters, because the journals have grown for minutes by then."""

TWO_WRITERS_S = 240.0
"""Maximum seconds for two writers, which end with the second turn, usually within 20 s."""

DRIVERS = 4 + RANDOM_KILLS + 11 + 2
"""Number of drivers: four for exact steps, the random kills, eleven with separate tables, and two writers."""

pytestmark = pytest.mark.slow


class Writer(threading.Thread):
    """Appends numbered records and remembers every byte."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(name="writer", daemon=True)
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._content = {journal: bytearray() for journal in JOURNALS}
        self.failure: BaseException | None = None

    def run(self) -> None:
        rng = random.Random(SEED)
        number = 0
        try:
            with Client(self._endpoint, timeout_s=30) as client:
                while not self._stopped.wait(0.1):
                    lines = range(number, number + rng.randint(1, 30))
                    content = b"".join(b"%d %s\n" % (n, b"x" * rng.randint(0, 80)) for n in lines)
                    self._append(client, rng.choice(JOURNALS), content)
                    number = lines.stop
        except BaseException as error:
            self.failure = error
            raise

    def _append(self, client: Client, journal: str, content: bytes) -> None:
        """Append. After an append without a response, the write head reveals whether it succeeded."""
        with self._lock:
            begin = len(self._content[journal])
            try:
                client.append(journal, content, offset=begin)
            except (BrokerError, UnavailableError):
                # A busy machine can stall a client for longer than the broker waits.
                if client.write_head(journal) == begin:
                    return
            self._content[journal] += content

    def truth(self) -> dict[str, bytes]:
        with self._lock:
            return {journal: bytes(content) for journal, content in self._content.items()}

    def stop(self) -> None:
        self._stopped.set()
        if self.is_alive():
            self.join(60)
        assert self.failure is None


@dataclass
class Rig:
    """Growing journals, a table, a query checkpoint, and the drivers that are killed."""

    root: Path
    writer: Writer
    children: CrashChildren
    query: Query
    spark: SparkSession

    @property
    def table(self) -> Path:
        return self.root / "table"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def command(self) -> dict[str, str]:
        return {"table": str(self.table), "checkpoint": str(self.checkpoint)}

    def versions(self) -> list[Version]:
        return list(read_versions(self.table, APP_ID))

    def in_table(self) -> int:
        entry = versions[-1].entry if (versions := self.versions()) else None
        return entry.batch_id if entry else -1

    def planned(self) -> int:
        """Return the newest batch in the query checkpoint."""
        return newest(self.checkpoint / "offsets")

    def done(self) -> int:
        return newest(self.checkpoint / "commits")

    def has_more_than(self, versions: int) -> Callable[[], bool]:
        return lambda: len(list((self.table / "_delta_log").glob("*.json"))) > versions

    def run_until_it_dies(self, point: str) -> None:
        """Run a driver that is killed when it reaches the point for the second time."""
        command = command_to_die(BY_NAME[point], 2)
        with self.children.start(until="killed", **self.command(), **command) as child:
            assert child.wait(START_WITHIN_S) == -9, child.log_end()

    def recover(self, **command: Any) -> None:
        recover(self.spark, self.query.settings(), {**self.command(), **command})

    def run_and_kill(self, rng: random.Random) -> None:
        """Run a driver and kill it while it starts its query or within a few batches."""
        versions = len(self.versions())
        with self.children.start(until="killed", **self.command()) as child:
            if rng.random() < 0.6:
                child.wait_until(self.has_more_than(versions), START_WITHIN_S)
            child.kill_after(rng.uniform(0, 3))
            assert "Traceback" not in child.log_end(), child.log_end()

    def check(self, *, complete: bool = False) -> OracleVerdict:
        verdict = check_table(
            self.table, self.writer.truth(), app_id=APP_ID, complete=complete, checkpoints=[self.checkpoint]
        )
        assert verdict.exact, (SEED, verdict)
        return verdict


def newest(directory: Path) -> int:
    """Return the largest number that is a file's name."""
    return max((int(file.name) for file in directory.glob("[0-9]*")), default=-1)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Rig]:
    """Journals, a writer that keeps appending, and a table that is still empty."""
    register(spark)
    root = tmp_path_factory.mktemp("kills")
    with EmbeddedBroker(root / "broker") as broker:
        with Client(broker.endpoint, timeout_s=30) as client:
            client.create_journals(*[journal_spec(journal) for journal in JOURNALS])
        options = {
            "brokerAddress": broker.endpoint,
            "startingOffsets": "earliest",
            "maxBytesPerTrigger": "200000",
        }
        query = Query(APP_ID, "gazette", options, load="kills/")
        with CrashChildren(root / "children", query, at_most=DRIVERS) as children:
            made = Rig(root, Writer(broker.endpoint), children, query, spark)
            made.recover()
            made.writer.start()
            yield made
            made.writer.stop()


def nothing_in_the_table(rig: Rig) -> None:
    """The batch is planned, and the table ends with the batch before."""
    assert rig.planned() == rig.in_table() + 1 == rig.done() + 1


def files_but_no_commit(rig: Rig) -> None:
    """The same, but there are also files that no version of the table lists."""
    nothing_in_the_table(rig)
    known = frozenset[str]().union(*(version.files for version in rig.versions()))
    assert {file.name for file in rig.table.glob("*.parquet")} - known


def commit_without_its_checksum(rig: Rig) -> None:
    """The batch is in the table without Spark's record of it, and the log file's checksum is missing."""
    in_the_table(rig)
    last = f"{len(rig.versions()) - 1:020}.json"
    assert not (rig.table / "_delta_log" / f".{last}.crc").exists()


def in_the_table(rig: Rig) -> None:
    """The batch is in the table without Spark's record of it."""
    assert rig.planned() == rig.in_table() == rig.done() + 1


STEPS: dict[str, tuple[str, Callable[[Rig], None]]] = {
    "K4 planned": ("after the WAL", nothing_in_the_table),
    "K8 files written": ("files written, not committed", files_but_no_commit),
    "K9 log renamed": ("committed, not returned", commit_without_its_checksum),
    "K11 sink returned": ("before the commit log", in_the_table),
}
"""Point at which the driver is killed, and the check of what it leaves behind."""


@pytest.mark.soak  # In test_crashes queries crash at each of these points, in every run.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_an_exact_step_changes_nothing(rig: Rig, step: str) -> None:
    """The directories must be as that step leaves them; another process continues from there."""
    point, left = STEPS[step]
    rig.run_until_it_dies(point)
    left(rig)
    rig.check()
    interrupted = rig.planned()
    rig.recover()
    assert rig.planned() == rig.in_table() == rig.done() > interrupted
    rig.check()


@pytest.mark.soak  # In test_demo a query is killed during a batch, in every run.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(RANDOM_KILLS))
def test_a_kill_at_a_random_moment_changes_nothing(rig: Rig, number: int) -> None:
    rig.run_and_kill(random.Random(f"{SEED} {number}"))
    rig.check()


def die_at(rig: Rig, point: str, time: int = 2) -> Path:
    """Kill a driver at a point of the sink, continue with another one, and return the table."""
    sink = BY_NAME[point].feature or "raw"
    table = rig.root / point / "table"
    table.parent.mkdir()
    command = {"sink": sink, "table": str(table), "checkpoint": str(table.parent / "checkpoint")}
    with rig.children.start(until="killed", **command, **command_to_die(BY_NAME[point], time)) as child:
        assert child.wait(START_WITHIN_S) == -9, child.log_end()
    rig.recover(**command, options=AT_ONCE)
    return table


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", ["before the WAL", "files written, not committed"])
def test_a_kill_in_the_first_write_of_all_changes_nothing(rig: Rig, point: str) -> None:
    """Such a kill leaves neither a query checkpoint nor a table, only files."""
    table = die_at(rig, point, 1)
    verdict = check_table(table, rig.writer.truth(), app_id=APP_ID, complete=False)
    assert verdict.exact, verdict
    assert verdict.rows


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_kill_inside_a_merge_changes_nothing(rig: Rig) -> None:
    table = die_at(rig, "during MERGE")
    truth = rig.writer.truth()
    verdict = check_upserts(table, truth, read_keyed, COLUMNS, app_id=APP_ID, complete=False)
    assert verdict.exact, verdict
    assert verdict.rows == KEYS * len(JOURNALS)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_kill_between_dead_letters_and_rows_changes_nothing(rig: Rig) -> None:
    table = die_at(rig, "between dead letters and rows")
    entry = list(read_versions(table, APP_ID))[-1].entry
    assert entry is not None
    records = [
        (journal, offset, value)
        for journal, content in rig.writer.truth().items()
        for offset, value in split_records(content[: entry.read_through[journal]])
    ]
    rows = DeltaTable(table).to_pyarrow_table(columns=["journal", "offset", "value"])
    dead = DeltaTable(dead_table(table)).to_pyarrow_table(columns=["journal", "offset", "raw"])
    for held, wanted in ((rows, True), (dead, False)):
        found = sorted(zip(*(column.to_pylist() for column in held.columns), strict=True))
        assert found == sorted(each for each in records if fits(each[2]) is wanted)
        assert found


@pytest.mark.soak
@pytest.mark.deployed_broker
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", ["states written", "files written, not committed"])
def test_a_kill_amid_committed_messages_changes_nothing(
    rig: Rig, deployed_broker: DeployedBroker, tmp_path: Path, point: str
) -> None:
    """On the real broker, transactions are open, and the next driver delivers each committed message once.

    It continues by the other lane, because deltalake renames no file at which a driver could be killed.
    """
    journals = MessageJournals(tmp_path, deployed_broker.endpoint, seed=SEED)
    journals.append(120)
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    command = {
        "sink": "committed",
        "table": str(table),
        "checkpoint": str(checkpoint),
        "schema": journals.schema,
        "load": "",
        "options": journals.options(),
    }
    direct = point == "states written"
    dies = {**command, "format": journals.format, "direct": direct, **command_to_die(BY_NAME[point], 3)}
    with rig.children.start(until="killed", **dies) as child:
        assert child.wait(START_WITHIN_S) == -9, child.log_end()
    assert newest(checkpoint / "offsets") == newest(checkpoint / "commits") + 1
    assert check("committed", table, journals.truth(), app_id=APP_ID, complete=False).exact
    journals.append(20)
    rig.recover(**command, format="gazette", direct=not direct)
    verdict = check("committed", table, journals.truth(), app_id=APP_ID, complete=True)
    assert verdict.exact, verdict
    assert verdict.rows > 30


BACKFILL_KILLS = (
    ("files written, not committed", 1),
    ("committed, not returned", 1),
    ("states written", 1),
    ("files written, not committed", 1),
    ("committed, not returned", 2),
)
"""Kills before and after the pinning commit, in a task, before a commit of rows, and after a later one."""


@pytest.mark.soak
@pytest.mark.deployed_broker
@pytest.mark.timeout(1800)
def test_a_killed_backfill_of_committed_messages_leaves_no_seam(
    rig: Rig, deployed_broker: DeployedBroker, tmp_path: Path
) -> None:
    """On the real broker and its store, each driver continues where the table ends, and so does a stream."""
    journals = MessageJournals(tmp_path, deployed_broker.endpoint, seed=SEED, store=deployed_broker.file_root)
    journals.append(120)
    wait_until("fragments to be stored", journals.are_stored)
    table = tmp_path / "table"
    command = {"sink": "committed", "table": str(table), "schema": journals.schema}
    for number, (point, nth) in enumerate(BACKFILL_KILLS):
        options = journals.batch_options(stored=number < 2)
        dies = command_to_die(BY_NAME[point], nth)
        with rig.children.start(until="killed", backfill=options, **command, **dies) as child:
            assert child.wait(START_WITHIN_S) == -9, child.log_end()
        if number:
            assert check("committed", table, journals.truth(), app_id=APP_ID, complete=False).exact
        journals.append(20)
    stream = {"checkpoint": str(tmp_path / "checkpoint"), "load": "", "options": journals.options()}
    rig.recover(**command, **stream, format="gazette")
    verdict = check("committed", table, journals.truth(), app_id=APP_ID, complete=True)
    assert verdict.exact, verdict
    assert verdict.rows > 60


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_processes_that_write_one_table_leave_one_stream(rig: Rig) -> None:
    """A fenced writer restarts, so both write in turn; no version has a duplicate row."""
    root = rig.root / "two-writers"
    root.mkdir()
    held = run_two_writers(rig.children, root, app_id=APP_ID, seconds=TWO_WRITERS_S, turns=2)
    truth, checkpoints = rig.writer.truth(), held.checkpoints
    verdict = check_table(root / "table", truth, app_id=APP_ID, complete=False, checkpoints=checkpoints)
    assert verdict.exact, verdict
    assert held.turns >= 2
    assert held.defeats.keys() <= {"FencedError", "OverlapError"}


def test_a_query_killed_while_its_first_offsets_are_written_starts(stream: FileStream) -> None:
    """The remains of that file disturb Spark, but the sink removes them at the start."""
    left = stream.checkpoint / "offsets" / f".0.{uuid.uuid4()}.tmp"
    left.parent.mkdir(parents=True)
    left.touch()
    stream.append(5)
    stream.run()
    stream.assert_exact()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_in_the_end_everything_is_there_once(rig: Rig) -> None:
    rig.writer.stop()
    rig.recover(options=AT_ONCE)
    verdict = rig.check(complete=True)
    assert verdict.rows == sum(content.count(b"\n") for content in rig.writer.truth().values()) > 0
