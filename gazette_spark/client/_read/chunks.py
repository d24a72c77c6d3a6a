"""Defines the base class of readers: bytes arrive as chunks, and are read as chunks or in any size.

A chunk has the bytes of one message, in one object, without a copy, so iterating is the fastest way to read.
:meth:`ChunkReader.read` and :meth:`ChunkReader.readinto` keep the rest of a chunk for the next call. Use
:meth:`ChunkReader.buffered` for lines, or for a library that reads files.
"""

from __future__ import annotations

import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from gazette_spark.closing import Closing
from gazette_spark.errors import GazetteError, OffsetError, OffsetJumpError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER_BYTES = 1 << 18
"""Number of bytes that a buffered reader requests at a time."""


@dataclass(slots=True)
class Chunk:
    """Bytes of a journal, and the offset of the first byte."""

    offset: int
    content: bytes
    mod_time: int = field(default=0, compare=False)
    """Time at which the bytes' fragment was stored, in Unix seconds; 0 if only brokers have it."""

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.offset + len(self.content)


_NOTHING = Chunk(0, b"")


class ChunkReader(Closing, ABC):
    """Reads a journal's bytes in order, without gaps or repetitions.

    If the journal itself has lost bytes, the reader jumps: when iterating, the next chunk's offset is larger
    than the end of the previous one, and ``jumps`` has an entry. Reading bytes raises OffsetJumpError once
    for each jump, after the bytes before it, and then continues after it.

    For one thread at a time; a second one gets a ValueError. Any thread may call only those methods for which
    a subclass says so.
    """

    _errors_last: ClassVar[bool] = False
    """Whether every later call raises the same error again; otherwise later calls retry."""

    def __init__(self, journal: str) -> None:
        self.journal = journal
        self.jumps: list[tuple[int, int]] = []
        """Previous jumps, each as the requested offset and the next available one."""
        self._jumps_raised = 0
        self._rest = _NOTHING
        self._rest_at = 0
        # No thread waits for this lock: two threads would each read every other chunk, so one gets an error.
        # Reentrant, because an interrupt such as Ctrl-C may come between its acquisition and the read.
        self._in_use = threading.RLock()

    @abstractmethod
    def _fetch(self) -> Chunk | None:
        """Return the next chunk, which is not empty; None at the end."""

    @abstractmethod
    def _fetched(self) -> int:
        """Return the offset of the next byte that :meth:`_fetch` may return."""

    @abstractmethod
    def _move(self, offset: int) -> None:
        """Make :meth:`_fetch` continue at ``offset``, or raise and change nothing."""

    def _ended(self) -> GazetteError | None:
        """Return the error of a reader that no longer returns anything, not even buffered bytes, or None."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End the reader and release its resources. May be called again."""

    @property
    def offset(self) -> int:
        """Offset of the next byte; -1 while a requested write head is unknown."""
        if self._left_of_rest():
            return self._rest.offset + self._rest_at
        return self._fetched()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        """Return the next chunk, which is not empty."""
        with self._alone():
            if self._left_of_rest():
                return Chunk(self.offset, self._take(-1), self._rest.mod_time)
            chunk = self._fetch()
        if chunk is None:
            raise StopIteration
        return chunk

    def read(self, n: int | None = -1) -> bytes:
        """Return the next ``n`` bytes, fewer only at the end or before a jump; -1 returns all bytes.

        After an error the reader's offset is the same as before the call. A reader that is ended by errors
        first returns the bytes before the error; the next call raises.

        Raises:
            OffsetJumpError: the next byte is at a larger offset. It is raised once per jump.
            ValueError: ``n`` is below -1, or another thread is reading.
        """
        missing = -1 if n is None else n
        if missing < -1:
            raise ValueError(f"expected a number of bytes, or -1 for all, got {n}")
        parts: list[bytes] = []
        with self._alone():
            began = self.offset
            try:
                while missing != 0 and self._ready(raises=not parts):
                    parts.append(self._take(missing))
                    missing -= len(parts[-1]) if missing > 0 else 0
            except BaseException as error:
                # The next call raises the error again, so the bytes before it can be returned.
                comes_again = isinstance(error, GazetteError) and self._errors_last and not self._ended()
                if parts and missing > 0 and comes_again:
                    return b"".join(parts)
                if parts:
                    # The error is not raised again, or is one such as KeyboardInterrupt, so the bytes go back
                    # to the buffer and the offset to where it was.
                    self._rest, self._rest_at = Chunk(began, b"".join(parts)), 0
                raise
        return b"".join(parts)

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer from one chunk, and return the number of bytes, 0 only at the end.

        Raises:
            OffsetJumpError: as in :meth:`read`.
        """
        view = memoryview(buffer).cast("B")
        with self._alone():
            if not view or not self._ready(raises=True):
                return 0
            part = self._take(len(view))
        view[: len(part)] = part
        return len(part)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Continue at another offset, and return it.

        Raises:
            OffsetError: the offset is negative, or relative to the end, which a journal does not have.
            SeekRequiresNewReaderError: the reader cannot reach the offset; its own does not change.
        """
        if whence == io.SEEK_CUR and self.offset >= 0:
            offset += self.offset
        elif whence != io.SEEK_SET:
            raise OffsetError("can only seek from the journal's begin or the current offset", self.journal)
        if offset < 0:
            raise OffsetError("cannot seek to a negative offset", self.journal, offset)
        with self._alone():
            # Buffered bytes ahead are skipped here. The subclass does everything else, including going back
            # in the buffer.
            ahead = offset - self.offset
            if 0 <= ahead <= self._left_of_rest():
                self._rest_at += ahead
            else:
                self._move(offset)
                self._forget()
        return offset

    def raw(self) -> RawChunks:
        """Return the reader as an unbuffered file. Closing that closes the reader."""
        return RawChunks(self)

    def buffered(self, buffer_bytes: int = BUFFER_BYTES) -> BufferedChunks:
        """Return the reader as a buffered file, for example to read lines. Closing that closes the reader."""
        return BufferedChunks(self, buffer_bytes)

    def adjusted_offset(self, buffered: io.BufferedReader[RawChunks]) -> int:
        """Return the offset of the next byte of ``buffered``, a file over this reader."""
        raw = buffered.raw
        if not isinstance(raw, RawChunks) or raw.reader is not self:
            raise ValueError(f"{buffered!r} does not read from {self!r}")
        return buffered.tell()

    def adjusted_seek(self, offset: int, whence: int, buffered: io.BufferedReader[RawChunks]) -> int:
        """Seek a file over this reader, within its buffer if possible, and return the new offset.

        ``whence`` is relative to the next byte of ``buffered``. Errors are those of :meth:`seek`.
        """
        # Python's buffered files compute their own position, which is wrong after jumps.
        position = self.adjusted_offset(buffered)
        if whence == io.SEEK_CUR:
            offset += position
            whence = io.SEEK_SET
        if whence == io.SEEK_SET and offset == position:
            return offset
        return buffered.seek(offset, whence)

    def _forget(self) -> None:
        """Drop buffered bytes, and jumps that have not been raised."""
        self._rest, self._rest_at = _NOTHING, 0
        self._jumps_raised = len(self.jumps)

    def _left_of_rest(self) -> int:
        return len(self._rest.content) - self._rest_at

    def _ready(self, *, raises: bool) -> bool:
        """Fill the buffer. Return False at the end, and at a jump unless ``raises`` is set."""
        while not self._jump_is_due():
            if self._left_of_rest():
                return True
            chunk = self._fetch()
            if chunk is not None:
                self._rest, self._rest_at = chunk, 0
            elif not self._jump_is_due():
                return False
        if raises:
            # Counted before it is raised, so that the next call continues after the jump.
            requested, landed = self.jumps[self._jumps_raised]
            self._jumps_raised += 1
            raise OffsetJumpError(self.journal, requested, landed)
        return False

    def _jump_is_due(self) -> bool:
        if self._jumps_raised == len(self.jumps):
            return False
        # Bytes before the jump are returned before it is raised.
        return not self._left_of_rest() or self.offset >= self.jumps[self._jumps_raised][1]

    def _take(self, n: int) -> bytes:
        low, content = self._rest_at, self._rest.content
        high = len(content) if n < 0 else min(low + n, len(content))
        self._rest_at = high
        # Drops the reference, so that a large chunk is freed when it has been read.
        if high == len(content):
            self._rest, self._rest_at = _NOTHING, 0
        return content[low:high]

    @contextmanager
    def _alone(self, *, even_if_ended: bool = False) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise ValueError(f"{self!r} is in use by another thread")
        try:
            if not even_if_ended and (ended := self._ended()) is not None:
                raise ended
            yield
        finally:
            self._in_use.release()


