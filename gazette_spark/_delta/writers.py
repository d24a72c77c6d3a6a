"""The three ways to write a batch to a Delta table: append it, merge it by key, or commit files from tasks.

Each way is one Delta commit that contains the rows, the ledger entry and a transaction number. Only the
table's history shows its outcome: Delta skips a number that it has seen without an error, and may raise a
conflict for a commit that succeeded.

MERGE has no writer options. Delta takes the transaction number and ``userMetadata`` from the session, so the
statement runs in a copy of the session in which they are set. With a transaction number, Delta commits even a
MERGE that changes nothing, so offsets that move without rows get their entry.
"""

from __future__ import annotations

import re
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

from gazette_spark.errors import MissingPackageError

try:
    from delta.exceptions import (
        ConcurrentAppendException,
        ConcurrentDeleteDeleteException,
        ConcurrentDeleteReadException,
        ConcurrentTransactionException,
        ConcurrentWriteException,
        DeltaConcurrentModificationException,
        MetadataChangedException,
        ProtocolChangedException,
    )
except ModuleNotFoundError as missing:
    problems = {
        "delta": "the sink needs the package delta-spark; the package named delta is a different one",
        "pyspark": "Spark is not installed",
    }
    if (name := (missing.name or "").partition(".")[0]) not in problems:
        raise
    raise MissingPackageError(problems[name]) from None
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark._delta.delta_table import APP_ID_PREFIX, DeltaTable, TableSnapshot
from gazette_spark._delta.file_commits import FileCommits
from gazette_spark._delta.files import is_classic
from gazette_spark._delta.row_steps import AlignedRows, TableLayout, align
from gazette_spark._delta.session import private_session, session_settings
from gazette_spark._delta.sql_names import quoted
from gazette_spark._delta.start_checks import check_alone
from gazette_spark._delta.trim import range_origin
from gazette_spark._delta.upsert import (
    LISTED_KEYS,
    PRECISE,
    Origin,
    Upsert,
    copies,
    free_name,
    keys_condition,
    merge_statement,
    rank,
)
from gazette_spark._ledger.entry import Batch, LedgerEntry
from gazette_spark.errors import UpsertError
from gazette_spark.failpoints import failpoint

CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""Delta's conflict errors, which have no common base class."""

BAD_KEY = re.compile(r"upsert: (a key .*?) \|")
"""Pattern for Spark's error text if :func:`last_rows` meets a key that is null or occurs twice, with a group
for the problem."""


REPLACING = {
    **PRECISE,
    "spark.databricks.delta.replaceWhere.dataColumns.enabled": "true",
    # Delta would compare each row with one value of the condition after the other.
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
}
"""Settings under which Delta replaces the rows of named keys."""

LARGE_ROWS = {"spark.sql.sources.fileCompressionFactor": "20.0"}
"""Setting for a MERGE into files whose rows are much larger than the files.

Spark mistakes the size of files for that of their rows, and sends the smaller side of a join to all tasks if
it is small. Ten million sorted keys are in files of a few megabytes, and did not fit into a driver of 1 GB.
"""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What is known about a write before the table's history has been read again."""

    table: TableSnapshot
    """The table to which the rows were fitted."""
    adds_columns: bool = False
    """Whether the write adds columns to the table."""
    conflict: Exception | None = None
    """The conflict that Delta raised, if any."""


class AppendWriter:
    """Appends rows."""

    reads_columns = True
    """Whether the writer compares the columns of rows with the table's."""

    def __init__(self, target: DeltaTable, layout: TableLayout) -> None:
        self._target = target
        self._layout = layout

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target.name})"

    def open(self, spark: SparkSession) -> None:
        """Prepare a commit, before the ledger is read."""
        load_conflict_classes(spark)

    def commit(self, rows: DataFrame, entry: LedgerEntry, table: TableSnapshot, batch: Batch) -> WriteResult:
        """Try once to write rows together with their entry.

        Raises:
            SinkError: the rows cannot be written to this table. Nothing was written.
        """
        try:
            return self._write(rows, entry, table, batch)
        except CONFLICTS as error:
            return WriteResult(table, conflict=error)
        except AnalysisException as error:
            if table.schema is None or table.schema == self._target.schema(rows.sparkSession):
                raise
            return WriteResult(table, conflict=error)

    def commit_entry(self, spark: SparkSession, entry: LedgerEntry) -> None:
        """Commit an entry without rows to an existing table."""
        self._target.append_entry(spark, entry)

    def _write(self, rows: DataFrame, entry: LedgerEntry, table: TableSnapshot, batch: Batch) -> WriteResult:
        aligned = align(rows, table, self._target, self._layout, batch)
        self._target.append(aligned.df, entry, exists=aligned.exists, add_columns=aligned.add_columns)
        return WriteResult(aligned.table, aligned.add_columns)


