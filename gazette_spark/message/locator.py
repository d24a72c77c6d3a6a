"""Finds and sets the UUID in a message, for one record at a time.

================================  ==========================================  ==========================
content type                      place                                       form
================================  ==========================================  ==========================
``application/x-ndjson``          a JSON pointer, by default ``/_meta/uuid``  text of 36 characters
``text/csv``                      a column, by default 0                      text of 36 characters
``application/x-protobuf-fixed``  a field, by default 1                       ``bytes``, 16 of them
================================  ==========================================  ==========================

In Gazette the message's type determines the place; these are the places in its examples and in Estuary
Flow. A record without a UUID, or with a null or empty one, opts out of sequencing. Any other value in that
place is an error, as in Gazette, and so is a record that does not have its content type.

Setting a UUID changes nothing else in a record. If a JSON record lacks the place, it is added first, so that
a reader finds it without reading the rest.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined] # Not in its stub.
from typing import NamedTuple, Protocol, TypeAlias

from gazette_spark.errors import MessageError, OptionError
from gazette_spark.message.interfaces import NIL_UUID
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import (
    CONTENT_TYPE_CSV,
    CONTENT_TYPE_NDJSON,
    CONTENT_TYPE_PROTO_FIXED,
)
from gazette_spark.strict_json import unescaped_pointer

DEFAULT_POINTER = "/_meta/uuid"
"""Default place of the UUID in JSON messages, as in Estuary Flow's documents."""

_UUID_TEXT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SHOWN = 60
"""Number of characters of a record that an error shows."""


class Locator(Protocol):
    """Reads and sets the UUID of a record. Immutable."""

    def get(self, record: bytes) -> uuid.UUID | None:
        """Return a record's UUID, or None if it has none.

        Raises:
            MessageError: the record cannot be read, or the place has another value.
        """

    def set(self, record: bytes, stamp: uuid.UUID) -> bytes:
        """Return the record with a UUID, which replaces an existing one. The other bytes do not change.

        Raises:
            MessageError: the record cannot be read, or has no place for it.
        """

    def blank(self, record: bytes) -> bytes:
        """Return the smallest record that a reader of this one can read, for acknowledgements."""


@dataclass(slots=True)
class RawMessage:
    """A message with a record's bytes, and a locator for its UUID. Mutable, for one thread.

    Raises:
        MessageError: on creation, as in :meth:`Locator.get`.
    """

    record: bytes
    locator: Locator
    _stamp: uuid.UUID = NIL_UUID

    def __post_init__(self) -> None:
        self._stamp = self.locator.get(self.record) or NIL_UUID

    def get_uuid(self) -> uuid.UUID:
        """Return the record's UUID; the nil UUID if it has none."""
        return self._stamp

    def set_uuid(self, stamp: uuid.UUID) -> None:
        """Change the record's UUID."""
        self.record = self.locator.set(self.record, stamp)
        self._stamp = stamp

    def new_acknowledgement(self, journal: str) -> RawMessage:  # noqa: ARG002 - the same in every journal.
        """Return a message without content except for a UUID."""
        return RawMessage(self.locator.blank(self.record), self.locator)

    def __bytes__(self) -> bytes:
        return self.record


def raw_messages(locator: Locator) -> Callable[[pb.JournalSpec, bytes], RawMessage]:
    """Return a function that makes a :class:`RawMessage` from a record, for a reader."""
    return lambda _, record: RawMessage(record, locator)


def locator_for(content_type: str, path: str = "", *, option: str = "uuidPath") -> Locator:
    """Return the locator of a content type.

    Args:
        content_type: A content type that has a framing.
        path: A JSON pointer, a column's index from 0, or a field's number; empty for the default.
        option: Name of the option with the path, for the error.

    Raises:
        OptionError: the path is invalid for the content type.
        MessageError: the content type has no framing of messages.
    """
    if content_type == CONTENT_TYPE_NDJSON:
        pointer = path or DEFAULT_POINTER
        if not re.fullmatch(r"(?:/(?:[^/~]|~[01])+)+", pointer):
            expected = f"a JSON pointer to a member, such as {DEFAULT_POINTER}"
            raise OptionError(option, repr(pointer), expected)
        tokens = pointer.split("/")[1:]
        return JsonPointer(tuple(unescaped_pointer(token) for token in tokens))
    if content_type == CONTENT_TYPE_CSV:
        return CsvColumn(_number(path or "0", 0, 1 << 16, option, "the index of a CSV column, from 0"))
    if content_type == CONTENT_TYPE_PROTO_FIXED:
        return ProtobufField(_number(path or "1", 1, (1 << 29) - 1, option, "the number of a protobuf field"))
    raise MessageError(f"messages of content type {content_type!r} have no place for a UUID")


def _number(path: str, least: int, most: int, option: str, expected: str) -> int:
    if not (path.isascii() and path.isdigit() and len(path) < 12 and least <= int(path) <= most):
        raise OptionError(option, repr(path), expected)
    return int(path)


