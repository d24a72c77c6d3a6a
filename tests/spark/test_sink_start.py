"""A query that cannot run is refused before it starts, and a stopped one ends without an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark import DeltaSink, backfill
from gazette_spark._delta import files
from gazette_spark._delta.preflight import delta_jar
from gazette_spark.errors import OptionError, QueryCheckpointError, SchemaMismatchError, TableRefusedError
from gazette_spark.session import CLASS_PATH_VARIABLE
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream
from tests.waiting import wait_until


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A directory that nobody can create, not even root, because its parent is a file."""
    (tmp_path / "file").write_text("no directory")
    return tmp_path / "file" / "below"


def test_places_that_cannot_be_written_are_named(stream: FileStream, blocked: Path) -> None:
    checkpoint = str(stream.checkpoint)
    with pytest.raises(TableRefusedError, match="its directory cannot be written: ") as caught:
        DeltaSink(APP_ID, path=str(blocked)).start(stream.rows(), checkpoint=checkpoint)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(QueryCheckpointError, match="the directory cannot be written: "):
        stream.sink().start(stream.rows(), checkpoint=str(blocked))
    with pytest.raises(TableRefusedError, match="there is no schema nosuchdb: run CREATE SCHEMA nosuchdb"):
        DeltaSink(APP_ID, table="nosuchdb.orders").start(stream.rows(), checkpoint=checkpoint)


def test_a_relative_place_begins_where_spark_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM keeps its working directory if the program changes its own."""
    monkeypatch.chdir(tmp_path)
    assert files.unwritable(spark, f"checkpoint-{uuid.uuid4().hex}") == ""


def test_a_damaged_log_is_named_in_one_line(stream: FileStream) -> None:
    """Delta's own error is a stack trace that does not name the file."""
    stream.append(4)
    stream.run()
    (commit,) = stream.table.glob("_delta_log/*1.json")
    commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
    # Where Delta has its own checksum of the newest version, it reads the commit in the first batch only.
    commit.with_suffix(".crc").unlink()
    commit.write_text("garbage\n")
    # The session must not have read the table before, because Delta caches snapshots.
    moved = stream.table.rename(stream.table.with_name("moved"))
    with pytest.raises(
        TableRefusedError, match=r"its log cannot be read: line 1 of .* is not valid JSON"
    ) as caught:
        DeltaSink(APP_ID, path=str(moved)).start(stream.rows(), checkpoint=f"{stream.checkpoint}-moved")
    assert str(moved / "_delta_log" / commit.name) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_columns_that_do_not_fit_are_refused_at_the_start(stream: FileStream) -> None:
    """The columns of the table and of the query are both known at that time."""
    stream.sql("CREATE TABLE {t} (journal STRING, offset STRING, value BINARY) USING delta")
    with pytest.raises(SchemaMismatchError, match=f"app id '{APP_ID}', at its start: .*offset"):
        stream.sink().start(stream.rows(), checkpoint=str(stream.checkpoint))


