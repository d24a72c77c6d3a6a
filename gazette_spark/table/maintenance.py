"""The sink's work on a table beside appends: it makes the table, fits rows to it, keeps its files few.

Functions of values decide (``schema_fit``, ``new_table``, ``small_files``). Here their decisions are carried
out, and results are cached.

A table's columns are read once a run, and again when another writer has committed to it. A version that this
writer made has the columns of the one before. Between the read and the commit another writer may still change
them. Then Delta rejects the write, and everything is read and decided again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from gazette_spark.errors import OptionError, SchemaMismatchError, TableRefusedError
from gazette_spark.ledger.entry import Batch, LedgerState
from gazette_spark.table.delta_table import DeltaTable, TableDetail
from gazette_spark.table.features import computes_columns
from gazette_spark.table.new_table import NewTable
from gazette_spark.table.schema_fit import Rules, SchemaFit, Unfit, conform, fit
from gazette_spark.table.small_files import batch_bytes, compact, compaction_due, files_wanted, in_files
from gazette_spark.table.violations import without_unchecked_nulls

log = logging.getLogger(__name__)

EVOLUTIONS = ("fail", "addNewColumns")
"""Policies for columns that a table does not have; the words are those of Databricks' Auto Loader."""

MAPPING = "delta.columnMapping.mode"
MAPPING_DEFAULT = "spark.databricks.delta.properties.defaults.columnMapping.mode"
"""Default column mapping of tables that a session makes."""


CHAR = re.compile(r"char\(", re.IGNORECASE)

CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""Key in a column's metadata for its type, where that is CHAR or VARCHAR: as a type Spark shows STRING."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch as it is to be appended."""

    df: DataFrame
    exists: bool
    """There is a table."""
    add_columns: bool
    """The write adds columns to the table."""


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table's columns at one version."""

    table_version: int
    schema: StructType
    rules: Rules | None = None
    """None until a batch needs them."""


