"""Decide whether a batch is written, skipped or refused, by a table's ledger.

:func:`decide` compares a batch with the newest entry and returns :class:`Write`, :class:`Skip` or
:class:`Refusal`; :func:`verify` returns, after a write, its outcome. Everything here is a function of values.

One journal of a batch, ``[begin, end)``, against the offset ``recorded`` for it:

===========================  =========  ==========================================================
``begin == recorded < end``  NEXT       these bytes come next
``begin == recorded == end`` UNCHANGED      it has not moved
no ``recorded``, begin = end NEXT       a journal new to the table, whose first offset is pinned
``end <= recorded``          COVERED    its bytes are in the table
``begin < recorded < end``   PARTIAL     its first bytes are in the table, its last ones come next
``begin > recorded``         GAP        bytes in between would be left out
everything else              OVERLAP    some of its bytes are before the table's first, or it goes back
===========================  =========  ==========================================================

A batch is written if its journals are all NEXT or UNCHANGED, and skipped, as a replay, if none is NEXT
and all are COVERED or UNCHANGED. Anything else comes from a checkpoint that is not this table's, and is
refused, unless the writer is :class:`Allowed` more:

- ``trim``: rows of journals that are COVERED or PARTIAL are left out by journal and offset, row by row
  where ``begin <= offset < recorded``. Journals that are NEXT are written whole, beside it. A query that is
  behind the table may start.
- ``gaps``: a journal whose GAP is one of these, to the byte, is NEXT. The entry records the omitted bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest

from gazette_spark.errors import (
    BatchMismatchError,
    FencedError,
    GapError,
    LedgerLostError,
    Mismatch,
    OverlapError,
    RestoredError,
    SinkError,
    TableRefusedError,
    TrimError,
)
from gazette_spark.ledger.entry import Batch, LedgerEntry, LedgerState, Positions, SkippedGap, SourcePosition
from gazette_spark.offsets import JournalOffsets


@dataclass(frozen=True, slots=True)
class Allowed:
    """Permissions of a writer for batches that do not continue the table; by default, none are given."""

    trim: bool = False
    gaps: frozenset[SkippedGap] = frozenset()
    """Bytes that may be missing permanently, each from the table's end to the start of a batch."""


@dataclass(frozen=True, slots=True)
class KeptRange:
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
    kept: tuple[KeptRange, ...] = ()
    """If given, only rows in these ranges are appended; one range for each journal that the batch reads."""


@dataclass(frozen=True, slots=True)
class Skip:
    """The table holds all of it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Write nothing and end the query."""

    error: SinkError


Decision = Write | Skip | Refusal


class Coverage(Enum):
    """Relation of a journal's part of a batch to the recorded offsets; see the module's table."""

    NEXT = "next"
    UNCHANGED = "still"
    COVERED = "covered"
    PARTIAL = "partly"
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
    if state.entry is not None and state.entry.mode == "upsert" != batch.mode:
        return Refusal(_appended_to_upserts(batch))
    coverages = {coverage for coverage, _ in _coverages(batch, state.entry, allowed)}
    if error := _unfit_state(state, batch, coverages, seen, allowed):
        return Refusal(error)
    if coverages <= {Coverage.NEXT, Coverage.UNCHANGED} and (
        Coverage.NEXT in coverages or state.entry is None
    ):
        return Write(next_entry(state, batch, attempt, allowed))
    if coverages <= {Coverage.COVERED, Coverage.UNCHANGED}:
        return Skip()
    if allowed.trim and coverages <= TRIMMABLE:
        return _trimmed(state, batch, attempt, allowed)
    unfit = {Coverage.COVERED, Coverage.PARTIAL, Coverage.OVERLAP}
    return Refusal(_mismatch_error(OverlapError, batch, state.entry, unfit, allowed))


def _trimmed(state: LedgerState, batch: Batch, attempt: str, allowed: Allowed) -> Write | Refusal:
    """Write the new rows of a batch, if they can be told apart."""
    assert state.entry is not None  # Without an entry nothing is covered.
    if len(batch.end) > 1 or len(state.entry.end) > 1:
        problem = "it is of a query of several sources, whose rows do not say what they were made of"
        return Refusal(TrimError(batch.table, batch.app_id, batch.batch_id, problem))
    kept = tuple(_kept_ranges(batch, state.entry))
    return Write(next_entry(state, batch, attempt, allowed), kept)


