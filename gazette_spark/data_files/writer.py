"""A task's rows as data files of a Delta table.

Each attempt of a task writes files with names of its own, and tells of a file only when it is whole. Files of
attempts that Spark drops are never referred to; VACUUM removes them.
"""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from gazette_spark.data_files.statistics import Leaf, file_statistics, leaves
from gazette_spark.data_files.target import FILES_SCHEMA, FileTarget
from gazette_spark.errors import MissingModuleError, TableRefusedError
from gazette_spark.framing.base import int64_array, text_array, text_scalar
from gazette_spark.spark_versions import arrow_schema

ROW_GROUP_BYTES = 64 << 20
"""Arrow bytes that a row group is made of."""

WAITING_BYTES = 256 << 20
"""Arrow bytes that wait for their row group, in all open files; beyond that the largest group is ended."""

OPEN_FILES = 64
"""Files of a task that are open at once, one for each partition of the table; the oldest is ended."""

LEAST_SAMPLE, MOST_SAMPLE = 1000, 4096
"""Values that tell whether a column's values repeat."""

UNIQUE_SHARE = 0.99
"""Share of them that are others where a dictionary is not worth it: in all there are 50 times as many."""

SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~ @,;!$&()+")
"""Characters that stand for themselves in the name of a partition's directory."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class _OpenFile:
    """A data file that is being written."""

    def __init__(self, where: pa_fs.FileSystem, root: str, path: str, first: pa.RecordBatch) -> None:
        self.path = path
        self._where = where
        self._full = posixpath.join(root, path)
        self._schema = schema = first.schema
        if isinstance(where, pa_fs.LocalFileSystem):
            where.create_dir(posixpath.dirname(self._full), recursive=True)
        self._out = where.open_output_stream(self._full)
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._out,
            schema,
            compression="zstd",
            use_dictionary=_repeated(first) or False,
            metadata_collector=self._metadata,
            store_schema=False,
        )
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._with_nan: set[str] = set()
        self._floats = [each.name for each in schema if pa.types.is_floating(each.type)]

    @property
    def size(self) -> int:
        """Bytes that are written, without those that wait for their row group."""
        return int(self._out.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        for name in self._floats:
            if name not in self._with_nan and _has_nan(rows.column(name)):
                self._with_nan.add(name)
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """End the row group."""
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, schema=self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self.waiting_bytes = [], 0

    def close(self, indexed_leaves: int) -> dict[str, Any]:
        """End the file; return what is to be told of it."""
        self.flush()
        self._writer.close()
        size = self.size
        self._out.close()
        found = self._metadata[0]
        return {
            "path": self.path,
            "size": size,
            "rows": found.num_rows,
            "stats": file_statistics(
                found, self._schema, indexed_leaves=indexed_leaves, with_nan=self._with_nan
            ),
            "modification_ms": int(time.time() * 1000),
        }

    def abort(self) -> None:
        """Remove the file, if that can be done: nobody will refer to it."""
        for end in (self._writer.close, self._out.close, lambda: self._where.delete_file(self._full)):
            with suppress(Exception):
                end()


def write_files(
    batches: Iterable[pa.RecordBatch], target: FileTarget, *, journal: str, begin: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a piece to data files; yield rows that tell of them, by ``FILES_SCHEMA``.

    Args:
        batches: The rows, with the target's ``read_schema``.
        target: The table.
        journal: Journal of the piece.
        begin: First byte of the piece.
        end: Byte behind its last one.

    Raises:
        TableRefusedError: a row has a null where the table takes none.
    """
    written = arrow_schema(target.columns_written)
    kept = [name for name in written.names if name not in target.partition_by]
    where, root = filesystem(target)
    place = f"journal={journal} begin={begin} end={end}"
    files: dict[tuple[str | None, ...], _OpenFile] = {}
    told: list[dict[str, Any]] = []

    def finish(key: tuple[str | None, ...]) -> None:
        row = files.pop(key).close(target.indexed_leaves)
        row["partition_values"] = dict(zip(target.partition_by, key, strict=True))
        told.append(row | {"journal": journal, "begin": begin, "end": end})

    try:
        for batch in batches:
            rows = shaped(batch, written, target, place)
            for key, found in partitioned(rows, target.partition_by):
                part = found.select(kept)
                if key not in files:
                    if len(files) == OPEN_FILES:
                        finish(next(iter(files)))
                    path = posixpath.join(*_directories(target.partition_by, key), _file_name())
                    files[key] = _OpenFile(where, root, path, part)
                files[key].write(part)
                if files[key].size >= target.file_bytes:
                    finish(key)
            while sum(each.waiting_bytes for each in files.values()) > WAITING_BYTES:
                max(files.values(), key=lambda each: each.waiting_bytes).flush()
        for key in list(files):
            finish(key)
    except BaseException:
        for each in files.values():
            each.abort()
        raise
    if told:
        yield _told_batch(told)


