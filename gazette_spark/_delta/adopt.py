"""Begins a ledger on a table with rows: its log was cleaned up, or another program filled it.

The ledger begins with an ordinary entry, in an append without rows. Only its transaction number is unknown.
Delta keeps the highest number of an app id for the life of the table, does not show it, and silently skips a
write with a lower one. Therefore several numbers are tried, each far above the previous one, until an entry
is in the table. Two concurrent callers try the same numbers: Delta accepts one of them, and the other finds
an entry.

A journal that was deleted and created again over an empty store begins at offset 0 with different bytes. The
table keeps the rows of the old journal, and an entry records where the rows of the new one begin. If two rows
have the same offset, the table does not show which is older, so ``verify`` compares no rows of such a
journal.

A journal that was created again over its stored fragments still has the old bytes, at the old offsets, up to
where they were stored. Continuing at a smaller offset would write their rows twice. Therefore the
fingerprints in the ledger's entries are compared with the journal: they show up to which offset it still has
the bytes of the rows.
"""

from __future__ import annotations

import logging
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import StructType

from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.trim import COMMITTED_COLUMNS, has_columns, range_origin
from gazette_spark._ledger.entry import (
    Isolation,
    LedgerEntry,
    LedgerState,
    Mode,
    SourcePosition,
    entry_without_rows,
)
from gazette_spark._ledger.history import HistoryRow, visible_entries
from gazette_spark._options.source import RANGE_OPTIONS, parse_options
from gazette_spark._planning.access import open_journals
from gazette_spark._planning.boundary import window_reader
from gazette_spark._planning.reads import JournalSource
from gazette_spark.errors import OffsetBeyondHeadError, OptionError, TableRefusedError
from gazette_spark.offsets import FINGERPRINT_BYTES, Fingerprint, JournalOffsets

log = logging.getLogger(__name__)

STEPS = (10, 20, 30, 40, 50, 60)
"""Exponents of the powers of two that are added to the history's highest number, one after the other. A batch
uses one number."""


def adopt(
    target: DeltaTable, spark: SparkSession, app_id: str, offsets: JournalOffsets, *, mode: Mode = "append"
) -> LedgerEntry:
    """Begin a ledger at ``offsets`` and return its first entry. If it already begins there, nothing changes.

    Raises:
        TableRefusedError: the table does not exist, has a ledger, or has rows past the offsets.
    """
    state = target.ledger(spark, app_id)
    if state.table_version < 0:
        raise TableRefusedError(
            target.name, "there is no such table; a query creates a new one with a ledger"
        )
    if state.entry is not None:
        return same_beginning(state.entry, state, offsets, target.name)
    checked, isolation = state.table_version, isolation_of(offsets)

    def check_rows() -> None:
        rows = target.rows(spark, state.table_version)
        check_begins(rows.schema, isolation, target.name)
        if (columns := range_origin(rows.schema, isolation)) is not None:
            journal, offset = columns
            ends = rows.groupBy(F.col(journal).alias("journal")).agg(F.max(offset).alias("last")).collect()
            check_ends({row.journal: row.last for row in ends}, offsets, target.name)

    # The rows are checked before the first attempt, because the query that continues at the offsets would
    # write rows past them again.
    check_rows()
    # Delta skips a number that it remembers without an error, so only the ledger shows whether a number was
    # accepted. An attempt that was skipped leaves nothing behind.
    for number in txn_numbers(state.txn_version):
        _try_entry(target, spark, first_entry(app_id, offsets, number, mode))
        state = target.ledger(spark, app_id)
        if state.entry is not None:
            entry = same_beginning(state.entry, state, offsets, target.name)
            # Delta accepts the entry after an append of another program, so there may be unchecked rows.
            if state.table_version != checked + 1:
                try:
                    check_rows()
                except TableRefusedError as error:
                    error.problem += (
                        ". Another program appended them during this call, and the ledger has begun: stop "
                        f"that program, RESTORE the table to version {state.entry_version - 1}, and try again"
                    )
                    raise
            log.warning(
                "ledger_adopted table=%s app_id=%s offsets=%s", target.name, app_id, offsets.to_json()
            )
            return entry
    raise TableRefusedError(
        target.name, f"Delta skips every transaction of app id {app_id!r}; use another one"
    )


def adopt_recreated(
    target: DeltaTable,
    spark: SparkSession,
    app_id: str,
    offsets: JournalOffsets,
    options: Mapping[str, str],
) -> LedgerEntry:
    """Continue a ledger at ``offsets`` of journals that were deleted and created again, and return the entry.

    Raises:
        TableRefusedError: as for :func:`continued_entry`; or another writer was faster.
        OffsetBeyondHeadError: a journal ends before its offset.
    """
    state = target.ledger(spark, app_id)
    history = partial(target.history, spark, None)
    made = continued_entry(state, history, app_id, offsets, options, table=target.name)
    if made is state.entry:
        return made
    _try_entry(target, spark, made)
    after = target.ledger(spark, app_id)
    # Another writer took the number, and Delta has skipped this write. Or there was a conflict with another
    # commit, such as an ALTER.
    if after.entry is None or after.entry.attempt != made.attempt:
        raise TableRefusedError(
            target.name, f"another commit was faster: stop other writers of app id {app_id!r}, and try again"
        )
    log.warning("journals_recreated table=%s app_id=%s offsets=%s", target.name, app_id, offsets.to_json())
    return after.entry


