"""Decide whether a batch is written, skipped or refused, by a table's ledger.

:func:`decide` compares a batch with the newest entry and returns :class:`Write`, :class:`Skip` or
:class:`Refusal`; :func:`verify` returns, after a write, its outcome. Everything here is a function of values.

One journal of a batch, ``[begin, end)``, against the offset ``recorded`` for it:

===========================  ==========  =========================================================
``begin == recorded < end``  NEXT        these bytes come next
``begin == recorded == end`` UNCHANGED   it has not moved
no ``recorded``, begin = end NEXT        a journal new to the table, whose first offset is pinned
``end <= recorded``          COVERED     its bytes are in the table
``begin < recorded < end``   PARTIAL     its first bytes are in the table, its last ones come next
``begin > recorded``         GAP         bytes in between would be left out
everything else              OVERLAP     some of its bytes are before the table's first, or it goes back
===========================  ==========  =========================================================

A journal is looked up under its source's number in the query, else under any other source: sources may have
been swapped, or added in front.

A batch is written if its journals are all NEXT or UNCHANGED, and skipped if none is NEXT and all are COVERED
or UNCHANGED. **A batch in which no source moved may still have rows**: Spark runs such batches to emit closed
windows, timers and outer joins. So it is skipped only as a *replay*: if the newest entry is of the same query
and batch, planned at the same time. Otherwise it is written. Anything else comes from a checkpoint that is
not this table's, and is refused, unless the writer is :class:`Allowed` more:

- ``trim``: rows of journals that are COVERED or PARTIAL are left out by journal and offset, row by row
  where ``begin <= offset < recorded``. Journals that are NEXT are written whole, beside it. A query that is
  behind the table may start, unless it keeps state: that would take in records that the table has, or its
  dead letters, and give their rows in a later batch, where nothing is trimmed.
- ``gaps``: a journal whose GAP is one of these, to the byte, is NEXT. The entry records the omitted bytes.

A query is *bound to its checkpoint* if it keeps state, or reads sources other than Gazette's: their positions
are texts that a new checkpoint repeats, and rows made of state do not follow from offsets. Such a query
writes an entry for each batch, and a batch of it is the newest entry's replay or the batch after it.
Everything else is refused, whatever its offsets: an older or newer copy of the checkpoint, a new checkpoint.
With ``Allowed.restart`` a new checkpoint is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest

from gazette_spark._ledger.entry import (
    Batch,
    LedgerEntry,
    LedgerState,
    Positions,
    SkippedGap,
    SourcePosition,
    least_offsets,
    stored_on_parent,
)
from gazette_spark._ledger.iceberg_reader import SCHEME
from gazette_spark.errors import (
    BatchMismatchError,
    FencedError,
    GapError,
    JournalRecreatedError,
    LedgerLostError,
    Mismatch,
    OverlapError,
    RestoredError,
    SinkError,
    TableRefusedError,
    TrimError,
)
from gazette_spark.offsets import JournalOffsets


@dataclass(frozen=True, slots=True)
class Allowed:
    """Permissions of a writer for batches that do not continue the table; by default, none are given."""

    trim: bool = False
    gaps: frozenset[SkippedGap] = frozenset()
    """Bytes that may be missing permanently, each from the table's end to the start of a batch."""
    restart: bool = False
    """A new checkpoint of a query that is bound to its checkpoint may continue the table. Its state begins
    empty, its other sources begin where the query says."""


@dataclass(frozen=True, slots=True)
class NewRange:
    """The rows of one journal in a batch that are new to the table: those with ``since <= offset < end``."""

    journal: str
    begin: int
    """The batch has rows of no smaller offset."""
    since: int
    end: int


@dataclass(frozen=True, slots=True)
class Write:
    """Append the rows, with this entry in the same Delta commit."""

    entry: LedgerEntry
    new_ranges: tuple[NewRange, ...] = ()
    """If not empty, only rows in these ranges are appended; one range for each journal that the batch reads.
    """


@dataclass(frozen=True, slots=True)
class Skip:
    """The table has the whole batch."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Write nothing and end the query."""

    error: SinkError | JournalRecreatedError


Decision = Write | Skip | Refusal


class Coverage(Enum):
    """Relation of a journal's part of a batch to the recorded offsets; see the module's table."""

    NEXT = "next"
    UNCHANGED = "unchanged"
    COVERED = "covered"
    PARTIAL = "partial"
    GAP = "gap"
    OVERLAP = "overlap"


TRIMMABLE = frozenset({Coverage.NEXT, Coverage.UNCHANGED, Coverage.COVERED, Coverage.PARTIAL})
"""Values of the journals of a batch that can be trimmed to continue the table."""


