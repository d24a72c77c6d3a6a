"""Finds the origin of a table's rows, and their end by the rows alone, if the table's ledger was cleaned up.

A row has the start of its record (``_offset``, or ``offset`` of the format ``raw``), and its end if the table
has ``_end_offset``. Otherwise the last record of each journal is read again, and compared with its row if the
table has the record's bytes.

Rows do not show three things: bytes after the last row that gave no row, such as records that a query
filters, which are read again with the same result; journals without any row; and whether an earlier row is
missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gazette_spark._formats.framing import RecordFraming
from gazette_spark._formats.registry import framing_name, framing_named
from gazette_spark._ledger.delta_reader import column_types, named_errors, open_table, run_sql
from gazette_spark._ledger.iceberg_reader import (
    IcebergLog,
    TableName,
    iceberg_errors,
    input_error,
    last_rows,
    rows_where,
)
from gazette_spark._planning.boundary import next_record_end, window_reader
from gazette_spark._planning.cutter import MAX_RECORD_BYTES
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.reads import JournalSource
from gazette_spark._verify.gap_reads import skipping_scan
from gazette_spark.errors import InputError

INTEGERS = frozenset({"bigint", "int", "smallint", "tinyint", "long", "integer", "short", "byte"})
"""Types of an offset, in the names of Spark and of Delta's log."""

BYTES = frozenset({"binary", "string"})
"""Types of a record's bytes. A text to which Spark has cast them keeps them."""


@dataclass(frozen=True, slots=True)
class OriginColumns:
    """The columns of a table with the journal and the offset of its rows."""

    journal: str
    offset: str
    value: str | None
    """Column with the record's bytes, if the table has them unchanged."""
    place: str | None = None
    """Column with the offset of the message that committed the row's message, if the table has it."""


def origin_columns(types: Mapping[str, str]) -> OriginColumns | None:
    """Return the source's metadata columns, or those of raw records; None if a table has neither.

    Args:
        types: The type of each column, by name.
    """
    place = "_ack_offset" if types.get("_ack_offset") in INTEGERS else None
    if "_journal" in types and types.get("_offset") in INTEGERS:
        return OriginColumns("_journal", "_offset", None, place)
    if "journal" in types and types.get("offset") in INTEGERS and types.get("value") in BYTES:
        return OriginColumns("journal", "offset", "value", place)
    return None


class DeltaRows:
    """The rows of a table's newest version through ``deltalake``, without a JVM. For one thread.

    Args:
        location: The table's directory or URL in Spark's spelling, without quoting.

    Raises (all methods):
        InputError: ``deltalake`` is not installed or cannot read the table, or rows have no origin.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._table = open_table(location)
        with named_errors(location):
            self._types = column_types(self._table)
        self._columns = _origin_of(self, self._types)

    def __repr__(self) -> str:
        return f"DeltaRows({self._location!r})"

    def last_rows(self) -> list[tuple[str | None, int, int | None, int | None]]:
        """Return journal, rows, last offset, and largest end, which is null without ``_end_offset``.

        Committed messages end with the last message that committed any of them.
        """
        place = self._columns.place
        journal, offset = sql_name(self._columns.journal), sql_name(place or self._columns.offset)
        ends = place is None and self._types.get("_end_offset") in INTEGERS
        end = f"MAX({sql_name('_end_offset')})" if ends else "CAST(NULL AS BIGINT)"
        columns = f"{journal}, COUNT(*), MAX({offset}), {end}"
        return self._select(f"SELECT {columns} FROM rows GROUP BY {journal}")  # noqa: S608 - quoted

    def value_at(self, journal: str, offset: int) -> bytes | None:
        """Return the bytes of a record's row; None if the table lacks them."""
        if self._columns.value is None or self._columns.place is not None:
            return None  # An acknowledgement is not a row.
        names = [
            sql_name(name) for name in (self._columns.value, self._columns.journal, self._columns.offset)
        ]
        journal_text = "'" + journal.replace("'", "''") + "'"
        where = f"{names[1]} = {journal_text} AND {names[2]} = {offset}"
        query = f"SELECT CAST({names[0]} AS BYTEA) FROM rows WHERE {where}"  # noqa: S608 - quoted
        [(value,), *_] = self._select(query)
        return None if value is None else bytes(value)

    def _select(self, query: str) -> list[tuple[Any, ...]]:
        with named_errors(self._location):
            columns = run_sql(self._table, query).read_all().columns
        return list(zip(*(column.to_pylist() for column in columns), strict=True))


