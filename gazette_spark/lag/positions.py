"""A query's position over time, from its table's history or its query checkpoint.

A :class:`GroupCommit` is one step of a query: the position in a commit of its table, or in a batch of its
query checkpoint. The functions here turn a table's history, or a query checkpoint's offset log, into such
steps. :mod:`gazette_spark.lag.feeds` reads them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gazette_spark.ledger.entry import EntryDelta, LedgerEntry, Positions, least_offsets
from gazette_spark.ledger.history import REPLACING, HistoryRow, whole_entries


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A position that a query has committed."""

    order: int
    """Rises from step to step: a table's version, a batch's number."""
    timestamp_ms: int
    """Time of the commit, by the committer's clock."""
    read_through: Mapping[str, int]
    """Next byte of each journal."""


def table_commits(rows: Sequence[HistoryRow], app_id: str, known: int = -1) -> list[GroupCommit]:
    """Return the steps of one app id in a table's history, oldest first.

    A RESTORE is a step, too: back to the table's position then. A RESTORE without a version, or to a version
    before the remaining history, is no step, for its position is unknown.

    Args:
        rows: newest first, down to the oldest available row, or to where the caller stopped reading.
        app_id: app id of the entries.
        known: newest version whose step the caller has already.
    """
    steps: list[GroupCommit] = []
    visible: dict[int, LedgerEntry | None] = {}
    at: LedgerEntry | None = None
    entry_of = whole_entries(rows, app_id)
    for row in reversed(rows):
        before, entry = at, entry_of.get(row.version)
        if row.operation in REPLACING:
            at = None
        if row.operation == "RESTORE":
            at = visible.get(int(version)) if (version := _restored(row)) else None
        elif isinstance(entry, EntryDelta):
            at = None  # Its position is unknown: what it stands on is older than the rows.
        elif entry:
            at = at if at and at.attempt == entry.attempt else entry  # Delta's own compaction repeats it.
        visible[row.version] = at
        if at is not None and at is not before and row.version > known:
            steps.append(GroupCommit(row.version, epoch_ms(row.time), at.read_through))
    return steps


def reaches_back(rows: Sequence[HistoryRow], app_ids: Iterable[str] = ()) -> bool:
    """Return whether positions among the rows depend on versions older than all of them.

    A RESTORE may lead there, and an entry may stand on one.
    """
    if any(isinstance(each, EntryDelta) for name in app_ids for each in whole_entries(rows, name).values()):
        return True
    restored = (_restored(row) for row in rows if row.operation == "RESTORE")
    return any(version is not None and int(version) < rows[-1].version for version in restored)


def _restored(row: HistoryRow) -> str | None:
    version = row.parameters.get("version")
    return version if version is not None and version.isdecimal() else None


def checkpoint_commit(batch_id: int, positions: Positions, timestamp_ms: int) -> GroupCommit | None:
    """Return the step of a batch in a query checkpoint; None for a query without a Gazette source.

    Where several sources read one journal, the least of their offsets counts.
    """
    merged = least_offsets(positions)
    return GroupCommit(batch_id, timestamp_ms, merged) if merged else None


def finished_batches(offsets: Iterable[str], commits: Iterable[str]) -> Iterator[int]:
    """Yield the batches a query checkpoint has the end and the commit of, newest first.

    Args:
        offsets: names of the files in ``offsets``.
        commits: names of the files in ``commits``.
    """
    done = {name for name in commits if name.isdecimal()}
    yield from sorted((int(name) for name in set(offsets) & done), reverse=True)


def epoch_ms(time: str) -> int:
    """Return the milliseconds since 1970 of a history's time, as ``HistoryRow`` has it."""
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000
