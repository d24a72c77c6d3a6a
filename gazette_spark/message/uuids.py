"""Builds and splits the UUIDs of messages, one by one and in columns: producer id, clock and flags.

A UUID has the form of version 1, but its clock sequence contains flags. The bytes, as Gazette's
``message/uuid.go`` defines them:

======  ==========================================================================
bytes   content
======  ==========================================================================
0..3    clock bits 4..35, big-endian
4..5    clock bits 36..51
6..7    version nibble ``0001``, clock bits 52..63
8..9    variant ``10``, clock bits 0..3, ten bits of flags
10..15  producer id
======  ==========================================================================

A clock counts 100 ns since 1582-10-15 in its upper 60 bits, and has a counter in its lower four.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType, Self

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import valid

if TYPE_CHECKING:
    import numpy.typing as npt

TICKS_BEFORE_1970 = 122_192_928_000_000_000
"""Units of 100 ns between 1582-10-15 and the Unix epoch."""
MAX_CLOCK = (1 << 64) - 1
"""Maximum clock."""
TICK = 160
"""Step of a publisher's clock: 1 µs."""

OUTSIDE_TXN = 0
"""Flags of a message that commits itself."""
CONTINUE_TXN = 1
"""Flags of a message that a later acknowledgement of its producer commits."""
ACK_TXN = 2
"""Flags of an acknowledgement: it commits its producer's messages up to its clock."""
FLAG_BITS = 0x3FF
"""Number of bits of a UUID's flags."""

UUID_TEXT_BYTES = 36
"""Length of a UUID's text."""

ProducerId = NewType("ProducerId", bytes)
"""Six bytes that identify a producer. A producer takes a new id at each start, and never reuses one."""


