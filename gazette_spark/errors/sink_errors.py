"""Errors of the Delta sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gazette_spark.errors.base import GazetteError


class SinkError(GazetteError):
    """Base class of the Delta sink's errors."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How one source of a batch (a journal or another source) disagrees with the table's record."""

    source: str
    """Journal name, or e.g. ``source 1`` for one that is not Gazette's."""
    recorded: int | str | None
    """End of the table's rows, None for a source that is new to the table."""
    begin: int | str | None
    end: int | str | None
    journal: str = ""
    """The journal's name alone, empty for another source."""

    def __str__(self) -> str:
        known = (
            "the table knows nothing of it" if self.recorded is None else f"the table ends at {self.recorded}"
        )
        return f"{self.source}: {known}, the batch is [{self.begin}, {self.end})"


SHOWN_MISMATCHES = 10
"""Mismatches an error's text lists; all of them are in its attribute."""


def _listed(mismatches: tuple[Mismatch, ...]) -> str:
    more = len(mismatches) - SHOWN_MISMATCHES
    shown = "; ".join(str(each) for each in mismatches[:SHOWN_MISMATCHES])
    return f"{shown}; and {more} more" if more > 0 else shown


@dataclass(eq=False)
class BatchMismatchError(SinkError):
    """A batch does not continue the table; nothing was written. See the two subclasses."""

    table: str
    app_id: str
    batch_id: int
    mismatches: tuple[Mismatch, ...]

    advice: str = (
        "The query checkpoint does not belong to this state of the table. Start the query with a new "
        "checkpoint directory and DeltaSink.resume(reader), or startingOffsets from "
        "DeltaSink.resume_offsets()"
    )

    problem: ClassVar[str] = ""

    def __str__(self) -> str:
        return (
            f"table {self.table}, app id {self.app_id!r}, batch {self.batch_id}: {self.problem}: "
            f"{_listed(self.mismatches)}. {self.advice}"
        )


class GapError(BatchMismatchError):
    """The batch begins past the end of the table: to write it would leave bytes out permanently."""

    problem = "the batch begins past what the table holds"

    @property
    def missing(self) -> dict[str, list[tuple[int, int]]]:
        """Bytes that would be left out, by journal, as ``DeltaSink(accept_gaps=…)`` takes them."""
        return {
            each.journal: [(each.recorded, each.begin)]
            for each in self.mismatches
            if each.journal and isinstance(each.recorded, int) and isinstance(each.begin, int)
        }

    def __str__(self) -> str:
        text = super().__str__()
        if not (missing := self.missing):
            return text
        shown = dict(list(missing.items())[:SHOWN_MISMATCHES])
        return f"{text}. To leave these bytes out for ever, and have the ledger say so: accept_gaps={shown}"


class OverlapError(BatchMismatchError):
    """The batch holds bytes the table has already, or cannot have in order: writing it would double rows."""

    problem = "the batch overlaps what the table holds"


@dataclass(eq=False)
class BatchError(SinkError):
    """Base class of the errors about one batch, of which nothing was written to the table."""

    table: str
    app_id: str
    batch_id: int
    problem: str


class TrimError(BatchError):
    """A batch is partly in the table, and its rows there cannot be identified; nothing was written."""

    def __str__(self) -> str:
        return (
            f"table {self.table}, app id {self.app_id!r}, batch {self.batch_id}: part of it is in the table, "
            f"and it cannot be trimmed: {self.problem}. Or start the query with a new checkpoint directory "
            "and DeltaSink.resume(reader): then no batch overlaps the table"
        )


class UpsertError(BatchError):
    """A batch's rows cannot be merged by their key; nothing was written."""

    def __str__(self) -> str:
        return (
            f"table {self.table}, app id {self.app_id!r}, batch {self.batch_id}: its rows cannot be merged "
            f"by key: {self.problem}"
        )


class BadRowError(BatchError):
    """A row of a batch cannot be written; nothing of the batch was written to the table."""

    def __str__(self) -> str:
        return f"table {self.table}, app id {self.app_id!r}, batch {self.batch_id}: {self.problem}"


class NoSpaceError(BatchError):
    """A batch found no space on a disk: that of the table, of the query checkpoint, or Spark's scratch."""

    def __str__(self) -> str:
        return (
            f"table {self.table}, app id {self.app_id!r}, batch {self.batch_id}: no space is left: "
            f"{self.problem}. Free space there, and start the query again with the same checkpoint: the "
            "batch is written then, or skipped if the table has it"
        )


