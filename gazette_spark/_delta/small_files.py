"""Determines the number of files for a batch, and when the small files of a table are compacted.

Both depend only on offsets and numbers that are known anyway: the bytes that a batch reads, and the number of
entries of the app id. So neither needs to look at the rows, and both are the same after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from gazette_spark._delta.java_errors import first_line
from gazette_spark._delta.sql_names import quoted
from gazette_spark._ledger.entry import Batch, LedgerEntry
from gazette_spark.offsets import JournalOffsets

log = logging.getLogger(__name__)


def batch_bytes(batch: Batch) -> int | None:
    """Return the number of bytes of journals in a batch, or None if it also reads other sources."""
    total = 0
    for begin, end in zip(batch.begin, batch.end, strict=True):
        if not isinstance(begin, JournalOffsets) or not isinstance(end, JournalOffsets):
            return None
        total += sum(until - begin.read_through[journal] for journal, until in end.read_through.items())
    return total


def files_wanted(read_bytes: int | None, target_file_bytes: int | None) -> int | None:
    """Return the number of parts in which to write a batch, or None to keep its partitions.

    Args:
        read_bytes: Number of bytes that the batch has read; None if it is unknown.
        target_file_bytes: Approximate number of bytes to read for each file.
    """
    if read_bytes is None or target_file_bytes is None:
        return None
    return max(1, -(-read_bytes // target_file_bytes))


def in_files(df: DataFrame, files: int | None, partition_by: Sequence[str]) -> DataFrame:
    """Return the rows in at most ``files`` parts.

    For a table without partitions, neighbouring parts are joined without a shuffle. For a table with
    partitions, each part would write a file in each partition, so rows are first grouped by partition.
    Partition columns that the rows lack are null, or Delta computes them.
    """
    if files is None:
        return df
    names = {name.lower() for name in df.columns}
    present = [name for name in partition_by if name.lower() in names]
    if files == 1 or not present:
        return df.coalesce(files)
    return df.repartition(files, *map(quoted, present))


def compaction_due(entry: LedgerEntry, compact_every: int | None) -> bool:
    """Return whether to compact a table after an entry; entries of an app id are numbered without holes."""
    return compact_every is not None and (entry.txn_version + 1) % compact_every == 0


def compact(spark: SparkSession, table: str, clauses: str = "") -> bool:
    """Compact the small files of a table. A failure is only logged, because it must not stop a query.

    Delta skips files that are already large. The commit changes no row and has no ledger entry.

    Args:
        spark: The session.
        table: The table, as SQL names it.
        clauses: Clauses of the statement OPTIMIZE.

    Returns:
        Whether the statement succeeded.
    """
    try:
        done = spark.sql(f"OPTIMIZE {table} {clauses}")
        row = done.select("metrics.numFilesAdded", "metrics.numFilesRemoved").head()
    except Exception as error:  # noqa: BLE001 - conflicts and all else: it is tried again N entries later.
        log.warning("compaction_failed table=%s error=%s", table, first_line(error)[:200])
        return False
    if row is not None:
        log.info("compacted table=%s files_removed=%d files_added=%d", table, row[1], row[0])
    return True
