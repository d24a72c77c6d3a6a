"""Begins a ledger on a table that has rows: its log was cleaned up, or something else filled it.

The ledger begins with an entry like any other, in an append without rows. Only its transaction number has to
be found. Delta keeps the highest one of the app id for the table's life and does not show it. It silently
skips a write with a lower one. So numbers are tried, each far above the one before, until an entry is there.
Two callers at once try the same numbers: Delta lets one through, and the other finds an entry.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark.errors import TableRefusedError
from gazette_spark.ledger.entry import LedgerEntry, LedgerState, Mode
from gazette_spark.offsets import JournalOffsets
from gazette_spark.table.delta_table import DeltaTable
from gazette_spark.table.trim import origin_columns

log = logging.getLogger(__name__)

STEPS = (10, 20, 30, 40, 50, 60)
"""Powers of two tried after the next number by the history. A batch uses one number."""


def adopt(
    target: DeltaTable, spark: SparkSession, app_id: str, offsets: JournalOffsets, *, mode: Mode = "append"
) -> LedgerEntry:
    """Have a ledger begin at ``offsets``; return its first entry, also where that is there already.

    Raises:
        TableRefusedError: there is no table, it has a ledger, or rows that lie past the offsets.
    """
    state = target.ledger(spark, app_id)
    if state.table_version < 0:
        raise TableRefusedError(target.name, "there is no table to begin a ledger on; a query makes its own")
    if state.entry is not None:
        return _known(state.entry, state, offsets, target.name)
    rows = target.rows(spark)
    _check_rows(rows, offsets, target.name)
    for number in txn_numbers(state.txn_version):
        entry = first_entry(app_id, offsets, number, mode)
        target.append(rows.limit(0), entry, exists=True)
        state = target.ledger(spark, app_id)
        if state.entry is not None:
            log.warning(
                "ledger_adopted table=%s app_id=%s offsets=%s", target.name, app_id, offsets.to_json()
            )
            return _known(state.entry, state, offsets, target.name)
    raise TableRefusedError(
        target.name, f"Delta skips every transaction of app id {app_id!r}; use another one"
    )


def txn_numbers(highest: int) -> Iterator[int]:
    """Yield the transaction numbers to try after the highest one that a history has."""
    yield highest + 1
    yield from (1 << step for step in STEPS if 1 << step > highest + 1)


def first_entry(app_id: str, offsets: JournalOffsets, txn_version: int, mode: Mode) -> LedgerEntry:
    """Return the entry that says: from here on."""
    position = (offsets.plain(),)
    attempt = uuid.uuid4().hex
    return LedgerEntry(
        app_id,
        txn_version,
        query_id=f"adopt-{attempt}",
        batch_id=0,
        start=position,
        begin=position,
        end=position,
        attempt=attempt,
        parent=None,
        mode=mode,
        adopted=True,
    )


def _known(entry: LedgerEntry, state: LedgerState, offsets: JournalOffsets, name: str) -> LedgerEntry:
    if entry.adopted and entry.end == (offsets.plain(),):
        return entry
    raise TableRefusedError(
        name,
        f"app id {entry.app_id!r} has a ledger: version {state.entry_version} ends at "
        f"{JournalOffsets(entry.read_through).to_json()}. Go on from there with DeltaSink.resume(reader)",
    )


def _check_rows(rows: DataFrame, offsets: JournalOffsets, name: str) -> None:
    """Refuse offsets that rows contradict: rows past them would be written a second time."""
    if (columns := origin_columns(rows.schema)) is None:
        return
    journal, offset = columns
    found = rows.groupBy(F.col(journal).alias("journal")).agg(F.max(offset).alias("last")).collect()
    for row in sorted(found, key=lambda each: str(each.journal)):
        at = offsets.read_through.get(row.journal)
        if row.journal is not None and row.last is not None and (at is None or row.last >= at):
            known = "not named" if at is None else f"to go on at {at}"
            problem = f"it has rows of journal {row.journal!r} up to offset {row.last}, and that is {known}"
            raise TableRefusedError(name, f"{problem}. Ask gazette-spark offsets show TABLE --from-data")