def _parsed(text: str, record: bytes) -> uuid.UUID:
    if not _UUID_TEXT.fullmatch(text):
        raise MessageError(f"{text[:_SHOWN]!r} is not a UUID, in {_shown(record)}")
    return uuid.UUID(text)


def _shown(record: bytes) -> str:
    return repr(record[:_SHOWN])


class _Span(NamedTuple):
    """A part of a JSON text, and the number of path tokens that lead to it."""

    begin: int
    end: int
    depth: int
    """Number of the path's tokens that exist."""


_Members: TypeAlias = "list[tuple[str, int, int]]"
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = JSONDecoder(parse_int=len, parse_float=len)
"""Reads everything except the values of numbers, which may have any length."""


@dataclass(frozen=True, slots=True)
class JsonPointer:
    """A member of nested JSON objects: ``("_meta", "uuid")`` is ``/_meta/uuid``."""

    tokens: tuple[str, ...]

    def get(self, record: bytes) -> uuid.UUID | None:
        """See :meth:`Locator.get`."""
        text = _json_text(record)
        with _reading_json(record):
            value: object = _DECODER.decode(text)
        if not isinstance(value, dict):
            raise MessageError(f"not a JSON object: {_shown(record)}")
        for depth, token in enumerate(self.tokens):
            if not isinstance(value, dict):
                raise _no_object(self.tokens[depth - 1], record)
            value = value.get(token)
            if value is None:
                return None
        if not isinstance(value, str):
            raise MessageError(f"the UUID is not a string, in {_shown(record)}")
        return _parsed(value, record)

    def set(self, record: bytes, stamp: uuid.UUID) -> bytes:
        """See :meth:`Locator.set`."""
        text = _json_text(record)
        span = self._find(text, record)
        missing = self.tokens[span.depth :]
        # Replace the UUID, or null. A null in the middle of the path becomes the missing objects.
        if not missing or text[span.begin : span.end] == "null":
            new = f'"{stamp}"'
            for token in reversed(missing):
                new = f"{{{json.dumps(token)}:{new}}}"
            return (text[: span.begin] + new + text[span.end :]).encode()
        member = f"{json.dumps(missing[0])}:"
        member += "".join(f"{{{json.dumps(token)}:" for token in missing[1:])
        member += f'"{stamp}"' + "}" * (len(missing) - 1)
        # Otherwise the place becomes the first member of the last object on the path, where a reader in
        # columns finds it without parsing the record.
        first = span.begin + 1
        comma = "" if text[_space(text, first)] == "}" else ","
        return (text[:first] + member + comma + text[first:]).encode()

    def blank(self, record: bytes) -> bytes:  # noqa: ARG002 - the same for all.
        """Return an empty object."""
        return b"{}"

    def _find(self, text: str, record: bytes) -> _Span:
        """Return the value of the pointer, or the last object or null on its path."""
        begin = _space(text, 0)
        if text[begin : begin + 1] != "{":
            raise MessageError(f"not a JSON object: {_shown(record)}")
        with _reading_json(record):
            # Python's parser does not report where a value is, and the other bytes must not change. So the
            # members are walked through here, and the parser only reads each value to find its end.
            members, end = _members(text, begin)
            if _space(text, end) != len(text):
                raise json.JSONDecodeError("Extra data", text, end)
            # Follow the path through the members. The last member of a name counts.
            for depth, token in enumerate(self.tokens):
                values = [(value, value_end) for name, value, value_end in members if name == token]
                if not values:
                    return _Span(begin, begin + 1, depth)
                begin, end = values[-1]
                if depth + 1 == len(self.tokens) or text[begin:end] == "null":
                    return _Span(begin, end, depth + 1)
                if text[begin] != "{":
                    raise _no_object(token, record)
                members, _ = _members(text, begin)
        raise AssertionError("a pointer has a token")


def _json_text(record: bytes) -> str:
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"not UTF-8 at byte {error.start}: {_shown(record)}") from None


@contextmanager
def _reading_json(record: bytes) -> Iterator[None]:
    try:
        yield
    except (json.JSONDecodeError, IndexError) as error:
        raise MessageError(f"not JSON ({error}): {_shown(record)}") from None
    except RecursionError:
        raise MessageError(f"JSON with too many levels: {_shown(record)}") from None


def _no_object(token: str, record: bytes) -> MessageError:
    what = f"{json.dumps(token)} is not an object, so it cannot contain the UUID"
    return MessageError(f"{what}, in {_shown(record)}")


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _members(text: str, begin: int) -> tuple[_Members, int]:
    """Return the name, and the begin and end of the value, of each member of an object, and the object's end.

    Raises:
        JSONDecodeError: the text is not an object.
        IndexError: the text ends inside the object.
    """
    members: _Members = []
    at = _space(text, begin + 1)
    if text[at] == "}":
        return members, at + 1
    while True:
        if text[at] != '"':
            raise json.JSONDecodeError("Expecting a name in quotes", text, at)
        name, at = scanstring(text, at + 1, True)  # noqa: FBT003 - it takes no keywords.
        at = _space(text, at)
        if text[at] != ":":
            raise json.JSONDecodeError("Expecting ':'", text, at)
        value = _space(text, at + 1)
        end = _DECODER.raw_decode(text, value)[1]
        members.append((name, value, end))
        at = _space(text, end)
        if text[at] == "}":
            return members, at + 1
        if text[at] != ",":
            raise json.JSONDecodeError("Expecting ',' or '}'", text, at)
        at = _space(text, at + 1)


