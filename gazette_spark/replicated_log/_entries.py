"""Encodes the records of a log as frames, and decodes them. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from gazette_spark._formats.fixed import HEADER_BYTES, MAGIC, frame
from gazette_spark.client._append.append import Bytes
from gazette_spark.errors import OptionError, RecordError
from gazette_spark.protocol.replicated_log_pb2 import Checkpoint, LogEntry

MAX_ENTRY_BYTES = 16 << 20
"""Maximum length of an entry, in bytes. A receiver has several whole entries in memory."""

_OVERHEAD_BYTES = 256
"""Upper bound for the length of a record's other fields."""

_DROP_BYTES = 1 << 20
"""Number of consumed bytes of a buffer after which the rest is moved to its beginning."""

NO_ENTRY = -1
"""``lastEntryOffset`` of a checkpoint without an earlier entry."""


def entry_frame(stamp: uuid.UUID, earliest: int, entry: Bytes) -> bytes:
    """Return the frame of an entry."""
    record = LogEntry(uuid=stamp.bytes, earliestOffset=earliest, entry=bytes(entry))
    return frame(record.SerializeToString())


def take_over_frame(stamp: uuid.UUID, earliest: int) -> bytes:
    """Return the frame of a record without content, whose append changes the author."""
    return frame(LogEntry(uuid=stamp.bytes, earliestOffset=earliest).SerializeToString())


def checkpoint_frame(stamp: uuid.UUID, begin: int, *, last: int, version: int) -> bytes:
    """Return the frame of a checkpoint that begins at ``begin``. It contains its own end.

    Args:
        stamp: The record's UUID.
        begin: Offset of the frame.
        last: First offset of the previous entry, or NO_ENTRY.
        version: The log's version from the checkpoint on.
    """
    record = LogEntry(uuid=stamp.bytes, earliestOffset=begin, version=version)
    record.checkpoint.lastEntryOffset = last
    end = begin
    # The encoded length of the end depends on its value. It can grow at most once, by one byte.
    while record.checkpoint.nextEntryOffset != (end := begin + HEADER_BYTES + record.ByteSize()):
        record.checkpoint.nextEntryOffset = end
    return frame(record.SerializeToString())


def check_size(entry: Bytes) -> None:
    """Check that receivers can read an entry.

    Raises:
        OptionError: the entry is longer than MAX_ENTRY_BYTES.
    """
    if (size := memoryview(entry).nbytes) > MAX_ENTRY_BYTES:
        expected = f"at most {MAX_ENTRY_BYTES} bytes; store longer ones elsewhere, and commit their location"
        raise OptionError("data", f"an entry of {size} bytes", expected)


@dataclass(frozen=True, slots=True)
class Record:
    """A record and its place, ``[begin, end)``."""

    begin: int
    end: int
    stamp: uuid.UUID
    earliest: int
    """Offset before which no copy of the record begins."""
    content: bytes | Checkpoint | None
    """Content of an entry, or a checkpoint; None for a takeover."""
    version: int
    """The log's version from a checkpoint on."""


def parse_record(journal: str, begin: int, end: int, payload: bytes) -> Record:
    """Return a frame's record.

    Raises:
        RecordError: the payload is not a record, or has no UUID.
    """
    try:
        entry = LogEntry.FromString(payload)
    except DecodeError as error:
        raise RecordError(journal, begin, f"it is not a replicated_log.LogEntry: {error}") from error
    # Without a UUID, repetitions could not be recognised.
    if len(entry.uuid) != 16:
        raise RecordError(journal, begin, f"its uuid has {len(entry.uuid)} bytes, not 16")
    content: bytes | Checkpoint | None = None
    match entry.WhichOneof("content"):
        case "entry":
            content = entry.entry
        case "checkpoint":
            # The record's actual position counts, not the one that its writer expected.
            content = Checkpoint(lastEntryOffset=entry.checkpoint.lastEntryOffset, nextEntryOffset=end)
    stamp = uuid.UUID(bytes=entry.uuid)
    return Record(begin, end, stamp, entry.earliestOffset, content, entry.version)


class FrameBuffer:
    """Cuts a journal's bytes, in pieces of any size, into records."""

    def __init__(self, journal: str, offset: int) -> None:
        self._journal = journal
        self._data = bytearray()
        self._at = 0
        self._offset = offset

    @property
    def begin(self) -> int:
        """Offset of the next record."""
        return self._offset + self._at

    @property
    def end(self) -> int:
        """Offset of the next byte to be fed."""
        return self._offset + len(self._data)

    def feed(self, content: bytes) -> None:
        """Add the bytes at ``end``."""
        # Moving the rest of the buffer for each record would cost more than the records.
        if self._at >= _DROP_BYTES or self._at == len(self._data):
            del self._data[: self._at]
            self._offset, self._at = self._offset + self._at, 0
        self._data += content

    def peek(self) -> Record | None:
        """Return the next record, None if it is incomplete. :meth:`advance` steps past it.

        Raises:
            RecordError: there is no frame, or it is longer than any entry.
        """
        head = bytes(self._data[self._at : self._at + HEADER_BYTES])
        # Compare even a part of the magic number: garbage at the end of a log is an immediate error, not a
        # record to wait for.
        if head[: len(MAGIC)] != MAGIC[: len(head)]:
            problem = "no frame begins there; an offset of a log is the beginning or the end of an entry"
            raise RecordError(self._journal, self.begin, problem)
        if len(head) < HEADER_BYTES:
            return None
        size = int.from_bytes(head[len(MAGIC) :], "little")
        # The length is four bytes of the journal. Without this check, damaged ones could make a receiver wait
        # for 4 GiB, and collect them.
        if size > MAX_ENTRY_BYTES + _OVERHEAD_BYTES:
            raise RecordError(
                self._journal, self.begin, f"its frame of {size} bytes is longer than any entry's"
            )
        low = self._at + HEADER_BYTES
        if len(self._data) < low + size:
            return None
        begin = self.begin
        payload = bytes(self._data[low : low + size])
        return parse_record(self._journal, begin, begin + HEADER_BYTES + size, payload)

    def advance(self, end: int) -> None:
        """Step to the end of the record that :meth:`peek` returned."""
        self._at = end - self._offset

    def __iter__(self) -> Iterator[Record]:
        """Yield the whole records, and step past them."""
        while (record := self.peek()) is not None:
            self.advance(record.end)
            yield record
