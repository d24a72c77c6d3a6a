"""Defines a new table: columns, partitions or clusters, properties.

The table is created by one SQL statement from quoted names and types. This works by path and by name, and
also if the server of Spark Connect has Delta but not Delta's plugin for Connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, TimestampType

from gazette_spark._delta.sql_names import quoted
from gazette_spark.errors import OptionError, TableRefusedError


@dataclass(frozen=True, slots=True)
class NewTable:
    """Definition of the table that :class:`~gazette_spark.sink.DeltaSink` creates if it does not exist.

    An existing table is not changed. If its partitions differ, an error is raised, because partitions can
    never change. Its clustering and properties may have been altered since, so they are not compared.
    """

    schema: StructType | str | None = None
    """Columns, with NOT NULL and comments, as a type or as DDL. None takes the columns of the first batch, as
    nullable columns."""
    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] = ()
    """Top-level columns for liquid clustering. Cannot be combined with ``partition_by``."""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an invalid definition, as far as it can be checked without Spark."""
        schema: object = self.schema
        if not isinstance(schema, StructType | str | None):
            expected = "a StructType, DDL such as 'id BIGINT NOT NULL, text STRING', or None"
            raise OptionError("new_table.schema", repr(self.schema)[:80], expected)
        for name in ("partition_by", "cluster_by"):
            option, columns, expected = f"new_table.{name}", getattr(self, name), "a list of column names"
            if isinstance(columns, str) or not isinstance(columns, Iterable):
                raise OptionError(option, repr(columns)[:80], expected)
            columns = tuple(columns)
            if not all(isinstance(column, str) and column for column in columns):
                raise OptionError(option, repr(columns)[:80], expected)
            if len({column.lower() for column in columns}) < len(columns):
                raise OptionError(option, repr(columns)[:80], f"{expected}, each once")
            object.__setattr__(self, name, columns)
        if self.partition_by and self.cluster_by:
            got = f"partition_by={list(self.partition_by)}, cluster_by={list(self.cluster_by)}"
            raise OptionError(
                "new_table", got, "only one of the two: Delta has either partitions or clusters"
            )
        properties: object = self.properties
        expected = "strings by name: {'delta.appendOnly': 'true'}"
        if not isinstance(properties, Mapping):
            raise OptionError("new_table.properties", repr(properties)[:80], expected)
        for name, value in properties.items():
            if not (isinstance(name, str) and name and isinstance(value, str)):
                raise OptionError("new_table.properties", f"{name!r}: {value!r}"[:80], expected)
        if isinstance(self.schema, StructType):
            self._check_columns(self.schema)

    def parsed(self, spark: SparkSession) -> StructType | None:
        """Return the schema as a type, or None if the first batch determines it."""
        return spark.createDataFrame([], self.schema).schema if isinstance(self.schema, str) else self.schema

    def columns(self, spark: SparkSession, rows: StructType) -> StructType:
        """Return the columns of the table to be created.

        Args:
            spark: A session, to read DDL.
            rows: Schema of the first batch. Columns that are taken from it are nullable, because a later
                batch may lack values.
        """
        schema = self.parsed(spark)
        if schema is None:
            # This includes fields within columns, because Spark says of each literal in a struct that it is
            # never null. Delta makes no array of such structs, and to it, the fields of a null struct are
            # null.
            schema = rows.toNullable()
        self._check_columns(schema)
        return schema

    def statement(self, table: str, schema: StructType) -> str:
        """Return the SQL statement that creates a table with these columns, unless it exists."""
        parts = [f"CREATE TABLE IF NOT EXISTS {table} ({ddl(schema)}) USING delta"]
        if self.partition_by:
            parts.append(f"PARTITIONED BY ({_listed(self.partition_by)})")
        if self.cluster_by:
            parts.append(f"CLUSTER BY ({_listed(self.cluster_by)})")
        if self.properties:
            pairs = (f"{_text(name)} = {_text(value)}" for name, value in self.properties.items())
            parts.append(f"TBLPROPERTIES ({', '.join(pairs)})")
        return " ".join(parts)

    def check_partitions(self, table: str, actual: Sequence[str]) -> None:
        """Refuse an existing table that has other partitions.

        Raises:
            TableRefusedError: naming both.
        """
        if [name.lower() for name in self.partition_by] != [name.lower() for name in actual]:
            problem = (
                f"it is partitioned by {_shown(actual)}, but new_table requests {_shown(self.partition_by)}."
                " Partitions of a table cannot be changed: request those it has, or write to another table"
            )
            raise TableRefusedError(table, problem)

    def _check_columns(self, schema: StructType) -> None:
        columns = {name.lower() for name in schema.names}
        for option, names in (("partition_by", self.partition_by), ("cluster_by", self.cluster_by)):
            if unknown := [name for name in names if name.lower() not in columns]:
                raise OptionError(f"new_table.{option}", repr(unknown), f"columns of {schema.names}")


def ddl(schema: StructType) -> str:
    """Return a table's columns in the form of ``CREATE TABLE``.

    SQL cannot express everything: it leaves out that an array or a map has no nulls, and all metadata other
    than comments.
    """
    return ", ".join(_field(column, " ") for column in schema.fields)


def _field(column: StructField, separator: str) -> str:
    parts = [f"{quoted(column.name)}{separator}{_type(column.dataType)}"]
    if not column.nullable:
        parts.append("NOT NULL")
    if comment := (column.metadata or {}).get("comment"):
        parts.append(f"COMMENT {_text(str(comment))}")
    return " ".join(parts)


def _type(kind: DataType) -> str:
    match kind:
        case StructType():
            return f"STRUCT<{', '.join(_field(field, ': ') for field in kind.fields)}>"
        case ArrayType():
            return f"ARRAY<{_type(kind.elementType)}>"
        case MapType():
            return f"MAP<{_type(kind.keyType)}, {_type(kind.valueType)}>"
        case TimestampType():
            # "timestamp" means TIMESTAMP_NTZ in sessions that set spark.sql.timestampType so.
            return "timestamp_ltz"
    return kind.simpleString()


def _text(value: str) -> str:
    """Return a SQL literal."""
    # Spark would replace a variable such as ${env:HOME} before it parses the statement.
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("${", "$\\{")
    return f"'{escaped}'"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def _shown(names: Sequence[str]) -> str:
    return f"({', '.join(names)})" if names else "nothing"
