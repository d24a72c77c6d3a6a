"""The differences that an audit finds, and the commits that may be their reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gazette_spark.ledger.history import HistoryRow, app_ids


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where table, ledger and journals disagree."""

    problem: str
    table_version: int
    """Version of the entry that differs, or of the rows that differ."""
    journal: str | None = None
    offset: int | None = None
    end_offset: int | None = None
    """If given, the difference is somewhere in ``[offset, end_offset)``."""

    def __str__(self) -> str:
        place = [f"table version {self.table_version}"]
        if self.journal is not None:
            place.append(f"journal {self.journal!r}")
        if self.end_offset is not None:
            place.append(f"offsets [{self.offset}, {self.end_offset})")
        elif self.offset is not None:
            place.append(f"offset {self.offset}")
        return f"{', '.join(place)}: {self.problem}"


KEEP_ROWS = frozenset(
    {
        *("ADD COLUMNS", "ADD CONSTRAINT", "ADD FEATURE", "CHANGE COLUMN", "CHANGE COLUMNS", "CLUSTER BY"),
        *("COMPUTE STATS", "CREATE TABLE", "DROP CONSTRAINT", "OPTIMIZE", "RENAME COLUMN", "REORG"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE SCHEMA", "UPGRADE PROTOCOL"),
        *("VACUUM END", "VACUUM START"),
    }
)
"""Operations that add and remove no row."""

ROW_METRICS = {
    "numDeletedRows": "deleted",
    "num_deleted_rows": "deleted",
    "numUpdatedRows": "updated",
    "num_updated_rows": "updated",
    "numTargetRowsInserted": "added",
    "num_target_rows_inserted": "added",
    "numTargetRowsUpdated": "updated",
    "num_target_rows_updated": "updated",
    "numTargetRowsDeleted": "deleted",
    "num_target_rows_deleted": "deleted",
}
"""Metrics of commits by Spark and ``deltalake``, and what was done to the rows that they count."""

WRITE_METRICS = {"numOutputRows": "added", "num_added_rows": "added"}
"""Such metrics of a write; those of a merge count rows that are copied, too."""


@dataclass(frozen=True, slots=True)
class OtherCommit:
    """A commit without an entry of the writers that are verified, which may have changed rows."""

    table_version: int
    operation: str
    """Its name in Delta's log; empty if the log does not have it."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows that were ``added``, ``updated`` or ``deleted``, as far as the commit says."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} rows {what}" for what, count in self.rows.items() if count)
        name = self.operation or "a commit that does not name its operation"
        return f"table version {self.table_version}: {name}, {counts or 'number of rows unknown'}"


def changed_rows(row: HistoryRow, metrics: Mapping[int, Mapping[str, str]]) -> dict[str, int]:
    """Return the rows that a commit says it added, updated and deleted.

    Args:
        row: The commit.
        metrics: ``operationMetrics`` by version.
    """
    names = WRITE_METRICS if row.operation == "WRITE" else ROW_METRICS
    found = metrics.get(row.version, {})
    return {what: int(found[name]) for name, what in names.items() if found.get(name, "").isdecimal()}


def commits_of_others(
    history: Sequence[HistoryRow], metrics: Mapping[int, Mapping[str, str]], writers: Collection[str]
) -> Iterator[OtherCommit]:
    """Yield the commits, oldest first, that have no entry of some writers and may have changed rows.

    Args:
        history: Newest first.
        metrics: ``operationMetrics`` by version.
        writers: App ids.
    """
    for row in reversed(history):
        if row.operation in KEEP_ROWS or not set(app_ids([row])).isdisjoint(writers):
            continue
        rows = changed_rows(row, metrics)
        if any(rows.values()) or not rows:
            yield OtherCommit(row.version, row.operation, rows)