def decide(
    state: LedgerState,
    batch: Batch,
    *,
    attempt: str,
    seen: str | None = None,
    allowed: Allowed = Allowed(),
) -> Decision:
    """Decide about a batch: write, skip or refuse.

    Args:
        state: The table's current state, from its history.
        batch: The query's request.
        attempt: A new, unique name for the entry, if one is written.
        seen: Attempt of the entry that was the newest after this writer's last batch; None for its
            first. If another is the newest now, someone else writes too.
        allowed: The writer's permissions for a batch that does not continue the table.
    """
    newest = state.entry
    # From here on, the entry has its positions in the order of the batch's sources. Users mean nothing by
    # that order, so a source that was moved continues where it ended (decision 0025).
    compared = _compare(batch, newest, allowed)
    state = replace(state, entry=compared.entry)
    coverages = compared.coverages
    # The table may be one that this writer must not continue, and the batch one of another checkpoint than
    # the table's. Offsets alone show neither, so both come before the comparison of offsets.
    error = _table_conflict(state, compared, seen)
    if error is None and newest is not None:
        error = _checkpoint_conflict(batch, newest, allowed)
    if error is not None:
        return Refusal(error)
    # A replay is skipped even if no source moved. Any other batch in which none moved may have rows.
    covered = coverages <= {Coverage.COVERED, Coverage.UNCHANGED}
    if covered and newest is not None and is_replay(batch, newest):
        return Skip()
    # Each journal continues the table to the byte. If none moved, the batch is written for what Spark may
    # emit without new bytes: closed windows, timers, outer joins. Skipping those lost every window.
    if coverages <= {Coverage.NEXT, Coverage.UNCHANGED} and (
        Coverage.NEXT in coverages or _may_have_rows(batch, newest)
    ):
        return Write(next_entry(state, batch, attempt, allowed))
    # This is no replay, but other batches over bytes that the table has: write_batch that is called again, a
    # stale checkpoint, a query with other limits. The offsets alone say that nothing is new.
    if covered:
        return Skip()
    # Part of the batch is in the table. Without trim that is an error, because it shows that the checkpoint
    # is not this table's: somebody should know (decision 0012).
    if _may_trim(batch, allowed) and coverages <= TRIMMABLE:
        return _trimmed(state, batch, attempt, allowed)
    overlap = compared.error(OverlapError, {Coverage.COVERED, Coverage.PARTIAL, Coverage.OVERLAP})
    if allowed.trim and batch.stateful:
        overlap.advice = STATE_ADVICE
    return Refusal(overlap)


STATE_ADVICE = (
    "on_overlap='trim' takes no query that keeps state: in a later batch it could emit rows of records that "
    "the table has. Start it where the table ends, with DeltaSink.resume(reader)"
)
"""The way out for such a query that begins behind the table's end."""


def _may_trim(batch: Batch, allowed: Allowed) -> bool:
    return allowed.trim and not batch.stateful


@dataclass(frozen=True, slots=True)
class _BatchComparison:
    """A batch beside the newest entry, whose positions are arranged as the batch's sources are."""

    batch: Batch
    entry: LedgerEntry | None
    parts: tuple[tuple[Coverage, Mismatch], ...]
    """By journal and by other source, in order."""

    @property
    def coverages(self) -> frozenset[Coverage]:
        return frozenset(coverage for coverage, _ in self.parts)

    def error(self, kind: type[BatchMismatchError], coverages: Collection[Coverage]) -> BatchMismatchError:
        """Return an error that names the parts of the batch that are covered in one of these ways."""
        batch = self.batch
        mismatches = tuple(mismatch for coverage, mismatch in self.parts if coverage in coverages)
        return kind(batch.table, batch.app_id, batch.batch_id, mismatches)


def _compare(batch: Batch, newest: LedgerEntry | None, allowed: Allowed) -> _BatchComparison:
    # Without an entry there is nothing to align with, and no journal can have moved to another source.
    if newest is None:
        return _BatchComparison(batch, None, tuple(_coverages(batch, None, allowed, frozenset())))
    moves = _moves(batch, newest)
    entry = _align_sources(newest, batch, moves)
    return _BatchComparison(batch, entry, tuple(_coverages(batch, entry, allowed, moves.keys())))


def is_replay(batch: Batch, entry: LedgerEntry) -> bool:
    """Say whether a batch is the one that wrote an entry, and runs again."""
    # Query and number do not name a batch: two copies of a checkpoint plan batches of one number with other
    # offsets. The time of planning, which Spark writes down once, tells them apart. A fence completes no
    # batch, so nothing is its replay.
    written = (entry.query_id, entry.batch_id, entry.planned_ms)
    return not entry.is_fence and written == (batch.query_id, batch.batch_id, batch.planned_ms)


