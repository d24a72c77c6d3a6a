"""SIGKILL at exact steps of a batch and at random moments: the table loses nothing and doubles nothing.

All tests of this file kill drivers that fill one growing table from the same journals, while a writer
keeps appending; each leaves it to the next as it lies. The broker lives in the test process. A driver
takes 20 s to get ready, so the next ones get ready while one runs.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import pytest

from gazette_spark.broker import EmbeddedBroker
from gazette_spark.client import Client
from gazette_spark.errors import BrokerError, UnavailableError
from gazette_spark.protocol.journals import journal_spec
from gazette_spark.testing.crash import Driver, kill_at_failpoint, kill_at_rename
from gazette_spark.testing.oracle import Verdict, Version, check_table, read_versions

APP_ID = "kills"
JOURNALS = ("kills/a", "kills/b", "kills/c")
START_WITHIN_S = 240
"""Most drivers commit within 25 s from nothing; on a machine that is busy it takes many times that."""

READY = 2
"""Drivers that get ready beside the one that runs. On two cores more of them are no faster."""

SEED = 20260
KILLS_PER_PART = 4
RANDOM_KILLS = 4 * KILLS_PER_PART
"""Beside the four that follow the kills at exact steps."""
LOG_FILE = r"/table/_delta_log/\d{20}\.json"

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
        """Append until stopped."""
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
        """Append, or leave it; the head tells whether an append landed whose answer did not arrive."""
        with self._lock:
            begin = len(self._content[journal])
            try:
                client.append(journal, content, offset=begin)
            except (BrokerError, UnavailableError):
                # A machine that is busy can stall a client for longer than the broker waits.
                if client.write_head(journal) == begin:
                    return
            self._content[journal] += content

    def truth(self) -> dict[str, bytes]:
        """All bytes appended so far."""
        with self._lock:
            return {journal: bytes(content) for journal, content in self._content.items()}

    def stop(self) -> None:
        """Stop appending."""
        self._stopped.set()
        if self.is_alive():
            self.join(60)
        assert self.failure is None


Env = dict[str, str]


@dataclass(eq=False)
class Candidate:
    """A driver that is ready, or getting there, and may start its query when it is told."""

    env: Env
    driver: Driver
    go: Path

    def start(self) -> Driver:
        """Let it start its query."""
        self.go.touch()
        return self.driver


@dataclass
class Rig:
    """Journals that grow, a table, a query checkpoint, and the drivers that die on them."""

    root: Path
    endpoint: str
    classes: Path
    writer: Writer
    plan: deque[Env]
    """Environments of the drivers to get ready, in order. One that is not asked for does no harm."""
    ready: list[Candidate] = field(default_factory=list)
    kills: int = 0
    drivers: int = 0

    def prepare(self, env: Env, *, until: str = "killed") -> Candidate:
        """Start a new process that gets ready."""
        self.drivers += 1
        name = f"driver-{self.drivers}"
        settings = {
            "endpoint": self.endpoint,
            "journals": "kills/",
            "app_id": APP_ID,
            "table": str(self.table),
            "checkpoint": str(self.checkpoint),
            "scratch": str(self.root / name),
            "classes": str(self.classes),
            "max_bytes": "200000",
            "until": until,
            "go": str(self.root / f"{name}.go"),
        }
        file = self.root / f"{name}.json"
        file.write_text(json.dumps(settings))
        script = Path(__file__).with_name("kill_query.py")
        driver = Driver(script, [str(file)], log=self.root / f"{name}.log", env=env)
        return Candidate(env, driver, Path(settings["go"]))

    def driver(self, env: Env) -> Driver:
        """Start the query in a driver that is ready, if there is one for this environment."""
        fitting = [candidate for candidate in self.ready if candidate.env == env]
        taken = fitting[0] if fitting else self.prepare(env)
        self.ready = [candidate for candidate in self.ready if candidate is not taken]
        while self.plan and len(self.ready) < READY:
            self.ready.append(self.prepare(self.plan.popleft()))
        return taken.start()

    def dismiss(self) -> None:
        """Kill the drivers whose turn did not come."""
        self.plan.clear()
        while self.ready:
            self.ready.pop().driver.kill()

    @property
    def table(self) -> Path:
        """The table's directory."""
        return self.root / "table"

    @property
    def checkpoint(self) -> Path:
        """The query checkpoint."""
        return self.root / "checkpoint"

    def versions(self) -> list[Version]:
        """All versions of the table."""
        return list(read_versions(self.table, APP_ID))

    def in_table(self) -> int:
        """Newest batch in the table, -1 if there is none."""
        entry = versions[-1].entry if (versions := self.versions()) else None
        return entry.batch_id if entry else -1

    def planned(self) -> int:
        """Newest batch in the query checkpoint."""
        return newest(self.checkpoint / "offsets")

    def done(self) -> int:
        """Newest batch Spark knows is done."""
        return newest(self.checkpoint / "commits")

    def has_more_than(self, versions: int) -> Callable[[], bool]:
        """Whether the table has got another version."""
        return lambda: len(list((self.table / "_delta_log").glob("*.json"))) > versions

    def run_to_the_end(self) -> None:
        """Run a driver until the table has all there is."""
        with self.prepare({}, until="end").start() as driver:
            assert driver.wait(START_WITHIN_S) == 0, driver.log_end()

    def run_until_it_dies(self, env: Env) -> None:
        """Run a driver that kills itself."""
        with self.driver(env) as driver:
            assert driver.wait(START_WITHIN_S) == -9, driver.log_end()
        self.kills += 1

    def run_and_kill(self, rng: random.Random) -> None:
        """Run a driver and kill it, while it starts its query or within a few batches."""
        versions = len(self.versions())
        with self.driver({}) as driver:
            if rng.random() < 0.6:
                driver.wait_until(self.has_more_than(versions), START_WITHIN_S)
            driver.kill_after(rng.uniform(0, 3))
            assert "Traceback" not in driver.log_end(), driver.log_end()
        self.kills += 1

    def check(self, *, complete: bool = False) -> Verdict:
        """Ask the oracle; whatever is in the table must be exact."""
        verdict = check_table(self.table, self.writer.truth(), app_id=APP_ID, complete=complete)
        assert verdict.exact, (SEED, verdict)
        return verdict