def _kept_ranges(batch: Batch, entry: LedgerEntry) -> Iterator[KeptRange]:
    """Yield the new range of each journal that the only source of a batch reads."""
    recorded = entry.read_through
    for begin, end in zip(batch.begin, batch.end, strict=True):
        assert isinstance(begin, JournalOffsets)
        assert isinstance(end, JournalOffsets)
        for journal, until in end.read_through.items():
            if (since := begin.read_through[journal]) < until:
                yield KeptRange(journal, since, min(until, max(since, recorded.get(journal, since))), until)


def _unfit_state(
    state: LedgerState, batch: Batch, coverages: set[Coverage], seen: str | None, allowed: Allowed
) -> SinkError | None:
    """Return why the table is not one this writer may continue, if it is not."""
    if state.entry is None and batch.batch_id > 0:  # Batch 0 left an entry somewhere.
        if state.truncated:
            return LedgerLostError(batch.table, batch.app_id)
        return _mismatch_error(GapError, batch, None, set(Coverage), allowed)
    if not _on_its_parent(state):
        return _restored_in_between(state, batch)
    if Coverage.GAP in coverages:
        return _mismatch_error(GapError, batch, state.entry, {Coverage.GAP}, allowed)
    if state.entry is not None and seen not in (None, state.entry.attempt):
        return fenced(state, batch)
    return None


def _appended_to_upserts(batch: Batch) -> TableRefusedError:
    problem = (
        f"app id {batch.app_id!r} keeps one row of each key by upsert, and batch {batch.batch_id} would "
        "be appended. Give DeltaSink the argument upsert that it had, or another app id for other rows"
    )
    return TableRefusedError(batch.table, problem)


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
class Landed:
    """The write is in the table, on top of the entry it was decided on."""


@dataclass(frozen=True, slots=True)
class Again:
    """The write is not in the table; read and decide again."""