def _is_after(batch: Batch, entry: LedgerEntry) -> bool:
    """Say whether a batch of the entry's query follows the entry, and not another planning of its batch.

    Two copies of a checkpoint may both have written a batch of that number, one before a RESTORE.
    """
    if batch.batch_id != entry.batch_id + 1:
        return False
    # Fences, and entries of batches without a query, have no time. There the number has to do.
    return entry.is_fence or None in (entry.planned_ms, batch.after_ms) or entry.planned_ms == batch.after_ms


def _may_have_rows(batch: Batch, entry: LedgerEntry | None) -> bool:
    """Say whether a batch in which no source moved, and which is no replay, has to be written.

    The first batch of a query pins its start, and has no rows. It leaves an entry only where later batches
    are compared with that, or where they must not be mistaken for those of a query with state. A batch
    without a query has no state.
    """
    if entry is None:
        # The first batch begins the ledger, even if it reads nothing.
        return True
    # A batch without a query has the rows of its bytes, of which there are none. An earlier batch of this
    # query was in the table before the newest one.
    if batch.planned_ms is None or (batch.query_id == entry.query_id and batch.batch_id < entry.batch_id):
        return False
    if batch.batch_id > 0 or _is_bound(batch) or entry.stateful:
        return True
    # The source has compared a journal that was created again: later batches name the new creation.
    recorded = entry.fingerprints
    return any(
        journal in recorded and new.create_revision not in (0, recorded[journal].create_revision)
        for journal, new in batch.fingerprints.items()
    )


def _is_bound(batch: Batch) -> bool:
    """Say whether only a query's own checkpoint determines the rows of its batches."""
    return batch.stateful or not all(isinstance(position, JournalOffsets) for position in batch.end)


def _checkpoint_conflict(
    batch: Batch, entry: LedgerEntry, allowed: Allowed
) -> OverlapError | GapError | None:
    """Return the reason why a batch does not follow an entry, if its query or the entry's is bound.

    Rows that are still in the state of the entry's query are lost with its checkpoint, regardless of offsets.
    """
    # Rows that follow from records are the same under any checkpoint, so offsets alone decide about them.
    if not (_is_bound(batch) or entry.stateful):
        return None
    kind: type[OverlapError | GapError] = OverlapError
    if batch.query_id == entry.query_id:
        if is_replay(batch, entry) or _is_after(batch, entry):
            return None
        # An earlier attempt at this batch has left the fence, because of its dead letters. The rows are to
        # come.
        if entry.is_fence and batch.batch_id == entry.batch_id:
            return None
        # The table has fewer batches than the checkpoint, as after a RESTORE. Any other difference means that
        # it has more, or others.
        if batch.batch_id > entry.batch_id + 1:
            kind = GapError
    # A new query may begin beside an entry that every checkpoint can continue. If it cannot, what the old
    # state held is lost, and its user has to say that this is acceptable.
    elif batch.batch_id == 0 and (allowed.restart or not (entry.stateful or _texts(entry))):
        return None
    error = kind(batch.table, batch.app_id, batch.batch_id, tuple(_bound_mismatches(batch, entry)))
    error.advice = BOUND_ADVICE
    return error


BOUND_ADVICE = (
    "Such sources, and a query's state, can be continued by the query's own checkpoint only, at the batch "
    "after the table's last. Ways out: start the query with that checkpoint; or give the other source a "
    "separate query, sink and app id; or start with a new checkpoint, DeltaSink.resume(reader) and "
    "DeltaSink(on_new_checkpoint='restart'): from then on the rows of other sources are at least once, "
    "those of journals still exactly once, and what the old state held and had not emitted is lost"
)
"""The ways out for a query that is bound to its checkpoint."""


def _texts(entry: LedgerEntry) -> bool:
    return any(isinstance(position, str) for position in entry.end)


def _bound_mismatches(batch: Batch, entry: LedgerEntry) -> Iterator[Mismatch]:
    last = f"batch {entry.batch_id} of query {entry.query_id}"
    if batch.stateful or entry.stateful:
        yield Mismatch("the query's state", last, f"batch {batch.batch_id} of query {batch.query_id}", None)
    recorded = entry.end
    for number, (begin, end) in enumerate(zip(batch.begin, batch.end, strict=True)):
        if not isinstance(end, JournalOffsets):
            position = recorded[number] if number < len(recorded) else None
            yield Mismatch(f"source {number}", f"{_text(position)} ({last})", _text(begin), end)


