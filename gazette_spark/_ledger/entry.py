"""The ledger entry of a Delta commit, and the batch that a query asks to write.

Each Delta commit of the sink carries a :class:`LedgerEntry` beside its rows: up to which offset of
each journal the table is filled. ``history`` finds the entries, ``decision`` compares a :class:`Batch` with
the newest one, ``sink`` acts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

from gazette_spark._ledger.row_digest import AuditedRows
from gazette_spark.errors import JsonError, LedgerFormatError, OffsetError, OptionError, TableRefusedError
from gazette_spark.offsets import MAX_OFFSET, Fingerprint, JournalOffsets
from gazette_spark.strict_json import parse_json

FORMAT_VERSION = 2
"""Largest number of an entry's JSON form. Form 1 has all positions, form 2 those that moved."""

FEW_JOURNALS = 64
"""Up to this number of journals, each entry is stored with all positions."""

MAX_DELTAS = 50
"""Maximum number of consecutive entries with moved positions only, before one with all positions."""

MAX_DELTA_AGE_MS = 3_600_000
"""Greatest age of the entry with all positions: Delta's clean-up of the log must never reach it first."""

SourcePosition = JournalOffsets | str | None
"""A query's position in one source: a Gazette position, another source's text from Spark, or unknown."""

Positions = tuple[SourcePosition, ...]
"""A query's position in all its sources, by the number of the source in the query."""

FENCE_MS = -1
"""Stored ``planned_ms`` of a fence: no batch has this time."""

Moved = tuple[Mapping[str, int | list[int]] | str | None, ...]
"""By source: the new end of each journal that moved, or begin and end of one that is new; a text."""

MAX_APP_ID_LENGTH = 512

Mode = Literal["append", "upsert"]
"""How a writer adds rows: as new rows, or in place of the row with the same key."""

Isolation = Literal["read_uncommitted", "read_committed"]
"""Which rows a batch of some offsets has: the records there, or the messages committed there."""


def check_app_id(option: str, app_id: object) -> None:
    """Check the name of a stream in its table.

    Args:
        option: Name of the option that gives it, for the error.
        app_id: The name.

    Raises:
        OptionError: the name is empty, too long, or has characters that do not print.
    """
    expected = f"a name of 1 to {MAX_APP_ID_LENGTH} printable characters"
    # The name is part of Delta's transaction id, which must equal itself for the life of the table. Names
    # that look equal and are not would begin a second ledger on the same rows.
    if not isinstance(app_id, str):
        raise OptionError(option, type(app_id).__name__, expected)
    is_short = 0 < len(app_id) <= MAX_APP_ID_LENGTH
    if not is_short or app_id != app_id.strip() or not app_id.isprintable():
        raise OptionError(option, repr(app_id[:80]), expected)


@dataclass(frozen=True, slots=True, order=True)
class SkippedGap:
    """Bytes of a batch's range that are not in the table: gone, or left out on request."""

    journal: str
    begin: int
    end: int


def parse_gaps(option: str, gaps: object) -> frozenset[SkippedGap]:
    """Return the gaps that an operator accepts.

    Args:
        option: Name of the option that gives them, for the error.
        gaps: Byte ranges ``[begin, end)`` by journal.

    Raises:
        OptionError: they have another form.
    """
    expected = "byte ranges by journal, from where the table ends: {'a/journal': [(1024, 4096)]}"
    if not isinstance(gaps, Mapping):
        raise OptionError(option, repr(gaps)[:80], expected)
    accepted = set()
    for journal, ranges in gaps.items():
        # The option of a format gives lists, because JSON has no tuples.
        for span in ranges if isinstance(ranges, list | tuple) else [ranges]:
            match journal, span:
                case str(), [int(begin), int(end)] if 0 <= begin < end <= MAX_OFFSET:
                    accepted.add(SkippedGap(journal, begin, end))
                case _:
                    raise OptionError(option, f"{journal!r}: {repr(span)[:80]}", expected)
    return frozenset(accepted)


