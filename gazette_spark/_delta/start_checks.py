"""Checks a query's table and checkpoint as far as possible before the query starts.

Spark and Delta would find the same problems in the first batch, seconds later, and report them in a hundred
lines of Java.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.files import unwritable
from gazette_spark._delta.new_table import NewTable
from gazette_spark._ledger.entry import LedgerEntry, LedgerState
from gazette_spark._ledger.history import HistoryRow, app_ids
from gazette_spark.errors import LedgerFormatError, QueryCheckpointError, TableRefusedError

log = logging.getLogger(__name__)

CHAR = re.compile(r"char\(", re.IGNORECASE)

CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""Key in a column's metadata that contains the type CHAR or VARCHAR, which Spark shows as STRING."""

COMMITS_LOOKED_AT = 1000
"""Number of commits that are searched for other writers of a table."""


def check_places(target: DeltaTable, spark: SparkSession, checkpoint: str, *, exists: bool) -> None:
    """Check that the directories of a query can be written, and that its schema is in the catalog.

    Raises:
        TableRefusedError: the table cannot be created there.
        QueryCheckpointError: the checkpoint cannot be written there.
    """
    if target.path is not None:
        if problem := unwritable(spark, target.path):
            raise TableRefusedError(target.name, f"its directory cannot be written: {problem}")
    elif not exists and (schema := schema_of(str(target.table))):
        # If the catalog does not answer, the first batch will report a missing schema.
        with suppress(PySparkException):
            if not spark.catalog.databaseExists(schema):
                advice = f"run CREATE SCHEMA {schema}, or name a table in another schema"
                raise TableRefusedError(target.name, f"there is no schema {schema}: {advice}")
    if problem := unwritable(spark, checkpoint):
        raise QueryCheckpointError(checkpoint, f"the directory cannot be written: {problem}")


def schema_of(table: str) -> str:
    """Return the part of a table's name before its last dot: catalog and schema, or "" if there is none.

    >>> schema_of("orders"), schema_of("shop.orders"), schema_of("main.shop.`a.b`")
    ('', 'shop', 'main.shop')
    """
    before = table[: table.rindex("`", 0, -1)] if table.endswith("`") and len(table) > 1 else table
    return before.rpartition(".")[0]


def warn_of_other_writers(target: DeltaTable, spark: SparkSession, app_id: str, state: LedgerState) -> None:
    """Warn if other app ids have written to a table that is new to this one."""
    if state.entry is not None or state.table_version < 0:
        return
    # This is only a warning, because several streams with different journals may share a table. But if an app
    # id was renamed, rows are written twice.
    for other, entry in _others(target, spark, app_id, target.newest(spark, COMMITS_LOOKED_AT)):
        held = (
            ends_text(list(entry.read_through.items())) if entry else "rows (this release cannot read which)"
        )
        log.warning(
            "table %s has %s for app id %r. App id %r is new to it: if both read a journal, the table gets "
            "each of its rows twice",
            *(target.name, held, other, app_id),
        )


def check_alone(target: DeltaTable, spark: SparkSession, app_id: str, state: LedgerState) -> None:
    """Refuse a table with rows of other writers if the query's batches replace all rows.

    Raises:
        TableRefusedError: another app id writes to the table, or it has rows without an app id.
    """
    way_out = (
        "In the output mode complete each batch is the whole table, so rows of others would be deleted. "
        "Write to a separate table, or use the output mode update"
    )
    for other, _ in _others(target, spark, app_id, target.history(spark, None)):
        raise TableRefusedError(target.name, f"app id {other!r} writes to it, too. {way_out}")
    # Such rows are older than the ledger, or come from writers without a ledger.
    if state.entry is None and target.rows(spark, state.table_version).limit(1).collect():
        problem = f"it has rows that app id {app_id!r} did not write. {way_out}, or delete these rows first"
        raise TableRefusedError(target.name, problem)


def check_key_types(
    target: DeltaTable, spark: SparkSession, keys: Sequence[str], new_table: NewTable | None, *, exists: bool
) -> None:
    """Refuse keys of the type CHAR, for which MERGE in Delta 4.4 fails with an internal error.

    Raises:
        TableRefusedError: there are such keys; the error names them.
    """
    new = new_table.parsed(spark) if new_table is not None else None
    schema = target.schema(spark) if exists else new or StructType()
    # Spark shows a CHAR column as STRING, with the type in the metadata.
    types = {
        column.name: str(column.metadata.get(CHAR_TYPE, "")) or column.dataType.simpleString()
        for column in schema.fields
    }
    names = {key.lower() for key in keys}
    if chars := [name for name, text in types.items() if CHAR.match(text) and name.lower() in names]:
        problem = (
            "upsert cannot compare its keys, because Delta Lake has no MERGE by a column of the type CHAR: "
            f"{', '.join(chars)}. Use STRING or VARCHAR"
        )
        raise TableRefusedError(target.name, problem)


def _others(
    target: DeltaTable, spark: SparkSession, app_id: str, commits: Sequence[HistoryRow]
) -> Iterator[tuple[str, LedgerEntry | None]]:
    """Yield the other app ids with their newest entries; None if this release cannot read an entry.

    A later release may have written the entry. That concerns only the other writer and must not stop this
    one.
    """
    for other in app_ids(commits):
        if other == app_id:
            continue
        try:
            entry = target.ledger(spark, other).entry
        except LedgerFormatError:
            yield other, None
            continue
        if entry is not None:
            yield other, entry


def ends_text(ends: Sequence[tuple[str, int]]) -> str:
    """Return where the first few journals end.

    >>> ends_text([("a", 1), ("b", 2), ("c", 3), ("d", 4)])
    'a up to 1, b up to 2, c up to 3 and 1 more'
    """
    shown = ", ".join(f"{journal} up to {end}" for journal, end in ends[:3])
    return f"{shown} and {len(ends) - 3} more" if len(ends) > 3 else shown
