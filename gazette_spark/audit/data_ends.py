"""The end of a table's rows, by the rows themselves: for tables whose ledger was cleaned up.

A row says where its record begins (``_offset``, or ``offset`` of the format ``raw``), and its end if the
table has ``_end_offset``. Without that the last record of each journal is read again, and compared with its
row where the table has the record's bytes.

What rows cannot tell: bytes after the last record that left no row, such as records a query filters; they
are read again, to the same effect. Journals of which there is no row. Whether a row before it is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark._formats.framing import RecordFraming
from gazette_spark._formats.registry import framing_name, framing_named
from gazette_spark._planning.boundary import next_record_end, window_reader
from gazette_spark._planning.cutter import MAX_RECORD_BYTES
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.reads import JournalSource
from gazette_spark.audit.delta_rows import DeltaRows
from gazette_spark.audit.gap_reads import skipping_scan
from gazette_spark.errors import InputError


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The query's options for reading records, where they are not the default."""

    framing: str | None = None
    """None: the one the journal's label says."""
    separator: str = ","
    quote: str = '"'
    max_record_bytes: int = MAX_RECORD_BYTES

    def framing_of(self, client: JournalSource, journal: str) -> RecordFraming:
        """Return the framing a journal is read in."""
        name = framing_name(client.get_journal(journal).spec, self.framing, None)
        return framing_named(name, self.max_record_bytes, self.separator, self.quote)


@dataclass(frozen=True, slots=True)
class DataEnd:
    """End of a table's rows of one journal."""

    journal: str
    rows: int
    last_offset: int
    """Offset of the last row: the start of its record."""
    read_through: int | None
    """Next byte to read; None where rows do not say it."""


def data_ends(
    table: DeltaRows, client: JournalSource | None, options: RecordOptions | None = None
) -> list[DataEnd]:
    """Return the end of each journal's rows, by name.

    Args:
        table: The rows of a table.
        client: Where the journals are, to read last records again whose rows do not say where they end.
        options: How the query read the journals.

    Raises:
        InputError: a row has no journal or offset; or a journal has another record than the row.
        GazetteError: a journal cannot be read.
    """
    found = []
    for journal, rows, offset, reached in table.last_rows():
        if journal is None or offset is None:
            raise InputError(
                f"{table!r}: {rows} rows have no journal, or no offset: where they end is unknown"
            )
        # An end before the last row is another row's: the last one was written without the column.
        end = reached if reached is not None and reached > offset else None
        if end is None and client is not None:
            end = _Journal(client, journal, options or RecordOptions()).record_end(
                offset, table.value_at(journal, offset)
            )
        found.append(DataEnd(journal, rows, offset, end))
    return sorted(found, key=lambda each: each.journal)


@dataclass(frozen=True, slots=True)
class _Journal:
    client: JournalSource
    name: str
    options: RecordOptions

    def record_end(self, offset: int, value: bytes | None) -> int:
        """Return where the record at an offset ends, whose bytes are these if they are known."""
        framing = self.options.framing_of(self.client, self.name)
        head = self.client.highest_heads([self.name])[self.name]
        if framing.name == "none":
            end, found = self._whole(offset, head, value)
        else:
            end, found = self._framed(offset, head, framing)
        if end is None or value not in (None, found):
            problem = "has no whole record there" if end is None else "has other bytes there"
            raise InputError(
                f"journal {self.name!r}: the table's last row begins at offset {offset}, and the journal "
                f"{problem}. It is another journal, or it was read in another framing"
            )
        return end

    def _framed(self, offset: int, head: int, framing: RecordFraming) -> tuple[int | None, bytes | None]:
        longest = self.options.max_record_bytes
        window = window_reader(self.client, self.name)
        until = next_record_end(window, offset, head, longest, journal=self.name, framing=framing)
        if until is None:
            return None, None
        piece = Piece(self.name, offset, until, until, starts_on_record=True, framing=framing.name)
        for block in skipping_scan(self.client, piece, framing, (), longest):
            if len(block) and block.offsets[0] == offset:
                return block.end_offset_array()[0].as_py(), framing.values(block)[0].as_py()
        return None, None

    def _whole(self, offset: int, head: int, value: bytes | None) -> tuple[int | None, bytes | None]:
        """Without a framing a record is the bytes a task got at once: its length gives its end."""
        if value is None or offset + len(value) > head:
            return None, None
        end = offset + len(value)
        return end, window_reader(self.client, self.name)(offset, end)
