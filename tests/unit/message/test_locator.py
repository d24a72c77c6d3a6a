"""Tests how a record's UUID is read, replaced in place, or added to a JSON record without one."""

from __future__ import annotations

import csv
import io
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.errors import MessageError, OptionError
from gazette_spark.message import Locator, Message, RawMessage, locator_for, raw_messages
from gazette_spark.message.interfaces import NIL_UUID, framing_by_content_type
from gazette_spark.message.locator import CsvColumn, JsonPointer, ProtobufField
from gazette_spark.protocol import protocol_pb2 as pb
from tests.oracles.messages import order_class

JSON, TABLE, FIXED = "application/x-ndjson", "text/csv", "application/x-protobuf-fixed"
STAMP = uuid.UUID("04c29687-833b-11ee-8001-010203040506")
OTHER = uuid.UUID("04c29691-833b-11ee-8002-0a0b0c0d0e0f")
NEW = b'"04c29687-833b-11ee-8001-010203040506"'
OLD = b'"04c29691-833b-11ee-8002-0a0b0c0d0e0f"'
META = locator_for(JSON)


@pytest.mark.parametrize(
    ("record", "stamped"),
    [
        (b"{}", b'{"_meta":{"uuid":%b}}'),
        (b" { } \r", b' {"_meta":{"uuid":%b} } \r'),
        (b'{"a": 1.50}', b'{"_meta":{"uuid":%b},"a": 1.50}'),
        (b'{ "a":1}', b'{"_meta":{"uuid":%b}, "a":1}'),
        (b'{"_meta":{}}', b'{"_meta":{"uuid":%b}}'),
        (b'{"a":"\xc3\xa9","_meta": {"x":[{}]} }', b'{"a":"\xc3\xa9","_meta": {"uuid":%b,"x":[{}]} }'),
        (b'{"_meta":null,"a":1}', b'{"_meta":{"uuid":%b},"a":1}'),
        (b'{"_meta":{"uuid":null}}', b'{"_meta":{"uuid":%b}}'),
        (
            b'{"uuid":"x","n":{"_meta":{"uuid":1}}}',
            b'{"_meta":{"uuid":%b},"uuid":"x","n":{"_meta":{"uuid":1}}}',
        ),
        (b'{"a":' + b"9" * 5_000 + b"}", b'{"_meta":{"uuid":%b},"a":' + b"9" * 5_000 + b"}"),
    ],
    ids=[
        "empty",
        "blanks",
        "first",
        "blank-first",
        "in-meta",
        "in-filled",
        "null",
        "uuid-null",
        "deeper",
        "long",
    ],
)
def test_a_uuid_is_put_first(record: bytes, stamped: bytes) -> None:
    assert META.get(record) is None
    assert META.set(record, STAMP) == stamped % NEW
    assert META.get(stamped % NEW) == STAMP


@pytest.mark.parametrize(
    "record",
    [
        b'{"_meta":{"uuid":%b},"a":1}',
        b'{"a":{"_meta":{}}, "_meta" : { "b":"\\"}", "uuid" :\t%b } }',
        b'{"\\u005fmeta":{"uuid":%b}}',
        b'{"_meta":{"uuid":"no"},"_meta":{"uuid":%b}}',
    ],
    ids=["plain", "spaced", "escaped", "twice"],
)
def test_a_uuid_is_replaced_in_place(record: bytes) -> None:
    """If a name occurs more than once, the last one counts, as in Python's JSON."""
    assert META.get(record % OLD) == OTHER
    assert META.set(record % OLD, STAMP) == record % NEW


def test_a_pointer_is_unescaped() -> None:
    """In a JSON pointer, ``~1`` is a slash and ``~0`` a tilde."""
    locator = locator_for(JSON, '/a~1b~0/"')
    record = locator.set(b"{}", STAMP)
    assert json.loads(record) == {"a/b~": {'"': str(STAMP)}}
    assert locator.get(record) == STAMP


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", 'é"']), inner, max_size=3)
    ),
    max_leaves=8,
)
_META = st.dictionaries(st.sampled_from(["uuid", "x"]), st.none() | st.just(str(OTHER)), max_size=2)
_RECORDS = st.dictionaries(st.sampled_from(["a", "b", "c\\"]), _VALUES, max_size=4)


