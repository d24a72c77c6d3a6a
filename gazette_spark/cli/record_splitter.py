"""Splits a stream into records, as ``gazctl journals append`` does: by lines, or by the fixed frame's header.

A record keeps its newline or header. A last line without a newline, a truncated frame, and a frame that does
not begin with the magic word are errors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

from gazette_spark.errors import InputError

FRAME = struct.Struct("<4sI")
"""Header of a fixed frame: the magic word, and the length of the payload."""

MAGIC = b"\x66\x33\x93\x36"

MAX_RECORD_BYTES = 1 << 28
"""Frames with a longer payload are refused: their header is most likely not a header."""

ReadRecord = Callable[[BinaryIO], bytes | None]
"""Returns the next record, or None at the end."""


def read_line(source: BinaryIO) -> bytes | None:
    """Return the next line with its newline, or None at the end."""
    line = source.readline()
    if not line:
        return None
    # Appended as it is, it would become the begin of whatever comes next in the journal.
    if not line.endswith(b"\n"):
        raise InputError(f"the last line has no newline: {line[-40:]!r}")
    return line


def read_frame(source: BinaryIO) -> bytes | None:
    """Return the next fixed frame with its header, or None at the end."""
    header = source.read(FRAME.size)
    if not header:
        return None
    if len(header) < FRAME.size:
        raise InputError(f"the input ends within a frame's header: {header!r}")
    magic, length = FRAME.unpack(header)
    # Before the body is read: a wrong length could be 4 GiB.
    if magic != MAGIC or length > MAX_RECORD_BYTES:
        raise InputError(f"a frame begins with {header.hex(' ')}, not with {MAGIC.hex(' ')} and a length")
    body = source.read(length)
    if len(body) < length:
        raise InputError(f"the input ends within a frame of {length} bytes, after {len(body)}")
    return header + body


READERS: dict[str, ReadRecord] = {"lines": read_line, "fixed": read_frame}
"""Reader of the next record, by framing."""


def read_keyed(source: BinaryIO, framing: str, *, keyed: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield pairs of key and record; the key is the record before, less its frame.

    Args:
        source: a buffered stream.
        framing: ``lines`` or ``fixed``.
        keyed: each record has its key before it; else keys are empty.
    """
    read = READERS[framing]
    while True:
        key = read(source) if keyed else b""
        if key is None:
            return
        record = read(source)
        if record is None:
            if keyed:
                raise InputError(f"the last key has no record: {key[:40]!r}")
            return
        # The key goes without its frame, and the record with it: brokers store frames.
        yield (key.rstrip(b"\r\n") if framing == "lines" else key[FRAME.size :]), record
