"""Starts the query whose batches a sink writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from gazette_spark._delta.files import clear_unfinished, has_files
from gazette_spark._ledger.query_checkpoint import offsets_directory
from gazette_spark.spark_versions import ADMISSION_CONTROL


def start_query(
    df: DataFrame,
    sink: Callable[[DataFrame, int], None],
    root: str,
    *,
    query_name: str | None,
    output_mode: str,
    trigger: Mapping[str, Any],
) -> StreamingQuery:
    """Start a query into a sink, with the query checkpoint in ``root``."""
    clear_unfinished(df.sparkSession, root)
    writer = df.writeStream.foreachBatch(sink).outputMode(output_mode)
    writer = writer.option("checkpointLocation", root)
    if query_name:
        writer = writer.queryName(query_name)
    if trigger:
        writer = writer.trigger(**trigger)
    # With these triggers, Spark 4.0 and 4.1 run only one batch, and a new query's first batch only records
    # its start. Therefore that batch is run first; otherwise the run would read nothing (decision 0033).
    once = bool(trigger.keys() & {"availableNow", "once"}) and not ADMISSION_CONTROL
    if once and not has_files(df.sparkSession, offsets_directory(root)):
        writer.start().awaitTermination()  # This batch records the start and reads nothing.
    return writer.start()