@given(_RECORDS, st.none() | _META, st.sampled_from([None, 1]), st.booleans())
def test_only_the_uuid_changes(
    value: dict[str, Any], meta: Any, indent: int | None, ascii_only: bool
) -> None:
    if meta is not None:
        value["_meta"] = meta
    record = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        record.decode()
    except UnicodeDecodeError:
        record = json.dumps(value).encode()
    had = (meta or {}).get("uuid")
    assert META.get(record) == (uuid.UUID(had) if had else None)
    stamped = META.set(record, STAMP)
    assert json.loads(stamped) == {**value, "_meta": {**(meta or {}), "uuid": str(STAMP)}}
    assert META.set(META.set(record, OTHER), STAMP) == stamped


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"a":1', "not JSON"),
        (b'{"a":1,}', "not JSON"),
        (b'{"a":1}}', "not JSON"),
        (b'{"a" 1}', "not JSON"),
        (b'{"a":nil}', "not JSON"),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        (b'{"a":' + b"[" * 100_000, "too many levels"),
        (b'{"_meta":[]}', '"_meta" is not an object'),
        (b'{"_meta":{"uuid":17}}', "the UUID is not a string"),
        (b'{"_meta":{"uuid":"04c29687833b11ee8001010203040506"}}', "is not a UUID"),
    ],
    ids=[
        "empty",
        "array",
        "cut",
        "comma",
        "after",
        "colon",
        "word",
        "utf-8",
        "deep",
        "list",
        "number",
        "short",
    ],
)
def test_other_json_is_refused(record: bytes, says: str) -> None:
    with pytest.raises(MessageError, match=says) as caught:
        META.get(record)
    assert repr(record[:20])[2:-1] in str(caught.value)


@pytest.mark.parametrize(
    "record", [b"", b"[1]", b'{"a":1', b'{"a":1,}', b'{"a":1}}', b'{"a" 1}', b'{"a":\xff}', b'{"_meta":1}']
)
def test_other_json_gets_no_uuid(record: bytes) -> None:
    with pytest.raises(MessageError):
        META.set(record, STAMP)


@pytest.mark.parametrize(
    ("record", "index", "stamped"),
    [
        (b"04c29691-833b-11ee-8002-0a0b0c0d0e0f,a,b", 0, b"04c29687-833b-11ee-8001-010203040506,a,b"),
        (b',"a,\n""b""",c\r', 0, b'04c29687-833b-11ee-8001-010203040506,"a,\n""b""",c\r'),
        (b'"x,""",%b,c' % OLD, 1, b'"x,""",04c29687-833b-11ee-8001-010203040506,c'),
        (b"a,\r", 1, b"a,04c29687-833b-11ee-8001-010203040506\r"),
    ],
    ids=["first", "empty", "quoted", "last"],
)
def test_a_csv_column(record: bytes, index: int, stamped: bytes) -> None:
    """A carriage return at the end of the line does not belong to the field."""
    locator = CsvColumn(index)
    assert locator.get(record) in (None, OTHER)
    assert locator.set(record, STAMP) == stamped
    assert locator.get(stamped) == STAMP


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")), min_size=1, max_size=4
    )
)
def test_csv_fields_are_pythons(fields: list[str]) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerow(["", *fields])
    locator = locator_for(TABLE)
    record = file.getvalue().encode()[:-1]
    stamped = locator.set(record, STAMP)
    assert list(csv.reader(io.StringIO(stamped.decode(), newline=""))) == [[str(STAMP), *fields]]
    assert locator.set(locator.blank(record), STAMP) == str(STAMP).encode() + b"," * len(fields)


def test_csv_without_the_column_is_refused() -> None:
    for record, says in (
        (b"a,b", "2 fields, but no field with index 2"),
        (b'"a"b,c,d', "not a CSV record"),
        (b"a,b,c", "'c' is not a UUID"),
    ):
        with pytest.raises(MessageError, match=says):
            CsvColumn(2).get(record)


