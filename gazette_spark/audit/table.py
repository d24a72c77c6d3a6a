"""One version of a Delta table without a JVM: its history, and its rows by offset, through ``deltalake``.

Rows are read by SQL, which ``deltalake`` supports for tables with deletion vectors and mapped columns, too.
Files are skipped if their statistics exclude all requested rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gazette_spark.audit.compare_rows import Rows, sorted_rows
from gazette_spark.audit.tiling import CoveredRange
from gazette_spark.ledger.delta_reader import named_errors, open_table
from gazette_spark.ledger.history import HistoryRow, history_row

ROW_METRICS = ("numOutputRows", "num_added_rows")
"""Names of the metric for an append's rows, by Spark and ``deltalake``."""

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
    """Columns of a table with the journal and the offset of its rows."""

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
    """The newest version of a table when this was made; later commits are not seen. For one thread.

    Args:
        location: The table's directory, or a URL ``deltalake`` takes.

    Raises (all of its methods do):
        InputError: ``deltalake`` is not installed, or cannot read the table.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._table = open_table(location)
        with named_errors(location):
            self.version = int(self._table.version())
            self._infos: list[dict[str, Any]] = [
                info for info in self._table.history() if info["version"] <= self.version
            ]
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

    def schema(self) -> pa.Schema:
        """Return the types of its columns."""
        with named_errors(self._location):
            return pa.schema(self._table.schema().to_arrow())

    def columns(self) -> PlaceColumns | None:
        """Find the columns of the rows' origin, and prepare to read them."""
        self._columns = place_columns(self.schema())
        return self._columns

    def rows(self, journal: str, begin: int, end: int) -> Rows:
        """Return a journal's rows that begin in ``[begin, end)``, in order."""
        return self.rows_at(self._names(), journal, begin, end)

    def rows_at(self, names: PlaceColumns, journal: str, begin: int, end: int, *, only: str = "true") -> Rows:
        """Return a journal's rows by the columns of these names, if an SQL condition is true for them."""
        columns = [names.offset, names.value] if names.value else [names.offset]
        with named_errors(self._location):
            found = self._scan(columns, f"{_within(names, journal, begin, end)} AND {only}").read_all()
        offsets = found[names.offset].cast(pa.int64())
        if not names.value:
            return sorted_rows(pa.table({"offset": offsets}))
        return sorted_rows(pa.table({"offset": offsets, "value": found[names.value].cast(pa.binary())}))

    def count(self) -> int:
        """Return the number of rows; the log says it of most files."""
        with named_errors(self._location):
            return int(self._table.count())

    def last_rows(self) -> list[tuple[str | None, int, int | None, int | None]]:
        """Return journal, rows, last offset and largest end, null where the table has no ``_end_offset``."""
        names, schema = self._names(), self.schema()
        ends = "_end_offset" in schema.names and pa.types.is_integer(schema.field("_end_offset").type)
        largest = ["COUNT(*)", f"MAX({sql_name(names.offset)})"]
        largest += [f"MAX({sql_name('_end_offset')})" if ends else "CAST(NULL AS BIGINT)"]
        journal = sql_name(names.journal)
        with named_errors(self._location):
            from deltalake import QueryBuilder

            query = f"SELECT {journal}, {', '.join(largest)} FROM rows GROUP BY {journal}"  # noqa: S608 - quoted
            found = QueryBuilder().register("rows", self._table).execute(query)
            columns = pa.RecordBatchReader.from_stream(found).read_all().columns
        return list(zip(*(column.to_pylist() for column in columns), strict=True))

    def stray_row(
        self, claims: Sequence[CoveredRange], *, foreign: bool
    ) -> tuple[str | None, int | None] | None:
        """Return journal and offset of a row outside all claims, None if all rows are inside.

        Args:
            claims: Ranges that the entries say are in the table.
            foreign: The table has rows of other sources, which belong to no journal.
        """
        names = self._names()
        journal, offset = sql_name(names.journal), sql_name(names.offset)
        claimed = _any([_within(names, claim.journal, claim.first, claim.end) for claim in claims])
        nowhere = (
            f"({offset} IS NULL AND {journal} IS NOT NULL)"
            if foreign
            else (f"({offset} IS NULL OR {journal} IS NULL)")
        )
        stray = f"{nowhere} OR ({journal} IS NOT NULL AND {offset} IS NOT NULL AND NOT {claimed})"
        found = self._scan([names.journal, names.offset], stray)
        with named_errors(self._location):
            for batch in found:
                for row in batch.slice(0, 1).to_pylist():
                    return row[names.journal], row[names.offset]
        return None

    def _scan(self, columns: Sequence[str], where: str) -> pa.RecordBatchReader:
        with named_errors(self._location):
            return pa.RecordBatchReader.from_stream(self._table.scan(columns=list(columns), predicate=where))

    def _names(self) -> PlaceColumns:
        assert self._columns is not None, "columns() comes first"
        return self._columns


def sql_name(column: str) -> str:
    """Return a column's name quoted for SQL, with any characters."""
    return '"' + column.replace('"', '""') + '"'


def sql_text(value: str) -> str:
    """Return a text as SQL has it."""
    return "'" + value.replace("'", "''") + "'"


def _within(names: PlaceColumns, journal: str, begin: int, end: int) -> str:
    offset = sql_name(names.offset)
    return f"({sql_name(names.journal)} = {sql_text(journal)} AND {offset} >= {begin} AND {offset} < {end})"


def _any(conditions: Sequence[str]) -> str:
    """Join conditions with OR, as a tree that is not deep."""
    if len(conditions) <= 1:
        return conditions[0] if conditions else "false"
    middle = len(conditions) // 2
    return f"({_any(conditions[:middle])} OR {_any(conditions[middle:])})"
