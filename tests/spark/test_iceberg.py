"""Iceberg tables in Spark: each lane leaves the rows of the Delta table, also after a loss of state.

Crashes, rollbacks and second writers are tested without Spark, in ``tests/unit/iceberg``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import IcebergSink, ingest, ingest_batch
from gazette_spark._ledger.iceberg_reader import open_catalog
from gazette_spark.errors import OptionError
from tests.rig.iceberg import catalog_properties
from tests.spark.source_queries import QUERY_TIMEOUT_S
from tests.spark.test_delta_format import forget_commit
from tests.spark.test_ingest import EVENT, Lanes, append, journals, lanes

__all__ = ["journals", "lanes"]  # Fixtures of the direct lane's tests, because the tables must be equal.


class IcebergLanes:
    """The query of the direct lane's tests, writing to tables of a catalog."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.properties = catalog_properties(lanes.root / "iceberg")

    def sink(self, name: str, **options: Any) -> IcebergSink:
        return IcebergSink(
            "orders", table=f"shop.{name}", catalog="prod", properties=self.properties, **options
        )

    def ingest(self, name: str, **options: Any) -> Path:
        checkpoint = self.lanes.root / f"iceberg-{name}-checkpoint"
        sink = self.sink(name, **options)
        reader = sink.resume(self.lanes.reader(maxBytesPerTrigger=16000))
        query = ingest(reader, sink, checkpoint=str(checkpoint), availableNow=True)
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        return checkpoint

    def write(self, rows: DataFrame, name: str, **options: str) -> Path:
        checkpoint = self.lanes.root / f"iceberg-{name}-checkpoint"
        writer = rows.writeStream.format("gazette_iceberg").options(
            appId="orders",
            catalog="prod",
            table=f"shop.{name}",
            checkpointLocation=str(checkpoint),
            **options,
        )
        writer = writer.options(**{f"catalog.{key}": value for key, value in self.properties.items()})
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        return checkpoint

    def table(self, name: str) -> pa.Table:
        table = open_catalog("prod", self.properties).load_table(f"shop.{name}").scan().to_arrow()
        return table.sort_by([("_journal", "ascending"), ("_offset", "ascending")])

    def delta_rows(self, name: str) -> list[dict[str, Any]]:
        rows = self.lanes.spark.read.format("delta").load(str(self.lanes.root / name))
        return list(rows.orderBy("_journal", "_offset").toArrow().to_pylist())


def plain(row: dict[str, Any]) -> str:
    """Normalize a row to compare: columns by name, instants in UTC, maps as pairs, and equal NaNs."""
    return repr({name: _plain(value) for name, value in sorted(row.items())})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in sorted(value.items())}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if getattr(value, "tzinfo", None) is not None:
        return value.timestamp()
    return value


@pytest.fixture
def tables(lanes: Lanes) -> IcebergLanes:
    return IcebergLanes(lanes)


def test_both_lanes_fill_one_table(tables: IcebergLanes) -> None:
    checkpoint = tables.ingest("orders")
    forget_commit(checkpoint)
    append(tables.lanes.journals, 40, 50)
    tables.write(tables.lanes.reader().load(), "orders")
    assert sorted(tables.table("orders").column("id").to_pylist()) == [*range(50)]
    entry = tables.sink("orders").ledger()
    assert entry is not None
    assert [step.read_through for step in tables.sink("orders").commits()][-1] == entry.read_through


@pytest.mark.soak
def test_both_lanes_leave_the_rows_of_the_delta_table(tables: IcebergLanes) -> None:
    lanes = tables.lanes
    checkpoint = tables.ingest("orders", partition_by=["ok", "day(at)"])
    forget_commit(checkpoint)
    append(lanes.journals, 40, 60)
    tables.write(lanes.reader().load(), "orders", partitionBy="ok, days(at)")
    forget_commit(checkpoint)
    append(lanes.journals, 60, 66)
    tables.ingest("orders")
    lanes.run("delta", "direct")
    rows = tables.table("orders").to_pylist()
    assert [*map(plain, rows)] == [*map(plain, tables.delta_rows("delta"))]
    entry, delta_entry = tables.sink("orders").ledger(), lanes.sink("delta").ledger(lanes.spark)
    assert entry is not None
    assert delta_entry is not None
    assert entry.end == delta_entry.end


@pytest.mark.soak
def test_a_batch_fills_a_table_that_a_stream_continues(tables: IcebergLanes) -> None:
    lanes, sink = tables.lanes, tables.sink("filled", target_file_bytes=4000)
    options = {
        "brokerAddress": lanes.journals.broker.endpoint,
        "path": lanes.journals.prefix,
        "format": "json",
        "startingOffsets": "earliest",
    }
    assert ingest_batch(sink, options, schema=EVENT, bytes_per_commit=8000, spark=lanes.spark).written
    assert not ingest_batch(sink, options, schema=EVENT, spark=lanes.spark).written
    append(lanes.journals, 40, 50)
    tables.ingest("filled")
    assert sorted(tables.table("filled").column("id").to_pylist()) == [*range(50)]


@pytest.mark.soak
def test_a_query_that_lost_its_checkpoint_resumes(tables: IcebergLanes) -> None:
    checkpoint = tables.ingest("resumed")
    append(tables.lanes.journals, 40, 50)
    shutil.rmtree(checkpoint)
    tables.ingest("resumed")
    table = open_catalog("prod", tables.properties).load_table("shop.resumed")
    first = next(
        snapshot
        for snapshot in table.snapshots()
        if snapshot.summary and "added-records" in snapshot.summary.additional_properties
    )
    table.manage_snapshots().set_current_snapshot(snapshot_id=first.snapshot_id).commit()
    shutil.rmtree(checkpoint)
    tables.ingest("resumed")
    assert sorted(tables.table("resumed").column("id").to_pylist()) == [*range(50)]


def test_what_the_sink_does_not_do(spark: SparkSession, tmp_path: Path) -> None:
    sink = IcebergSink("orders", table="shop.orders", catalog="prod", properties=catalog_properties(tmp_path))
    rate = spark.readStream.format("rate").load()
    with pytest.raises(OptionError, match="gazette_iceberg"):
        sink.start(rate, checkpoint=str(tmp_path / "checkpoint"))
    with pytest.raises(OptionError, match="gazette_iceberg"):
        sink(rate, 0)  # As foreachBatch(sink) calls it.
    with pytest.raises(OptionError, match="properties of the catalog"):
        sink.for_files(spark, rate.schema, {"AWS_REGION": "x"})
    with pytest.raises(OptionError, match="namespace and name"):
        IcebergSink("orders", table="orders", catalog="prod")
