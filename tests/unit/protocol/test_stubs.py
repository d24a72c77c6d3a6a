"""Tests that the stubs have all messages and services of the wire format, with every supported protobuf."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Self

import grpc
import pytest
from google.protobuf import duration_pb2, json_format
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import consumer_pb2_grpc as pc_grpc
from gazette_spark.protocol import etcd_pb2 as pe
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol import replicated_log_pb2 as pl

SCALARS: dict[int, Any] = {
    FieldDescriptor.TYPE_STRING: "ünï",
    FieldDescriptor.TYPE_BYTES: b"\x00\xff",
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_INT32: -(2**31),
    FieldDescriptor.TYPE_INT64: -(2**63),
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
    FieldDescriptor.TYPE_FIXED32: 2**32 - 1,
    FieldDescriptor.TYPE_FIXED64: 2**64 - 1,
}
"""Value of each field type, at the limit of its range."""


def classes(scope: Any) -> Iterator[type[Message]]:
    for _, found in inspect.getmembers(scope, lambda x: inspect.isclass(x) and issubclass(x, Message)):
        if not found.DESCRIPTOR.GetOptions().map_entry:
            yield found
            yield from classes(found)


def example(cls: type[Message]) -> Message:
    descriptor: Any = cls.DESCRIPTOR
    if descriptor.full_name == "google.protobuf.Duration":
        return duration_pb2.Duration(seconds=90, nanos=5)
    message = cls()
    for field in descriptor.fields:
        if field.message_type and field.message_type.GetOptions().map_entry:
            put_entry(message, field)
        elif is_repeated(message, field):
            getattr(message, field.name).extend([value_of(message, field)] * 2)
        elif field.message_type:
            getattr(message, field.name).CopyFrom(value_of(message, field))
        else:
            setattr(message, field.name, value_of(message, field))
    return message


def is_repeated(message: Message, field: FieldDescriptor) -> bool:
    """Find repeated fields in the only way that no release of protobuf warns about."""
    return not isinstance(getattr(message, field.name), (Message, str, bytes, int))


def value_of(message: Message, field: FieldDescriptor) -> Any:
    if field.message_type:
        return example(GetMessageClass(field.message_type))
    if field.enum_type:
        return max(field.enum_type.values_by_number)
    return SCALARS[field.type]


def put_entry(message: Message, field: FieldDescriptor) -> None:
    assert field.message_type is not None
    value = field.message_type.fields_by_name["value"]
    entries = getattr(message, field.name)
    if value.message_type:
        entries["a/journal"].CopyFrom(value_of(message, value))
    else:
        entries["a/journal"] = value_of(message, value)


MESSAGES = sorted({c.DESCRIPTOR.full_name: c for m in (pb, pc, pr, pl, pe) for c in classes(m)}.items())


@pytest.mark.parametrize("cls", [c for _, c in MESSAGES], ids=[name for name, _ in MESSAGES])
def test_message_round_trips(cls: type[Message]) -> None:
    """Of the fields of a oneof, only the last one is set."""
    message = example(cls)
    replaced = {field.name for one in cls.DESCRIPTOR.oneofs for field in one.fields[:-1]}
    assert {field.name for field, _ in message.ListFields()} == set(cls.DESCRIPTOR.fields_by_name) - replaced
    assert cls.FromString(message.SerializeToString()) == message
    assert json_format.Parse(json_format.MessageToJson(message), cls()) == message


def test_every_message_was_tried() -> None:
    """The wire format has 52 messages, recovery logs 8, our own protocol 2, and Etcd 26."""
    counts = {
        package: sum(name.startswith(f"{package}.") for name, _ in MESSAGES)
        for package in ("protocol", "consumer", "recoverylog", "replicated_log", "etcd")
    }
    assert counts == {"protocol": 31, "consumer": 21, "recoverylog": 8, "replicated_log": 2, "etcd": 26}


@pytest.mark.parametrize(
    "module", [pb, pc, pr, pl, pe], ids=["protocol", "consumer", "recoverylog", "replicated_log", "etcd"]
)
def test_file_is_registered_under_our_path(module: Any) -> None:
    """Another package might register Gazette's original path in the same descriptor pool."""
    file: FileDescriptor = module.DESCRIPTOR
    assert file.name == f"gazette_spark/protocol/{file.package}.proto"


