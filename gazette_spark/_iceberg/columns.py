"""Converts columns and partitions between Iceberg and the forms of Spark and of the options.

=====================  ============================================================================
Spark                  Iceberg
=====================  ============================================================================
BYTE, SHORT, INT       int
LONG                   long
FLOAT, DOUBLE          float, double
DECIMAL(p, s)          decimal(p, s)
BOOLEAN, DATE          boolean, date
TIMESTAMP              timestamptz
TIMESTAMP_NTZ          timestamp
STRING, CHAR, VARCHAR  string
BINARY                 binary
ARRAY, MAP, STRUCT     list, map, struct
INTERVAL, VARIANT, …   refused: version 2 of Iceberg's format has no such type
STRUCT without fields  refused: Parquet has no such type
=====================  ============================================================================

The table may have Iceberg types that Spark's rows do not have (time, uuid, fixed). A column of such a type
stays null, and a query that has the column is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from pyiceberg import types as ice
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform, parse_transform
from pyspark.sql import types as sql

from gazette_spark.errors import OptionError, TableRefusedError

SIMPLE_TYPES: tuple[tuple[type[sql.DataType], type[ice.PrimitiveType]], ...] = (
    (sql.BooleanType, ice.BooleanType),
    (sql.IntegerType, ice.IntegerType),
    (sql.LongType, ice.LongType),
    (sql.FloatType, ice.FloatType),
    (sql.DoubleType, ice.DoubleType),
    (sql.DateType, ice.DateType),
    (sql.TimestampType, ice.TimestamptzType),
    (sql.TimestampNTZType, ice.TimestampType),
    (sql.StringType, ice.StringType),
    (sql.BinaryType, ice.BinaryType),
)
"""Types without parameters that both have."""

TO_ICEBERG: dict[type[sql.DataType], Callable[[], ice.PrimitiveType]] = {
    **dict(SIMPLE_TYPES),
    sql.ByteType: ice.IntegerType,
    sql.ShortType: ice.IntegerType,
    sql.CharType: ice.StringType,
    sql.VarcharType: ice.StringType,
}

TO_SPARK: dict[type[ice.IcebergType], type[sql.DataType]] = {
    iceberg: spark for spark, iceberg in SIMPLE_TYPES
}

PARTITION_TRANSFORM = re.compile(
    r"(?P<name>year|month|day|hour)s?\((?P<time_column>[^(),]+)\)"
    r"|(?P<wide>bucket|truncate)\(\s*(?P<width>\d{1,9})\s*,(?P<wide_column>[^(),]+)\)"
    r"|(?P<column>[^(),]+)"
)

UNEQUAL_TYPES = (ice.FloatType, ice.DoubleType)
"""Types that cannot be partitions, because equal values need not have the same bytes."""


def iceberg_schema(table: str, columns: sql.StructType) -> Schema:
    """Return the schema of a new table, whose columns are all nullable.

    Raises:
        TableRefusedError: a column has a type that Iceberg does not have.
    """
    return Schema(*_struct(table, "", columns, count(1)).fields)


def _struct(table: str, path: str, kind: sql.StructType, ids: Any) -> ice.StructType:  # noqa: ANN401
    return ice.StructType(
        *(
            ice.NestedField(
                next(ids),
                field.name,
                to_iceberg(table, path + field.name, field.dataType, ids),
                required=False,
            )
            for field in kind.fields
        )
    )


def to_iceberg(table: str, path: str, kind: sql.DataType, ids: Any) -> ice.IcebergType:  # noqa: ANN401
    """Return the Iceberg type of a column. ``ids`` yields ids for its fields.

    Raises:
        TableRefusedError: Iceberg does not have the type.
    """
    match kind:
        case sql.StructType() if kind.fields:  # Parquet has no struct without fields.
            return _struct(table, path + ".", kind, ids)
        case sql.ArrayType():
            element = to_iceberg(table, path + ".element", kind.elementType, ids)
            return ice.ListType(next(ids), element, element_required=False)
        case sql.MapType():
            key = to_iceberg(table, path + ".key", kind.keyType, ids)
            value = to_iceberg(table, path + ".value", kind.valueType, ids)
            return ice.MapType(next(ids), key, next(ids), value, value_required=False)
        case sql.DecimalType():
            return ice.DecimalType(kind.precision, kind.scale)
    if (iceberg := TO_ICEBERG.get(type(kind))) is None:
        problem = f"column {path} is {kind.simpleString()}, a type that Iceberg lacks. Cast it in the query"
        raise TableRefusedError(table, problem)
    return iceberg()


def spark_schema(table: str, schema: Schema, rows: sql.StructType) -> sql.StructType:
    """Return a table's columns with Spark's types, without columns that no row of Spark can fill.

    Raises:
        TableRefusedError: a column of a type that Spark does not have is NOT NULL or is also in the rows, or
            the names of two columns differ only in case.
    """
    written = {field.name.lower() for field in rows.fields}
    fields: dict[str, sql.StructField] = {}
    for column in schema.fields:
        kind = to_spark(column.field_type)
        if kind is None:
            # A column that no row can fill stays null. That is correct only if it is nullable and the query
            # does not try to fill it.
            if column.required or column.name.lower() in written:
                problem = f"column {column.name} is {column.field_type}, which rows of Spark do not have"
                raise TableRefusedError(table, f"{problem}. Make it optional, and leave it out of the query")
            continue
        field = sql.StructField(column.name, kind, nullable=not column.required)
        # Iceberg distinguishes upper and lower case, but Spark does not, so a row's column could go to either
        # one.
        if (other := fields.setdefault(column.name.lower(), field)) is not field:
            problem = f"its columns {other.name} and {column.name} are the same to Spark. Rename one of them"
            raise TableRefusedError(table, problem)
    return sql.StructType([*fields.values()])


def to_spark(kind: ice.IcebergType) -> sql.DataType | None:
    """Return the Spark type of a column, or None if Spark has none."""
    match kind:
        case ice.StructType():
            fields = [(field, to_spark(field.field_type)) for field in kind.fields]
            if any(inner is None for _, inner in fields):
                return None
            return sql.StructType(
                [sql.StructField(field.name, inner, nullable=not field.required) for field, inner in fields]  # type: ignore[arg-type] # None was returned for.
            )
        case ice.ListType():
            element = to_spark(kind.element_type)
            return element and sql.ArrayType(element, containsNull=not kind.element_required)
        case ice.MapType():
            key, value = to_spark(kind.key_type), to_spark(kind.value_type)
            return (key and value) and sql.MapType(key, value, valueContainsNull=not kind.value_required)
        case ice.DecimalType():
            return sql.DecimalType(kind.precision, kind.scale)
    spark = TO_SPARK.get(type(kind))
    return None if spark is None else spark()


def has_required_inside(kind: ice.IcebergType) -> bool:
    """Return whether a field, element or value within a type is NOT NULL. Keys of maps do not count."""
    match kind:
        case ice.StructType():
            return any(field.required or has_required_inside(field.field_type) for field in kind.fields)
        case ice.ListType():
            return kind.element_required or has_required_inside(kind.element_type)
        case ice.MapType():
            return kind.value_required or any(map(has_required_inside, (kind.key_type, kind.value_type)))
    return False


def partition_spec(option: str, texts: Sequence[str], schema: Schema) -> PartitionSpec:
    """Return the partitions of a new table.

    Args:
        option: Name of the option that contains them, for the error.
        texts: One text for each partition: a column, or ``day(at)``, ``hour(at)``, ``month(at)``,
            ``year(at)``, ``bucket(16, id)``, ``truncate(4, name)``; plurals such as ``days`` are accepted as
            in Spark's SQL.
        schema: The table's schema.

    Raises:
        OptionError: a text has an invalid form, names no column, or does not fit the column's type.
    """
    fields = []
    columns = {column.name.lower(): column for column in schema.fields}
    for number, text in enumerate(texts):
        parts = PARTITION_TRANSFORM.fullmatch(text.strip())
        if parts is None or (parts["width"] and int(parts["width"]) == 0):
            expected = "a column, day(at), hour(at), month(at), year(at), bucket(16, id) or truncate(4, name)"
            raise OptionError(option, text, expected)
        if parts["wide"]:
            word, name = f"{parts['wide']}[{parts['width']}]", parts["wide_column"].strip()
        elif parts["name"]:
            word, name = parts["name"], parts["time_column"].strip()
        else:
            word, name = "identity", parts["column"].strip()
        transform = parse_transform(word)
        column = columns.get(name.lower())
        if column is None:
            expected = f"columns of the rows: {', '.join(field.name for field in schema.fields)}"
            raise OptionError(option, name, expected)
        # For example, 0.0 and -0.0 are equal but have different bytes, so rows with equal values would be in
        # two partitions.
        if not transform.can_transform(column.field_type) or (
            str(transform) == "identity" and isinstance(column.field_type, UNEQUAL_TYPES)
        ):
            raise OptionError(option, text.strip(), f"another partition: {name} is {column.field_type}")
        word = re.sub(r"\[.*", "", str(transform))
        # Iceberg's own DDL in Spark gives these names to partitions.
        suffix = {"identity": "", "truncate": "_trunc"}.get(word, f"_{word}")
        fields.append(
            PartitionField(
                column.field_id, PARTITION_FIELD_ID_START + number, transform, column.name + suffix
            )
        )
    names = [field.name for field in fields]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(option, f"{repeated[0]} twice", "each partition once")
    return PartitionSpec(*fields)


def partition_texts(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Return a table's partitions in the form of :func:`partition_spec`, in lower case."""
    texts = []
    for field in spec.fields:
        column = (schema.find_column_name(field.source_id) or "?").lower()
        match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", str(field.transform))
        word, width = (match[1], match[2]) if match else (str(field.transform), None)
        # A partition that was dropped may remain in the specification as void.
        if isinstance(field.transform, VoidTransform):
            continue
        texts.append(column if word == "identity" else f"{word}({width + ', ' if width else ''}{column})")
    return texts
