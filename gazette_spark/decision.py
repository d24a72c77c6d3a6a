"""What a table's ledger means for the batch at hand.

:func:`decide` holds a batch against the newest entry and answers :class:`Write`, :class:`Skip` or
:class:`Refuse`; :func:`verify` says, after a write, what became of it. Everything here is a function of
values.

One journal of a batch, ``[begin, end)``, against the offset ``recorded`` for it:

===========================  =========  ==========================================================
``begin == recorded < end``  NEXT       these bytes come next
``begin == recorded == end`` STILL      it has not moved
no ``recorded``, begin = end NEXT       a journal new to the table, whose first offset is pinned
``end <= recorded``          COVERED    its bytes are in the table
``begin > recorded``         GAP        bytes in between would be left out
everything else              OVERLAP    some of its bytes are in the table, or lie before its first
===========================  =========  ==========================================================

A batch is written if its journals are all NEXT or STILL, and skipped, as a replay, if none is NEXT
and all are COVERED or STILL. Anything else comes from a checkpoint that is not this table's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
)
from gazette_spark.ledger import Batch, LedgerEntry, LedgerState, Positions, SourcePosition
from gazette_spark.offsets import JournalOffsets


@dataclass(frozen=True, slots=True)
class Write:
    """Append the rows, with this entry in the same Delta commit."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class Skip:
    """The table holds all of it."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Write nothing and end the query."""

    error: SinkError


Decision = Write | Skip | Refuse


class Fit(Enum):
    """How a journal's part of a batch fits what is recorded; see the module's table."""

    NEXT = "next"
    STILL = "still"
    COVERED = "covered"
    GAP = "gap"
    OVERLAP = "overlap"


def decide(state: LedgerState, batch: Batch, *, attempt: str, seen: str | None = None) -> Decision:
    """Say what is to be done with a batch.

    Args:
        state: What the table's history says now.
        batch: What the query asks.
        attempt: A fresh name for the entry, should there be one.
        seen: Attempt of the entry that was the newest after this writer's last batch; None for its
            first. If another is the newest now, someone else writes too.
    """
    fits = {fit for fit, _ in _fits(batch, state.entry)}
    if error := _unfit_state(state, batch, fits, seen):
        return Refuse(error)
    if fits <= {Fit.NEXT, Fit.STILL} and (Fit.NEXT in fits or state.entry is None):
        return Write(_next_entry(state, batch, attempt))
    if fits <= {Fit.COVERED, Fit.STILL}:
        return Skip()
    return Refuse(_mismatch_error(OverlapError, batch, state.entry, {Fit.COVERED, Fit.OVERLAP}))


def _unfit_state(state: LedgerState, batch: Batch, fits: set[Fit], seen: str | None) -> SinkError | None:
    """Return why the table is not one this writer may continue, if it is not."""
    if state.entry is None and batch.batch_id > 0:  # Batch 0 left an entry somewhere.
        if state.truncated:
            return LedgerLostError(batch.table, batch.app_id)
        return _mismatch_error(GapError, batch, None, set(Fit))
    if not _on_its_parent(state):
        return _restored_in_between(state, batch)
    if Fit.GAP in fits:
        return _mismatch_error(GapError, batch, state.entry, {Fit.GAP})
    if state.entry is not None and seen not in (None, state.entry.attempt):
        return fenced(state, batch)
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
class Landed:
    """The write is in the table, on top of the entry it was decided on."""


@dataclass(frozen=True, slots=True)
class Again:
    """The write is not in the table; read and decide again."""


