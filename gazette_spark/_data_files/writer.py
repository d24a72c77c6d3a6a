"""Writes a task's rows as data files of a Delta or an Iceberg table.

Each attempt of a task writes files with unique names, and reports a file only when it is complete. No commit
refers to files of attempts that Spark discards. VACUUM, or Iceberg's remove_orphan_files, deletes such files.
"""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pyspark

from gazette_spark._data_files.iceberg_files import (
    directories,
    file_schema,
    footer_text,
    iceberg_partitioned,
    open_store,
)
from gazette_spark._data_files.statistics import file_statistics, leaves
from gazette_spark._data_files.target import FILES_SCHEMA, FileTarget, IcebergLayout
from gazette_spark._formats.arrays import int64_array, text_array, text_scalar, valid_texts
from gazette_spark._frames import deltalake_text
from gazette_spark.errors import DataFileError, MissingModuleError, TableRefusedError
from gazette_spark.spark_versions import arrow_schema

ROW_GROUP_BYTES = 64 << 20
"""Number of Arrow bytes in a row group."""

WAITING_BYTES = 256 << 20
"""Maximum number of Arrow bytes that wait for their row groups, in all open files. Above it, the largest
group is written."""

OPEN_FILES = 64
"""Maximum number of open files of a task, each for one partition of the table. Above it, the oldest one is
finished."""

GATHERED_BYTES = 1 << 16
"""Number of Arrow bytes for which partitions are determined together."""

LEAST_SAMPLE, MOST_SAMPLE = 1000, 4096
"""Minimum and maximum number of values that show whether a column's values repeat."""

UNIQUE_SHARE = 0.99
"""Share of distinct values in this sample above which no dictionary is written. The file has 50 times as many
values as the sample."""

SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~ @,;!$&()+")
"""Characters that are not escaped in the name of a partition's directory."""

READABLE_DAYS = range(-96465292, 95026237)
"""Days since 1970 whose text ``deltalake`` can read."""

LAST_PLAIN_YEAR = 9999
"""Last year that ISO 8601 writes without a sign."""