SHOWN_RANGES = 5
"""Ranges of bytes that a log line lists."""


def ranges_text(ranges: Sequence[SkippedGap]) -> str:
    """Return ranges of bytes as part of a log line: how many bytes, and where the first ones are."""
    shown = " ".join(f"{span.journal}[{span.begin},{span.end})" for span in ranges[:SHOWN_RANGES])
    more = f" and {len(ranges) - SHOWN_RANGES} more" if len(ranges) > SHOWN_RANGES else ""
    total = sum(span.end - span.begin for span in ranges)
    return f"bytes={total} journals={len({span.journal for span in ranges})} ranges={shown}{more}"


SHOWN_JOURNALS = 50
"""Journals that an entry shows to people."""


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
    """Unique name of this attempt to write the batch."""
    parent: str | None
    """Attempt of the entry that this one was decided on; None for the first entry."""
    gaps: tuple[SkippedGap, ...] = ()
    """Skipped bytes of this batch's ``[begin, end)``; by journal and offset."""
    accepted_gaps: tuple[SkippedGap, ...] = ()
    """The ``gaps`` that the query never read, because its operator accepted them."""
    trimmed_bytes: int = 0
    """Bytes of the batch whose rows were in the table before it, and were dropped."""
    mode: Mode = "append"
    """Under ``upsert`` the rows are not the records: a later record takes the place of an earlier one."""
    audit: tuple[AuditedRows, ...] | None = None
    """Rows that the batch brought, by journal; None if they were not counted."""
    adopted: bool = False
    """The entry begins a ledger on a table with rows: ``start`` is where the ledger begins, not the table."""
    dead_letters: str | None = None
    """Table for rows that do not fit, with which the commit was made; its own entries name it, too."""
    dead_attempt: str | None = None
    """Attempt of that table's newest entry at the commit, None if it had none."""
    planned_ms: int | None = None
    """When Spark planned the batch, as its checkpoint says: names this planning of the batch and no other.
    None in a fence, and in entries of batches without a query."""
    is_fence: bool = False
    """The entry completes no batch: it only makes the commits of other writers conflict. The batch that it
    names is still to be written."""
    stateful: bool = False
    """The query keeps state: which rows a batch has depends on its query checkpoint, not on offsets alone."""
    heads: Mapping[str, int] = field(default_factory=dict)
    """Write heads of the journals that had more to read when the batch was planned."""
    recreated: Mapping[str, int] = field(default_factory=dict)
    """Journals that were deleted and created again, with the end of the old one's rows. From this entry on
    ``start`` and ``end`` are those of the new one."""
    isolation: Isolation = "read_uncommitted"
    """Under ``read_committed`` the rows of some offsets are the messages that were committed there, wherever
    these begin."""
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Identify the journals that the table's rows were read from, each by bytes that the table has passed."""
    moved: Moved | None = field(default=None, compare=False, repr=False)
    """What moved since the parent, if that is stored in place of all positions."""
    new_fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict, compare=False, repr=False)
    """The fingerprints that differ from the parent's, stored with ``moved``."""
    deltas: int = field(default=0, compare=False)
    """Entries stored as what moved, from the last one with all positions to this one."""
    full_ms: int | None = field(default=None, compare=False)
    """``planned_ms`` of that last entry with all positions."""

    def __str__(self) -> str:
        title = (
            f"app id {self.app_id!r}: entry {self.txn_version}, batch {self.batch_id}, query {self.query_id}"
        )
        lines = [f"{journal}  read through {offset:,}" for journal, offset in self.read_through.items()]
        return "\n".join([title, *_few_lines(lines, "… and {} more journals")])

    def _repr_html_(self) -> str:
        rows = [
            f"<tr><td>{escape(journal)}</td><td style='text-align:right'>{offset:,}</td></tr>"
            for journal, offset in self.read_through.items()
        ]
        title = escape(f"app id {self.app_id!r}, batch {self.batch_id}")
        heading = "<tr><th>journal</th><th>read through</th></tr>"
        few = "".join(_few_lines(rows, "<tr><td colspan='2'>… and {} more journals</td></tr>"))
        return f"<table><caption>{title}</caption>{heading}{few}</table>"

    @property
    def read_through(self) -> dict[str, int]:
        """Next byte of each journal, over all Gazette sources; the least if several read one journal."""
        return least_offsets(self.end)

    @property
    def starts(self) -> dict[str, int]:
        """Where the rows of each journal begin, over all Gazette sources; the least of several."""
        return least_offsets(self.start)

    def to_json(self) -> str:
        """Return the text stored in the commit's ``userMetadata``."""
        value: dict[str, Any] = {
            "format_version": 1,
            "app_id": self.app_id,
            "txn_version": self.txn_version,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "attempt": self.attempt,
            "parent": self.parent,
        }
        if self.moved is None:
            value["start"] = _positions_value(self.start)
            value["begin"] = _positions_value(self.begin)
            value["end"] = _positions_value(self.end)
        else:
            value |= {"format_version": 2, "moved": self.moved}
            value |= {"deltas": self.deltas, "full_ms": self.full_ms}
        # Fields that have their default are left out: an entry of few journals stays a line that people can
        # read in DESCRIBE HISTORY.
        if self.gaps:
            value["gaps"] = [[gap.journal, gap.begin, gap.end] for gap in self.gaps]
        if self.accepted_gaps:
            value["accepted_gaps"] = [[gap.journal, gap.begin, gap.end] for gap in self.accepted_gaps]
        if self.trimmed_bytes:
            value["trimmed_bytes"] = self.trimmed_bytes
        if self.mode != "append":
            value["mode"] = self.mode
        if self.audit is not None:
            value["audit"] = [rows.to_value() for rows in self.audit]
        if self.adopted:
            value["adopted"] = True
        optional = (
            ("dead_letters", self.dead_letters),
            ("dead_attempt", self.dead_attempt),
            ("planned_ms", FENCE_MS if self.is_fence else self.planned_ms),
        )
        value |= {name: field_value for name, field_value in optional if field_value is not None}
        if self.stateful:
            value["stateful"] = True
        prints = self.fingerprints if self.moved is None else self.new_fingerprints
        by_journal = (
            ("heads", dict(self.heads)),
            ("recreated", dict(self.recreated)),
            ("fingerprints", {journal: fingerprint.to_text() for journal, fingerprint in prints.items()}),
        )
        value |= {name: by_name for name, by_name in by_journal if by_name}
        if self.isolation != "read_uncommitted":
            value["isolation"] = self.isolation
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class EntryDelta:
    """An entry as it is stored on top of its parent: with the positions that moved."""

    entry: LedgerEntry
    """The entry, but for ``start``, ``begin``, ``end``, and the fingerprints that are its parent's."""
    moved: Moved

    @property
    def attempt(self) -> str:
        """Name of the attempt to write the batch."""
        return self.entry.attempt

    @property
    def txn_version(self) -> int:
        """Transaction number of the entry."""
        return self.entry.txn_version

    def on(self, parent: LedgerEntry) -> LedgerEntry | None:
        """Return the entry with all positions, None if ``parent`` is another entry than its parent."""
        # On top of any other entry, the numbers would describe a state that the table never had.
        if parent.attempt != self.entry.parent or len(parent.end) != len(self.moved):
            return None
        starts: list[SourcePosition] = []
        begins: list[SourcePosition] = []
        ends: list[SourcePosition] = []
        for start, end, moved in zip(parent.start, parent.end, self.moved, strict=True):
            if not isinstance(moved, Mapping):
                # A text has no parts that could move alone, so it is stored whole, as the new end.
                starts, begins, ends = [*starts, start], [*begins, end], [*ends, moved]
                continue
            if not isinstance(end, JournalOffsets):
                return None
            # A journal that the parent does not know brings its begin along; the others begin at the parent's
            # end.
            new = {journal: at[0] for journal, at in moved.items() if isinstance(at, list)}
            until = {journal: at[1] if isinstance(at, list) else at for journal, at in moved.items()}
            first = start.read_through if isinstance(start, JournalOffsets) else {}
            starts.append(JournalOffsets({**new, **first}))
            begins.append(JournalOffsets({**new, **end.read_through}))
            ends.append(JournalOffsets({**end.read_through, **until}))
        return replace(
            self.entry,
            start=tuple(starts),
            begin=tuple(begins),
            end=tuple(ends),
            fingerprints={**parent.fingerprints, **self.entry.fingerprints},
        )


