"""What a table has committed, and what that means for the batch at hand.

Each Delta commit of the sink carries a :class:`LedgerEntry` beside its rows: up to which offset of
each journal the table is filled. :func:`decide` holds a batch against the newest entry and answers
:class:`Write`, :class:`Skip` or :class:`Refuse`; :func:`verify` says, after a write, what became of
it. Everything here is a function of values; ``delta_history`` finds the entries, ``sink`` acts.

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

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest
from typing import Any

from gazette_spark.errors import (
    BatchMismatchError,
    FencedError,
    GapError,
    LedgerFormatError,
    LedgerLostError,
    Mismatch,
    OffsetError,
    OverlapError,
    RestoredError,
    SinkError,
    TableRefusedError,
)
from gazette_spark.offsets import MAX_OFFSET, JournalOffsets

FORMAT_VERSION = 1
"""Number of an entry's JSON form."""

SourcePosition = JournalOffsets | str | None
"""Where a query stands in one of its sources: Gazette's, another's as Spark stores it, or unknown."""

Positions = tuple[SourcePosition, ...]
"""Where a query stands, by the number of the source in the query."""


@dataclass(frozen=True, slots=True)
class SkippedGap:
    """Bytes of a batch's range that were gone and are not in the table: ``failOnDataLoss`` was ``false``."""

    journal: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one Delta commit says about the rows visible at its version."""

    app_id: str
    txn_version: int
    query_id: str
    batch_id: int
    start: Positions
    """Where the table's rows begin: what lies before was never meant to be in it."""
    begin: Positions
    end: Positions
    """Where they end. Journals the batch did not read keep the offset they had."""
    attempt: str
    """Names this try to write this batch, and no other."""
    parent: str | None
    """Attempt of the entry this one was decided on, None if there was none."""
    gaps: tuple[SkippedGap, ...] = ()
    """What of this batch's ``[begin, end)`` was skipped; by journal and offset."""

    @property
    def read_through(self) -> dict[str, int]:
        """Next byte of each journal, over all Gazette sources; the least if several read one journal."""
        merged: dict[str, int] = {}
        for position in self.end:
            if isinstance(position, JournalOffsets):
                for journal, offset in position.read_through.items():
                    merged[journal] = min(offset, merged.get(journal, offset))
        return merged

    def to_json(self) -> str:
        """Return the text stored in the commit's ``userMetadata``."""
        value = {
            "format_version": FORMAT_VERSION,
            "app_id": self.app_id,
            "txn_version": self.txn_version,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "attempt": self.attempt,
            "parent": self.parent,
            "start": _positions_value(self.start),
            "begin": _positions_value(self.begin),
            "end": _positions_value(self.end),
        }
        if self.gaps:
            value["gaps"] = [[gap.journal, gap.begin, gap.end] for gap in self.gaps]
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def parse_entry(text: str | None, app_id: str) -> LedgerEntry | None:
    """Read a commit's ``userMetadata``.

    Returns:
        The entry, or None if the text is not an entry of ``app_id``: other writers of the table put
        there what they like.

    Raises:
        LedgerFormatError: it is one, but of a later release or damaged. To overlook it would be to
            take an older entry for the newest.
    """
    if not text or '"app_id"' not in text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("app_id") != app_id or "format_version" not in value:
        return None
    if value["format_version"] != FORMAT_VERSION:
        problem = f"it has format_version {value['format_version']!r} and this release reads {FORMAT_VERSION}"
        raise LedgerFormatError(app_id, f"{problem}; use the release of gazette_spark that wrote it")
    return _entry(value, app_id)


def _entry(value: Mapping[str, Any], app_id: str) -> LedgerEntry:
    match value:
        case {
            "txn_version": int(txn_version),
            "query_id": str(query_id),
            "batch_id": int(batch_id),
            "attempt": str(attempt),
            "parent": str() | None as parent,
            "start": list(start),
            "begin": list(begin),
            "end": list(end),
        }:
            return LedgerEntry(
                app_id,
                txn_version,
                query_id,
                batch_id,
                start=_positions(start, app_id),
                begin=_positions(begin, app_id),
                end=_positions(end, app_id),
                attempt=attempt,
                parent=parent,
                gaps=_gaps(value.get("gaps", []), app_id),
            )
    raise LedgerFormatError(app_id, f"a field is missing or of the wrong type in {json.dumps(value)[:200]}")


