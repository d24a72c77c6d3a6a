"""Converts protobuf messages, one in each record, to the user's columns.

The message's type is set by its name and a descriptor set, which ``protoc --include_imports
--descriptor_set_out`` writes. Columns are the message's fields by name, as in Spark's ``from_protobuf``: an
enum is its value's name, a nested message a struct, a map a map, ``google.protobuf.Timestamp`` a timestamp. A
field that is not set is null, as in Spark, and so is a proto3 field without presence that has its type's
zero, because the two have the same encoding. In addition, an enum may be an integer, and an unsigned 64-bit
number a ``decimal(20,0)``. A number that does not fit its column is null and makes its record malformed, and
so does a field whose type is not the declared one. Bytes that are not such a message, or a message
without its required fields, also make a record malformed.

Messages are read one by one with Python's protobuf, which is an order of magnitude slower than the other
formats.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from gazette_spark._formats.framing import Block
from gazette_spark._formats.rows import Columns, FallbackParser, RowFormat
from gazette_spark._formats.timestamps import MICROS_PER_S, in_range
from gazette_spark._formats.values import conversion
from gazette_spark.errors import OptionError

TIMESTAMP = "google.protobuf.Timestamp"

_WELL_KNOWN = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}
"""Files that a descriptor set may omit."""

Convert = Callable[[Any], object]
"""Takes a field's value and returns a value that Arrow accepts for the column; raises ValueError if it does
not fit."""


@dataclass(frozen=True, slots=True)
class ProtobufFormat(RowFormat):
    """Type of protobuf messages and the columns of a query. Can be pickled."""

    descriptor_set: bytes = b""
    message: str = ""
    """Full name of the message's type."""

    def __post_init__(self) -> None:
        RowFormat.__post_init__(self)
        if self.rescued_column is not None:
            raise OptionError("rescuedDataColumn", repr(self.rescued_column), "to be used with format=json")
        _members(self.descriptor().fields_by_name, self.data_fields, self.message)

    def descriptor(self) -> Descriptor:
        """Return the message's type.

        Raises:
            OptionError: the descriptor set is invalid, or lacks the message.
        """
        # Use a separate pool. The whole process shares the default one, where another version of the same
        # file would be a conflict.
        pool = descriptor_pool.DescriptorPool()
        try:
            files = {
                file.name: file
                for file in descriptor_pb2.FileDescriptorSet.FromString(self.descriptor_set).file
            }
            for name in files:
                _add(pool, name, files)
        except (DecodeError, TypeError, KeyError) as error:
            got = f"a file that cannot be used: {error}"
            raise OptionError(
                "descriptorFile", got, "what protoc --include_imports --descriptor_set_out writes"
            ) from None
        try:
            return pool.FindMessageTypeByName(self.message)
        except KeyError:
            names = sorted(
                f"{file.package}.{message.name}".lstrip(".")
                for name, file in files.items()
                for message in file.message_type
                if name not in _WELL_KNOWN
            )
            raise OptionError("messageName", repr(self.message), "one of " + ", ".join(names)) from None


class ProtobufParser(FallbackParser):
    """Parses blocks of protobuf messages. For one thread."""

    def __init__(self, row_format: ProtobufFormat) -> None:
        super().__init__(row_format, ProtobufRecordParser(row_format), None)


class ProtobufRecordParser:
    """Reads messages. Immutable."""

    def __init__(self, row_format: ProtobufFormat) -> None:
        descriptor = row_format.descriptor()
        self._name = row_format.message
        self._fields = row_format.data_fields
        self._class = message_factory.GetMessageClass(descriptor)
        self._members = _members(descriptor.fields_by_name, row_format.data_fields, row_format.message)

    def columns(self, block: Block) -> Columns:
        """Read messages. Never raises, regardless of their bytes."""
        rows: list[dict[str, object]] = []
        problems: dict[int, str] = {}
        for index in range(len(block)):
            values, problem = self._row(block.record(index))
            rows.append(values)
            if problem is not None:
                problems[index] = problem
        columns = {
            field.name: pa.array([values.get(field.name) for values in rows], field.type)
            for field in self._fields
        }
        return Columns(columns, problems)

    def _row(self, record: bytes) -> tuple[dict[str, object], str | None]:
        """Return the values of a message by column, and its problem; None for a valid message."""
        # The Python implementation raises other errors besides DecodeError, such as for invalid UTF-8.
        message: Any
        message, problem = conversion(self._class.FromString, record)
        if message is None:
            return {}, f"is not a message {self._name}: {problem}"
        # Java's parser, and so Spark, refuses such a message. Python's accepts it.
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            return {}, f"is not a message {self._name}: it lacks the required {missing}"
        problems: list[str] = []
        values = _read(message, self._members, problems)
        return values, problems[0] if problems else None


def _add(pool: descriptor_pool.DescriptorPool, name: str, files: Mapping[str, Any]) -> None:
    """Add a file to a pool, after the files that it imports; KeyError if one is missing."""
    try:
        pool.FindFileByName(name)
    except KeyError:
        if name not in files and name in _WELL_KNOWN:
            pool.AddSerializedFile(_WELL_KNOWN[name].serialized_pb)
            return
        # A pool takes a file only after its imports, and a descriptor set need not be in that order.
        for imported in files[name].dependency:
            _add(pool, imported, files)
        pool.AddSerializedFile(files[name].SerializeToString())


@dataclass(frozen=True, slots=True)
class _MessageFields:
    """The fields of a message that have a column."""

    where: str
    """Full name of the message's type."""
    converts: dict[int, tuple[str, Convert]]
    """Name of the column and converter of its values, by the field's number."""
    absent: dict[str, object]
    """Value of an unset field, by the column's name."""
    names: dict[int, str]
    """Names of all fields of the message's type, by number."""


