"""Defines the ledger entry of a commit, and the batch that a query requests to write.

Each commit of a sink contains a :class:`LedgerEntry` beside its rows. The entry records up to which offset of
each journal the table is filled. ``history`` finds the entries, ``decision`` compares a :class:`Batch` with
the newest one, and the sinks act on the decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import zip_longest
from typing import Any, Literal

from gazette_spark._ledger.row_digest import AuditedRows
from gazette_spark.errors import JsonError, LedgerFormatError, OffsetError, OptionError, TableRefusedError
from gazette_spark.offsets import MAX_OFFSET, Fingerprint, JournalOffsets
from gazette_spark.strict_json import parse_json, shown

FORMAT_VERSION = 2
"""Newest version of an entry's JSON form. Form 1 has all positions, form 2 only those that moved."""

FEW_JOURNALS = 64
"""Maximum number of journals for which each entry is stored with all positions."""

MAX_DELTAS = 50
"""Maximum number of consecutive entries that have only moved positions; the next one has all positions."""

MAX_DELTA_AGE_MS = 3_600_000
"""Maximum age of the entry with all positions, so that Delta's clean-up of the log never deletes it first."""

SourcePosition = JournalOffsets | str | None
"""A query's position in one source: a Gazette position, Spark's text for a source of another kind, or None if
the position is unknown."""

Positions = tuple[SourcePosition, ...]
"""A query's positions in all its sources, in the order of the sources in the query."""

FENCE_MS = -1
"""Stored ``planned_ms`` of a fence: no batch has this time."""

Moved = tuple[Mapping[str, int | list[int]] | str | None, ...]
"""What moved, by source: the new end of each journal that moved, or the ``begin`` and end of a new journal;
for a source of another kind, its new text."""

MAX_APP_ID_LENGTH = 512

Mode = Literal["append", "upsert"]
"""How a writer adds rows: as new rows, or in place of the row with the same key."""

Isolation = Literal["read_uncommitted", "read_committed"]
"""Which rows belong to a range of offsets: the records in it, or the messages that were committed in it."""


def check_app_id(option: str, app_id: object) -> None:
    """Check the name of a stream in its table.

    Args:
        option: Name of the option that contains the name, for the error.
        app_id: The name to check.

    Raises:
        OptionError: the name is empty or too long, or contains unprintable characters.
    """
    expected = f"a name of 1 to {MAX_APP_ID_LENGTH} printable characters"
    # The name is part of Delta's transaction id, which must stay the same for the life of the table. A name
    # that only looks the same would begin a second ledger for the same rows.
    if not isinstance(app_id, str):
        raise OptionError(option, type(app_id).__name__, expected)
    is_short = 0 < len(app_id) <= MAX_APP_ID_LENGTH
    if not is_short or app_id != app_id.strip() or not app_id.isprintable():
        raise OptionError(option, repr(app_id[:80]), expected)


@dataclass(frozen=True, slots=True, order=True)
class SkippedGap:
    """Bytes in a batch's range that are not in the table: they are gone, or were left out on request."""

    journal: str
    begin: int
    end: int


def parse_gaps(option: str, gaps: object) -> frozenset[SkippedGap]:
    """Return the gaps that an operator has accepted.

    Args:
        option: Name of the option that contains them, for the error.
        gaps: Byte ranges ``[begin, end)`` by journal.

    Raises:
        OptionError: ``gaps`` has an invalid form.
    """
    expected = "byte ranges by journal, from where the table ends: {'a/journal': [(1024, 4096)]}"
    if not isinstance(gaps, Mapping):
        raise OptionError(option, repr(gaps)[:80], expected)
    accepted = set()
    for journal, ranges in gaps.items():
        # The option of a format contains lists, because JSON has no tuples.
        for span in ranges if isinstance(ranges, list | tuple) else [ranges]:
            match journal, span:
                case str(), [int(begin), int(end)] if 0 <= begin < end <= MAX_OFFSET:
                    accepted.add(SkippedGap(journal, begin, end))
                case _:
                    raise OptionError(option, f"{journal!r}: {repr(span)[:80]}", expected)
    return frozenset(accepted)


