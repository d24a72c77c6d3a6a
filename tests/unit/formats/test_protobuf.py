"""Messages become rows of the selected fields, and anything else is malformed."""

from __future__ import annotations

import datetime
import decimal
import pickle
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark._formats.fixed import FIXED, frame
from gazette_spark._formats.framing import Block
from gazette_spark._formats.protobuf import ProtobufFormat, ProtobufParser
from gazette_spark.errors import OptionError, RecordError
from tests.oracles.messages import descriptor_set, order_class
from tests.rig.examples import examples

ORDER = order_class()
LINE = pa.struct([("sku", pa.string()), ("count", pa.int64())])
SCHEMA = pa.schema(
    [
        ("_offset", pa.int64()),
        ("id", pa.int64()),
        ("token", pa.decimal128(20, 0)),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("price", pa.float64()),
        ("ratio", pa.float32()),
        ("paid", pa.bool_()),
        ("state", pa.string()),
        ("first", LINE),
        ("lines", pa.list_(LINE)),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("at", pa.timestamp("us", "UTC")),
        ("small", pa.list_(pa.int32())),
        ("maybe", pa.int32()),
        ("_corrupt_record", pa.string()),
    ]
)


def wanted(schema: pa.Schema = SCHEMA, *, imports: bool = True, **options: Any) -> ProtobufFormat:
    options = {"message": "shop.Order", "descriptor_set": descriptor_set(imports=imports)} | options
    return ProtobufFormat(schema, **options)


def rows(form: ProtobufFormat, *records: bytes) -> list[dict[str, Any]]:
    """Parse records that are framed and begin at offset 100."""
    data = b"".join(map(frame, records))
    cut = FIXED.cut(data, 100)
    block = Block("shop/orders", 100, data, cut.starts, cut.ends, FIXED.header_bytes, FIXED.trailer_bytes)
    batches = list(ProtobufParser(form).record_batches([block]))
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, form.schema).to_pylist()
    return found


@pytest.mark.parametrize("imports", [True, False], ids=["with_imports", "without_imports"])
def test_every_kind_of_field(imports: bool) -> None:
    order = ORDER(id=-5, token=2**64 - 1, name="é", raw=b"\xff", price=1.5, ratio=0.5, paid=True, state=1)
    order.first.sku = "x"
    order.lines.add(sku="y", count=2**32 - 1)
    order.counts["a"] = 7
    order.at.FromJsonString("2024-02-29T01:02:03.000004Z")
    order.small.extend([1, -1])
    order.maybe = 0
    form = pickle.loads(pickle.dumps(wanted(imports=imports)))
    assert rows(form, order.SerializeToString()) == [
        {
            "_offset": 100,
            "id": -5,
            "token": decimal.Decimal(2**64 - 1),
            "name": "é",
            "raw": b"\xff",
            "price": 1.5,
            "ratio": 0.5,
            "paid": True,
            "state": "PAID",
            "first": {"sku": "x", "count": None},
            "lines": [{"sku": "y", "count": 2**32 - 1}],
            "counts": [("a", 7)],
            "at": datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC),
            "small": [1, -1],
            "maybe": 0,
            "_corrupt_record": None,
        }
    ]


def test_what_is_not_set_is_null() -> None:
    """As in ``from_protobuf``, unset fields are null, but lists and maps are empty."""
    (row,) = rows(wanted(), b"")
    assert (row.pop("_offset"), row.pop("lines"), row.pop("counts"), row.pop("small")) == (100, [], [], [])
    assert set(row.values()) == {None}


def test_empty_messages_in_a_list_take_a_few_times_their_bytes() -> None:
    """Each message has two bytes in the record and no fields."""
    record = b"\x52\x00" * (1 << 18)
    block = Block("shop/orders", 0, record, np.array([0]), np.array([len(record)]))
    parser = ProtobufParser(wanted(pa.schema([("lines", pa.list_(LINE))])))
    tracemalloc.start()
    try:
        (found,) = parser.record_batches([block])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found["lines"][0]) == 1 << 18
    assert found["lines"][0][-1].as_py() == {"sku": None, "count": None}
    assert peak < 20 * len(record)


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
def test_what_is_no_message_is_malformed(mode: str) -> None:
    form = wanted(pa.schema([("id", pa.int8()), ("_corrupt_record", pa.string())]), mode=mode)
    records = [ORDER(id=1).SerializeToString(), b"\x0b", ORDER(id=300).SerializeToString()]
    if mode == "FAILFAST":
        with pytest.raises(RecordError, match=r"is not a message shop\.Order") as caught:
            rows(form, *records)
        assert caught.value.offset == 110
        return
    found = [tuple(row.values()) for row in rows(form, *records)]
    bad = [(None, "\x0b"), (None, "\x08\ufffd\x02")]
    assert found == [(1, None)] + (bad if mode == "PERMISSIVE" else [])


