"""The rows of a Delta table by journal and offset, without a JVM: through ``deltalake``.

Rows are read by SQL, which ``deltalake`` supports for tables with deletion vectors and mapped columns, too.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gazette_spark.audit.columns import INTEGERS, origin_columns
from gazette_spark.errors import InputError
from gazette_spark.ledger.delta_reader import named_errors, open_table


class DeltaRows:
    """The newest version of a table when this was made. For one thread.

    Args:
        location: The table's directory or URL, in Spark's spelling: nothing is quoted.

    Raises (all of its methods do):
        InputError: ``deltalake`` is not installed or cannot read the table, or rows have no origin.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._table = open_table(location)
        with named_errors(location):
            fields = self._table.schema().fields
        self._types = {field.name: str(getattr(field.type, "type", "")) for field in fields}
        columns = origin_columns(self._types)
        if columns is None:
            raise InputError(
                f"{self!r}: its columns do not say where rows come from; that takes _journal and _offset, or "
                "journal, offset and value of the format raw"
            )
        self._columns = columns

    def __repr__(self) -> str:
        return f"DeltaRows({self._location!r})"

    def last_rows(self) -> list[tuple[str | None, int, int | None, int | None]]:
        """Return journal, rows, last offset and largest end, null where the table has no ``_end_offset``.

        Committed messages end with the last one that committed some of them.
        """
        place = self._columns.place
        journal, offset = sql_name(self._columns.journal), sql_name(place or self._columns.offset)
        ends = place is None and self._types.get("_end_offset") in INTEGERS
        end = f"MAX({sql_name('_end_offset')})" if ends else "CAST(NULL AS BIGINT)"
        columns = f"{journal}, COUNT(*), MAX({offset}), {end}"
        return self._select(f"SELECT {columns} FROM rows GROUP BY {journal}")  # noqa: S608 - quoted

    def value_at(self, journal: str, offset: int) -> bytes | None:
        """Return the bytes of a record's row, None if the table does not have them."""
        if self._columns.value is None or self._columns.place is not None:
            return None  # An acknowledgement is no row.
        names = [
            sql_name(each) for each in (self._columns.value, self._columns.journal, self._columns.offset)
        ]
        where = f"{names[1]} = {sql_text(journal)} AND {names[2]} = {offset}"
        query = f"SELECT CAST({names[0]} AS BYTEA) FROM rows WHERE {where}"  # noqa: S608 - quoted
        [(value,), *_] = self._select(query)
        return None if value is None else bytes(value)

    def _select(self, query: str) -> list[tuple[Any, ...]]:
        with named_errors(self._location):
            from deltalake import QueryBuilder

            found = QueryBuilder().register("rows", self._table).execute(query)
            columns = pa.RecordBatchReader.from_stream(found).read_all().columns
        return list(zip(*(column.to_pylist() for column in columns), strict=True))


def sql_name(column: str) -> str:
    """Return a column's name quoted for SQL, with any characters."""
    return '"' + column.replace('"', '""') + '"'


def sql_text(value: str) -> str:
    """Return a text as SQL has it."""
    return "'" + value.replace("'", "''") + "'"
