"""Decide by a table's ledger whether a batch is written, skipped or refused.

:func:`decide` compares a batch with the newest entry and returns :class:`Write`, :class:`Skip` or
:class:`Refusal`. After a write, :func:`verify` returns its outcome. All functions here are pure.

The following table compares the part ``[begin, end)`` of one journal in a batch with the offset ``recorded``,
at which the table's bytes of that journal end:

===========================  ==========  =========================================================
``begin == recorded < end``  NEXT        these bytes come next
``begin == recorded == end`` UNCHANGED   the journal has not moved
no ``recorded``, begin = end NEXT        the journal is new to the table; its first offset is pinned
``end <= recorded``          COVERED     all of these bytes are in the table
``begin < recorded < end``   PARTIAL     the first bytes are in the table, and the others come next
``begin > recorded``         GAP         the bytes between ``recorded`` and ``begin`` would be left out
everything else              OVERLAP     some bytes are before the table's first one, or ``end < begin``
===========================  ==========  =========================================================

A journal is looked up under the number of its source in the query, and then under all other sources, because
sources may have been swapped or added in front.

A batch is written if all its journals are NEXT or UNCHANGED, and skipped if all are COVERED or UNCHANGED. **A
batch in which no source moved may still have rows**, because Spark runs such batches to emit closed windows,
timers and outer joins. Such a batch is therefore skipped only if it is a *replay*: the newest entry has the
same query, the same batch and the same time of planning. Otherwise it is written. Any other batch comes from
a checkpoint that does not belong to this table. It is refused, unless :class:`Allowed` permits more:

- ``trim``: rows of journals that are COVERED or PARTIAL are left out, row by row, if
  ``begin <= offset < recorded``. All rows of journals that are NEXT are written. A query may thus start
  before the table's end, unless it keeps state: it would take records that the table or its dead letters
  already have into its state, and emit their rows in a later batch, where nothing is trimmed.
- ``gaps``: a journal whose GAP equals one of these, to the byte, is NEXT. The entry records the omitted
  bytes.

A query is *bound to its checkpoint* if it keeps state or reads sources other than Gazette's. The positions of
such sources are texts that a new checkpoint may repeat, and rows that come from state do not follow from
offsets. A bound query writes an entry for each batch, and each of its batches must be a replay of the newest
entry or the batch after it. Every other batch is refused, regardless of its offsets: it comes from an older
or newer copy of the checkpoint, or from a new checkpoint. ``Allowed.restart`` accepts a new checkpoint.
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
    """What a writer may do with batches that do not continue the table; by default, nothing."""

    trim: bool = False
    gaps: frozenset[SkippedGap] = frozenset()
    """Ranges of bytes that may be missing permanently, each from the table's end to the start of a batch."""
    restart: bool = False
    """Whether a new checkpoint of a query that is bound to its checkpoint may continue the table. The new
    state is empty, and the query determines where its other sources start."""


@dataclass(frozen=True, slots=True)
class NewRange:
    """The rows of one journal in a batch that are new to the table: those with ``since <= offset < end``."""

    journal: str
    begin: int
    """Smallest offset that a row of the batch may have."""
    since: int
    end: int


@dataclass(frozen=True, slots=True)
class Write:
    """Append the rows, with this entry in the same Delta commit."""

    entry: LedgerEntry
    new_ranges: tuple[NewRange, ...] = ()
    """If not empty, only rows in these ranges are appended. There is one range for each journal of the batch.
    """


@dataclass(frozen=True, slots=True)
class Skip:
    """Write nothing, because the table has the whole batch."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Write nothing and end the query."""

    error: SinkError | JournalRecreatedError


Decision = Write | Skip | Refusal


class Coverage(Enum):
    """How a journal's part of a batch relates to the recorded offsets; see the module's table."""

    NEXT = "next"
    UNCHANGED = "unchanged"
    COVERED = "covered"
    PARTIAL = "partial"
    GAP = "gap"
    OVERLAP = "overlap"