_FIELD = re.compile(rb'(?:"((?:[^"]++|"")*+)"|([^",\n][^,\n]*+|))(,|\Z)')


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """A column of a CSV record, by its index from 0."""

    index: int

    def get(self, record: bytes) -> uuid.UUID | None:
        """See :meth:`Locator.get`. An empty field counts as a missing UUID."""
        begin, end = self._find(record)
        cell = record[begin:end].removeprefix(b'"').removesuffix(b'"')
        return _parsed(cell.decode("utf-8", "replace"), record) if cell else None

    def set(self, record: bytes, stamp: uuid.UUID) -> bytes:
        """See :meth:`Locator.set`."""
        begin, end = self._find(record)
        return record[:begin] + str(stamp).encode() + record[end:]

    def blank(self, record: bytes) -> bytes:
        """Return a record with as many empty fields, because Gazette's CSV reader requires equal numbers."""
        return b"," * (len(_spans(record)) - 1)

    def _find(self, record: bytes) -> tuple[int, int]:
        spans = _spans(record)
        if self.index >= len(spans):
            raise MessageError(f"{len(spans)} fields, but no field with index {self.index}: {_shown(record)}")
        return spans[self.index]


def _spans(record: bytes) -> list[tuple[int, int]]:
    """Return the begin and end of each field of a CSV record, including quotes."""
    line = record.removesuffix(b"\r")
    spans = []
    at = 0
    while True:
        match = _FIELD.match(line, at)
        if match is None:
            raise MessageError(f"not a CSV record: {_shown(record)}")
        spans.append((at, match.start(3)))
        if not match[3]:
            return spans
        at = match.end()


_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
"""Wire types of protobuf."""


@dataclass(frozen=True, slots=True)
class ProtobufField:
    """A field of a protobuf message, of type ``bytes``, by its number."""

    number: int

    def get(self, record: bytes) -> uuid.UUID | None:
        """See :meth:`Locator.get`. An empty field counts as a missing UUID."""
        _, value, end = self._find(record)
        return uuid.UUID(bytes=record[value:end]) if end > value else None

    def set(self, record: bytes, stamp: uuid.UUID) -> bytes:
        """See :meth:`Locator.set`."""
        # The field is put first if it is missing, because the order of fields does not matter and a reader in
        # columns searches there.
        tag, octets = self.number << 3 | _BYTES, bytearray()
        while tag > 0x7F:
            octets.append(tag & 0x7F | 0x80)
            tag >>= 7
        field = bytes([*octets, tag, 16]) + stamp.bytes
        begin, _, end = self._find(record)
        return record[:begin] + field + record[end:]

    def blank(self, record: bytes) -> bytes:  # noqa: ARG002 - the same for all.
        """Return an empty message."""
        return b""

    def _find(self, record: bytes) -> tuple[int, int, int]:
        """Return the begin of the last such field, the begin of its value, and its end; zeros without one."""
        found = 0, 0, 0
        try:
            for number, wire_type, begin, value, end in _wire_fields(record):
                if number != self.number:
                    continue
                if wire_type != _BYTES or end - value not in (0, 16):
                    what = f"field {number} is not a UUID of 16 bytes"
                    raise MessageError(f"{what}, in a message that begins with {_shown(record)}")
                # If a field occurs several times, protobuf's parsers take the last one, even an empty one.
                found = begin, value, end
        except IndexError:
            raise MessageError(f"not a protobuf message: {_shown(record)}") from None
        return found


def _wire_fields(record: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, begin, begin of the value, and end of each top-level field of a message.

    Raises:
        IndexError: the bytes are not a message.
    """
    at = 0
    groups: list[int] = []
    while at < len(record):
        begin = at
        tag, at = _varint(record, at)
        number, wire_type = tag >> 3, tag & 7
        value = at
        if wire_type == _VARINT:
            _, at = _varint(record, at)
        elif wire_type == _BYTES:
            size, value = _varint(record, at)
            at = value + size
        elif wire_type in (_FIXED64, _FIXED32):
            at += 8 if wire_type == _FIXED64 else 4
        elif wire_type == _GROUP:
            groups.append(number)
        elif wire_type != _GROUP_END or not groups or groups.pop() != number:
            raise IndexError(f"wire type {wire_type}")
        if not number or at > len(record):
            raise IndexError(f"field {number}")
        # Fields inside a group belong to the group. They are read to find its end.
        if not groups and wire_type != _GROUP_END:
            yield number, wire_type, begin, value, at
    if groups:
        raise IndexError("an open group")


def _varint(record: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet = record[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than ten bytes")
