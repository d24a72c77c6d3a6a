r"""The framing ``lines``: records end with a newline, ``\n``, which is not part of the record.

A ``\r`` before the newline belongs to the record: values are the journal's bytes, unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gazette_spark._formats import library
from gazette_spark._formats.arrays import Positions, binary_scalar, packed_binary, value_bounds, value_bytes
from gazette_spark._formats.framing import Block, Cut, RowRefusal, gathered, one_byte_apart

NEWLINE = 0x0A
SCAN_BYTES = 256 << 10
"""Number of bytes compared at a time in a search for one byte, so that the result stays in the cache."""


def newlines(data: bytes) -> Positions:
    """Return the position of every newline, ascending."""
    # The library takes less than half of NumPy's time (decision 39), but need not have been built.
    positions = library.newlines(data)
    return octet_positions(data, NEWLINE) if positions is None else positions


def octet_positions(data: bytes, octet: int) -> Positions:
    """Return the position of every byte of one value, ascending."""
    octets = np.frombuffer(data, np.uint8)
    parts = [
        np.flatnonzero(octets[low : low + SCAN_BYTES] == octet) + low
        for low in range(0, len(octets), SCAN_BYTES)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def spans(ends: Positions) -> tuple[Positions, Positions]:
    """Return starts and ends of records that end at these newlines."""
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    return starts, ends


def with_newlines(values: pa.BinaryArray) -> tuple[bytes, Positions]:
    """Return values with a newline after each, and the position of each such newline."""
    # Imported here because readers do not need it, and importing it takes longer than importing this package.
    import pyarrow.compute as pc

    data = value_bytes(pc.binary_join_element_wise(values, binary_scalar(b"\n"), binary_scalar(b"")))
    return data, np.cumsum(np.diff(value_bounds(values)) + 1) - 1


@dataclass(frozen=True, slots=True)
class LineFraming:
    """The framing ``lines``."""

    name: str = "lines"
    anchored: bool = False
    resyncs: bool = True
    header_bytes: int = 0
    trailer_bytes: int = 1

    def first_boundary(self, window: bytes, offset: int) -> int | None:  # noqa: ARG002 - newlines are everywhere the same.
        r"""Return the index just past the first ``\n``, or None without a ``\n``."""
        return window.find(b"\n") + 1 or None

    def last_boundary(self, window: bytes, max_record_bytes: int) -> int | None:  # noqa: ARG002 - same.
        r"""Return the index just past the last ``\n``, or None without a ``\n``."""
        return window.rfind(b"\n") + 1 or None

    def may_begin(self, before: bytes, after: bytes) -> bool:  # noqa: ARG002 - same.
        """Return whether the byte before ends a line."""
        return not before or before.endswith(b"\n")

    def cut(self, data: bytes, offset: int, *, last: bool = False) -> Cut:  # noqa: ARG002 - same.
        """Cut at every newline."""
        starts, ends = spans(newlines(data))
        return Cut(starts, ends, int(ends[-1]) + 1 if len(ends) else 0)

    def values(self, block: Block) -> pa.BinaryArray:
        """Return the records of a block as one binary array, without their newlines.

        Arrow's values are contiguous, so the newlines must be removed. ``bytes.replace`` does that in one
        pass of memchr and memcpy, about 4 times as fast as numpy's masks; record *i* then begins *i* bytes
        earlier than in the block. If some lines were removed from a block, the rest is copied.
        """
        if not one_byte_apart(block):
            return gathered(block)
        count = len(block)
        bounds = np.empty(count + 1, np.int32)
        bounds[0] = 0
        np.subtract(block.ends, np.arange(count), out=bounds[1:], casting="unsafe")
        return packed_binary(count, bounds, block.data.replace(b"\n", b""))

    def encode(self, values: pa.BinaryArray) -> bytes | RowRefusal:
        """Return values with a newline after each, or the first value with a newline in it."""
        data, ends = with_newlines(values)
        if data.count(b"\n") == len(ends):
            return data
        inside = np.setdiff1d(newlines(data), ends, assume_unique=True)[0]
        return RowRefusal(
            int(np.searchsorted(ends, inside)),
            "its value contains a newline, which ends a record of framing lines",
            "Encode it (to_json escapes newlines), or write with framing=fixed",
        )


LINES = LineFraming()