TRIMMABLE = frozenset({Coverage.NEXT, Coverage.UNCHANGED, Coverage.COVERED, Coverage.PARTIAL})
"""Coverages of journals in a batch that can be trimmed so that it continues the table."""


def decide(  # noqa: C901, PLR0911, PLR0912 - the whole decision, to be checked by reading it once
    state: LedgerState,
    batch: Batch,
    *,
    attempt: str,
    seen: str | None = None,
    allowed: Allowed = Allowed(),
) -> Decision:
    """Decide whether to write, skip or refuse a batch.

    Args:
        state: The table's current state, from its history.
        batch: The batch that the query requests to write.
        attempt: A new, unique name for the entry to be written.
        seen: Attempt of the entry that was the newest after this writer's last batch; None for its first
            batch. If another entry is the newest now, there is a second writer.
        allowed: What the writer may do with a batch that does not continue the table.
    """
    newest = state.entry
    # From here on, the entry has its positions in the order of the batch's sources. That order has no meaning
    # to users, so a source that was moved continues where it ended (decision 0025).
    compared = _compare(batch, newest, allowed)
    state = replace(state, entry=compared.entry)
    entry, coverages = compared.entry, compared.coverages
    # This writer may have to leave the table alone, or the batch may come from a checkpoint that is not the
    # table's. Offsets alone show neither, so both are checked before offsets are compared. Offsets of another
    # journal with the same name, or of rows of another kind, cannot be compared at all.
    if entry is not None and (error := _recreated(batch, entry) or _other_rows(batch, entry)):
        return Refusal(error)
    # Batch 0 left an entry. If there is none, this is another table or an older version of the table.
    if entry is None and (batch.batch_id > 0 or is_cut_off(state)):
        return Refusal(_without_entry(state, compared))
    # To Delta, a RESTORE between a decision and its commit is not a conflict. The writer of the newest entry
    # may have died before it could check for one.
    if not _on_its_parent(state):
        return Refusal(_restored_in_between(state, batch))
    # After a RESTORE, the newest entry is not the one that this writer saw, just as with a second writer. The
    # gap says more about the cause, so it is reported first.
    if Coverage.GAP in coverages:
        return Refusal(compared.error(GapError, {Coverage.GAP}))
    # The batch may even continue what the other writer has written. But two writers of one stream are a
    # mistake, which the operator should know.
    if entry is not None and seen not in (None, entry.attempt):
        return Refusal(fenced(state, batch))
    if newest is not None and (conflict := _checkpoint_conflict(batch, newest, allowed)):
        return Refusal(conflict)
    # A replay is skipped even if no source moved. Any other batch in which no source moved may have rows.
    covered = coverages <= {Coverage.COVERED, Coverage.UNCHANGED}
    if covered and newest is not None and is_replay(batch, newest):
        return Skip()
    # Each journal continues the table to the byte. If no journal moved, the batch is still written, because
    # Spark may emit rows without new bytes: closed windows, timers, outer joins. An earlier version skipped
    # such batches and lost every window.
    if coverages <= {Coverage.NEXT, Coverage.UNCHANGED} and (
        Coverage.NEXT in coverages or _may_have_rows(batch, newest)
    ):
        return Write(next_entry(state, batch, attempt, allowed))
    # This is not a replay, but another batch of bytes that the table has: from a repeated call of
    # write_batch, a stale checkpoint, or a query with other limits. The offsets alone show that nothing is
    # new.
    if covered:
        return Skip()
    # Part of the batch is in the table. Without trim that is an error, because it shows that the checkpoint
    # does not belong to this table, which the operator should know (decision 0012).
    if not (_may_trim(batch, allowed) and coverages <= TRIMMABLE):
        overlap = compared.error(OverlapError, {Coverage.COVERED, Coverage.PARTIAL, Coverage.OVERLAP})
        if allowed.trim and batch.stateful:
            overlap.advice = STATE_ADVICE
        return Refusal(overlap)
    assert entry is not None  # Without an entry, nothing is covered.
    # The row of a join cannot be identified by the offset of one side. A union would be safe, but it cannot
    # be distinguished from a join (decision 0012).
    if len(batch.end) > 1 or len(entry.end) > 1:
        problem = "its query has several sources, so its rows do not show which records they come from"
        return Refusal(TrimError(batch.table, batch.app_id, batch.batch_id, problem))
    recorded, ranges = entry.read_through, []
    for begin, end in zip(batch.begin, batch.end, strict=True):
        assert isinstance(begin, JournalOffsets)
        assert isinstance(end, JournalOffsets)
        for journal, until in end.read_through.items():
            # A row has the offset of its record's first byte, and ends in the ledger are on record
            # boundaries, so comparing offsets never splits a record. Journals that are NEXT get a range as
            # well, because a row of a journal without a range ends the query.
            if (since := begin.read_through[journal]) < until:
                new_from = min(until, max(since, recorded.get(journal, since)))
                ranges.append(NewRange(journal, since, new_from, until))
    # This number is for people and for the lag monitor. The offsets of trimmed rows are not recorded, because
    # an entry records what its commit added.
    trimmed_bytes = sum(span.since - span.begin for span in ranges)
    made = replace(next_entry(state, batch, attempt, allowed), trimmed_bytes=trimmed_bytes)
    return Write(made, tuple(ranges))


