"""Encodes values as records, which are read back as exactly these values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import null_rows, value_bounds
from gazette_spark._formats.framing import RecordFraming, RowRefusal

CHUNK_BYTES = 4 << 20
"""Maximum bytes per piece, unless one record is longer."""

FRAME_BYTES = 8
"""Maximum length of a record's framing, which is that of ``fixed``."""


def check_values(values: pa.Array, max_record_bytes: int) -> RowRefusal | None:
    """Return a refusal of the first value that no framing can encode; None if all values are valid."""
    if values.null_count:
        index = int(null_rows(values)[0])
        return RowRefusal(index, "its value is null", "Filter such rows out, or give them a value")
    lengths = np.diff(value_bounds(values))
    if len(lengths) and lengths.max() > max_record_bytes:
        index = int(np.argmax(lengths > max_record_bytes))
        problem = f"its value has {lengths[index]} bytes, more than the {max_record_bytes} of maxRecordBytes"
        return RowRefusal(index, problem, "Shorten it, or raise maxRecordBytes for both writing and reading")
    return None


def encoded(values: pa.Array, framing: RecordFraming) -> Iterator[bytes] | RowRefusal:
    """Return the bytes of records, in pieces of whole records.

    Args:
        values: Binary or string values that :func:`check_values` has accepted.
        framing: The framing of the records.

    Returns:
        Pieces of at most :data:`CHUNK_BYTES`, unless one record is longer, or the first refusal.
    """
    bounds = value_bounds(values)
    # Offsets at which values would end if every frame had the maximum length.
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
