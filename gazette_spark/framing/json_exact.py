"""One JSON record to one row, by the user's schema: the exact and slow half of ``framing.json``.

The schema drives the parse: a field of the schema is read by its type, any other value is only checked
to be JSON. A value that does not fit its type is noted, and the field it is in becomes null, be it a
column or a field of a struct: arrays and maps are read as a whole or not at all, as in Spark. The rest of
the record counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import partial

import pyarrow as pa

from gazette_spark.framing.json_lenient import has_constant, strict_text
from gazette_spark.framing.json_values import SPARKS, Convert, JsonDialect, converter, is_variant, utf8
from gazette_spark.framing.rows import WHOLE_RECORD, Row

MAX_DEPTH = 500
"""Deepest nesting the ``json`` module is given: half of Python's own limit, so it never gets near it."""

Leaf = Callable[[pa.DataType], Convert | None]
"""Gives the converter of a type without children."""

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_SPACE = re.compile(r"[ \t\n\r]*")
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]')

_MISFIT = object()
"""Placeholder for a value that does not fit, until a field replaces it."""

Read = Callable[[str, int, list[str]], tuple[object, int]]
"""Reads the value at an index and notes misfits; returns the value and the index after it."""


class ExactReader:
    """Reads records by a schema. Immutable.

    With ``rescue``, the text of each field that does not fit, or that no column takes, is kept, and the
    record is fine. A field in which something deeper does not fit is kept as a whole.
    """

    def __init__(
        self, fields: Iterable[pa.Field], *, rescue: bool = False, dialect: JsonDialect = SPARKS
    ) -> None:
        leaf = partial(converter, dialect=dialect)
        self._fields = {field.name: _reader(field.name, field.type, leaf, rescue) for field in fields}
        self._rescue = rescue
        self._dialect = dialect

    def row(self, record: bytes) -> Row:
        """Read one record. Never raises for invalid bytes, only for something missing on the machine."""
        try:
            text = record.decode()
        except UnicodeDecodeError as error:
            return self._unreadable(record, f"not UTF-8 at byte {error.start}")
        try:
            return self._row(text)
        except json.JSONDecodeError as error:
            strict = strict_text(text, self._dialect)
            row = None if strict == text else self._second_try(strict)
            problem = f"not a JSON object: {error.msg} at character {error.pos}"
            return row or self._unreadable(record, problem)
        except RecursionError:
            return self._unreadable(record, "nested too deep")

    def _second_try(self, text: str) -> Row | None:
        try:
            return self._row(text)
        except (json.JSONDecodeError, RecursionError):
            return None

    def _unreadable(self, record: bytes, problem: str) -> Row:
        text = json.dumps(record.decode("utf-8", "replace")) if self._rescue else ""
        return Row(None, problem, {WHOLE_RECORD: text} if text else {})

    def _row(self, text: str) -> Row:
        problems: list[str] = []
        rescued: dict[str, str] = {}
        if _depth(text) > MAX_DEPTH:
            raise RecursionError
        if not self._dialect.allow_non_numeric_numbers and has_constant(text):
            raise json.JSONDecodeError("a number that is none", text, 0)
        at = _after_space(text, 0)
        if text[at : at + 1] != "{":
            raise json.JSONDecodeError("no '{'", text, at)
        reader_of = (lambda name: self._rescuing(name, rescued)) if self._rescue else self._fields.get
        members, at = _read_members(text, at, reader_of, problems)
        at = _after_space(text, at)
        if at < len(text):
            raise json.JSONDecodeError("more after the object's end", text, at)
        return Row(_fitting(members), problems[0] if problems and not self._rescue else None, rescued)

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
    if is_variant(kind):
        return True
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


def _reader(path: str, kind: pa.DataType, leaf: Leaf, rescue: bool) -> Read:  # noqa: FBT001 - private.
    if is_variant(kind):
        return _variant_reader(path)
    if pa.types.is_struct(kind):
        fields = {field.name: _reader(f"{path}.{field.name}", field.type, leaf, rescue) for field in kind}
        return _struct_reader(path, fields, rescue)
    if pa.types.is_list(kind):
        return _list_reader(path, _reader(f"{path}[]", kind.value_type, leaf, rescue))
    if pa.types.is_map(kind):
        return _map_reader(path, _reader(f"{path}{{}}", kind.item_type, leaf, rescue))
    convert = leaf(kind)
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
            return _MISFIT, end

    return read


def _variant_reader(path: str) -> Read:
    # Few queries have one.
    from gazette_spark.framing.variant import encode

    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        _, end = _DECODER.raw_decode(text, at)
        try:
            return encode(text[at:end]), end
        except ValueError as error:
            problems.append(f"field {path} {error}")
            return _MISFIT, end

    return read


def _struct_reader(path: str, fields: dict[str, Read], rescue: bool) -> Read:  # noqa: FBT001 - private.
    def reader_of(name: str) -> Read | None:
        return fields.get(name) or (_stranger(f"{path}.{name}") if rescue else None)

    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        if text[at : at + 1] == "{":
            members, end = _read_members(text, at, reader_of, problems)
            return _fitting(members), end
        return _misfit(text, at, problems, f"field {path} is not an object")

    return read


def _map_reader(path: str, item: Read) -> Read:
    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        if text[at : at + 1] == "{":
            members, end = _read_members(text, at, lambda _key: item, problems)
            if any(value is _MISFIT for _, value in members):
                return _MISFIT, end
            return list({utf8(key): value for key, value in members}.items()), end
        return _misfit(text, at, problems, f"field {path} is not an object")

    return read


def _list_reader(path: str, item: Read) -> Read:
    def read(text: str, at: int, problems: list[str]) -> tuple[object, int]:
        if text[at : at + 1] == "[":
            values, end = _read_array(text, at, item, problems)
            return _MISFIT if any(value is _MISFIT for value in values) else values, end
        return _misfit(text, at, problems, f"field {path} is not an array")

    return read


def _misfit(text: str, at: int, problems: list[str], problem: str) -> tuple[object, int]:
    value, end = _DECODER.raw_decode(text, at)
    if value is None:
        return None, end
    problems.append(problem)
    return _MISFIT, end


def _fitting(members: list[tuple[str, object]]) -> dict[str, object]:
    """Return the fields of an object; of a repeated name the last one that fits counts."""
    fitting: dict[str, object] = {}
    for name, value in members:
        if value is _MISFIT:
            fitting.setdefault(name, None)
        else:
            fitting[name] = value
    return fitting


def _read_members(
    text: str, at: int, reader_of: Callable[[str], Read | None], problems: list[str]
) -> tuple[list[tuple[str, object]], int]:
    """Read the members, of the object at ``at``, that have a reader."""
    values: list[tuple[str, object]] = []
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
            value, at = read(text, at, problems)
            values.append((name, value))
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
