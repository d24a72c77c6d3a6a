"""One JSON record to one row, by the user's schema: the exact and slow half of ``framing.json``.

The schema drives the parse: a field of the schema is read by its type, any other value is only checked
to be JSON. A value that does not fit its type becomes null and is noted; the rest of the record counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from gazette_spark.framing.json_values import Convert, converter, utf8

MAX_DEPTH = 500
"""Deepest nesting the ``json`` module is given: half of Python's own limit, so it never gets near it."""

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_SPACE = re.compile(r"[ \t\n\r]*")
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]')

Read = Callable[[str, int, list[str]], tuple[object, int]]
"""Reads the value at an index; notes what does not fit; returns the value and the index after it."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one record."""

    values: dict[str, object] | None
    """By field; None: the record is not a JSON object at all."""
    problem: str | None
    """What makes the record malformed, None when it is fine."""


class ExactReader:
    """Reads records by a schema. Immutable."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self._fields = {field.name: _reader(field.name, field.type) for field in fields}

    def row(self, record: bytes) -> Row:
        """Read one record. Never raises, whatever the bytes."""
        problems: list[str] = []
        try:
            values = self._values(record, problems)
        except UnicodeDecodeError as error:
            return Row(None, f"not UTF-8 at byte {error.start}")
        except json.JSONDecodeError as error:
            return Row(None, f"not a JSON object: {error.msg} at character {error.pos}")
        except RecursionError:
            return Row(None, "nested too deep")
        return Row(values, problems[0] if problems else None)

    def _values(self, record: bytes, problems: list[str]) -> dict[str, object]:
        text = record.decode()
        if _depth(text) > MAX_DEPTH:
            raise RecursionError
        at = _after_space(text, 0)
        if text[at : at + 1] != "{":
            raise json.JSONDecodeError("no '{'", text, at)
        values, at = _read_object(text, at, self._fields.get, problems)
        at = _after_space(text, at)
        if at < len(text):
            raise json.JSONDecodeError("more after the object's end", text, at)
        return values


def readable(kind: pa.DataType) -> bool:
    """Tell whether JSON can give values of a type."""
    if pa.types.is_struct(kind):
        return all(readable(field.type) for field in kind)
    if pa.types.is_list(kind):
        return readable(kind.value_type)
    if pa.types.is_map(kind):
        return bool(pa.types.is_string(kind.key_type)) and readable(kind.item_type)
    return converter(kind) is not None


def _depth(text: str) -> int:
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


def _reader(path: str, kind: pa.DataType) -> Read:
    if pa.types.is_struct(kind):
        return _struct_reader(
            path, {field.name: _reader(f"{path}.{field.name}", field.type) for field in kind}
        )
    if pa.types.is_list(kind):
        return _list_reader(path, _reader(f"{path}[]", kind.value_type))
    if pa.types.is_map(kind):
        return _map_reader(path, _reader(f"{path}{{}}", kind.item_type))
    convert = converter(kind)
    assert convert is not None, f"{path}: {kind} should have been refused"
    return _leaf_reader(path, convert)


def _leaf_reader(path: str, convert: Convert) -> Read:
    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        value, end = _DECODER.raw_decode(text, at)
        if value is None:
            return None, end
        try:
            return convert(value, text[at:end]), end
        except ValueError as error:
            problems.append(f"field {path} {error}")
            return None, end

    return read


def _struct_reader(path: str, fields: dict[str, Read]) -> Read:
    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        if text[at : at + 1] == "{":
            return _read_object(text, at, fields.get, problems)
        return _misfit(text, at, problems, f"field {path} is not an object")

    return read


def _map_reader(path: str, item: Read) -> Read:
    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        if text[at : at + 1] == "{":
            pairs, end = _read_object(text, at, lambda _key: item, problems)
            return [(utf8(key), value) for key, value in pairs.items()], end
        return _misfit(text, at, problems, f"field {path} is not an object")

    return read


def _list_reader(path: str, item: Read) -> Read:
    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        if text[at : at + 1] == "[":
            return _read_array(text, at, item, problems)
        return _misfit(text, at, problems, f"field {path} is not an array")

    return read


def _misfit(text: str, at: int, problems: list[str], problem: str) -> tuple[None, int]:
    value, end = _DECODER.raw_decode(text, at)
    if value is not None:
        problems.append(problem)
    return None, end


def _read_object(
    text: str, at: int, reader_of: Callable[[str], Read | None], problems: list[str]
) -> tuple[dict[str, object], int]:
    """Read the members of the object at ``at``; of a repeated name the last one counts."""
    values: dict[str, object] = {}
    at = _after_space(text, at + 1)
    if text[at : at + 1] == "}":
        return values, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("no member name", text, at)
        name, at = _DECODER.raw_decode(text, at)
        at = _after_space(text, at)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("no ':'", text, at)
        at = _after_space(text, at + 1)
        read = reader_of(name)
        if read is None:
            _, at = _DECODER.raw_decode(text, at)
        else:
            values[name], at = read(text, at, problems)
        at, more = _next(text, at, "}")
        if not more:
            return values, at


def _read_array(text: str, at: int, item: Read, problems: list[str]) -> tuple[list[object], int]:
    values: list[object] = []
    at = _after_space(text, at + 1)
    if text[at : at + 1] == "]":
        return values, at + 1
    while True:
        value, at = item(text, at, problems)
        values.append(value)
        at, more = _next(text, at, "]")
        if not more:
            return values, at


def _next(text: str, at: int, close: str) -> tuple[int, bool]:
    """Return the index after a ',' or the closing bracket, and whether it was a ','."""
    at = _after_space(text, at)
    found = text[at : at + 1]
    if found == ",":
        return _after_space(text, at + 1), True
    if found == close:
        return at + 1, False
    raise json.JSONDecodeError(f"no ',' or '{close}'", text, at)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
