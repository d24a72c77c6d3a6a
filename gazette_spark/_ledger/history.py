"""Find an app id's newest entries in a Delta table's history.

The history is the table's log read backwards. Two kinds of commits make earlier ones invisible: ``RESTORE``
jumps back to the version that it names, and a replacement (``CREATE OR REPLACE TABLE``, ``CLONE``) is the
table's new beginning. The search follows the jumps, so it finds the entries of the rows that are visible now.
Neither undoes transaction numbers, so the highest number is searched for in all commits, undone ones
included.

An entry can occur twice. If Delta compacts a table automatically after a MERGE, the compaction inherits the
session's ``userMetadata``. Only the older of the two commits added rows.

An entry may be stored as what moved since its parent. Then the search goes back to an entry with all
positions.

A history can also end early, because Delta cleaned up its log. The search distinguishes this from the table's
beginning and never guesses a missing part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gazette_spark._ledger.entry import EntryDelta, LedgerEntry, LedgerState, parse_entry
from gazette_spark.errors import JsonError, LedgerFormatError, RestoredError
from gazette_spark.strict_json import parse_json

REPLACING = frozenset(
    {
        "CLONE",
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
    }
)
"""Operations after which the table has none of its earlier rows."""

FIRST_PAGE = 8
"""Number of commits that are read first. Reading 8 takes no longer than reading 1, and usually suffices."""

PAGE_GROWTH = 16
"""Factor by which each page is larger than the one before."""


MAX_TIME_MS = 253_402_300_799_999
"""Last millisecond of the year 9999, the last one that Python's calendar has."""


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One line of ``DESCRIBE HISTORY``."""

    version: int
    operation: str = ""
    parameters: Mapping[str, str | None] = field(default_factory=dict)
    user_metadata: str | None = None
    time: str = ""
    metrics: Mapping[str, object] = field(default_factory=dict)
    """The commit's ``operationMetrics``: numbers, which some writers store as text."""


def history_row(info: Mapping[str, Any]) -> HistoryRow:
    """Return the line that ``DESCRIBE HISTORY`` shows for a commit.

    Args:
        info: The commit's ``commitInfo`` together with its ``version``. Some of the parameters that Spark
            writes are not texts.
    """

    # Delta's protocol allows any JSON object as commitInfo. A field whose type differs from Spark's is not
    # the field that Spark writes, and counts as missing.
    def field_of(name: str, kind: type) -> Any:  # noqa: ANN401 - parsed JSON
        value = info.get(name)
        return value if type(value) is kind else kind()

    milliseconds = field_of("timestamp", int)
    moment = datetime.fromtimestamp(milliseconds / 1000 if 0 <= milliseconds <= MAX_TIME_MS else 0, UTC)
    parameters = field_of("operationParameters", dict)
    return HistoryRow(
        info["version"],
        operation=field_of("operation", str),
        parameters={name: None if value is None else str(value) for name, value in parameters.items()},
        user_metadata=field_of("userMetadata", str) or None,
        time=moment.isoformat(sep=" ", timespec="milliseconds"),
        metrics=field_of("operationMetrics", dict),
    )


MAX_DIGITS = 19
"""Number of digits of the largest 64-bit integer."""


