"""JSON to Spark's VARIANT: the bytes that ``parse_json`` makes of the same text.

A variant is two binary values. ``metadata`` holds the names of all fields, each once, in order of appearance.
``value`` begins with a byte whose lower two bits give its kind: a scalar, a short text, an object or an
array. Objects name their fields by index in ``metadata``, sorted by name, and the values keep the order of
the text. All numbers are little-endian. The layout is that of the Parquet format's variant encoding.

Whole numbers take as few bytes as they need. Other numbers are decimals of up to 38 digits if they have no
exponent, else doubles. An object that repeats a name is refused, as in Spark.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
from dataclasses import dataclass

_SCALAR, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_NULL, _TRUE, _FALSE, _INT1, _INT2, _INT4, _INT8, _DOUBLE, _DECIMAL4, _DECIMAL8, _DECIMAL16 = range(11)
_LONG_TEXT = 16
_MAX_SHORT_TEXT = 63
_VERSION = 1

_INTEGERS = ((_INT1, 1), (_INT2, 2), (_INT4, 4), (_INT8, 8))
_DECIMALS = ((_DECIMAL4, 9, 4), (_DECIMAL8, 18, 8), (_DECIMAL16, 38, 16))
"""Type, most digits, and bytes."""

MAX_DEPTH = 500
"""Deepest nesting: half of Python's own limit, so the ``json`` module never gets near it."""

_NESTING = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""A string, which may have no end, or a bracket."""
_PLAIN_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class _Number:
    """A number as it is written."""

    text: str


@dataclass(frozen=True, slots=True)
class _Members:
    """An object's members, in order."""

    pairs: list[tuple[str, object]]


_DECODER = json.JSONDecoder(
    parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=_Members
)


def encode(text: str) -> dict[str, bytes]:
    """Return the two parts of a JSON value.

    Raises:
        ValueError: an object repeats a name, or the value is nested too deep.
    """
    if nesting(text) > MAX_DEPTH:
        raise ValueError("is nested too deep")
    names: dict[bytes, int] = {}
    value = _encoded(_DECODER.decode(text), names)
    return {"value": value, "metadata": _metadata(list(names))}


def nesting(text: str) -> int:
    """Return how deep brackets nest, at most; the count of brackets when that is small anyway."""
    opened = text.count("[") + text.count("{")
    if opened <= MAX_DEPTH:
        return opened
    depth = deepest = 0
    for found in _NESTING.finditer(text):
        match text[found.start()]:
            case "[" | "{":
                depth += 1
                deepest = max(deepest, depth)
            case "]" | "}":
                depth -= 1
    return deepest


def _metadata(names: list[bytes]) -> bytes:
    width = _width(max(sum(map(len, names)), len(names)))
    ends = [0]
    for name in names:
        ends.append(ends[-1] + len(name))
    head = bytes([_VERSION | (width - 1) << 6]) + _little(len(names), width)
    return head + b"".join(_little(end, width) for end in ends) + b"".join(names)


def _encoded(value: object, names: dict[bytes, int]) -> bytes:
    match value:
        case None:
            return _scalar(_NULL)
        case bool():
            return _scalar(_TRUE if value else _FALSE)
        case str():
            return _text(value)
        case _Number(text):
            return _number(text)
        case list():
            items = []
            for item in value:  # An explicit loop costs no frame of the stack, of which there are few.
                items.append(_encoded(item, names))  # noqa: PERF401
            return _array(items)
        case _Members(pairs):
            fields = []
            for name, item in pairs:
                octets = name.encode("utf-8", "replace")
                place = names.setdefault(octets, len(names))
                fields.append((name, place, _encoded(item, names)))
            return _object(fields)
    raise AssertionError(f"no JSON value: {value!r}")


def _scalar(kind: int, content: bytes = b"") -> bytes:
    return bytes([kind << 2 | _SCALAR]) + content


def _text(value: str) -> bytes:
    octets = value.encode("utf-8", "replace")
    if len(octets) <= _MAX_SHORT_TEXT:
        return bytes([len(octets) << 2 | _SHORT_TEXT]) + octets
    return _scalar(_LONG_TEXT, _little(len(octets), 4) + octets)


def _number(text: str) -> bytes:
    if _PLAIN_NUMBER.fullmatch(text):
        whole, _, fraction = text.partition(".")
        if not fraction and len(whole) <= 20:
            for kind, width in _INTEGERS:
                if -(1 << (8 * width - 1)) <= int(whole) < 1 << (8 * width - 1):
                    return _scalar(kind, int(whole).to_bytes(width, "little", signed=True))
        digits = len((whole.lstrip("-") + fraction).lstrip("0")) or 1
        for kind, most, width in _DECIMALS:
            if digits <= most and len(fraction) <= most:
                unscaled = int(whole + fraction).to_bytes(width, "little", signed=True)
                return _scalar(kind, bytes([len(fraction)]) + unscaled)
    return _scalar(_DOUBLE, struct.pack("<d", float(text)))


def _array(items: list[bytes]) -> bytes:
    width = _width(sum(map(len, items)))
    large = len(items) > 0xFF
    head = bytes([large << 4 | (width - 1) << 2 | _ARRAY]) + _little(len(items), 4 if large else 1)
    offsets, at = [], 0
    for item in items:
        offsets.append(_little(at, width))
        at += len(item)
    return b"".join([head, *offsets, _little(at, width), *items])


def _object(fields: list[tuple[str, int, bytes]]) -> bytes:
    """Return an object of fields: name, place of the name, and value."""
    starts, at = [], 0
    for _, _, value in fields:
        starts.append(at)
        at += len(value)
    order = sorted(range(len(fields)), key=lambda index: _java_order(fields[index][0]))
    for one, other in itertools.pairwise(order):
        if fields[one][0] == fields[other][0]:
            raise ValueError(f"repeats the name {fields[one][0]!r}")
    id_width = _width(max((place for _, place, _ in fields), default=0))
    width = _width(at)
    large = len(fields) > 0xFF
    head = bytes([large << 6 | (id_width - 1) << 4 | (width - 1) << 2 | _OBJECT])
    parts = [head, _little(len(fields), 4 if large else 1)]
    parts += [_little(fields[index][1], id_width) for index in order]
    parts += [_little(starts[index], width) for index in order]
    return b"".join([*parts, _little(at, width), *(value for _, _, value in fields)])


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _width(largest: int) -> int:
    """Return how many bytes, of 1 to 4, hold numbers up to the largest."""
    return max(1, (largest.bit_length() + 7) // 8)


def _little(number: int, width: int) -> bytes:
    return number.to_bytes(width, "little")