def _moved(parent: LedgerEntry, entry: LedgerEntry) -> Moved | None:
    """Return what moved between an entry and its parent; None if only all positions can express it."""
    # A source was added or left out, so the numbers of the sources do not match.
    if len(parent.end) != len(entry.end):
        return None
    by_source: list[Mapping[str, int | list[int]] | str | None] = []
    for begin, old, new in zip(entry.begin, parent.end, entry.end, strict=True):
        if not (isinstance(old, JournalOffsets) and isinstance(new, JournalOffsets)):
            by_source.append(new if isinstance(new, str) else None)
            continue
        ends, begins = old.read_through, begin.read_through if isinstance(begin, JournalOffsets) else {}
        by_source.append(
            {
                journal: at if journal in ends else [begins.get(journal, at), at]
                for journal, at in new.read_through.items()
                if ends.get(journal) != at
            }
        )
    # A reader must be able to restore the same entry from it.
    moved = tuple(by_source)
    restored = EntryDelta(entry, moved).on(parent)
    same = restored and (restored.start, restored.begin, restored.end) == (
        entry.start,
        entry.begin,
        entry.end,
    )
    return moved if same else None


def stored_on_parent(entry: LedgerEntry, parent: LedgerEntry | None) -> LedgerEntry:
    """Return an entry that is stored as what moved since its parent, where that is shorter and safe.

    A reader needs the last entry with all positions and each one after it. So an entry with all positions is
    never far away, in commits or in time.
    """
    journals = sum(
        len(position.read_through) for position in entry.end if isinstance(position, JournalOffsets)
    )
    # Both bounds keep a reader's walk short, in commits and in age. Delta deletes its log by age, 30 days by
    # default, and an entry with all positions must not be deleted while a later one builds on it (decision
    # 0026).
    now_ms, full_ms = entry.planned_ms, parent.full_ms if parent else None
    if parent is None or now_ms is None or full_ms is None or journals <= FEW_JOURNALS:
        return replace(entry, full_ms=now_ms)
    # A negative age is refused, too: a driver's clock may go back, and then the age is unknown.
    if parent.deltas + 1 > MAX_DELTAS or not 0 <= now_ms - full_ms <= MAX_DELTA_AGE_MS:
        return replace(entry, full_ms=now_ms)
    if (moved := _moved(parent, entry)) is None:
        return replace(entry, full_ms=now_ms)
    recorded = parent.fingerprints
    new = {name: pinned for name, pinned in entry.fingerprints.items() if recorded.get(name) != pinned}
    return replace(entry, moved=moved, new_fingerprints=new, deltas=parent.deltas + 1, full_ms=full_ms)