STATE_ADVICE = (
    "on_overlap='trim' does not support a query that keeps state, because it could emit rows of records that "
    "the table has in a later batch. Start it where the table ends, with DeltaSink.resume(reader)"
)
"""What to do about a query with state that begins before the table's end."""


def _may_trim(batch: Batch, allowed: Allowed) -> bool:
    return allowed.trim and not batch.stateful


@dataclass(frozen=True, slots=True)
class _BatchComparison:
    """A batch compared with the newest entry, whose positions are in the order of the batch's sources."""

    batch: Batch
    entry: LedgerEntry | None
    parts: tuple[tuple[Coverage, Mismatch], ...]
    """One part for each journal and for each source of another kind, in order."""

    @property
    def coverages(self) -> frozenset[Coverage]:
        return frozenset(coverage for coverage, _ in self.parts)

    def error(self, kind: type[BatchMismatchError], coverages: Collection[Coverage]) -> BatchMismatchError:
        """Return an error that names the parts of the batch that have one of these coverages."""
        batch = self.batch
        mismatches = tuple(mismatch for coverage, mismatch in self.parts if coverage in coverages)
        return kind(batch.table, batch.app_id, batch.batch_id, mismatches)


def _compare(batch: Batch, newest: LedgerEntry | None, allowed: Allowed) -> _BatchComparison:
    # Without an entry there are no positions to align, and no journal can have moved to another source.
    if newest is None:
        return _BatchComparison(batch, None, tuple(_coverages(batch, None, allowed, frozenset())))
    moves = _moves(batch, newest)
    entry = _align_sources(newest, batch, moves)
    return _BatchComparison(batch, entry, tuple(_coverages(batch, entry, allowed, moves.keys())))


def is_replay(batch: Batch, entry: LedgerEntry) -> bool:
    """Return whether a batch is another run of the batch that wrote an entry."""
    # The query and the number do not identify a batch: two copies of a checkpoint can plan batches with the
    # same number and different offsets. The time of planning, which Spark records once, distinguishes them. A
    # fence completes no batch, so no batch is its replay.
    written = (entry.query_id, entry.batch_id, entry.planned_ms)
    return not entry.is_fence and written == (batch.query_id, batch.batch_id, batch.planned_ms)


