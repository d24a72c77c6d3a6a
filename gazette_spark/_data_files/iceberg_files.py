"""Makes the Iceberg-specific parts of the files that a task writes: ids of columns, partitions, footers.

Iceberg finds columns by ids, so the files contain these ids. A file belongs to one value of each partition,
which may be computed from a column's value, such as its day or the number of its bucket. The driver computes
statistics from the file's footer, so tasks report the footer.

Tasks need ``pyiceberg`` for tables with partitions and for those in object stores.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from gazette_spark._data_files.target import IcebergLayout, StoreAccess
from gazette_spark._formats.arrays import int64_array, valid_texts
from gazette_spark.errors import MissingModuleError, TableRefusedError

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

IO_PROPERTIES = ("adls.", "client.", "gcs.", "gs.", "hdfs.", "oss.", "py-io-impl", "s3.")
"""Prefixes of the properties with which ``pyiceberg`` accesses object stores. Tasks get no others."""

MICROS = {"hour": 3_600_000_000, "day": 86_400_000_000}
"""Microseconds in the unit of the transforms that divide a timestamp."""

CALENDAR = {"month": "M", "year": "Y"}
"""NumPy's units of the transforms that need a calendar."""


def file_schema(layout: IcebergLayout) -> pa.Schema:
    """Return the columns of the files, with Iceberg's ids."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(layout.columns)))


@lru_cache(maxsize=8)
def _partitions(spec: str, schema: str) -> tuple[PartitionSpec, Schema]:
    """Return a table's partitions and schema from their JSON.

    Raises:
        MissingModuleError: this Python lacks ``pyiceberg``.
    """
    try:
        from pyiceberg.partitioning import PartitionSpec
        from pyiceberg.schema import Schema
    except ModuleNotFoundError:
        raise MissingModuleError("pyiceberg") from None
    return PartitionSpec.model_validate_json(spec), Schema.model_validate_json(schema)


def directories(table: str, layout: IcebergLayout, key: tuple[str | None, ...]) -> str:
    """Return the directories of a partition's files, relative to that of the table's data.

    Raises:
        TableRefusedError: ``pyiceberg`` does not support a value.
    """
    spec, schema = _partitions(layout.spec, layout.schema)
    try:
        return spec.partition_to_path(partition_record(key, spec, schema), schema)
    except OverflowError as error:
        # Python has no dates before year 1 or after 9999, and the driver's commit needs the same text.
        raise _unsupported(table, layout, spec.fields, error) from error


def _unsupported(
    table: str, layout: IcebergLayout, partitions: Sequence[PartitionField], error: Exception
) -> TableRefusedError:
    """Return the error for a value that cannot be a partition."""
    _, schema = _partitions(layout.spec, layout.schema)
    names = (f"{field.transform} of {schema.find_column_name(field.source_id)}" for field in partitions)
    problem = (
        f"it is partitioned by {', '.join(names)}, which is not supported for a value in the batch: {error}. "
        "Replace such values, or leave out their rows, in the query"
    )
    return TableRefusedError(table, problem)


def iceberg_partitioned(
    table: str, layout: IcebergLayout, rows: pa.RecordBatch
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield rows by the values of their partitions. A value has the form of Iceberg's bytes in base64.

    A column that the rows lack is null in all of them, like any other column of the table.

    Raises:
        TableRefusedError: the result of a value's transform does not fit its type.
    """
    spec, schema = _partitions(layout.spec, layout.schema)
    names = [f"{number}" for number in range(len(spec.fields))]
    values = []
    for partition in spec.fields:
        name = schema.find_column_name(partition.source_id)
        if name not in rows.schema.names:
            values.append(pa.nulls(rows.num_rows, pa.int32()))
            continue
        kind = schema.find_type(partition.source_id)
        try:
            values.append(_transformed(partition.transform, kind, rows.column(name)))
        except (OverflowError, pa.ArrowInvalid) as error:
            raise _unsupported(table, layout, (partition,), error) from error
    numbered = pa.table([*values, int64_array(np.arange(rows.num_rows))], [*names, "#"])
    groups = numbered.group_by(names, use_threads=False).aggregate([("#", "list")])
    for number in range(groups.num_rows):
        # The key contains Iceberg's own bytes for a value, because another library might not convert the text
        # of a date or a number back to the same value.
        key = tuple(
            _text(partition_type.field_type, groups.column(name)[number].as_py())
            for name, partition_type in zip(names, spec.partition_type(schema).fields, strict=True)
        )
        yield key, rows.take(groups.column("#_list")[number].values)