def parse_entry(text: str | None, app_id: str) -> LedgerEntry | EntryDelta | None:
    """Read a commit's ``userMetadata``.

    Returns:
        The entry, an :class:`EntryDelta` if it is stored on top of its parent, or None if the text is not an
        entry of ``app_id``: other writers of the table put any text there.

    Raises:
        LedgerFormatError: the text is an entry, but damaged or of a later release. If it were ignored, an
            older entry would pass for the newest.
    """
    # This test comes before any parsing, because most commits of a shared table are of others, and their
    # texts may be long.
    if not text or '"app_id"' not in text:
        return None
    try:
        value = parse_json(text)
    except JsonError:
        return None
    if not isinstance(value, dict) or value.get("app_id") != app_id or "format_version" not in value:
        return None
    version = value["format_version"]
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        problem = f"it has format_version {version!r} and this release reads {FORMAT_VERSION}"
        raise LedgerFormatError(app_id, f"{problem}; use the release of gazette_spark that wrote it")
    return _entry(value, app_id) if version == 1 else _delta(value, app_id)


def parse_whole_entry(text: str | None, app_id: str) -> LedgerEntry | None:
    """Read a commit's ``userMetadata`` if it has an entry with all positions; see :func:`parse_entry`."""
    entry = parse_entry(text, app_id)
    return entry if isinstance(entry, LedgerEntry) else None


