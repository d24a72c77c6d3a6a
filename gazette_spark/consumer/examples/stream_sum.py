"""Sums streams that arrive in chunks, as Gazette's example and acceptance test ``stream-sum`` does.

A chunk is ``{"UUID": …, "ID": [16 numbers], "SeqNo": 1, "Data": base64}``; the last one of a stream has no
data. After that, the sum is published: ``{"UUID": …, "ID": …, "SeqNo": …, "Value": CRC-64}``. A chunk that is
lost, repeated or out of order makes the shard fail, so the application checks its host. The messages are
those of Go's example, whose chunker can write streams and verify the sums.
"""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from gazette_spark.consumer import Application, JsonStore, Shard
from gazette_spark.errors import MessageError
from gazette_spark.message import ACK_TXN, NIL_UUID, Envelope, Publisher, split_uuid
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.strict_json import parse_json

SUMS_JOURNAL = "examples/stream-sum/sums"
"""Journal to which sums are published."""

_POLYNOMIAL = 0xC96C5795D7870F42
"""Polynomial ECMA-182, reflected."""


def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901  # A register.
        table.append(value)
    return tuple(table)


_TABLE = _table()
_ALL = (1 << 64) - 1


def crc64(data: bytes, value: int = 0) -> int:
    """Return the CRC-64 of bytes that follow those whose CRC is ``value``.

    >>> hex(crc64(b"123456789"))
    '0x995dc9bbdf1939fa'
    """
    value ^= _ALL
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ _ALL


@dataclass(slots=True)
class StreamChunk:
    """A chunk of a stream, or an acknowledgement."""

    stream: bytes
    """Id of the stream, 16 bytes."""
    seq_no: int
    """Number of the chunk in its stream, from 1."""
    data: bytes
    """Data of the chunk; empty at the end of the stream."""
    stamp: uuid.UUID = NIL_UUID

    @classmethod
    def parse(cls, spec: pb.JournalSpec, record: bytes) -> StreamChunk:
        """Return the chunk of a record."""
        try:
            fields = parse_json(record)
            data = base64.b64decode(fields["Data"] or "")
            # Make a list, because bytes() of a number would be that many zeros.
            return cls(bytes(list(fields["ID"])), fields["SeqNo"], data, uuid.UUID(fields["UUID"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MessageError(f"journal {spec.name!r}: {record[:80]!r} is not a chunk: {error!r}") from error

    def get_uuid(self) -> uuid.UUID:
        """Return the UUID."""
        return self.stamp

    def set_uuid(self, stamp: uuid.UUID) -> None:
        """Change the UUID."""
        self.stamp = stamp

    def new_acknowledgement(self, journal: str) -> StreamChunk:  # The same in every journal.
        """Return a chunk of no stream."""
        return StreamChunk(bytes(16), 0, b"")

    def __bytes__(self) -> bytes:
        data = base64.b64encode(self.data).decode() if self.data else None
        return _json(UUID=str(self.stamp), ID=list(self.stream), SeqNo=self.seq_no, Data=data)


@dataclass(slots=True)
class Sum:
    """The sum of a stream, or an acknowledgement."""

    stream: bytes = field(default=bytes(16))
    seq_no: int = 0
    """Sequence number of the last chunk."""
    value: int = 0
    stamp: uuid.UUID = NIL_UUID

    @classmethod
    def parse(cls, spec: pb.JournalSpec, record: bytes) -> Sum:
        """Return the sum of a record."""
        try:
            fields = parse_json(record)
            stamp = uuid.UUID(fields["UUID"])
            return cls(bytes(list(fields["ID"])), fields["SeqNo"], fields["Value"], stamp)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MessageError(f"journal {spec.name!r}: {record[:80]!r} is not a sum: {error!r}") from error

    def get_uuid(self) -> uuid.UUID:
        """Return the UUID."""
        return self.stamp

    def set_uuid(self, stamp: uuid.UUID) -> None:
        """Change the UUID."""
        self.stamp = stamp

    def new_acknowledgement(self, journal: str) -> Sum:  # The same in every journal.
        """Return a sum of no stream."""
        return Sum()

    def __bytes__(self) -> bytes:
        return _json(UUID=str(self.stamp), ID=list(self.stream), SeqNo=self.seq_no, Value=self.value)


def _json(**fields: Any) -> bytes:  # noqa: ANN401  # What JSON takes.
    return json.dumps(fields, separators=(",", ":")).encode()


class StreamSum(Application[JsonStore]):
    """Adds chunks to the sums of their streams, and publishes the sums of streams that have ended."""

    def __init__(self, sums_journal: str = SUMS_JOURNAL) -> None:
        self.sums_journal = sums_journal

    def new_store(self, shard: Shard) -> JsonStore:
        """Keep the number of chunks and the sum of each open stream."""
        return shard.json_store(initial={})

    def new_message(self, spec: pb.JournalSpec, record: bytes) -> StreamChunk:
        """Read a chunk."""
        return StreamChunk.parse(spec, record)

    def key_of(self, envelope: Envelope) -> str:
        """Return the stream. On Spark, different streams are summed in different tasks."""
        assert isinstance(envelope.message, StreamChunk)
        return envelope.message.stream.hex()

    def consume_message(
        self, shard: Shard, store: JsonStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Add a chunk."""
        chunk = envelope.message
        assert isinstance(chunk, StreamChunk)
        if split_uuid(chunk.stamp)[2] == ACK_TXN:
            return
        stream = chunk.stream.hex()
        seq_no, value = store.state.get(stream, (0, 0))
        if chunk.seq_no != seq_no + 1:
            raise ValueError(f"stream {stream}: chunk {chunk.seq_no} came after chunk {seq_no}")
        if chunk.data:
            store.state[stream] = [chunk.seq_no, crc64(chunk.data, value)]
            return
        store.state.pop(stream, None)
        mapping = (self.sums_journal, "application/x-ndjson")
        publisher.publish_uncommitted(lambda _: mapping, Sum(chunk.stream, chunk.seq_no, value))

    def finalize_txn(self, shard: Shard, store: JsonStore, publisher: Publisher) -> None:
        """Do nothing, because the sums are already in the store."""