LONGEST_NAME = 255
"""Maximum number of bytes in the name of a directory, in most file systems."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class _DataFile:
    """A data file of one partition. It is opened when its first row group is written."""

    def __init__(
        self,
        where: pa_fs.FileSystem,
        root: str,
        path: str,
        schema: pa.Schema,
        iceberg: IcebergLayout | None,
    ) -> None:
        self.path = path
        self._iceberg = iceberg
        self._where = where
        self._full = posixpath.join(root, path)
        self._schema = schema
        self._out: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[pq.FileMetaData] = []
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._with_nan: set[str] = set()
        self._floats = [field.name for field in schema if pa.types.is_floating(field.type)]

    @property
    def is_open(self) -> bool:
        """Whether a row group has been written."""
        return self._out is not None

    @property
    def size(self) -> int:
        """Number of bytes written so far, without the rows that wait for a row group."""
        return 0 if self._out is None else int(self._out.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        """Keep rows for the next row group."""
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes

    def flush(self) -> None:
        """Write the waiting rows as a row group."""
        if not self._waiting:
            return
        # Many batches become one row group, because readers would be slower with one group for each batch.
        rows = pa.Table.from_batches(self._waiting, schema=self._schema)
        self._waiting, self.waiting_bytes = [], 0
        for name in self._floats:
            for chunk in rows.column(name).chunks if name not in self._with_nan else ():
                # A NaN that is hidden by a null may count.
                if (buffer := chunk.buffers()[1]) is not None:
                    values = np.frombuffer(buffer, f"f{chunk.type.bit_width // 8}")
                    if np.isnan(values[chunk.offset : chunk.offset + len(chunk)]).any():
                        self._with_nan.add(name)
                        break
        writer = self._writer or self._open(rows)
        writer.write_table(rows, row_group_size=rows.num_rows)

    def _open(self, first: pa.Table) -> pq.ParquetWriter:
        # Object stores have no directories.
        if isinstance(self._where, pa_fs.LocalFileSystem):
            self._where.create_dir(posixpath.dirname(self._full), recursive=True)
        self._out = self._where.open_output_stream(self._full)
        # Parquet abandons a dictionary that reaches a megabyte, but looks up each value until then, which
        # takes a fifth of the write's CPU time for the columns of `format=raw`. A column whose first values
        # are all different would end there, so it is written without a dictionary.
        sample = first.slice(0, MOST_SAMPLE).combine_chunks().to_batches()[0]
        repeated = []
        for leaf in leaves(first.schema):
            if leaf.path == ("value",) and leaf.type == pa.binary():
                continue  # Records hardly ever repeat, however few there are.
            if not (leaf.repeated or sample.num_rows < LEAST_SAMPLE or pa.types.is_boolean(leaf.type)):
                column = sample.column(leaf.path[0])
                for name in leaf.path[1:]:
                    column = column.field(name)
                if pa.types.is_temporal(leaf.type):
                    column = column.view(pa.int64() if leaf.type.bit_width == 64 else pa.int32())
                elif pa.types.is_string(leaf.type):
                    column = column.view(pa.binary())  # Spark's strings may have bytes that are not UTF-8.
                # Do not use Arrow's compute functions, a tenth of what a worker of format=raw loads.
                values = [value for value in column.to_pylist() if value is not None]
                if len(values) >= LEAST_SAMPLE and len(set(values)) > UNIQUE_SHARE * len(values):
                    continue
            repeated.append(leaf.stored)
        self._writer = pq.ParquetWriter(
            self._out,
            self._schema,
            compression="zstd",
            use_dictionary=repeated or False,
            metadata_collector=self._metadata,
            store_schema=False,
            store_decimal_as_integer=self._iceberg is not None,  # Iceberg's specification requires this.
        )
        return self._writer

    def close(self, indexed_leaves: int) -> dict[str, Any]:
        """Finish the file and return the row that describes it."""
        self.flush()
        assert self._writer is not None
        assert self._out is not None
        # Otherwise a setting of Spark's readers decides about dates before 1582 and times before 1900: it may
        # refuse them, as by default before Spark 4, or take them for those of the Julian calendar.
        self._writer.add_key_value_metadata({"org.apache.spark.version": pyspark.__version__})
        self._writer.close()
        # The footer is written now, and the size is not available after the stream is closed.
        size = self.size
        self._out.close()
        metadata = self._metadata[0]
        if self._iceberg is None:
            stats = file_statistics(
                metadata, self._schema, indexed_leaves=indexed_leaves, with_nan=self._with_nan
            )
        else:
            stats = footer_text(metadata)
        return {
            "path": self.path,
            "size": size,
            "rows": metadata.num_rows,
            "stats": stats,
            "modification_ms": int(time.time() * 1000),
        }

    def abort(self) -> None:
        """Delete the file if possible."""
        if self._out is None:
            return
        ends = [self._out.close, lambda: self._where.delete_file(self._full)]
        # Try each step separately, because what failed before may fail again. A file that remains is
        # harmless, because no commit refers to it.
        for end in ends if self._writer is None else [self._writer.close, *ends]:
            with suppress(Exception):
                end()


class _TaskFiles:
    """The data files of a task, one for each partition of the table among its rows."""

    def __init__(self, target: FileTarget) -> None:
        self._target = target
        self._where, self._root = filesystem(target)
        if target.iceberg is None:
            columns = arrow_schema(target.columns_written)
            self._stored = pa.schema([column for column in columns if column.name not in target.partition_by])
        else:
            self._stored = file_schema(target.iceberg)
        self._files: dict[tuple[str | None, ...], _DataFile] = {}
        self.written_files: list[dict[str, Any]] = []
        """One row for each complete file, with the columns of ``FILES_SCHEMA``."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows to the files of their partitions, and write row groups that are large enough."""
        for key, part in partitioned(rows, self._target):
            if key not in self._files:
                # Each attempt uses unique names, because Spark may run a task twice, even concurrently, and
                # neither may write into the other's file.
                name = f"part-{uuid.uuid4()}.zstd.parquet"
                # Readers get a partition's values from the log, so two partitions may share a directory.
                if key and self._target.iceberg is not None:
                    parents = directories(self._target.table, self._target.iceberg, key).split("/")
                else:
                    parents = [
                        f"{_escaped(column)}={NULL_PARTITION if value is None else _escaped(value)}"
                        for column, value in zip(self._target.partition_by, key, strict=True)
                    ]
                path = posixpath.join(*(parent[:LONGEST_NAME] for parent in parents), name)
                self._files[key] = _DataFile(
                    self._where, self._root, path, self._stored, self._target.iceberg
                )
            self._files[key].add(part.select(self._stored.names))
            if self._files[key].waiting_bytes >= ROW_GROUP_BYTES:
                self._flush(key)
        # Many partitions may each have less than a row group. Write the largest one first, so that the fewest
        # groups end early.
        while sum(file.waiting_bytes for file in self._files.values()) > WAITING_BYTES:
            self._flush(max(self._files, key=lambda key: self._files[key].waiting_bytes))

    def _flush(self, key: tuple[str | None, ...]) -> None:
        """Write a file's row group, and finish the file if it is large enough."""
        # Each open file has a buffer and a descriptor, so at the limit finish the oldest one first.
        if not self._files[key].is_open:
            opened = [open_key for open_key, file in self._files.items() if file.is_open]
            if len(opened) >= OPEN_FILES:
                self._finish(opened[0])
        self._files[key].flush()
        if self._files[key].size >= self._target.file_bytes:
            self._finish(key)

    def _finish(self, key: tuple[str | None, ...]) -> None:
        # Report the file only now that it is complete, because the driver commits everything that a task
        # reports.
        row = self._files[key].close(self._target.indexed_leaves)
        del self._files[key]
        self.written_files.append(
            row | {"partition_values": dict(zip(self._target.partition_by, key, strict=True))}
        )

    def finish(self) -> None:
        """Finish all files."""
        for key in list(self._files):
            self._finish(key)

    def abort(self) -> None:
        """Delete the incomplete files."""
        for file in self._files.values():
            file.abort()