def test_a_field_of_another_type_is_malformed() -> None:
    """As in ``from_protobuf``, a field with the wrong type is malformed. Undeclared fields are ignored."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("first", LINE)])
    good = ORDER(id=1, name="a").SerializeToString()
    other_name, other_sku = good + b"\x18\x05", good + b"\x4a\x02\x08\x05"
    assert [ORDER.DESCRIPTOR.fields_by_name[name].number for name in ("name", "first")] == [3, 9]
    undeclared = ORDER(id=2).SerializeToString() + b"\xf8\x07\x05"
    found = rows(wanted(schema, mode="DROPMALFORMED"), other_name, other_sku, undeclared)
    assert found == [{"id": 2, "name": None, "first": None}]
    assert rows(wanted(schema), other_sku) == [{"id": 1, "name": "a", "first": None}]


def test_a_message_without_its_required_fields_is_malformed() -> None:
    """Only proto2 has required fields. A message truncated after another field lacks them."""
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    message = file.message_type.add(name="Entry")
    kind = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    message.field.add(name="text", number=2, type=kind.TYPE_STRING, label=kind.LABEL_REQUIRED)
    descriptors = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    schema = pa.schema([("id", pa.int64()), ("_corrupt_record", pa.string())])
    form = wanted(schema, message="old.Entry", descriptor_set=descriptors)
    assert [tuple(row.values()) for row in rows(form, b"\x08\x01\x12\x01x", b"\x08\x01")] == [
        (1, None),
        (None, "\x08\x01"),
    ]
    with pytest.raises(RecordError, match=r"is not a message old\.Entry: it lacks the required text"):
        rows(replace(form, mode="FAILFAST"), b"\x08\x01")


@pytest.mark.parametrize(
    ("schema", "options", "option", "text"),
    [
        pytest.param(
            {"other": pa.int64()}, {}, "schema", "fields of message shop.Order: at, counts", id="name"
        ),
        pytest.param({"name": pa.int64()}, {}, "schema", "for a string of message", id="type"),
        pytest.param({"small": pa.int32()}, {}, "schema", "for a repeated int32", id="repeated"),
        pytest.param({"first": pa.struct([("z", pa.int64())])}, {}, "schema", "shop.Order.Line", id="nested"),
        pytest.param(
            {"id": pa.int64()}, {"message": "Order"}, "messageName", "one of shop.Order", id="message"
        ),
        pytest.param({"id": pa.int64()}, {"descriptor_set": b"\xff"}, "descriptorFile", "protoc", id="file"),
        pytest.param({"id": pa.int64()}, {"rescued_column": "x"}, "rescuedDataColumn", "json", id="rescued"),
    ],
)
def test_a_schema_that_the_message_does_not_have_is_refused(
    schema: dict[str, pa.DataType], options: dict[str, Any], option: str, text: str
) -> None:
    with pytest.raises(OptionError) as caught:
        wanted(pa.schema(list(schema.items())), **options)
    assert caught.value.option == option
    assert text in str(caught.value)


orders = st.builds(
    ORDER,
    id=st.integers(-(2**63), 2**63 - 1),
    token=st.integers(0, 2**64 - 1),
    name=st.text(max_size=5),
    raw=st.binary(max_size=5),
    price=st.floats(allow_nan=False),
    paid=st.booleans(),
    state=st.integers(0, 2),
    small=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    counts=st.dictionaries(st.text(max_size=3), st.integers(-5, 5), max_size=3),
)


@given(st.lists(orders, min_size=1, max_size=5))
@settings(max_examples=examples(50), deadline=None)
def test_rows_are_what_the_messages_say(messages: list[Any]) -> None:
    """The reference is protobuf's own accessors. Zero and unset are equal."""
    for row, order in zip(
        rows(wanted(), *(each.SerializeToString() for each in messages)), messages, strict=True
    ):
        for name in ("id", "name", "raw", "price", "paid"):
            assert (row[name] or type(getattr(order, name))()) == getattr(order, name)
        assert (row["token"] or 0) == order.token
        assert (row["state"] or "NEW") == {0: "NEW", 1: "PAID", 2: "2"}[order.state]
        assert row["small"] == list(order.small)
        assert dict(row["counts"]) == dict(order.counts)
        assert row["_corrupt_record"] is None


def test_what_is_not_set_has_the_default_of_its_declaration() -> None:
    """Only proto2 has such defaults. That of an enum is a number to protobuf, and the column has its name."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    message = file.message_type.add(name="Entry")
    level = message.enum_type.add(name="Level")
    level.value.add(name="LOW", number=0)
    level.value.add(name="HIGH", number=1)
    label = kind.LABEL_OPTIONAL
    message.field.add(name="id", number=1, type=kind.TYPE_INT64, label=label)
    message.field.add(
        name="level",
        number=2,
        type=kind.TYPE_ENUM,
        type_name=".old.Entry.Level",
        label=label,
        default_value="HIGH",
    )
    message.field.add(name="size", number=3, type=kind.TYPE_UINT32, label=label, default_value="4000000000")
    descriptors = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    schema = pa.schema(
        [("id", pa.int64()), ("level", pa.string()), ("size", pa.int64()), ("_corrupt_record", pa.string())]
    )
    form = wanted(schema, message="old.Entry", descriptor_set=descriptors)
    assert [tuple(row.values()) for row in rows(form, b"\x08\x01", b"\x08\x02\x10\x00\x18\x05")] == [
        (1, "HIGH", 4_000_000_000, None),
        (2, "LOW", 5, None),
    ]
    with pytest.raises(OptionError, match="default of its field is out of the range of int32"):
        wanted(pa.schema([("size", pa.int32())]), message="old.Entry", descriptor_set=descriptors)
