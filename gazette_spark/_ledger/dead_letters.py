"""Splits a stream between two tables: rows that do not fit the main table go to a table of dead letters.

No row is lost or written twice, whenever a writer crashes. Each table has its own ledger. A batch is written
to the two tables in this order:

1. Read the ledger of the dead letters, then the ledger of the main table, and decide on the main table
   (:mod:`~gazette_spark._ledger.decision`).
2. Merge the rows that do not fit into the dead letters. Rows are matched by journal and offset, and only
   those that are not there yet are inserted.
3. Append to the main table the rows that are not among the dead letters *after* step 2.

Both commits are compare-and-sets on the entries that step 1 read. **The main table is the authority on
batches**: its entries alone decide the range of a batch, and whether the batch is done. **The commit of step
2 is the authority on rows**: a record that is a dead letter remains one, regardless of the rules or of a
second evaluation. If a row does not fit in step 3 although it did in step 2, its expression is not
deterministic. Such a row ends the query, and step 3 commits nothing.

Step 2 must not run between the two commits of another writer, because it could make dead letters of rows
that the other writer appends in step 3. Therefore an entry of the main table names the entry of the dead
letters that was the newest when it was made. If that entry is still their newest, the two ledgers are *in
step*: no writer is between its two commits, because step 2 would have left a newer entry. If they are not in
step (after a crash between steps 2 and 3, after a RESTORE of either table, or when dead letters have just
been switched on), a writer may be between its commits. In that case this writer first commits a *fence* to
the main table: an entry that moves no offset and names the newest entry of the dead letters. Every step 3
that was decided on before the fence conflicts with it. The writer then starts again.

Step 1 reads the dead letters first because they may be restored between the two reads. In the other order,
they could appear to be in step with an entry of the main table that is no longer the newest.

A writer that has no dead letters, or another table for them, first *closes* the dead letters that the main
table names. It commits an entry to them that moves no offset, and after that no step 2 that was decided on
earlier can be committed, not even the first one. If the dead letters end further than the main table, a
writer may have committed step 2 but not step 3, or the main table was restored; then the new writer is
refused. A query that keeps state is refused if the batch may already have dead letters: the query could take
those records into its state and emit their rows in a later batch, which is not compared with these letters.
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
    """The table that receives rows that do not fit the sink's table.

    Its columns are ``app_id`` STRING (that of the sink), ``journal`` STRING, ``offset`` BIGINT,
    ``end_offset`` BIGINT (null unless the rows have ``_end_offset``), ``raw`` BINARY and ``reason`` STRING.
    Dead letters of committed messages also have ``ack_offset`` BIGINT, because a message belongs to the bytes
    that committed it.
    """

    path: str | None = None
    """Directory of the table, which is created if it does not exist."""
    table: str | None = None
    """Name of the table in the catalog, instead of a directory."""
    corrupt_column: str = "_corrupt_record"
    """Column that is not null in records that could not be read, if the rows have such a column."""

    def __post_init__(self) -> None:
        if (self.path is None) == (self.table is None):
            got = f"path={self.path!r}, table={self.table!r}"
            raise OptionError("dead_letters", got, "exactly one of path and table")


@dataclass(frozen=True, slots=True)
class Fence:
    """Commit this entry to the main table without rows, then read and decide again."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class Divert:
    """Merge the rows that do not fit into the dead letters, then write the others to the main table."""

    batch: Batch
    """The batch to commit to the dead letters' table."""
    entry: LedgerEntry
    """The dead letters' entry."""
    may_have_some: bool
    """Whether records of the batch may already be dead letters."""


def plan(
    dead: LedgerState, main: LedgerState, write: Write, *, table: str, attempt: str
) -> Fence | Divert | None:
    """Decide how to split a batch between the main table and the dead letters.

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
        LedgerLostError: nothing records how far the dead letters extend.
        DeadLetterError: the dead letters are of a different isolation level.
    """
    batch = dead_batch(write.entry, table)
    # Rows of such a batch come from state or timers and belong to no record of it. If one of them does not
    # fit, the query ends.
    if batch.begin == batch.end:
        return None
    check_ledger(dead, batch)
    if dead.entry is not None and dead.entry.isolation != batch.isolation:
        problem = (
            f"{table} has the dead letters of another table of this app id, filled by a query with "
            f"isolationLevel={dead.entry.isolation}, but this query has isolationLevel={batch.isolation}. "
            "Use another app id or another table of dead letters"
        )
        raise DeadLetterError(batch.table, write.entry.app_id, problem)
    assert main.entry is not None  # A batch with bytes continues an entry.
    # A writer may have committed dead letters and be about to commit the other rows of that batch. The fence
    # makes its second commit conflict. In the model, writers without fences put records into both tables
    # (decision 0024).
    if not in_step(dead, main.entry, table):
        return Fence(with_letters(fence_entry(main, write.entry, attempt), table, dead))
    begins, recorded = _offsets(batch.begin), dead.entry.read_through if dead.entry else {}
    # The ledger of the dead letters may be behind that of the main table, because they were switched on late
    # or were restored. The entry begins where that ledger ends, so no gap is reported: dead letters must
    # never be a reason to stop the stream.
    entry = next_entry(dead, batch, attempt, Allowed())
    # The batch's bytes can already have dead letters only after a crash between the two commits or after a
    # RESTORE. Only then is the cost of the join paid.
    is_recorded = any(recorded.get(name, 0) > begin for name, begin in begins.items())
    return Divert(batch, replace(entry, dead_letters=table), may_have_some=is_recorded)