def _delta(value: dict[str, Any], app_id: str) -> EntryDelta:
    match value:
        case {"moved": list(moved), "deltas": int(deltas), "full_ms": int(full_ms), "parent": str()} if all(
            _is_moved(source) for source in moved
        ):
            entry = _entry(value | {"start": [], "begin": [], "end": []}, app_id)
            return EntryDelta(replace(entry, deltas=deltas, full_ms=full_ms), tuple(moved))
    raise LedgerFormatError(app_id, f"a field is missing or of the wrong type in {json.dumps(value)[:200]}")


def _is_moved(value: object) -> bool:
    """Say whether a value is what moved in one source."""
    if not isinstance(value, dict):
        return value is None or isinstance(value, str)
    spans = [span if isinstance(span, list) else [0, span] for span in value.values()]
    return all(
        len(span) == 2 and all(type(at) is int for at in span) and 0 <= span[0] <= span[1] <= MAX_OFFSET
        for span in spans
    )


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
        } if (
            isinstance(value.get("dead_letters", ""), str)
            and isinstance(value.get("dead_attempt", ""), str)
            and type(value.get("planned_ms", 0)) is int
            and type(value.get("trimmed_bytes", 0)) is int
        ):
            planned_ms = value.get("planned_ms")
            # A fence has no time. Its stored mark is one that no batch has.
            planned_ms = None if planned_ms == FENCE_MS else planned_ms
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
                trimmed_bytes=value.get("trimmed_bytes", 0),
                mode=_mode(value.get("mode", "append"), app_id),
                audit=_audit(value.get("audit"), app_id),
                adopted=value.get("adopted") is True,
                dead_letters=value.get("dead_letters"),
                dead_attempt=value.get("dead_attempt"),
                planned_ms=planned_ms,
                is_fence=value.get("planned_ms") == FENCE_MS,
                stateful=value.get("stateful") is True,
                heads=_offsets(value.get("heads", {}), app_id),
                recreated=_offsets(value.get("recreated", {}), app_id),
                isolation=_isolation(value.get("isolation", "read_uncommitted"), app_id),
                fingerprints=_fingerprints(value.get("fingerprints", {}), app_id),
                # This entry has all positions, so later ones build on it.
                full_ms=planned_ms,
            )
    raise LedgerFormatError(app_id, f"a field is missing or of the wrong type in {json.dumps(value)[:200]}")


def _offsets(value: object, app_id: str) -> Mapping[str, int]:
    if isinstance(value, dict) and all(type(at) is int and 0 <= at <= MAX_OFFSET for at in value.values()):
        return value
    raise LedgerFormatError(app_id, f"no offsets by journal: {json.dumps(value)[:200]}")


def _fingerprints(value: object, app_id: str) -> Mapping[str, Fingerprint]:
    if not isinstance(value, dict):
        raise LedgerFormatError(app_id, f"no fingerprints by journal: {json.dumps(value)[:200]}")
    try:
        # A damaged fingerprint is an error. If it were ignored, a journal that was created again would pass.
        return {journal: Fingerprint.from_text(text) for journal, text in value.items()}
    except OffsetError as error:
        raise LedgerFormatError(app_id, str(error)) from error


