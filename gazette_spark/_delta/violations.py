"""Finds the rows that do not fit a Delta table, and the reasons.

A row does not fit if its record could not be read, if a NOT NULL column of the table would be null, or if a
CHECK constraint of the table is false or null, as Delta decides. The check is one expression over the batch,
so its result depends only on the row and on the table's rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructField, StructType

from gazette_spark._delta.delta_table import TableDetail
from gazette_spark._delta.features import computes_columns
from gazette_spark._delta.files import SPARK_ERRORS
from gazette_spark._delta.schema_fit import SchemaFit, bare, fit, shaped
from gazette_spark._delta.sql_names import quoted
from gazette_spark._delta.trim import origin_columns
from gazette_spark._delta.upsert import Upsert
from gazette_spark.errors import BadRowError

RECORD = "_record"
"""The source's column with a record's bytes."""

ORIGIN_COLUMNS = ("_journal", "_offset", "_end_offset", "_ack_offset", RECORD)
"""The source's columns about a row's origin. A query with dead letters has to read some of them, but the main
table need not store them.
"""

REASON = "__gazette_reason"
ROW = "__gazette_row"
PLACE = "__gazette_letter"
"""Names of helper columns that are in no table: why a row does not fit, and journal and offset of a dead
letter."""

CHANGED = (
    "a row that was not a dead letter does not fit the table: two evaluations of the batch had different "
    "results. Make the query's expressions deterministic, or persist the batch:"
)
"""Beginning of the error for a row that fits in the first pass over a batch but not in the second."""

RULE_PREFIX = "delta.constraints."
"""Prefix of table properties that contain the expressions of CHECK constraints."""


@dataclass(frozen=True, slots=True)
class NullCheck:
    """A place in a row where a table forbids null."""

    path: str
    """Path of the place, such as ``at.x``, ``list.element`` or ``map.value.x``."""
    has_null: Callable[[Column], Column]
    """Returns, for the row's column, whether there is a null; null for a row without such a place."""
    by_delta: bool
    """Whether Delta also checks the place. It checks columns and fields of structs, but nothing in arrays and
    maps."""

    def reason(self) -> str:
        """Return the problem of a row that has a null in this place."""
        return f"column {self.path} is NULL but the table's is NOT NULL"


