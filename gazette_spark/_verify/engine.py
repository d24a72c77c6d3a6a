"""Defines the interface through which an audit reads and compares: Spark, or this process for a small table.

Both give the same results, so the audit itself (``verify``) does not depend on the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gazette_spark._ledger.history import HistoryRow
from gazette_spark._verify.data_ends import OriginColumns
from gazette_spark._verify.journal_source import PlannedRange
from gazette_spark._verify.parts import Bins, Part, Totals

NO_TABLE = "table {} cannot be compared: it is not a Delta table"


@dataclass(frozen=True, slots=True)
class Sides:
    """The description of what is compared with the records of the journals."""

    version: int
    """The table's version."""
    names: OriginColumns | None
    """Columns with the origin of a row; None if the table has none, so that its rows are not a side."""
    letters: Mapping[str, Sequence[str]]
    """Names of the dead-letter tables, whose rows replace the table's, by their writer's app id."""
    recreated: frozenset[str]
    """Recreated journals. Their rows are excluded, because those of the old journal may be past the new one's
    end."""
    values: bool
    """Whether the rows have the records' bytes, so that these are also compared."""
    reads_values: bool
    """Whether the records' bytes are read, to be compared with rows or with the digests of entries."""
    has_messages: bool
    """Whether journals were read as committed messages, whose places differ from their offsets."""
    source_options: Mapping[str, str]
    """Options of the source for this comparison."""


class Comparison(Protocol):
    """Two sides, each a collection of rows."""

    def totals(self, bins: Bins) -> list[Totals]:
        """Return the sums of records, rows and dead letters."""

    def first_in(self, part: Part, what: str) -> tuple[int, str, int | None] | None:
        """Return the first offset of a part at which rows differ from records, or None.

        Returns:
            The offset, the problem, and the place of the record.
        """

    def first_stray(self, bins: Bins) -> tuple[str, int | None]:
        """Return the journal and offset of the first row that is in no bin, which must exist."""

    def digests(self, number: int, parts: Sequence[Part]) -> dict[int, str]:
        """Return the digest of a side's rows, computed as in a ledger entry, by the index of their part."""


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
        """Return the sides of an audit for comparison."""