def _mode(value: object, app_id: str) -> Mode:
    match value:
        case "append" | "upsert":
            return value
    raise LedgerFormatError(app_id, f"mode {value!r}; use the release of gazette_spark that wrote it")


def _isolation(value: object, app_id: str) -> Isolation:
    match value:
        case "read_uncommitted" | "read_committed":
            return value
    raise LedgerFormatError(app_id, f"isolation is {value!r}, which this release does not know")


def _gaps(values: object, app_id: str) -> tuple[SkippedGap, ...]:
    gaps: list[SkippedGap] = []
    for value in values if isinstance(values, list) else [values]:
        match value:
            case [str(journal), int(begin), int(end)] if 0 <= begin < end <= MAX_OFFSET:
                gaps.append(SkippedGap(journal, begin, end))
            case _:
                raise LedgerFormatError(app_id, f"no gap: {json.dumps(value)[:200]}")
    return tuple(gaps)


def _audit(values: object, app_id: str) -> tuple[AuditedRows, ...] | None:
    if values is None:
        return None
    try:
        return tuple(
            AuditedRows.from_value(rows) for rows in (values if isinstance(values, list) else [values])
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
    return [
        position.to_dict() if isinstance(position, JournalOffsets) else position for position in positions
    ]


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


def entry_without_rows(state: LedgerState, attempt: str) -> LedgerEntry:
    """Return an entry that repeats the newest one, except for the fields of a batch.

    Args:
        state: State of the entry's table, which has an entry.
        attempt: A new, unique name.
    """
    assert state.entry is not None
    return replace(
        state.entry,
        # The number is above every one that the app id has used, undone entries included: see next_entry in
        # the module decision.
        txn_version=state.txn_version + 1,
        # The range is empty, so readers of the ledger find no bytes in this entry, and none missing.
        begin=state.entry.end,
        attempt=attempt,
        parent=state.entry.attempt,
        gaps=(),
        accepted_gaps=(),
        trimmed_bytes=0,
        audit=None,
        adopted=False,
        recreated={},
        # The entry is stored with all positions, however its parent is stored. So one that keeps an idle
        # ledger alive depends on no older commit.
        moved=None,
        new_fingerprints={},
        deltas=0,
        full_ms=None,
    )


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
    output_mode: str = "append"
    """Spark's output mode of the query, in lower case."""
    planned_ms: int | None = None
    """When Spark planned it; None for a batch without a query."""
    after_ms: int | None = None
    """When Spark planned the batch before it; None if it is unknown, or there is no such batch."""
    stateful: bool = False
    """Whether the query keeps state."""
    heads: Mapping[str, int] = field(default_factory=dict)
    """Write heads of the journals that had more to read; those that ``end`` names if not given."""
    starts: Mapping[str, int] = field(default_factory=dict)
    """Where a query of committed messages began, by journal; those that ``end`` names if not given."""
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Identify the journals of the batch; those that ``end`` names if not given."""
    earlier_fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    """The same for the batch before; those that ``begin`` names if not given."""

    @property
    def isolation(self) -> Isolation:
        """Which rows the batch has: records, or committed messages."""
        return "read_committed" if self.starts else "read_uncommitted"

    def __post_init__(self) -> None:
        """Complete ``begin``: a journal without one is being pinned and has no rows in this batch."""
        object.__setattr__(self, "fingerprints", self.fingerprints or _named_fingerprints(self.end))
        earlier = self.earlier_fingerprints or _named_fingerprints(self.begin)
        object.__setattr__(self, "earlier_fingerprints", earlier)
        begin = (*self.begin, *[None] * (len(self.end) - len(self.begin)))
        completed: list[SourcePosition] = []
        for first, last in zip(begin, self.end, strict=True):
            if isinstance(last, JournalOffsets):
                begins = first.read_through if isinstance(first, JournalOffsets) else {}
                pinned = {journal: begins.get(journal, end) for journal, end in last.read_through.items()}
                completed.append(JournalOffsets(pinned))
            else:
                completed.append(first)
        object.__setattr__(self, "begin", tuple(completed))
        # The notes of the positions become fields of the batch. What is compared and recorded as a position
        # is the offsets alone.
        object.__setattr__(self, "gaps", self.gaps or tuple(_skipped(tuple(completed), self.end)))
        heads = [position.heads for position in self.end if isinstance(position, JournalOffsets)]
        object.__setattr__(
            self, "heads", self.heads or {name: at for source in heads for name, at in source.items()}
        )
        starts = [position.starts for position in self.end if isinstance(position, JournalOffsets)]
        named = {name: at for source in starts for name, at in source.items()}
        object.__setattr__(self, "starts", self.starts or named)
        plain = (
            position.plain() if isinstance(position, JournalOffsets) else position for position in self.end
        )
        object.__setattr__(self, "end", tuple(plain))


def _named_fingerprints(positions: Positions) -> dict[str, Fingerprint]:
    """Return the fingerprints that positions name; of several sources that read a journal, the last one's."""
    named = [position.fingerprints for position in positions if isinstance(position, JournalOffsets)]
    return {journal: fingerprint for prints in named for journal, fingerprint in prints.items()}


def _skipped(begin: Positions, end: Positions) -> Iterator[SkippedGap]:
    """Yield the gaps that the ends of a batch name and that lie in it.

    A position keeps its gaps until it moves on: in a query of two sources a batch may leave one where it is.
    """
    for first, last in zip(begin, end, strict=True):
        if isinstance(first, JournalOffsets) and isinstance(last, JournalOffsets):
            for journal, gaps in last.gaps.items():
                since, until = first.read_through[journal], last.read_through[journal]
                # A gap counts as far as it lies in the batch: an earlier entry has named the rest.
                for low, high in gaps:
                    if max(low, since) < min(high, until):
                        yield SkippedGap(journal, max(low, since), min(high, until))


def unknown_journals(entry: LedgerEntry | None, begin: JournalOffsets, table: str) -> JournalOffsets | None:
    """Return the offsets of the journals that a table's ledger does not name, None if it names all.

    Raises:
        TableRefusedError: the table's query reads other sources, too. Then a batch of journals alone has no
            meaning for it.
    """
    if entry is None:
        return begin
    (first, *more) = entry.end or (None,)
    # Nothing says to which source of that query a journal would belong.
    if more or not isinstance(first, JournalOffsets):
        problem = (
            f"the last batch of app id {entry.app_id!r} was written by a query with other sources than "
            "one of Gazette journals; use another app id for journals that query does not read"
        )
        raise TableRefusedError(table, problem)
    new = {journal: at for journal, at in begin.read_through.items() if journal not in first.read_through}
    return JournalOffsets(new) if new else None


def pinned_journals(
    entry: LedgerEntry | None, begin: JournalOffsets, end: JournalOffsets, table: str
) -> JournalOffsets | None:
    """Return where a batch of journals alone pins those that are new to a table, None if none is.

    Args:
        entry: The table's newest entry.
        begin: First byte of each journal of the batch.
        end: Byte behind the last one, and of committed messages where the query of each journal starts.
        table: The table's name, for errors.

    Raises:
        TableRefusedError: see :func:`unknown_journals`.
    """
    new = unknown_journals(entry, begin, table)
    if new is None:
        return None
    starts = {journal: at for journal, at in end.starts.items() if journal in new.read_through}
    return replace(new, position="pinned", starts=starts)


def _few_lines(lines: list[str], rest: str) -> list[str]:
    more = len(lines) - SHOWN_JOURNALS
    return [*lines[:SHOWN_JOURNALS], *([rest.format(more)] if more > 0 else [])]
