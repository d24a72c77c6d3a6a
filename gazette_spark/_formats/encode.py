"""Values to the bytes of records: the scan of a framing reads them back as exactly these values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import null_rows, value_bounds
from gazette_spark._formats.framing import RecordFraming, RowRefusal

CHUNK_BYTES = 4 << 20
"""Bytes that are made at a time, unless one record is longer."""

FRAME_BYTES = 8
"""Longest frame of a record, that of ``fixed``."""


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


def encoded(values: pa.Array, framing: RecordFraming) -> Iterator[bytes] | RowRefusal:
    """Return the bytes of records, in pieces of whole records.

    Args:
        values: Binary or string; :func:`check_values` accepted all of them.
        framing: How a value becomes a record.

    Returns:
        Pieces of :data:`CHUNK_BYTES` at most unless one record is longer, or the first value that is refused.
    """
    bounds = value_bounds(values)
    # Where each value would end if every frame had the longest form.
    ends = bounds + np.arange(len(bounds)) * FRAME_BYTES
    pieces: list[bytes] = []
    first = 0
    while first < len(values):
        stop = int(np.searchsorted(ends, ends[first] + CHUNK_BYTES, "right")) - 1
        stop = min(max(stop, first + 1), len(values))
        part = values[first:stop]
        piece = framing.encode(part if pa.types.is_binary(part.type) else part.cast(pa.binary()))
        if isinstance(piece, RowRefusal):
            return RowRefusal(first + piece.index, piece.problem, piece.advice)
        pieces.append(piece)
        first = stop
    return iter(pieces)
