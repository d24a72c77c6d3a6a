"""The queries of the conformance tests: journals to rows, by batch and by stream through a Delta table."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import gazette_spark
from gazette_spark import DeltaSink
from tests.rig.brokers import BrokerHandle

QUERY_TIMEOUT_S = 180
"""Maximum seconds for a query over a few megabytes on a busy machine."""


@dataclass(frozen=True)
class Reading:
    broker: BrokerHandle
    path: str
    """Journal, or prefix with a trailing slash."""
    schema: str = ""
    """DDL of JSON columns; empty for raw records."""
    max_bytes_per_trigger: int = 0

    def options(self) -> dict[str, str]:
        found = {"brokerAddress": self.broker.endpoint, "startingOffsets": "earliest"}
        return found | ({"format": "json", "mode": "FAILFAST"} if self.schema else {})

    def batch(self, spark: SparkSession) -> DataFrame:
        gazette_spark.register(spark)
        reader = spark.read.format("gazette").options(**self.options())
        return (reader.schema(self.schema) if self.schema else reader).load(self.path)

    def stream(self, spark: SparkSession) -> DataFrame:
        gazette_spark.register(spark)
        reader = spark.readStream.format("gazette").options(**self.options())
        if self.max_bytes_per_trigger:
            reader = reader.option("maxBytesPerTrigger", self.max_bytes_per_trigger)
        return (reader.schema(self.schema) if self.schema else reader).load(self.path)

    def write_available(self, spark: SparkSession, directory: Path) -> DataFrame:
        table, checkpoint = directory / "table", directory / "checkpoint"
        sink = DeltaSink("conformance", path=str(table), checkpoint=str(checkpoint))
        query = (
            self.stream(spark)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end in time"
        finally:
            query.stop()
        return spark.read.format("delta").load(str(table))


def sorted_rows(frame: DataFrame, *keys: str) -> pa.Table:
    """Return all rows in the order of ``keys``, as one chunk per column."""
    return frame.toArrow().sort_by([(key, "ascending") for key in keys]).combine_chunks()


def canonical_bytes(rows: pa.Table) -> bytes:
    """Return sorted rows as an Arrow file: equal bytes mean equal schema, rows and order."""
    plain = pa.Table.from_pydict(rows.to_pydict(), schema=rows.schema.remove_metadata())
    buffer = io.BytesIO()
    with pa.ipc.new_file(buffer, plain.schema) as writer:
        writer.write_table(plain)
    return buffer.getvalue()


def journal_bytes(rows: pa.Table, journal: str) -> bytes:
    """Concatenate raw rows to the journal's bytes; the rows must be contiguous."""
    content = io.BytesIO()
    for row in rows.to_pylist():
        if row["journal"] == journal:
            assert row["offset"] == content.tell(), f"gap or overlap at {row['offset']}"
            content.write(row["value"] + b"\n")
    return content.getvalue()


def sha256(content: bytes) -> str:
    """Return SHA-256 in hex, because two whole contents would be too long for an assertion's text."""
    return hashlib.sha256(content).hexdigest()
