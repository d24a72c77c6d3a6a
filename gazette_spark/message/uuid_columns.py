"""Reads the UUIDs of a block of records as columns.

Most records have the UUID in their first bytes, at the same place: ``{"_meta":{"uuid":"…`` in JSON, the first
column in CSV, the first field in Protobuf. These are read as one array of bytes, and so is JSON with the UUID
in its last member. The parser of the format reads records with the UUID elsewhere.

In a JSON record, such a beginning or end is unambiguous: quotes inside strings are escaped, and the braces at
the end close as many objects.

A record without a readable UUID is not an error: its message belongs to no transaction, and is delivered
unchanged.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import Positions
from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._formats.metadata import OFFSET
from gazette_spark.errors import MessageError
from gazette_spark.message.interfaces import NIL_UUID
from gazette_spark.message.locator import CsvColumn, JsonPointer, Locator, ProtobufField
from gazette_spark.message.uuids import UUID_TEXT_BYTES, UuidColumns, split_octets, split_texts, split_uuids

if TYPE_CHECKING:
    import numpy.typing as npt

    from gazette_spark._formats.rows import RowParser

_QUOTE = ord('"')

MAX_TAIL = 512
"""Number of bytes at a record's end in which its last member is searched."""


class UuidReader(Protocol):
    """Reads the UUIDs of blocks. For one thread."""

    def uuids(self, block: Block) -> UuidColumns:
        """Return the UUID of each record of a block."""


def uuid_reader(locator: Locator, *, separator: str = ",", quote: str = '"') -> UuidReader:
    """Return the reader of UUIDs at a place. ``separator`` and ``quote`` are for CSV."""
    match locator:
        case JsonPointer():
            return _JsonReader(locator)
        case CsvColumn():
            return _CsvReader(locator, separator, quote)
        case ProtobufField():
            return _ProtobufReader(locator)
    msg = f"{locator!r} has no reader by columns"
    raise TypeError(msg)


class _JsonReader:
    def __init__(self, locator: JsonPointer) -> None:
        names = [json.dumps(name, ensure_ascii=False).encode() for name in locator.tokens]
        self._names = locator.tokens
        self._prefix = b"".join(b"{" + name + b":" for name in names) + b'"'
        path = rb"\s*:\s*\{\s*".join(re.escape(name) for name in names) + rb"\s*:\s*\""
        self._at_begin = re.compile(rb"\s*\{\s*" + path)
        self._at_end = re.compile(
            rb"(,\s*" + path + rb")[0-9a-fA-F-]{36}(\"" + rb"\s*\}" * len(names) + rb"\s*)\Z"
        )
        self._around: tuple[bytes, bytes] | None = None
        """Bytes before and after a UUID in the last member."""
        self._parser: RowParser | None = None

    def uuids(self, block: Block) -> UuidColumns:
        if not len(block):
            return _none(0)
        record = block.record(0)
        first_member = self._at_begin.match(record)
        # One record shows how its writer spells the place. Records of another writer, or with other white
        # space, do not match, and are read by the next, slower method.
        if first_member is not None:
            self._prefix = first_member[0]
        elif (last := self._at_end.search(record, max(0, len(record) - MAX_TAIL))) is not None:
            self._around = last[1], last[2]
        # Read one byte more than the UUID: without checking the closing quote, a longer string would match.
        texts, at_place = _rows_behind(block, self._prefix, UUID_TEXT_BYTES + 1)
        at_place &= texts[:, UUID_TEXT_BYTES] == _QUOTE
        return _completed(split_texts(texts[:, :UUID_TEXT_BYTES], at_place), block, self._of_last_member)

    def _of_last_member(self, block: Block) -> UuidColumns:
        if self._around is None:
            return self._parsed(block)
        before, after = self._around
        # In a record that is long enough, the UUID and the bytes around it are the last bytes.
        width = len(before) + UUID_TEXT_BYTES + len(after)
        at_place = block.ends - block.starts >= width
        texts = np.zeros((len(block), UUID_TEXT_BYTES), np.uint8)
        if len(long_enough := np.flatnonzero(at_place)):
            # A view of all windows of this width. Only those at the records are copied.
            windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(block.data, np.uint8), width)
            rows = windows[block.ends[long_enough] - width]
            begin, end = len(before), len(before) + UUID_TEXT_BYTES
            texts[long_enough] = rows[:, begin:end]
            is_before = (rows[:, :begin] == np.frombuffer(before, np.uint8)).all(axis=1)
            at_place[long_enough] = is_before & (rows[:, end:] == np.frombuffer(after, np.uint8)).all(axis=1)
        return _completed(split_texts(texts, at_place), block, self._parsed)

    def _parsed(self, block: Block) -> UuidColumns:
        """Return the UUIDs of records with the UUID in any place."""
        if self._parser is None:
            # The schema only has the UUID, so the parser skips all other fields. Without a column for
            # malformed records, those have null there, which counts as no UUID.
            kind: pa.DataType = pa.string()
            for name in reversed(self._names[1:]):
                kind = pa.struct([pa.field(name, kind)])
            schema = pa.schema([pa.field(self._names[0], kind), pa.field(OFFSET, pa.int64())])
            self._parser = JsonParser(JsonFormat(schema, corrupt_column=None))
        return _parsed(self._parser, block, self._names)


