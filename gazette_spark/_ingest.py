"""The direct lane, in which the task that reads a journal's bytes also writes the Parquet file.

This lane is for pipelines without a transformation into Delta and Iceberg tables. Only the names of files go
through the JVM, and the driver commits them together with the ledger entry in one commit. For a Delta table,
the ledger is that of :class:`~gazette_spark.sink.DeltaSink`: both lanes decide, verify and fail in the same
way. A table may change lanes between two batches, and each lane fences the other.

``DeltaSink.start`` takes this lane automatically if possible. The functions here are for object stores, for
Spark Connect, for batches, and for users who prefer an error to the other lane.

A table that needs more from its writers than files of plain rows is refused at the start, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from gazette_spark._backfill import Backfilled, RangeSink, backfill
from gazette_spark._data_files.target import FILES_SCHEMA, FileTarget
from gazette_spark._delta.session import session_or_active
from gazette_spark._options.table import TARGET_OPTION

Sink = TypeVar("Sink", bound="FileSink")


class FileSink(RangeSink, Protocol):
    """A sink for files that tasks write: :class:`~gazette_spark.DeltaSink` or ``IcebergSink``."""

    def for_files(
        self,
        spark: SparkSession,
        rows: StructType,
        storage_options: Mapping[str, str] | None,
        checkpoint: str | None = None,
    ) -> tuple[Self, FileTarget]:
        """Return the sink of a run whose tasks write files, and their target.

        A query passes its checkpoint, which is empty if the sink has it.
        """
        ...

    def start(
        self,
        df: DataFrame,
        *,
        checkpoint: str | None = None,
        query_name: str | None = None,
        **trigger: Any,  # noqa: ANN401 - the types are Spark's
    ) -> StreamingQuery:
        """Start the query."""
        ...


def ingest(
    reader: DataStreamReader,
    sink: FileSink,
    *,
    checkpoint: str | None = None,
    query_name: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    **trigger: Any,  # noqa: ANN401 - the types are Spark's
) -> StreamingQuery:
    """Start a query that writes journals to a Delta or an Iceberg table, without rows in the JVM.

    Args:
        reader: ``spark.readStream.format("gazette")`` with its options and schema, not loaded.
        sink: The table's sink, a ``DeltaSink`` or an ``IcebergSink``. Rows are appended unchanged, so the
            options ``upsert``, ``dead_letters``, ``audit``, ``on_overlap="trim"`` and ``schema_evolution`` of
            a ``DeltaSink`` are refused.
        checkpoint: The query's checkpoint directory, unless the sink already has it.
        query_name: Name of the query in Spark's listings.
        storage_options: Options of ``deltalake`` with which tasks and driver access a Delta table's object
            store. A table in a directory needs none, and for an Iceberg table, the catalog's properties are
            used.
        spark: The session, if not the active one.
        trigger: As for ``DataStreamWriter.trigger``.

    Raises:
        OptionError: direct ingest does not support an option of the sink.
        SchemaMismatchError: the columns are not the table's.
        TableRefusedError: the table needs more from its writers than files of plain rows.
    """
    file_rows, file_sink = load_files(
        reader, sink, checkpoint=checkpoint or "", storage_options=storage_options, spark=spark
    )
    return file_sink.start(file_rows, checkpoint=checkpoint, query_name=query_name, **trigger)


def load_files(
    reader: DataStreamReader,
    sink: Sink,
    *,
    checkpoint: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> tuple[DataFrame, Sink]:
    """Return the stream whose tasks write data files, and the sink that commits the files.

    Pass the sink to ``foreachBatch``. The arguments and errors are those of :func:`ingest`. The table is
    created if it does not exist.
    """
    session = session_or_active(spark)
    # These are the columns of the journals' rows. With the target, tasks return rows that name files instead.
    schema = reader.load().schema
    file_sink, target = sink.for_files(session, schema, storage_options, checkpoint)
    try:
        return reader.option(TARGET_OPTION, target.to_json()).schema(FILES_SCHEMA).load(), file_sink
    finally:
        # Spark's readers are changed in place, and the caller may load this one again, for another query.
        reader.option(TARGET_OPTION, "").schema(schema)


def ingest_batch(
    sink: FileSink,
    options: Mapping[str, str],
    *,
    schema: str | StructType | None = None,
    bytes_per_commit: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> Backfilled:
    """Fill a table as :func:`gazette_spark.backfill` does, with data files that the tasks write.

    Args:
        sink: As for :func:`ingest`.
        options: Options of ``spark.read.format("gazette")``.
        schema: As for ``DataFrameReader.schema``.
        bytes_per_commit: Number of bytes of each step over all journals; by default, one commit for
            everything.
        storage_options: As for :func:`ingest`.
        spark: The session, if not the active one.

    Raises:
        OptionError: as for :func:`ingest` and :func:`~gazette_spark.backfill`.
        SchemaMismatchError: the columns are not the table's.
        SinkError: the table cannot be continued, or does not accept files; nothing was written.
    """
    session = session_or_active(spark)
    reader = session.read.format("gazette").options(**options)
    # A schema that is inferred from a sample is fixed here, for the target and for all steps.
    read = (reader if schema is None else reader.schema(schema)).load().schema
    file_sink, target = sink.for_files(session, read, storage_options)
    return backfill(
        file_sink,
        {**options, TARGET_OPTION: target.to_json()},
        schema=FILES_SCHEMA,
        bytes_per_commit=bytes_per_commit,
        spark=session,
    )