def verify(
    before: LedgerState, after: LedgerState, written: LedgerEntry, batch: Batch, *, conflict: bool
) -> Landed | Again | Refuse:
    """Say what became of a write, which Delta may have skipped in silence.

    Args:
        before: What the write was decided on.
        after: What the history says since.
        written: The entry it was to leave.
        batch: The batch it was for.
        conflict: Delta raised a conflict: the outcome is unknown.
    """
    if after.entry is not None and after.entry.attempt == written.attempt:
        cleaned_up = after.previous is None and after.truncated
        if cleaned_up and any(at > before.table_version for at in after.jumps):
            return Refuse(_restored_in_between(after, batch))  # It must not hide behind a clean-up.
        return Landed() if _on_its_parent(after) else Refuse(_restored_in_between(after, batch))
    newest = after.entry.attempt if after.entry else None
    if newest != (before.entry.attempt if before.entry else None):
        if after.entry is None:
            return Again()  # Everything was undone; the next decision names the gap.
        return Refuse(fenced(after, batch))
    if conflict or after.txn_version > before.txn_version:
        return Again()
    return Refuse(LedgerLostError(batch.table, batch.app_id))


def _on_its_parent(state: LedgerState) -> bool:
    """Say whether the newest entry stands on the one it was decided on.

    A RESTORE that slips in between does not conflict with an append. It is seen by whoever comes next:
    the writer itself, or, if that was killed, the next one. Old log entries are cleaned up with time; a
    parent that was is taken on trust.
    """
    if state.entry is None or state.previous == state.entry.parent:
        return True
    return state.previous is None and state.truncated


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


def _next_entry(state: LedgerState, batch: Batch, attempt: str) -> LedgerEntry:
    entry = state.entry
    return LedgerEntry(
        app_id=batch.app_id,
        txn_version=state.txn_version + 1,
        query_id=batch.query_id,
        batch_id=batch.batch_id,
        start=_merge(batch.begin, entry.start if entry else ()),
        begin=_merge(entry.end if entry else (), batch.begin),
        end=_merge(entry.end if entry else (), batch.end),
        attempt=attempt,
        parent=entry.attempt if entry else None,
        gaps=batch.gaps,
    )


def _merge(old: Positions, new: Positions) -> Positions:
    return tuple(_merge_one(a, b) for a, b in zip_longest(old, new))


def _merge_one(old: SourcePosition, new: SourcePosition) -> SourcePosition:
    if isinstance(old, JournalOffsets) and isinstance(new, JournalOffsets):
        return JournalOffsets({**old.read_through, **new.read_through})
    return old if new is None else new


def _fits(batch: Batch, entry: LedgerEntry | None) -> Iterator[tuple[Fit, Mismatch]]:
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
            fit = fit_journal(since, until, at, firsts.get(journal, 0), pinning=batch.batch_id == 0)
            yield fit, Mismatch(f"journal {journal!r}", at, since, until)


def fit_journal(begin: int, end: int, recorded: int | None, start: int, *, pinning: bool) -> Fit:
    """Say how ``[begin, end)`` of one journal fits.

    Args:
        begin: First byte of the batch.
        end: Byte after its last.
        recorded: Where the table's bytes of the journal end, None if it has none.
        start: Where they begin.
        pinning: It is a query's first batch, which pins where the query starts. It reads nothing, so
            nothing of it can be covered: it continues the table or it does not.
    """
    if end < begin:
        return Fit.OVERLAP
    if recorded is None:
        return Fit.NEXT if begin == end else Fit.GAP
    if begin > recorded:
        return Fit.GAP
    if begin == recorded:
        return Fit.STILL if begin == end else Fit.NEXT
    return Fit.COVERED if start <= begin and end <= recorded and not pinning else Fit.OVERLAP


def _fit_text(begin: SourcePosition, end: str | None, recorded: str | None) -> Fit:
    """Say how another source fits: its positions can be equal or different, but have no known order."""
    if recorded == end:
        return Fit.STILL if begin == end or begin is None else Fit.COVERED
    return Fit.NEXT if begin == recorded else Fit.OVERLAP


def _text(position: SourcePosition) -> str | None:
    return position.to_json() if isinstance(position, JournalOffsets) else position


def _mismatch_error(
    kind: type[BatchMismatchError], batch: Batch, entry: LedgerEntry | None, wanted: set[Fit]
) -> BatchMismatchError:
    mismatches = tuple(mismatch for fit, mismatch in _fits(batch, entry) if fit in wanted)
    return kind(batch.table, batch.app_id, batch.batch_id, mismatches)
