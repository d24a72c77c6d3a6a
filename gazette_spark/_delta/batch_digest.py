"""Counts and digests rows by group in one pass; see :mod:`gazette_spark._ledger.row_digest`."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark._delta.trim import RAW_COLUMNS, has_columns, origin_columns
from gazette_spark._ledger.row_digest import LEAF_BYTES, NODE_BYTES, AuditedRows


def audit_rows(df: DataFrame, journals: Collection[str]) -> tuple[AuditedRows, ...]:
    """Return the number and digest of a batch's rows, by journal; journals without rows are left out.

    This runs the batch's plan once, so the source is read here and again when the rows are written.

    Args:
        df: The batch.
        journals: Journals that the batch reads. Rows with any other name are counted as rows of no journal,
            so that an entry stays small regardless of what a query puts into its columns.
    """
    columns = origin_columns(df.schema)
    journal = F.lit(None).cast("string") if columns is None else F.col(columns[0])
    if has_columns(df.schema, RAW_COLUMNS):
        counted = digests(df.select(journal.alias("group"), "offset", "value"))
    else:
        # Without the record's bytes, rows can be counted but not digested (decision 0018).
        counted = df.groupBy(journal.alias("group")).agg(
            F.count(F.lit(1)).alias("rows"), F.lit(None).cast("string").alias("digest")
        )
    counts, elsewhere = [], 0
    for row in counted.collect():
        if row.group in journals:
            counts.append(AuditedRows(row.group, row.rows, row.digest))
        else:
            elsewhere += row.rows
    if elsewhere:
        counts.append(AuditedRows(None, elsewhere))
    return tuple(sorted(counts, key=lambda counted: counted.journal or ""))


def digests(rows: DataFrame) -> DataFrame:
    """Return the number and digest of each group's rows: ``group``, ``rows`` and ``digest``.

    Only the hash of each row is shuffled, and a task has the hashes of only one leaf in memory at a time.

    Args:
        rows: Columns ``group``, ``offset`` and ``value``.
    """
    hashed = F.sha2(row_text(), 256).alias("digest")
    leaf = F.expr(f"`offset` div {LEAF_BYTES}").alias("at")
    leaves = _joined(rows.select("group", leaf, hashed, F.lit(1).cast("bigint").alias("rows")), "group", "at")
    # Only one hash for each MiB remains. A single task processes these faster than a shuffle for each of the
    # two levels.
    node = F.expr(f"at div {NODE_BYTES // LEAF_BYTES}").alias("at")
    nodes = _joined(leaves.repartition(1).select("group", node, "digest", "rows"), "group", "at")
    return _joined(nodes, "group")


def _joined(level: DataFrame, *keys: str) -> DataFrame:
    hashes = F.array_join(F.array_sort(F.collect_list("digest")), "")
    return level.groupBy(*keys).agg(F.sum("rows").alias("rows"), F.sha2(hashes, 256).alias("digest"))


def row_text(*, values: bool = True) -> Column:
    """Return the bytes that are hashed for a row, from its columns ``offset`` and, optionally, ``value``.

    They are never null, because a null hash would be dropped where hashes are concatenated.
    """
    offset = F.coalesce(F.encode(F.col("offset").cast("string"), "UTF-8"), F.lit(b""))
    if not values:
        return offset
    value = F.col("value").cast("binary")
    return F.concat(offset, F.coalesce(F.concat(F.lit(b":"), value), F.lit(b"")))