@dataclass(eq=False)
class DeadLetterError(SinkError):
    """Rows cannot be split into rows that fit a table and dead letters; nothing was written."""

    table: str
    app_id: str
    problem: str

    def __str__(self) -> str:
        return f"table {self.table}, app id {self.app_id!r}: no dead letters: {self.problem}"


@dataclass(eq=False)
class FencedError(SinkError):
    """Another writer with the same app id has moved the table on; this one must stop."""

    table: str
    app_id: str
    batch_id: int
    """Batch of the writer that stops. It is in the table only if the winner's entry follows it."""
    winner_query_id: str
    winner_batch_id: int
    winner_time: str
    winner_table_version: int

    def __str__(self) -> str:
        return (
            f"table {self.table}, app id {self.app_id!r}, batch {self.batch_id}: fenced by query "
            f"{self.winner_query_id}, which wrote its batch {self.winner_batch_id} as table version "
            f"{self.winner_table_version} at {self.winner_time}. Stop one of the two queries; each needs an "
            "app id of its own, or a table of its own"
        )


@dataclass(eq=False)
class LedgerLostError(SinkError):
    """Delta has transactions of the app id, but the table's history no longer has their offsets."""

    table: str
    app_id: str

    def __str__(self) -> str:
        return (
            f"table {self.table}, app id {self.app_id!r}: rows were written before, but the table's "
            "history holds no entry that says up to which offsets: the history was cleaned up, the table is "
            "a copy, or something else writes with the transaction id "
            f"'gazette_spark/{self.app_id}'. Nothing was written. Find where the rows of each journal end "
            "(gazette-spark offsets show TABLE --from-data) and have the ledger begin there: "
            "DeltaSink.adopt(JournalOffsets.from_json(…)). Then start with a new checkpoint and "
            "DeltaSink.resume(reader), and keep delta.logRetentionDuration longer than the longest pause"
        )


@dataclass(eq=False)
class LedgerFormatError(SinkError):
    """A ledger entry in the table's history cannot be read."""

    app_id: str
    problem: str

    def __str__(self) -> str:
        return f"app id {self.app_id!r}: a ledger entry in the table's history cannot be read: {self.problem}"


@dataclass(eq=False)
class RestoredError(SinkError):
    """The table was restored in a way the sink cannot follow."""

    table: str
    app_id: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"table {self.table}, app id {self.app_id!r}: {self.problem}. {self.advice}"


@dataclass(eq=False)
class QueryCheckpointError(SinkError):
    """The query checkpoint does not tell the batch's offsets."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"query checkpoint {self.path}: {self.problem}"


@dataclass(eq=False)
class TableRefusedError(SinkError):
    """The table, or its place, is one on which exactly-once cannot be kept."""

    table: str
    problem: str

    def __str__(self) -> str:
        return f"table {self.table}: {self.problem}"


@dataclass(frozen=True, slots=True)
class ColumnProblem:
    """Reason why one column, or a field of one, cannot be written to a table."""

    column: str
    """After the names of the structs it is in; ``element``, ``key``, ``value``: of arrays and maps."""
    problem: str
    advice: str
    table_type: str | None = None
    """None where the table does not have it."""
    batch_type: str | None = None
    """None where the batch does not have it."""

    def __str__(self) -> str:
        return f"column {self.column!r} {self.problem}; {self.advice}"


@dataclass(eq=False)
class SchemaMismatchError(SinkError):
    """The columns of a batch are not the table's; nothing was written."""

    table: str
    app_id: str
    batch_id: int | None
    """None before the first batch."""
    problems: tuple[ColumnProblem, ...]

    def __str__(self) -> str:
        more = len(self.problems) - SHOWN_MISMATCHES
        shown = ". ".join(str(each) for each in self.problems[:SHOWN_MISMATCHES])
        rest = f". And {more} columns more" if more > 0 else ""
        at = "at its start" if self.batch_id is None else f"batch {self.batch_id}"
        return (
            f"table {self.table}, app id {self.app_id!r}, {at}: its columns do not fit the "
            f"table, nothing was written: {shown}{rest}"
        )