class FileWriter(AppendWriter):
    """Commits data files that tasks write. The rows name the files; see :mod:`gazette_spark._ingest`."""

    reads_columns = False

    def __init__(self, target: DeltaTable, layout: TableLayout, files: FileCommits) -> None:
        super().__init__(target, layout)
        self._files = files

    def __copy__(self) -> FileWriter:
        """Return the writer of another run, which must not commit on the snapshot that this one opened."""
        return FileWriter(self._target, self._layout, copy(self._files))

    def open(self, spark: SparkSession) -> None:
        """Open the snapshot on which to commit. Anything committed for the app id after it is a conflict."""
        # This is called before the ledger is read, because deltalake compares a transaction number only with
        # commits since its snapshot.
        self._files.open(self._target.current_location(spark))

    def commit_entry(self, _spark: SparkSession, entry: LedgerEntry) -> None:
        """Commit an entry without files."""
        self._files.commit(None, entry)

    def _write(self, rows: DataFrame, entry: LedgerEntry, table: TableSnapshot, _batch: Batch) -> WriteResult:
        return WriteResult(table, conflict=self._files.commit(rows, entry))


class MergeWriter(AppendWriter):
    """Keeps one row for each key: the last one."""

    def __init__(self, target: DeltaTable, layout: TableLayout, upsert: Upsert) -> None:
        super().__init__(target, layout)
        self._upsert = upsert
        self._alone_at: tuple[int, str] | None = None
        """Version and newest attempt of the table after this writer's last write, if the table had no rows of
        others then."""

    def _write(self, rows: DataFrame, entry: LedgerEntry, table: TableSnapshot, batch: Batch) -> WriteResult:
        spark = rows.sparkSession
        # This reads the keys of all rows, so it is done only before the first merged batch. From then on,
        # merging keeps keys unique, and the ledger refuses batches without upsert.
        if has_unmerged_rows(table):
            all_rows = self._target.rows(spark, table.ledger.table_version)
            check_keys_once(all_rows, self._target.name, entry, self._upsert)
        complete = batch.output_mode == "complete"
        if complete:
            # A complete result replaces all rows, so rows of others would be deleted. The history is searched
            # for other writers at the first batch, and whenever another writer has committed.
            if table.exists and (table.ledger.table_version, table.attempt) != self._alone_at:
                check_alone(self._target, spark, entry.app_id, table.ledger)
            # If this write becomes the next version, no other writer has committed, and the next batch need
            # not search. Otherwise the pair does not match, and the next batch searches.
            self._alone_at = table.ledger.table_version + 1, entry.attempt
        last = last_rows(self._target, rows, entry, self._upsert, grouped=batch.output_mode != "append")
        aligned = align(last, table, self._target, self._layout, batch, beside=self._upsert.beside)
        upsert = self._upsert
        if aligned.exists and aligned.add_columns:
            # A MERGE can add columns, but its conditions can only use columns that the table already has.
            existing = {name.lower() for name in self._target.schema(spark).names}
            if new := [key for key in upsert.keys if key.lower() not in existing]:
                problem = (
                    f"the table does not have the key {', '.join(new)}, so none of its rows could be found. "
                    "Add the column and fill it, or write to another table"
                )
                raise UpsertError(self._target.name, entry.app_id, entry.batch_id, problem)
            # All rows of the table are null there, so none of them is newer than a row of the batch.
            if upsert.order_by is not None and upsert.order_by.lower() not in existing:
                upsert = replace(upsert, order_by=None)
        try:
            # A MERGE does not create a table, so the first rows are appended.
            if aligned.exists:
                merge_rows(self._target, aligned, entry, upsert, complete=complete)
            else:  # Delta creates the table from the rows; a row that deletes has nothing to delete.
                self._target.append(rows_to_keep(aligned.df, upsert), entry, exists=False)
        except PySparkException as error:
            # The rows run here, and with them the checks of their keys, which `last_rows` added.
            if match := BAD_KEY.search(str(error)):
                null = "is null" in match[1]
                way_out = (
                    "Leave such rows out of the query, or give them a key" if null else "Name all of them"
                )
                problem = f"{match[1]}. {way_out}"
                raise UpsertError(self._target.name, entry.app_id, entry.batch_id, problem) from error
            raise
        return WriteResult(aligned.table, aligned.add_columns)


