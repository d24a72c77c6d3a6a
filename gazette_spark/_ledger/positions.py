"""Finds a query's position over time, from its table's history or its query checkpoint.

A :class:`GroupCommit` is one step of a query: the position in a commit of its table, or in a batch of its
query checkpoint. The functions here turn a table's history, or a query checkpoint's offset log, into such
steps. :mod:`gazette_spark.lag.feeds` reads them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from gazette_spark._ledger.entry import EntryDelta, LedgerEntry, Positions, SkippedGap, least_offsets
from gazette_spark._ledger.history import REPLACING, HistoryRow, entries_by_version, named_version
from gazette_spark.offsets import Fingerprint, JournalOffsets

CommitEvent = Literal["commit", "start", "restore"]
"""What a step is: a batch, the first step of a new checkpoint or of a new writer, or a RESTORE of the
table."""


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A position that a query has committed."""

    order: int
    """Increases from step to step: a table version, or a batch number."""
    timestamp_ms: int
    """Time of the commit, by the committer's clock."""
    read_through: Mapping[str, int]
    """Next byte of each journal."""
    heads: Mapping[str, int] = field(default_factory=dict)
    """Write heads that the query saw when it planned the batch, as far as they were recorded."""
    planned_ms: int | None = None
    """When it saw them, by its clock, in milliseconds since 1970."""
    gaps: tuple[SkippedGap, ...] = ()
    """Skipped bytes of the batch, as the ledger records them."""
    accepted_gaps: tuple[SkippedGap, ...] = ()
    """The ``gaps`` that an operator accepted."""
    trimmed_bytes: int = 0
    """Number of bytes of the batch whose rows were already in the table and were therefore left out."""
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints of the journals, from the ledger; empty for the steps of a query checkpoint."""
    event: CommitEvent = "commit"


def table_commits(rows: Sequence[HistoryRow], app_id: str, since_version: int = -1) -> list[GroupCommit]:
    """Return the steps of one app id in a table's history, oldest first.

    A RESTORE is also a step: back to the position that the table had in that version. A RESTORE that names no
    version, or a version before the remaining history, is not a step, because its position is unknown.

    Args:
        rows: newest first, down to the oldest available row, or to where the caller stopped reading.
        app_id: app id of the entries.
        since_version: newest version whose step the caller already has.
    """
    steps: list[GroupCommit] = []
    visible: dict[int, LedgerEntry | None] = {}
    at: LedgerEntry | None = None
    entry_of = entries_by_version(rows, app_id)
    # Start at the oldest row and remember the position of each version, because a RESTORE names one of them.
    for row in reversed(rows):
        before, entry = at, entry_of.get(row.version)
        if row.operation in REPLACING:
            at = None
        if row.operation == "RESTORE":
            # The position in a version that is older than all rows is unknown.
            at = visible.get(version) if (version := named_version(row)) is not None else None
        elif isinstance(entry, EntryDelta):
            at = None  # Its position is unknown, because its parent is older than the rows.
        elif entry:
            at = at if at and at.attempt == entry.attempt else entry  # Delta's own compaction repeats it.
        visible[row.version] = at
        # Most commits of a shared table do not move this app id's position.
        if at is None or at is before or row.version <= since_version:
            continue
        step = GroupCommit(row.version, epoch_ms(row.time), at.read_through, event="restore")
        if at is entry:
            # A fence, and another query's first entry, are marked as a start on the lag monitor's charts.
            is_start = at.is_fence or (before is not None and before.query_id != at.query_id)
            step = replace(
                step,
                event="start" if is_start else "commit",
                heads=_heads(at),
                planned_ms=at.planned_ms,
                gaps=at.gaps,
                accepted_gaps=at.accepted_gaps,
                trimmed_bytes=at.trimmed_bytes,
                fingerprints=at.fingerprints,
            )
        steps.append(step)
    return steps


def _heads(entry: LedgerEntry) -> Mapping[str, int]:
    """Return the write heads at an entry's planning.

    An entry names the heads of journals with more bytes to read. In all other journals, the query had caught
    up. Fences, and entries of batches without a query, name no heads.
    """
    # No query read the journals' heads for this entry.
    if entry.planned_ms is None:
        return entry.heads
    return {**entry.read_through, **entry.heads}


def reaches_back(rows: Sequence[HistoryRow], app_ids: Iterable[str] = ()) -> bool:
    """Return whether positions among the rows depend on versions older than all of them.

    A RESTORE may go back to such a version, and the parent of an entry may be in one.
    """
    if any(
        isinstance(entry, EntryDelta) for name in app_ids for entry in entries_by_version(rows, name).values()
    ):
        return True
    restored = (named_version(row) for row in rows if row.operation == "RESTORE")
    return any(version is not None and version < rows[-1].version for version in restored)


def checkpoint_commit(batch_id: int, positions: Positions, timestamp_ms: int) -> GroupCommit | None:
    """Return the step of a batch in a query checkpoint; None for a query without a Gazette source.

    If several sources read a journal, the smallest of their offsets counts.
    """
    merged = least_offsets(positions)
    heads: dict[str, int] = {}
    for position in positions:
        if isinstance(position, JournalOffsets):
            for journal in position.read_through:
                if (head := position.head_seen(journal)) is not None:
                    # If two sources saw different heads of a growing journal, the later one saw more.
                    heads[journal] = max(head, heads.get(journal, head))
    return GroupCommit(batch_id, timestamp_ms, merged, heads) if merged else None


def finished_batches(offsets: Iterable[str], commits: Iterable[str]) -> Iterator[int]:
    """Yield the batches for which a query checkpoint has both the end and the commit, newest first.

    Args:
        offsets: names of the files in ``offsets``.
        commits: names of the files in ``commits``.
    """
    # A batch with offsets but without a commit may still be running; its position counts when it is done.
    # Other names are those of temporary files and checksums.
    done = {name for name in commits if name.isdecimal()}
    yield from sorted((int(name) for name in set(offsets) & done), reverse=True)


def epoch_ms(time: str) -> int:
    """Convert the time of a ``HistoryRow`` to milliseconds since 1970."""
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000
