"""Defines messages, envelopes and framings, which publishers, sequencers and readers share.

A record's bytes do not include its framing: a line without its newline, the payload of a fixed frame. A
journal's label ``content-type`` names the framing of its messages, and is compared literally, as in Gazette.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gazette_spark._formats import registry
from gazette_spark._formats.fixed import FIXED, frame
from gazette_spark._formats.framing import Cut, RecordFraming
from gazette_spark._formats.lines import LINES
from gazette_spark.errors import MessageError
from gazette_spark.message.uuids import Clock, ProducerId
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import (
    CONTENT_TYPE,
    CONTENT_TYPE_RECOVERY_LOG,
    values_of,
)

NIL_UUID = uuid.UUID(int=0)
"""UUID of a message without one: it never counts as repeated, and belongs to no transaction."""

NO_OFFSET = -1
"""``begin`` of a producer without an open transaction."""

MAX_PAYLOAD_BYTES = (1 << 32) - 1
"""Maximum length of a payload that fits the header of a fixed frame."""


class Message(Protocol):
    """A message that can be published and read back: any class with these methods."""

    def get_uuid(self) -> uuid.UUID:
        """Return the message's UUID. :data:`NIL_UUID` opts the message out of sequencing."""

    def set_uuid(self, stamp: uuid.UUID) -> None:
        """Give the message a UUID. A class that has no UUID does nothing."""

    def new_acknowledgement(self, journal: str) -> Message:
        """Return a message of this class that acknowledges this and other messages in a journal.

        The publisher sets its UUID. The reader's class must be able to read it.
        """

    def __bytes__(self) -> bytes:
        """Return the record's bytes without framing."""


NewMessage = Callable[[pb.JournalSpec, bytes], Message]
"""Makes a message from the bytes of a journal's record; raises MessageError, or another ValueError, if the
bytes are invalid."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and its place: its frame is ``[begin, end)`` of the journal."""

    journal: str
    begin: int
    end: int
    message: Message


class JournalProducer(NamedTuple):
    """A producer in one of its journals."""

    journal: str
    producer: ProducerId


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of a producer in a journal, in a sequencer's checkpoint."""

    journal: str
    producer: ProducerId
    last_ack: Clock
    """Clock of the newest acknowledged and delivered message."""
    begin: int = NO_OFFSET
    """Offset of the producer's open transaction in the journal; -1 if none is open."""

    @property
    def key(self) -> JournalProducer:
        """The producer and journal of the state."""
        return JournalProducer(self.journal, self.producer)


@dataclass(frozen=True, slots=True)
class Framing:
    """The framing of messages in journals of a content type."""

    content_type: str
    records: RecordFraming
    """Finds the records in a journal's bytes."""

    def marshal(self, message: Message) -> bytes:
        """Return a message with its framing.

        Raises:
            MessageError: readers would not find exactly this record.
        """
        return self.frame(bytes(message))

    def frame(self, record: bytes) -> bytes:
        """Return a record with its framing. Errors are those of :meth:`marshal`."""
        if self.records is FIXED:
            if len(record) > MAX_PAYLOAD_BYTES:
                raise MessageError(f"{len(record)} bytes do not fit a fixed frame")
            return frame(record)
        # A record that readers would read as two, or as none, must not reach the journal, because nobody
        # could remove it. A record of CSV is searched as its readers would search it.
        if self.records is LINES:
            is_one = record != b"" and b"\n" not in record
        else:
            cut = self.records.cut(record + b"\n", 0)
            is_one = record != b"" and (cut.starts.tolist(), cut.ends.tolist()) == ([0], [len(record)])
        if not is_one:
            raise MessageError(f"{record[:80]!r} is not exactly one record of {self.content_type}")
        return record + b"\n"

    def unmarshal(self, data: bytes, offset: int = 0) -> Cut:
        """Find the whole records at the beginning of a journal's bytes, which begin with a record.

        Args:
            data: Bytes of a journal.
            offset: Offset of the bytes in the journal.

        Returns:
            The records' positions in ``data``, the number of processed bytes, and bytes outside frames.
        """
        return self.records.cut(data, offset)


CONTENT_TYPES = {name: spec.message_type for name, spec in registry.FRAMINGS.items() if spec.message_type}
"""Content type of each framing of messages, by the framing's name as the option ``framing`` spells it."""

FRAMINGS = {
    content_type: Framing(content_type, registry.framing_named(name, MAX_PAYLOAD_BYTES))
    for name, content_type in CONTENT_TYPES.items()
}
"""Framing of each content type of messages."""


def framing_by_content_type(content_type: str, journal: str = "") -> Framing:
    """Return the framing of a content type, which is compared literally: parameters are not supported.

    Args:
        content_type: Value of the label; empty without one.
        journal: Name of the journal for the error.

    Raises:
        MessageError: the content type has no framing of messages, such as that of recovery logs.
    """
    framing = FRAMINGS.get(content_type)
    if framing is not None:
        return framing
    where = f"journal {journal!r}: " if journal else ""
    what = f"has no framing of messages: {CONTENT_TYPE}={content_type}"
    if content_type == CONTENT_TYPE_RECOVERY_LOG:
        what = f"{content_type} is a recovery log, which has no messages"
    elif not content_type:
        what = f"it lacks the label {CONTENT_TYPE}, which names the framing of messages"
    raise MessageError(f"{where}{what}; messages are in journals of {', '.join(FRAMINGS)}")


def framing_of_journal(spec: pb.JournalSpec) -> Framing:
    """Return the framing of a journal's messages from its label. Errors name the journal."""
    return framing_by_content_type(next(iter(values_of(spec.labels, CONTENT_TYPE)), ""), spec.name)
