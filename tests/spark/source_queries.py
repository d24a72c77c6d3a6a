"""Shared helpers of the source's tests: journals with records, queries that end, and deadlines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from gazette_spark import Client
from gazette_spark.client import journal_spec
from tests.rig.brokers import BrokerHandle

BOTH_BROKERS = pytest.mark.parametrize(
    "broker",
    ["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)],
    indirect=True,
)
"""Mark of a test that runs on the real broker in every run, not only in soak."""

QUERY_TIMEOUT_S = 120
"""Maximum seconds for a query over a few kilobytes on a busy machine."""


@dataclass(frozen=True)
class Journals:
    """The journals of one test, under a unique prefix, and DataFrames over them."""

    spark: SparkSession
    broker: BrokerHandle
    client: Client
    prefix: str

    def name(self, short: str) -> str:
        return self.prefix + short

    def create(self, *shorts: str, **spec: Any) -> None:
        self.client.create_journals(*(journal_spec(self.name(short), **spec) for short in shorts))

    def append(self, short: str, content: bytes) -> int:
        return self.client.append(self.name(short), content).begin

    def batch(self, short: str = "", *, schema: str | None = None, **options: Any) -> DataFrame:
        return self._load(self.spark.read, short, schema, options)

    def stream(self, short: str = "", *, schema: str | None = None, **options: Any) -> DataFrame:
        """Return a streaming DataFrame over a journal, or over the prefix, from the earliest offset."""
        start = {} if "startingTimestamp" in options else {"startingOffsets": "earliest"}
        return self._load(self.spark.readStream, short, schema, start | options)

    def _load(self, reader: Any, short: str, schema: str | None, options: dict[str, Any]) -> DataFrame:
        reader = reader.format("gazette").options(brokerAddress=self.broker.endpoint, **options)
        if schema:
            reader = reader.schema(schema)
        if options.keys() & {"journals", "journalsPattern", "selector"}:
            return reader.load()  # type: ignore[no-any-return]  # The reader is of a classic or of a Connect session.
        return reader.load(self.name(short))  # type: ignore[no-any-return]  # The reader is of a classic or of a Connect session.


def run_available(
    frame: DataFrame, checkpoint: Path, on_batch: Callable[[DataFrame, int], None] | None = None
) -> dict[int, list[Row]]:
    """Run a stream over the current contents; return the rows of each batch, by batch id.

    Raises:
        StreamingQueryException: the query failed.
    """
    batches: dict[int, list[Row]] = {}

    def take(batch: DataFrame, batch_id: int) -> None:
        batches[batch_id] = batch.collect()
        if on_batch is not None:
            on_batch(batch, batch_id)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end in time"
    finally:
        query.stop()
    return batches


def rows_of(batches: dict[int, list[Row]]) -> list[Row]:
    return [row for batch_id in sorted(batches) for row in batches[batch_id]]


def records(content: bytes, begin: int = 0) -> list[tuple[int, bytes]]:
    """Return offset and value of each complete record in journal bytes, as a simple reference."""
    found, at = [], begin
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n"):
            found.append((at, line[:-1]))
        at += len(line)
    return found


def raw(rows: Iterable[Row], journal: str | None = None) -> list[tuple[int, bytes]]:
    """Return offset and value of raw rows in order, optionally of one journal."""
    return sorted((row.offset, bytes(row.value)) for row in rows if journal in (None, row.journal))
