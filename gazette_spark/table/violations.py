"""The rows that do not fit a Delta table, and the reasons: what makes a dead letter.

A row is a misfit if its record could not be read, if a NOT NULL column of the table would get null, or if a
CHECK constraint of the table is false for it; as in SQL, one that is null passes. Everything is one
expression over the batch, so a row's fate follows from the row and the table's rules alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructField, StructType

from gazette_spark.errors import BadRowError
from gazette_spark.table.files import jvm_errors
from gazette_spark.table.sql_names import quoted
from gazette_spark.table.trim import origin_columns

RECORD = "_record"
"""The source's column for a record's bytes."""

NOT_FOR_THE_TABLE = ("_journal", "_offset", "_end_offset", "_ack_offset", RECORD)
"""Columns of a row's origin: a table that has no such column does not get it."""

ALWAYS_UNWANTED = (RECORD,)
"""Origin columns that only dead letters have."""

REASON = "__gazette_reason"
"""Helper column, in no table."""


@dataclass(frozen=True, slots=True)
class NullCheck:
    """A place in a row where a table takes no null."""

    path: str
    """Such as ``at.x``, ``list.element``, ``map.value.x``."""
    has_null: Callable[[Column], Column]
    """Given the row's column, says whether there is a null; null in a row without such a place."""
    by_delta: bool
    """Delta checks it, too. It checks columns and the fields of structs, but nothing in arrays and maps."""

    def reason(self) -> str:
        """Say what is wrong with a row that has a null there."""
        return f"column {self.path} is NULL but the table's is NOT NULL"


@dataclass(frozen=True, slots=True)
class TableRules:
    """Rules that a table has for its rows."""

    schema: StructType | None = None
    """The table's columns, None if there is no table yet."""
    checks: tuple[tuple[str, str], ...] = ()
    """Name and SQL expression of each CHECK constraint, by name."""

    def has(self, column: str) -> bool:
        """Say whether the table has a column; Delta does not tell upper from lower case."""
        return self.schema is not None and column.lower() in (name.lower() for name in self.schema.names)


def with_reasons(
    df: DataFrame, rules: TableRules, corrupt_column: str, delete_when: str | None = None
) -> DataFrame:
    """Return the rows with the column :data:`REASON`: the reason why a row does not fit, null if it fits.

    Args:
        df: Rows of a batch.
        rules: Rules of the table.
        corrupt_column: Name of the column for records that could not be read.
        delete_when: Name of the column that is true in rows that delete another. The table does not get such
            rows, so its rules do not apply to them.
    """
    missing = {
        field.name: F.lit(None).cast(field.dataType)
        for field in (rules.schema.fields if rules.schema else ())
        if field.name.lower() not in (name.lower() for name in df.columns)
    }
    broken = [
        F.when(check.has_null(F.col(quoted(column))), F.lit(check.reason()))
        for column, check in (null_checks(rules.schema, df.schema) if rules.schema else ())
    ]
    broken += [F.when(~F.expr(check), F.lit(f"CHECK {name} ({check})")) for name, check in rules.checks]
    reason = F.nullif(F.concat_ws("; ", *broken), F.lit("")) if broken else F.lit(None).cast("string")
    if delete_when is not None and delete_when in df.columns:
        deletes = F.coalesce(F.col(quoted(delete_when)), F.lit(False))  # noqa: FBT003 - a literal
        reason = F.when(~deletes, reason)
    if corrupt_column in df.columns:
        unread = F.col(quoted(corrupt_column)).isNotNull()
        reason = F.when(unread, F.lit("does not parse")).otherwise(reason)
    if not missing:  # Spark Connect takes no empty list of columns.
        return df.withColumn(REASON, reason)
    # A CHECK may use columns that the rows lack: they are null there.
    return df.withColumns(missing).withColumn(REASON, reason).drop(*missing)


def without_helpers(
    reasoned: DataFrame, rules: TableRules, corrupt_column: str, unwanted: tuple[str, ...]
) -> DataFrame:
    """Return rows without the columns that are for dead letters alone.

    Args:
        reasoned: Rows with their reasons.
        rules: The table's. A new table gets the columns that say where a row comes from, but not its bytes.
        corrupt_column: Name of the column for records that could not be read.
        unwanted: Other columns that a table without them does not get.
    """
    unwanted = ALWAYS_UNWANTED if rules.schema is None else unwanted
    left_out = [
        name for name in (corrupt_column, *unwanted) if name in reasoned.columns and not rules.has(name)
    ]
    return reasoned.drop(REASON, *left_out)


def dead_rows(
    reasoned: DataFrame, app_id: str, corrupt_column: str, origin: tuple[str, str], *, committed: bool = False
) -> DataFrame:
    """Return the rows that the table would not take, as the table of dead letters has them."""
    journal, offset = origin
    acks = [F.col("_ack_offset").alias("ack_offset")] if committed else []
    ends = F.col("_end_offset") if "_end_offset" in reasoned.columns else F.lit(None)
    return reasoned.where(F.col(REASON).isNotNull()).select(
        F.lit(app_id).alias("app_id"),
        F.col(journal).alias("journal"),
        F.col(offset).alias("offset"),
        ends.cast("bigint").alias("end_offset"),
        _raw(reasoned, corrupt_column, origin).alias("raw"),
        F.col(REASON).alias("reason"),
        *acks,
    )


