"""The ledger entry of a Delta commit, and the batch that a query asks to write.

Each Delta commit of the sink carries a :class:`LedgerEntry` beside its rows: up to which offset of
each journal the table is filled. ``history`` finds the entries, ``decision`` compares a :class:`Batch` with
the newest one, ``sink`` acts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gazette_spark.errors import LedgerFormatError, OffsetError, TableRefusedError
from gazette_spark.ledger.row_digest import AuditedRows
from gazette_spark.offsets import MAX_OFFSET, JournalOffsets

FORMAT_VERSION = 1
"""Number of an entry's JSON form."""

SourcePosition = JournalOffsets | str | None
"""A query's position in one source: a Gazette position, another source's text from Spark, or unknown."""

Positions = tuple[SourcePosition, ...]
"""A query's position in all its sources, by the number of the source in the query."""

COMPLETES_NOTHING = -1
"""``planned_ms`` of an entry that only takes its turn: the batch it names is still to be written."""

Mode = Literal["append", "upsert"]
"""How a writer adds rows: as new rows, or in place of the row with the same key."""


@dataclass(frozen=True, slots=True, order=True)
class SkippedGap:
    """Bytes of a batch's range that are not in the table: gone, or left out on request."""

    journal: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The record in one Delta commit about the rows visible at its version."""

    app_id: str
    txn_version: int
    query_id: str
    batch_id: int
    start: Positions
    """Start of the table's rows: earlier bytes were never meant to be in the table."""
    begin: Positions
    end: Positions
    """End of the table's rows. Journals the batch did not read keep the offset they had."""
    attempt: str
    """Names this try to write this batch, and no other."""
    parent: str | None
    """Attempt of the entry this one was decided on, None for the first entry."""
    gaps: tuple[SkippedGap, ...] = ()
    """Skipped bytes of this batch's ``[begin, end)``; by journal and offset."""
    accepted_gaps: tuple[SkippedGap, ...] = ()
    """Those of ``gaps`` that the query never read, because its operator accepted them."""
    mode: Mode = "append"
    """Under ``upsert`` the rows are not the records: a later record takes the place of an earlier one."""
    audit: tuple[AuditedRows, ...] | None = None
    """Rows that the batch brought, by journal; None if they were not counted."""
    adopted: bool = False
    """The entry begins a ledger on a table that had rows: ``start`` is the ledger's begin, not the table's.
    """
    dead_letters: str | None = None
    """Table for rows that do not fit, with which the commit was made; its own entries name it, too."""
    planned_ms: int | None = None
    """When Spark planned the batch, as its checkpoint says: names this planning of the batch and no other.
    :data:`COMPLETES_NOTHING` if the entry completes no batch; None in entries of old releases and of batches
    without a query."""
    stateful: bool = False
    """The query keeps state: which rows a batch has depends on its query checkpoint, not on offsets alone."""

    @property
    def read_through(self) -> dict[str, int]:
        """Next byte of each journal, over all Gazette sources; the least if several read one journal."""
        return least_offsets(self.end)

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
        if self.accepted_gaps:
            value["accepted_gaps"] = [[gap.journal, gap.begin, gap.end] for gap in self.accepted_gaps]
        if self.mode != "append":
            value["mode"] = self.mode
        if self.audit is not None:
            value["audit"] = [each.to_value() for each in self.audit]
        if self.adopted:
            value["adopted"] = True
        if self.dead_letters is not None:
            value["dead_letters"] = self.dead_letters
        if self.planned_ms is not None:
            value["planned_ms"] = self.planned_ms
        if self.stateful:
            value["stateful"] = True
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def parse_entry(text: str | None, app_id: str) -> LedgerEntry | None:
    """Read a commit's ``userMetadata``.

    Returns:
        The entry, or None if the text is not an entry of ``app_id``: other writers of the table put any text
        there.

    Raises:
        LedgerFormatError: the text is an entry, but damaged or of a later release. If it were ignored, an
            older entry would pass for the newest.
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
        } if isinstance(value.get("dead_letters", ""), str) and type(value.get("planned_ms", 0)) is int:
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
                accepted_gaps=_gaps(value.get("accepted_gaps", []), app_id),
                mode=_mode(value.get("mode", "append"), app_id),
                audit=_audit(value.get("audit"), app_id),
                adopted=value.get("adopted") is True,
                dead_letters=value.get("dead_letters"),
                planned_ms=value.get("planned_ms"),
                stateful=value.get("stateful") is True,
            )
    raise LedgerFormatError(app_id, f"a field is missing or of the wrong type in {json.dumps(value)[:200]}")


def _mode(value: object, app_id: str) -> Mode:
    match value:
        case "append" | "upsert":
            return value
    raise LedgerFormatError(app_id, f"mode {value!r}; use the release of gazette_spark that wrote it")


def _gaps(values: object, app_id: str) -> tuple[SkippedGap, ...]:
    found: list[SkippedGap] = []
    for value in values if isinstance(values, list) else [values]:
        match value:
            case [str(journal), int(begin), int(end)] if 0 <= begin < end <= MAX_OFFSET:
                found.append(SkippedGap(journal, begin, end))
            case _:
                raise LedgerFormatError(app_id, f"no gap: {json.dumps(value)[:200]}")
    return tuple(found)


def _audit(values: object, app_id: str) -> tuple[AuditedRows, ...] | None:
    if values is None:
        return None
    try:
        return tuple(
            AuditedRows.from_value(each) for each in (values if isinstance(values, list) else [values])
        )
    except ValueError as error:
        raise LedgerFormatError(app_id, str(error)) from error


def least_offsets(positions: Positions) -> dict[str, int]:
    """Return the offset of each journal, over all Gazette sources; the least if several read one journal."""
    merged: dict[str, int] = {}
    for position in positions:
        if isinstance(position, JournalOffsets):
            for journal, offset in position.read_through.items():
                merged[journal] = min(offset, merged.get(journal, offset))
    return merged


def _positions_value(positions: Positions) -> list[Any]:
    return [each.to_dict() if isinstance(each, JournalOffsets) else each for each in positions]


def _positions(values: list[object], app_id: str) -> Positions:
    try:
        return tuple(v if v is None or isinstance(v, str) else JournalOffsets.from_dict(v) for v in values)
    except OffsetError as error:
        raise LedgerFormatError(app_id, str(error)) from error


@dataclass(frozen=True, slots=True)
class LedgerState:
    """State of one app id, from a table's history."""

    entry: LedgerEntry | None = None
    """Newest entry whose rows are visible: one undone by RESTORE is not."""
    previous: str | None = None
    """Attempt of the visible entry before it."""
    txn_version: int = -1
    """Highest of all entries in the history. Those undone by RESTORE count: Delta keeps their number."""
    table_version: int = -1
    """Newest version of the table, by any writer; -1 if there is no table."""
    entry_version: int = -1
    entry_time: str = ""
    jumps: tuple[int, ...] = ()
    """Versions between ``entry`` and the visible entry before it that undid others: RESTORE and the like."""
    truncated: bool = False
    """The search ended where the history was cleaned up, not at the table's beginning."""
    undone: Positions = ()
    """Without ``entry``: where the rows of the newest undone entry began, if the history shows one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A query's request to write the rows between two positions."""

    table: str
    app_id: str
    query_id: str
    batch_id: int
    begin: Positions
    end: Positions
    gaps: tuple[SkippedGap, ...] = ()
    """Bytes of the batch that its source skips; those that ``end`` names if not given."""
    mode: Mode = "append"
    planned_ms: int | None = None
    """When Spark planned it; None for a batch without a query."""
    stateful: bool = False
    """The query keeps state."""

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
    """Return the offsets of the journals that a table's ledger does not name, None if it names all.

    Raises:
        TableRefusedError: the table's query reads other sources, too. Then a batch of journals alone has no
            meaning for it.
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
