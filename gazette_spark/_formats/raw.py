"""The framing ``none``: a journal's bytes as they are, in chunks, for content without records.

A chunk ends at a multiple of the chunk size, at missing bytes, or at the end of the range. So chunks do not
depend on how a range is split or how its bytes arrive, only on a batch's start and end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import value_bytes
from gazette_spark._formats.framing import Block, Cut, gathered

CHUNK_BYTES = 1 << 20
"""Default size of a chunk: one per block, so that a row needs no copy."""


@dataclass(frozen=True, slots=True)
class ChunkFraming:
    """The framing ``none``."""

    chunk_bytes: int = CHUNK_BYTES
    name: str = "none"
    anchored: bool = False
    resyncs: bool = False
    header_bytes: int = 0
    trailer_bytes: int = 0

    def first_boundary(self, window: bytes, offset: int) -> int | None:
        """Return the index of the first multiple of the chunk's size past the window's first byte."""
        index = self.chunk_bytes - offset % self.chunk_bytes
        return index if index <= len(window) else None

    def last_boundary(self, window: bytes, max_record_bytes: int) -> int | None:  # noqa: ARG002 - chunks are short.
        """Return the window's end: a batch may end at any byte."""
        return len(window) or None

    def may_begin(self, before: bytes, after: bytes) -> bool:  # noqa: ARG002 - any byte will do.
        """Return True: a chunk may begin anywhere."""
        return True

    def cut(self, data: bytes, offset: int, *, last: bool = False) -> Cut:
        """Cut at multiples of the chunk's size; the rest is a chunk if it is the last."""
        # Multiples of the chunk's size in the journal, not in the data: two pieces of a range then cut the
        # same chunks as one.
        first = self.chunk_bytes - offset % self.chunk_bytes
        ends = np.arange(first, len(data) + 1, self.chunk_bytes, dtype=np.int64)
        done = int(ends[-1]) if len(ends) else 0
        if last and done < len(data):
            ends, done = np.append(ends, len(data)), len(data)
        starts = np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
        needs = 0 if done == len(data) else self.chunk_bytes - (offset + done) % self.chunk_bytes
        return Cut(starts, ends, done, needs)

    def values(self, block: Block) -> pa.BinaryArray:
        """Return the chunks, without a copy."""
        return gathered(block)

    def encode(self, values: pa.BinaryArray) -> bytes:
        """Return values one after the other."""
        return value_bytes(values)
