"""One version of a Delta table without a JVM: its history, and its rows by offset, through ``deltalake``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark.audit.rows import Rows, sorted_rows
from gazette_spark.audit.tiling import Claim
from gazette_spark.delta_history import HistoryRow, history_row
from gazette_spark.errors import InputError

ROW_METRICS = ("numOutputRows", "num_added_rows")
"""What Spark and ``deltalake`` call the rows an append wrote."""

BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)
"""Types a record's bytes may have; a text that Spark cast them to keeps them."""


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """Columns of a table that say where in the journals its rows come from."""

    journal: str
    offset: str
    value: str | None
    """The record's bytes, if the table holds them unchanged."""


def place_columns(schema: pa.Schema) -> PlaceColumns | None:
    """Return the columns of the source's metadata, or else of raw records; None if a table has neither."""
    names = set(schema.names)
    if {"_journal", "_offset"} <= names:
        return PlaceColumns("_journal", "_offset", None)
    if {"journal", "offset", "value"} <= names and pa.types.is_integer(schema.field("offset").type):
        kind = schema.field("value").type
        return PlaceColumns("journal", "offset", "value") if any(test(kind) for test in BYTES) else None
    return None


def appended_rows(info: Mapping[str, Any]) -> int | None:
    """Return how many rows a commit says it appended, None if it does not say."""
    if info.get("operation") != "WRITE":
        return None
    metrics = info.get("operationMetrics") or {}
    found = next((metrics[name] for name in ROW_METRICS if name in metrics), None)
    return int(found) if found is not None and str(found).isdecimal() else None


class TableSnapshot:
    """The newest version of a table when this was made; what is written later is not seen. For one thread.

    Args:
        location: The table's directory, or a URL ``deltalake`` takes.

    Raises (all of its methods do):
        InputError: ``deltalake`` is not installed, or cannot read the table.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        with self._named_errors():
            from deltalake import DeltaTable

            self._table = DeltaTable(location)
            self.version = int(self._table.version())
            self._infos: list[dict[str, Any]] = [
                info for info in self._table.history() if info["version"] <= self.version
            ]
        self._dataset: Any = None
        self._columns: PlaceColumns | None = None

    def __repr__(self) -> str:
        return f"TableSnapshot({self._location!r}, version {self.version})"

    @property
    def history(self) -> list[HistoryRow]:
        """Its commits as far as its log goes, newest first."""
        return [history_row(info) for info in self._infos]

    @property
    def appended(self) -> dict[int, int]:
        """Rows that commits say they appended, by version."""
        found = ((info["version"], appended_rows(info)) for info in self._infos)
        return {version: rows for version, rows in found if rows is not None}

    def columns(self) -> PlaceColumns | None:
        """Find the columns that say where rows come from, and get ready to read them."""
        with self._named_errors():
            self._dataset = self._table.to_pyarrow_dataset()
        self._columns = place_columns(self._dataset.schema)
        return self._columns

    def rows(self, journal: str, begin: int, end: int) -> Rows:
        """Return a journal's rows that begin in ``[begin, end)``, in order.

        Files are left out whose statistics say that they hold none of them.
        """
        names = self._names()
        wanted = {"offset": pc.field(names.offset).cast(pa.int64())}
        if names.value:
            wanted["value"] = pc.field(names.value).cast(pa.binary())
        with self._named_errors():
            return sorted_rows(
                self._dataset.to_table(columns=wanted, filter=_within(names, journal, begin, end))
            )

    def count(self) -> int:
        """Return the number of rows; files say it without being read."""
        with self._named_errors():
            return int(self._dataset.count_rows())

    def stray_row(self, claims: Sequence[Claim], *, foreign: bool) -> tuple[str | None, int | None] | None:
        """Return journal and offset of a row that lies in no claim, None if there is none.

        Args:
            claims: What the entries say the table holds.
            foreign: The table has rows of other sources, which are of no journal.
        """
        names = self._names()
        journal, offset = pc.field(names.journal), pc.field(names.offset)
        claimed = _any([_within(names, claim.journal, claim.start, claim.end) for claim in claims])
        nowhere = offset.is_null() & journal.is_valid() if foreign else offset.is_null() | journal.is_null()
        stray = nowhere | (journal.is_valid() & offset.is_valid() & ~claimed)
        with self._named_errors():
            found = self._dataset.head(1, columns={"journal": journal, "offset": offset}, filter=stray)
        return next(((row["journal"], row["offset"]) for row in found.to_pylist()), None)

    def _names(self) -> PlaceColumns:
        assert self._columns is not None, "columns() comes first"
        return self._columns

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            from deltalake.exceptions import DeltaError
        except ImportError:
            problem = "to read a table without Spark, install gazette-spark[lag]"
            raise InputError(problem) from None
        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise InputError(f"table {self._location} cannot be read: {error}") from error


def _within(names: PlaceColumns, journal: str, begin: int, end: int) -> pc.Expression:
    offset = pc.field(names.offset)
    return (pc.field(names.journal) == journal) & (offset >= begin) & (offset < end)


def _any(conditions: Sequence[pc.Expression]) -> pc.Expression:
    """Join conditions with OR, as a tree that is not deep."""
    if len(conditions) <= 1:
        return conditions[0] if conditions else pc.scalar(value=False)
    middle = len(conditions) // 2
    return _any(conditions[:middle]) | _any(conditions[middle:])
