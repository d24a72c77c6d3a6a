r"""Values to the bytes of records: the scan of a framing reads them back as exactly these values.

Nothing is escaped or repaired. A value that would be read back as something else is refused: under ``lines``
one with a newline, under ``csv`` one that is not exactly one record. The encoder looks for the record ends in
the encoded bytes: one pass at memory speed, and no step of Python per value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark._formats.csv import RETURN, record_ends
from gazette_spark._formats.fixed import HEADER_BYTES, MAGIC
from gazette_spark._formats.framing import Positions, valid
from gazette_spark._formats.lines import newlines

CHUNK_BYTES = 4 << 20
"""Bytes that are made at a time, unless one record is longer."""


@dataclass(frozen=True, slots=True)
class RowRefusal:
    """A value that cannot be written."""

    index: int
    problem: str
    advice: str


def value_bounds(values: pa.Array) -> Positions:
    """Return the bounds of the values of a binary or string array in its data: ``(n + 1,)``."""
    if not len(values):
        return np.zeros(1, np.int64)
    large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    bounds = np.frombuffer(values.buffers()[1], np.int64 if large else np.int32)
    return bounds[values.offset : values.offset + len(values) + 1].astype(np.int64)


def value_octets(values: pa.Array) -> np.ndarray:
    """Return all data of a binary or string array, in which :func:`value_bounds` points."""
    data = values.buffers()[2] if len(values) else None
    return np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def null_rows(values: pa.Array) -> Positions:
    """Return the indices of an array's nulls."""
    if not values.null_count:
        return np.empty(0, np.int64)
    return np.flatnonzero(~valid(values))


def check_values(values: pa.Array, max_record_bytes: int) -> RowRefusal | None:
    """Return the first value that no framing can encode, None if all values are fine."""
    if values.null_count:
        index = int(null_rows(values)[0])
        return RowRefusal(index, "its value is null", "Filter such rows out, or give them a value")
    lengths = np.diff(value_bounds(values))
    if len(lengths) and lengths.max() > max_record_bytes:
        index = int(np.argmax(lengths > max_record_bytes))
        problem = f"its value has {lengths[index]} bytes, more than the {max_record_bytes} of maxRecordBytes"
        return RowRefusal(
            index, problem, "Make it shorter, or raise maxRecordBytes here and where it is read"
        )
    return None


def encoded(
    values: pa.Array, framing: str, separator: str = ",", quote: str = '"'
) -> Iterator[bytes] | RowRefusal:
    """Return the bytes of records, in pieces of whole records.

    Args:
        values: Binary or string; :func:`check_values` accepted all of them.
        framing: ``lines``, ``fixed``, ``csv`` or ``none``.
        separator: Separator of CSV fields.
        quote: Quote of CSV fields: one character, or empty.

    Returns:
        Pieces of :data:`CHUNK_BYTES` at most unless one record is longer, or the first value that is refused.
    """
    pieces = []
    for first, stop in _parts(value_bounds(values)):
        made = _piece(values[first:stop], framing, separator, quote)
        if isinstance(made, RowRefusal):
            return RowRefusal(first + made.index, made.problem, made.advice)
        pieces.append(made)
    return iter(pieces)


def _parts(bounds: Positions) -> Iterator[tuple[int, int]]:
    """Cut values, each with its frame, into parts of :data:`CHUNK_BYTES`."""
    framed = bounds + np.arange(len(bounds)) * HEADER_BYTES
    first, count = 0, len(bounds) - 1
    while first < count:
        stop = int(np.searchsorted(framed, framed[first] + CHUNK_BYTES, "right")) - 1
        stop = min(max(stop, first + 1), count)
        yield first, stop
        first = stop


def _piece(values: pa.Array, framing: str, separator: str, quote: str) -> bytes | RowRefusal:
    bounds = value_bounds(values)
    if framing == "none":
        return value_octets(values)[bounds[0] : bounds[-1]].tobytes()
    if framing == "fixed":
        return _joined(_headers(np.diff(bounds)), _binary(values))
    made = _joined(_binary(values), _NEWLINE)
    ends = np.cumsum(np.diff(bounds) + 1) - 1
    if framing == "lines":
        return _refused_line(made, ends) or made
    return _refused_csv(made, ends, record_ends(made, separator, quote)) or made


def _binary(values: pa.Array) -> pa.BinaryArray:
    return values if pa.types.is_binary(values.type) else values.cast(pa.binary())


def _joined(left: pa.BinaryArray, right: pa.BinaryArray | pa.BinaryScalar) -> bytes:
    both = pc.binary_join_element_wise(left, right, _NOTHING)
    bounds = value_bounds(both)
    return value_octets(both)[bounds[0] : bounds[-1]].tobytes()


def _headers(lengths: Positions) -> pa.BinaryArray:
    """Return the header of each frame."""
    headers = np.empty((len(lengths), HEADER_BYTES), np.uint8)
    headers[:, : len(MAGIC)] = np.frombuffer(MAGIC, np.uint8)
    headers[:, len(MAGIC) :] = lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
    bounds = np.arange(len(lengths) + 1, dtype=np.int32) * np.int32(HEADER_BYTES)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(headers)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), buffers, null_count=0)


def _refused_line(made: bytes, ends: Positions) -> RowRefusal | None:
    if made.count(b"\n") == len(ends):
        return None
    odd = np.setdiff1d(newlines(made), ends, assume_unique=True)[0]
    return RowRefusal(
        int(np.searchsorted(ends, odd)),
        "its value holds a newline, which ends a record of framing lines",
        "Encode it (to_json escapes newlines), or write with framing=fixed",
    )


def _refused_csv(made: bytes, ends: Positions, found: Positions) -> RowRefusal | None:
    """Hold the record ends that a reader finds against those that were meant, and look for blank records."""
    octets = np.frombuffer(made, np.uint8)
    lengths = np.diff(ends, prepend=-1) - 1
    blank = (lengths == 0) | ((lengths == 1) & (octets[ends - 1] == RETURN))
    first_blank = int(np.argmax(blank)) if blank.any() else len(ends)
    wrong = _first_wrong_end(found, ends)
    if first_blank < wrong:
        problem = "its value is a blank line, which is no record of CSV"
        return RowRefusal(first_blank, problem, 'Filter such rows out, or write ""')
    if wrong < len(ends):
        problem = "its value is not one record of CSV: quotes or newlines are left open"
        return RowRefusal(wrong, problem, "Write each value as to_csv does, or write with framing=fixed")
    return None


def _first_wrong_end(found: Positions, meant: Positions) -> int:
    """Return the index of the first record with a wrong end; the number of records if all ends are right."""
    same = min(len(found), len(meant))
    differs = np.flatnonzero(found[:same] != meant[:same])
    return int(differs[0]) if len(differs) else same


def binary_array(values: Sequence[bytes]) -> pa.BinaryArray:
    """Return bytes for Arrow; pa.array() would import pandas where there is one."""
    bounds = np.cumsum([0, *map(len, values)], dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(values))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), buffers, null_count=0)


def binary_scalar(value: bytes) -> pa.BinaryScalar:
    """Return bytes for Arrow's functions."""
    return binary_array([value])[0]


_NEWLINE = binary_scalar(b"\n")
_NOTHING = binary_scalar(b"")