SHOWN_RANGES = 5
"""Maximum number of byte ranges in a log line."""


def ranges_text(ranges: Sequence[SkippedGap]) -> str:
    """Return ranges of bytes as part of a log line: the number of bytes, and the first ranges."""
    shown = " ".join(f"{span.journal}[{span.begin},{span.end})" for span in ranges[:SHOWN_RANGES])
    more = f" and {len(ranges) - SHOWN_RANGES} more" if len(ranges) > SHOWN_RANGES else ""
    total = sum(span.end - span.begin for span in ranges)
    return f"bytes={total} journals={len({span.journal for span in ranges})} ranges={shown}{more}"


SHOWN_JOURNALS = 50
"""Maximum number of journals in an entry's printed form."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The record in one commit about the rows that are visible at its version."""

    app_id: str
    txn_version: int
    query_id: str
    batch_id: int
    start: Positions
    """Start of the table's rows. Earlier bytes were never meant to be in the table."""
    begin: Positions
    end: Positions
    """End of the table's rows. Journals that the batch did not read keep their offsets."""
    attempt: str
    """Unique name of this attempt to write the batch."""
    parent: str | None
    """Attempt of the entry on which the decision to write this one was based; None for the first entry."""
    gaps: tuple[SkippedGap, ...] = ()
    """Skipped bytes in this batch's ``[begin, end)``, sorted by journal and offset."""
    accepted_gaps: tuple[SkippedGap, ...] = ()
    """Those of ``gaps`` that the query never read because the operator accepted them."""
    trimmed_bytes: int = 0
    """Number of bytes of the batch whose rows were already in the table and were therefore left out."""
    mode: Mode = "append"
    """Under ``upsert``, a row is not one record: a later record replaces an earlier one with the same key."""
    audit: tuple[AuditedRows, ...] | None = None
    """Rows that the batch added, by journal; None if they were not counted."""
    adopted: bool = False
    """Whether the entry begins a ledger on a table that already had rows. Then ``start`` is where the ledger
    begins, not where the rows do."""
    dead_letters: str | None = None
    """Table of dead letters that the writer used; the entries of that table name the table itself."""
    dead_attempt: str | None = None
    """Attempt of that table's newest entry at the time of the commit; None if it had none."""
    planned_ms: int | None = None
    """When Spark planned the batch, in milliseconds since 1970, from the query checkpoint. It distinguishes
    this planning of the batch from any other. None in a fence, and in entries of batches without a query."""
    is_fence: bool = False
    """Whether the entry is a fence. A fence completes no batch: it only makes the commits of other writers
    conflict, and the batch that it names is still to be written."""
    stateful: bool = False
    """Whether the query keeps state, so that the rows of a batch depend on its query checkpoint and not on
    offsets alone."""
    heads: Mapping[str, int] = field(default_factory=dict)
    """Write heads of the journals that had more bytes to read when the batch was planned."""
    recreated: Mapping[str, int] = field(default_factory=dict)
    """Journals that were deleted and created again, with the end of the old journal's rows. From this entry
    on, ``start`` and ``end`` refer to the new journal."""
    isolation: Isolation = "read_uncommitted"
    """Under ``read_committed``, the rows of a range of offsets are the messages that were committed in it,
    wherever these messages begin."""
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints that identify the journals of the table's rows, each by bytes before the table's end."""
    moved: Moved | None = field(default=None, compare=False, repr=False)
    """What moved since the parent, if this is stored instead of all positions."""
    new_fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict, compare=False, repr=False)
    """The fingerprints that differ from the parent's. They are stored with ``moved``."""
    deltas: int = field(default=0, compare=False)
    """Number of entries since the last one with all positions, this entry included."""
    full_ms: int | None = field(default=None, compare=False)
    """``planned_ms`` of the last entry with all positions."""

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
        """Next byte of each journal over all Gazette sources; the smallest if several read a journal."""
        return least_offsets(self.end)

    @property
    def starts(self) -> dict[str, int]:
        """Where the rows of each journal begin, over all Gazette sources; the smallest if several read it."""
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
        # Fields with their default value are left out, so that people can read the entry of a few journals as
        # a line in DESCRIBE HISTORY.
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
    """An entry that is stored as the difference from its parent: with only the positions that moved."""

    entry: LedgerEntry
    """The entry without ``start``, ``begin``, ``end`` and the fingerprints that equal its parent's."""
    moved: Moved

    @property
    def attempt(self) -> str:
        """Unique name of the attempt to write the batch."""
        return self.entry.attempt

    @property
    def txn_version(self) -> int:
        """Transaction number of the entry."""
        return self.entry.txn_version

    def on(self, parent: LedgerEntry) -> LedgerEntry | None:
        """Return the entry with all positions, or None if ``parent`` is not its parent.

        Raises:
            LedgerFormatError: a journal would end before it ends in the parent.
        """
        # Combined with any other entry, the numbers would describe a state that the table never had.
        if parent.attempt != self.entry.parent or len(parent.end) != len(self.moved):
            return None
        starts: list[SourcePosition] = []
        begins: list[SourcePosition] = []
        ends: list[SourcePosition] = []
        for start, end, moved in zip(parent.start, parent.end, self.moved, strict=True):
            if not isinstance(moved, Mapping):
                # A text has no parts that could move separately, so the whole text is stored as the new end.
                starts, begins, ends = [*starts, start], [*begins, end], [*ends, moved]
                continue
            if not isinstance(end, JournalOffsets):
                return None
            # A journal that the parent does not have is stored with its ``begin``; the others begin at the
            # parent's end.
            new = {journal: at[0] for journal, at in moved.items() if isinstance(at, list)}
            until = {journal: at[1] if isinstance(at, list) else at for journal, at in moved.items()}
            # The journal's rows behind this end would be written again.
            for journal, at in until.items():
                if at < end.read_through.get(journal, at):
                    bounds = f"{at}, but it was at {end.read_through[journal]} before"
                    raise _damaged(self.entry.app_id, f"its end of journal {journal!r} is {bounds}")
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
    """Return what moved between an entry and its parent, or None if the entry needs all positions."""
    # A source was added or removed, so the numbers of the sources do not match.
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
    # A reader must be able to rebuild the same entry from what moved.
    moved = tuple(by_source)
    restored = EntryDelta(entry, moved).on(parent)
    same = restored and (restored.start, restored.begin, restored.end) == (
        entry.start,
        entry.begin,
        entry.end,
    )
    return moved if same else None