def number_in(text: str | None) -> int | None:
    """Return the number that a text of a commit denotes; None if it is not one of Delta's, of 64 bits."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= MAX_DIGITS else None


RestoredVersion = Callable[[HistoryRow, Sequence[HistoryRow]], int | None]
"""Finds among the rows the version to which a RESTORE to a point in time went back; None if it cannot."""


def read_state(
    read_page: Callable[[int], Sequence[HistoryRow]],
    app_id: str,
    *,
    table: str,
    entries: int = 2,
    restored: RestoredVersion = lambda _row, _rows: None,
) -> LedgerState:
    """Read a history backwards until an app id's state is known.

    Args:
        read_page: Returns the requested number of newest rows, newest first, or fewer if there are no more.
        app_id: The app id of the entries.
        table: Name of the table, for errors.
        entries: Number of visible entries to find: 1 is enough for the table's position; a writer needs 2.
        restored: Finds the version that a RESTORE to a point in time went back to.
    """
    limit = FIRST_PAGE
    while True:
        # DESCRIBE HISTORY takes a limit but no version to begin at, so a longer page contains the shorter
        # ones again. Therefore the pages grow fast: hardly any table needs more than 8, 128 and 2,048
        # commits.
        rows = read_page(limit)
        # If there are fewer rows than requested, the history begins here: at version 0, or where it was
        # cleaned up.
        complete = len(rows) < limit
        state = find_state(rows, app_id, table=table, entries=entries, complete=complete, restored=restored)
        if state is not None:
            return state
        limit *= PAGE_GROWTH


def find_state(
    rows: Sequence[HistoryRow],
    app_id: str,
    *,
    table: str,
    complete: bool,
    entries: int = 2,
    restored: RestoredVersion = lambda _row, _rows: None,
) -> LedgerState | None:
    """Find an app id's state in the newest rows of a history.

    Args:
        rows: Newest first, without a hole.
        app_id: App id of the entries.
        table: Name of the table, for errors.
        complete: Whether there are no older rows.
        entries: Number of visible entries to find.
        restored: Finds the version that a RESTORE to a point in time went back to.

    Returns:
        The state, or None if older rows are needed.

    Raises:
        RestoredError: the table was restored to a point in time, and it is unknown which version that was.
        LedgerFormatError: an entry cannot be read.
    """
    # Go from version to version, newest first. Skip what was undone, and stop where the table begins.
    by_version = {row.version: row for row in rows}
    entry_of = entries_by_version(rows, app_id)
    visible: list[tuple[HistoryRow, LedgerEntry | EntryDelta]] = []
    jumps: list[int] = []
    truncated = False
    at = rows[0].version if rows else -1
    while at >= 0 and len(visible) < entries:
        row = by_version.get(at)
        # The rows do not contain this commit. If older rows have not been read yet, it may be among them.
        # Otherwise Delta has cleaned it up and its contents are unknown: a missing part is never guessed.
        if row is None:
            if not complete:
                return None
            truncated = True
            break
        # The table has none of its earlier rows. But the highest transaction number counts across
        # replacements, and if there is no entry among the rows, it is further back.
        if row.operation in REPLACING and (entry_of or complete):
            jumps.append(at)
            break
        if row.operation == "RESTORE":
            jumps.append(at)
            # A RESTORE is a jump: the table now has the rows of the version that it names. Entries between
            # the two are undone, but their transaction numbers are not.
            version = named_version(row)
            # A RESTORE to a point in time names no version. The files of the versions may show which one it
            # was, and older rows contain more candidates. A wrong guess would lose or duplicate rows, so if
            # nothing shows the version, raise an error.
            if version is None and (version := restored(row, rows)) is None:
                if not complete:
                    return None
                raise _restored_to_a_time(row, app_id, table)
            at = version
            continue
        if entry := entry_of.get(at):
            # Delta's automatic compaction inherits the session's userMetadata and adds no rows.
            if visible and visible[-1][1].attempt == entry.attempt:
                visible.pop()
            # The newest entry shows where the table ends. A writer also needs the one before it, to see
            # whether there was a RESTORE between the newest entry's decision and its commit.
            visible.append((row, entry))
        at -= 1
    # The newest entry is stored as what moved, but the entry with all positions that it builds on is not
    # among the rows. An older visible entry cannot replace it, because according to that one the table would
    # end earlier than it does.
    if visible and isinstance(visible[0][1], EntryDelta):
        if not complete:
            return None
        visible, truncated = [], True  # Its parent was cleaned up, and without that it cannot be rebuilt.
    newest, entry = visible[0] if visible else (None, None)
    assert not isinstance(entry, EntryDelta)
    # This is for the case that no entry is visible, as after a RESTORE to a version before the first one. A
    # new query then starts where the rows of the undone entries began.
    undone = next((entry.start for entry in entry_of.values() if isinstance(entry, LedgerEntry)), ())
    return LedgerState(
        entry,
        previous=visible[1][1].attempt if len(visible) > 1 else None,
        # All entries count, undone ones included: RESTORE and replacement keep Delta's transaction numbers,
        # and Delta skips a write with a lower number without an error.
        txn_version=max((entry.txn_version for entry in entry_of.values()), default=-1),
        table_version=rows[0].version if rows else -1,
        entry_version=newest.version if newest else -1,
        entry_time=newest.time if newest else "",
        # Jumps after the newest entry only show how it became the newest one. Jumps before it may lie between
        # its decision and its commit.
        jumps=tuple(at for at in jumps if newest is None or at < newest.version),
        truncated=truncated,
        undone=() if visible else undone,
    )


def entries_by_version(rows: Sequence[HistoryRow], app_id: str) -> dict[int, LedgerEntry | EntryDelta]:
    """Return an app id's entries by version, newest first, with all positions if the rows show them.

    Args:
        rows: Newest first, without a hole.
        app_id: App id of the entries.

    Raises:
        LedgerFormatError: an entry cannot be read.
    """
    by_version: dict[int, LedgerEntry | EntryDelta] = {}
    by_attempt: dict[str, LedgerEntry] = {}
    # Start with the oldest row, because an entry that is stored as what moved is rebuilt from its parent,
    # which was committed before it.
    for row in reversed(rows):
        # Without its parent, it remains a delta. The caller decides whether that matters: only the newest
        # visible entry needs all positions.
        entry = _entry_of(row, app_id, by_attempt)
        if isinstance(entry, LedgerEntry):
            by_attempt[entry.attempt] = entry
        if entry:
            by_version[row.version] = entry
    return dict(reversed(by_version.items()))


def _entry_of(
    row: HistoryRow, app_id: str, parents: Mapping[str, LedgerEntry]
) -> LedgerEntry | EntryDelta | None:
    """Return a row's entry, with all positions if its parent is known; parents are given by attempt."""
    try:
        entry = parse_entry(row.user_metadata, app_id)
        if isinstance(entry, EntryDelta) and (parent := parents.get(entry.entry.parent or "")):
            return entry.on(parent) or entry
        return entry
    except LedgerFormatError as error:
        raise LedgerFormatError(app_id, f"version {row.version}: {error.problem}") from error


