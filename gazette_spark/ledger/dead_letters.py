"""Two tables for one stream: rows that do not fit go to a second one, and no row is lost or doubled.

Each table has its own ledger. A batch is written to the two in this order:

1. read the dead letters' ledger, then the main table's, and decide on the main table
   (:mod:`~gazette_spark.ledger.decision`);
2. commit the dead letters, with an entry of the same bytes, on the entry read in 1;
3. commit the other rows to the main table, on the entry read in 1.

In 1 the order matters if the dead letters are restored meanwhile: they must not look as if they were
in step with an entry of the main table that is not the newest any more.

Both commits are compare-and-sets. **The main table stays the authority**: its entries alone decide the range
of a batch, and whether it is done. After a crash between the two commits the dead letters are
*ahead*, and the bytes that they have and the main table has not are *pending*. Of these, the records in the
dead-letter table are dead whatever the rules say by now (a constraint may have come or gone, the query may
parse differently): they are neither written again nor let into the main table. All other rows are sorted by
the current rules.

Where the two ledgers end at the same offsets they are *in step*. No other writer can have a pending commit of
rows then that the main table would accept: that writer would have committed its dead letters first, after the
newest entry of the main table, and so be ahead. Where the ledgers are not in step another writer may have
one, so the writer first *takes over*: it commits an entry to the main table that moves no offset. Every
commit decided on before conflicts with that entry. The take-over is valid only while neither ledger changes.

An entry of the main table names the table of dead letters it was written with. Where that is not the
writer's (they were switched off, or sent elsewhere) the writer *leaves* it: if no pending record is in it,
the writer closes it, by an entry that moves no offset and names no table. A closed ledger is not in step.

=============================================  =====================================================
the dead letters' ledger                       action
=============================================  =====================================================
ends where the main table's does               rows go to both
ahead: a crash, or the main table restored     take over; records that are in it are dead already
behind: switched on later, restored, emptied   take over; the bytes it never had are an accepted gap
closed, or not named by the main table         take over
=============================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gazette_spark.errors import FencedError, OptionError, RestoredError, SinkError
from gazette_spark.ledger.decision import (
    Again,
    Allowed,
    Landed,
    Refusal,
    Write,
    check_parent,
    next_entry,
    verify,
)
from gazette_spark.ledger.entry import (
    COMPLETES_NOTHING,
    Batch,
    LedgerEntry,
    LedgerState,
    Positions,
    SkippedGap,
)
from gazette_spark.offsets import JournalOffsets

APP_ID_SUFFIX = "/dead-letters"
"""Comes after the main table's app id. So one table may take the dead letters of several streams."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Target of rows that do not fit the table.

    Its columns: ``app_id`` STRING (the sink's), ``journal`` STRING, ``offset`` BIGINT, ``end_offset`` BIGINT
    (null unless the rows have ``_end_offset``), ``raw`` BINARY, ``reason`` STRING.
    """

    path: str | None = None
    """Directory of the table; it is made when it is missing."""
    table: str | None = None
    """Or its name in the catalog."""
    corrupt_column: str = "_corrupt_record"
    """Column, if the rows have it, that is not null in records that could not be read."""

    def __post_init__(self) -> None:
        if (self.path is None) == (self.table is None):
            got = f"path={self.path!r}, table={self.table!r}"
            raise OptionError("dead_letters", got, "exactly one of path and table")


@dataclass(frozen=True, slots=True)
class TakeoverState:
    """The newest entries of both tables at a writer's take-over; valid while both are the newest."""

    main: str
    """Attempt of its entry in the main table."""
    dead: str | None
    """Attempt of the dead letters' newest entry before the take-over, None if they had no entry."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """Commit this entry to the main table, without rows; then look again."""

    entry: LedgerEntry
    taken: TakeoverState


@dataclass(frozen=True, slots=True)
class Divert:
    """Commit the rows that do not fit to the dead letters, then the others to the main table."""

    batch: Batch
    """The batch that the dead letters' table is to commit."""
    entry: LedgerEntry
    """The dead letters' entry."""
    pending_from: int | None
    """Records at this offset or later may be dead letters already; None if no records are pending."""


def plan(
    dead: LedgerState,
    main: LedgerState,
    write: Write,
    *,
    table: str,
    taken: TakeoverState | None,
    attempt: str,
) -> Takeover | Divert | None:
    """Say how a batch for the main table is split.

    Args:
        dead: The dead letters' state, read before the main table's.
        main: The main table's state.
        write: The decision on ``main``.
        table: Name of the table of dead letters.
        taken: The writer's last take-over of this batch.
        attempt: A new, unique name for an entry.

    Returns:
        None if the batch has no bytes, and so no rows.

    Raises:
        RestoredError: the dead letters were restored in the middle of a commit.
    """
    batch = dead_batch(write.entry, table)
    if batch.begin == batch.end:
        return None
    check_fence(dead, batch)
    assert main.entry is not None  # A batch with bytes continues an entry.
    if not in_step(dead, main.entry, table) and taken != TakeoverState(main.entry.attempt, _attempt(dead)):
        entry = fence_entry(main, write.entry, attempt, dead_letters=table)
        return Takeover(entry, TakeoverState(attempt, _attempt(dead)))
    begins, recorded = _offsets(batch.begin), dead.entry.read_through if dead.entry else {}
    known = {name: (recorded[name], begin) for name, begin in begins.items() if name in recorded}
    behind = [SkippedGap(name, at, begin) for name, (at, begin) in known.items() if at < begin]
    pending = [begin for at, begin in known.values() if at > begin]
    entry = next_entry(dead, batch, attempt, Allowed(gaps=frozenset(behind)))
    return Divert(batch, replace(entry, dead_letters=table), min(pending, default=None))


def dead_batch(entry: LedgerEntry, table: str) -> Batch:
    """Return the dead letters' batch that belongs to an entry of the main table."""
    app_id = entry.app_id + APP_ID_SUFFIX
    return Batch(table, app_id, entry.query_id, entry.batch_id, entry.begin, entry.end, entry.gaps)


def in_step(dead: LedgerState, main: LedgerEntry, table: str) -> bool:
    """Say whether two ledgers end at the same offsets, with both tables in use as one."""
    if dead.entry is None or not dead.entry.dead_letters == main.dead_letters == table:
        return False
    recorded = dead.entry.read_through
    return all(recorded.get(journal) == at for journal, at in main.read_through.items())


def fence_entry(
    state: LedgerState, about: LedgerEntry, attempt: str, *, dead_letters: str | None
) -> LedgerEntry:
    """Return an entry that moves no offset and becomes the newest one.

    Args:
        state: State of the entry's table, which has an entry.
        about: Names query and batch.
        attempt: A new, unique name.
        dead_letters: The entry's table of dead letters, if any.
    """
    assert state.entry is not None
    return replace(
        state.entry,
        txn_version=state.txn_version + 1,
        query_id=about.query_id,
        batch_id=about.batch_id,
        begin=state.entry.end,
        attempt=attempt,
        parent=state.entry.attempt,
        gaps=(),
        accepted_gaps=(),
        dead_letters=dead_letters,
        audit=None,
        adopted=False,
        planned_ms=COMPLETES_NOTHING,
        heads={},
        deltas=0,
        full_ms=None,
        stateful=about.stateful,
    )


def reconcile(
    before: LedgerState, after: LedgerState, entry: LedgerEntry, batch: Batch, *, conflict: bool
) -> Landed | Again | Refusal:
    """Return the outcome of a commit to a table of dead letters; see :mod:`gazette_spark.ledger.decision`.

    That another writer was faster is no reason to stop here: the main table says whose turn it is.
    """
    outcome = verify(before, after, entry, batch, conflict=conflict)
    if not isinstance(outcome, Refusal):
        return outcome
    if isinstance(outcome.error, FencedError):
        return Again()
    return Refusal(_advised(outcome.error, after))


def check_fence(dead: LedgerState, batch: Batch) -> None:
    """Check that a table of dead letters was not restored in the middle of a commit to it.

    Raises:
        RestoredError: the table was restored.
    """
    if error := check_parent(dead, batch):
        raise _advised(error, dead)


def _advised(error: SinkError, dead: LedgerState) -> SinkError:
    """Return an error of the main table's as one of the dead letters', where another way out is right."""
    if isinstance(error, RestoredError) and dead.entry is not None:
        undone_at = dead.jumps[0] if dead.jumps else dead.entry_version
        error.advice = (
            f"RESTORE TABLE … TO VERSION AS OF {undone_at - 1} mends it; to keep what the table was restored "
            f"to instead, restore version {dead.entry_version - 1}. Then the same query checkpoint goes on"
        )
    return error


def pending_from(dead: LedgerState, main: LedgerEntry) -> int | None:
    """Return the least offset of what dead letters may have and the main table has not passed."""
    recorded = dead.entry.read_through if dead.entry else {}
    done = main.read_through
    return min((done.get(name, 0) for name, at in recorded.items() if at > done.get(name, 0)), default=None)


def _attempt(state: LedgerState) -> str | None:
    return state.entry.attempt if state.entry else None


def _offsets(positions: Positions) -> Mapping[str, int]:
    """Return the offsets of a batch of one source."""
    (position,) = positions
    assert isinstance(position, JournalOffsets)  # The sink refuses other queries.
    return position.read_through
