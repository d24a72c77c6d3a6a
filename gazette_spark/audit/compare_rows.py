"""Compare rows with the journal's records, column by column, a window of a journal at a time.

Both sides come in order of their offsets. No Python object is made per row, and the bytes themselves are
compared, not digests: both sides of a window are in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark.framing.base import Block, Framing, Positions

WINDOW_BYTES = 32 << 20
"""Least bytes of a journal in a window but the last: each window is a search through the table's files."""

WINDOW_ROWS = 1 << 20
"""Records after which a window is full, however short they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Records, or rows, of one journal in order."""

    offsets: Positions
    """Start of each record."""
    values: pa.BinaryArray | None = None
    """Bytes of the records, if they are to be compared; a row's may be null."""

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """All records that begin in ``[begin, end)``."""

    begin: int
    end: int
    records: Rows

    def records_of(self, begin: int, end: int) -> Rows:
        """Return the records that begin in a part of the window."""
        low, high = np.searchsorted(self.records.offsets, [begin, end])
        values = self.records.values
        return Rows(self.records.offsets[low:high], None if values is None else values[low:high])


def sorted_rows(table: pa.Table) -> Rows:
    """Return rows by offset, given the columns ``offset`` and maybe ``value`` of them, in any order."""
    offsets = table["offset"].combine_chunks().to_numpy(zero_copy_only=False)
    order = np.argsort(offsets, kind="stable")
    if "value" not in table.column_names:
        return Rows(offsets[order])
    return Rows(offsets[order], _one_array(table["value"].chunks).take(pa.array(order)))


def joined_rows(parts: Sequence[Rows], *, values: bool) -> Rows:
    """Return rows of several tables as those of one, by offset."""
    columns: dict[str, pa.Array] = {
        "offset": pa.concat_arrays([pa.array(each.offsets, pa.int64()) for each in parts])
    }
    if values:
        columns["value"] = _one_array([each.values for each in parts])
    return sorted_rows(pa.table(columns))


def windows(
    blocks: Iterable[Block],
    begin: int,
    end: int,
    framing: Framing,
    *,
    values: bool,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Window]:
    """Gather the blocks of a range into windows that cover it, with the bytes between records."""
    held: list[Block] = []
    for block in blocks:
        held.append(block)
        until = block.offset + len(block.data)
        if until - begin >= window_bytes or sum(map(len, held)) >= WINDOW_ROWS:
            yield Window(begin, until, _records(held, framing, values=values))
            begin, held = until, []
    if begin < end:
        yield Window(begin, end, _records(held, framing, values=values))


def first_difference(records: Rows, rows: Rows) -> tuple[int, str] | None:
    """Return the first difference of rows from their records, and its text; None if they do not."""
    shared = min(len(records), len(rows))
    apart = np.flatnonzero(records.offsets[:shared] != rows.offsets[:shared])
    same = int(apart[0]) if len(apart) else shared
    if (index := _unequal(records, rows, same)) is not None:
        return int(records.offsets[index]), "the row's bytes are not the record's"
    if same == len(records) == len(rows):
        return None
    if same == len(rows) or (same < len(records) and records.offsets[same] < rows.offsets[same]):
        return int(records.offsets[same]), "the record has no row in the table"
    offset = int(rows.offsets[same])
    if same and rows.offsets[same - 1] == offset:
        return offset, "the record is in the table more than once"
    return offset, "the table has a row here, where no record begins"


def _unequal(records: Rows, rows: Rows, count: int) -> int | None:
    if records.values is None or rows.values is None:
        return None
    differ = pc.not_equal(records.values.slice(0, count), rows.values.slice(0, count))
    found = np.flatnonzero(pc.fill_null(differ, fill_value=True).to_numpy(zero_copy_only=False))
    return int(found[0]) if len(found) else None


def _records(blocks: list[Block], framing: Framing, *, values: bool) -> Rows:
    offsets = np.concatenate([block.offsets for block in blocks]) if blocks else np.empty(0, np.int64)
    if not values:
        return Rows(offsets)
    return Rows(offsets, _one_array([framing.values(block) for block in blocks]))


def _one_array(parts: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays([part.cast(pa.binary()) for part in parts] or [pa.array([], pa.binary())])