def newest(directory: Path) -> int:
    """Largest number that is a file's name."""
    return max((int(file.name) for file in directory.glob("[0-9]*")), default=-1)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file system that kills, compiled with the Scala compiler that comes with pyspark.

    It is a jar, for a folder on its class path would cost a JVM the class data archive.
    """
    made = tmp_path_factory.mktemp("classes")
    jars = Path(pyspark.__file__).parent / "jars"
    source = Path(__file__).parent / "jvm" / "KillAtRename.scala"
    jar = made / "kill.jar"
    scalac = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp"]
    subprocess.run([*scalac, "-d", str(jar), str(source)], check=True, capture_output=True, timeout=180)
    return jar


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, classes: Path) -> Iterator[Rig]:
    """Journals, a writer that keeps appending, and a table that is empty yet."""
    root = tmp_path_factory.mktemp("kills")
    with EmbeddedBroker(root / "broker") as broker:
        with Client(broker.endpoint, timeout_s=30) as client:
            client.create_journals(*[journal_spec(journal) for journal in JOURNALS])
        plan = deque(env for kill, _ in STEPS.values() for env in (kill, Env()))
        plan.extend(Env() for _ in range(RANDOM_KILLS))
        made = Rig(root, broker.endpoint, classes, Writer(broker.endpoint), plan)
        made.run_to_the_end()
        made.writer.start()
        yield made
        made.dismiss()
        made.writer.stop()


def nothing_in_the_table(rig: Rig) -> None:
    """The batch is planned; the table has the one before."""
    assert rig.planned() == rig.in_table() + 1 == rig.done() + 1


def files_but_no_commit(rig: Rig) -> None:
    """As before, and there are files that no version of the table knows."""
    nothing_in_the_table(rig)
    known = frozenset[str]().union(*(version.files for version in rig.versions()))
    assert {file.name for file in rig.table.glob("*.parquet")} - known


def commit_without_its_checksum(rig: Rig) -> None:
    """The batch is in the table, and Spark does not know; the log file's checksum is missing."""
    in_the_table(rig)
    last = f"{len(rig.versions()) - 1:020}.json"
    assert not (rig.table / "_delta_log" / f".{last}.crc").exists()


def in_the_table(rig: Rig) -> None:
    """The batch is in the table, and Spark does not know."""
    assert rig.planned() == rig.in_table() == rig.done() + 1


STEPS: dict[str, tuple[Env, Callable[[Rig], None]]] = {
    "K4 planned": (kill_at_failpoint("source.partitions", 2), nothing_in_the_table),
    "K8 files written": (kill_at_rename("before", 2, LOG_FILE), files_but_no_commit),
    "K9 log renamed": (kill_at_rename("after", 2, LOG_FILE), commit_without_its_checksum),
    "K11 sink returned": (kill_at_failpoint("sink.return", 2), in_the_table),
}
"""What kills the driver, and what it must leave behind."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_an_exact_step_changes_nothing(rig: Rig, step: str) -> None:
    """The directories are as that step leaves them; the next driver goes on, until it is killed too."""
    env, left = STEPS[step]
    rig.run_until_it_dies(env)
    left(rig)
    rig.check()
    interrupted, versions = rig.planned(), len(rig.versions())
    with rig.driver({}) as driver:
        driver.wait_until(rig.has_more_than(versions + 1), START_WITHIN_S)
        driver.kill_after(random.Random(f"{SEED} {step}").uniform(0, 1))
    rig.kills += 1
    assert rig.in_table() > interrupted
    rig.check()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", ["one", "two", "three", "four"])
def test_kills_at_random_moments_change_nothing(rig: Rig, part: str) -> None:
    """After each kill the table is exact up to what it records."""
    rng = random.Random(f"{SEED} {part}")
    kills = rig.kills
    for _ in range(KILLS_PER_PART):
        rig.run_and_kill(rng)
        rig.check()
    assert rig.kills == kills + KILLS_PER_PART


@pytest.mark.timeout(900)
def test_in_the_end_everything_is_there_once(rig: Rig) -> None:
    """The writer stops, a last driver reads on to the end: no record is lost, doubled or altered."""
    rig.writer.stop()
    rig.dismiss()
    rig.run_to_the_end()
    verdict = rig.check(complete=True)
    assert verdict.rows == sum(content.count(b"\n") for content in rig.writer.truth().values()) > 0
