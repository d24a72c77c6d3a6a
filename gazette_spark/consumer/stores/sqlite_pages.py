"""Which pages of a SQLite database have changed: read from its write-ahead log. Pure.

A commit appends the pages it has changed, as frames, to the file ``-wal`` beside the database. The frame
that ends the commit says so. The log begins again from its start, with another salt, after its pages were
copied into the database. So the pages of commits are the frames up to the last one that ends a commit; what
is behind it is of a transaction that was rolled back. Format:
https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_HEADER = struct.Struct(">IIII8s8s")
"""Magic, version, page size, checkpoints made, salt, checksum."""

_FRAME = struct.Struct(">II8s8s")
"""Page number, pages of the database after the commit or 0, salt, checksum."""


@dataclass(frozen=True, slots=True)
class WalPosition:
    """How far a write-ahead log was read."""

    salt: bytes = b""
    frames: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """The pages of all commits since a position."""

    position: WalPosition
    page_size: int
    pages: dict[int, int]
    """By number of a page, from 1 on, the offset of its newest bytes in the log."""

    @property
    def size(self) -> int:
        """Bytes of the pages."""
        return len(self.pages) * self.page_size

    def runs(self) -> Iterator[tuple[int, list[int]]]:
        """Yield neighbours among the pages: the offset of the first in the database, places in the log."""
        run: list[int] = []
        first = 0
        for number in sorted(self.pages):
            if run and number != first + len(run):
                yield (first - 1) * self.page_size, run
                run = []
            if not run:
                first = number
            run.append(self.pages[number])
        if run:
            yield (first - 1) * self.page_size, run


def read_changes(wal: BinaryIO, position: WalPosition) -> Changes:
    """Return what was committed since a position. Nobody may write to the log meanwhile."""
    wal.seek(0)
    header = wal.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return Changes(position, 0, {})
    _, _, page_size, _, salt, _ = _HEADER.unpack(header)
    if salt != position.salt:
        position = WalPosition(salt)
    uncommitted: dict[int, int] = {}
    pages: dict[int, int] = {}
    frame, committed = position.frames, position.frames
    while True:
        offset = _HEADER.size + frame * (_FRAME.size + page_size)
        wal.seek(offset)
        found = wal.read(_FRAME.size)
        if len(found) < _FRAME.size:
            break
        number, size_after, frame_salt, _ = _FRAME.unpack(found)
        if frame_salt != salt:
            break
        uncommitted[number] = offset + _FRAME.size
        frame += 1
        if size_after:
            pages |= uncommitted
            uncommitted.clear()
            committed = frame
    return Changes(WalPosition(salt, committed), page_size, pages)
