"""Fits the rows of a batch to the columns and the layout of their table.

The columns are those of the snapshot on which the batch was decided. If another writer changes them before
the commit, Delta rejects the write, and everything is read and decided again.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gazette_spark._delta.delta_table import DeltaTable, TableDetail, TableSnapshot
from gazette_spark._delta.features import computes_columns
from gazette_spark._delta.files import put_first_commit
from gazette_spark._delta.new_table import NewTable
from gazette_spark._delta.schema_fit import Rules, SchemaFit, Unfit, conform, fit
from gazette_spark._delta.small_files import batch_bytes, files_wanted, in_files
from gazette_spark._delta.sql_names import table_at
from gazette_spark._delta.violations import without_unchecked_nulls
from gazette_spark._ledger.entry import Batch
from gazette_spark.errors import OptionError, SchemaMismatchError, TableRefusedError
from gazette_spark.locations import local_path

log = logging.getLogger(__name__)

EVOLUTIONS = ("fail", "addNewColumns")
"""Policies for columns that a table does not have. The names are those of Databricks' Auto Loader."""

MAPPING = "delta.columnMapping.mode"
MAPPING_DEFAULT = "spark.databricks.delta.properties.defaults.columnMapping.mode"
"""Setting: default column mapping of tables that a session creates."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How a sink creates its table, changes the columns, and sizes the files."""

    new_table: NewTable | None = None
    schema_evolution: str = "fail"
    target_file_bytes: int | None = None
    compact_every: int | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: naming the invalid one.
        """
        new: object = self.new_table
        if new is not None and not isinstance(new, NewTable):
            raise OptionError("new_table", repr(new)[:80], "a NewTable")
        if self.schema_evolution not in EVOLUTIONS:
            expected = " or ".join(map(repr, EVOLUTIONS))
            raise OptionError("schema_evolution", repr(self.schema_evolution), expected)
        for name in ("target_file_bytes", "compact_every"):
            value: object = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise OptionError(name, repr(value)[:80], "a whole number of at least 1, or None")

    @property
    def adds_columns(self) -> bool:
        """Whether batches may add columns to the table."""
        return self.schema_evolution == "addNewColumns"

    def make(self, spark: SparkSession, target: DeltaTable, rows: StructType) -> TableDetail:
        """Create the table by ``new_table`` for rows of a schema, unless it exists; return its detail.

        Raises:
            TableRefusedError: Delta cannot create a table there.
        """
        new = self.new_table or NewTable()
        columns = new.columns(spark, rows)
        with target.creation():
            spark.sql(new.statement(target.name, columns)).collect()
        if (detail := target.detail(spark)) is not None:
            return detail

        # Delta mistakes any directory with files for a table, and has done nothing. A process that was killed
        # in its first commit left files there, or a log without a commit. They stay, because another process
        # may be about to commit them. Create the table elsewhere, and put its first commit in place.
        directory = None if target.path is None else local_path(target.path)
        if directory is not None and Path(directory).is_dir():
            beside = Path(directory).with_name(f".{Path(directory).name}-{uuid.uuid4().hex}")
            try:
                spark.sql(new.statement(table_at(str(beside)), columns)).collect()
                put_first_commit(beside, Path(directory))
            finally:
                shutil.rmtree(beside, ignore_errors=True)
            detail = target.detail(spark)
        if detail is None:
            problem = (
                "Delta Lake cannot create a table there: its location has files of a process that died while "
                "creating the table. If no other process is creating it, delete the files and start again"
            )
            raise TableRefusedError(target.name, problem)
        return detail


@dataclass(frozen=True, slots=True)
class AlignedRows:
    """The rows of a batch in the columns of the table, ready to be written."""

    df: DataFrame
    table: TableSnapshot
    """The table to which they were aligned, with its detail if the columns depended on it."""
    exists: bool
    """Whether the table exists now."""
    add_columns: bool
    """Whether the write has to add columns to the table."""


def align(
    df: DataFrame,
    table: TableSnapshot,
    target: DeltaTable,
    layout: TableLayout,
    batch: Batch,
    *,
    beside: tuple[str, ...] = (),
) -> AlignedRows:
    """Fit rows to the columns of their table, create the table if ``layout`` defines it, and size the files.

    Args:
        df: The rows.
        table: The snapshot on which the batch was decided.
        target: The table.
        layout: How the table is created, and how it may change.
        batch: The batch of the rows.
        beside: Columns of the rows that are not stored and remain unchanged.

    Raises:
        SchemaMismatchError: the rows do not fit. The table is unchanged.
    """
    spark = df.sparkSession
    stored = df.drop(*beside).schema if beside else df.schema
    # The comparison comes first, so that rows that do not fit leave nothing behind.
    fitted, table = fit_columns(spark, stored, table, target, layout)
    if isinstance(fitted, Unfit):
        raise SchemaMismatchError(target.name, batch.app_id, batch.batch_id, fitted.problems)
    # Delta creates a missing table from the first rows. Only a definition needs a separate statement, which
    # comes after the comparison, so that rows that do not fit leave no empty table behind.
    exists = table.exists
    if not exists and layout.new_table is not None:
        layout.make(spark, target, stored)
        exists = True
    if fitted.added:
        log.info("adding_columns table=%s columns=%s", target.name, ",".join(fitted.added))
    if table.schema is not None:
        # Delta does not check for nulls within arrays and maps, so such rows would get into a table that
        # forbids them.
        df = without_unchecked_nulls(df, table.schema)
    # The number of bytes in the journals decides, because it is known before the batch runs and is the same
    # when it runs again (decision 0015).
    files = files_wanted(batch_bytes(batch), layout.target_file_bytes)
    rows = in_files(conform(df, fitted.schema, beside), files, target.partition_by)
    return AlignedRows(rows, table, exists, bool(fitted.added))


def fit_columns(
    spark: SparkSession, rows: StructType, table: TableSnapshot, target: DeltaTable, layout: TableLayout
) -> tuple[SchemaFit | Unfit, TableSnapshot]:
    """Compare the columns of rows with those of their table, or of the table to be made.

    Returns:
        The result, and the snapshot with all values on which the result depends.
    """
    columns, detail = table.schema, table.detail
    if not table.exists:
        new = layout.new_table or NewTable()
        # The properties of a new table also depend on the session: with column mapping, its names may have
        # any character.
        mapping = str(spark.conf.get(MAPPING_DEFAULT, "none"))
        columns = new.parsed(spark)
        detail = TableDetail("", "", properties={MAPPING: mapping, **new.properties})
    fitted = fit(target.name, rows, columns, add=layout.adds_columns, rules=_rules(detail))
    if isinstance(fitted, Unfit) and table.exists and detail is None:
        # The comparison has assumed the strictest rules, which suffices for most batches. Only if the rows do
        # not fit is it worth reading the table's detail.
        table = replace(table, detail=target.detail(spark))
        fitted = fit(target.name, rows, columns, add=layout.adds_columns, rules=_rules(table.detail))
    return fitted, table


def _rules(detail: TableDetail | None) -> Rules:
    if detail is None:
        return Rules()
    mapping = detail.properties.get(MAPPING, "none").lower()
    feed = detail.properties.get("delta.enableChangeDataFeed", "false").lower()
    return Rules(mapping != "none", feed == "true", computes_columns(detail.features))
