"""Tables whose commits go through a catalog, with Delta's in-memory coordinator in place of Unity Catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from gazette_spark import DeltaSink, ingest, verify_table
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._ledger.delta_reader import DeltaLog, open_table
from gazette_spark.cli.main import main
from gazette_spark.errors import InputError, TableRefusedError
from gazette_spark.failpoints import FailpointError, calling
from tests.spark.conftest import APP_ID, FileStream

pytestmark = pytest.mark.soak

PUBLISHED_EVERY = 3
"""Interval, in versions, at which the coordinator copies commits into the log."""


@pytest.fixture
def managed(spark: SparkSession) -> Iterator[Path]:
    jvm = spark._jvm
    assert jvm is not None
    commits = jvm.org.apache.spark.sql.delta.coordinatedcommits
    if not commits.CatalogOwnedCommitCoordinatorProvider.getBuilder("spark_catalog").isDefined():
        builder = commits.InMemoryCommitCoordinatorBuilder(PUBLISHED_EVERY)
        commits.CatalogOwnedCommitCoordinatorProvider.registerBuilder("spark_catalog", builder)
    feature = "'delta.feature.catalogManaged' = 'supported'"
    # Outside Unity Catalog, Delta creates such tables only in its own tests.
    jvm.System.setProperty("spark.testing", "true")
    try:
        columns = "journal STRING, offset BIGINT, value BINARY"
        spark.sql(f"CREATE TABLE managed ({columns}) USING delta TBLPROPERTIES ({feature})")
    finally:
        jvm.System.clearProperty("spark.testing")
    location = spark.sql("DESCRIBE DETAIL managed").collect()[0].location
    yield Path(location.removeprefix("file:"))
    spark.sql("DROP TABLE managed")


def test_the_sink_writes_once_through_the_catalog(
    stream: FileStream, spark: SparkSession, managed: Path
) -> None:
    def die() -> None:
        raise FailpointError("sink.after_write")

    sink = DeltaSink(APP_ID, table="managed")
    for records in (6, 5, 4):
        stream.append(records)
        stream.run(sink, maxBytesPerTrigger=60)
    stream.append(3)
    with (
        calling("sink.after_write", die),
        pytest.raises(StreamingQueryException, match=r"sink.after_write"),
    ):
        stream.run(DeltaSink(APP_ID, table="managed"))
    stream.append(2)
    stream.run(DeltaSink(APP_ID, table="managed"))

    rows = {(row.journal, row.offset) for row in spark.table("managed").collect()}
    expected = {
        (journal, sum(map(len, lines[:index])))
        for journal, content in stream.truth().items()
        for lines in [content.splitlines(keepends=True)]
        for index in range(len(lines))
    }
    assert rows == expected
    assert spark.table("managed").count() == len(expected) == 20
    entry = sink.ledger(spark)
    assert entry is not None
    assert entry.read_through == {name: len(content) for name, content in stream.truth().items()}
    report = verify_table(spark, DeltaTable(path=None, table="managed"), None, {})
    assert report.difference is None

    # A reader of the directory sees the last published version, and says so.
    newest = max(int(path.name[:20]) for path in (managed / "_delta_log").rglob("*.json"))
    assert report.table_version == newest
    published = DeltaLog(str(managed)).rows(1)[0].version
    shown = CliRunner().invoke(main, ["offsets", "show", str(managed)])
    assert f"{managed} is catalog-managed: commits that its catalog has not published" in shown.stderr
    assert f" {published} " in shown.stdout
    with pytest.raises(InputError, match=r"catalog-managed: only Spark can read it, by its name"):
        open_table(str(managed))

    reader = spark.readStream.format("file_journals").option("root", str(stream.journals))
    with pytest.raises(TableRefusedError, match=r"managed: its catalog decides .*lane='spark'"):
        ingest(reader, sink, checkpoint=str(stream.checkpoint), availableNow=True)