def _may_have_rows(batch: Batch, entry: LedgerEntry | None) -> bool:
    """Return whether a batch in which no source moved, and which is not a replay, has to be written.

    The first batch of a query pins the query's start and has no rows. It writes an entry only if later
    batches will be compared with that entry, or if they could otherwise be mistaken for batches of a query
    with state. A batch without a query has no state.
    """
    if entry is None:
        # The first batch begins the ledger, even if it reads nothing.
        return True
    # A batch without a query has only the rows of its bytes, and this one has no bytes. If the batch is
    # earlier than the entry's batch of the same query, it was written before that one.
    if batch.planned_ms is None or (batch.query_id == entry.query_id and batch.batch_id < entry.batch_id):
        return False
    if batch.batch_id > 0 or _is_bound(batch) or entry.stateful:
        return True
    # Otherwise the batch matters only if a journal was created again, with the same bytes as the source found
    # out. Then later batches name the new creation.
    recorded = entry.fingerprints
    return any(
        journal in recorded and new.create_revision not in (0, recorded[journal].create_revision)
        for journal, new in batch.fingerprints.items()
    )


def _is_bound(batch: Batch) -> bool:
    """Return whether a batch's rows depend on the query's own checkpoint, and not only on offsets."""
    return batch.stateful or not all(isinstance(position, JournalOffsets) for position in batch.end)


def _checkpoint_conflict(
    batch: Batch, entry: LedgerEntry, allowed: Allowed
) -> OverlapError | GapError | None:
    """Return an error if a query is bound to its checkpoint, and the batch does not follow the entry.

    The query may be that of the batch or of the entry. Rows that are still in the state of the entry's query
    are lost together with its checkpoint, regardless of offsets.
    """
    # Rows that depend on records alone are the same under any checkpoint, so offsets alone decide.
    if not (_is_bound(batch) or entry.stateful):
        return None
    kind: type[OverlapError | GapError] = OverlapError
    if batch.query_id == entry.query_id:
        # The batch is another run of the entry's batch, or the next one. With the next number, it may follow
        # another planning of the entry's batch instead: two copies of a checkpoint may both have written a
        # batch with that number, one of them before a RESTORE. Fences, and entries of batches without a
        # query, have no time of planning. For these, the number decides.
        if is_replay(batch, entry) or (
            batch.batch_id == entry.batch_id + 1
            and (
                entry.is_fence
                or None in (entry.planned_ms, batch.after_ms)
                or entry.planned_ms == batch.after_ms
            )
        ):
            return None
        # An earlier attempt at this batch left the fence because of its dead letters. The batch's rows are
        # still to be written.
        if entry.is_fence and batch.batch_id == entry.batch_id:
            return None
        # The table has fewer batches than the checkpoint, as after a RESTORE. Any other difference means that
        # the table has more batches or different ones.
        if batch.batch_id > entry.batch_id + 1:
            kind = GapError
    # A new query may follow an entry that any checkpoint can continue. If only the old checkpoint can
    # continue the entry, the contents of the old state are lost, and the user has to accept that explicitly.
    elif batch.batch_id == 0 and (allowed.restart or not (entry.stateful or _texts(entry))):
        return None
    last = f"batch {entry.batch_id} of query {entry.query_id}"
    mismatches: list[Mismatch] = []
    if batch.stateful or entry.stateful:
        this = f"batch {batch.batch_id} of query {batch.query_id}"
        mismatches.append(Mismatch("the query's state", last, this, None))
    recorded = entry.end
    for number, (begin, end) in enumerate(zip(batch.begin, batch.end, strict=True)):
        if not isinstance(end, JournalOffsets):
            position = recorded[number] if number < len(recorded) else None
            mismatches.append(Mismatch(f"source {number}", f"{_text(position)} ({last})", _text(begin), end))
    error = kind(batch.table, batch.app_id, batch.batch_id, tuple(mismatches))
    error.advice = BOUND_ADVICE
    return error