def _read(message: Message, members: _MessageFields, problems: list[str]) -> dict[str, object]:
    # `ListFields` has only the fields that are set, so unset ones begin with their value. Messages without
    # any share one object: a list may have one for every two bytes of a record.
    fields = message.ListFields()
    values = members.absent.copy() if fields else members.absent
    for field, value in fields:
        member = members.converts.get(field.number)
        if member is None:
            continue
        name, convert = member
        values[name], problem = conversion(convert, value)
        if problem is not None:
            problems.append(f"field {members.where}.{name} {problem}")
    # A field that is declared, but is among the unknown ones, has a different type in the record. For its
    # column it would look unset. Spark also refuses such a message.
    if len(unknown := UnknownFieldSet(message)):
        numbers = {unknown[index].field_number for index in range(len(unknown))}
        problems.extend(
            f"field {members.where}.{members.names[number]} has another type, or an unknown value"
            for number in sorted(numbers & members.names.keys())
        )
    return values


def _members(fields: Mapping[str, FieldDescriptor], columns: list[pa.Field], where: str) -> _MessageFields:
    """Match columns with a message's fields.

    Raises:
        OptionError: a column has no field, or the field has a different type.
    """
    members = _MessageFields(where, {}, {}, {field.number: name for name, field in fields.items()})
    for column in columns:
        field = fields.get(column.name)
        if field is None:
            names = ", ".join(sorted(fields)) or "none"
            raise OptionError("schema", f"column {column.name}", f"fields of message {where}: {names}")
        # protobuf 6 has ``is_repeated`` and warns of ``label``; earlier versions have ``label`` alone.
        repeated = getattr(field, "is_repeated", None)
        if repeated is None:
            repeated = getattr(field, "label") == FieldDescriptor.LABEL_REPEATED  # noqa: B009 - not in the stubs.
        convert = _converter(field, column.type, repeated=bool(repeated))
        if convert is None:
            types = descriptor_pb2.FieldDescriptorProto.Type
            name = types.Name(types.ValueType(field.type)).removeprefix("TYPE_").lower()
            kind = f"repeated {name}" if repeated else name
            got = f"column {column.name} {column.type} for a {kind} of message {where}"
            raise OptionError("schema", got, "the type that from_protobuf gives it")
        members.converts[field.number] = (column.name, convert)
        # As in from_protobuf, a field that is not set is null unless its declaration has a default. That is a
        # value like those in messages: for an enum it is a number, although the column may have the name.
        default: object = None
        problem: str | None = None
        if field.has_default_value:
            default, problem = conversion(convert, field.default_value)
        if problem is not None:
            got = f"column {column.name} {column.type}, and the default of its field {problem}"
            raise OptionError("schema", got, "the type that from_protobuf gives it")
        members.absent[column.name] = [] if repeated else default
    return members


def _converter(  # noqa: C901, PLR0911, PLR0912 - one kind of field after the other
    field: FieldDescriptor, kind: pa.DataType, *, repeated: bool
) -> Convert | None:
    """Return the converter of a field's values to a column's; None if the types do not fit."""
    if repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not pa.types.is_map(kind):
            return None
        entry = field.message_type.fields_by_name
        key = _converter(entry["key"], kind.key_type, repeated=False)
        value_of = _converter(entry["value"], kind.item_type, repeated=False)
        if key is None or value_of is None:
            return None
        return lambda values: [(key(name), value_of(values[name])) for name in values]
    if repeated:
        item = _converter(field, kind.value_type, repeated=False) if pa.types.is_list(kind) else None
        return None if item is None else lambda values: [item(value) for value in values]
    if (message_type := field.message_type) is not None:
        if message_type.full_name == TIMESTAMP and pa.types.is_timestamp(kind) and kind.unit == "us":
            return lambda value: in_range(value.seconds * MICROS_PER_S + value.nanos // 1000)
        if not pa.types.is_struct(kind):
            return None
        # Match the fields here, once, and not for every message. A type that contains itself ends where the
        # columns do.
        members = _members(message_type.fields_by_name, list(kind), message_type.full_name)

        def convert(message: Message) -> object:
            problems: list[str] = []
            values = _read(message, members, problems)
            if problems:
                raise ValueError(problems[0])
            return values

        return convert
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        if pa.types.is_string(kind):
            return lambda number: names.get(number, str(number))
        return _whole(kind) if pa.types.is_signed_integer(kind) else None
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            fits = pa.types.is_boolean(kind)
        case FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_STRING:
                return _text if pa.types.is_string(kind) else None
            fits = kind == pa.binary()
        case FieldDescriptor.CPPTYPE_DOUBLE:
            fits = kind == pa.float64()
        case FieldDescriptor.CPPTYPE_FLOAT:
            fits = pa.types.is_float32(kind) or pa.types.is_float64(kind)
        case _ if pa.types.is_signed_integer(kind):
            return _whole(kind)
        case _:
            return decimal.Decimal if kind == pa.decimal128(20, 0) else None
    return (lambda value: value) if fits else None


def _text(value: str | bytes) -> str:
    # proto2 does not check the bytes of a string: invalid UTF-8 stays bytes.
    if isinstance(value, bytes):
        raise ValueError("is not UTF-8")
    return value


def _whole(kind: pa.DataType) -> Convert:
    most = 1 << (kind.bit_width - 1)

    def convert(number: int) -> int:
        if not -most <= number < most:
            raise ValueError(f"is out of the range of {kind}")
        return number

    return convert
