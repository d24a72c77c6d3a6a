"""Tests that JSON messages have their UUID where Gazette's tools expect it."""

from __future__ import annotations

import json

import pytest

from gazette_spark.consumer.application import JsonMessage
from gazette_spark.errors import MessageError
from gazette_spark.message import Clock, build_uuid, new_producer_id
from gazette_spark.message.interfaces import NIL_UUID
from gazette_spark.message.uuids import ACK_TXN, CONTINUE_TXN
from gazette_spark.protocol import protocol_pb2 as pb

SPEC = pb.JournalSpec(name="a/journal")


def test_a_message_comes_back() -> None:
    message = JsonMessage({"text": "ä\n", "n": [1, None]})
    message.set_uuid(build_uuid(new_producer_id(), Clock(160), CONTINUE_TXN))
    record = bytes(message)
    assert b"\n" not in record
    assert json.loads(record)["_meta"] == {"uuid": str(message.get_uuid())}
    assert JsonMessage.parse(SPEC, record) == message
    assert not message.is_acknowledgement


@pytest.mark.parametrize("record", [rb'{"a":"\ud800\\"}', rb'{"\\\udfff":"\ud83d\ude00"}'])
def test_what_can_be_read_can_be_published(record: bytes) -> None:
    """JSON allows half of a surrogate pair."""
    message = JsonMessage.parse(SPEC, record)
    assert JsonMessage.parse(SPEC, bytes(message)) == message


def test_an_acknowledgement_is_nothing_else() -> None:
    """It has no fields besides its UUID, whose flags identify it."""
    acknowledgement = JsonMessage({"n": 1}).new_acknowledgement("a/journal")
    acknowledgement.set_uuid(build_uuid(new_producer_id(), Clock(160), ACK_TXN))
    parsed = JsonMessage.parse(SPEC, bytes(acknowledgement))
    assert (parsed.fields, parsed.is_acknowledgement) == ({}, True)


@pytest.mark.parametrize("record", [b"{}", b'{"_meta":null}', b'{"_meta":{"uuid":""}}'])
def test_a_message_without_a_uuid_opts_out(record: bytes) -> None:
    """The sequencer ignores a nil UUID."""
    assert JsonMessage.parse(SPEC, record) == JsonMessage({}, NIL_UUID)


@pytest.mark.parametrize("record", [b"", b"[1]", b"\xff", b'{"_meta":1}', b'{"_meta":{"uuid":"x"}}'])
def test_other_records_are_refused(record: bytes) -> None:
    with pytest.raises(MessageError, match=r"a/journal.*not a JSON object"):
        JsonMessage.parse(SPEC, record)