def write_files(
    pieces: Iterable[tuple[str, Iterable[pa.RecordBatch]]], target: FileTarget
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task to data files, and yield their descriptions; see :func:`written_files`."""
    if rows := written_files(pieces, target):
        yield file_batch(rows)


def written_files(
    pieces: Iterable[tuple[str, Iterable[pa.RecordBatch]]], target: FileTarget
) -> list[dict[str, Any]]:
    """Write the rows of a task to data files, and return a row of ``FILES_SCHEMA`` for each file.

    The task writes one file for each table partition among its rows, regardless of the number of pieces, and
    starts another file when one reaches the target's ``file_bytes``.

    Args:
        pieces: For each piece, its origin as errors name it, and its rows with the target's ``read_schema``.
        target: The table.

    Raises:
        TableRefusedError: a row has a null in a NOT NULL column, or a partition value that ``deltalake``
            cannot read.
        DataFileError: a file cannot be written to the table's directory or object store.
    """
    columns = arrow_schema(target.columns_written)
    # This is a generator, so that a task's memory is bounded by the waiting row groups and not by the piece.
    batches = (shaped(rows, columns, target, origin) for origin, piece in pieces for rows in piece)
    with _named_errors(target):
        files = _TaskFiles(target)
    try:
        # A piece may have a single record. Determining the partitions of so few rows, and keeping each batch
        # in arrays until its row group is written, takes far more time and memory than the rows themselves.
        for rows in _gathered(batches):
            with _named_errors(
                target
            ):  # This is not around the loop, because reading the rows raises other errors.
                files.add(rows)
        with _named_errors(target):
            files.finish()
    # This includes interrupts, because Spark kills tasks that it no longer needs.
    except BaseException:
        files.abort()
        raise
    return files.written_files


@contextmanager
def _named_errors(target: FileTarget) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataFileError(target.table, target.location, deltalake_text(error)) from error


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of at least :data:`GATHERED_BYTES`, except for the last one."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= GATHERED_BYTES:
            yield from _joined(waiting)
            waiting, waiting_bytes = [], 0
    yield from _joined(waiting)


def _joined(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()


def file_batch(written_files: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return the rows as a record batch with the columns of ``FILES_SCHEMA``."""
    # Do not use pa.array(), which imports pandas if it is installed.
    schema = arrow_schema(FILES_SCHEMA)
    columns: list[pa.Array] = []
    for field in schema:
        values = [row[field.name] for row in written_files]
        if pa.types.is_map(field.type):
            pairs = [pair for value in values for pair in value.items()]
            ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
            bounds = pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])
            keys, items = (text_array([pair[at] for pair in pairs]) for at in (0, 1))
            columns.append(pa.MapArray.from_arrays(bounds, keys, items))
        elif pa.types.is_string(field.type):
            columns.append(text_array(values))
        else:
            columns.append(int64_array(np.array(values, np.int64)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def filesystem(target: FileTarget) -> tuple[pa_fs.FileSystem, str]:
    """Return the file system of a table, and the table's root in it.

    Raises:
        MissingModuleError: tasks need ``deltalake`` or ``pyiceberg`` for a table in an object store.
    """
    if target.is_local:
        return pa_fs.LocalFileSystem(), target.location
    if target.iceberg is not None:
        return open_store(target.location, target.iceberg.store.properties)
    return object_store(target.location, target.storage_options), ""


def object_store(url: str, storage_options: Mapping[str, str]) -> pa_fs.FileSystem:
    """Return ``deltalake``'s file system for the objects below a URL.

    Raises:
        MissingModuleError: this Python lacks ``deltalake``.
    """
    try:
        from deltalake.fs import DeltaStorageHandler
    except ModuleNotFoundError:
        raise MissingModuleError("deltalake") from None
    return pa_fs.PyFileSystem(DeltaStorageHandler(url, dict(storage_options)))


def shaped(batch: pa.RecordBatch, written: pa.Schema, target: FileTarget, origin: str) -> pa.RecordBatch:
    """Return rows with the table's names and types. No cast changes a value.

    Raises:
        TableRefusedError: a row has a null in a NOT NULL column.
    """
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, written, strict=True)
    ]
    for column, field in zip(columns, written, strict=True):
        # Neither Parquet nor deltalake's commit enforces NOT NULL, so check it here.
        if column.null_count and field.name in target.not_null:
            problem = (
                f"column {field.name} is NOT NULL, but {column.null_count} records of {origin} have no value."
                " Send such records to dead letters, which the sink supports only without ingest(); or "
                f"ALTER TABLE … ALTER COLUMN {field.name} DROP NOT NULL"
            )
            raise TableRefusedError(target.table, problem)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([(f.name, f.type) for f in written]))


