"""Messages as an application defines them, with one class for each framing."""

from __future__ import annotations

import csv
import io
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from gazette_spark.message import NIL_UUID, Message
from gazette_spark.protocol.labels import CONTENT_TYPE_CSV, CONTENT_TYPE_NDJSON, CONTENT_TYPE_PROTO_FIXED


@dataclass
class Stamped:
    stamp: uuid.UUID = field(default=NIL_UUID, kw_only=True)

    def get_uuid(self) -> uuid.UUID:
        return self.stamp

    def set_uuid(self, stamp: uuid.UUID) -> None:
        self.stamp = stamp


@dataclass
class Document(Stamped):
    """A JSON document with its UUID at ``/_meta/uuid``."""

    fields: dict[str, Any] = field(default_factory=dict)

    def new_acknowledgement(self, _journal: str) -> Message:
        return Document()

    def __bytes__(self) -> bytes:
        return json.dumps({"_meta": {"uuid": str(self.stamp)}} | self.fields).encode()


@dataclass
class Record(Stamped):
    """A CSV record with its UUID in the first column."""

    columns: list[str]

    def new_acknowledgement(self, _journal: str) -> Message:
        """Return a record with the full number of columns, which Gazette's reader requires."""
        return Record([""] * len(self.columns))

    def __bytes__(self) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow([str(self.stamp), *self.columns])
        return text.getvalue().encode()


@dataclass
class Payload(Stamped):
    """A protobuf message with its UUID in field 1, and a number in field 2."""

    number: int = 0

    def new_acknowledgement(self, _journal: str) -> Message:
        return Payload()

    def __bytes__(self) -> bytes:
        return b"\x0a\x10" + self.stamp.bytes + (bytes([0x10, self.number]) if self.number else b"")


KINDS = {
    CONTENT_TYPE_NDJSON: lambda number: Document({"number": number}),
    CONTENT_TYPE_CSV: lambda number: Record([str(number), 'a "quoted", text']),
    CONTENT_TYPE_PROTO_FIXED: Payload,
}
"""Functions that create a numbered message, by content type of the journal."""