def test_wire_bytes() -> None:
    """The bytes were worked out by hand from the field tables."""
    assert pb.ReadRequest(journal="a/b", offset=-1).SerializeToString() == (
        b"\x12\x03a/b" + b"\x18" + b"\xff" * 9 + b"\x01"
    )
    assert pb.SHA1Sum(part1=1, part3=2).SerializeToString() == b"\x09\x01" + b"\0" * 7 + b"\x1d\x02\0\0\0"
    assert pb.FragmentsRequest(signatureTTL=duration_pb2.Duration(seconds=1)).SerializeToString() == (
        b"\x3a\x02\x08\x01"
    )
    assert pb.JournalSpec(flags=pb.JournalSpec.O_RDWR).SerializeToString() == b"\x30\x04"
    assert pc.ListRequest(extension=b"x").SerializeToString() == b"\xa2\x06\x01x"
    assert pc.ShardSpec.Source(min_offset=1).SerializeToString() == b"\x18\x01"


def test_status_numbers() -> None:
    assert pb.Status.items() == [
        ("OK", 0),
        ("JOURNAL_NOT_FOUND", 1),
        ("NO_JOURNAL_PRIMARY_BROKER", 2),
        ("NOT_JOURNAL_PRIMARY_BROKER", 3),
        ("INSUFFICIENT_JOURNAL_BROKERS", 4),
        ("NOT_JOURNAL_BROKER", 5),
        ("OFFSET_NOT_YET_AVAILABLE", 6),
        ("WRONG_ROUTE", 7),
        ("PROPOSAL_MISMATCH", 8),
        ("ETCD_TRANSACTION_FAILED", 9),
        ("NOT_ALLOWED", 10),
        ("WRONG_APPEND_OFFSET", 11),
        ("INDEX_HAS_GREATER_OFFSET", 12),
        ("REGISTER_MISMATCH", 13),
        ("SUSPENDED", 14),
        ("FRAGMENT_STORE_UNHEALTHY", 15),
    ]


class RecordingChannel(grpc.Channel):
    """A channel that records which methods a stub requests, and cannot call them."""

    def __init__(self) -> None:
        self.methods: dict[str, str] = {}

    def _note(self, kind: str, method: str) -> None:
        self.methods[method] = kind

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Any:
        self._note("unary_unary", method)

    def unary_stream(self, method: str, *_: Any, **__: Any) -> Any:
        self._note("unary_stream", method)

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Any:
        self._note("stream_unary", method)

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Any:
        self._note("stream_stream", method)

    def subscribe(self, *_: Any, **__: Any) -> None: ...

    def unsubscribe(self, *_: Any) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_journal_methods() -> None:
    channel = RecordingChannel()
    pb_grpc.JournalStub(channel)
    assert channel.methods == {
        "/protocol.Journal/List": "unary_stream",
        "/protocol.Journal/Apply": "unary_unary",
        "/protocol.Journal/Read": "unary_stream",
        "/protocol.Journal/Append": "stream_unary",
        "/protocol.Journal/Replicate": "stream_stream",
        "/protocol.Journal/ListFragments": "unary_unary",
        "/protocol.Journal/FragmentStoreHealth": "unary_unary",
    }


def test_shard_methods() -> None:
    channel = RecordingChannel()
    pc_grpc.ShardStub(channel)
    names = ["Stat", "List", "Apply", "GetHints", "Unassign"]
    assert channel.methods == {f"/consumer.Shard/{name}": "unary_unary" for name in names}