class _CsvReader:
    def __init__(self, locator: CsvColumn, separator: str, quote: str) -> None:
        self._index = locator.index
        self._separator, self._quote = separator, quote
        self._parser: RowParser | None = None

    def uuids(self, block: Block) -> UuidColumns:
        if not len(block):
            return _none(0)
        if self._index:
            return self._parsed(block)
        texts, at_place = _rows_behind(block, b"", UUID_TEXT_BYTES)
        # The minimum keeps the index valid for the last record, whose length decides whether it counts.
        after = np.minimum(block.starts + UUID_TEXT_BYTES, len(block.data) - 1)
        separated = np.frombuffer(block.data, np.uint8)[after] == ord(self._separator)
        at_place &= separated | (block.ends - block.starts == UUID_TEXT_BYTES)
        return _completed(split_texts(texts, at_place), block, self._parsed)

    def _parsed(self, block: Block) -> UuidColumns:
        if self._parser is None:
            from gazette_spark._formats.csv_parser import CsvFormat, CsvParser, CsvStyle

            fields = [pa.field(f"{index}", pa.string()) for index in range(self._index + 1)]
            schema = pa.schema([*fields, pa.field(OFFSET, pa.int64())])
            style = CsvStyle(self._separator, self._quote)
            self._parser = CsvParser(CsvFormat(schema, corrupt_column=None, style=style), header=False)
        return _parsed(self._parser, block, [f"{self._index}"])


class _ProtobufReader:
    def __init__(self, locator: ProtobufField) -> None:
        self._locator = locator
        # The bytes of the tag and the length, as writers encode them.
        self._prefix = locator.set(b"", NIL_UUID)[:-16]

    def uuids(self, block: Block) -> UuidColumns:
        if not len(block):
            return _none(0)
        octets, at_place = _rows_behind(block, self._prefix, 16)
        return _completed(split_octets(octets, at_place), block, self._one_by_one)

    def _one_by_one(self, block: Block) -> UuidColumns:
        stamps: list[bytes | None] = []
        for index in range(len(block)):
            try:
                stamp = self._locator.get(block.record(index))
            except MessageError:
                stamp = None
            stamps.append(None if stamp is None else stamp.bytes)
        return split_uuids(pa.array(stamps, pa.binary()))


def _none(count: int) -> UuidColumns:
    numbers, none = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    return UuidColumns(numbers, numbers.astype(np.uint64), numbers.astype(np.uint16), none)


def _rows_behind(
    block: Block, prefix: bytes, width: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return ``width`` bytes of each record after a prefix, and a mask of records that have both."""
    size = len(prefix) + width
    complete = block.ends - block.starts >= size
    rows = np.zeros((len(block), width), np.uint8)
    # Use only records that are long enough, because a record may have a prefix of megabytes, of white space,
    # and be followed by thousands of short ones.
    if len(long_enough := np.flatnonzero(complete)):
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(block.data, np.uint8), size)
        begins = windows[block.starts[long_enough]]
        rows[long_enough] = begins[:, len(prefix) :]
        if prefix:
            has_prefix = (begins[:, : len(prefix)] == np.frombuffer(prefix, np.uint8)).all(axis=1)
            complete[long_enough] = has_prefix
    return rows, complete


def _completed(columns: UuidColumns, block: Block, fallback: _Fallback) -> UuidColumns:
    """Return the columns, completed by another reader for records without a UUID."""
    missing = np.flatnonzero(~columns.valid)
    if not len(missing):
        return columns
    _put(columns, missing, fallback(block if len(missing) == len(block) else block.only(~columns.valid)))
    return columns


def _put(columns: UuidColumns, rows: Positions, uuids: UuidColumns) -> None:
    columns.producers[rows], columns.clocks[rows] = uuids.producers, uuids.clocks
    columns.flags[rows], columns.valid[rows] = uuids.flags, uuids.valid


class _Fallback(Protocol):
    def __call__(self, block: Block, /) -> UuidColumns: ...


def _parsed(parser: RowParser, block: Block, path: list[str] | tuple[str, ...]) -> UuidColumns:
    """Return the UUIDs at a path of columns. A parser may omit records."""
    # Imported here because importing takes long, and records with the UUID in front do not need it.
    import pyarrow.compute as pc

    columns, offsets = [], []
    for record_batch in parser.record_batches([block]):
        column = record_batch.column(record_batch.schema.names.index(path[0]))
        for name in path[1:]:
            column = pc.struct_field(column, name)
        columns.append(column)
        offsets.append(record_batch.column(record_batch.schema.names.index(OFFSET)))
    if not columns:
        return _none(len(block))
    uuids = split_uuids(pa.concat_arrays(columns))
    # For int64 without nulls, the buffer has the values.
    every_offset = np.concatenate([np.frombuffer(column.buffers()[1], np.int64) for column in offsets])
    rows: Positions = np.searchsorted(block.offsets, every_offset)
    every = _none(len(block))
    _put(every, rows, uuids)
    return every
