"""Drops the rows of a batch that its table has already.

Which rows those are is decided by offsets (:mod:`gazette_spark.ledger.decision`); here they are found by the
columns that say where a row comes from. A row that comes from elsewhere than the batch shows that the columns
mean something else, or were changed. It ends the query: to keep it could double it, to drop it could lose it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType

from gazette_spark.ledger.decision import NewRange
from gazette_spark.ledger.entry import Isolation

METADATA_COLUMNS: dict[str, DataType] = {"_journal": StringType(), "_offset": LongType()}
"""The source's columns of a row's journal and offset."""

COMMITTED_COLUMNS: dict[str, DataType] = {"_journal": StringType(), "_ack_offset": LongType()}
"""Likewise, of queries of committed messages: a message belongs to the bytes that committed it."""

RAW_COLUMNS: dict[str, DataType] = {"journal": StringType(), "offset": LongType(), "value": BinaryType()}
"""Columns of the format ``raw``. Only all three together say where a row comes from: records may have fields
named ``journal`` and ``offset``."""


def origin_columns(schema: StructType) -> tuple[str, str] | None:
    """Return the names of the columns of a row's journal and offset, None if they are missing."""
    if has_columns(schema, METADATA_COLUMNS):
        return "_journal", "_offset"
    return ("journal", "offset") if has_columns(schema, RAW_COLUMNS) else None


def range_origin(schema: StructType, isolation: Isolation) -> tuple[str, str] | None:
    """Return the columns that say in which bytes of a batch a row is; None if they are missing."""
    if isolation == "read_uncommitted":
        return origin_columns(schema)
    return ("_journal", "_ack_offset") if has_columns(schema, COMMITTED_COLUMNS) else None


def has_columns(schema: StructType, wanted: Mapping[str, DataType]) -> bool:
    """Say whether a schema has columns of these names and types."""
    types = {field.name: field.dataType for field in schema.fields}
    return all(types.get(name) == kind for name, kind in wanted.items())


def missing_columns(schema: StructType, isolation: Isolation = "read_uncommitted") -> str:
    """Say why rows of a schema cannot be told apart, and what to do."""
    wanted = "_journal and _offset (or journal, offset and value as BINARY, of the format raw)"
    if isolation == "read_committed":
        wanted = "_journal and _ack_offset"
    return (
        f"its rows, with the columns {', '.join(schema.names)}, do not say where they come from. Give the "
        f"sink rows with the source's columns {wanted}"
    )


def rows_in_ranges(
    df: DataFrame, kept: Sequence[NewRange], columns: tuple[str, str], *, doing: str = "trim"
) -> DataFrame:
    """Return the rows in the given ranges; running it fails at a row outside the batch's offsets.

    ``doing`` is the impossible action in the error's text.
    """
    journal, offset = (F.col(name) for name in columns)
    begin, since, end = range_columns(kept, journal)
    shown = (F.coalesce(column.cast("string"), F.lit("null")) for column in (journal, offset))
    problem = F.concat_ws(
        " ", F.lit(f"cannot {doing}: the batch has no row of"), F.lit(f"{columns[0]}, {columns[1]} ="), *shown
    )
    inside = (offset >= begin) & (offset < end)
    return df.where(F.when(inside, offset >= since).otherwise(F.raise_error(problem)))


def range_columns(kept: Sequence[NewRange], journal: Column) -> tuple[Column, Column, Column]:
    """Return begin, since and end of a journal's range, null for other journals.

    The ranges go into one constant, a map by journal: a condition per journal would be too deep a tree.
    """
    ranges = json.dumps({each.journal: [each.begin, each.since, each.end] for each in kept})
    span = F.try_element_at(F.from_json(F.lit(ranges), "MAP<STRING, ARRAY<BIGINT>>"), journal)
    return F.get(span, 0), F.get(span, 1), F.get(span, 2)