class ReplaceWriter(MergeWriter):
    """Keeps one row of each key, for batches that return the same rows in each run.

    A MERGE looks for its keys in all files, three times, so it takes longer the more rows a table has. A
    batch of few keys names them instead: one commit removes their rows and appends those of the batch.
    Delta and Parquet find the rows by the statistics of files and pages.
    """

    def _write(self, rows: DataFrame, entry: LedgerEntry, table: TableSnapshot, batch: Batch) -> WriteResult:
        spark, upsert = rows.sparkSession, self._upsert
        keys = rows.coalesce(1).select(*map(_column, upsert.keys)).limit(LISTED_KEYS + 1).collect()
        names = {tuple(key) for key in keys if None not in key}
        location = self._target.location
        # Look up the location of a table in the catalog, because its name may now belong to another table.
        if location is not None and self._target.path is None:
            location = self._target.current_location(spark)
        # MERGE can do more: it accepts any number of keys, refuses a null, finds the last row of a key,
        # checks the rows of a table that had no entry before, and writes tables whose commits the catalog
        # keeps.
        is_listed = len(names) == len(keys) <= LISTED_KEYS
        if has_unmerged_rows(table) or not is_listed or (keys and location is None):
            with session_settings(spark, LARGE_ROWS):
                return super()._write(rows, entry, table, batch)
        aligned = align(rows_to_keep(rows, upsert), table, self._target, self._layout, batch)
        if keys and location is not None:
            with session_settings(spark, REPLACING):
                condition = keys_condition(upsert.keys, names)
                # The keys were read in one run of the rows, and the rows are written in another. A row of
                # another key would be a second row of that key.
                other = F.raise_error(F.lit("rows to replace changed while they were written"))
                named = aligned.df.where(F.when(F.expr(condition), F.lit(True)).otherwise(other))  # noqa: FBT003
                # Write one sorted file for each partition of the table, so that its pages can be skipped as
                # well.
                ordered = named.coalesce(1).sortWithinPartitions(*map(_column, upsert.keys))
                failpoint("sink.during_replace")
                self._target.replace(ordered, entry, location, condition)
        else:
            self._target.append(aligned.df, entry, exists=aligned.exists)
        return WriteResult(aligned.table, aligned.add_columns)


def load_conflict_classes(spark: SparkSession) -> None:
    """Make Spark Connect raise Delta's conflicts with their classes, as classic PySpark does.

    If Delta's package for Connect is missing, a conflict ends the query, but nothing is lost.
    """
    if not is_classic(spark):
        with suppress(ImportError):
            import delta.connect.exceptions  # noqa: F401 - to load it is all it takes.


def has_unmerged_rows(table: TableSnapshot) -> bool:
    """Return whether the table has rows that were not merged by key, so that a key may occur twice."""
    newest = table.ledger.entry
    return table.exists and (newest is None or newest.mode != "upsert")


def rows_to_keep(rows: DataFrame, upsert: Upsert) -> DataFrame:
    """Return the rows that do not delete their key, with the columns that are stored."""
    if upsert.delete_when is not None:
        rows = rows.where(F.expr(f"NOT coalesce({quoted(upsert.delete_when)}, false)"))
    return rows.select(*map(_column, upsert.stored(rows.columns)))