def _raw(df: DataFrame, corrupt_column: str, origin: tuple[str, str]) -> Column:
    """Return the record's bytes, or their best substitute."""
    types = {field.name: field.dataType for field in df.schema.fields}
    for column in (RECORD, "value") if origin == ("journal", "offset") else (RECORD,):
        if types.get(column) == BinaryType():
            return F.col(column)
    kept = [F.col(quoted(name)) for name in df.columns if name not in (corrupt_column, REASON)]
    row = F.to_json(F.struct(*kept)).cast("binary")
    if corrupt_column not in df.columns:
        return row
    return F.coalesce(F.col(quoted(corrupt_column)).cast("binary"), row)


def without_unchecked_nulls(df: DataFrame, wanted: StructType) -> DataFrame:
    """Return rows whose running fails at a null that the table does not take and Delta does not look for."""
    found = [
        F.when(check.has_null(F.col(quoted(column))), F.lit(check.reason()))
        for column, check in null_checks(wanted, df.schema)
        if not check.by_delta
    ]
    return failing(df, F.concat_ws("; ", *found)) if found else df


def failing(df: DataFrame, problem: Column, said: str = "") -> DataFrame:
    """Return rows whose running fails at one that has a problem; see :func:`named_rows`.

    Spark moves conditions before joins and other conditions, where they meet rows that those leave out. It
    leaves this one in its place, and later ones behind it, because part of it is not deterministic.

    Args:
        df: Rows, with or without the columns of a row's origin.
        problem: A text, null or empty in rows without a problem.
        said: Begin of the error's text.
    """
    origin = origin_columns(df.schema) or ()
    shown = [F.coalesce(F.col(name).cast("string"), F.lit("null")) for name in origin]
    where = [F.lit(f"in the row of {', '.join(origin)} ="), *shown] if origin else []
    error = F.raise_error(F.concat_ws(" ", F.lit("row: " + said), problem, *where, F.lit("|")))
    stays = F.spark_partition_id() >= 0
    fine = F.coalesce(problem, F.lit("")) == ""
    return df.where(F.when(~stays, 0).when(fine, 1).otherwise(error) == 1)


BAD_ROW = re.compile(r"\brow: (.*?) \|")
"""Spark's error text at a row for which :func:`failing` fails, with a group for the problem."""


@contextmanager
def named_rows(spark: SparkSession, table: str, app_id: str, batch_id: int) -> Iterator[None]:
    """Raise the package's error where rows of :func:`failing` are run and fail.

    Raises:
        BadRowError: naming the row.
    """
    failures: tuple[type[Exception], ...] = (PySparkException, *jvm_errors(spark))
    try:
        yield
    except failures as error:
        if found := BAD_ROW.search(str(error)):
            raise BadRowError(table, app_id, batch_id, found[1].strip()) from error
        raise


def null_checks(wanted: StructType, given: StructType) -> Iterator[tuple[str, NullCheck]]:
    """Yield the places where a table takes no null and rows may have one, each with the rows' column.

    Where the rows have no such column at all every row would be dead: that is refused as a whole.
    """
    for field, found in _common(wanted, given):
        yield from ((found.name, check) for check in _checks(field.name, field, found))


def _common(wanted: StructType, given: StructType) -> Iterator[tuple[StructField, StructField]]:
    has = {field.name.lower(): field for field in given.fields}
    for field in wanted.fields:
        if (found := has.get(field.name.lower())) is not None:
            yield field, found


def _checks(path: str, wanted: StructField, given: StructField) -> Iterator[NullCheck]:
    if not wanted.nullable:
        yield NullCheck(path, _is_null, by_delta=True)
    yield from _inner_checks(path, wanted.dataType, given.dataType)


def _inner_checks(path: str, wanted: DataType, given: DataType) -> Iterator[NullCheck]:
    """Yield the checks of what is in a value."""
    match wanted, given:
        case StructType(), StructType():
            for field, found in _common(wanted, given):
                for check in _checks(f"{path}.{field.name}", field, found):
                    yield NullCheck(
                        check.path, partial(_in_field, found.name, check), by_delta=check.by_delta
                    )
        case ArrayType(), ArrayType():
            element = StructField("", wanted.elementType, wanted.containsNull)
            yield from _each(f"{path}.element", _itself, element, given.elementType)
        case MapType(), MapType():
            yield from _each(f"{path}.key", F.map_keys, StructField("", wanted.keyType), given.keyType)
            value = StructField("", wanted.valueType, wanted.valueContainsNull)
            yield from _each(f"{path}.value", F.map_values, value, given.valueType)


def _each(
    path: str, values: Callable[[Column], Column], wanted: StructField, given: DataType
) -> Iterator[NullCheck]:
    for check in _checks(path, wanted, StructField("", given)):
        has_null = check.has_null if check.path == path else partial(_in_struct, check)
        yield NullCheck(check.path, partial(_in_any, values, has_null), by_delta=False)


def _in_field(name: str, check: NullCheck, struct: Column) -> Column:
    return check.has_null(struct.getField(name))


def _in_struct(check: NullCheck, element: Column) -> Column:
    return element.isNotNull() & check.has_null(element)


def _in_any(values: Callable[[Column], Column], has_null: Callable[[Column], Column], many: Column) -> Column:
    return F.exists(values(many), has_null)


def _is_null(column: Column) -> Column:
    return column.isNull()


def _itself(column: Column) -> Column:
    return column