def _try_entry(target: DeltaTable, spark: SparkSession, entry: LedgerEntry) -> None:
    # Iceberg's sink imports this module without Delta's package.
    from gazette_spark._delta.writers import CONFLICTS

    # Delta raises a conflict if an answer was lost or another caller was faster. The ledger shows which.
    with suppress(*CONFLICTS):
        target.append_entry(spark, entry)


def reader_options(options: Mapping[str, str] | None) -> Mapping[str, str]:
    """Check that there are options for reading journals that were created again, and return them.

    Raises:
        OptionError: there are none.
    """
    if options is None:
        expected = "the options of the query's reader: the journals are compared with the ledger"
        raise OptionError("options", "none with recreated=True", expected)
    return options


def continued_entry(
    state: LedgerState,
    history: Callable[[], Sequence[HistoryRow]],
    app_id: str,
    offsets: JournalOffsets,
    options: Mapping[str, str],
    *,
    table: str,
) -> LedgerEntry:
    """Return the entry after which journals that were deleted and created again continue at ``offsets``.

    Args:
        state: State of the ledger.
        history: Returns the table's history, newest first.
        app_id: App id of the ledger.
        offsets: Where the rows of the new journals begin.
        options: Options of the query's reader, with which the journals are read and compared.
        table: Name of the table, for errors.

    Returns:
        An entry to commit, or the newest one if it is that entry.

    Raises:
        TableRefusedError: the ledger has no such journal, the app id also writes dead letters, or a journal
            still has bytes past its offset whose rows are in the table.
        OffsetBeyondHeadError: a journal ends before its offset.
    """
    entry = state.entry
    if entry is None:
        raise TableRefusedError(table, f"app id {app_id!r} has no ledger that a journal could continue")
    new, ends = offsets.read_through, entry.read_through
    # If the call is repeated, as after a crash, everything is already done.
    if entry.recreated.keys() == new.keys() and new.items() <= ends.items():
        return entry
    if unknown := sorted(new.keys() - ends.keys()):
        problem = f"the ledger of app id {app_id!r} does not name journal {unknown[0]!r}: it is a new one"
        raise TableRefusedError(table, problem)
    # Dead letters are matched by journal and offset, which do not distinguish creations of a journal.
    if entry.dead_letters is not None:
        problem = (
            f"app id {app_id!r} also writes dead letters, and their offsets do not distinguish a journal "
            "that was created again from the old one. Give the new journal a separate query and app id"
        )
        raise TableRefusedError(table, problem)
    # The fingerprints of the journals in the table's history, by their ends. Entries older than an earlier
    # adoption of a journal describe its predecessor with the same name.
    by_journal: dict[str, dict[int, Fingerprint]] = {journal: {} for journal in new}
    not_recreated = set(new)
    for _, earlier in visible_entries(history(), app_id, table=table):
        for journal in not_recreated:
            fingerprint = earlier.fingerprints.get(journal)
            # A fingerprint without bytes has nothing to compare.
            if fingerprint is not None and fingerprint.begin < fingerprint.end:
                by_journal[journal].setdefault(fingerprint.end, fingerprint)
        not_recreated -= earlier.recreated.keys()
    recorded = {journal: [by_end[end] for end in sorted(by_end)] for journal, by_end in by_journal.items()}
    # The journals to compare are those in ``offsets``; where a query would start does not matter here.
    access = {name: text for name, text in options.items() if name.lower() not in RANGE_OPTIONS}
    with open_journals(parse_options({**access, "journals": ",".join(sorted(new))})) as journals:
        prints = {
            name: fingerprint_at(journals, name, at, recorded[name], end=ends[name], table=table)
            for name, at in new.items()
        }
    return recreated_entry(state, replace(offsets, fingerprints=prints), uuid.uuid4().hex)


