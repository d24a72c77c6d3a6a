"""Filters that Spark pushes into a batch query, as conditions on where rows come from.

Spark hands over the filters of a query that compare one column with constants, to be taken as joined by
*and*; alternatives, functions and entries of maps it keeps. Each is a condition on a column that says where a
row comes from, or of no use here: what records hold is known to who reads them only.

A filter on a journal's name or labels is true for all rows of a journal or for no row, so it is applied
fully. Filters on offsets and times save reading, and Spark applies them to the rows again.

Spark 4.0 has no such filters, so this module is imported only where Spark offers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import datasource as spark_filters
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from gazette_spark.framing import metadata
from gazette_spark.scan.conditions import Comparison, Condition, RowFilter, Subject

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

COMPARISONS: Mapping[type[Filter], Comparison] = {
    spark_filters.EqualTo: Comparison.EQUAL,
    spark_filters.EqualNullSafe: Comparison.SAME,
    spark_filters.LessThan: Comparison.LESS,
    spark_filters.LessThanOrEqual: Comparison.AT_MOST,
    spark_filters.GreaterThan: Comparison.MORE,
    spark_filters.GreaterThanOrEqual: Comparison.AT_LEAST,
    spark_filters.StringStartsWith: Comparison.STARTS,
    spark_filters.StringEndsWith: Comparison.ENDS,
    spark_filters.StringContains: Comparison.CONTAINS,
}

VALUE_TYPES: Mapping[Subject, type] = {
    Subject.JOURNAL: str,
    Subject.LABEL: str,
    Subject.OFFSET: int,
    Subject.MOD_TIME: int,
}

EXACT = (Subject.JOURNAL, Subject.LABEL)
"""Subjects with one value for all rows of a journal."""


def origin_columns(schema: StructType, *, raw: bool, taken: Iterable[str | None] = ()) -> dict[str, Subject]:
    """Return the columns of a schema with a row's origin, except ``_labels``.

    Args:
        schema: The query's columns.
        raw: The columns are those of ``format=raw``; in others ``journal`` and ``offset`` are fields of
            records.
        taken: Columns with other content, whatever their name.
    """
    named = {
        metadata.JOURNAL: Subject.JOURNAL,
        metadata.OFFSET: Subject.OFFSET,
        metadata.MOD_TIME: Subject.MOD_TIME,
    }
    if raw:
        named |= {"journal": Subject.JOURNAL, "offset": Subject.OFFSET}
    present = set(schema.fieldNames()) - set(taken)
    return {name: subject for name, subject in named.items() if name in present}


def conditions_of(
    filters: Sequence[Filter], columns: Mapping[str, Subject]
) -> tuple[RowFilter, list[Filter]]:
    """Return the pushed conditions, and the filters that Spark has to apply to the rows."""
    conditions: list[Condition] = []
    left: list[Filter] = []
    for each in filters:
        if isinstance(each, spark_filters.IsNotNull) and tuple(each.attribute) == (metadata.LABELS,):
            continue  # Spark asks for it beside each filter on a label; the column is never null.
        condition = _condition(each, columns)
        if condition is not None:
            conditions.append(condition)
        if condition is None or condition.subject not in EXACT:
            left.append(each)
    return RowFilter(tuple(conditions)), left


def _condition(pushed: Filter, columns: Mapping[str, Subject]) -> Condition | None:
    """Return a filter's condition on a row's origin, None if its subject is something else."""
    negated = isinstance(pushed, spark_filters.Not)
    inner = pushed.child if isinstance(pushed, spark_filters.Not) else pushed
    subject, label = _subject(getattr(inner, "attribute", ()), columns)
    if subject is None:
        return None
    match inner:
        case spark_filters.IsNull():
            return Condition(subject, Comparison.IS_NULL, (), negated, label)
        case spark_filters.IsNotNull():
            return Condition(subject, Comparison.IS_NULL, (), not negated, label)
        case spark_filters.In():
            test, found = Comparison.IN, list(inner.value)
        case _ if type(inner) in COMPARISONS:
            test, found = COMPARISONS[type(inner)], [inner.value]  # type: ignore[attr-defined]
        case _:
            return None
    values = [_value(each) for each in found]
    if any(each is not None and type(each) is not VALUE_TYPES[subject] for each in values):
        return None
    return Condition(subject, test, tuple(values), negated, label)  # type: ignore[arg-type]


def _subject(path: Sequence[str], columns: Mapping[str, Subject]) -> tuple[Subject | None, str]:
    match tuple(path):
        case (str(name),):
            return columns.get(name), ""
        case (metadata.LABELS, str(label)):
            return Subject.LABEL, label
    return None, ""


def _value(value: object) -> object:
    """Return a filter's constant in the form of conditions; a constant of another type is unchanged."""
    if isinstance(value, datetime):
        # Without a time zone it would be a column's of another type.
        return value if value.tzinfo is None else (value - EPOCH) // timedelta(microseconds=1)
    return value