class Clock(int):
    """A message's time, unsigned, 64 bits; 0 opts out of sequencing. Immutable."""

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        """Check the range.

        Raises:
            ValueError: ``value`` does not fit 64 unsigned bits.
        """
        if not 0 <= value <= MAX_CLOCK:
            msg = f"a clock must be an unsigned 64-bit number, not {value}"
            raise ValueError(msg)
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"Clock({int(self)})"

    @classmethod
    def at(cls, unix_ns: int) -> Clock:
        """Return the clock of a time, in nanoseconds since the Unix epoch."""
        # The lower four bits are a counter, which begins at 0.
        return cls((unix_ns // 100 + TICKS_BEFORE_1970) << 4)

    def updated(self, unix_ns: int) -> Clock:
        """Return the clock of a time, or this clock if it is larger, because clocks never go back."""
        return max(self, Clock.at(unix_ns))

    def ticked(self) -> Clock:
        """Return the next clock, 1 µs later."""
        return Clock(int(self) + TICK)

    @property
    def unix_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return ((int(self) >> 4) - TICKS_BEFORE_1970) * 100


def new_producer_id() -> ProducerId:
    """Return a random producer id. Its multicast bit is set, so it is not the address of a network card."""
    drawn = secrets.token_bytes(6)
    return ProducerId(bytes([drawn[0] | 1]) + drawn[1:])


def build_uuid(producer: ProducerId, clock: Clock, flags: int) -> uuid.UUID:
    """Return the UUID of a message.

    Raises:
        ValueError: the producer id does not have six bytes, or the flags have more than ten bits.
    """
    if len(producer) != 6:
        msg = f"a producer id must have 6 bytes, not {len(producer)}"
        raise ValueError(msg)
    if not 0 <= flags <= FLAG_BITS:
        msg = f"flags must fit 10 bits, got {flags:#x}"
        raise ValueError(msg)
    time, low = clock >> 4, clock & 0xF
    return uuid.UUID(
        fields=(
            time & 0xFFFFFFFF,
            time >> 32 & 0xFFFF,
            time >> 48 & 0xFFF | 0x1000,
            0x80 | low << 2 | flags >> 8,
            flags & 0xFF,
            int.from_bytes(producer, "big"),
        )
    )


def split_uuid(stamp: uuid.UUID) -> tuple[ProducerId, Clock, int]:
    """Return producer id, clock and flags of a UUID of any version, as Gazette does."""
    octets = stamp.bytes
    time = int.from_bytes(octets[0:4], "big") | int.from_bytes(octets[4:6], "big") << 32
    time |= int.from_bytes(octets[6:8], "big") << 48
    low = int.from_bytes(octets[8:10], "big")
    # The version nibble is shifted out at the top, as in Gazette.
    clock = (time << 4 | low >> 10 & 0xF) & MAX_CLOCK
    return ProducerId(octets[10:]), Clock(clock), low & FLAG_BITS


@dataclass(frozen=True, slots=True, eq=False)
class UuidColumns:
    """UUIDs in columns of equal length."""

    producers: npt.NDArray[np.int64]
    """Producer ids as big-endian numbers."""
    clocks: npt.NDArray[np.uint64]
    flags: npt.NDArray[np.uint16]
    valid: npt.NDArray[np.bool_]
    """False for rows without a readable UUID, which have 0 in the other columns."""

    def __len__(self) -> int:
        return len(self.producers)

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> UuidColumns:
        """Return rows by index or mask."""
        return UuidColumns(self.producers[rows], self.clocks[rows], self.flags[rows], self.valid[rows])


def producer_number(producer: ProducerId) -> int:
    """Return a producer id as the number that columns use."""
    return int.from_bytes(producer, "big")


def producer_of(number: int) -> ProducerId:
    """Return the producer id of a column's number."""
    return ProducerId(number.to_bytes(6, "big"))


def split_octets(octets: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_]) -> UuidColumns:
    """Split UUIDs that are rows of 16 bytes; ``valid`` marks the rows that are UUIDs."""
    words = np.ascontiguousarray(octets).view(">u8").reshape(-1, 2).astype(np.uint64)
    high, low = words[:, 0], words[:, 1]
    four, mid = high >> np.uint64(32), high >> np.uint64(16) & np.uint64(0xFFFF)
    top = high & np.uint64(0xFFFF)
    clocks = four << np.uint64(4) | mid << np.uint64(36) | top << np.uint64(52)
    clocks |= low >> np.uint64(58) & np.uint64(0xF)
    flags = (low >> np.uint64(48)).astype(np.uint16) & np.uint16(FLAG_BITS)
    producers = (low & np.uint64(0xFFFFFFFFFFFF)).astype(np.int64)
    return UuidColumns(
        np.where(valid, producers, 0), np.where(valid, clocks, np.uint64(0)), np.where(valid, flags, 0), valid
    )


_HYPHENS = np.array([8, 13, 18, 23])
_DIGITS = np.array([at for at in range(UUID_TEXT_BYTES) if at not in (8, 13, 18, 23)])
_GROUPS = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
"""Positions of the digits in a UUID's text, without the hyphens."""
_NO_DIGITS = 0x100


def _pair_values() -> npt.NDArray[np.uint16]:
    """Return the value of two hexadecimal digits by their two bytes as a little-endian number."""
    nibbles = np.full(256, _NO_DIGITS, np.uint16)
    for value, digit in enumerate("0123456789abcdef"):
        nibbles[[ord(digit), ord(digit.upper())]] = value
    second, first = np.meshgrid(nibbles, nibbles, indexing="ij")
    return np.where((first | second) < _NO_DIGITS, first << 4 | second, _NO_DIGITS).astype(np.uint16).ravel()


_PAIRS = _pair_values()


def split_texts(texts: npt.NDArray[np.uint8], present: npt.NDArray[np.bool_]) -> UuidColumns:
    """Split UUIDs that are rows of 36 bytes of text. Rows that are not UUIDs are invalid."""
    # Look up two digits at a time in a table of 65,536 entries, in all rows of a group together.
    pairs = np.concatenate(
        [_PAIRS[np.ascontiguousarray(texts[:, begin:end]).view("<u2")] for begin, end in _GROUPS], axis=1
    )
    valid = present & (pairs.max(axis=1, initial=0) < _NO_DIGITS)
    for at in _HYPHENS:
        valid &= texts[:, at] == ord("-")
    return split_octets(pairs.astype(np.uint8), valid)


def split_uuids(column: pa.Array) -> UuidColumns:
    """Split a column of UUIDs: texts of 36 characters, or binaries of 16 bytes. Other values are invalid."""
    if not len(column):
        return split_octets(np.zeros((0, 16), np.uint8), np.zeros(0, np.bool_))
    present = valid(column)
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    width = UUID_TEXT_BYTES if text else 16
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    stored = np.frombuffer(column.buffers()[1], np.int64 if wide else np.int32)
    # Rows are cut from Arrow's buffers. Its own conversion would make a Python object of each.
    bounds: npt.NDArray[np.int64] = stored[column.offset : column.offset + len(column) + 1].astype(np.int64)
    present &= np.diff(bounds) == width
    rows = np.zeros((len(column), width), np.uint8)
    if present.all():
        rows = np.frombuffer(column.buffers()[2], np.uint8)[bounds[0] : bounds[-1]].reshape(-1, width)
    elif present.any():
        data = np.frombuffer(column.buffers()[2], np.uint8)
        rows[present] = data[bounds[:-1][present][:, None] + np.arange(width)]
    return split_texts(rows, present) if text else split_octets(rows, present)


def uuid_texts(columns: UuidColumns) -> pa.StringArray:
    """Return the texts of UUIDs, null for invalid ones."""
    clocks, flags = columns.clocks, columns.flags.astype(np.uint64)
    high = (clocks >> np.uint64(4) & np.uint64(0xFFFFFFFF)) << np.uint64(32)
    high |= (clocks >> np.uint64(36) & np.uint64(0xFFFF)) << np.uint64(16)
    # The version nibble of UUIDs of version 1.
    high |= clocks >> np.uint64(52) | np.uint64(0x1000)
    # The variant's two bits, then the clock's counter and the flags where a UUID has its clock sequence.
    low = (np.uint64(0x8000) | (clocks & np.uint64(0xF)) << np.uint64(10) | flags) << np.uint64(48)
    low |= columns.producers.astype(np.uint64)
    octets = np.stack([high, low], axis=1).astype(">u8").view(np.uint8).reshape(-1, 16)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    texts = np.full((len(columns), UUID_TEXT_BYTES), ord("-"), np.uint8)
    texts[:, _DIGITS[0::2]] = digits[octets >> 4]
    texts[:, _DIGITS[1::2]] = digits[octets & 0xF]
    data = texts.tobytes()
    bounds = np.arange(len(columns) + 1, dtype=np.int32) * UUID_TEXT_BYTES
    mask = np.packbits(columns.valid, bitorder="little")
    return pa.StringArray.from_buffers(
        len(columns), pa.py_buffer(bounds), pa.py_buffer(data), pa.py_buffer(mask), null_count=-1
    )


def stamp(producer: ProducerId, first: Clock, count: int, flags: int) -> UuidColumns:
    """Return the UUIDs of ``count`` messages of one producer, with clocks from ``first`` on."""
    clocks = np.uint64(first) + np.arange(count, dtype=np.uint64) * np.uint64(TICK)
    numbers = np.full(count, producer_number(producer), np.int64)
    return UuidColumns(numbers, clocks, np.full(count, flags, np.uint16), np.ones(count, np.bool_))