def partitioned(
    rows: pa.RecordBatch, target: FileTarget
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield rows by the values of the partition columns in Delta's form.

    A column that the rows lack is null in all of them, like any other column of the table.

    Raises:
        TableRefusedError: ``deltalake`` cannot read a value, or a value is null where the table allows none.
    """
    partition_by = target.partition_by
    if not partition_by:
        if rows.num_rows:
            yield (), rows
        return
    if target.iceberg is not None:
        yield from iceberg_partitioned(target.table, target.iceberg, rows)
        return
    import pyarrow.compute as pc  # Loaded here because most tables have no partitions.

    # The columns' values in the form of Delta's log, where an empty text is null.
    texts: list[pa.Array] = []
    for name in partition_by:
        if name not in rows.schema.names:
            texts.append(pa.nulls(rows.num_rows, pa.string()))
            continue
        column = rows.column(name)
        if pa.types.is_date32(column.type):
            # A column has many rows but few days, so convert each day to text only once, in Spark's form.
            # Arrow omits the sign of later years, and supports fewer years.
            encoded = column.dictionary_encode()
            days = []
            for day in encoded.dictionary.view(pa.int32()).to_pylist():
                date = np.datetime64(day, "D")
                year = 1970 + int(date.astype("datetime64[Y]").astype(np.int64))
                sign = "-" if year < 0 else "+" if year > LAST_PLAIN_YEAR else ""
                days.append(f"{sign}{abs(year):04}{str(date)[-6:]}")
                if day not in READABLE_DAYS:
                    problem = (
                        f"the partition column {name} has the date {days[-1]}. deltalake reads the years "
                        "-262143 to 262142. Start the query with DeltaSink.start, whose rows Spark writes"
                    )
                    raise TableRefusedError(target.table, problem)
            texts.append(text_array(days).take(encoded.indices))
            continue
        # The log is JSON, so Delta's own writer also replaces bytes that are not UTF-8 in partition values.
        written = valid_texts(column.cast(pa.string()))
        written = pc.if_else(pc.equal(written, text_scalar("")), text_scalar(None), written)
        if written.null_count and name in target.not_null:
            problem = (
                f"the partition column {name} is NOT NULL, but {written.null_count} rows have an empty "
                "string, which Delta stores as null there. Give them another value or leave them out in the "
                f"query; or ALTER TABLE … ALTER COLUMN {name} DROP NOT NULL"
            )
            raise TableRefusedError(target.table, problem)
        texts.append(written)
    # Do not use the columns' names, because one of them may be "#".
    names = [f"{number}" for number in range(len(texts))]
    numbered = pa.table([*texts, int64_array(np.arange(rows.num_rows))], [*names, "#"])
    # Use one thread, because Spark expects one core for each task, and because the rows have to stay in
    # order.
    groups = numbered.group_by(names, use_threads=False).aggregate([("#", "list")])
    for number in range(groups.num_rows):
        key = tuple(groups.column(name)[number].as_py() for name in names)
        yield key, rows.take(groups.column("#_list")[number].values)


def _escaped(text: str) -> str:
    return "".join(
        character if character in SAFE else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in text
    )