def stored_on_parent(entry: LedgerEntry, parent: LedgerEntry | None) -> LedgerEntry:
    """Return an entry that is stored as what moved since its parent, if that is shorter and safe.

    A reader needs the last entry with all positions and each entry after it. Therefore an entry with all
    positions is never many commits or much time away.
    """
    journals = sum(
        len(position.read_through) for position in entry.end if isinstance(position, JournalOffsets)
    )
    # Both bounds limit how far back a reader has to go. Delta deletes its log by age, after 30 days by
    # default, and an entry with all positions must not be deleted while a later entry builds on it (decision
    # 0026).
    now_ms, full_ms = entry.planned_ms, parent.full_ms if parent else None
    if parent is None or now_ms is None or full_ms is None or journals <= FEW_JOURNALS:
        return replace(entry, full_ms=now_ms)
    # A negative age is not accepted either: if a driver's clock goes back, the age is unknown.
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
        The entry, an :class:`EntryDelta` if it is stored as the difference from its parent, or None if the
        text is not an entry of ``app_id``: other writers of the table may store any text there.

    Raises:
        LedgerFormatError: the text is an entry, but it is damaged or from a later release. If it were
            ignored, an older entry would be mistaken for the newest one.
    """
    # This test comes before any parsing, because most commits of a shared table belong to other writers, and
    # their texts may be long.
    if not text or '"app_id"' not in text:
        return None
    try:
        value = parse_json(text)
    except JsonError as error:
        # A text that begins as an entry of this app id is one that was cut or damaged. Other texts are those
        # of other writers.
        version, _, rest = text.partition(",")
        is_entry = version.startswith('{"format_version":')
        if is_entry and rest.startswith(f'"app_id":{json.dumps(app_id, ensure_ascii=False)}'):
            raise _damaged(app_id, f"{error}, in {shown(text)}") from error
        return None
    if not isinstance(value, dict) or value.get("app_id") != app_id or "format_version" not in value:
        return None
    version = value["format_version"]
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        problem = f"it has format_version {version!r}, but this release reads at most {FORMAT_VERSION}"
        raise LedgerFormatError(app_id, f"{problem}; use the release of gazette_spark that wrote it")
    return _entry(value, app_id) if version == 1 else _delta(value, app_id)


def parse_whole_entry(text: str | None, app_id: str) -> LedgerEntry | None:
    """Read a commit's ``userMetadata`` if its entry has all positions; see :func:`parse_entry`."""
    entry = parse_entry(text, app_id)
    return entry if isinstance(entry, LedgerEntry) else None