class RawChunks(io.RawIOBase):
    """A reader as an unbuffered binary file, for :class:`io.BufferedReader`.

    ``tell`` returns the journal's offset. At a jump, ``readinto`` returns None once if the previous call
    returned bytes, so that a buffer returns those bytes before the jump is raised.
    """

    def __init__(self, reader: ChunkReader) -> None:
        self.reader = reader
        self.held: OffsetJumpError | None = None
        """The jump that must still be raised."""
        self._brought_bytes = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True, although not every offset can be reached."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self.reader.offset

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """See :meth:`ChunkReader.seek`."""
        self.held = None
        return self.reader.seek(offset, whence)

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """See :meth:`ChunkReader.readinto`."""
        if (held := self.held) is not None:
            self.held = None
            raise held
        try:
            size = self.reader.readinto(buffer)
        except OffsetJumpError as jump:
            # `io.BufferedReader` discards the bytes that it has collected if its raw file raises. It returns
            # them if the raw file has "no bytes now". So the error waits for the next call.
            if not self._brought_bytes:
                raise
            self.held, self._brought_bytes = jump, False
            return None
        self._brought_bytes = size > 0
        return size

    def close(self) -> None:
        """Close the reader too."""
        if not self.closed:
            self.reader.close()
        super().close()


if TYPE_CHECKING:
    _Buffered = io.BufferedReader[RawChunks]
else:
    _Buffered = io.BufferedReader


class BufferedChunks(_Buffered):
    """A reader as a buffered binary file. Reads and lines stop before a jump, and the next call raises it.

    A plain :class:`io.BufferedReader` may end there instead, with None or without more lines.
    """

    def __init__(self, reader: ChunkReader, buffer_bytes: int = BUFFER_BYTES) -> None:
        super().__init__(RawChunks(reader), buffer_bytes)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, fewer only at the end or before a jump."""
        # None or no bytes mean the end, or a jump that the raw file must still raise.
        return super().read(size) or self._nothing()

    def read1(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes with at most one read."""
        return super().read1(size) or self._nothing()

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line with its newline; part of a line only at the end or before a jump."""
        return super().readline(size) or self._nothing()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer and return the number of bytes, fewer only at the end or before a jump."""
        return super().readinto(buffer) or len(self._nothing())

    def _nothing(self) -> bytes:
        """Return no bytes at the end, and raise at a jump."""
        held, self.raw.held = self.raw.held, None
        if held is not None:
            raise held
        return b""