BOUND_ADVICE = (
    "Only the query's own checkpoint can continue such sources and a query's state, at the batch after the "
    "table's last. Start the query with that checkpoint; or give the other source a separate query, sink and "
    "app id; or start with a new checkpoint, DeltaSink.resume(reader) and "
    "DeltaSink(on_new_checkpoint='restart'). In the last case, rows of other sources are at least once from "
    "then on, rows of journals are still exactly once, and what the old state had not emitted yet is lost"
)
"""What to do about a query that is bound to its checkpoint."""


def _texts(entry: LedgerEntry) -> bool:
    return any(isinstance(position, str) for position in entry.end)


def is_cut_off(state: LedgerState) -> bool:
    """Return whether the log has entries, but lacks the newest visible one or an entry that it builds on.

    A new query must not begin a second ledger for rows whose ledger was cleaned up.
    """
    return state.truncated and state.txn_version >= 0


def _without_entry(state: LedgerState, compared: _BatchComparison) -> SinkError:
    """Return the error for a later batch on a table without an entry, which says where to start again."""
    if state.truncated:
        return LedgerLostError(compared.batch.table, compared.batch.app_id)
    error = compared.error(GapError, frozenset(Coverage))
    if undone := least_offsets(state.undone):
        error.advice = (
            "The table was restored to a version before its first entry. Start with a new checkpoint "
            "directory and DeltaSink.resume(reader), which starts where the rows began: "
            f"{JournalOffsets(undone).to_json()}"
        )
        return error
    missing = "the table has no ledger entry for this app id"
    if state.table_version < 0:
        missing = "there is no such table: it was dropped, moved or renamed"
    error.advice = (
        f"The checkpoint belongs to a query that has written before, but {missing}. Bring the table back, or "
        "give the sink its current name. To fill a table from the beginning, start with a new checkpoint and "
        "startingOffsets=earliest or your own offsets: the default, latest, leaves out all existing records"
    )
    return error


def _other_rows(batch: Batch, entry: LedgerEntry) -> TableRefusedError | None:
    """Return an error if the rows of a batch are of a different kind from those of an entry, or None."""
    # A table may change from append to upsert, because the writer checks that no key occurs twice. It cannot
    # change back.
    if entry.mode == "upsert" != batch.mode:
        problem = (
            f"app id {batch.app_id!r} keeps one row for each key by upsert, but batch {batch.batch_id} would "
            "be appended. Give DeltaSink the argument upsert that it had, or another app id for other rows"
        )
        return TableRefusedError(batch.table, problem)
    # Messages belong to the bytes that committed them, and records to their own bytes. So the same offsets
    # denote different rows.
    if entry.isolation != batch.isolation:
        problem = (
            f"app id {batch.app_id!r} has rows of isolationLevel={entry.isolation}, but batch "
            f"{batch.batch_id} reads {batch.isolation}. Set the option isolationLevel that the query had, or "
            "give these rows another app id"
        )
        return TableRefusedError(batch.table, problem)
    # A query of committed messages sees only those messages of a transaction that come after the query's
    # start. If this query started later than the table's, it would write only the rest of a transaction that
    # was open at its start.
    recorded = entry.starts
    for journal, start in sorted(batch.starts.items()):
        if start > recorded.get(journal, start):
            # Files that tasks have written cannot be trimmed.
            trim = f", or at offset {recorded[journal]} with on_overlap='trim'"
            problem = (
                f"the query of batch {batch.batch_id} began at offset {start} of journal {journal!r}, but "
                f"the table's rows begin at {recorded[journal]}. Only a part of the transactions that were "
                "open in between would be in the table. Start the query with DeltaSink.resume(reader) and "
                f"the stateLocation of the earlier query{'' if batch.table.startswith(SCHEME) else trim}"
            )
            return TableRefusedError(batch.table, problem)
    return None