def test_a_new_app_id_on_a_filled_table_is_warned_of(
    stream: FileStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.append(4)
    stream.run()
    stream.run()
    assert "is new to it" not in caplog.text
    query = DeltaSink("renamed", path=str(stream.table)).start(
        stream.rows(), checkpoint=str(stream.checkpoint.parent / "other")
    )
    query.stop()
    (warning,) = [record.getMessage() for record in caplog.records if "is new to it" in record.getMessage()]
    sizes = {name: len(content) for name, content in stream.truth().items()}
    assert f"has a up to {sizes['a']}, b up to {sizes['b']} for app id '{APP_ID}'" in warning


def slow(rows: DataFrame) -> DataFrame:
    """Return the rows with a pause before each one."""
    return rows.where(F.expr("length(java_method('java.lang.Thread', 'sleep', 60000L)) > 0"))


def test_a_query_stopped_in_mid_batch_ends_as_stopped(stream: FileStream) -> None:
    """Spark finds the interruption in the batch's error; a long text would overflow its stack."""
    stream.append(2)
    stream.run()
    stream.append(20)
    tracker = stream.spark.sparkContext.statusTracker()
    since: dict[int, float] = {}

    def hangs() -> bool:
        now = time.monotonic()
        return any(now - since.setdefault(job, now) > 3 for job in tracker.getActiveJobsIds())

    query = stream.sink().start(slow(stream.rows()), checkpoint=str(stream.checkpoint))
    try:
        wait_until("a job of the batch", hangs, DEADLINE_S)
    finally:
        query.stop()
    assert query.status["message"] == "Stopped"
    assert query.exception() is None


def test_brokers_that_no_task_reaches_are_named_before_the_query_starts(stream: FileStream) -> None:
    """This includes batches by the direct lane and backfills, which also read from brokers."""
    address = {"brokerAddress": "http://127.0.0.1:1", "requestTimeoutMs": "1000"}
    refused = pytest.raises(OptionError, match=r"brokerAddress.*127\.0\.0\.1:1.*a task on .* does not")
    rows = stream.spark.readStream.format("gazette").options(**address).load("orders/new")
    with refused:
        stream.sink().start(rows, checkpoint=str(stream.checkpoint))
    with refused:
        backfill(stream.sink(), {"path": "orders/new", **address}, spark=stream.spark)
    assert not stream.checkpoint.exists()


def test_a_full_disk_is_named_with_its_directory(stream: FileStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Java's message is available from a task's error; the query continues once there is space."""
    stream.append(4)
    stream.run()
    stream.append(4)
    full = stream.rows().where(F.expr("raise_error('java.io.IOException: No space left on device') IS NULL"))
    query = stream.sink().start(full, checkpoint=str(stream.checkpoint), availableNow=True)
    with pytest.raises(
        StreamingQueryException, match=r"NoSpaceError.*No space left.*Free space there"
    ) as caught:
        query.awaitTermination(DEADLINE_S)
    assert f"the table {stream.table}" in str(caught.value)
    with monkeypatch.context() as patch:
        free = {stream.checkpoint: 0}
        patch.setattr(files, "disk_usage", lambda path: SimpleNamespace(free=free.get(path, 1 << 30)))
        with pytest.raises(
            QueryCheckpointError, match=f"no space is left on the disk of {stream.checkpoint}"
        ):
            stream.run()
    stream.run()
    assert stream.assert_exact().rows == 8


PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
from gazette_spark._backfill import backfill
from gazette_spark.errors import OptionError
from gazette_spark._ingest import ingest, ingest_batch
from gazette_spark.sink import DeltaSink
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
sink = DeltaSink("orders", path=sys.argv[1] + "/table", checkpoint=sys.argv[1] + "/checkpoint")
reader = spark.readStream.format("gazette").option("brokerAddress", "http://127.0.0.1:1")
options = {"path": "orders", "brokerAddress": "http://127.0.0.1:1"}
for call in (
    lambda: sink.start(spark.readStream.format("rate").load()),
    lambda: ingest(reader.option("path", "orders"), sink),
    lambda: ingest_batch(sink, options),
    lambda: backfill(sink, options),
    lambda: sink.ledger(),
):
    try:
        call()
    except OptionError as error:
        print(error)
sink.start(sink.resume(reader).load("orders"))
"""

OTHER_DELTA = """
import sys
from pathlib import Path
from gazette_spark.session import local_spark
from gazette_spark.sink import DeltaSink
spark = local_spark(Path(sys.argv[1]))
DeltaSink("orders", path=sys.argv[1] + "/table").resume(spark.readStream.format("gazette"))
"""


def run(program: str, directory: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.soak
def test_a_session_without_delta_is_told_how_to_get_it(tmp_path: Path) -> None:
    """This first error is common, so every entry point names both settings and the package in one line."""
    env = {name: value for name, value in os.environ.items() if name != CLASS_PATH_VARIABLE}
    done = run(PLAIN_SESSION, tmp_path, env)
    told = [*done.stdout.splitlines(), done.stderr.splitlines()[-1]]
    assert len(told) == 6, done.stderr
    for line in told:
        assert "option 'spark': got a session without Delta Lake" in line
        assert "configure_spark_with_delta_pip" in line


@pytest.mark.soak
def test_a_delta_for_another_spark_is_named(tmp_path: Path, spark: SparkSession) -> None:
    """The jar's name reveals the version; here it is a renamed copy of the right one."""
    jar = Path(delta_jar(spark).removeprefix("file:"))
    other = tmp_path / jar.name.replace("_4.2_", "_4.0_")
    shutil.copy(jar, other)
    others = [each for each in os.environ.get(CLASS_PATH_VARIABLE, "").split(os.pathsep) if each != str(jar)]
    jars = [*(others or map(str, jar.parent.glob("*.jar"))), str(other)]
    done = run(OTHER_DELTA, tmp_path, {**os.environ, CLASS_PATH_VARIABLE: os.pathsep.join(jars)})
    last = done.stderr.splitlines()[-1]
    assert f"got {other.name}, which is Delta Lake for Spark 4.0, in a session of Spark 4.2" in last
