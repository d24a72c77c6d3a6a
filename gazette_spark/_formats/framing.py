"""Defines the interface of record framings, and the block of whole records that scans return.

A framing finds where records begin and end in a journal's bytes, and writes values as such records. Only
framings handle newlines. All other code that reads journals (the planner's search for the last whole record,
the scan of a piece, the column builders) calls a :class:`RecordFraming`.

In some framings a record end can be recognised locally: a newline always ends a record. In ``anchored``
framings, bytes can only be understood from the start of a record on: a newline may be inside quotes, and four
bytes that look like a frame's header may be inside another frame. Ranges of anchored framings are cut only at
known record boundaries, and a record end counts only if it is proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import (
    Mask,
    Positions,
    between,
    bool_array,
    int64_array,
    packed_binary,
    slices,
)
from gazette_spark._formats.timestamps import MICROS_PER_S

MAX_ROWS = 64 << 10
"""Maximum number of rows of a record batch."""

_NEWLINE = 0x0A


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive whole records of one journal, as the journal stores them.

    Record *i* is ``data[starts[i]:ends[i]]``, without its framing (a newline, a header). Bytes between two
    frames belong to no record.
    """

    journal: str
    offset: int
    """Offset of ``data[0]`` in the journal."""
    data: bytes
    starts: Positions
    ends: Positions
    header_bytes: int = 0
    """Length of the framing before each record."""
    trailer_bytes: int = 1
    """Length of the framing after each record."""
    stored: Sequence[tuple[int, int]] = ()
    """Store times: ascending pairs of an offset and the time from that offset on.

    A time is in Unix seconds, and 0 for bytes that are not stored. The first offset is at most ``offset``.
    Without pairs no byte is stored.
    """
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    """Metadata columns that the scan has already read, by name, one value per record."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def offsets(self) -> Positions:
        """Offset of the first byte of each record's frame in the journal."""
        return self.starts + (self.offset - self.header_bytes)

    def end_offset(self, index: int) -> int:
        """Return the offset just past one record's frame."""
        return self.offset + int(self.ends[index]) + self.trailer_bytes

    def record(self, index: int) -> bytes:
        """Return one record's bytes."""
        return self.data[self.starts[index] : self.ends[index]]

    def offset_array(self) -> pa.Int64Array:
        """Return the offset of the first byte of each record's frame as an Arrow array, without a copy."""
        return int64_array(self.offsets)

    def end_offset_array(self) -> pa.Int64Array:
        """Return the offset just past each record's frame as an Arrow array."""
        return int64_array(self.ends + (self.offset + self.trailer_bytes))

    def mod_time_array(self) -> pa.TimestampArray:
        """Return the store time of the first byte of each record's frame as an Arrow array, or null."""
        seconds = np.zeros(len(self), np.int64)
        if self.stored:
            since, times = np.array(self.stored, np.int64).T
            # A record has the time of its first byte, even if it ends in the next fragment.
            seconds = times[np.searchsorted(since, self.offsets, side="right") - 1]
        stored = seconds != 0
        return pa.Array.from_buffers(
            pa.timestamp("us", "UTC"),
            len(self),
            [bool_array(stored).buffers()[1], pa.py_buffer(seconds * MICROS_PER_S)],
            null_count=len(self) - int(np.count_nonzero(stored)),
        )

    def journal_array(self) -> pa.StringArray:
        """Return the journal's name, once for each record."""
        name, count = self.journal.encode(), len(self)
        bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(name))
        return pa.StringArray.from_buffers(
            count, pa.py_buffer(bounds), pa.py_buffer(name * count), None, null_count=0
        )

    def rows(self, first: int, stop: int) -> Block:
        """Return the records ``[first, stop)``; ``first < stop`` or both are at the end."""
        columns = {name: column[first : max(first, stop)] for name, column in self.columns.items()}
        if first >= stop:
            return replace(self, data=b"", starts=self.starts[:0], ends=self.ends[:0], columns=columns)
        # Take the bytes from the first record's header to the next one's, so that the bytes between frames
        # stay with the record before them.
        low = int(self.starts[first]) - self.header_bytes
        high = int(self.starts[stop]) - self.header_bytes if stop < len(self) else len(self.data)
        starts, ends = self.starts[first:stop] - low, self.ends[first:stop] - low
        data = self.data[low:high]
        return replace(self, offset=self.offset + low, data=data, starts=starts, ends=ends, columns=columns)

    def only(self, keep: Mask) -> Block:
        """Return the records that the mask selects, over the same bytes."""
        columns = self.columns
        if columns:
            flags = bool_array(keep)
            columns = {name: column.filter(flags) for name, column in columns.items()}
        # The bytes stay shared: a copy would cost more than the omitted bytes.
        return replace(self, starts=self.starts[keep], ends=self.ends[keep], columns=columns)


