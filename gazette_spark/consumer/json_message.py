"""JSON documents as messages, with their UUID where Gazette's own tools look for it."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from gazette_spark.errors import MessageError
from gazette_spark.message.interfaces import NIL_UUID
from gazette_spark.message.uuids import ACK_TXN, split_uuid
from gazette_spark.protocol import protocol_pb2 as pb


@dataclass(slots=True)
class JsonMessage:
    """A JSON object; its UUID is at ``/_meta/uuid``, and an acknowledgement holds nothing else."""

    fields: dict[str, Any] = field(default_factory=dict)
    """The members but ``_meta``."""
    stamp: uuid.UUID = NIL_UUID

    @classmethod
    def parse(cls, spec: pb.JournalSpec, record: bytes) -> JsonMessage:
        """Return the message of a record: an application's ``new_message``.

        Raises:
            MessageError: the record is no JSON object, or its UUID is none.
        """
        try:
            fields = json.loads(record)
            meta = fields.pop("_meta", None) or {}
            return cls(fields, uuid.UUID(meta["uuid"]) if meta.get("uuid") else NIL_UUID)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            problem = f"{record[:80]!r} is no JSON object with a UUID at /_meta/uuid: {error}"
            raise MessageError(f"journal {spec.name!r}: {problem}") from error

    @property
    def is_acknowledgement(self) -> bool:
        """Whether the message only commits others."""
        return split_uuid(self.stamp)[2] == ACK_TXN

    def get_uuid(self) -> uuid.UUID:
        """Return the UUID."""
        return self.stamp

    def set_uuid(self, stamp: uuid.UUID) -> None:
        """Change the UUID."""
        self.stamp = stamp

    def new_acknowledgement(self, journal: str) -> JsonMessage:  # noqa: ARG002  # The same in every journal.
        """Return a message of nothing but its UUID."""
        return JsonMessage()

    def __bytes__(self) -> bytes:
        document = {"_meta": {"uuid": str(self.stamp)}, **self.fields}
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
