"""Checks a table for the direct lane, in which tasks write its files and the driver commits their names.

A table that needs more from its writers than files of plain rows is refused, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from gazette_spark._data_files.target import (
    DEFAULT_FILE_BYTES,
    DEFAULT_INDEXED_LEAVES,
    FILES_SCHEMA,
    FileTarget,
)
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.file_commits import OTHER_WAY, FileCommits
from gazette_spark._delta.files import has_files
from gazette_spark._delta.preflight import bare_stream
from gazette_spark._delta.row_steps import TableLayout
from gazette_spark._delta.schema_fit import Unfit, bare, fit
from gazette_spark._ledger.query_checkpoint import missing_table
from gazette_spark._options.table import TARGET_OPTION
from gazette_spark.errors import OptionError, SchemaMismatchError, TableRefusedError
from gazette_spark.locations import local_path

if TYPE_CHECKING:
    from deltalake import DeltaTable as Snapshot

PARTITION_TYPES = (BooleanType, ByteType, DateType, IntegerType, LongType, ShortType, StringType)
"""Types of partition columns: each value has exactly one text, so equal values share a partition."""

INDEXED_PROPERTY = "delta.dataSkippingNumIndexedCols"


@dataclass(frozen=True, slots=True)
class FittedRows:
    """Columns of rows as their table stores them."""

    written: StructType
    """The rows' columns in their order, with the table's names and types."""
    not_null: tuple[str, ...]
    """Columns of the table that are NOT NULL."""


def file_stream(
    df: DataFrame, table: DeltaTable, layout: TableLayout, app_id: str, checkpoint: str
) -> tuple[DataFrame, FileCommits]:
    """Return a stream whose tasks write another stream's rows as files, and the committer of the files.

    Args:
        df: The stream of journals, as ``load()`` returns it, without transformations.
        table: The table, which is created if it does not exist.
        layout: How it is made.
        app_id: For errors.
        checkpoint: The query's checkpoint directory.

    Raises:
        OptionError: the stream has transformations or is not of journals, or the table is in an object store,
            for which there are no credentials.
        SchemaMismatchError: the columns are not the table's.
        TableRefusedError: the table needs more from its writers than files of plain rows, or is missing
            although the query has written to it.
    """
    # The same tasks read journals and write files, so there is no place for a transformation in between. The
    # plan shows whether the query has one.
    options = bare_stream(df)
    if options is None:
        expected = "the rows of a stream of journals as load() returns them"
        raise OptionError("lane", "direct, of a stream with transformations or of another source", expected)
    spark = df.sparkSession
    files, target = prepare_files(spark, table, layout, df.schema, None, app_id=app_id, checkpoint=checkpoint)
    reader = spark.readStream.format("gazette").options(**options | {TARGET_OPTION: target.to_json()})
    return reader.schema(FILES_SCHEMA).load(), files


def prepare_files(
    spark: SparkSession,
    table: DeltaTable,
    layout: TableLayout,
    schema: StructType,
    storage_options: Mapping[str, str] | None,
    *,
    app_id: str,
    checkpoint: str | None,
) -> tuple[FileCommits, FileTarget]:
    """Create the table if it does not exist, compare its columns, and return where tasks write.

    Args:
        spark: The session.
        table: The table.
        layout: How it is made.
        schema: Columns of the rows.
        storage_options: Options of ``deltalake`` for the table's object store. If None, the table has to be
            in a directory.
        app_id: For errors.
        checkpoint: The query's checkpoint directory, if there is a query.

    Raises:
        OptionError: the table is in an object store, but there are no ``storage_options``.
        SchemaMismatchError: the columns are not the table's.
        TableRefusedError: the table needs more from its writers than files of plain rows, or is missing
            although the query has written to it.
    """
    # The table has to exist before the query starts, because the files have its columns and the commit
    # compares its id. But an empty table would be in the way of one that was moved or renamed.
    detail = table.check(spark, None)
    if detail is None and checkpoint is not None and has_files(spark, f"{checkpoint}/commits"):
        raise missing_table(table.name, checkpoint)
    detail = detail or layout.make(spark, table, schema)
    # This check comes before any request to the store: without credentials, deltalake searches for some,
    # which takes a long time.
    if storage_options is None and local_path(detail.location) is None:
        expected = "ingest() with storage_options, or a table in a directory"
        raise OptionError("lane", f"direct, into the object store of {table.name}", expected)
    files = FileCommits(table.name, detail.location, detail.table_id, storage_options or {})
    # Open the table once now, so that a table that does not accept files is refused before a task has written
    # one.
    snapshot = files.open(table.current_location(spark))
    return files, file_target(files, snapshot, schema, app_id=app_id, file_bytes=layout.target_file_bytes)


def fitted_rows(
    table: str, app_id: str, schema: StructType, table_schema: StructType, partition_by: Sequence[str]
) -> FittedRows:
    """Compare the columns of rows with those of the table to which tasks write them.

    Raises:
        SchemaMismatchError: the columns are not the table's.
        TableRefusedError: tasks would have to convert nested columns, or values of partitions, or the rows
            have no column that is stored in files.
    """
    fitted = fit(table, schema, table_schema, add=False)
    if isinstance(fitted, Unfit):
        raise SchemaMismatchError(table, app_id, None, fitted.problems)
    written = fitted.schema
    for source_field, table_field in zip(schema.fields, written.fields, strict=True):
        source_type, table_type = source_field.dataType, table_field.dataType
        # Releases of Arrow differ in whether they cast structs by position or by name (decision 0032).
        is_nested = isinstance(bare(table_type), StructType) or "<" in table_type.simpleString()
        if is_nested and bare(source_type) != bare(table_type):
            problem = (
                f"column {source_field.name} is {table_type.simpleString()} in the table and "
                f"{source_type.simpleString()} in the query: the direct lane cannot convert nested columns"
            )
            raise TableRefusedError(table, f"{problem}. {OTHER_WAY}")
    # Files do not have the columns by which the table is partitioned. Without any other column, a file has no
    # rows, and the rows would be lost.
    if not {*written.names} - {*partition_by}:
        problem = (
            f"it is partitioned by each column of the rows ({', '.join(written.names)}), so their files "
            "would have no column. Partition it by fewer columns, or give the rows another one"
        )
        raise TableRefusedError(table, problem)
    kinds = {column.name: column.dataType for column in table_schema.fields}
    for name in partition_by:
        if not isinstance(kinds[name], PARTITION_TYPES):
            problem = (
                f"it is partitioned by {name} {kinds[name].simpleString()}, which this lane does not support"
            )
            raise TableRefusedError(table, f"{problem}. {OTHER_WAY}")
    return FittedRows(written, tuple(column.name for column in table_schema.fields if not column.nullable))


def file_target(
    files: FileCommits, snapshot: Snapshot, schema: StructType, *, app_id: str, file_bytes: int | None
) -> FileTarget:
    """Return where and how tasks write the rows of a schema.

    Args:
        files: The committer of the files.
        snapshot: The snapshot that it has opened.
        schema: Columns of the rows.
        app_id: For errors.
        file_bytes: Size at which a task starts another file; None for the default.

    Raises:
        SchemaMismatchError: as for :func:`fitted_rows`.
        TableRefusedError: as for :func:`fitted_rows`.
    """
    # Columns and partitions are those with which each commit compares the table. If they were read
    # separately, the table could be replaced in between, and files for other partitions would be committed.
    metadata = snapshot.metadata()
    table_schema = StructType.fromJson(json.loads(snapshot.schema().to_json()))
    fitted = fitted_rows(files.table, app_id, schema, table_schema, metadata.partition_columns)
    return FileTarget(
        files.table,
        files.location,
        json.dumps(schema.jsonValue()),
        json.dumps(fitted.written.jsonValue()),
        partition_by=tuple(metadata.partition_columns),
        not_null=fitted.not_null,
        file_bytes=file_bytes or DEFAULT_FILE_BYTES,
        indexed_leaves=int(metadata.configuration.get(INDEXED_PROPERTY) or DEFAULT_INDEXED_LEAVES),
        storage_options=files.storage_options,
    )