@dataclass(frozen=True, slots=True)
class TableRules:
    """A table's rules for its rows."""

    schema: StructType | None = None
    """The table's columns; None if there is no table yet."""
    checks: tuple[tuple[str, str], ...] = ()
    """Name and SQL expression of each CHECK constraint, sorted by name."""
    fills: bool = False
    """Whether the table may compute columns that the rows lack."""

    @classmethod
    def of(cls, schema: StructType | None, detail: TableDetail) -> TableRules:
        """Return the rules of a table with these columns and this detail."""
        # Sort the constraints, because the text of the reasons is stored and should not depend on the order
        # of properties.
        checks = {
            name.removeprefix(RULE_PREFIX): text
            for name, text in detail.properties.items()
            if name.startswith(RULE_PREFIX)
        }
        return cls(schema, tuple(sorted(checks.items())), computes_columns(detail.features))

    def has(self, column: str) -> bool:
        """Return whether the table has a column; Delta does not distinguish upper and lower case."""
        return self.schema is not None and column.lower() in (name.lower() for name in self.schema.names)


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Splits the rows of a batch into those that fit the main table and those that become dead letters."""

    rules: TableRules
    """Rules of the main table."""
    corrupt_column: str
    """Column that is not null in records that could not be read, if the rows have such a column."""
    origin: tuple[str, str]
    """Columns of a row's journal and offset."""
    is_committed: bool
    """Whether the rows are committed messages, which have acknowledgements."""
    upsert: Upsert | None = None
    """How rows are merged into the main table; None if they are appended."""

    def misfits(self, df: DataFrame, app_id: str) -> DataFrame:
        """Return the rows that do not fit, with the columns of the table of dead letters."""
        reasoned = self._reasoned(df)
        journal, offset = self.origin
        # A message belongs to the bytes that committed it, so dead letters of such queries keep that offset.
        acks = [F.col("_ack_offset").alias("ack_offset")] if self.is_committed else []
        ends = F.col("_end_offset") if "_end_offset" in df.columns else F.lit(None)
        # The record's bytes, if the query reads them. A column named value is the record only in rows of the
        # format raw. Otherwise the best substitute is the malformed record's text, or the row itself.
        types = {field.name: field.dataType for field in df.schema.fields}
        records = (RECORD, "value") if self.origin == ("journal", "offset") else (RECORD,)
        if record := next((name for name in records if types.get(name) == BinaryType()), None):
            raw = F.col(record)
        else:
            columns = [F.col(quoted(name)) for name in df.columns if name != self.corrupt_column]
            raw = F.to_json(F.struct(*columns)).cast("binary")
            if self.corrupt_column in df.columns:
                raw = F.coalesce(F.col(quoted(self.corrupt_column)).cast("binary"), raw)
        return reasoned.where(F.col(REASON).isNotNull()).select(
            F.lit(app_id).alias("app_id"),
            F.col(journal).alias("journal"),
            F.col(offset).alias("offset"),
            ends.cast("bigint").alias("end_offset"),
            raw.alias("raw"),
            F.col(REASON).alias("reason"),
            *acks,
        )

    def fitting(self, df: DataFrame, letters: DataFrame | None) -> DataFrame:
        """Return the other rows, without columns that only dead letters need.

        Running it fails at a row that does not fit and is not a dead letter.

        Args:
            df: Rows of the batch.
            letters: Positions of the dead letters, or None.
        """
        reasoned = self._reasoned(df)
        # The position decides, not the reason: a record that is a dead letter remains one, even if it fits in
        # this evaluation.
        if letters is not None:
            place = origin_place(reasoned, self.origin)
            reasoned = reasoned.join(letters, place == letters[PLACE], "left_anti")
        # A new table gets the columns of a row's origin, but not the record's bytes. If rows are merged by
        # key, their origin also determines which of them is the last.
        unwanted = (RECORD,) if self.upsert or self.rules.schema is None else ORIGIN_COLUMNS
        dropped = [
            name
            for name in (self.corrupt_column, *unwanted)
            if name in df.columns and not self.rules.has(name)
        ]
        return failing(reasoned, F.col(REASON), CHANGED).drop(REASON, *dropped)

    def _reasoned(self, df: DataFrame) -> DataFrame:
        """Return the rows with the column :data:`REASON`, which is null if a row fits."""
        rules = self.rules
        # A CHECK may use columns that the rows lack; such columns are null.
        missing = {
            field.name: F.lit(None).cast(field.dataType)
            for field in (rules.schema.fields if rules.schema else ())
            if field.name.lower() not in (name.lower() for name in df.columns)
        }
        # Delta evaluates a CHECK on the table's types. On narrower integers, the expression could overflow,
        # and it may use fields that a struct of the rows lacks. Columns that do not fit are refused later.
        as_stored: dict[str, Column] = {}
        for field, source in _common(rules.schema, df.schema) if rules.schema and rules.checks else ():
            fitted = fit("", StructType([source]), StructType([field]), add=True)
            target = fitted.schema.fields[0].dataType if isinstance(fitted, SchemaFit) else source.dataType
            if bare(target) != bare(source.dataType):
                as_stored[source.name] = shaped(F.col(quoted(source.name)), source.dataType, target)
        reasons = [
            F.when(check.has_null(F.col(quoted(column))), F.lit(check.reason()))
            for column, check in (null_checks(rules.schema, df.schema) if rules.schema else ())
        ]
        for name, check in rules.checks:
            # Unlike SQL, Delta refuses a row for which a CHECK is null. Only Delta can tell if the check uses
            # a column that the rows lack, and that the table computes or a merge leaves as it is.
            is_open = (rules.fills or self.upsert is not None) and any(
                column.lower() in check.lower() for column in missing
            )
            # A check that looks for nulls may be false here, although it is true for the value in the table.
            if is_open and LOOKS_FOR_NULLS.search(check):
                continue
            passes = F.coalesce(F.expr(check), F.lit(is_open))
            reasons.append(F.when(~passes, F.lit(f"CHECK {name} ({check})")))
        # Name all reasons, so that a record can be repaired in one go.
        reason = F.nullif(F.concat_ws("; ", *reasons), F.lit("")) if reasons else F.lit(None).cast("string")
        flag = self.upsert.delete_when if self.upsert else None
        if flag is not None and flag in df.columns:
            # A row that deletes another row is not stored, so the table's rules do not apply to it.
            deletes = F.coalesce(F.col(quoted(flag)), F.lit(False))  # noqa: FBT003 - a literal
            reason = F.when(~deletes, reason)
        # A record that could not be read has nulls in all columns, so it would also break every NOT NULL
        # rule. The only reason to report is that it could not be read.
        if self.corrupt_column in df.columns:
            unread = F.col(quoted(self.corrupt_column)).isNotNull()
            reason = F.when(unread, F.lit("does not parse")).otherwise(reason)
        columns = {**missing, **as_stored}
        if not columns:  # Spark Connect does not accept an empty list of columns.
            return df.withColumn(REASON, reason)
        # Only the checks use these columns. Rows and dead letters keep the batch's own.
        row = F.struct(*(F.col(quoted(name)) for name in df.columns)).alias(ROW)
        return df.select("*", row).withColumns(columns).withColumn(REASON, reason).select(f"{ROW}.*", REASON)


def origin_place(rows: DataFrame, origin: tuple[str, str]) -> Column:
    """Return journal and offset as one value.

    Two equal columns are not possible here: Spark copies conditions from one to the other, and
    :func:`~gazette_spark._delta.trim.rows_in_ranges` fails at rows that do not belong to the batch.
    """
    journal, offset = origin
    return F.struct(rows[journal].alias("journal"), rows[offset].alias("offset"))


