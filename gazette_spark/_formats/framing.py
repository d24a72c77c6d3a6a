"""The interface of a record framing, and the block of whole records that scans pass on.

A framing finds the begins and ends of records in journal bytes. Everything that reads journals (the
planner's tail search, the scan of a piece, the column builders) asks a :class:`Framing` and knows
nothing about newlines itself.

In some framings every record end is visible by itself (a newline always ends a record). In others, which are
``anchored``, bytes can only be understood from the start of a record on. A newline may be inside quotes; four
bytes that look like a frame's header may be inside another frame. Ranges of anchored framings are cut only
where records are known to begin, and a record end counts only when it is proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

MICROSECONDS = 1_000_000
"""Microseconds in a second: Spark's timestamps count them."""

if TYPE_CHECKING:
    import numpy.typing as npt

_NEWLINE = 0x0A

MAX_ROWS = 64 << 10
"""Most rows of one record batch."""

Positions: TypeAlias = "npt.NDArray[np.int64]"
"""Byte positions, one per record."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole records of one journal, next to each other, as the journal holds them.

    Record *i* is ``data[starts[i]:ends[i]]``: what frames it (a newline, a header) is left out. Bytes
    between two frames belong to no record.
    """

    journal: str
    offset: int
    """Offset of ``data[0]`` in the journal."""
    data: bytes
    starts: Positions
    ends: Positions
    header_bytes: int = 0
    """Length of what frames each record before its first byte."""
    trailer_bytes: int = 1
    """Length of what frames each record after its last byte."""
    stored: Sequence[tuple[int, int]] = ()
    """Store times of its bytes: offsets, ascending, each with the time of the bytes from there on, in Unix
    seconds, 0 for those that are not stored. The first is at most ``offset``; none: nothing is."""
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    """Metadata columns that are known of the records already, by name, one value per record."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def offsets(self) -> Positions:
        """Offset of the first byte of each record's frame in the journal."""
        return self.starts + (self.offset - self.header_bytes)

    def offset_array(self) -> pa.Int64Array:
        """Return the offset of the first byte of each record's frame for Arrow, without a copy."""
        return int64_array(self.offsets)

    def end_offset(self, index: int) -> int:
        """Return the offset just past one record's frame."""
        return self.offset + int(self.ends[index]) + self.trailer_bytes

    def end_offset_array(self) -> pa.Int64Array:
        """Return the offset just past each record's frame for Arrow."""
        return int64_array(self.ends + (self.offset + self.trailer_bytes))

    def mod_time_array(self) -> pa.TimestampArray:
        """Return when the first byte of each record's frame was stored for Arrow, null if it is not."""
        seconds = np.zeros(len(self), np.int64)
        if self.stored:
            since, times = np.array(self.stored, np.int64).T
            seconds = times[np.searchsorted(since, self.offsets, side="right") - 1]
        known = seconds != 0
        valid = pa.py_buffer(np.packbits(known, bitorder="little"))
        return pa.Array.from_buffers(
            pa.timestamp("us", "UTC"),
            len(self),
            [valid, pa.py_buffer(seconds * MICROSECONDS)],
            null_count=len(self) - int(np.count_nonzero(known)),
        )

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
        columns = {name: column[first : max(first, stop)] for name, column in self.columns.items()}
        if first >= stop:
            return replace(self, data=b"", starts=self.starts[:0], ends=self.ends[:0], columns=columns)
        low = int(self.starts[first]) - self.header_bytes
        high = int(self.starts[stop]) - self.header_bytes if stop < len(self) else len(self.data)
        starts, ends = self.starts[first:stop] - low, self.ends[first:stop] - low
        data = self.data[low:high]
        return replace(self, offset=self.offset + low, data=data, starts=starts, ends=ends, columns=columns)

    def only(self, keep: npt.NDArray[np.bool_]) -> Block:
        """Return the records for which ``keep`` holds, over the same bytes."""
        columns = self.columns
        if columns:
            kept = bool_array(keep)
            columns = {name: column.filter(kept) for name, column in columns.items()}
        return replace(self, starts=self.starts[keep], ends=self.ends[keep], columns=columns)


def int64_array(values: Positions) -> pa.Int64Array:
    """Return numbers for Arrow, without a copy."""
    # pa.array(), pa.scalar() and pa.repeat() import pandas where there is one: half a second of
    # every new worker. Buffers do not.
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)], null_count=0)


def bool_array(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Return flags for Arrow."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.BooleanArray.from_buffers(pa.bool_(), len(values), [None, bits], null_count=0)


def unpacked(bits: pa.Buffer, offset: int, count: int) -> npt.NDArray[np.bool_]:
    """Return some flags of a bitmap of Arrow's; its own conversions would import pandas."""
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=offset + count, bitorder="little")
    return flags[offset:].astype(np.bool_)


def valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell which items of an array are not null."""
    bits = values.buffers()[0]
    return np.ones(len(values), np.bool_) if bits is None else unpacked(bits, values.offset, len(values))


def text_array(texts: Sequence[str | None]) -> pa.StringArray:
    """Return texts for Arrow."""
    data = [(each or "").encode() for each in texts]
    bounds = pa.py_buffer(np.cumsum([0, *map(len, data)], dtype=np.int32))
    filled = bool_array(np.array([each is not None for each in texts], np.bool_)).buffers()[1]
    return pa.StringArray.from_buffers(len(texts), bounds, pa.py_buffer(b"".join(data)), filled)


def text_scalar(text: str | None) -> pa.StringScalar:
    """Return a text for Arrow's functions, which would import pandas for a Python one."""
    return text_array([text])[0]


