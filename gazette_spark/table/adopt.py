"""Begins a ledger on a table that has rows: its log was cleaned up, or something else filled it.

The ledger begins with an entry like any other, in an append without rows. Only its transaction number has to
be found. Delta keeps the highest one of the app id for the table's life and does not show it. It silently
skips a write with a lower one. So numbers are tried, each far above the one before, until an entry is there.
Two callers at once try the same numbers: Delta lets one through, and the other finds an entry.

A journal that was deleted and made again begins at offset 0 with other bytes. The table's rows of the old one
stay. An entry says from where on rows are the new one's. The table does not say which of two rows with one
offset is which: ``verify`` compares no row of such a journal.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark.errors import TableRefusedError
from gazette_spark.ledger.entry import (
    COMPLETES_NOTHING,
    Isolation,
    LedgerEntry,
    LedgerState,
    Mode,
    SourcePosition,
    entry_without_rows,
)
from gazette_spark.offsets import JournalOffsets
from gazette_spark.table.delta_table import DeltaTable
from gazette_spark.table.trim import COMMITTED_COLUMNS, has_columns, range_origin

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
    _check_rows(rows, offsets, isolation_of(offsets), target.name)
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


def adopt_recreated(
    target: DeltaTable, spark: SparkSession, app_id: str, offsets: JournalOffsets
) -> LedgerEntry:
    """Have a ledger go on at ``offsets`` of journals that were deleted and made again; return the entry.

    Raises:
        TableRefusedError: the ledger has no such journal, or rows go to dead letters, too; or another writer
            was faster.
    """
    state = target.ledger(spark, app_id)
    entry = state.entry
    if entry is None:
        raise TableRefusedError(
            target.name, f"app id {app_id!r} has no ledger, so no journal can go on in it"
        )
    new, known = offsets.read_through, entry.read_through
    if entry.recreated.keys() == new.keys() and new.items() <= known.items():
        return entry
    if unknown := sorted(new.keys() - known.keys()):
        problem = f"the ledger of app id {app_id!r} does not name journal {unknown[0]!r}: it is a new one"
        raise TableRefusedError(target.name, problem)
    if entry.dead_letters is not None:
        problem = (
            f"rows of app id {app_id!r} go to dead letters, too, and those of a journal that was made again "
            "would be taken for the old one's, by their offsets. Give the new journal a query and an app id "
            "of its own"
        )
        raise TableRefusedError(target.name, problem)
    made = recreated_entry(state, offsets, uuid.uuid4().hex)
    target.append(target.rows(spark).limit(0), made, exists=True)
    after = target.ledger(spark, app_id)
    if after.entry is None or after.entry.attempt != made.attempt:
        raise TableRefusedError(
            target.name, f"another writer of app id {app_id!r} was faster; stop it, and repeat"
        )
    log.warning("journals_recreated table=%s app_id=%s offsets=%s", target.name, app_id, offsets.to_json())
    return after.entry


def recreated_entry(state: LedgerState, offsets: JournalOffsets, attempt: str) -> LedgerEntry:
    """Return the entry from which on journals are those that were made again."""
    assert state.entry is not None
    entry, new = state.entry, offsets.read_through

    def moved(position: SourcePosition) -> SourcePosition:
        if not isinstance(position, JournalOffsets):
            return position
        known = position.read_through
        return JournalOffsets({**known, **{name: at for name, at in new.items() if name in known}})

    ends = tuple(moved(position) for position in entry.end)
    return replace(
        entry_without_rows(state, attempt),
        query_id=f"adopt-{attempt}",
        batch_id=0,
        start=tuple(moved(position) for position in entry.start),
        begin=ends,
        end=ends,
        planned_ms=COMPLETES_NOTHING,
        heads={},
        recreated={name: entry.read_through[name] for name in new},
    )


def txn_numbers(highest: int) -> Iterator[int]:
    """Yield the transaction numbers to try after the highest one that a history has."""
    yield highest + 1
    yield from (1 << step for step in STEPS if 1 << step > highest + 1)


def first_entry(app_id: str, offsets: JournalOffsets, txn_version: int, mode: Mode) -> LedgerEntry:
    """Return the entry that says: from here on."""
    position = (offsets.plain(),)
    start = (JournalOffsets({**offsets.read_through, **offsets.starts}),)
    attempt = uuid.uuid4().hex
    return LedgerEntry(
        app_id,
        txn_version,
        query_id=f"adopt-{attempt}",
        batch_id=0,
        start=start,
        begin=position,
        end=position,
        attempt=attempt,
        parent=None,
        mode=mode,
        adopted=True,
        isolation=isolation_of(offsets),
    )


def isolation_of(offsets: JournalOffsets) -> Isolation:
    """Return which rows a table has that ends at some offsets, as they say it."""
    return "read_committed" if offsets.starts else "read_uncommitted"


def _known(entry: LedgerEntry, state: LedgerState, offsets: JournalOffsets, name: str) -> LedgerEntry:
    same = first_entry(entry.app_id, offsets, entry.txn_version, entry.mode)
    if entry.adopted and (entry.start, entry.end, entry.isolation) == (same.start, same.end, same.isolation):
        return entry
    raise TableRefusedError(
        name,
        f"app id {entry.app_id!r} has a ledger: version {state.entry_version} ends at "
        f"{JournalOffsets(entry.read_through).to_json()}. Go on from there with DeltaSink.resume(reader)",
    )


def _check_rows(rows: DataFrame, offsets: JournalOffsets, isolation: Isolation, name: str) -> None:
    """Refuse offsets that rows contradict: rows past them would be written a second time."""
    if isolation == "read_uncommitted" and has_columns(rows.schema, COMMITTED_COLUMNS):
        problem = (
            "its rows are committed messages, as they have _ack_offset, and the offsets do not say where "
            "their query began: adopt JournalOffsets({journal: end}, starts={journal: begin})"
        )
        raise TableRefusedError(name, problem)
    if (columns := range_origin(rows.schema, isolation)) is None:
        return
    journal, offset = columns
    found = rows.groupBy(F.col(journal).alias("journal")).agg(F.max(offset).alias("last")).collect()
    for row in sorted(found, key=lambda each: str(each.journal)):
        at = offsets.read_through.get(row.journal)
        if row.journal is not None and row.last is not None and (at is None or row.last >= at):
            known = "not named" if at is None else f"to go on at {at}"
            problem = f"it has rows of journal {row.journal!r} up to offset {row.last}, and that is {known}"
            raise TableRefusedError(name, f"{problem}. Ask gazette-spark offsets show TABLE --from-data")
