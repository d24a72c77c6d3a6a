"""Parses the option ``schemaHints``: types of columns that a sample of records does not show.

The syntax is that of Auto Loader's hints: columns and their types, as in ``id BIGINT, user.since DATE``. A
path with dots leads into structs, and ``element`` into arrays. Types are represented in Spark's JSON form,
because Spark's own parser needs a JVM, which the process that infers a schema lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gazette_spark._options.values import shown
from gazette_spark.errors import OptionError

JsonType: TypeAlias = "str | Mapping[str, Any]"
"""A type as ``DataType.jsonValue`` returns it."""

EXPECTED = "columns and types, such as id BIGINT, user.since DATE, tags ARRAY<STRING>"

ELEMENT = "element"
"""The part of a path that denotes an array's elements."""

NAMED: Mapping[str, str] = {
    "BIGINT": "long",
    "BINARY": "binary",
    "BOOLEAN": "boolean",
    "BYTE": "byte",
    "DATE": "date",
    "DOUBLE": "double",
    "FLOAT": "float",
    "INT": "integer",
    "INTEGER": "integer",
    "LONG": "long",
    "REAL": "float",
    "SHORT": "short",
    "SMALLINT": "short",
    "STRING": "string",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
    "TINYINT": "byte",
    "VARIANT": "variant",
}
"""Spark's name of each simple type, by its name in DDL."""

DECIMALS = frozenset({"DEC", "DECIMAL", "NUMERIC"})
DEFAULT_DECIMAL = (10, 0)
"""Default precision and scale of a decimal, as in Spark."""
MAX_PRECISION = 38

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|([<>(),:.]))")


@dataclass(frozen=True, slots=True)
class SchemaHint:
    """The type of a column or of a nested field."""

    path: tuple[str, ...]
    type: JsonType


def parse_hints(name: str, text: str) -> tuple[SchemaHint, ...]:
    """Parse the option.

    Raises:
        OptionError: the text is not a list of columns and types. The error shows the place.
    """
    try:
        hints = tuple(_Parser(text).hints())
    except (_HintError, RecursionError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else error
        raise OptionError(name, f"{shown(text)} ({problem})", EXPECTED) from None
    seen: set[tuple[str, ...]] = set()
    for hint in hints:
        if hint.path in seen:
            raise OptionError(name, f"{'.'.join(hint.path)!r} a second time", "each column once")
        seen.add(hint.path)
    return hints


def with_hints(fields: Sequence[Mapping[str, Any]], hints: Sequence[SchemaHint]) -> list[dict[str, Any]]:
    """Return columns with the types of hints. Missing columns are added last, in the hints' order.

    Raises:
        OptionError: a path leads into a column that is neither a struct nor an array.
    """
    schema: Any = struct(fields)
    for hint in hints:
        schema = _with_hint(schema, hint, 0)
    return schema["fields"]  # type: ignore[no-any-return]  # A path has a name, so it stays a struct.


def field(name: str, kind: JsonType) -> dict[str, Any]:
    """Return a column in the form of Spark's JSON."""
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def struct(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a struct in the form of Spark's JSON."""
    return {"type": "struct", "fields": list(fields)}


def _with_hint(kind: JsonType, hint: SchemaHint, depth: int) -> JsonType:
    # A hint replaces the whole type of its column, because the user knows the type, and the sample may not
    # show it.
    if depth == len(hint.path):
        return hint.type
    step = hint.path[depth]
    match kind:
        case {"type": "struct", "fields": list(fields)}:
            names = [column["name"] for column in fields]
            if step not in names:
                # The sample has no such field. A path may add several levels, of which each is a struct.
                return struct([*fields, field(step, _with_hint(struct([]), hint, depth + 1))])
            index = names.index(step)
            changed = {**fields[index], "type": _with_hint(fields[index]["type"], hint, depth + 1)}
            return struct([*fields[:index], changed, *fields[index + 1 :]])
        case {"type": "array", "elementType": element} if step == ELEMENT:
            return {
                "type": "array",
                "elementType": _with_hint(element, hint, depth + 1),
                "containsNull": True,
            }
    name = kind if isinstance(kind, str) else f"{kind['type']}, whose values are called {ELEMENT!r}"
    got = f"{'.'.join(hint.path)!r}, but {'.'.join(hint.path[:depth])!r} is of type {name}"
    raise OptionError("schemaHints", got, "paths into structs and arrays, or the type of the whole column")


class _HintError(ValueError):
    """The text is not a list of columns and types."""


class _Parser:
    """Parses a list of columns and types from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0

    def hints(self) -> Iterator[SchemaHint]:
        while True:
            path = [self._name()]
            while self._take("."):
                path.append(self._name())
            self._take(":")
            yield SchemaHint(tuple(path), self._type())
            if self._at == len(self._text):
                return
            self._expect(",")

    def _type(self) -> JsonType:
        word = self._name().upper()
        if word in NAMED:
            return NAMED[word]
        if word in DECIMALS:
            return self._decimal()
        if word == "ARRAY":
            (element,) = self._arguments(1)
            return {"type": "array", "elementType": element, "containsNull": True}
        if word == "MAP":
            key, value = self._arguments(2)
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        if word == "STRUCT":
            self._expect("<")
            fields = [self._field()]
            while self._take(","):
                fields.append(self._field())
            self._expect(">")
            return struct(fields)
        raise _HintError(f"{word} is not a type of a column")

    def _field(self) -> dict[str, Any]:
        name = self._name()
        self._take(":")
        return field(name, self._type())

    def _arguments(self, count: int) -> list[JsonType]:
        self._expect("<")
        arguments = [self._type()]
        while len(arguments) < count:
            self._expect(",")
            arguments.append(self._type())
        self._expect(">")
        return arguments

    def _decimal(self) -> str:
        precision, scale = DEFAULT_DECIMAL
        if self._take("("):
            precision, scale = self._number(), 0
            if self._take(","):
                scale = self._number()
            self._expect(")")
        if not 0 <= scale <= precision <= MAX_PRECISION or precision == 0:
            raise _HintError(f"DECIMAL({precision},{scale}) has too many digits, or none")
        return f"decimal({precision},{scale})"

    def _number(self) -> int:
        word = self._name()
        if not re.fullmatch("[0-9]{1,2}", word):
            raise _HintError(f"{word} is not a number of digits")
        return int(word)

    def _name(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        if token is None or token[3]:
            raise self._unexpected("a name")
        self._at = token.end()
        return token[1][1:-1].replace("``", "`") if token[1] else token[2]

    def _take(self, sign: str) -> bool:
        token = _TOKEN.match(self._text, self._at)
        if token is None or token[3] != sign:
            return False
        self._at = token.end()
        return True

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unexpected(repr(sign))

    def _unexpected(self, expected: str) -> _HintError:
        rest = self._text[self._at :].lstrip()
        return _HintError(f"expected {expected} {f'before {shown(rest[:20])}' if rest else 'at the end'}")