def _trimmed(state: LedgerState, batch: Batch, attempt: str, allowed: Allowed) -> Write | Refusal:
    """Write only the new rows of a batch, if its rows say what is new."""
    assert state.entry is not None  # Without an entry nothing is covered.
    # Of a join, the offset of one side says nothing about the row. A union would be safe, but it cannot be
    # told from a join (decision 0012).
    if len(batch.end) > 1 or len(state.entry.end) > 1:
        problem = "it is of a query of several sources, whose rows do not say what they were made of"
        return Refusal(TrimError(batch.table, batch.app_id, batch.batch_id, problem))
    recorded, ranges = state.entry.read_through, []
    for begin, end in zip(batch.begin, batch.end, strict=True):
        assert isinstance(begin, JournalOffsets)
        assert isinstance(end, JournalOffsets)
        for journal, until in end.read_through.items():
            # A row has the offset of its record's first byte, and ends in the ledger are on record
            # boundaries, so comparing offsets cuts no record. Journals that are NEXT get a range, too: a row
            # of a journal without one ends the query.
            if (since := begin.read_through[journal]) < until:
                new_from = min(until, max(since, recorded.get(journal, since)))
                ranges.append(NewRange(journal, since, new_from, until))
    # This number is for people and the lag monitor. The offsets of what was trimmed are not recorded, because
    # an entry says what its commit added.
    trimmed_bytes = sum(span.since - span.begin for span in ranges)
    entry = replace(next_entry(state, batch, attempt, allowed), trimmed_bytes=trimmed_bytes)
    return Write(entry, tuple(ranges))


def _table_conflict(
    state: LedgerState, compared: _BatchComparison, seen: str | None
) -> SinkError | JournalRecreatedError | None:
    """Return the reason why this writer may not continue the table, None if it may."""
    batch = compared.batch
    # The offsets of another journal of that name, or of rows of another kind, cannot be compared at all.
    if state.entry is not None and (
        error := _recreated(batch, state.entry) or _other_rows(batch, state.entry)
    ):
        return error
    # Batch 0 has left an entry: without one, this is another table, or an older version of it.
    if state.entry is None and (batch.batch_id > 0 or is_cut_off(state)):
        return _without_entry(state, compared)
    # A RESTORE between the decision on the newest entry and its commit is no conflict for Delta. The writer
    # of that entry may have died before it could look.
    if not _on_its_parent(state):
        return _restored_in_between(state, batch)
    # A RESTORE leaves another newest entry than the one that was seen, as a second writer does. Its gap tells
    # more, so it is reported first.
    if Coverage.GAP in compared.coverages:
        return compared.error(GapError, {Coverage.GAP})
    # The batch may even continue what the other writer has written. But two writers of one stream are a
    # mistake, and somebody should know.
    if state.entry is not None and seen not in (None, state.entry.attempt):
        return fenced(state, batch)
    return None


def is_cut_off(state: LedgerState) -> bool:
    """Say whether the log shows an entry, but not the newest visible one with all that it is stored on.

    A new query must not begin a second ledger on rows whose ledger was cleaned up.
    """
    return state.truncated and state.txn_version >= 0


def _without_entry(state: LedgerState, compared: _BatchComparison) -> SinkError:
    """Return the error for a later batch on a table without an entry; it says where to start again."""
    if state.truncated:
        return LedgerLostError(compared.batch.table, compared.batch.app_id)
    error = compared.error(GapError, frozenset(Coverage))
    if undone := least_offsets(state.undone):
        error.advice = (
            "The table was restored to before its first entry. Start with a new checkpoint directory and "
            f"DeltaSink.resume(reader), which starts where its rows began: {JournalOffsets(undone).to_json()}"
        )
        return error
    missing = "the table has no entry of this app id"
    if state.table_version < 0:
        missing = "there is no such table: it was dropped, moved or renamed"
    error.advice = (
        f"The checkpoint is of a query that has written before, and {missing}. Bring the table back, or give "
        "the sink its present name. To fill a table from the beginning, start with a new checkpoint, and "
        "startingOffsets=earliest or your own offsets: the default, latest, leaves out all existing records"
    )
    return error