def _gaps(values: object, app_id: str) -> tuple[SkippedGap, ...]:
    found: list[SkippedGap] = []
    for value in values if isinstance(values, list) else [values]:
        match value:
            case [str(journal), int(begin), int(end)] if 0 <= begin < end <= MAX_OFFSET:
                found.append(SkippedGap(journal, begin, end))
            case _:
                raise LedgerFormatError(app_id, f"no gap: {json.dumps(value)[:200]}")
    return tuple(found)


def _positions_value(positions: Positions) -> list[Any]:
    return [each.to_dict() if isinstance(each, JournalOffsets) else each for each in positions]


def _positions(values: list[object], app_id: str) -> Positions:
    try:
        return tuple(v if v is None or isinstance(v, str) else JournalOffsets.from_dict(v) for v in values)
    except OffsetError as error:
        raise LedgerFormatError(app_id, str(error)) from error


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What a table's history says about one app id."""

    entry: LedgerEntry | None = None
    """Newest entry whose rows are visible: one undone by RESTORE is not."""
    previous: str | None = None
    """Attempt of the visible entry before it."""
    txn_version: int = -1
    """Highest of all entries in the history. Those undone by RESTORE count: Delta keeps their number."""
    table_version: int = -1
    """Newest version of the table, whoever wrote it; -1 if there is no table."""
    entry_version: int = -1
    entry_time: str = ""
    jumps: tuple[int, ...] = ()
    """Versions between ``entry`` and the visible entry before it that undid others: RESTORE and the like."""
    truncated: bool = False
    """The search ended where the history was cleaned up, not at the table's beginning."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a query asks to have written."""

    table: str
    app_id: str
    query_id: str
    batch_id: int
    begin: Positions
    end: Positions
    gaps: tuple[SkippedGap, ...] = ()
    """Bytes of the batch that its source skips; those that ``end`` names if not given."""

    def __post_init__(self) -> None:
        """Complete ``begin``: a journal without one is being pinned and has no rows in this batch."""
        begin = (*self.begin, *[None] * (len(self.end) - len(self.begin)))
        completed = tuple(_pinned(b, e) for b, e in zip(begin, self.end, strict=True))
        object.__setattr__(self, "begin", completed)
        object.__setattr__(self, "gaps", self.gaps or tuple(_skipped(completed, self.end)))
        object.__setattr__(self, "end", tuple(_unmarked(e) for e in self.end))


def _skipped(begin: Positions, end: Positions) -> Iterator[SkippedGap]:
    """Yield the gaps that the ends of a batch name and that lie in it.

    A position keeps its gaps until it moves on: in a query of two sources a batch may leave one where it is.
    """
    for first, last in zip(begin, end, strict=True):
        if isinstance(first, JournalOffsets) and isinstance(last, JournalOffsets):
            for journal, gaps in last.gaps.items():
                since, until = first.read_through[journal], last.read_through[journal]
                for low, high in gaps:
                    if max(low, since) < min(high, until):
                        yield SkippedGap(journal, max(low, since), min(high, until))


def _pinned(begin: SourcePosition, end: SourcePosition) -> SourcePosition:
    if not isinstance(end, JournalOffsets):
        return begin
    known = begin.read_through if isinstance(begin, JournalOffsets) else {}
    return JournalOffsets(
        {journal: known.get(journal, offset) for journal, offset in end.read_through.items()}
    )


def _unmarked(position: SourcePosition) -> SourcePosition:
    return position.plain() if isinstance(position, JournalOffsets) else position


def unknown_journals(entry: LedgerEntry | None, begin: JournalOffsets, table: str) -> JournalOffsets | None:
    """Return the offsets of the journals that a table has never heard of, None if there is none.

    Raises:
        TableRefusedError: the table is filled by a query of other sources, too. Then what a batch of
            journals alone means for it is not known.
    """
    if entry is None:
        return begin
    (first, *others) = entry.end or (None,)
    if others or not isinstance(first, JournalOffsets):
        problem = (
            f"the last batch of app id {entry.app_id!r} was written by a query with other sources than "
            "one of Gazette journals; use another app id for journals that query does not read"
        )
        raise TableRefusedError(table, problem)
    new = {journal: at for journal, at in begin.read_through.items() if journal not in first.read_through}
    return JournalOffsets(new) if new else None


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
