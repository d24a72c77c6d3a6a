"""One JSON record to one row, by the user's schema: the exact and slow half of ``framing.json``.

The schema drives the parse: a field of the schema is read by its type, any other value is only checked
to be JSON. A value that does not fit its type becomes null and is noted; the rest of the record counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

import pyarrow as pa

from gazette_spark.framing.json_values import Convert, converter, utf8
from gazette_spark.framing.rows import WHOLE_RECORD, Row

MAX_DEPTH = 500
"""Deepest nesting the ``json`` module is given: half of Python's own limit, so it never gets near it."""

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_SPACE = re.compile(r"[ \t\n\r]*")
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]')

Read = Callable[[str, int, list[str]], tuple[object, int]]
"""Reads the value at an index; notes what does not fit; returns the value and the index after it."""


class ExactReader:
    """Reads records by a schema. Immutable.

    With ``rescue``, the text of each field that does not fit, or that no column takes, is kept, and the
    record is fine. A field in which something deeper does not fit is kept as a whole.
    """

    def __init__(self, fields: Iterable[pa.Field], *, rescue: bool = False) -> None:
        self._fields = {field.name: _reader(field.name, field.type, rescue) for field in fields}
        self._rescue = rescue

    def row(self, record: bytes) -> Row:
        """Read one record. Never raises, whatever the bytes."""
        problems: list[str] = []
        rescued: dict[str, str] = {}
        try:
            values = self._values(record, problems, rescued)
        except UnicodeDecodeError as error:
            return self._unreadable(record, f"not UTF-8 at byte {error.start}")
        except json.JSONDecodeError as error:
            return self._unreadable(record, f"not a JSON object: {error.msg} at character {error.pos}")
        except RecursionError:
            return self._unreadable(record, "nested too deep")
        return Row(values, problems[0] if problems and not self._rescue else None, rescued)

    def _unreadable(self, record: bytes, problem: str) -> Row:
        text = json.dumps(record.decode("utf-8", "replace")) if self._rescue else ""
        return Row(None, problem, {WHOLE_RECORD: text} if text else {})

    def _values(self, record: bytes, problems: list[str], rescued: dict[str, str]) -> dict[str, object]:
        text = record.decode()
        if _depth(text) > MAX_DEPTH:
            raise RecursionError
        at = _after_space(text, 0)
        if text[at : at + 1] != "{":
            raise json.JSONDecodeError("no '{'", text, at)
        reader_of = (lambda name: self._rescuing(name, rescued)) if self._rescue else self._fields.get
        values, at = _read_object(text, at, reader_of, problems)
        at = _after_space(text, at)
        if at < len(text):
            raise json.JSONDecodeError("more after the object's end", text, at)
        return values

    def _rescuing(self, name: str, rescued: dict[str, str]) -> Read:
        """Return a field's reader that keeps text that does not fit; of a repeated name the last counts."""
        reader = self._fields.get(name) or _stranger(name)

        def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
            before = len(problems)
            value, end = reader(text, at, problems)
            rescued.pop(name, None)
            if len(problems) > before:
                rescued[name] = text[at:end]
            return value, end

        return read


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


def _reader(path: str, kind: pa.DataType, rescue: bool) -> Read:  # noqa: FBT001 - private.
    if pa.types.is_struct(kind):
        fields = {field.name: _reader(f"{path}.{field.name}", field.type, rescue) for field in kind}
        return _struct_reader(path, fields, rescue)
    if pa.types.is_list(kind):
        return _list_reader(path, _reader(f"{path}[]", kind.value_type, rescue))
    if pa.types.is_map(kind):
        return _map_reader(path, _reader(f"{path}{{}}", kind.item_type, rescue))
    convert = converter(kind)
    assert convert is not None, f"{path}: {kind} should have been refused"
    return _leaf_reader(path, convert)


def _stranger(path: str) -> Read:
    """Return a reader of a field that no column takes."""

    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        _, end = _DECODER.raw_decode(text, at)
        problems.append(f"field {path} is not in the schema")
        return None, end

    return read


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


def _struct_reader(path: str, fields: dict[str, Read], rescue: bool) -> Read:  # noqa: FBT001 - private.
    def reader_of(name: str) -> Read | None:
        return fields.get(name) or (_stranger(f"{path}.{name}") if rescue else None)

    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        if text[at : at + 1] == "{":
            return _read_object(text, at, reader_of, problems)
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