def _other_rows(batch: Batch, entry: LedgerEntry) -> TableRefusedError | None:
    """Return the reason why a batch's rows are of another kind than an entry's, None if they are not."""
    # A table may change from append to upsert: the writer checks that no key is there twice. It cannot change
    # back.
    if entry.mode == "upsert" != batch.mode:
        problem = (
            f"app id {batch.app_id!r} keeps one row of each key by upsert, and batch {batch.batch_id} would "
            "be appended. Give DeltaSink the argument upsert that it had, or another app id for other rows"
        )
        return TableRefusedError(batch.table, problem)
    # Messages belong to the bytes that committed them, records to their own: the same offsets are other rows.
    if entry.isolation != batch.isolation:
        problem = (
            f"app id {batch.app_id!r} has rows of isolationLevel={entry.isolation}, and batch "
            f"{batch.batch_id} reads {batch.isolation}. Set the option isolationLevel that the query had, or "
            "give these rows another app id"
        )
        return TableRefusedError(batch.table, problem)
    # A query of committed messages knows the transactions that were open at its start only from the bytes
    # since then. One that began later than the table's would write the rest of such a transaction alone.
    recorded = entry.starts
    for journal, start in sorted(batch.starts.items()):
        if start > recorded.get(journal, start):
            # Files of tasks cannot be trimmed.
            trim = f", or at offset {recorded[journal]} with on_overlap='trim'"
            problem = (
                f"the query of batch {batch.batch_id} began at offset {start} of journal {journal!r}, the "
                f"table's rows begin at {recorded[journal]}: transactions that were open in between would be "
                "there in part. Start the query by DeltaSink.resume(reader), with the stateLocation of the "
                f"one before{'' if batch.table.startswith(SCHEME) else trim}"
            )
            return TableRefusedError(batch.table, problem)
    return None


def _recreated(batch: Batch, entry: LedgerEntry) -> JournalRecreatedError | None:
    """Return an error if the table's rows were read from another journal of the same name.

    The source compares bytes if it has a fingerprint to compare with. Here the fingerprints of the batch are
    compared again. A query that has none, such as one from the earliest offset with ``trim``, is recognized
    by the creation of its journals.
    """
    # A batch names the journals that move. One that stays behind a gap is compared, too: the entry would say
    # that the gap was skipped in the table's journal.
    begins, ends = least_offsets(batch.begin), entry.read_through
    stay = {
        journal: earlier
        for journal, earlier in batch.earlier_fingerprints.items()
        if journal in begins and journal in ends and begins[journal] > ends[journal]
    }
    for journal, new in {**stay, **batch.fingerprints}.items():
        if (recorded := entry.fingerprints.get(journal)) is None:
            continue
        revisions = (new.create_revision, recorded.create_revision)
        fingerprints = (new, batch.earlier_fingerprints.get(journal, new))
        # Other bytes in an equal range are certain, whatever the creations say.
        for fingerprint in fingerprints:
            if fingerprint.has_range_of(recorded) and fingerprint.digest != recorded.digest:
                compared = (recorded.begin, recorded.end)
                return JournalRecreatedError(journal, recorded.end, *revisions, compared, batch.table)
        # A fingerprint of the batch before says nothing of this one's journal if it names the old creation.
        are_same_bytes = any(
            fingerprint.has_range_of(recorded) and fingerprint.create_revision == new.create_revision
            for fingerprint in fingerprints
        )
        # Without comparable bytes the creation decides, as far as it is known: a store without brokers has
        # none (0). A journal of which the table has no byte cannot be mistaken (decision 0037).
        is_other_creation = 0 not in revisions and new.create_revision != recorded.create_revision
        if is_other_creation and not are_same_bytes and recorded.end > 0:
            return JournalRecreatedError(journal, recorded.end, *revisions, table=batch.table)
    return None


def fenced(state: LedgerState, batch: Batch) -> FencedError:
    """Return the error that names the writer whose entry is the newest."""
    assert state.entry is not None
    winner = state.entry
    return FencedError(
        batch.table,
        batch.app_id,
        batch.batch_id,
        winner.query_id,
        winner.batch_id,
        state.entry_time,
        state.entry_version,
    )


@dataclass(frozen=True, slots=True)
class Committed:
    """The write is in the table, and directly follows the entry it was decided on."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The write is not in the table; read and decide again."""