def verify(
    before: LedgerState, after: LedgerState, written: LedgerEntry, batch: Batch, *, conflict: bool
) -> Landed | Again | Refusal:
    """Return the outcome of a write, which Delta may have skipped in silence.

    Args:
        before: The state that the write was decided on.
        after: The state after the write.
        written: The entry that the write was to commit.
        batch: The batch it was for.
        conflict: Delta raised a conflict: the outcome is unknown.
    """
    if after.entry is not None and after.entry.attempt == written.attempt:
        cleaned_up = after.previous is None and after.truncated
        if cleaned_up and any(at > before.table_version for at in after.jumps):
            return Refusal(_restored_in_between(after, batch))  # It must not hide behind a clean-up.
        return Landed() if _on_its_parent(after) else Refusal(_restored_in_between(after, batch))
    newest = after.entry.attempt if after.entry else None
    if newest != (before.entry.attempt if before.entry else None):
        if after.entry is None:
            return Again()  # Everything was undone; the next decision names the gap.
        return Refusal(fenced(after, batch))
    if conflict or after.txn_version > before.txn_version:
        return Again()
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
    return RestoredError(
        batch.table,
        batch.app_id,
        f"table version {undone_at} undid rows (RESTORE or the like) after the batch that landed as version "
        f"{state.entry_version} was decided; what lies between is missing or doubled now",
        f"RESTORE TABLE … TO VERSION AS OF {undone_at - 1} mends it, and the same query checkpoint goes on. "
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
    skipped = [gap for gap in batch.gaps if gap.end > recorded.get(gap.journal, 0)]
    new = [replace(gap, begin=max(gap.begin, recorded.get(gap.journal, 0))) for gap in skipped]
    return LedgerEntry(
        app_id=batch.app_id,
        txn_version=state.txn_version + 1,
        query_id=batch.query_id,
        batch_id=batch.batch_id,
        start=_merge(batch.begin, entry.start if entry else ()),
        begin=_merge(batch.begin, entry.end if entry else ()),
        end=_reached(entry.end if entry else (), batch.end),
        attempt=attempt,
        parent=entry.attempt if entry else None,
        gaps=tuple(sorted({*new, *accepted})),
        accepted_gaps=accepted,
        mode=batch.mode,
    )


def _accepted(batch: Batch, entry: LedgerEntry | None, allowed: Allowed) -> Iterator[SkippedGap]:
    """Yield the gaps between table and batch that may be left out."""
    recorded = entry.end if entry else ()
    for begin, known in zip(batch.begin, recorded, strict=False):
        if isinstance(begin, JournalOffsets) and isinstance(known, JournalOffsets):
            for journal, since in begin.read_through.items():
                at = known.read_through.get(journal, since)
                if at < since and (gap := SkippedGap(journal, at, since)) in allowed.gaps:
                    yield gap


def _reached(old: Positions, new: Positions) -> Positions:
    """Return the table's position after a batch: no journal goes back, unread journals stay."""
    return tuple(_further(a, b) for a, b in zip_longest(old, new))


def _further(old: SourcePosition, new: SourcePosition) -> SourcePosition:
    if isinstance(old, JournalOffsets) and isinstance(new, JournalOffsets):
        known = old.read_through
        return JournalOffsets(
            {**known, **{name: max(at, known.get(name, at)) for name, at in new.read_through.items()}}
        )
    return old if new is None else new


def _merge(old: Positions, new: Positions) -> Positions:
    return tuple(_merge_one(a, b) for a, b in zip_longest(old, new))


def _merge_one(old: SourcePosition, new: SourcePosition) -> SourcePosition:
    if isinstance(old, JournalOffsets) and isinstance(new, JournalOffsets):
        return JournalOffsets({**old.read_through, **new.read_through})
    return old if new is None else new


def _coverages(
    batch: Batch, entry: LedgerEntry | None, allowed: Allowed
) -> Iterator[tuple[Coverage, Mismatch]]:
    """Yield how each journal and each other source of the batch fits, in order."""
    recorded = entry.end if entry else ()
    started = entry.start if entry else ()
    for number, end in enumerate(batch.end):
        begin = batch.begin[number]
        known = recorded[number] if number < len(recorded) else None
        if not isinstance(end, JournalOffsets):
            name, text = f"source {number}", known if isinstance(known, str) else None
            yield _fit_text(begin, end, text), Mismatch(name, text, _text(begin), end)
            continue
        assert isinstance(begin, JournalOffsets)  # See Batch.__post_init__.
        offsets = known.read_through if isinstance(known, JournalOffsets) else {}
        starts = started[number] if number < len(started) else None
        firsts = starts.read_through if isinstance(starts, JournalOffsets) else {}
        for journal, until in end.read_through.items():
            since, at = begin.read_through[journal], offsets.get(journal)
            pinning = batch.batch_id == 0 and not allowed.trim
            coverage = coverage_of(since, until, at, firsts.get(journal, 0), pinning=pinning)
            if coverage is Coverage.GAP and at is not None and SkippedGap(journal, at, since) in allowed.gaps:
                coverage = Coverage.NEXT
            yield coverage, Mismatch(f"journal {journal!r}", at, since, until, journal)


def coverage_of(begin: int, end: int, recorded: int | None, start: int, *, pinning: bool) -> Coverage:
    """Say how ``[begin, end)`` of one journal fits.

    Args:
        begin: First byte of the batch.
        end: Byte after its last.
        recorded: End of the journal's bytes in the table, None if the table has no bytes of it.
        start: Start of these bytes.
        pinning: It is a query's first batch, which pins where the query starts. It reads nothing, so
            nothing of it can be covered: it continues the table or, unless batches are trimmed, it does not.
    """
    if end < begin:
        return Coverage.OVERLAP
    if recorded is None:
        return Coverage.NEXT if begin == end else Coverage.GAP
    if begin > recorded:
        return Coverage.GAP
    if begin == recorded:
        return Coverage.UNCHANGED if begin == end else Coverage.NEXT
    if begin < start or pinning:
        return Coverage.OVERLAP
    return Coverage.COVERED if end <= recorded else Coverage.PARTIAL


def _fit_text(begin: SourcePosition, end: str | None, recorded: str | None) -> Coverage:
    """Say how another source fits: its positions can be equal or different, but have no known order."""
    if recorded == end:
        return Coverage.UNCHANGED if begin == end or begin is None else Coverage.COVERED
    return Coverage.NEXT if begin == recorded else Coverage.OVERLAP


def _text(position: SourcePosition) -> str | None:
    return position.to_json() if isinstance(position, JournalOffsets) else position


def _mismatch_error(
    kind: type[BatchMismatchError],
    batch: Batch,
    entry: LedgerEntry | None,
    wanted: set[Coverage],
    allowed: Allowed,
) -> BatchMismatchError:
    mismatches = tuple(
        mismatch for coverage, mismatch in _coverages(batch, entry, allowed) if coverage in wanted
    )
    return kind(batch.table, batch.app_id, batch.batch_id, mismatches)