def _recreated(batch: Batch, entry: LedgerEntry) -> JournalRecreatedError | None:
    """Return an error if the table's rows were read from another journal of the same name.

    The source compares bytes if it has a fingerprint to compare with. This function compares the fingerprints
    of the batch again. If the query has none, as with ``trim`` from the earliest offset, the creation of its
    journals decides.
    """
    # A batch names the journals that move. A journal that does not move because it waits behind a gap is
    # compared as well: otherwise the entry would record the gap as skipped in the table's journal.
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
        # Different bytes in the same range prove that it is another journal, regardless of the creations.
        for fingerprint in fingerprints:
            if fingerprint.has_range_of(recorded) and fingerprint.digest != recorded.digest:
                compared = (recorded.begin, recorded.end)
                return JournalRecreatedError(journal, recorded.end, *revisions, compared, batch.table)
        # A fingerprint from the previous batch says nothing about this batch's journal if it names the old
        # creation.
        are_same_bytes = any(
            fingerprint.has_range_of(recorded) and fingerprint.create_revision == new.create_revision
            for fingerprint in fingerprints
        )
        # Without bytes to compare, the creation decides if it is known: a store without brokers has none (0).
        # A journal of which the table has no byte cannot be mistaken for another one (decision 0037).
        is_other_creation = 0 not in revisions and new.create_revision != recorded.create_revision
        if is_other_creation and not are_same_bytes and recorded.end > 0:
            return JournalRecreatedError(journal, recorded.end, *revisions, table=batch.table)
    return None


def fenced(state: LedgerState, batch: Batch) -> FencedError:
    """Return the error that names the writer of the newest entry."""
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
        batch: The batch that was written.
        conflict: Whether Delta raised a conflict, which leaves the outcome unknown.
    """
    # The name of an attempt is unique, so this write is in the table, even if Delta raised a conflict: when
    # an answer is lost, Delta's retry conflicts with its own commit.
    if after.entry is not None and after.entry.attempt == written.attempt:
        cleaned_up = after.previous is None and after.truncated
        if cleaned_up and any(at > before.table_version for at in after.jumps):
            # The parent is no longer in the log, so nothing shows what the entry follows. This must not hide
            # a RESTORE after the decision.
            return Refusal(_restored_in_between(after, batch))
        return Committed() if _on_its_parent(after) else Refusal(_restored_in_between(after, batch))
    # The write is not in the table. If another entry is the newest now, the compare-and-set has worked: two
    # writers decided on the same entry, and the other one was faster.
    newest = after.entry.attempt if after.entry else None
    if newest != (before.entry.attempt if before.entry else None):
        if after.entry is None:
            return Retry()  # Everything was undone; the next decision reports the gap.
        return Refusal(fenced(after, batch))
    # No other writer has committed. After a conflict, or if a RESTORE has undone the write, the write may be
    # tried again. Otherwise Delta has skipped the transaction number, because it remembers entries that are
    # no longer in the log.
    if conflict or after.txn_version > before.txn_version:
        return Retry()
    return Refusal(LedgerLostError(batch.table, batch.app_id))


def _on_its_parent(state: LedgerState) -> bool:
    """Return whether the newest entry directly follows the entry it was decided on.

    A RESTORE in between does not conflict with an append. The next writer detects it: the same one or, if
    that was killed, its successor. Delta cleans up old log entries, and a parent that was cleaned up is
    trusted.
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
        f"table version {undone_at} undid rows ({what}) after the decision to write the batch of version "
        f"{state.entry_version}, so rows in between are now missing or written twice",
        f"{restore} {undone_at - 1} repairs the table; then restart the query with the same checkpoint. "
        f"To keep what the table was restored to instead, restore version {state.entry_version - 1}, and "
        "start with a new checkpoint and startingOffsets from DeltaSink.resume_offsets()",
    )


