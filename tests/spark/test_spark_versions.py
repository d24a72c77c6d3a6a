"""The wheel works with each supported release of Spark, and streams lose and duplicate nothing.

Each release has an environment, made by ``tests/spark_env.sh``. The oldest one is part of every run, the
others are for soak. Special cases of Spark 4.0 and 4.1 also run on the current Spark, with a reader that does
not learn where a batch begins, which every release calls in the same way.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gazette_spark import Client, DeltaSink, EmbeddedBroker
from gazette_spark._delta import start_query
from gazette_spark._delta.session import register_sources
from gazette_spark._options.source import parse_options
from gazette_spark.client import journal_spec
from gazette_spark.failpoints import FAILPOINT_VARIABLE
from gazette_spark.session import CLASS_PATH_VARIABLE
from gazette_spark.source import GazetteDataSource, TrackingStreamReader
from gazette_spark.testing.oracle import check_table, split_records
from tests.rig.brokers import BrokerHandle
from tests.rig.gazctl import cache_folders
from tests.rig.spark_cluster import LEFT_OUT
from tests.rig.wheel import build_wheel
from tests.spark import versions_job
from tests.spark.source_queries import QUERY_TIMEOUT_S, Journals, raw, records, rows_of, run_available

RELEASES = [
    pytest.param("4.0", True, id="4.0 in brief"),
    *(pytest.param(release, False, marks=pytest.mark.soak) for release in ("4.0", "4.1", "4.2", "4.3")),
]
WITH_DELTA = {"4.0", "4.1", "4.2"}
STEP_TIMEOUT_S = 400
WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"

OTHERS = {*LEFT_OUT, "SPARK_HOME", "PYSPARK_PYTHON", CLASS_PATH_VARIABLE}
"""Environment variables that lead to another Spark."""

KILLS = ["sink.before_write:3:kill_group", "sink.after_write:2:kill_group"]
"""Kills before a planned batch is written, and after it is written but before Spark records it."""


class TrackingGazette(GazetteDataSource):
    """A source that reads journals as on Spark 4.0."""

    @classmethod
    def name(cls) -> str:
        return "tracking_gazette"

    def streamReader(self, schema: StructType) -> TrackingStreamReader:  # noqa: N802 - Spark's name.
        """Return the reader for a Spark without admission control."""
        return TrackingStreamReader(parse_options(self.options, "stream"), schema)


def numbered(first: int, count: int) -> bytes:
    return b"".join(b'{"id":%d}\n' % number for number in range(first, first + count))


@pytest.fixture
def journals(
    spark: SparkSession, embedded_broker: BrokerHandle, client: Client, fresh_prefix: str
) -> Journals:
    spark.dataSource.register(TrackingGazette)
    made = Journals(spark, embedded_broker, client, fresh_prefix)
    made.create("a")
    return made


def test_a_source_is_registered_with_several_sessions(spark: SparkSession) -> None:
    """Spark refuses a name that the active session of the thread has, even in another session."""
    active = SparkSession.getActiveSession()
    for session in (spark, spark.newSession(), spark):
        register_sources(session, TrackingGazette)
    assert SparkSession.getActiveSession() is active


def untold(journals: Journals, **options: str) -> DataFrame:
    """Return a stream over the journal whose source does not learn where a batch begins."""
    reader = journals.spark.readStream.format("tracking_gazette")
    reader = reader.option("brokerAddress", journals.broker.endpoint)
    return reader.options(startingOffsets="earliest", **options).load(journals.name("a"))


def test_a_stream_that_is_not_told_where_it_is(journals: Journals, tmp_path: Path) -> None:
    """Runs continue under a limit, a failed batch runs again, and no call misleads the source."""
    content = numbered(0, 40)
    journals.append("a", content)
    frame = untold(journals, maxBytesPerTrigger="100")
    found = run_available(frame, tmp_path)
    assert found == {0: []}, "the first run records the start"
    found |= run_available(frame, tmp_path)

    def fail(_batch: DataFrame, _batch_id: int) -> None:
        raise RuntimeError("the sink is gone")

    with pytest.raises(StreamingQueryException, match="the sink is gone"):
        run_available(frame, tmp_path, fail)
    content += numbered(40, 5)
    journals.append("a", numbered(40, 5))
    found |= run_available(frame, tmp_path)
    assert sorted(found) == [0, 1, 2], "the run did the failed batch again"
    assert [len(found[1]), len(found[2])] == [11, 10], "each is as large as the limit allows"
    journals.spark.conf.set(WRAPPER, "true")
    try:
        with pytest.raises(StreamingQueryException, match=f"Nothing was read. Set {WRAPPER}=false"):
            run_available(frame, tmp_path)
    finally:
        journals.spark.conf.unset(WRAPPER)
    found |= run_available(untold(journals, maxBytesPerTrigger="10k"), tmp_path)
    assert raw(rows_of(found)) == records(content)


def test_a_sink_runs_the_batch_that_reads_nothing(
    journals: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an AvailableNow run is one batch, the first run with a sink still reads rows."""
    monkeypatch.setattr(start_query, "ADMISSION_CONTROL", False)
    sink = DeltaSink("once", path=str(tmp_path / "table"))
    content = b""
    for number in range(2):
        journals.append("a", numbered(number, 1))
        content += numbered(number, 1)
        query = sink.start(untold(journals), checkpoint=str(tmp_path / "checkpoint"), availableNow=True)
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        entry = sink.ledger(journals.spark)
        assert entry is not None
        assert entry.batch_id == number + 1
    assert check_table(tmp_path / "table", {journals.name("a"): content}, app_id="once").exact