def _told_batch(told: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows by ``FILES_SCHEMA``. ``pa.array()`` would import pandas where there is one."""
    schema = arrow_schema(FILES_SCHEMA)
    columns: list[pa.Array] = []
    for field in schema:
        values = [row[field.name] for row in told]
        if pa.types.is_map(field.type):
            pairs = [pair for each in values for pair in each.items()]
            ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
            bounds = pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])
            keys, items = (text_array([pair[at] for pair in pairs]) for at in (0, 1))
            columns.append(pa.MapArray.from_arrays(bounds, keys, items))
        elif pa.types.is_string(field.type):
            columns.append(text_array(values))
        else:
            columns.append(int64_array(np.array(values, np.int64)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _repeated(rows: pa.RecordBatch) -> list[str]:
    """Return the leaf columns that are written with a dictionary, as Parquet names them.

    Parquet gives a dictionary up when it has a megabyte, and has looked up each value until then: a fifth of
    the write's CPU time for the columns of ``format=raw``. A column whose first values are all others would
    get there.
    """
    return [leaf.stored for leaf in leaves(rows.schema) if not _is_unique(rows, leaf)]


def _is_unique(rows: pa.RecordBatch, leaf: Leaf) -> bool:
    if leaf.path == ("value",) and leaf.type == pa.binary():
        return True  # Records hardly repeat, however few there are.
    if leaf.repeated or rows.num_rows < LEAST_SAMPLE or pa.types.is_boolean(leaf.type):
        return False
    column = rows.column(leaf.path[0])
    for name in leaf.path[1:]:
        column = column.field(name)
    if pa.types.is_temporal(leaf.type):
        column = column.view(pa.int64() if leaf.type.bit_width == 64 else pa.int32())
    # Without Arrow's functions: to load them takes a worker of format=raw a tenth of all that it loads.
    values = [each for each in column.slice(0, MOST_SAMPLE).to_pylist() if each is not None]
    return len(values) >= LEAST_SAMPLE and len(set(values)) > UNIQUE_SHARE * len(values)


def _has_nan(column: pa.Array) -> bool:
    """Tell whether a column of numbers has a NaN; what is behind a null may count, too."""
    buffer = column.buffers()[1]
    if buffer is None:
        return False
    values = np.frombuffer(buffer, f"f{column.type.bit_width // 8}")
    return bool(np.isnan(values[column.offset : column.offset + len(column)]).any())


def filesystem(target: FileTarget) -> tuple[pa_fs.FileSystem, str]:
    """Return the file system of a table, and the table's root in it.

    Raises:
        MissingModuleError: a table in an object store takes ``deltalake`` where tasks run.
    """
    if target.is_local:
        return pa_fs.LocalFileSystem(), target.location
    try:
        from deltalake.fs import DeltaStorageHandler
    except ModuleNotFoundError:
        raise MissingModuleError("deltalake") from None
    handler = DeltaStorageHandler(target.location, dict(target.storage_options))
    return pa_fs.PyFileSystem(handler), ""


def shaped(batch: pa.RecordBatch, written: pa.Schema, target: FileTarget, place: str) -> pa.RecordBatch:
    """Return rows with the table's names and types; no cast changes a value.

    Raises:
        TableRefusedError: a null where the table takes none.
    """
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, written, strict=True)
    ]
    for column, field in zip(columns, written, strict=True):
        if column.null_count and field.name in target.not_null:
            problem = (
                f"column {field.name} is NOT NULL, and {column.null_count} records of {place} have none. "
                "Send such records to dead letters, which the sink alone does, without ingest(); or "
                f"ALTER TABLE … ALTER COLUMN {field.name} DROP NOT NULL"
            )
            raise TableRefusedError(target.table, problem)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([(f.name, f.type) for f in written]))


def partitioned(
    rows: pa.RecordBatch, partition_by: tuple[str, ...]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield rows by the values of the partition columns, as Delta writes these."""
    if not partition_by:
        if rows.num_rows:
            yield (), rows
        return
    texts = [_partition_texts(rows.column(name)) for name in partition_by]
    numbered = pa.table([*texts, int64_array(np.arange(rows.num_rows))], [*partition_by, "#"])
    groups = numbered.group_by(list(partition_by), use_threads=False).aggregate([("#", "list")])
    for number in range(groups.num_rows):
        key = tuple(groups.column(name)[number].as_py() for name in partition_by)
        yield key, rows.take(groups.column("#_list")[number].values)


def _partition_texts(column: pa.Array) -> pa.Array:
    """Return a column's values as Delta's log has them; an empty text is null there."""
    import pyarrow.compute as pc  # As above: most tables have no partitions.

    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, text_scalar("")), text_scalar(None), texts)


def _directories(names: tuple[str, ...], values: tuple[str | None, ...]) -> list[str]:
    """Return the directories of a partition, as Hive and Delta name them."""
    return [
        f"{_escaped(name)}={NULL_PARTITION if value is None else _escaped(value)}"
        for name, value in zip(names, values, strict=True)
    ]


def _escaped(text: str) -> str:
    return "".join(
        each if each in SAFE else "".join(f"%{byte:02X}" for byte in each.encode()) for each in text
    )


def _file_name() -> str:
    return f"part-{uuid.uuid4()}.zstd.parquet"
