"""A query that cannot run is refused before it starts, and one that is stopped ends in silence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark.errors import QueryCheckpointError, SchemaMismatchError, TableRefusedError
from gazette_spark.session import CLASS_PATH_VARIABLE
from gazette_spark.sink import DeltaSink
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream
from tests.waiting import wait_until


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A directory that nobody can make, root included: its parent is a file."""
    (tmp_path / "file").write_text("no directory")
    return tmp_path / "file" / "below"


def test_places_that_cannot_be_written_are_named(stream: FileStream, blocked: Path) -> None:
    """Table, checkpoint and schema are tried before the query starts, and each error is one line."""
    checkpoint = str(stream.checkpoint)
    with pytest.raises(TableRefusedError, match="its directory cannot be written: ") as caught:
        DeltaSink(APP_ID, path=str(blocked)).start(stream.rows(), checkpoint=checkpoint)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(QueryCheckpointError, match="the directory cannot be written: "):
        stream.sink().start(stream.rows(), checkpoint=str(blocked))
    with pytest.raises(TableRefusedError, match="there is no schema nosuchdb: run CREATE SCHEMA nosuchdb"):
        DeltaSink(APP_ID, table="nosuchdb.orders").start(stream.rows(), checkpoint=checkpoint)


def test_columns_that_do_not_fit_are_refused_at_the_start(stream: FileStream) -> None:
    """The table's columns and the query's are both known then."""
    stream.sql("CREATE TABLE {t} (journal STRING, offset STRING, value BINARY) USING delta")
    with pytest.raises(SchemaMismatchError, match=f"app id '{APP_ID}', at its start: .*offset"):
        stream.sink().start(stream.rows(), checkpoint=str(stream.checkpoint))


def test_a_new_app_id_on_a_filled_table_is_warned_of(
    stream: FileStream, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says what the table holds and for whom; a query that continues its table gets none."""
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
    assert f"holds a up to {sizes['a']}, b up to {sizes['b']} for app id '{APP_ID}'" in warning


def slow(rows: DataFrame) -> DataFrame:
    """Return the rows, each after a while."""
    return rows.where(F.expr("length(java_method('java.lang.Thread', 'sleep', 60000L)) > 0"))


def test_a_query_stopped_in_mid_batch_ends_as_stopped(stream: FileStream) -> None:
    """Spark reads the interruption from the batch's error: a long text would overflow its stack."""
    stream.append(2)
    stream.run()
    stream.append(20)
    tracker = stream.spark.sparkContext.statusTracker()
    since: dict[int, float] = {}

    def hangs() -> bool:
        """Whether a job runs that does not end: it writes the slow rows."""
        now = time.monotonic()
        return any(now - since.setdefault(job, now) > 3 for job in tracker.getActiveJobsIds())

    query = stream.sink().start(slow(stream.rows()), checkpoint=str(stream.checkpoint))
    try:
        wait_until("a job of the batch", hangs, DEADLINE_S)
    finally:
        query.stop()
    assert query.status["message"] == "Stopped"
    assert query.exception() is None


PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
from gazette_spark.sink import DeltaSink
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
DeltaSink("orders", path=sys.argv[1] + "/table").start(
    spark.readStream.format("rate").load(), checkpoint=sys.argv[1] + "/checkpoint"
)
"""


@pytest.mark.soak
def test_a_session_without_delta_is_told_how_to_get_it(tmp_path: Path) -> None:
    """What most people meet first ends with one line that names both settings and the package."""
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_SESSION, str(tmp_path)],
        env={name: value for name, value in os.environ.items() if name != CLASS_PATH_VARIABLE},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert "OptionError: option 'spark': got a session without Delta Lake" in last
    assert "configure_spark_with_delta_pip" in last