def gathered(block: Block) -> pa.BinaryArray:
    """Return the records of a block as one binary array, without the bytes between them."""
    count = len(block)
    if count and (block.starts[1:] == block.ends[:-1]).all():
        # There is nothing between the records, so the array can share the block's bytes.
        return packed_binary(count, np.append(block.starts, block.ends[-1:]).astype(np.int32), block.data)
    return between(block.data, block.starts, block.ends)


def one_byte_apart(block: Block) -> bool:
    """Return whether a block's bytes are exactly its records with one byte after each."""
    stops = block.ends + 1
    return bool(
        len(block)
        and block.starts[0] == 0
        and stops[-1] == len(block.data)
        and (block.starts[1:] == stops[:-1]).all()
    )


def as_lines(block: Block) -> Block:
    """Return the records with exactly a newline after each.

    Positions in such a block are not offsets of a journal.
    """
    starts, stops = block.starts, block.ends + 1
    octets = np.frombuffer(block.data, np.uint8)
    if not len(block) or stops[-1] > len(octets) or (octets[block.ends] != _NEWLINE).any():
        return lines_of(block, [block.record(index) for index in range(len(block))])
    if one_byte_apart(block):
        return block
    # The block has other bytes between its records, so the records are copied next to each other.
    ends = np.cumsum(stops - starts) - 1
    data = slices(block.data, starts, stops).buffers()[2].to_pybytes()[: ends[-1] + 1]
    return replace(block, data=data, starts=ends - (block.ends - starts), ends=ends, header_bytes=0)


def lines_of(block: Block, records: Sequence[bytes]) -> Block:
    """Return a block with other records, in the form of :func:`as_lines`."""
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    ends = np.cumsum(sizes + 1) - 1
    data = b"".join([record + b"\n" for record in records])
    return replace(block, data=data, starts=ends - sizes, ends=ends, header_bytes=0, trailer_bytes=1)


def bounded(blocks: Iterable[Block], max_rows: int = MAX_ROWS) -> Iterator[Block]:
    """Split blocks of many short records, because each record also costs its row's other columns."""
    for block in blocks:
        for first in range(0, max(len(block), 1), max_rows):
            yield block if len(block) <= max_rows else block.rows(first, min(first + max_rows, len(block)))


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The whole records at the beginning of some bytes that begin with a record."""

    starts: Positions
    ends: Positions
    size: int
    """Number of processed bytes: records, their framing, and the bytes between them."""
    needs: int = 0
    """Minimum length of the unfinished frame that follows; 0 if unknown."""
    skipped: tuple[tuple[int, int], ...] = ()
    """Processed bytes ``(begin, end)`` at which a record should begin but none does."""


@dataclass(frozen=True, slots=True)
class RowRefusal:
    """A value that cannot be written."""

    index: int
    problem: str
    advice: str


class RecordFraming(Protocol):
    """Finds where records begin and end, and writes values as records."""

    @property
    def name(self) -> str:
        """The framing's name, as the option ``framing`` spells it."""

    @property
    def anchored(self) -> bool:
        """Whether bytes can only be understood from the start of a record on."""

    @property
    def resyncs(self) -> bool:
        """Whether bytes after missing ones are skipped up to a record end, as appends may cut records."""

    @property
    def header_bytes(self) -> int:
        """Length of the framing before a record."""

    @property
    def trailer_bytes(self) -> int:
        """Length of the framing after a record."""

    def first_boundary(self, window: bytes, offset: int) -> int | None:
        """Return the index, 1 or more, of the first record start in a window of a journal.

        Args:
            window: Bytes that may begin anywhere.
            offset: Offset of the window in the journal.

        Returns:
            None if no record start can be recognised; always None if ``anchored``.
        """

    def last_boundary(self, window: bytes, max_record_bytes: int) -> int | None:
        """Return the index, 1 or more, just past the last record end in a window that may start anywhere.

        The result is None if the window has no record end, or if that depends on bytes before the window. No
        record is longer than ``max_record_bytes``.
        """

    def may_begin(self, before: bytes, after: bytes) -> bool:
        """Return whether a record may begin between these bytes, as far as they show it."""

    def cut(self, data: bytes, offset: int, *, last: bool = False) -> Cut:
        """Cut data that begins with a record.

        Args:
            data: Bytes of a journal.
            offset: Offset of ``data`` in the journal.
            last: Whether no more bytes of the last record will follow.
        """

    def values(self, block: Block) -> pa.BinaryArray:
        """Return the records of a block as one binary array."""

    def encode(self, values: pa.BinaryArray) -> bytes | RowRefusal:
        """Return values as records, or a refusal of the first value that would not be read back as it is.

        Nothing is escaped or repaired. The encoded bytes are searched for record ends, in one pass at memory
        speed.
        """
