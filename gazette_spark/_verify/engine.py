"""What an audit asks of whoever reads and compares: Spark, or this process for a small table.

Both give the same answers, so the audit itself (``verify``) does not know which one it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gazette_spark._ledger.history import HistoryRow
from gazette_spark._verify.data_ends import OriginColumns
from gazette_spark._verify.journal_source import PlannedRange
from gazette_spark._verify.parts import Bins, Part, Totals

NO_TABLE = "table {} cannot be compared: there is no Delta table"


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared with the records of the journals."""

    version: int
    """The table's version."""
    names: OriginColumns | None
    """Columns that say where a row comes from; None: the table has none, so its rows are no side."""
    letters: Mapping[str, Sequence[str]]
    """Names of the tables that have dead letters, which stand in for rows, by the app id of their writer."""
    recreated: frozenset[str]
    """Journals that were made again. Their rows are left out: those of the old journal may lie past the end
    of the new one."""
    values: bool
    """The rows have the records' bytes, so these are compared, too."""
    reads_values: bool
    """The records' bytes are read: they are compared with rows, or with the digests of entries."""
    has_messages: bool
    """Some journals were read as committed messages, whose places are not their offsets."""
    source_options: Mapping[str, str]
    """Options of the source for this comparison."""


class Comparison(Protocol):
    """Two sides, each a collection of rows."""

    def totals(self, bins: Bins) -> list[Totals]:
        """Return the sums of records, rows and dead letters."""

    def first_in(self, part: Part, what: str) -> tuple[int, str, int | None] | None:
        """Return the first offset of a part at which rows are not the records, or None.

        Returns:
            The offset, what is wrong, and the place of the record.
        """

    def first_stray(self, bins: Bins) -> tuple[str, int | None]:
        """Return journal and offset of the first row that is in no bin; there is one."""

    def digests(self, number: int, parts: Sequence[Part]) -> dict[int, str]:
        """Return the digest that an entry has of a side's rows, by the index of the part that they are of."""


class Engine(Protocol):
    """Reads a table and its journals."""

    table: str
    """The table's name in reports."""

    def history(self) -> Sequence[HistoryRow]:
        """Return the table's commits, newest first."""

    def types(self, version: int) -> Mapping[str, str]:
        """Return the type of each column at a version, by name."""

    def count(self, version: int) -> int:
        """Return the number of rows at a version."""

    def comparison(self, plan: Mapping[str, PlannedRange], sides: Sides) -> Comparison:
        """Return the sides of an audit, to be compared."""
