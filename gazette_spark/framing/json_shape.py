r"""Blocks of JSON records that all have one shape: columns by position, several times as fast as a parser.

Programs write records with the same fields, in the same order, with the same spaces. The first record of
a block shows the shape: the *template* between its values, byte by byte::

    {"id": 17, "user": "ann", "ok": true}
    ~~~~~~~  ~~~~~~~~~~~   ~~~~~~~~~    ~     template
           17           ann         true      values

Every other record must have the same template, and values that end where the template goes on. What was
looked at decides, never what is likely: a block is only taken when all this holds of each of its records,

- there is no backslash and, but for the newlines, no control character: so a quote opens or closes a string;
- it has as many quotes as the first one, each at the place the template gives it: so strings are where they
are
  in the first record, and hold no quote;
- all bytes between values are the template's;
- a value without quotes is a plain number, ``-?(0|[1-9][0-9]*)(\.[0-9]+)?``, or ``true`` or ``false``, as the
  first record's was.

Then the record is one flat JSON object with the first one's names, and its values are those that were cut
out. Numbers are converted by Arrow's own converters, which ``pyarrow.json`` uses, too. Any other block is
left to that: one with nested values, nulls, escapes, exponents, or fields that come and go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gazette_spark.framing.base import Block, Positions, bool_array, slices

if TYPE_CHECKING:
    import numpy.typing as npt

    Octets = npt.NDArray[np.uint8]

SCAN_BYTES = 64 << 10
"""Bytes scanned at a time: results of this size stay in the core's cache."""

_MEMBER = re.compile(rb'[ \t]*"([^"]+)"[ \t]*:[ \t]*(?:(")([^"]*)"|([-0-9.]+)|(true|false))[ \t]*')
_QUOTE, _BLANK, _NEWLINE = 0x22, 0x20, 0x0A

_PLAIN = np.zeros(256, np.bool_)
_PLAIN[list(b"0123456789.-")] = True
_DIGIT = np.zeros(256, np.bool_)
_DIGIT[list(b"0123456789")] = True


@dataclass(frozen=True, slots=True)
class _Member:
    """One field of the shape."""

    name: str
    kind: str
    """``text``, ``number`` or ``bool``."""
    template: bytes
    """All bytes from the end of the value before, or the record's begin, to this value."""
    key_at: int
    """Where in the template the name's first quote is."""


@dataclass(frozen=True, slots=True)
class _Shape:
    members: tuple[_Member, ...]
    tail: bytes
    """All bytes from the end of the last value to the end of the record."""
    quotes: int
    """Number of quotes in a record."""


class _OtherShapeError(Exception):
    """A record has another shape."""