def _damaged(app_id: str, problem: str) -> LedgerFormatError:
    remedy = "The entry is damaged: restore the metadata of this commit from a copy of the table"
    return LedgerFormatError(app_id, f"{problem}. {remedy}")


def _delta(value: dict[str, Any], app_id: str) -> EntryDelta:
    match value:
        case {"moved": list(moved), "deltas": int(deltas), "full_ms": int(full_ms), "parent": str()} if all(
            _is_moved(source) for source in moved
        ):
            entry = _entry(value | {"start": [], "begin": [], "end": []}, app_id)
            return EntryDelta(replace(entry, deltas=deltas, full_ms=full_ms), tuple(moved))
    raise _damaged(app_id, f"a field is missing or of the wrong type in {json.dumps(value)[:200]}")


def _is_moved(value: object) -> bool:
    """Return whether a value has the stored form of what moved in one source."""
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
            # A fence has no time of planning. It is stored with a value that no batch has.
            planned_ms = None if planned_ms == FENCE_MS else planned_ms
            starts, begins, ends = (_positions(source, app_id) for source in (start, begin, end))
            # A journal needs a start and a begin which are not past its end. A journal without an end would
            # look new, and all of its rows would be written again.
            for positions in zip_longest(starts, begins, ends):
                first_of, since_of, until_of = (
                    position.read_through if isinstance(position, JournalOffsets) else {}
                    for position in positions
                )
                for journal in first_of.keys() | since_of.keys() | until_of.keys():
                    first, since, until = first_of.get(journal), since_of.get(journal), until_of.get(journal)
                    if first is None or since is None or until is None or max(first, since) > until:
                        bounds = f"start {first}, begin {since} and end {until}"
                        raise _damaged(app_id, f"its {bounds} of journal {journal!r} do not fit together")
            mode = value.get("mode", "append")
            if mode not in ("append", "upsert"):
                problem = f"unsupported mode {mode!r}; use the release of gazette_spark that wrote it"
                raise LedgerFormatError(app_id, problem)
            isolation = value.get("isolation", "read_uncommitted")
            if isolation not in ("read_uncommitted", "read_committed"):
                problem = f"isolation {isolation!r}, which only a later release of gazette_spark supports"
                raise LedgerFormatError(app_id, problem)
            return LedgerEntry(
                app_id,
                txn_version,
                query_id,
                batch_id,
                start=starts,
                begin=begins,
                end=ends,
                attempt=attempt,
                parent=parent,
                gaps=_gaps(value.get("gaps", []), app_id),
                accepted_gaps=_gaps(value.get("accepted_gaps", []), app_id),
                trimmed_bytes=value.get("trimmed_bytes", 0),
                mode=mode,
                audit=_audit(value.get("audit"), app_id),
                adopted=value.get("adopted") is True,
                dead_letters=value.get("dead_letters"),
                dead_attempt=value.get("dead_attempt"),
                planned_ms=planned_ms,
                is_fence=value.get("planned_ms") == FENCE_MS,
                stateful=value.get("stateful") is True,
                heads=_offsets(value.get("heads", {}), app_id),
                recreated=_offsets(value.get("recreated", {}), app_id),
                isolation=isolation,
                fingerprints=_fingerprints(value.get("fingerprints", {}), app_id),
                # This entry has all positions, so later ones build on it.
                full_ms=planned_ms,
            )
    raise _damaged(app_id, f"a field is missing or of the wrong type in {json.dumps(value)[:200]}")