def next_entry(state: LedgerState, batch: Batch, attempt: str, allowed: Allowed) -> LedgerEntry:
    """Return the entry of a batch, which begins where the newest one ends.

    Thus the entries follow each other without gap, even if a batch was trimmed or comes after a gap.
    """
    entry = state.entry
    accepted = tuple(_accepted(batch, entry, allowed))
    recorded = entry.read_through if entry else {}
    # A trimmed batch begins before the table's end, and earlier entries have recorded its gaps up to that
    # end.
    skipped = [gap for gap in batch.gaps if gap.end > recorded.get(gap.journal, 0)]
    new = [replace(gap, begin=max(gap.begin, recorded.get(gap.journal, 0))) for gap in skipped]
    # Keep the fingerprint of each journal that reaches furthest. If both reach equally far, the new one
    # replaces the recorded one, because its journal was created again with the same bytes.
    fingerprints = dict(entry.fingerprints) if entry else {}
    for journal, fingerprint in batch.fingerprints.items():
        if journal not in fingerprints or fingerprints[journal].end <= fingerprint.end:
            fingerprints[journal] = fingerprint
    # The transaction number is one more than the highest in the history, undone entries included, because
    # RESTORE keeps Delta's numbers and Delta skips a write with a lower number without an error. Writers that
    # decided on the same state thus use the same number, and Delta accepts only one of them. With the batch
    # id or the table's version as the number, Delta would accept a writer that is too late.
    #
    # The entry begins where the table ends, and not where the batch does. Thus the entries of a table cover
    # each journal without gap or overlap, however batches were trimmed, and readers of the ledger need only
    # one rule.
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
    """Return the journals that an entry and a batch have under different sources, with the entry's source.

    If the entry has a journal under several sources, the one with the largest offset is returned.
    """
    # The largest offset counts, because the table has all bytes before it. With a smaller one, some of them
    # would be written again.
    recorded = [_journals_of(position) for position in entry.end]
    return {
        (number, journal): max(holders, key=lambda source: recorded[source][journal])
        for number, position in enumerate(batch.end)
        for journal in _journals_of(position)
        if not (number < len(recorded) and journal in recorded[number])
        if (holders := [source for source, offsets in enumerate(recorded) if journal in offsets])
    }


def _align_sources(entry: LedgerEntry, batch: Batch, moves: Mapping[tuple[int, str], int]) -> LedgerEntry:
    """Return an entry whose positions have the numbers that the sources have in a batch.

    A journal moves to its new source, and also stays with the old source if that still reads it. Positions
    that no source of the batch reads are placed after those of its sources, so that the ledger keeps them. In
    a new query, sources of other kinds begin without a position.
    """
    # In the usual case no source was moved, added in front or left out, and the positions stay as they are.
    same_query = batch.query_id == entry.query_id
    in_place = len(entry.end) <= len(batch.end) and all(
        isinstance(new, JournalOffsets) or not _journals_of(old)
        for old, new in zip(entry.end, batch.end, strict=False)
    )
    if not moves and in_place and (same_query or not _texts(entry)):
        return entry
    # A journal leaves a source that no longer reads it. If both sources read it, both keep an offset.
    read = {
        (number, journal) for number, position in enumerate(batch.end) for journal in _journals_of(position)
    }
    vacated = {(source, journal) for (_, journal), source in moves.items()} - read

    texts = {number for number, position in enumerate(entry.end) if isinstance(position, str)}

    # Spark's text of another source has a meaning only in its own query, so the sources of a new query begin
    # without one. Positions that no source takes are kept at the end, because a query that reads those
    # journals again must find where the table ends.
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
        full_ms=None,  # The stored parent has other source numbers, so the next entry needs all positions.
    )


def _journals_of(position: SourcePosition) -> Mapping[str, int]:
    return position.read_through if isinstance(position, JournalOffsets) else {}


def _accepted(batch: Batch, entry: LedgerEntry | None, allowed: Allowed) -> Iterator[SkippedGap]:
    """Yield the gaps between the table and the batch that the writer may leave out."""
    recorded = entry.end if entry else ()
    for begin, end in zip(batch.begin, recorded, strict=False):
        if isinstance(begin, JournalOffsets) and isinstance(end, JournalOffsets):
            # The gap must match to the byte. A permission for any gap would remain in the program and hide
            # the next gap (decision 0012).
            for journal, since in begin.read_through.items():
                at = end.read_through.get(journal, since)
                if at < since and (gap := SkippedGap(journal, at, since)) in allowed.gaps:
                    yield gap


