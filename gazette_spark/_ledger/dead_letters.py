"""Two tables for one stream: rows that do not fit go to a second one, and no row is lost or doubled.

Each table has its own ledger. A batch is written to the two in this order:

1. read the dead letters' ledger, then the main table's, and decide on the main table
   (:mod:`~gazette_spark._ledger.decision`);
2. merge the rows that do not fit into the dead letters: by journal and offset, only those that are not there;
3. append to the main table the rows that are not among the dead letters *after* 2.

Both commits are compare-and-sets on the entries read in 1. **The main table is the authority**: its entries
alone decide the range of a batch, and whether it is done. **What 2 committed is the authority for a row**: a
record that is a dead letter stays one, whatever the rules or a second evaluation say. A row of 3 that does
not fit was fit in 2, so its expression is not deterministic: it ends the query, and 3 commits nothing.

Step 2 must not come between the two commits of another writer, whose rows of 3 may be its dead letters. An
entry of the main table names the newest entry of the dead letters that it was made with. If that is still
their newest, the two are *in step*: nobody has committed 2 and not yet 3, for that would be a newer entry. If
they are not in step (a crash between 2 and 3, a RESTORE of either table, dead letters switched on) somebody
may have. Then the writer first commits a *fence* to the main table, an entry that moves no offset and names
the newest dead letters. Every step 3 decided on before conflicts with it. The writer then starts again.

In 1 the order matters if the dead letters are restored meanwhile: they must not look as if they were in step
with an entry of the main table that is not the newest any more.

A writer without dead letters, or with others, first *closes* those that the main table names, by an entry
that moves no offset: no step 2 decided on before can land, the first one neither. If they end further than
the main table, somebody may have committed 2 and not 3, or the main table was restored: the writer is
refused. So is a query that keeps state: it could read records that are dead letters, and give their rows in a
later batch, where nobody looks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gazette_spark._ledger.decision import (
    Allowed,
    Committed,
    Refusal,
    Retry,
    Write,
    check_parent,
    is_cut_off,
    is_replay,
    next_entry,
    verify,
)
from gazette_spark._ledger.entry import (
    Batch,
    LedgerEntry,
    LedgerState,
    Positions,
    entry_without_rows,
    least_offsets,
)
from gazette_spark.errors import (
    DeadLetterError,
    FencedError,
    JournalRecreatedError,
    LedgerLostError,
    OptionError,
    RestoredError,
    SinkError,
)
from gazette_spark.offsets import JournalOffsets

APP_ID_SUFFIX = "/dead-letters"
"""Suffix of the main table's app id, so that one table may hold the dead letters of several streams."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Target of rows that do not fit the table.

    Its columns: ``app_id`` STRING (the sink's), ``journal`` STRING, ``offset`` BIGINT, ``end_offset`` BIGINT
    (null unless the rows have ``_end_offset``), ``raw`` BINARY, ``reason`` STRING. Those of committed
    messages have ``ack_offset`` BIGINT, too: a message belongs to the bytes that committed it.
    """

    path: str | None = None
    """Directory of the table; it is made when it is missing."""
    table: str | None = None
    """Name in the catalog, instead of a directory."""
    corrupt_column: str = "_corrupt_record"
    """Column, if the rows have it, that is not null in records that could not be read."""

    def __post_init__(self) -> None:
        if (self.path is None) == (self.table is None):
            got = f"path={self.path!r}, table={self.table!r}"
            raise OptionError("dead_letters", got, "exactly one of path and table")


@dataclass(frozen=True, slots=True)
class Fence:
    """Commit this entry to the main table, without rows; then read and decide again."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class Divert:
    """Merge the rows that do not fit into the dead letters, then write the others to the main table."""

    batch: Batch
    """The batch to commit to the dead letters' table."""
    entry: LedgerEntry
    """The dead letters' entry."""
    may_have_some: bool
    """Records of the batch may be dead letters already."""


def plan(
    dead: LedgerState, main: LedgerState, write: Write, *, table: str, attempt: str
) -> Fence | Divert | None:
    """Decide how a batch for the main table is split.

    Args:
        dead: The dead letters' state, read before the main table's.
        main: The main table's state.
        write: The decision on ``main``.
        table: Name of the table of dead letters.
        attempt: A new, unique name for an entry.

    Returns:
        None if the batch has no bytes, so that none of its rows may be a dead letter.

    Raises:
        RestoredError: the dead letters were restored in the middle of a commit.
        LedgerLostError: nothing says how far they go.
        DeadLetterError: they are of another isolation level.
    """
    batch = dead_batch(write.entry, table)
    # Rows of such a batch come from state or timers, and belong to none of its records. A misfit among them
    # ends the query.
    if batch.begin == batch.end:
        return None
    check_ledger(dead, batch)
    if dead.entry is not None and dead.entry.isolation != batch.isolation:
        problem = (
            f"{table} has those of another table of this app id, which a query of isolationLevel="
            f"{dead.entry.isolation} filled, and this one is of {batch.isolation}. Use another app id, or "
            "another table of dead letters"
        )
        raise DeadLetterError(batch.table, write.entry.app_id, problem)
    assert main.entry is not None  # A batch with bytes continues an entry.
    # Somebody may have committed letters and be about to commit the rest of that batch. The fence makes the
    # second commit conflict. In the model, writers without fences put records into both tables (decision
    # 0024).
    if not in_step(dead, main.entry, table):
        return Fence(with_letters(fence_entry(main, write.entry, attempt), table, dead))
    begins, recorded = _offsets(batch.begin), dead.entry.read_through if dead.entry else {}
    # The letters' ledger may be behind the main one, where letters were switched on late or restored. The
    # entry begins where that ledger ends, so no gap is asked about: dead letters are a help, and never a
    # reason to stop the stream.
    entry = next_entry(dead, batch, attempt, Allowed())
    # The bytes can have letters only after a crash between the two commits, or after a RESTORE. Only then is
    # the join paid for.
    is_recorded = any(recorded.get(name, 0) > begin for name, begin in begins.items())
    return Divert(batch, replace(entry, dead_letters=table), may_have_some=is_recorded)


def dead_batch(entry: LedgerEntry, table: str) -> Batch:
    """Return the dead letters' batch that belongs to an entry of the main table.

    Its rows are of the query's only source. Other places of the entry keep what older queries have read.
    """
    app_id = entry.app_id + APP_ID_SUFFIX
    # A batch shows by its starts that its rows are committed messages.
    starts = least_offsets(entry.start[:1]) if entry.isolation == "read_committed" else {}
    return Batch(
        table,
        app_id,
        entry.query_id,
        entry.batch_id,
        entry.begin[:1],
        entry.end[:1],
        entry.gaps,
        planned_ms=entry.planned_ms,
        starts=starts,
    )


def state_may_hold_letters(step: Divert, dead: LedgerState, write: Write) -> bool:
    """Say whether a query could take dead letters into its state.

    It may emit them in a later batch, with which these letters are not compared. Those that the batch itself
    has merged in an earlier try are of rows that it emits at once.
    """
    # Without state a batch emits its own records only, and those are joined with the letters.
    if not (write.entry.stateful and step.may_have_some):
        return False
    return dead.entry is None or not is_replay(step.batch, dead.entry)


def in_step(dead: LedgerState, main: LedgerEntry, table: str) -> bool:
    """Say whether an entry of the main table was made with the newest of the dead letters."""
    return main.dead_letters == table and main.dead_attempt == _attempt(dead)


def with_letters(entry: LedgerEntry, table: str, dead: LedgerState) -> LedgerEntry:
    """Return an entry of the main table that names the dead letters' table and newest entry."""
    return replace(entry, dead_letters=table, dead_attempt=_attempt(dead))


def is_ahead(dead: LedgerState, main: LedgerEntry) -> bool:
    """Say whether dead letters may be of bytes that the main table has not passed."""
    recorded = dead.entry.read_through if dead.entry else {}
    # Offsets decide, and not rows: letters of bytes that the main table has not passed may exist. To be in
    # step is not enough, because a fence after a RESTORE brings the two in step again (decision 0024).
    passed = main.read_through | least_offsets(main.end[:1])  # The first place is the query's source.
    return any(at > passed.get(name, 0) for name, at in recorded.items())


def closing_entry(
    dead: LedgerState, main: LedgerEntry, about: LedgerEntry, attempt: str
) -> LedgerEntry | None:
    """Return the entry that closes the dead letters that a writer leaves: nothing decided before can land.

    That holds for the first dead letters, too: another writer may be about to commit them. Where their
    entries were cleaned up, Delta skips this one, too, and :func:`reconcile` reports it.

    Args:
        dead: Their state.
        main: The main table's newest entry, which names them.
        about: Names query and batch.
        attempt: A new, unique name.

    Returns:
        None if the table had an entry and is gone.
    """
    # Any entry closes them: it takes the number that a writer who decided before would use.
    if dead.entry is not None:
        return fence_entry(dead, about, attempt)
    batch = dead_batch(about, main.dead_letters or "")
    # The main table names an entry of a table that is gone, so nobody can commit to it on that entry.
    if dead.table_version < 0 and main.dead_attempt is not None:
        return None
    # Nobody has committed letters yet, but a writer may have decided to. So the ledger begins with an entry
    # that claims no bytes.
    passed = (JournalOffsets(main.read_through),)
    first = replace(batch, begin=passed, end=passed, gaps=(), heads={}, planned_ms=None)
    return replace(next_entry(dead, first, attempt, Allowed()), is_fence=True)


def fence_entry(state: LedgerState, about: LedgerEntry, attempt: str) -> LedgerEntry:
    """Return an entry that moves no offset, names no dead letters and becomes the newest one.

    Args:
        state: State of the entry's table, which has an entry.
        about: Names query and batch.
        attempt: A new, unique name.
    """
    assert state.entry is not None
    return replace(
        entry_without_rows(state, attempt),
        query_id=about.query_id,
        batch_id=about.batch_id,
        dead_letters=None,
        dead_attempt=None,
        planned_ms=None,
        is_fence=True,
        heads={},
        # What a query holds in its state does not end with an entry that moves nothing.
        stateful=about.stateful or state.entry.stateful,
    )


def reconcile(
    before: LedgerState, after: LedgerState, entry: LedgerEntry, batch: Batch, *, conflict: bool
) -> Committed | Retry | Refusal:
    """Return the outcome of a commit to a table of dead letters; see :mod:`gazette_spark._ledger.decision`.

    A faster writer is no reason to stop here, because the main table decides whose turn it is.
    """
    outcome = verify(before, after, entry, batch, conflict=conflict)
    if not isinstance(outcome, Refusal):
        return outcome
    if isinstance(outcome.error, FencedError):
        return Retry()
    return Refusal(_advised(outcome.error, after))


def check_ledger(dead: LedgerState, batch: Batch) -> None:
    """Check that the ledger of a table of dead letters says how far these go.

    Raises:
        RestoredError: the table was restored in the middle of a commit to it.
        LedgerLostError: it was restored to a version whose entry was cleaned up.
    """
    # Letters may be there, and nothing says up to where.
    if dead.entry is None and is_cut_off(dead):
        raise LedgerLostError(batch.table, batch.app_id)
    if error := check_parent(dead, batch):
        raise _advised(error, dead)


def _attempt(state: LedgerState) -> str | None:
    return state.entry.attempt if state.entry else None


def _advised(
    error: SinkError | JournalRecreatedError, dead: LedgerState
) -> SinkError | JournalRecreatedError:
    """Return an error about the main table as one about the dead letters, whose remedy is different."""
    if isinstance(error, RestoredError) and dead.entry is not None:
        undone_at = dead.jumps[0] if dead.jumps else dead.entry_version
        error.advice = (
            f"RESTORE TABLE … TO VERSION AS OF {undone_at - 1} mends it; to keep what the table was restored "
            f"to instead, restore version {dead.entry_version - 1}. Then the same query checkpoint goes on"
        )
    return error


def _offsets(positions: Positions) -> Mapping[str, int]:
    """Return the offsets of a batch of one source."""
    (position,) = positions
    assert isinstance(position, JournalOffsets)  # The sink refuses other queries.
    return position.read_through