def invalid_utf8_at(data: bytes) -> int:
    """Return the index of the first byte that is not UTF-8, -1 if all are."""
    if data.isascii():
        return -1
    # Arrow looks at bytes only, where decode() makes wide characters of them: a twentieth of the time.
    bounds = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, bounds, pa.py_buffer(data), None, 0).validate(full=True)
    except pa.ArrowInvalid:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            return error.start
    return -1


def gathered(block: Block) -> pa.BinaryArray:
    """Return the records of a block as one binary array, without the bytes between them.

    Records and the bytes between them are the values of one array over the block's bytes. Arrow then copies
    every second value, at memory speed.
    """
    count = len(block)
    if not count or (block.starts[1:] == block.ends[:-1]).all():
        bounds = np.append(block.starts, block.ends[-1:] if count else [0]).astype(np.int32)
        return _binary_array(count, bounds, block.data)
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = block.starts, block.ends
    both = _binary_array(2 * count - 1, bounds, block.data)
    return both.take(int64_array(np.arange(0, 2 * count, 2)))


def _binary_array(count: int, bounds: npt.NDArray[np.int32], data: bytes) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers, null_count=0)


def slices(
    data: bytes, begins: npt.NDArray[np.signedinteger], ends: npt.NDArray[np.signedinteger]
) -> pa.StringArray:
    """Return slices of bytes, which are known to be UTF-8, as one packed array; they are in order."""
    count = len(begins)
    if not count:
        return pa.nulls(0, pa.string())
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = begins, ends
    # What lies between two parts is taken for a value, too, and left out by the copy.
    both = _binary_array(2 * count - 1, bounds, data)
    packed = both.take(int64_array(np.arange(0, 2 * count, 2)))
    return pa.Array.from_buffers(pa.string(), count, packed.buffers(), null_count=0)


def one_byte_apart(block: Block) -> bool:
    """Tell whether the bytes of a block are its records with one byte after each, and nothing else."""
    stops = block.ends + 1
    return bool(
        len(block)
        and block.starts[0] == 0
        and stops[-1] == len(block.data)
        and (block.starts[1:] == stops[:-1]).all()
    )


def as_lines(block: Block) -> Block:
    """Return the records with a newline after each and nothing else between them; of no journal's offsets."""
    starts, stops = block.starts, block.ends + 1
    octets = np.frombuffer(block.data, np.uint8)
    if not len(block) or stops[-1] > len(octets) or (octets[block.ends] != _NEWLINE).any():
        return lines_of(block, [block.record(index) for index in range(len(block))])
    if one_byte_apart(block):
        return block
    ends = np.cumsum(stops - starts) - 1
    data = slices(block.data, starts, stops).buffers()[2].to_pybytes()[: ends[-1] + 1]
    return replace(block, data=data, starts=ends - (block.ends - starts), ends=ends, header_bytes=0)


def lines_of(block: Block, records: Sequence[bytes]) -> Block:
    """Return other records in a block's place, as :func:`as_lines` does."""
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    ends = np.cumsum(sizes + 1) - 1
    data = b"".join([record + b"\n" for record in records])
    return replace(block, data=data, starts=ends - sizes, ends=ends, header_bytes=0, trailer_bytes=1)


def bounded(blocks: Iterable[Block], max_rows: int = MAX_ROWS) -> Iterator[Block]:
    """Cut blocks of many short records: each record costs its row's other columns, too."""
    for block in blocks:
        if len(block) <= max_rows:
            yield block
            continue
        for first in range(0, len(block), max_rows):
            yield block.rows(first, min(first + max_rows, len(block)))


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The whole records at the beginning of some bytes that begin with a record."""

    starts: Positions
    ends: Positions
    size: int
    """Number of bytes that are done: records, frames, and the bytes between them."""
    needs: int = 0
    """Least length of the unfinished frame that follows, 0: not known."""
    skipped: tuple[tuple[int, int], ...] = ()
    """Bytes among these that begin no record although one should begin there, ``(begin, end)`` each."""


class Framing(Protocol):
    """Finds the begins and ends of records."""

    @property
    def name(self) -> str:
        """The framing's name, as the option ``framing`` spells it."""

    @property
    def anchored(self) -> bool:
        """Bytes can only be understood from the start of a record on."""

    @property
    def resyncs(self) -> bool:
        """Bytes after missing ones are left out up to a record's end: appends may hold half a record."""

    @property
    def header_bytes(self) -> int:
        """Length of what frames a record before its first byte."""

    @property
    def trailer_bytes(self) -> int:
        """Length of what frames a record after its last byte."""

    def first_boundary(self, window: bytes, offset: int) -> int | None:
        """Return the index, 1 or more, of the first record start in a window of a journal.

        Args:
            window: Bytes that may begin anywhere.
            offset: Where in the journal they do.

        Returns:
            None when no record is seen to begin; always None when ``anchored``.
        """

    def last_boundary(self, window: bytes, max_record_bytes: int) -> int | None:
        """Return the index, 1 or more, just past the last record end in a window that may start anywhere.

        None when the window has no record end, or when the end depends on bytes before the window; no record
        is longer than ``max_record_bytes``.
        """

    def may_begin(self, before: bytes, after: bytes) -> bool:
        """Tell whether a record may begin between these bytes, as far as they show it."""

    def cut(self, data: bytes, offset: int, *, last: bool = False) -> Cut:
        """Cut data that begins with a record.

        Args:
            data: Bytes of a journal.
            offset: Where in the journal they begin.
            last: No bytes will follow that belong to the last record.
        """

    def values(self, block: Block) -> pa.BinaryArray:
        """Return the records of a block as one binary array."""
