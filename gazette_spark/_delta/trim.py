"""Drops the rows of a batch that its table already has.

Offsets decide which rows those are (:mod:`gazette_spark._ledger.decision`). This module finds them by the
columns that contain a row's origin. If a row does not come from the batch's bytes, the columns were changed
or have a different meaning. Such a row ends the query, because keeping it could duplicate it and dropping it
could lose it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType

from gazette_spark._ledger.decision import NewRange
from gazette_spark._ledger.entry import Batch, Isolation, SkippedGap, ranges_text
from gazette_spark.errors import TrimError

log = logging.getLogger(__name__)

METADATA_COLUMNS: dict[str, DataType] = {"_journal": StringType(), "_offset": LongType()}
"""The source's columns that contain a row's journal and offset."""

COMMITTED_COLUMNS: dict[str, DataType] = {"_journal": StringType(), "_ack_offset": LongType()}
"""The corresponding columns in queries of committed messages: a message belongs to the bytes that committed
it."""

RAW_COLUMNS: dict[str, DataType] = {"journal": StringType(), "offset": LongType(), "value": BinaryType()}
"""Columns of the format ``raw``. Only all three together show a row's origin, because records may have fields
named ``journal`` and ``offset``."""


def origin_columns(schema: StructType) -> tuple[str, str] | None:
    """Return the names of the columns of a row's journal and offset, or None if they are missing."""
    if has_columns(schema, METADATA_COLUMNS):
        return "_journal", "_offset"
    return ("journal", "offset") if has_columns(schema, RAW_COLUMNS) else None


def range_origin(schema: StructType, isolation: Isolation) -> tuple[str, str] | None:
    """Return the columns that show to which bytes of a batch a row belongs, or None if they are missing."""
    if isolation == "read_uncommitted":
        return origin_columns(schema)
    return ("_journal", "_ack_offset") if has_columns(schema, COMMITTED_COLUMNS) else None


def has_columns(schema: StructType, columns: Mapping[str, DataType]) -> bool:
    """Return whether a schema has columns with these names and types."""
    types = {field.name: field.dataType for field in schema.fields}
    return all(types.get(name) == kind for name, kind in columns.items())


def missing_columns(schema: StructType, isolation: Isolation = "read_uncommitted") -> str:
    """Return why rows of a schema cannot be matched with journal offsets, and what to do."""
    expected = "_journal and _offset (or journal, offset and value as BINARY, of the format raw)"
    if isolation == "read_committed":
        expected = "_journal and _ack_offset"
    return (
        f"its rows, with the columns {', '.join(schema.names)}, do not say where they come from. Give the "
        f"sink rows with the source's columns {expected}"
    )


def trim(df: DataFrame, ranges: Sequence[NewRange], batch: Batch) -> DataFrame:
    """Return the rows of a batch that its table does not have.

    Raises:
        TrimError: the rows lack the columns of their origin.
    """
    origin = range_origin(df.schema, batch.isolation)
    if origin is None:
        problem = missing_columns(df.schema, batch.isolation)
        raise TrimError(batch.table, batch.app_id, batch.batch_id, problem)
    dropped = [SkippedGap(span.journal, span.begin, span.since) for span in ranges if span.begin < span.since]
    if dropped:
        line = f"app_id={batch.app_id} batch_id={batch.batch_id} {ranges_text(dropped)}"
        log.warning("rows_trimmed %s", line)
    return rows_in_ranges(df, ranges, origin)


def rows_in_ranges(
    df: DataFrame, ranges: Sequence[NewRange], columns: tuple[str, str], *, doing: str = "trim"
) -> DataFrame:
    """Return the rows in some ranges. Running it fails at a row outside the batch's offsets.

    ``doing`` names the impossible operation in the error's text.
    """
    journal, offset = (F.col(name) for name in columns)
    # The expression has three cases: before since, the table has the row; from since to end, the row is new;
    # everywhere else, the row is not from the batch's bytes.
    begin, since, end = range_columns(ranges, journal)
    shown = (F.coalesce(column.cast("string"), F.lit("null")) for column in (journal, offset))
    problem = F.concat_ws(
        " ", F.lit(f"cannot {doing}: the batch has no row of"), F.lit(f"{columns[0]}, {columns[1]} ="), *shown
    )
    inside = (offset >= begin) & (offset < end)
    return df.where(F.when(inside, offset >= since).otherwise(F.raise_error(problem)))


def range_columns(ranges: Sequence[NewRange], journal: Column) -> tuple[Column, Column, Column]:
    """Return begin, since and end of a journal's range; null for other journals.

    The ranges are one constant, a map by journal: one condition for each journal would make the expression
    too deep.
    """
    by_journal = json.dumps({span.journal: [span.begin, span.since, span.end] for span in ranges})
    # For a journal that the batch does not read, try_element_at returns null. Then the row is refused, with
    # its journal and offset in the error's text.
    span = F.try_element_at(F.from_json(F.lit(by_journal), "MAP<STRING, ARRAY<BIGINT>>"), journal)
    return F.get(span, 0), F.get(span, 1), F.get(span, 2)