def advanced(state: LedgerState, rows: Sequence[HistoryRow], app_id: str) -> LedgerState | None:
    """Return an app id's state after more commits, as a search from the newest commit would find it.

    Args:
        state: An earlier state of the app id.
        rows: All commits since, oldest first.
        app_id: The app id of the state.

    Returns:
        The state, or None if older rows are needed because there was no entry or rows were undone. Its
        ``jumps`` are not determined: only states without a previous entry need them.

    Raises:
        LedgerFormatError: an entry cannot be read.
    """
    for row in rows:
        # Commits may be followed forward only if each one adds to the table. After a jump or a replacement,
        # the search has to start from the newest commit.
        if (previous := state.entry) is None or row.operation == "RESTORE" or row.operation in REPLACING:
            return None
        entry = _entry_of(row, app_id, {previous.attempt: previous})
        # Commits of other writers change only the table's version.
        if entry is None or entry.attempt == previous.attempt:  # Delta's own compaction repeats it.
            state = replace(state, table_version=row.version)
            continue
        if isinstance(entry, EntryDelta):
            return None
        # All fields are set again, because jumps and truncation belong to the previous newest entry.
        state = LedgerState(
            entry,
            previous=previous.attempt,
            txn_version=max(state.txn_version, entry.txn_version),
            table_version=row.version,
            entry_version=row.version,
            entry_time=row.time,
        )
    return state


def app_ids(rows: Iterable[HistoryRow]) -> list[str]:
    """Return the app ids that have an entry in a history, sorted by name."""
    names = set()
    for row in rows:
        try:
            value = parse_json(row.user_metadata or "null")
        except JsonError:
            continue  # Other writers may store any text there.
        match value:
            case {"app_id": str(app_id), "format_version": _}:
                names.add(app_id)
    return sorted(names)


def visible_entries(
    rows: Sequence[HistoryRow], app_id: str, *, table: str
) -> Iterator[tuple[HistoryRow, LedgerEntry]]:
    """Yield an app id's entries whose rows are visible, newest first, as far as the rows show all positions.

    Args:
        rows: Newest first, without a hole.
        app_id: App id of the entries.
        table: Name of the table, for errors.

    Raises:
        RestoredError: the table was restored to a point in time, so the version is unknown.
        LedgerFormatError: an entry cannot be read.
    """
    by_version = {row.version: row for row in rows}
    at = rows[0].version if rows else -1
    # The oldest commit with this attempt so far, because Delta's automatic compaction may repeat an entry.
    candidate: tuple[HistoryRow, LedgerEntry] | None = None
    entry_of = entries_by_version(rows, app_id)
    # This is the same search as in find_state, but over all entries, and for readers that only report. It
    # ends where the rows end.
    while (row := by_version.get(at)) is not None and row.operation not in REPLACING:
        if row.operation == "RESTORE":
            if candidate:
                yield candidate
                candidate = None
            if (version := named_version(row)) is None:
                raise _restored_to_a_time(row, app_id, table)
            at = version
            continue
        if entry := entry_of.get(at):
            if candidate and candidate[1].attempt != entry.attempt:
                yield candidate
                candidate = None
            # Its parent is older than the rows, and so are all entries before it.
            if isinstance(entry, EntryDelta):
                break
            candidate = row, entry
        at -= 1
    if candidate:
        yield candidate


def named_version(row: HistoryRow) -> int | None:
    """Return the version that a RESTORE names, or None if it names a point in time, or no earlier version.

    The log stores such a time as text without a time zone, which does not determine a version.
    """
    version = number_in(row.parameters.get("version"))
    # A search that followed a RESTORE to itself would never end.
    return version if version is not None and version < row.version else None


def _restored_to_a_time(row: HistoryRow, app_id: str, table: str) -> RestoredError:
    """Return the error for a RESTORE whose version is unknown: a wrong guess would lose or duplicate rows."""
    moment = row.parameters.get("timestamp")
    where = f"a point in time ({moment})" if moment is not None else "a version that its commit does not name"
    return RestoredError(
        table,
        app_id,
        f"version {row.version} restored the table to {where}, but neither the log nor "
        "the files of earlier versions show which version that was",
        "Look it up with DESCRIBE HISTORY and run RESTORE TABLE … TO VERSION AS OF that version, which "
        "changes no row and records the version",
    )