def last_rows(
    target: DeltaTable, df: DataFrame, entry: LedgerEntry, upsert: Upsert, *, grouped: bool = False
) -> DataFrame:
    """Return the last row of each key, with the columns that are stored and ``delete_when`` without nulls.

    Running it fails if a key is null, or if a key occurs twice in rows that are ``grouped`` by their keys and
    have no order.

    Raises:
        UpsertError: the batch's columns do not fit ``upsert``.
    """
    origin: Origin | None = range_origin(df.schema, entry.isolation)
    # All messages of a transaction have the offset of its acknowledgement, so they are ordered by their own
    # offsets.
    if origin is not None and entry.isolation == "read_committed" and "_offset" in df.columns:
        origin = (*origin, "_offset")
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    if problem := upsert.unfit(types, origin, grouped=grouped):
        raise UpsertError(target.name, entry.app_id, entry.batch_id, problem)

    # A null in a key most likely means that the record could not be parsed. If null were a key, only one such
    # record would be kept.
    text = f"upsert: a key is null ({', '.join(upsert.keys)})"
    text += f", in the row of {', '.join(origin)} =" if origin else ""
    shown = [F.coalesce(_column(name).cast("string"), F.lit("null")) for name in origin or ()]
    problem_text = F.concat_ws(" ", F.lit(text), *shown, F.lit("|"))
    has_key = reduce(and_, [_column(name).isNotNull() for name in upsert.keys])
    # The check is part of the plan of the rows, because a separate check would run the batch once more.
    rows = df.where(F.when(has_key, has_key).otherwise(F.raise_error(problem_text)))

    # Without an order, no row of a key is the last one, so a key may have only one row.
    place = free_name("place_from_last", df.columns)
    if origin is not None or upsert.order_by is not None:
        rows = rows.withColumn(place, F.expr(rank(upsert, origin))).where(_column(place) == 1)
    else:
        rows = rows.withColumn(place, F.expr(copies(upsert)))
        text = f"upsert: a key ({', '.join(upsert.keys)}) occurs twice in a batch, so the keys are not the"
        twice = F.raise_error(F.lit(f"{text} grouping keys |"))
        rows = rows.where(F.when(_column(place) == 1, F.lit(True)).otherwise(twice))  # noqa: FBT003 - a value
    # A null is not a deletion. In the conditions of a MERGE it would be neither true nor false, and a new row
    # would be lost.
    flag = upsert.delete_when
    deleted = [] if flag is None else [F.expr(f"coalesce({quoted(flag)}, false)").alias(flag)]
    return rows.select(*map(_column, upsert.stored(df.columns)), *deleted)


def merge_rows(
    target: DeltaTable, aligned: AlignedRows, entry: LedgerEntry, upsert: Upsert, *, complete: bool = False
) -> None:
    """Merge rows with unique keys into an existing table, in one Delta commit with ``entry``.

    The failpoint ``sink.during_merge`` is reached directly before the statement. Tests that kill a running
    MERGE do so in its tasks, or at a rename in Delta's log.

    Args:
        target: The table.
        aligned: The rows.
        entry: Their ledger entry.
        upsert: How rows are merged.
        complete: Whether the rows are the whole new content of the table, so that all others are deleted.
    """
    spark = aligned.df.sparkSession
    # The name of an attempt is unique, so no other batch of this session has a view with that name.
    view = f"gazette_spark_{entry.attempt}"
    aligned.df.createOrReplaceTempView(view)
    merge = merge_statement(
        target.name, view, aligned.df.columns, upsert, add_columns=aligned.add_columns, complete=complete
    )
    settings = {
        "spark.databricks.delta.write.txnAppId": APP_ID_PREFIX + entry.app_id,
        "spark.databricks.delta.write.txnVersion": str(entry.txn_version),
        # Spark replaces ${…} in settings, so write the dollar sign as a JSON escape.
        "spark.databricks.delta.commitInfo.userMetadata": entry.to_json().replace("${", "\\u0024{"),
        "spark.sql.parquet.compression.codec": "zstd",
    }
    try:
        # Several threads share a session, and on Spark Connect all queries of a client do. A statement that
        # saw these settings would commit its own rows with this number and entry. Delta would then skip the
        # MERGE, and the table would show the batch as written.
        with private_session(spark, settings) as private:
            failpoint("sink.during_merge")
            private.sql(merge).collect()
    finally:
        spark.catalog.dropTempView(view)


def check_keys_once(rows: DataFrame, table: str, entry: LedgerEntry, upsert: Upsert) -> None:
    """Check that the keys in the rows of a table are unique before the first batch is merged into it.

    If a key occurs twice, each batch would update both rows. After the first batch, merging keeps keys
    unique.

    Raises:
        UpsertError: a key occurs twice; the error names it.
    """
    names = {name.lower(): name for name in rows.columns}  # Their case may differ from that of the keys.
    if not {key.lower() for key in upsert.keys} <= names.keys():
        return  # The column is missing; fitting the rows to the table reports that.
    keys = [_column(names[key.lower()]) for key in upsert.keys]
    copies = free_name("copies", upsert.keys)
    counted = rows.groupBy(*keys).agg(F.count(F.lit(1)).alias(copies))
    twice = counted.where(_column(copies) > 1).limit(1).collect()
    if twice:
        *values, number = twice[0]
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(upsert.keys, values, strict=True))
        problem = (
            f"{number} rows of the table have the key {shown}, and each batch would update all of them. "
            "Keep only one row for each key in the table, or write to another table"
        )
        raise UpsertError(table, entry.app_id, entry.batch_id, problem)


def _column(name: str) -> Column:
    return F.col(quoted(name))