def test_a_protobuf_field() -> None:
    order = order_class()(id=-5, name="x", raw=STAMP.bytes, lines=[{"sku": "y"}], price=1.5, ratio=0.5)
    record = order.SerializeToString()
    locator = ProtobufField(4)
    assert locator.get(record) == STAMP
    order.raw = OTHER.bytes
    assert locator.set(record, OTHER) == order.SerializeToString()
    order.ClearField("raw")
    bare = order.SerializeToString()
    assert locator.get(bare) is None
    stamped = locator.set(bare, STAMP)
    assert stamped.endswith(bare)
    assert locator.get(stamped + locator.set(b"", OTHER)) == OTHER
    order.raw = STAMP.bytes
    assert type(order).FromString(stamped) == order


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"\x0a\x03abc", "field 1 is not a UUID of 16 bytes"),
        (b"\x08\x01", "field 1 is not a UUID of 16 bytes"),
        (b"\x12\x03ab", "not a protobuf message"),
        (b"\x10", "not a protobuf message"),
        (b"\x00", "not a protobuf message"),
        (b"\x17", "not a protobuf message"),
        (b"\x14", "not a protobuf message"),
        (b"\x13\x0a\x01a", "not a protobuf message"),
        (b"\x10" + b"\xff" * 11, "not a protobuf message"),
    ],
    ids=[
        "short",
        "number",
        "cut",
        "no-value",
        "no-field",
        "no-type",
        "no-group",
        "open-group",
        "long-number",
    ],
)
def test_other_protobuf_is_refused(record: bytes, says: str) -> None:
    with pytest.raises(MessageError, match=says):
        ProtobufField(1).get(record)


def test_groups_are_skipped() -> None:
    """A field inside a group does not belong to the message itself."""
    inside = b"\x13" + b"\x0a\x10" + OTHER.bytes + b"\x14"
    assert ProtobufField(1).get(inside) is None
    assert ProtobufField(1).get(inside + b"\x0a\x10" + STAMP.bytes) == STAMP
    assert ProtobufField(1).get(b"\x0a\x00") is None


@pytest.mark.parametrize(
    ("content_type", "record", "acknowledgement"),
    [
        (JSON, b'{"a":1}', b'{"_meta":{"uuid":%b}}' % NEW),
        (TABLE, b",a,b", b"04c29687-833b-11ee-8001-010203040506,,"),
        (FIXED, b"\x10\x07", b"\x0a\x10" + STAMP.bytes),
    ],
    ids=["json", "csv", "fixed"],
)
def test_a_raw_message(content_type: str, record: bytes, acknowledgement: bytes) -> None:
    message: Message = raw_messages(locator_for(content_type))(pb.JournalSpec(), record)
    assert message.get_uuid() == NIL_UUID
    message.set_uuid(OTHER)
    assert message.get_uuid() == OTHER
    ack = message.new_acknowledgement("a/journal")
    ack.set_uuid(STAMP)
    assert bytes(ack) == acknowledgement
    framing = framing_by_content_type(content_type)
    assert framing.unmarshal(framing.marshal(message) + framing.marshal(ack)).ends.shape == (2,)
    assert RawMessage(bytes(ack), locator_for(content_type)).get_uuid() == STAMP


@pytest.mark.parametrize(
    ("content_type", "path"),
    [
        (JSON, "uuid"),
        (JSON, "/a//b"),
        (JSON, "/a~2"),
        (TABLE, "-1"),
        (TABLE, "/a"),
        (FIXED, "0"),
        (FIXED, "²"),
    ],
)
def test_other_paths_are_refused(content_type: str, path: str) -> None:
    with pytest.raises(OptionError, match="option '--uuid-path'"):
        locator_for(content_type, path, option="--uuid-path")


def test_paths_are_places() -> None:
    found: list[Locator] = [
        locator_for(JSON),
        locator_for(TABLE),
        locator_for(FIXED),
        locator_for(FIXED, "7"),
    ]
    assert found == [JsonPointer(("_meta", "uuid")), CsvColumn(0), ProtobufField(1), ProtobufField(7)]
    with pytest.raises(MessageError, match="no place for a UUID"):
        locator_for("text/plain")


@pytest.mark.parametrize(
    "record",
    [b"\x0a\x00", b"\x10\x01\x0a\x00", b"\x0a\x10" + OTHER.bytes + b"\x0a\x00"],
    ids=["alone", "last", "after-a-uuid"],
)
def test_an_empty_protobuf_field_is_replaced(record: bytes) -> None:
    """Parsers take the last of repeated fields, so a UUID before an empty one would not count."""
    assert ProtobufField(1).get(record) is None
    assert ProtobufField(1).get(ProtobufField(1).set(record, STAMP)) == STAMP