def verify(
    before: LedgerState, after: LedgerState, written: LedgerEntry, batch: Batch, *, conflict: bool
) -> Committed | Retry | Refusal:
    """Return the outcome of a write, which Delta may have skipped without an error.

    Args:
        before: The state that the write was decided on.
        after: The state after the write.
        written: The entry that the write was to commit.
        batch: The batch it was for.
        conflict: Delta raised a conflict: the outcome is unknown.
    """
    # The name of an attempt is unique, so this is the write, even if Delta has raised a conflict: its retry
    # after a lost answer meets its own commit.
    if after.entry is not None and after.entry.attempt == written.attempt:
        cleaned_up = after.previous is None and after.truncated
        if cleaned_up and any(at > before.table_version for at in after.jumps):
            # The parent is gone from the log, so nothing shows what the entry follows. A RESTORE after the
            # decision must not hide behind that.
            return Refusal(_restored_in_between(after, batch))
        return Committed() if _on_its_parent(after) else Refusal(_restored_in_between(after, batch))
    # Not in the table. If another entry is the newest now, the compare-and-set has worked: of two writers
    # that decided on one entry, the other one was faster.
    newest = after.entry.attempt if after.entry else None
    if newest != (before.entry.attempt if before.entry else None):
        if after.entry is None:
            return Retry()  # Everything was undone; the next decision reports the gap.
        return Refusal(fenced(after, batch))
    # No other writer has committed. After a conflict, or a write that a RESTORE has undone, the write may be
    # tried again. Without either, Delta has skipped the transaction number: it remembers entries that the log
    # has lost.
    if conflict or after.txn_version > before.txn_version:
        return Retry()
    return Refusal(LedgerLostError(batch.table, batch.app_id))


def _on_its_parent(state: LedgerState) -> bool:
    """Say whether the newest entry directly follows the entry it was decided on.

    A RESTORE that slips in between does not conflict with an append. The next writer sees it: the same one
    or, after a kill, its successor. Delta cleans up old log entries; a parent that was cleaned up is trusted.
    """
    if state.entry is None or state.previous == state.entry.parent:
        return True
    return state.previous is None and state.truncated


def check_parent(state: LedgerState, batch: Batch) -> RestoredError | None:
    """Return an error unless the newest entry directly follows the entry it was decided on."""
    return None if _on_its_parent(state) else _restored_in_between(state, batch)


def _restored_in_between(state: LedgerState, batch: Batch) -> RestoredError:
    undone_at = state.jumps[0] if state.jumps else state.entry_version
    what, restore = "RESTORE or the like", "RESTORE TABLE … TO VERSION AS OF"
    if batch.table.startswith(SCHEME):
        what, restore = "a rollback", "Rolling the table back to the snapshot with sequence number"
    return RestoredError(
        batch.table,
        batch.app_id,
        f"table version {undone_at} undid rows ({what}) after the batch that landed as version "
        f"{state.entry_version} was decided; what lies between is missing or doubled now",
        f"{restore} {undone_at - 1} mends it, and the same query checkpoint goes on. "
        f"To keep what the table was restored to instead, restore version {state.entry_version - 1}, and "
        "start with a new checkpoint and startingOffsets from DeltaSink.resume_offsets()",
    )


def next_entry(state: LedgerState, batch: Batch, attempt: str, allowed: Allowed) -> LedgerEntry:
    """Return the entry of a batch, which begins where the newest one ends.

    So a batch that was trimmed, or comes after a gap, leaves entries that follow each other like any other.
    """
    entry = state.entry
    accepted = tuple(_accepted(batch, entry, allowed))
    recorded = entry.read_through if entry else {}
    # A trimmed batch begins before the table's end, and earlier entries have named its gaps up to there.
    skipped = [gap for gap in batch.gaps if gap.end > recorded.get(gap.journal, 0)]
    new = [replace(gap, begin=max(gap.begin, recorded.get(gap.journal, 0))) for gap in skipped]
    # Of each journal the fingerprint that reaches furthest. One of the same reach replaces the recorded one,
    # because its journal was created again over the same bytes.
    fingerprints = dict(entry.fingerprints) if entry else {}
    for journal, fingerprint in batch.fingerprints.items():
        if journal not in fingerprints or fingerprints[journal].end <= fingerprint.end:
            fingerprints[journal] = fingerprint
    # The transaction number is one past the highest of the history, undone entries included: RESTORE keeps
    # Delta's numbers, and Delta skips a lower one without an error. So writers that decided on the same state
    # use the same number, and Delta lets one through. The batch id or the table's version in its place would
    # let a writer through that is late.
    #
    # The entry begins where the table ends, and not where the batch does. So the entries of a table cover
    # each journal without gap or overlap, however they were trimmed, and readers of the ledger need one rule.
    made = LedgerEntry(
        app_id=batch.app_id,
        txn_version=state.txn_version + 1,
        query_id=batch.query_id,
        batch_id=batch.batch_id,
        start=_merge(batch.begin, entry.start if entry else ()),
        begin=_merge(batch.begin, entry.end if entry else ()),
        end=_advance(entry.end if entry else (), batch.end),
        attempt=attempt,
        parent=entry.attempt if entry else None,
        gaps=tuple(sorted({*new, *accepted})),
        accepted_gaps=accepted,
        mode=batch.mode,
        planned_ms=batch.planned_ms,
        stateful=batch.stateful,
        heads=batch.heads,
        isolation=batch.isolation,
        fingerprints=fingerprints,
    )
    return stored_on_parent(made, entry)