class TableMaintenance:
    """Keeps one table for one sink. Holds no session, so it pickles."""

    def __init__(
        self,
        target: DeltaTable,
        *,
        new_table: NewTable | None = None,
        schema_evolution: str = "fail",
        target_file_bytes: int | None = None,
        compact_every: int | None = None,
    ) -> None:
        """Check the options; nothing is read or made yet."""
        if new_table is not None and not isinstance(new_table, NewTable):
            raise OptionError("new_table", repr(new_table)[:80], "a NewTable")
        if schema_evolution not in EVOLUTIONS:
            raise OptionError("schema_evolution", repr(schema_evolution), " or ".join(map(repr, EVOLUTIONS)))
        _check_positive("target_file_bytes", target_file_bytes)
        _check_positive("compact_every", compact_every)
        self._target = target
        self._new_table = new_table
        self.adds_columns = schema_evolution == "addNewColumns"
        """Whether batches may add columns."""
        self.target_file_bytes = target_file_bytes
        """Size of a file that was asked for."""
        self._compact_every = compact_every
        self._partition_by: tuple[str, ...] = ()
        self._known: KnownTable | None = None
        self._adding = False
        """The last prepared batch changes the known columns."""

    def __repr__(self) -> str:
        return f"TableMaintenance({self._target.name}, known={self._known})"

    def make(self, spark: SparkSession, rows: StructType) -> None:
        """Make the table for rows of a schema, as ``new_table`` says."""
        new = self._new_table or NewTable()
        spark.sql(new.statement(self._target.name, new.columns(spark, rows))).collect()

    def check_keys(self, spark: SparkSession, keys: Sequence[str], *, exists: bool) -> None:
        """Refuse keys of the type CHAR: on such a key Delta 4.4 fails in MERGE, with an internal error.

        Raises:
            TableRefusedError: naming them.
        """
        new = self._new_table.parsed(spark) if self._new_table is not None else None
        schema = self._target.schema(spark) if exists else new or StructType()
        fixed = [each.name for each in schema.fields if CHAR.match(_type_text(each))]
        if names := [name for name in fixed if name.lower() in {key.lower() for key in keys}]:
            problem = (
                "upsert cannot compare its keys: Delta Lake has no MERGE by a column of the type CHAR: "
                f"{', '.join(names)}. Use STRING or VARCHAR"
            )
            raise TableRefusedError(self._target.name, problem)

    def checked(self, detail: TableDetail | None) -> None:
        """Record a table's detail.

        Raises:
            TableRefusedError: the table's partitions are not those of ``new_table``.
        """
        if detail is None:
            return
        self._partition_by = detail.partition_by
        if self._new_table is not None:
            self._new_table.check_partitions(self._target.name, detail.partition_by)

    def prepare(
        self, df: DataFrame, batch: Batch, state: LedgerState, *, beside: Sequence[str] = ()
    ) -> Prepared:
        """Make the table if there is none, and fit rows to its columns.

        Args:
            df: The rows.
            batch: The batch of the rows.
            state: The state on which the write was decided.
            beside: Columns of the rows that are not stored, and stay as they are.

        Raises:
            SchemaMismatchError: the rows do not fit; the table is unchanged.
        """
        spark, exists = df.sparkSession, state.table_version >= 0
        stored = df.drop(*beside) if beside else df
        fitted = self._fit_known(stored, state) if exists else self._fit_new(stored)
        if isinstance(fitted, Unfit):
            raise SchemaMismatchError(self._target.name, batch.app_id, batch.batch_id, fitted.problems)
        if not exists and self._new_table is not None:
            self.make(spark, stored.schema)
            exists = True
        if fitted.added:
            log.info("adding_columns table=%s columns=%s", self._target.name, ",".join(fitted.added))
        self._adding = bool(fitted.added)
        files = files_wanted(batch_bytes(batch), self.target_file_bytes)
        if exists and self._known is not None:
            df = without_unchecked_nulls(df, self._known.schema)
        rows = in_files(conform(df, fitted.schema, beside), files, self._partition_by)
        return Prepared(rows, exists, self._adding)

    def check_columns(self, df: DataFrame, app_id: str, state: LedgerState) -> None:
        """Hold a query's columns against those of the table before there is a batch.

        Raises:
            SchemaMismatchError: they do not fit.
        """
        fitted = self._fit_known(df, state)
        if isinstance(fitted, Unfit):
            raise SchemaMismatchError(self._target.name, app_id, None, fitted.problems)

    def changed(self, spark: SparkSession) -> bool:
        """Tell whether the table's columns are others than those the last batch was prepared for.

        Delta turns a write for other columns down, and not as a conflict.
        """
        known, self._known = self._known, None
        return known is not None and known.schema != self._target.schema(spark)

    def after_commit(self, spark: SparkSession, before: LedgerState, after: LedgerState) -> None:
        """Do due maintenance after a commit of this sink."""
        known, self._known = self._known, None
        alone = before.table_version + 1 == after.entry_version == after.table_version
        if known is not None and known.table_version == before.table_version and alone and not self._adding:
            self._known = replace(known, table_version=after.table_version)
        if after.entry is not None and compaction_due(after.entry, self._compact_every):
            compact(spark, self._target.name)

    def _fit_new(self, df: DataFrame) -> SchemaFit | Unfit:
        """Hold rows against the columns that a table will have."""
        self._known = None
        spark, new = df.sparkSession, self._new_table or NewTable()
        mapping = str(spark.conf.get(MAPPING_DEFAULT, "none"))
        detail = TableDetail("", "", properties={MAPPING: mapping, **new.properties})
        return fit(
            self._target.name, df.schema, new.parsed(spark), add=self.adds_columns, rules=_rules(detail)
        )

    def _fit_known(self, df: DataFrame, state: LedgerState) -> SchemaFit | Unfit:
        """Hold rows against the columns of the table, and look up its rules if they decide."""
        spark, version = df.sparkSession, state.table_version
        known = self._known
        if known is None or known.table_version != version:
            known = KnownTable(version, self._target.schema(spark))
        fitted = self._fit(df, known)
        if isinstance(fitted, Unfit) and known.rules is None:
            known = replace(known, rules=_rules(self._target.detail(spark)))
            fitted = self._fit(df, known)
        self._known = known
        return fitted

    def _fit(self, df: DataFrame, known: KnownTable) -> SchemaFit | Unfit:
        rules = known.rules or Rules()
        return fit(self._target.name, df.schema, known.schema, add=self.adds_columns, rules=rules)


def _type_text(column: StructField) -> str:
    return str(column.metadata.get(CHAR_TYPE, "")) or column.dataType.simpleString()


def _check_positive(option: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise OptionError(option, repr(value)[:80], "a whole number from 1 on, or None")


def _rules(detail: TableDetail | None) -> Rules:
    if detail is None:
        return Rules()
    mapping = detail.properties.get(MAPPING, "none").lower()
    feed = detail.properties.get("delta.enableChangeDataFeed", "false").lower()
    return Rules(
        any_name=mapping != "none", change_feed=feed == "true", fills=computes_columns(detail.features)
    )
