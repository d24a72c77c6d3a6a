"""Spark, deltalake and the commands find the same table, whatever its directory is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from gazette_spark import DeltaSink, ingest, verify_table
from gazette_spark._verify.data_ends import DeltaRows
from gazette_spark.cli.main import main
from gazette_spark.errors import InputError, TableRefusedError
from gazette_spark.lag import (
    CheckpointFeed,
    Evaluator,
    History,
    HistoryOptions,
    Monitor,
    TableFeed,
    Thresholds,
)
from gazette_spark.locations import misread_by_deltalake
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream

ODD = "a b#c?d+e%f'g\"h`i é日;&,[x]{y}*=~|<z>^ %"
"""Characters with a special meaning in URLs, patterns, SQL or partition names."""


class NamedStream(FileStream):
    """A stream whose table, query checkpoint and parent directory have a given name."""

    def __init__(self, spark: SparkSession, root: Path, name: str) -> None:
        (root / name).mkdir(parents=True)
        super().__init__(spark, root / name)
        self.table = root / name / name
        self.checkpoint = root / name / f"{name} checkpoint"

    def run_direct(self, sink: DeltaSink) -> None:
        reader = self.spark.readStream.format("file_journals").option("root", str(self.journals))
        query = ingest(reader, sink, checkpoint=str(self.checkpoint), availableNow=True)
        assert query.awaitTermination(DEADLINE_S)


# In every run, a crash schedule has its table in day%201.
@pytest.mark.parametrize("name", [ODD, pytest.param("day%201", marks=pytest.mark.soak)])
def test_every_part_finds_the_table(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Covers both lanes, by path and by catalog name; resume, commits, lag, ``offsets show`` and verify.

    The table at the unquoted name must get no commit.
    """
    stream = NamedStream(spark, tmp_path, name)
    other = misread_by_deltalake(str(stream.table))
    neighbour = Path(other) if other else stream.table.parent / "neighbour"
    spark.range(1).write.format("delta").save(str(neighbour))
    stream.append(6)
    stream.run()
    stream.append(4)
    if other:
        with pytest.raises(TableRefusedError, match=r"deltalake would read .*day 1\..*DeltaSink\.start"):
            stream.run_direct(stream.sink())
        stream.lose_checkpoint()
        stream.run(resumeOffsets=stream.sink().resume_offsets(spark))
    else:
        quoted = str(stream.table).replace("\\", "\\\\").replace("'", "\\'")
        spark.sql(f"CREATE TABLE named USING delta LOCATION '{quoted}'")
        try:
            stream.run_direct(DeltaSink(APP_ID, table="named"))
        finally:
            spark.sql("DROP TABLE named")
    stream.assert_exact()
    assert len(list((neighbour / "_delta_log").glob("*.json"))) == 1

    entry = stream.sink().ledger(spark)
    assert entry is not None
    assert stream.sink().commits(spark)[-1].read_through == entry.read_through
    for location in (str(stream.table), f"file:{stream.table}", f"file://{stream.table}"):
        shown = CliRunner().invoke(main, ["offsets", "show", location, "--format", "json"])
        (found,) = json.loads(shown.stdout)
        assert found["app_id"] == APP_ID
        assert found["batch_id"] == entry.batch_id
    assert verify_table(spark, stream.sink().table, None, {}).result != "different"
    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    CheckpointFeed(f"file:{stream.checkpoint}", "checkpoint").poll(monitor, 10**12)
    TableFeed(f"file:{stream.table}", "table").poll(monitor, 10**12)
    assert monitor.last_order("table") == stream.sink().commits(spark)[-1].order
    if other:
        with pytest.raises(InputError, match="deltalake would read"):
            DeltaRows(str(stream.table))
    else:
        assert {rows for _, rows, *_ in DeltaRows(f"file:{stream.table}").last_rows()} == {
            len(stream.truth()["a"].splitlines())
        }
    assert monitor.last_order("checkpoint") == entry.batch_id