class ShapeReader:
    """Reads blocks of one shape into the columns of a schema. For one thread: it keeps scratch space."""

    def __init__(self, storage: pa.Schema, *, extra_fields: bool) -> None:
        self._storage = storage
        self._extra_fields = extra_fields
        # Large arrays made anew for each block would be mapped and given back each time: a third of the work.
        self._scratch = np.empty((2, 0), np.int64)

    @property
    def usable(self) -> bool:
        """Tell whether all columns are strings, numbers or booleans."""
        return all(_known(kind) for kind in self._storage.types)

    def columns(self, block: Block) -> Mapping[str, pa.Array] | None:
        """Return the columns, or None for a block that is not of one shape.

        Args:
            block: Records that are known to be UTF-8, without NUL.
        """
        shape = _shape_of(block.record(0)) if len(block) else None
        if shape is None or not self._fits(shape):
            return None
        try:
            if not all(matches_template(block.record(at), shape) for at in (len(block) // 2, len(block) - 1)):
                return None
            return self._read(block, shape)
        except (_OtherShapeError, pa.ArrowInvalid):
            return None

    def _fits(self, shape: _Shape) -> bool:
        """Tell whether the values are of the columns' kinds."""
        wanted = {column.name: _kind_of(column.type) for column in self._storage}
        return all(
            wanted.get(member.name, member.kind) == member.kind
            and (self._extra_fields or member.name in wanted)
            for member in shape.members
        )

    def _read(self, block: Block, shape: _Shape) -> dict[str, pa.Array]:
        octets = np.frombuffer(block.data, np.uint8)
        size = len(block) * shape.quotes
        if self._scratch.shape[1] < size:
            self._scratch = np.empty((2, size), np.int64)
        quotes = _quotes(block, octets, shape, self._scratch)
        spans = _spans(block, shape, quotes)
        _check_template(block, octets, shape, spans)
        found: dict[str, pa.Array] = {}
        wanted = {column.name: column.type for column in self._storage}
        for member, (begins, ends) in zip(shape.members, spans, strict=True):
            kind = wanted.get(member.name)
            if member.kind == "bool":
                values = _booleans(octets, begins, ends)
            elif member.kind == "number":
                values = _numbers(block, begins, ends, kind)
            elif kind is not None:
                values = slices(block.data, begins, ends)
            if kind is not None:
                found[member.name] = values
        for name, kind in wanted.items():
            if name not in found:
                found[name] = pa.nulls(len(block), kind)
        return found


def _known(kind: pa.DataType) -> bool:
    return _kind_of(kind) != ""


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "bool"
    number = pa.types.is_signed_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    return "number" if number else ""


def _shape_of(record: bytes) -> _Shape | None:
    """Return the shape of a record that is a flat object of plain values."""
    at = record.find(b"{") + 1
    if at == 0 or record[: at - 1].strip(b" ") or b"\\" in record:
        return None
    members: list[_Member] = []
    template_from = 0
    more = True
    while more:
        found = _MEMBER.match(record, at)
        if found is None:
            return None
        value = next(group for group in (3, 4, 5) if found[group] is not None)
        template = record[template_from : found.start(value)]
        kind = ("text", "number", "bool")[value - 3]
        name = found[1].decode("utf-8", "surrogateescape")
        members.append(_Member(name, kind, template, found.start(1) - 1 - template_from))
        template_from, at = found.end(value), found.end() + 1
        more = record[found.end() : at] == b","
    names = {member.name for member in members}
    if len(names) < len(members) or record[at - 1 :].rstrip(b" ") != b"}":
        return None
    quotes = sum(4 if member.kind == "text" else 2 for member in members)
    return _Shape(tuple(members), record[template_from:], quotes)


def matches_template(record: bytes, shape: _Shape) -> bool:
    """Tell whether a record may have the shape: cheap, and no proof."""
    at = 0
    for member in shape.members:
        at = record.find(member.template, at) + len(member.template)
        if at < len(member.template):
            return False
    return record.count(b'"') == shape.quotes and record.endswith(shape.tail)


def _quotes(block: Block, octets: Octets, shape: _Shape, scratch: Positions) -> Positions:
    """Return the places of the quotes, a row for each quote of the shape and a column for each record."""
    if b"\\" in block.data:
        raise _OtherShapeError
    count = len(block)
    total = count * shape.quotes
    found, controls = 0, 0
    for low in range(0, len(octets), SCAN_BYTES):
        part = octets[low : low + SCAN_BYTES]
        places = np.flatnonzero(part == _QUOTE)
        if found + len(places) > total:
            raise _OtherShapeError
        np.add(places, low, out=scratch[0, found : found + len(places)])
        found += len(places)
        controls += int(np.count_nonzero(part < _BLANK))
    closed = block.ends[-1] < len(octets) and (octets[block.ends] == _NEWLINE).all()
    if found != total or controls != count or not closed:
        raise _OtherShapeError
    # Those of one quote of the shape are worked on together, so they are put next to each other.
    by_quote: Positions = scratch[1, :total].reshape(shape.quotes, count)
    by_quote[...] = scratch[0, :total].reshape(count, shape.quotes).T
    return by_quote


def _spans(block: Block, shape: _Shape, quotes: Positions) -> list[tuple[Positions, Positions]]:
    """Return where each member's values begin and end, provided that the template is where its quotes are."""
    begins: list[Positions] = []
    ends: list[Positions] = []
    column = 0
    for index, member in enumerate(shape.members):
        template_at = quotes[column] - member.key_at
        if len(ends) < index:
            ends.append(template_at)
        begins.append(template_at + len(member.template))
        column += 2
        if member.kind == "text":
            ends.append(quotes[column + 1])
            column += 2
    if len(ends) < len(begins):
        ends.append(block.ends - len(shape.tail))
    return list(zip(begins, ends, strict=True))


def _check_template(
    block: Block, octets: Octets, shape: _Shape, spans: Sequence[tuple[Positions, Positions]]
) -> None:
    """Check that template and values take turns without a gap, and that the template is the shape's.

    The template's quotes are then the record's first ones, and so on: the next one ends a string.
    """
    before = block.starts
    for member, (begins, ends) in zip(shape.members, spans, strict=True):
        _check_bytes(block, octets, before, begins, member.template)
        before = ends
    _check_bytes(block, octets, before, block.ends, shape.tail)


def _check_bytes(block: Block, octets: Octets, begins: Positions, ends: Positions, expected: bytes) -> None:
    """Check the bytes between places: eight bytes at a time, the last ones maybe overlapping."""
    if not np.array_equal(ends - begins, np.broadcast_to(len(expected), begins.shape)):
        raise _OtherShapeError
    if begins[-1] + 8 > len(octets):
        # Near the block's end, which only the tail of a record is.
        for index, octet in enumerate(expected):
            if (octets[begins + index] != octet).any():
                raise _OtherShapeError
        return
    # Of a type without alignment: the places are anywhere.
    eights = np.ndarray((len(octets) - 7,), "V8", block.data, strides=(1,))
    size = min(len(expected), 8)
    mask = np.uint64((1 << 8 * size) - 1)
    for low in (*range(0, len(expected) - 8, 8), max(len(expected) - 8, 0)):
        wanted = np.uint64(int.from_bytes(expected[low : low + size], "little"))
        if ((eights[begins + low].view("<u8") & mask) != wanted).any():
            raise _OtherShapeError


def _booleans(octets: Octets, begins: Positions, ends: Positions) -> pa.BooleanArray:
    sizes = ends - begins
    true = sizes == 4
    if not (true | (sizes == 5)).all():
        raise _OtherShapeError
    for word, rows in ((b"true", true), (b"false", ~true)):
        at = begins[rows]
        for index, octet in enumerate(word):
            if (octets[at + index] != octet).any():
                raise _OtherShapeError
    return bool_array(true)


def _numbers(block: Block, begins: Positions, ends: Positions, kind: pa.DataType | None) -> pa.Array:
    """Return numbers; those that nobody wants have to be some, too."""
    texts = slices(block.data, begins, ends)
    _check_numbers(texts)
    return texts.cast(kind or pa.float64())


def _check_numbers(texts: pa.StringArray) -> None:
    """Check that texts are plain JSON numbers, but for a second point: no converter takes that."""
    bounds = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1)
    octets = np.frombuffer(texts.buffers()[2], np.uint8)[: bounds[-1]]
    first, last = bounds[:-1].astype(np.int64), bounds[1:].astype(np.int64) - 1
    if (first > last).any() or not _PLAIN[octets].all() or not _DIGIT[octets[last]].all():
        raise _OtherShapeError
    minus = octets[first] == ord("-")
    if np.count_nonzero(octets == ord("-")) != np.count_nonzero(minus):
        raise _OtherShapeError
    first = first + minus
    if (first > last).any() or not _DIGIT[octets[first]].all():
        raise _OtherShapeError
    # The first byte and the last one are digits, so a point has neighbours in its number.
    points = np.flatnonzero(octets == ord("."))
    if not (_DIGIT[octets[points - 1]].all() and _DIGIT[octets[points + 1]].all()):
        raise _OtherShapeError
    zero = (octets[first] == ord("0")) & (first < last)
    if _DIGIT[octets[first[zero] + 1]].any():
        raise _OtherShapeError