def dead_batch(entry: LedgerEntry, table: str) -> Batch:
    """Return the dead letters' batch that belongs to an entry of the main table.

    Its rows come from the query's only source. The entry's other positions record what older queries have
    read.
    """
    app_id = entry.app_id + APP_ID_SUFFIX
    # A batch with ``starts`` is a batch of committed messages.
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
    """Return whether a query could take dead letters into its state.

    It could emit them in a later batch, which is not compared with these dead letters. Dead letters that an
    earlier attempt at this batch has merged do no harm, because the batch emits their rows immediately.
    """
    # Without state, a batch emits its own records only, and these are joined with the dead letters.
    if not (write.entry.stateful and step.may_have_some):
        return False
    return dead.entry is None or not is_replay(step.batch, dead.entry)


def in_step(dead: LedgerState, main: LedgerEntry, table: str) -> bool:
    """Return whether an entry of the main table names the newest entry of the dead letters."""
    return main.dead_letters == table and main.dead_attempt == _attempt(dead)


def with_letters(entry: LedgerEntry, table: str, dead: LedgerState) -> LedgerEntry:
    """Return an entry of the main table that names the dead letters' table and its newest entry."""
    return replace(entry, dead_letters=table, dead_attempt=_attempt(dead))


def is_ahead(dead: LedgerState, main: LedgerEntry) -> bool:
    """Return whether there may be dead letters of bytes beyond the end of the main table."""
    recorded = dead.entry.read_through if dead.entry else {}
    # Offsets decide, not rows, because they show where dead letters may exist. It is not enough that the two
    # are in step: a fence after a RESTORE brings them in step again (decision 0024).
    passed = main.read_through | least_offsets(main.end[:1])  # The first place is the query's source.
    return any(at > passed.get(name, 0) for name, at in recorded.items())


def closing_entry(
    dead: LedgerState, main: LedgerEntry, about: LedgerEntry, attempt: str
) -> LedgerEntry | None:
    """Return the entry that closes the dead letters that a writer no longer uses.

    After it, nothing that another writer decided on earlier can be committed to them, not even their first
    entry. If their entries were cleaned up, Delta skips this entry as well, and :func:`reconcile` reports
    that.

    Args:
        dead: Their state.
        main: The main table's newest entry, which names them.
        about: Names query and batch.
        attempt: A new, unique name.

    Returns:
        None if the table had an entry and is gone.
    """
    # Any entry closes them, because it takes the transaction number that an earlier decision would use.
    if dead.entry is not None:
        return fence_entry(dead, about, attempt)
    batch = dead_batch(about, main.dead_letters or "")
    # The main table names an entry of a table that no longer exists, so no writer can commit on top of it.
    if dead.table_version < 0 and main.dead_attempt is not None:
        return None
    # No dead letters have been committed yet, but a writer may have decided to commit some. The ledger
    # therefore begins with an entry that covers no bytes.
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
        # A fence does not change a query's state.
        stateful=about.stateful or state.entry.stateful,
    )


def reconcile(
    before: LedgerState, after: LedgerState, entry: LedgerEntry, batch: Batch, *, conflict: bool
) -> Committed | Retry | Refusal:
    """Return the outcome of a commit to a table of dead letters; see :mod:`gazette_spark._ledger.decision`.

    If another writer was faster, the caller only retries, because the main table decides which writer
    continues.
    """
    outcome = verify(before, after, entry, batch, conflict=conflict)
    if not isinstance(outcome, Refusal):
        return outcome
    if isinstance(outcome.error, FencedError):
        return Retry()
    return Refusal(_advised(outcome.error, after))


def check_ledger(dead: LedgerState, batch: Batch) -> None:
    """Check that the ledger of a table of dead letters shows how far they extend.

    Raises:
        RestoredError: the table was restored in the middle of a commit to it.
        LedgerLostError: it was restored to a version whose entry was cleaned up.
    """
    # There may be dead letters, and nothing shows up to which offset.
    if dead.entry is None and is_cut_off(dead):
        raise LedgerLostError(batch.table, batch.app_id)
    if error := check_parent(dead, batch):
        raise _advised(error, dead)


def _attempt(state: LedgerState) -> str | None:
    return state.entry.attempt if state.entry else None


def _advised(
    error: SinkError | JournalRecreatedError, dead: LedgerState
) -> SinkError | JournalRecreatedError:
    """Turn an error about the main table into one about the dead letters, whose remedy is different."""
    if isinstance(error, RestoredError) and dead.entry is not None:
        undone_at = dead.jumps[0] if dead.jumps else dead.entry_version
        error.advice = (
            f"RESTORE TABLE … TO VERSION AS OF {undone_at - 1} repairs the table; to keep what it was "
            f"restored to instead, restore version {dead.entry_version - 1}. Then restart the query with the "
            "same checkpoint"
        )
    return error


def _offsets(positions: Positions) -> Mapping[str, int]:
    """Return the offsets of a batch of one source."""
    (position,) = positions
    assert isinstance(position, JournalOffsets)  # The sink refuses other queries.
    return position.read_through
