"""Counts and digests a batch's rows by journal, in one pass; see :mod:`gazette_spark.ledger.row_digest`."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import StructType

from gazette_spark.ledger.row_digest import DIGITS, AuditedRows, digest_text
from gazette_spark.table.trim import RAW_COLUMNS, has_columns, origin_columns


def audit_rows(df: DataFrame, journals: Collection[str]) -> tuple[AuditedRows, ...]:
    """Return the number and digest of a batch's rows, by journal; journals without rows are left out.

    Runs the batch's plan once: the source is read here, and again when the rows are written.

    Args:
        df: The batch.
        journals: Journals that it reads. Rows of other names are counted as of no journal: an entry is to
            stay small, whatever a query puts into its columns.
    """
    counted = df.groupBy(_journal(df.schema).alias("journal")).agg(
        F.count(F.lit(1)).alias("rows"), _digest(df.schema).alias("digest")
    )
    found, nowhere = [], 0
    for row in counted.collect():
        if row.journal in journals:
            digest = None if row.digest is None else digest_text(row.digest)
            found.append(AuditedRows(row.journal, row.rows, digest))
        else:
            nowhere += row.rows
    if nowhere:
        found.append(AuditedRows(None, nowhere))
    return tuple(sorted(found, key=lambda each: each.journal or ""))


def _journal(schema: StructType) -> Column:
    columns = origin_columns(schema)
    return F.lit(None).cast("string") if columns is None else F.col(columns[0])


def _digest(schema: StructType) -> Column:
    """Return the column of a digest of a group's rows, null where their bytes are missing."""
    if not has_columns(schema, RAW_COLUMNS):
        return F.lit(None).cast("bigint")
    return F.coalesce(F.bit_xor(row_digest()), F.lit(0))


def row_digest() -> Column:
    """Return the digest of a row by its columns ``offset`` and ``value``; null without bytes."""
    text = F.encode(F.col("offset").cast("string"), "UTF-8")
    digits = F.substring(F.sha2(F.concat(text, F.lit(b":"), F.col("value")), 256), 1, DIGITS)
    return F.conv(digits, 16, 10).cast("bigint")
