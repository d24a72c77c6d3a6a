"""Starts the query whose batches a sink takes."""

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
    """Start a query into a sink.

    Args:
        df: The stream.
        sink: Takes the batches.
        root: The query checkpoint.
        query_name: Name of the query in Spark's listings.
        output_mode: Spark's output mode.
        trigger: As for ``DataStreamWriter.trigger``.
    """
    clear_unfinished(df.sparkSession, root)
    writer = df.writeStream.foreachBatch(sink).outputMode(output_mode)
    writer = writer.option("checkpointLocation", root)
    if query_name:
        writer = writer.queryName(query_name)
    if trigger:
        writer = writer.trigger(**trigger)
    # Spark 4.0 and 4.1 run one batch under these triggers, and a new query's first batch only records its
    # start. So that batch is run before, or the run would read nothing (decision 0033).
    once = bool(trigger.keys() & {"availableNow", "once"}) and not ADMISSION_CONTROL
    if once and not has_files(df.sparkSession, offsets_directory(root)):
        writer.start().awaitTermination()  # It is one batch, which records the start and reads nothing.
    return writer.start()