def _offsets(value: object, app_id: str) -> Mapping[str, int]:
    if isinstance(value, dict) and all(type(at) is int and 0 <= at <= MAX_OFFSET for at in value.values()):
        return value
    raise _damaged(app_id, f"expected offsets by journal, got {json.dumps(value)[:200]}")


def _fingerprints(value: object, app_id: str) -> Mapping[str, Fingerprint]:
    if not isinstance(value, dict):
        raise _damaged(app_id, f"expected fingerprints by journal, got {json.dumps(value)[:200]}")
    try:
        # A damaged fingerprint is an error. If it were ignored, a journal that was created again would not be
        # noticed.
        return {journal: Fingerprint.from_text(text) for journal, text in value.items()}
    except OffsetError as error:
        raise _damaged(app_id, str(error)) from error


def _gaps(values: object, app_id: str) -> tuple[SkippedGap, ...]:
    gaps: list[SkippedGap] = []
    for value in values if isinstance(values, list) else [values]:
        match value:
            case [str(journal), int(begin), int(end)] if 0 <= begin < end <= MAX_OFFSET:
                gaps.append(SkippedGap(journal, begin, end))
            case _:
                raise _damaged(app_id, f"expected a gap, got {json.dumps(value)[:200]}")
    return tuple(gaps)


def _audit(values: object, app_id: str) -> tuple[AuditedRows, ...] | None:
    if values is None:
        return None
    try:
        return tuple(
            AuditedRows.from_value(rows) for rows in (values if isinstance(values, list) else [values])
        )
    except ValueError as error:
        raise _damaged(app_id, str(error)) from error


def least_offsets(positions: Positions) -> dict[str, int]:
    """Return each journal's offset over all Gazette sources; the smallest if several read a journal."""
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
        raise _damaged(app_id, str(error)) from error


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The state of one app id's ledger, from a table's history."""

    entry: LedgerEntry | None = None
    """Newest entry whose rows are visible. Entries that a RESTORE has undone are not visible."""
    previous: str | None = None
    """Attempt of the visible entry before ``entry``."""
    txn_version: int = -1
    """Highest transaction number of all entries in the history, undone entries included: Delta keeps their
    numbers."""
    table_version: int = -1
    """Newest version of the table, by any writer; -1 if there is no table."""
    entry_version: int = -1
    entry_time: str = ""
    jumps: tuple[int, ...] = ()
    """Versions between ``entry`` and the visible entry before it that undid other versions, such as a
    RESTORE."""
    truncated: bool = False
    """Whether the search ended where the history was cleaned up, and not at the table's beginning."""
    undone: Positions = ()
    """If there is no ``entry``: where the rows of the newest undone entry began, as far as the history shows
    it."""