def _advance(recorded: Positions, reached: Positions) -> Positions:
    """Return the table's position after a batch. No journal goes back, and unread journals stay."""

    def advance(old: SourcePosition, new: SourcePosition) -> SourcePosition:
        if isinstance(old, JournalOffsets) and isinstance(new, JournalOffsets):
            offsets = old.read_through
            # In some of its journals, a trimmed batch may end before the table does.
            advanced = {name: max(at, offsets.get(name, at)) for name, at in new.read_through.items()}
            return JournalOffsets({**offsets, **advanced})
        return old if new is None else new

    return tuple(advance(old, new) for old, new in zip_longest(recorded, reached))


def _merge(begins: Positions, recorded: Positions) -> Positions:
    """Return the recorded positions, with the start of a batch for journals and sources that have none."""

    def merge(begin: SourcePosition, position: SourcePosition) -> SourcePosition:
        if isinstance(begin, JournalOffsets) and isinstance(position, JournalOffsets):
            # The table's position takes precedence; the batch's start only adds journals that are new.
            return JournalOffsets({**begin.read_through, **position.read_through})
        return begin if position is None else position

    return tuple(merge(begin, position) for begin, position in zip_longest(begins, recorded))


def _coverages(
    batch: Batch, entry: LedgerEntry | None, allowed: Allowed, moved: Collection[tuple[int, str]]
) -> Iterator[tuple[Coverage, Mismatch]]:
    """Yield the coverage of each journal and each other source of the batch, in order.

    A journal that the table has from another source must continue where it ended, because nothing shows how
    much of it this source has read before.
    """
    recorded = entry.end if entry else ()
    started = entry.start if entry else ()
    for number, end in enumerate(batch.end):
        begin = batch.begin[number]
        position = recorded[number] if number < len(recorded) else None
        # The position of a source of another kind is text without an order: it equals the table's end, or it
        # does not.
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
            # Nothing of a first batch is covered: the batch pins where the query starts, so it continues the
            # table or it does not. With trim, however, a query may start before the table's end. Nothing is
            # covered either if another source has read the journal, because nothing shows how much of it this
            # source has read.
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
        recorded: End of the journal's bytes in the table; None if the table has no bytes of it.
        start: Start of these bytes.
        pinning: Whether this is a query's first batch, which pins where the query starts, or the journal came
            from another source. Then nothing of it can be covered: it continues the table or it does not.
    """
    # The source never plans such a batch, but an offsets file that was edited may contain one.
    if end < begin:
        return Coverage.OVERLAP
    # A new journal is first pinned by a batch that reads nothing of it. Without that, its bytes could follow
    # bytes that were never read.
    if recorded is None:
        return Coverage.NEXT if begin == end else Coverage.GAP
    if begin > recorded:
        return Coverage.GAP
    if begin == recorded:
        return Coverage.UNCHANGED if begin == end else Coverage.NEXT
    # Bytes before the table's first byte were never meant to be in the table, and their rows would be out of
    # order.
    if begin < start or pinning:
        return Coverage.OVERLAP
    return Coverage.COVERED if end <= recorded else Coverage.PARTIAL


def _fit_text(begin: SourcePosition, end: str | None, recorded: str | None, *, again: bool) -> Coverage:
    """Compare a source of another kind with the table: its positions have no order.

    Equal texts denote the same place only within one query, for its next batch or, with ``again``, for a
    replay.
    """
    # Because the order of two texts is unknown, only a replay is COVERED, and nothing is ever PARTIAL.
    if again and recorded == end:
        return Coverage.COVERED
    if begin != recorded:
        return Coverage.OVERLAP
    return Coverage.UNCHANGED if begin == end else Coverage.NEXT


def _text(position: SourcePosition) -> str | None:
    return position.to_json() if isinstance(position, JournalOffsets) else position