def fingerprint_at(
    journals: JournalSource,
    journal: str,
    offset: int,
    recorded: Sequence[Fingerprint],
    *,
    end: int,
    table: str,
) -> Fingerprint:
    """Return a journal's fingerprint at an offset, after checking that the table has no rows of later bytes.

    A journal that has the bytes before one offset also has the bytes before each smaller offset, except those
    that retention deleted. So a few reads find the last fingerprint that matches. A fingerprint with missing
    bytes counts as matching, because refusing an offset never writes a row twice.

    Args:
        journals: Access to the journals, through brokers or a store.
        journal: The journal.
        offset: Where the rows of the journal are to continue.
        recorded: The table's fingerprints of the journal, in ascending order of their ends.
        end: End of the table's rows of the journal.
        table: Name of the table, for errors.

    Raises:
        TableRefusedError: the journal still has later bytes whose rows are in the table.
        OffsetBeyondHeadError: the journal ends before the offset.
    """
    journals.first_offset(journal)  # This call makes a broker that has just started learn its write head.
    head = journals.write_heads([journal])[journal]
    if offset > head:
        raise OffsetBeyondHeadError(journal, offset, head)
    read_window = window_reader(journals, journal, fail_on_data_loss=False)

    def is_other(fingerprint: Fingerprint) -> bool:
        if fingerprint.end > head:
            return True
        content = read_window(fingerprint.begin, fingerprint.end)
        return len(content) == fingerprint.end - fingerprint.begin and not fingerprint.is_of(content)

    fitting = bisect_left(recorded, True, key=is_other)  # noqa: FBT003 - the key is false, then true.
    common = recorded[fitting - 1].end if fitting else 0
    if offset < common:
        way_out = "There is nothing to adopt: start with a new checkpoint and DeltaSink.resume(reader)"
        if common < end:
            differing = recorded[fitting].end if fitting < len(recorded) else end
            way_out = (
                f"Its bytes differ from the table's somewhere in [{common}, {differing}): adopt the offset "
                "there at which its old fragments end, as gazette-spark journals fragments shows them"
            )
        problem = (
            f"journal {journal!r} still has the bytes up to offset {common}, and the table has their rows: "
            "it was created again over its stored fragments. Continuing at offset "
            f"{offset} would write rows twice"
        )
        raise TableRefusedError(table, f"{problem}. {way_out}")
    # The entry gets a fingerprint of the new journal, so that a query that resumes compares its bytes with
    # the new journal.
    content = read_window(max(0, offset - FINGERPRINT_BYTES), offset)
    return Fingerprint.of(content, offset, journals.get_journal(journal).create_revision)


def recreated_entry(state: LedgerState, offsets: JournalOffsets, attempt: str) -> LedgerEntry:
    """Return the entry after which the rows of journals come from their new creations."""
    assert state.entry is not None
    entry, new = state.entry, offsets.read_through

    def moved(position: SourcePosition) -> SourcePosition:
        if not isinstance(position, JournalOffsets):
            return position
        old = position.read_through
        return JournalOffsets({**old, **{name: at for name, at in new.items() if name in old}})

    ends = tuple(moved(position) for position in entry.end)
    others = {name: fingerprint for name, fingerprint in entry.fingerprints.items() if name not in new}
    return replace(
        entry_without_rows(state, attempt),
        # No query has this id, so no batch can be mistaken for this entry's replay or successor.
        query_id=f"adopt-{attempt}",
        batch_id=0,
        start=tuple(moved(position) for position in entry.start),
        begin=ends,
        end=ends,
        planned_ms=None,
        is_fence=True,
        heads={},
        # The entry also records the end of the old rows. Two rows of such a journal may have the same offset,
        # so verify compares none of them.
        recreated={name: entry.read_through[name] for name in new},
        fingerprints=others | dict(offsets.fingerprints),
    )


def txn_numbers(highest: int) -> Iterator[int]:
    """Yield the transaction numbers to try after the highest one in a history."""
    yield highest + 1
    yield from (1 << step for step in STEPS if 1 << step > highest + 1)


def first_entry(app_id: str, offsets: JournalOffsets, txn_version: int, mode: Mode) -> LedgerEntry:
    """Return the first entry of a ledger that begins at ``offsets``."""
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
    """Return the isolation level of a table's rows: only committed messages have ``starts``."""
    return "read_committed" if offsets.starts else "read_uncommitted"


def same_beginning(entry: LedgerEntry, state: LedgerState, offsets: JournalOffsets, name: str) -> LedgerEntry:
    """Return the ledger's newest entry if it is the first one, at these offsets; else raise an error."""
    same = first_entry(entry.app_id, offsets, entry.txn_version, entry.mode)
    if entry.adopted and (entry.start, entry.end, entry.isolation) == (same.start, same.end, same.isolation):
        return entry
    raise TableRefusedError(
        name,
        f"app id {entry.app_id!r} has a ledger: version {state.entry_version} ends at "
        f"{JournalOffsets(entry.read_through).to_json()}. Continue there with DeltaSink.resume(reader)",
    )


def check_begins(schema: StructType, isolation: Isolation, name: str) -> None:
    """Refuse offsets without ``starts`` for a table of committed messages."""
    if isolation == "read_uncommitted" and has_columns(schema, COMMITTED_COLUMNS):
        problem = (
            "its rows are committed messages, because they have _ack_offset, but the offsets do not contain "
            "where their query began: adopt JournalOffsets({journal: end}, starts={journal: begin})"
        )
        raise TableRefusedError(name, problem)


def check_ends(last_offsets: Mapping[str | None, int | None], offsets: JournalOffsets, name: str) -> None:
    """Refuse offsets that are not past the last row of their journal."""
    for journal, last in sorted(last_offsets.items(), key=lambda item: str(item[0])):
        at = offsets.read_through.get(journal or "")
        if journal is not None and last is not None and (at is None or last >= at):
            problem = f"it has rows of journal {journal!r} up to offset {last}, but the journal is "
            problem += "not named" if at is None else f"to continue at {at}"
            raise TableRefusedError(name, f"{problem}. Run gazette-spark offsets show TABLE --from-data")