def entry_without_rows(state: LedgerState, attempt: str) -> LedgerEntry:
    """Return an entry that repeats the newest one, without the fields that describe a batch.

    Args:
        state: State of the entry's table, which has an entry.
        attempt: A new, unique name.
    """
    assert state.entry is not None
    return replace(
        state.entry,
        # The number is higher than any that the app id has used, undone entries included: see next_entry in
        # the module decision.
        txn_version=state.txn_version + 1,
        # The range is empty, so to readers of the ledger this entry adds no bytes and leaves none out.
        begin=state.entry.end,
        attempt=attempt,
        parent=state.entry.attempt,
        gaps=(),
        accepted_gaps=(),
        trimmed_bytes=0,
        audit=None,
        adopted=False,
        recreated={},
        # The entry is stored with all positions, however its parent is stored. Thus an entry that keeps an
        # idle ledger alive does not depend on an older commit.
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
    """Bytes of the batch that its source skips; by default, those that ``end`` names."""
    mode: Mode = "append"
    output_mode: str = "append"
    """Spark's output mode of the query, in lower case."""
    planned_ms: int | None = None
    """When Spark planned the batch, in milliseconds since 1970; None for a batch without a query."""
    after_ms: int | None = None
    """When Spark planned the batch before it; None if that is unknown or there is no such batch."""
    stateful: bool = False
    """Whether the query keeps state."""
    heads: Mapping[str, int] = field(default_factory=dict)
    """Write heads of the journals that had more bytes to read; by default, those that ``end`` names."""
    starts: Mapping[str, int] = field(default_factory=dict)
    """Where a query of committed messages began, by journal; by default, the starts that ``end`` names."""
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints that identify the journals of the batch; by default, those that ``end`` names."""
    earlier_fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints of the batch before; by default, those that ``begin`` names."""

    @property
    def isolation(self) -> Isolation:
        """Whether the rows of the batch are records or committed messages."""
        return "read_committed" if self.starts else "read_uncommitted"

    def __post_init__(self) -> None:
        """Complete ``begin``: a journal without a ``begin`` is being pinned and has no rows in this batch."""
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
        # What the positions note besides offsets becomes fields of the batch. Only offsets are compared and
        # recorded as positions.
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
    """Return the fingerprints that positions name; if several sources read a journal, the last one counts."""
    named = [position.fingerprints for position in positions if isinstance(position, JournalOffsets)]
    return {journal: fingerprint for prints in named for journal, fingerprint in prints.items()}


def _skipped(begin: Positions, end: Positions) -> Iterator[SkippedGap]:
    """Yield the gaps that the ends of a batch name and that lie in the batch.

    A position keeps its gaps until it moves on, and in a query of two sources a batch may move only one.
    """
    for first, last in zip(begin, end, strict=True):
        if isinstance(first, JournalOffsets) and isinstance(last, JournalOffsets):
            for journal, gaps in last.gaps.items():
                since, until = first.read_through[journal], last.read_through[journal]
                # Only the part of a gap that lies in the batch counts: an earlier entry has recorded the
                # rest.
                for low, high in gaps:
                    if max(low, since) < min(high, until):
                        yield SkippedGap(journal, max(low, since), min(high, until))


def unknown_journals(entry: LedgerEntry | None, begin: JournalOffsets, table: str) -> JournalOffsets | None:
    """Return the offsets of the journals that a table's ledger does not name, or None if it names all.

    Raises:
        TableRefusedError: the table's query also reads other sources. A batch of journals alone cannot
            continue such a table.
    """
    if entry is None:
        return begin
    (first, *more) = entry.end or (None,)
    # Nothing determines to which source of that query a journal would belong.
    if more or not isinstance(first, JournalOffsets):
        problem = (
            f"the last batch of app id {entry.app_id!r} was written by a query with several sources, or with "
            "another kind of source; use another app id for journals that the query does not read"
        )
        raise TableRefusedError(table, problem)
    new = {journal: at for journal, at in begin.read_through.items() if journal not in first.read_through}
    return JournalOffsets(new) if new else None


def pinned_journals(
    entry: LedgerEntry | None, begin: JournalOffsets, end: JournalOffsets, table: str
) -> JournalOffsets | None:
    """Return where a batch of journals alone pins those that are new to a table, or None if none is new.

    Args:
        entry: The table's newest entry.
        begin: First byte of each journal of the batch.
        end: Byte after the last one of each journal; for committed messages, also where the query of each
            journal starts.
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
