"""A message type built by hand, as ``protoc`` would build it.

Its source would be::

syntax = "proto3";
package shop;
message Order {
  enum State { NEW = 0; PAID = 1; }
  message Line { string sku = 1; uint32 count = 2; }
  int64 id = 1;        uint64 token = 2;      string name = 3;        bytes raw = 4;
  double price = 5;    float ratio = 6;       bool paid = 7;          State state = 8;
  Line first = 9;      repeated Line lines = 10;                      map<string, int64> counts = 11;
  google.protobuf.Timestamp at = 12;          repeated int32 small = 13;
  optional int32 maybe = 14;
}
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

F = descriptor_pb2.FieldDescriptorProto

_FIELDS: list[tuple[str, int, int, str]] = [
    ("id", F.TYPE_INT64, F.LABEL_OPTIONAL, ""),
    ("token", F.TYPE_UINT64, F.LABEL_OPTIONAL, ""),
    ("name", F.TYPE_STRING, F.LABEL_OPTIONAL, ""),
    ("raw", F.TYPE_BYTES, F.LABEL_OPTIONAL, ""),
    ("price", F.TYPE_DOUBLE, F.LABEL_OPTIONAL, ""),
    ("ratio", F.TYPE_FLOAT, F.LABEL_OPTIONAL, ""),
    ("paid", F.TYPE_BOOL, F.LABEL_OPTIONAL, ""),
    ("state", F.TYPE_ENUM, F.LABEL_OPTIONAL, ".shop.Order.State"),
    ("first", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, ".shop.Order.Line"),
    ("lines", F.TYPE_MESSAGE, F.LABEL_REPEATED, ".shop.Order.Line"),
    ("counts", F.TYPE_MESSAGE, F.LABEL_REPEATED, ".shop.Order.CountsEntry"),
    ("at", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
    ("small", F.TYPE_INT32, F.LABEL_REPEATED, ""),
    ("maybe", F.TYPE_INT32, F.LABEL_OPTIONAL, ""),
]


def descriptor_set(*, imports: bool = True) -> bytes:
    """Return the descriptor set; without ``imports`` it omits the well-known types."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")
    for number, (name, kind, label, type_name) in enumerate(_FIELDS, start=1):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    order.field[-1].proto3_optional = True
    order.field[-1].oneof_index = 0
    order.oneof_decl.add(name="_maybe")
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    line.field.add(name="count", number=2, type=F.TYPE_UINT32, label=F.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    if imports:
        timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    return files.SerializeToString()


def order_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(imports=False)).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