def without_unchecked_nulls(df: DataFrame, schema: StructType) -> DataFrame:
    """Return rows that, when run, fail at a null that the table forbids but Delta does not check."""
    reasons = [
        F.when(check.has_null(F.col(quoted(column))), F.lit(check.reason()))
        for column, check in null_checks(schema, df.schema)
        if not check.by_delta
    ]
    return failing(df, F.concat_ws("; ", *reasons)) if reasons else df


def failing(df: DataFrame, problem: Column, said: str = "") -> DataFrame:
    """Return rows that, when run, fail at a row with a problem; see :func:`named_rows`.

    Spark moves conditions before joins and other conditions, where they see rows that those would drop. It
    does not move this condition, nor later ones before it, because a part of it is not deterministic.

    Args:
        df: Rows, with or without the columns of a row's origin.
        problem: A text, null or empty in rows without a problem.
        said: Beginning of the error's text.
    """
    origin = origin_columns(df.schema) or ()
    shown = [F.coalesce(F.col(name).cast("string"), F.lit("null")) for name in origin]
    where = [F.lit(f"in the row of {', '.join(origin)} ="), *shown] if origin else []
    error = F.raise_error(F.concat_ws(" ", F.lit("row: " + said), problem, *where, F.lit("|")))
    stays = F.spark_partition_id() >= 0
    fine = F.coalesce(problem, F.lit("")) == ""
    return df.where(F.when(~stays, 0).when(fine, 1).otherwise(error) == 1)


LOOKS_FOR_NULLS = re.compile(
    r"(?i)null|coalesce|nvl|<=>|distinct|greatest|least|concat_ws|hash|array|map|struct"
    r"|\b(if|iff|case|decode)\b"
)
"""Parts of an expression that may be false although the value of one of its columns is unknown."""

BAD_ROW = re.compile(r"\brow: (.*?) \|")
"""Pattern for Spark's error text at a row for which :func:`failing` fails, with a group for the problem."""


@contextmanager
def named_rows(table: str, app_id: str, batch_id: int) -> Iterator[None]:
    """Raise an error of this package if rows of :func:`failing` fail when they are run.

    Raises:
        BadRowError: a row has failed; the error names it.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        if match := BAD_ROW.search(str(error)):
            raise BadRowError(table, app_id, batch_id, match[1].strip()) from error
        raise


def null_checks(table: StructType, rows: StructType) -> Iterator[tuple[str, NullCheck]]:
    """Yield the places where a table forbids null but rows may have one, each with the rows' column.

    Columns that the rows lack are left out: no row would fit without them, so the batch is refused elsewhere.
    """
    for column, source in _common(table, rows):
        yield from ((source.name, check) for check in _checks(column.name, column, source))


def _common(table: StructType, rows: StructType) -> Iterator[tuple[StructField, StructField]]:
    sources = {field.name.lower(): field for field in rows.fields}
    for field in table.fields:
        if (source := sources.get(field.name.lower())) is not None:
            yield field, source


def _checks(path: str, column: StructField, source: StructField) -> Iterator[NullCheck]:
    """Yield the checks for a column or field of the table, and for the parts of its values."""
    # When it writes, Delta enforces NOT NULL for columns and fields of structs, but not within arrays and
    # maps, where a null would get in.
    if not column.nullable:
        yield NullCheck(path, F.isnull, by_delta=True)
    match column.dataType, source.dataType:
        case StructType() as fields, StructType() as sources:
            for field, inner in _common(fields, sources):
                for check in _checks(f"{path}.{field.name}", field, inner):
                    yield replace(check, has_null=partial(_in_field, inner.name, check.has_null))
        case ArrayType() as array, ArrayType() as source_array:
            element = StructField("", array.elementType, array.containsNull)
            yield from _element_checks(
                f"{path}.element", lambda values: values, element, source_array.elementType
            )
        case MapType() as entries, MapType() as source_map:
            key = StructField("", entries.keyType)
            yield from _element_checks(f"{path}.key", F.map_keys, key, source_map.keyType)
            value = StructField("", entries.valueType, entries.valueContainsNull)
            yield from _element_checks(f"{path}.value", F.map_values, value, source_map.valueType)


def _element_checks(
    path: str, values: Callable[[Column], Column], element: StructField, source: DataType
) -> Iterator[NullCheck]:
    """Yield the checks for the values in an array or map, none of which Delta makes."""
    for check in _checks(path, element, StructField("", source)):
        # A null element violates the rule itself, and has no fields that could also violate one.
        has_null = check.has_null if check.path == path else partial(_in_struct, check.has_null)
        yield replace(check, has_null=partial(_in_any, values, has_null), by_delta=False)


def _in_field(name: str, has_null: Callable[[Column], Column], struct: Column) -> Column:
    return has_null(struct.getField(name))


def _in_struct(has_null: Callable[[Column], Column], element: Column) -> Column:
    return element.isNotNull() & has_null(element)


def _in_any(
    values: Callable[[Column], Column], has_null: Callable[[Column], Column], container: Column
) -> Column:
    return F.exists(values(container), has_null)