def _moves(batch: Batch, entry: LedgerEntry) -> dict[tuple[int, str], int]:
    """Return the journals that an entry has under another source than a batch, and that source.

    If there are several such sources, the one with the largest offset is returned.
    """
    # The largest offset counts, because the table has all bytes before it: a smaller one would have some of
    # them written again.
    recorded = [_journals_of(position) for position in entry.end]
    return {
        (number, journal): max(holders, key=lambda source: recorded[source][journal])
        for number, position in enumerate(batch.end)
        for journal in _journals_of(position)
        if not (number < len(recorded) and journal in recorded[number])
        if (holders := [source for source, offsets in enumerate(recorded) if journal in offsets])
    }


def _align_sources(entry: LedgerEntry, batch: Batch, moves: Mapping[tuple[int, str], int]) -> LedgerEntry:
    """Return an entry with its positions under the numbers that the sources have in a batch.

    A journal moves to its new source, and stays with the old one as long as that reads it, too. Positions
    that no source of the batch reads are placed after those of its sources, so that the ledger keeps them. A
    new query's other sources begin without a position.
    """
    # The usual case: nothing was moved, added in front or left out, so the positions stay as they are.
    same_query = batch.query_id == entry.query_id
    in_place = len(entry.end) <= len(batch.end) and all(
        isinstance(new, JournalOffsets) or not _journals_of(old)
        for old, new in zip(entry.end, batch.end, strict=False)
    )
    if not moves and in_place and (same_query or not _texts(entry)):
        return entry
    # A journal leaves a source that does not read it any more. If both sources read it, both keep an offset.
    read = {
        (number, journal) for number, position in enumerate(batch.end) for journal in _journals_of(position)
    }
    vacated = {(source, journal) for (_, journal), source in moves.items()} - read

    texts = {number for number, position in enumerate(entry.end) if isinstance(position, str)}

    # Spark's text of another source means something under its own query only, so a new query's sources begin
    # without one. Positions that no source takes are kept behind: a query that reads them again must find
    # where the table ends.
    def align(positions: Positions) -> Positions:
        journals = [_journals_of(position) for position in positions]
        by_source = [
            {journal: at for journal, at in offsets.items() if (number, journal) not in vacated}
            for number, offsets in enumerate(journals)
        ]
        by_source += [{}] * (len(batch.end) - len(by_source))
        for (number, journal), source in moves.items():
            by_source[number] = by_source[number] | {journal: journals[source][journal]}
        placed: list[SourcePosition] = []
        behind: list[SourcePosition] = []
        for number, offsets in enumerate(by_source):
            old = positions[number] if number < len(positions) else None
            new = batch.end[number] if number < len(batch.end) else None
            if isinstance(new, JournalOffsets):
                placed.append(JournalOffsets(offsets))
            elif number < len(batch.end):
                placed.append(old if same_query and not offsets else None)
            if offsets and not isinstance(new, JournalOffsets):
                behind.append(JournalOffsets(offsets))
            if number in texts and (isinstance(new, JournalOffsets) or number >= len(batch.end)):
                behind.append(old)
        return (*placed, *behind)

    return replace(
        entry,
        start=align(entry.start),
        begin=align(entry.begin),
        end=align(entry.end),
        full_ms=None,  # The stored parent has other numbers, so the next entry needs all positions.
    )


def _journals_of(position: SourcePosition) -> Mapping[str, int]:
    return position.read_through if isinstance(position, JournalOffsets) else {}


def _accepted(batch: Batch, entry: LedgerEntry | None, allowed: Allowed) -> Iterator[SkippedGap]:
    """Yield the gaps between table and batch that the writer may leave out."""
    recorded = entry.end if entry else ()
    for begin, end in zip(batch.begin, recorded, strict=False):
        if isinstance(begin, JournalOffsets) and isinstance(end, JournalOffsets):
            # The gap must match to the byte. A permission for any gap would stay in the program and hide the
            # next one (decision 0012).
            for journal, since in begin.read_through.items():
                at = end.read_through.get(journal, since)
                if at < since and (gap := SkippedGap(journal, at, since)) in allowed.gaps:
                    yield gap


def _advance(recorded: Positions, reached: Positions) -> Positions:
    """Return the table's position after a batch: no journal goes back, and unread journals stay."""

    def advance(old: SourcePosition, new: SourcePosition) -> SourcePosition:
        if isinstance(old, JournalOffsets) and isinstance(new, JournalOffsets):
            offsets = old.read_through
            # A trimmed batch may end before the table does in some of its journals.
            advanced = {name: max(at, offsets.get(name, at)) for name, at in new.read_through.items()}
            return JournalOffsets({**offsets, **advanced})
        return old if new is None else new

    return tuple(advance(old, new) for old, new in zip_longest(recorded, reached))