class IcebergRows:
    """The rows of an Iceberg table's newest version through ``pyiceberg``.

    Args:
        name: The table.

    Raises (all methods):
        InputError: the table cannot be read, or rows have no origin.
        MissingPackageError: ``pyiceberg`` is not installed.
    """

    def __init__(self, name: TableName) -> None:
        self._name = str(name)
        self._table = IcebergLog(name).table()
        self._types = {column.name: str(column.field_type) for column in self._table.schema().fields}
        self._columns = _origin_of(self, self._types)

    def __repr__(self) -> str:
        return f"IcebergRows({self._name!r})"

    def last_rows(self) -> list[tuple[str | None, int, int | None, int | None]]:
        """Return journal, rows, last offset and largest end, as of :class:`DeltaRows`."""
        place = self._columns.place
        has_ends = place is None and self._types.get("_end_offset") in INTEGERS
        offset = place or self._columns.offset
        with iceberg_errors(self._name, input_error):
            return last_rows(self._table, self._columns.journal, offset, "_end_offset" if has_ends else None)

    def value_at(self, journal: str, offset: int) -> bytes | None:
        """Return the bytes of a record's row; None if the table lacks them."""
        if self._columns.value is None or self._columns.place is not None:
            return None  # An acknowledgement is not a row.
        row = {self._columns.journal: journal, self._columns.offset: offset}
        with iceberg_errors(self._name, input_error):
            values = rows_where(self._table, row, self._columns.value)
        value = values.column(0).cast("large_binary")[0].as_py()
        return None if value is None else bytes(value)


def _origin_of(rows: object, types: Mapping[str, str]) -> OriginColumns:
    """Return the columns with the origin of rows; the error names ``rows``."""
    columns = origin_columns(types)
    if columns is None:
        raise InputError(
            f"{rows!r}: its columns do not show the origin of rows; that requires _journal and _offset, "
            "journal, offset and value of the format raw"
        )
    return columns


def sql_name(column: str) -> str:
    """Return a column's name quoted for SQL, with any characters."""
    return '"' + column.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The query's options for reading records."""

    framing: str | None = None
    """The framing; None for the one that the journal's label names."""
    separator: str = ","
    quote: str = '"'
    max_record_bytes: int = MAX_RECORD_BYTES

    def framing_of(self, client: JournalSource, journal: str) -> RecordFraming:
        """Return the framing in which a journal is read."""
        name = framing_name(client.get_journal(journal).spec, self.framing, None)
        return framing_named(name, self.max_record_bytes, self.separator, self.quote)


@dataclass(frozen=True, slots=True)
class DataEnd:
    """The end of a table's rows of one journal."""

    journal: str
    rows: int
    last_offset: int
    """Offset of the last row, at which its record begins."""
    read_through: int | None
    """Offset of the next byte to read; None if the rows do not show it."""


def data_ends(
    table: DeltaRows | IcebergRows, client: JournalSource | None, options: RecordOptions | None = None
) -> list[DataEnd]:
    """Return the end of each journal's rows, by name.

    Args:
        table: The rows of a table.
        client: Client of the journals, to read a last record again if its row does not show its end.
        options: The query's options for reading the journals.

    Raises:
        InputError: a row has no journal or offset, or a journal has a different record from the row.
        GazetteError: a journal cannot be read.
    """
    ends = []
    for journal, rows, offset, reached in table.last_rows():
        if journal is None or offset is None:
            raise InputError(f"{table!r}: {rows} rows have no journal or no offset, so their end is unknown")
        # An end before the last row belongs to another row, because the last one was written without the
        # column.
        end = reached if reached is not None and reached > offset else None
        if end is None and client is not None:
            end = _record_end(client, journal, offset, table.value_at(journal, offset), options)
        ends.append(DataEnd(journal, rows, offset, end))
    return sorted(ends, key=lambda end: end.journal)


def _record_end(
    client: JournalSource, journal: str, offset: int, value: bytes | None, options: RecordOptions | None
) -> int:
    """Return the end of the record at an offset. ``value`` has its bytes if the table has them."""
    options = options or RecordOptions()
    framing = options.framing_of(client, journal)
    head = client.highest_heads([journal])[journal]
    longest = options.max_record_bytes
    window = window_reader(client, journal)
    end: int | None = None
    content: bytes | None = None
    if framing.name == "none":
        # A record has the bytes of one chunk, so only its length gives its end.
        if value is not None and offset + len(value) <= head:
            end = offset + len(value)
            content = window(offset, end)
    else:
        # This is the end of the first record, or a later boundary in an anchored framing. The scan of the
        # range up to it then gives the first record exactly.
        until = next_record_end(window, offset, head, longest, journal=journal, framing=framing)
        if until is not None:
            piece = Piece(journal, offset, until, until, starts_on_record=True, framing=framing.name)
            for block in skipping_scan(client, piece, framing, (), longest):
                if len(block) and block.offsets[0] == offset:
                    end, content = block.end_offset_array()[0].as_py(), framing.values(block)[0].as_py()
                    break
    if end is None or value not in (None, content):
        problem = "has no whole record there" if end is None else "has other bytes there"
        raise InputError(
            f"journal {journal!r}: the table's last row begins at offset {offset}, but the journal "
            f"{problem}. It is another journal, or it was read in a different framing"
        )
    return end