@dataclass
class Place:
    """A Python with one release of Spark and the wheel, journals, and a directory."""

    python: Path
    broker: EmbeddedBroker
    client: Client
    directory: Path
    delta: bool
    content: dict[str, bytes]
    brief: bool
    prefix = "versions/"
    odd = "versions-odd/"

    def append(self, short: str, content: bytes) -> None:
        self.client.append(self.prefix + short, content)
        self.content[self.prefix + short] += content

    def run(self, step: str, *, killed_by: str = "") -> None:
        settings = {
            "endpoint": self.broker.endpoint,
            "prefix": self.prefix,
            "odd": self.odd,
            "directory": str(self.directory),
            "delta": self.delta,
            "brief": self.brief,
        }
        told = self.directory / "settings.json"
        told.write_text(json.dumps(settings))
        program = shutil.copy(versions_job.__file__, self.directory / "program.py")
        env = {name: value for name, value in os.environ.items() if name not in OTHERS}
        env |= {FAILPOINT_VARIABLE: killed_by} if killed_by else {}
        with (self.directory / f"{step}.log").open("ab") as log:
            done = subprocess.run(
                [self.python, program, told, step],
                env=env,
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
                timeout=STEP_TIMEOUT_S,
                check=False,
            )
        wanted = -signal.SIGKILL if killed_by else 0
        assert done.returncode == wanted, (self.directory / f"{step}.log").read_text()[-6000:]

    def rows(self) -> list[list[Any]]:
        return sorted(
            [journal, offset, value.decode()]
            for journal, held in self.content.items()
            for offset, value in split_records(held)
        )

    def ids(self, short: str = "") -> list[int]:
        names = (self.prefix + short,) if short else self.content.keys()
        held = b"".join(self.content[name] for name in names)
        return sorted(json.loads(line)["id"] for line in held.splitlines())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def place(release: str, brief: bool, wheel: Path, tmp_path: Path) -> Iterator[Place]:
    shared = cache_folders()[0] / "spark-env" / release
    if not (shared / "stamp").exists():
        pytest.fail(f"the environment of Spark {release} is not made: run `make spark-env`")
    made = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=60)
    (site,) = made.glob("lib/python*/site-packages")
    (packages,) = shared.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(f"{packages}\n")
    python = made / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    directory = tmp_path / "work"
    directory.mkdir()
    with EmbeddedBroker(tmp_path / "broker") as broker, Client(broker.endpoint, timeout_s=60) as client:
        found = Place(python, broker, client, directory, release in WITH_DELTA, {}, brief)
        names = [found.prefix + short for short in ("a", "b")]
        lines = {"content-type": "application/x-ndjson"}
        client.create_journals(*(journal_spec(each, labels=lines) for each in [*names, found.odd + "x"]))
        client.append(found.odd + "x", numbered(0, 3) + b"{no json\n")
        found.content = dict.fromkeys(names, b"")
        yield found


@pytest.mark.own_jvm
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("release", "brief"), RELEASES)
def test_each_release_of_spark(place: Place, release: str, brief: bool) -> None:
    place.append("a", numbered(0, 300))
    place.append("b", numbered(1000, 200))
    for number, kill in enumerate(KILLS[:1] if brief else KILLS):
        place.run("stream", killed_by=kill)
        place.append("a", numbered(300 + 50 * number, 50))
    place.run("finish")
    seen = json.loads((place.directory / "result.json").read_text())
    assert seen["version"].startswith(f"{release}.")
    assert str(place.directory.parent / "python") in seen["module"], "the wheel, not the source tree"
    assert seen["raw"] == place.rows()
    assert seen["filtered"] == sorted(
        [json.loads(value)["id"], offset] for name, offset, value in place.rows() if name.endswith("/a")
    )
    assert seen["written"] == sorted(f"row {number}" for number in range(20))
    assert seen["streamed"] == sorted(value for _, _, value in place.rows())
    one_batch_a_run = release in {"4.0", "4.1"}
    assert (len(seen["runs"]) > 2) == one_batch_a_run, seen["runs"]
    if not place.delta:
        files = sorted((place.directory / "files").iterdir())
        assert sorted(row for file in files for row in json.loads(file.read_text())) == place.rows()
        return
    verdict = check_table(place.directory / "table", place.content, app_id=versions_job.APP_ID)
    assert verdict.exact, verdict
    assert seen["direct"] == place.ids()
    if not brief:
        assert seen["upsert"] == place.ids()
        assert (seen["fitting"], seen["dead"]) == ([0, 1, 2], 1)