def store_access(table: Table) -> StoreAccess:
    """Return how ``pyiceberg`` accesses a table's store, with the credentials that the catalog gave out."""
    # Tasks write files and commit nothing, so they get no password or token of the catalog.
    return StoreAccess(
        {
            key: str(value)
            for key, value in table.io.properties.items()
            if key.startswith(IO_PROPERTIES) and value is not None
        }
    )


def open_store(location: str, properties: Mapping[str, str]) -> tuple[pa_fs.FileSystem, str]:
    """Return ``pyiceberg``'s file system for a location, and the location's path in it.

    Raises:
        MissingModuleError: this Python lacks ``pyiceberg``.
    """
    io = _file_io(tuple(sorted(properties.items())))
    scheme, netloc, path = io.parse_location(location, dict(properties))
    return io.fs_by_scheme(scheme, netloc), path


@lru_cache(maxsize=8)
def _file_io(properties: tuple[tuple[str, str], ...]) -> PyArrowFileIO:
    try:
        from pyiceberg.io.pyarrow import PyArrowFileIO
    except ModuleNotFoundError:
        raise MissingModuleError("pyiceberg") from None
    return PyArrowFileIO(dict(properties))


def footer_text(metadata: pq.FileMetaData) -> str:
    """Return the footer of a file in base64."""
    # The driver needs bounds and counts by column id, which pyiceberg computes from a footer. Reading the
    # footers back from the store would take one request for each file.
    out = pa.BufferOutputStream()
    metadata.write_metadata_file(out)
    return base64.b64encode(out.getvalue()).decode()


def parse_footer(text: str) -> pq.FileMetaData:
    """Read what :func:`footer_text` returns."""
    return pq.read_metadata(pa.BufferReader(base64.b64decode(text)))


def _transformed(transform: Any, kind: Any, column: pa.Array) -> pa.Array:  # noqa: ANN401 - of pyiceberg.
    """Return the values of a partition by applying its transform to a column of an Iceberg type.

    ``pyiceberg`` needs another package, ``pyiceberg-core``, to transform Arrow arrays, but can transform
    single values. Therefore each distinct value is transformed once.
    """
    if pa.types.is_temporal(column.type):
        # Use Iceberg's own numbers for days and instants, which also exist for years that Python does not
        # support.
        column = column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    elif pa.types.is_string(column.type):
        column = valid_texts(column)  # Iceberg's texts are UTF-8.
    word = str(transform)
    if word == "identity":
        return column
    is_timestamp = column.type == pa.int64()
    if word in CALENDAR or (word in MICROS and is_timestamp):
        import pyarrow.compute as pc  # Loaded here because most tables have no partitions.

        numbers = np.asarray(column.fill_null(0)).astype(np.int64)
        if word in CALENDAR:
            # NumPy has a calendar for all years, unlike Python.
            moments = numbers.view("datetime64[us]" if is_timestamp else "datetime64[D]")
            units = moments.astype(f"datetime64[{CALENDAR[word]}]").astype(np.int64)
        else:
            # Round the quotient down, not towards zero: the hour before 1970 is -1.
            units = np.floor_divide(numbers, MICROS[word])
        return pc.if_else(column.is_valid(), int64_array(units), pa.scalar(None, pa.int64())).cast(pa.int32())
    encoded = column.dictionary_encode()
    values = [*map(transform.transform(kind), encoded.dictionary.to_pylist())]
    return pa.array(values, column.type if word.startswith("truncate") else pa.int32()).take(encoded.indices)


def _text(kind: Any, value: Any) -> str | None:  # noqa: ANN401 - of pyiceberg, and a value of that type.
    from pyiceberg.conversions import to_bytes

    return None if value is None else base64.b64encode(to_bytes(kind, value)).decode()


def partition_record(key: tuple[str | None, ...], spec: PartitionSpec, schema: Schema) -> Any:  # noqa: ANN401
    """Return the partition of a file as a record of ``pyiceberg``."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.typedef import Record

    kinds: list[Any] = [partition.field_type for partition in spec.partition_type(schema).fields]
    values = (
        None if text is None else from_bytes(kind, base64.b64decode(text))
        for kind, text in zip(kinds, key, strict=True)
    )
    return Record(*values)
