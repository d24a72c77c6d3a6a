"""What a record framing must answer, and the block of whole records that scans hand on.

A framing says where records begin and end in journal bytes. Everything that reads journals (the
planner's tail search, the scan of a piece, the column builders) asks a :class:`Framing` and knows
nothing about newlines itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MAX_ROWS = 64 << 10
"""Most rows of one record batch."""

Positions = npt.NDArray[np.int64]
"""Byte positions, one per record."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole records of one journal, next to each other, as the journal holds them.

    Record *i* is ``data[starts[i]:ends[i]]``: what frames it (a newline, a header) is left out.
    """

    journal: str
    offset: int
    """Offset of ``data[0]`` in the journal."""
    data: bytes
    starts: Positions
    ends: Positions

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def offsets(self) -> Positions:
        """Offset of each record's first byte in the journal."""
        return self.starts + self.offset

    def offset_array(self) -> pa.Int64Array:
        """Return the offset of each record's first byte for Arrow, without a copy."""
        # pa.array(), pa.scalar() and pa.repeat() import pandas where there is one: half a second of
        # every new worker. Buffers do not.
        return pa.Array.from_buffers(pa.int64(), len(self), [None, pa.py_buffer(self.offsets)], null_count=0)

    def journal_array(self) -> pa.StringArray:
        """Return the journal's name, once for each record."""
        name, count = self.journal.encode(), len(self)
        bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(name))
        return pa.StringArray.from_buffers(
            count, pa.py_buffer(bounds), pa.py_buffer(name * count), None, null_count=0
        )

    def record(self, index: int) -> bytes:
        """Return one record's bytes."""
        return self.data[self.starts[index] : self.ends[index]]

    def rows(self, first: int, stop: int) -> Block:
        """Return the records ``[first, stop)``; ``first < stop`` or both are at the end."""
        if first >= stop:
            return Block(self.journal, self.offset, b"", self.starts[:0], self.ends[:0])
        low = int(self.starts[first])
        high = int(self.starts[stop]) if stop < len(self) else len(self.data)
        starts, ends = self.starts[first:stop] - low, self.ends[first:stop] - low
        return Block(self.journal, self.offset + low, self.data[low:high], starts, ends)


def bounded(blocks: Iterable[Block], max_rows: int = MAX_ROWS) -> Iterator[Block]:
    """Cut blocks of many short records: each record costs its row's other columns, too."""
    for block in blocks:
        if len(block) <= max_rows:
            yield block
            continue
        for first in range(0, len(block), max_rows):
            yield block.rows(first, min(first + max_rows, len(block)))


class Framing(Protocol):
    """Where records begin and end."""

    @property
    def name(self) -> str:
        """The framing's name, as the option ``framing`` spells it."""

    def first_boundary(self, window: bytes) -> int | None:
        """Return the index just past the first record end in a window that may start anywhere.

        None: the window holds no record end.
        """

    def last_boundary(self, window: bytes) -> int | None:
        """Return the index just past the last record end in a window that may start anywhere."""

    def cut(self, data: bytes) -> tuple[Positions, Positions]:
        """Return starts and ends of the records in data that holds whole records only."""