def _merge(begins: Positions, recorded: Positions) -> Positions:
    """Return recorded positions, and where a batch begins in journals and sources without one."""

    def merge(begin: SourcePosition, position: SourcePosition) -> SourcePosition:
        if isinstance(begin, JournalOffsets) and isinstance(position, JournalOffsets):
            # The table's position counts; the batch's begin only fills in journals that are new.
            return JournalOffsets({**begin.read_through, **position.read_through})
        return begin if position is None else position

    return tuple(merge(begin, position) for begin, position in zip_longest(begins, recorded))


def _coverages(
    batch: Batch, entry: LedgerEntry | None, allowed: Allowed, moved: Collection[tuple[int, str]]
) -> Iterator[tuple[Coverage, Mismatch]]:
    """Yield the coverage of each journal and each other source of the batch, in order.

    A journal that the table has from another source must continue where it ended: nothing says what this
    source has read of it before.
    """
    recorded = entry.end if entry else ()
    started = entry.start if entry else ()
    for number, end in enumerate(batch.end):
        begin = batch.begin[number]
        position = recorded[number] if number < len(recorded) else None
        # Another source's position is text without an order: it is either where the table ended, or not.
        if not isinstance(end, JournalOffsets):
            name, text = f"source {number}", position if isinstance(position, str) else None
            again = entry is not None and is_replay(batch, entry)
            yield _fit_text(begin, end, text, again=again), Mismatch(name, text, _text(begin), end)
            continue
        assert isinstance(begin, JournalOffsets)  # See Batch.__post_init__.
        offsets = _journals_of(position)
        firsts = _journals_of(started[number]) if number < len(started) else {}
        for journal, until in end.read_through.items():
            since, at = begin.read_through[journal], offsets.get(journal)
            # Nothing of a first batch is covered: it pins where the query starts, so it continues the table
            # or not. Under trim, a query may start before the table's end. Nor is anything covered that
            # another source has read: nothing says what this source had read of it.
            pinning = (number, journal) in moved or (batch.batch_id == 0 and not _may_trim(batch, allowed))
            coverage = coverage_of(since, until, at, firsts.get(journal, 0), pinning=pinning)
            if coverage is Coverage.GAP and at is not None and SkippedGap(journal, at, since) in allowed.gaps:
                coverage = Coverage.NEXT
            yield coverage, Mismatch(f"journal {journal!r}", at, since, until, journal)


def coverage_of(begin: int, end: int, recorded: int | None, start: int, *, pinning: bool) -> Coverage:
    """Compare ``[begin, end)`` of one journal with the table.

    Args:
        begin: First byte of the batch.
        end: Byte after its last.
        recorded: End of the journal's bytes in the table, None if the table has no bytes of it.
        start: Start of these bytes.
        pinning: It is a query's first batch, which pins where the query starts, or the journal came from
            another source. Nothing of it can be covered then: it continues the table or it does not.
    """
    # The source plans no such batch; an offsets file that was edited may have one.
    if end < begin:
        return Coverage.OVERLAP
    # A journal that is new is pinned first, by a batch that reads nothing of it. Bytes of a journal that was
    # never pinned could follow bytes that nobody has read.
    if recorded is None:
        return Coverage.NEXT if begin == end else Coverage.GAP
    if begin > recorded:
        return Coverage.GAP
    if begin == recorded:
        return Coverage.UNCHANGED if begin == end else Coverage.NEXT
    # Bytes before the table's first were never meant to be there, and their rows would come out of order.
    if begin < start or pinning:
        return Coverage.OVERLAP
    return Coverage.COVERED if end <= recorded else Coverage.PARTIAL


def _fit_text(begin: SourcePosition, end: str | None, recorded: str | None, *, again: bool) -> Coverage:
    """Compare another source with the table. Its positions are equal or different; their order is unknown.

    Equal texts are the same place only within one query, and for its next batch or, ``again``, for a replay.
    """
    # The order of two texts is unknown, so only a replay is COVERED, and nothing is ever PARTIAL.
    if again and recorded == end:
        return Coverage.COVERED
    if begin != recorded:
        return Coverage.OVERLAP
    return Coverage.UNCHANGED if begin == end else Coverage.NEXT


def _text(position: SourcePosition) -> str | None:
    return position.to_json() if isinstance(position, JournalOffsets) else position
