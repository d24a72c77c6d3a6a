"""The framing ``fixed``: frames of a header of 8 bytes (a magic word, the payload's length) and the payload.

Frames are found without executing Python per frame: whole blocks are searched for the magic word, and a frame
is valid if the length in its header ends at the next header. Only if that fails, because a payload contains
the magic word or bytes are damaged, is the chain of frames followed step by step.

If the magic word is missing where a frame should begin (Gazette calls this a desync), the bytes up to the
next magic word are ``skipped``.

A payload may itself contain frames, so a magic word proves nothing. Bytes in the middle of a journal are
known to be headers only if every possible chain of frames has the same end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import Positions, binary_scalar, packed_binary, value_bounds, value_bytes
from gazette_spark._formats.framing import Block, Cut, gathered
from gazette_spark._formats.lines import octet_positions

MAGIC = b"\x66\x33\x93\x36"
HEADER_BYTES = 8
"""The magic word, and the payload's length as an unsigned little-endian number of 4 bytes."""

_RAREST = 2
"""The byte of the magic word that does not occur in text; it is searched first."""


def magic_words(data: bytes) -> Positions:
    """Return the position of every magic word, ascending."""
    octets = np.frombuffer(data, np.uint8)
    at = octet_positions(data, MAGIC[_RAREST]) - _RAREST
    at = at[(at >= 0) & (at <= len(data) - len(MAGIC))]
    for index in (0, 1, 3):
        at = at[octets[at + index] == MAGIC[index]]
    return at


def frame_ends(data: bytes, headers: Positions) -> Positions:
    """Return the ends of frames according to the lengths in their headers."""
    octets = np.frombuffer(data, np.uint8)
    ends = headers + HEADER_BYTES
    for index in range(4):
        ends += octets[headers + len(MAGIC) + index].astype(np.int64) << (8 * index)
    return ends


def frame(payload: bytes) -> bytes:
    """Return a payload with its header."""
    return MAGIC + len(payload).to_bytes(4, "little") + payload


@dataclass(frozen=True, slots=True)
class FixedFraming:
    """The framing ``fixed``."""

    name: str = "fixed"
    anchored: bool = True
    resyncs: bool = False
    header_bytes: int = HEADER_BYTES
    trailer_bytes: int = 0

    def first_boundary(self, window: bytes, offset: int) -> int | None:  # noqa: ARG002 - none is certain.
        """Return None: a magic word proves nothing."""
        return None

    def last_boundary(self, window: bytes, max_record_bytes: int) -> int | None:
        """Return the common end of all chains of frames that may be the true one; None if they differ.

        The true chain has a header within the longest frame's length. A window that may end inside that
        header is too short to prove anything.
        """
        reach = max_record_bytes + HEADER_BYTES
        if len(window) < reach + HEADER_BYTES - 1:
            return None
        words = magic_words(window)
        headers = words[words <= len(window) - HEADER_BYTES]
        if not len(headers) or headers[0] > reach:
            return None
        ends = frame_ends(window, headers)
        if (ends[:-1] == headers[1:]).all():
            # Each frame ends at the next header, so there is only one chain.
            last_ends = {_chain_end(window, words, int(headers[-1]), int(ends[-1]), reach)}
        else:
            # Go backwards from the last header, so that the end of the chain after a frame is already known.
            chain_ends: dict[int, int] = {}
            for at, end in zip(headers[::-1].tolist(), ends[::-1].tolist(), strict=True):
                chain_ends[at] = (
                    chain_ends[end] if end in chain_ends else _chain_end(window, words, at, end, reach)
                )
            last_ends = {end for at, end in chain_ends.items() if at <= reach}
        # A broken chain is not the true one.
        last_ends -= {-1}
        return last_ends.pop() if len(last_ends) == 1 else None

    def may_begin(self, before: bytes, after: bytes) -> bool:  # noqa: ARG002 - the header is what counts.
        """Return whether the bytes after the offset are the magic word, or its beginning."""
        return after[: len(MAGIC)] == MAGIC[: len(after)]

    def cut(self, data: bytes, offset: int, *, last: bool = False) -> Cut:  # noqa: ARG002 - frames are the same anywhere.
        """Follow the frames from the first byte on; skip bytes that begin no frame."""
        words = magic_words(data)
        headers = words[words <= len(data) - HEADER_BYTES]
        ends = frame_ends(data, headers)
        next_header: list[int] | None = None
        at, needs = 0, 0
        chains: list[Positions] = []
        skipped: list[tuple[int, int]] = []
        while at < len(data):
            index = int(np.searchsorted(headers, at))
            if index == len(headers) or headers[index] != at:
                # A desync: continue at the next magic word, which may arrive later.
                resume = _resume(data, words, at)
                if resume == at:
                    break
                skipped.append((at, resume))
                at = resume
                continue
            if next_header is None and (ends[index:-1] == headers[index + 1 :]).all():
                # The usual case, decided for all frames at once: each ends at the next header.
                chain = np.arange(index, len(headers))
            else:
                # A payload contains a magic word, or bytes are damaged: follow the chain frame by frame.
                if next_header is None:
                    after = np.searchsorted(headers, ends)
                    ends_at_header = headers[np.minimum(after, len(headers) - 1)] == ends
                    next_header = np.where(ends_at_header, after, -1).tolist()
                steps = []
                while index >= 0:
                    steps.append(index)
                    index = next_header[index]
                chain = np.array(steps, np.int64)
            last_frame = int(chain[-1])
            if ends[last_frame] > len(data):
                # The rest of the last frame has not arrived.
                chains.append(chain[:-1])
                at = int(headers[last_frame])
                needs = int(ends[last_frame]) - at
                break
            chains.append(chain)
            at = int(ends[last_frame])
        frames = np.concatenate(chains) if chains else np.empty(0, np.int64)
        return Cut(headers[frames] + HEADER_BYTES, ends[frames], at, needs, tuple(skipped))

    def values(self, block: Block) -> pa.BinaryArray:
        """Return the payloads."""
        return gathered(block)

    def encode(self, values: pa.BinaryArray) -> bytes:
        """Return values with a header before each. A frame can contain any value."""
        # Imported here because readers do not need it, and importing it takes longer than importing this
        # package.
        import pyarrow.compute as pc

        count = len(values)
        headers = np.empty((count, HEADER_BYTES), np.uint8)
        headers[:, : len(MAGIC)] = np.frombuffer(MAGIC, np.uint8)
        headers[:, len(MAGIC) :] = np.diff(value_bounds(values)).astype("<u4").view(np.uint8).reshape(-1, 4)
        bounds = np.arange(count + 1, dtype=np.int32) * np.int32(HEADER_BYTES)
        header_array = packed_binary(count, bounds, headers)
        return value_bytes(pc.binary_join_element_wise(header_array, values, binary_scalar(b"")))


def _resume(data: bytes, words: Positions, at: int) -> int:
    """Return the first position from ``at`` on at which a frame may begin, or the end."""
    index = int(np.searchsorted(words, at))
    if index < len(words):
        return int(words[index])
    return next(
        (
            tail
            for tail in range(max(at, len(data) - len(MAGIC) + 1), len(data))
            if MAGIC.startswith(data[tail:])
        ),
        len(data),
    )


def _chain_end(window: bytes, words: Positions, at: int, end: int, reach: int) -> int:
    """Return the end of a chain whose last header is at ``at``; -1 if the chain is broken."""
    if end > len(window):
        return at if end - at <= reach else -1
    return end if _resume(window, words, end) == end else -1


FIXED = FixedFraming()
