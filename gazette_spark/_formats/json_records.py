"""Decodes a JSON record to a Python object with Python's parser, whose scanner is written in C.

Strings become strings, and numbers become bytes with their text, because the type of a column decides what
they are. An object that repeats a name becomes :class:`RepeatedNames`. JSON extensions that Spark's reader
accepts are rewritten to standard JSON first.

The parser does not report the position of a value. Columns of strings keep the texts of objects and arrays,
and fields that do not fit are rescued as texts, so the few records with such values are scanned again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn, TypeAlias

from gazette_spark._formats.values import MAX_DEPTH, JsonDialect, is_nested_deeper

_SPACE = " \t\r\n"
_SPACES = re.compile(f"[{_SPACE}]*+")

_END = r"(?![A-Za-z0-9_$])"
# A string without an end is also a token. Otherwise the scan would start again at each quote in it.
_LENIENT_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*+"?' + r"|'(?:[^'\\]|\\.)*+'?" + r"|[+-]INF" + _END + r"|\+Infinity" + _END, re.DOTALL
)
_ESCAPED = re.compile(r'\\(.)|"', re.DOTALL)

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TO_BRACKET = re.compile(rf'(?:[^"\[\]{{}}]++|{_STRING})*+[\[\]{{}}]', re.DOTALL)
"""The text before a bracket, and the bracket."""
_MEMBER = re.compile(
    rf'[{_SPACE}{{,]*+{_STRING}[{_SPACE}]*+:[{_SPACE}]*+({_STRING}|[^"\[{{,}}{_SPACE}]*+)', re.DOTALL
)
"""A member of an object and the text before it. The group is its value, empty for a container."""

_CONTAINERS = (dict, list)


class RepeatedNames(dict[str, list[Any]]):
    """An object that repeats a name: all values of each name, and the members in order."""

    def __init__(self, members: list[tuple[str, Any]]) -> None:
        super().__init__()
        self.members = members
        for name, value in members:
            self.setdefault(name, []).append(value)


def names_of(members: dict[str, Any]) -> Sequence[str]:
    """Return the names in an object, in order."""
    return [name for name, _ in members.members] if isinstance(members, RepeatedNames) else list(members)


def items_of(members: dict[str, Any]) -> Sequence[Any]:
    """Return the values in an object, in order."""
    if isinstance(members, RepeatedNames):
        return [item for _, item in members.members]
    return list(members.values())


class RecordDecoder:
    """Decodes records. Immutable."""

    def __init__(self, dialect: JsonDialect) -> None:
        self._dialect = dialect
        # Half a surrogate pair can enter a name only by an escape such as `\ud800`, so records without `\u`
        # skip the check of each name.
        self._plain, self._escaped = (_decoder(dialect, make) for make in (_object, _escaped_object))

    def decode(self, record: bytes) -> tuple[dict[str, Any], str]:
        """Return a record's object and its text in standard JSON.

        Raises:
            ValueError: the record is malformed. The text says why.
        """
        try:
            text = record.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 at byte {error.start}") from None
        try:
            # Try standard JSON first, because hardly any record uses an extension.
            return self._object_of(text), text
        except ValueError:
            # Spark's parser accepts extensions of JSON, which are rewritten and read again.
            strict = strict_text(text, self._dialect)
            if strict == text:
                raise
            return self._object_of(strict), strict

    def _object_of(self, text: str) -> dict[str, Any]:
        # Check this before the scanner runs, because recursion without a limit would end the process.
        if is_nested_deeper(text, MAX_DEPTH):
            raise ValueError(f"not a JSON object: nested more than {MAX_DEPTH} levels deep")
        decoder = self._escaped if "\\u" in text else self._plain
        # Python's `strip()` would also remove white space that JSON does not allow.
        begin = len(text) - len(text.lstrip(_SPACE))
        try:
            value, end = _decoded(decoder, text, begin)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a JSON object: {error.msg} at character {error.pos}") from None
        if text[end:].strip(_SPACE):
            raise ValueError(f"not a JSON object: Extra data at character {end}")
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return value


def _decoder(
    dialect: JsonDialect, make_object: Callable[[list[tuple[str, Any]]], dict[str, Any]]
) -> json.JSONDecoder:
    """Return a decoder that returns numbers and constants as bytes with their texts."""
    constant: Callable[[str], bytes] = no_constant
    if dialect.allow_non_numeric_numbers:
        constant = str.encode
    return json.JSONDecoder(
        # Numbers stay texts: a decimal column needs all digits, a string column the spelling, and `int`
        # refuses more than 4,300 digits.
        parse_int=str.encode,
        parse_float=str.encode,
        parse_constant=constant,
        object_pairs_hook=make_object,
    )


def no_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities: the ``parse_constant`` of a decoder of standard JSON."""
    raise ValueError(f"not a JSON object: {name} is not a number in standard JSON")


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(members)
    return unique if len(unique) == len(members) else RepeatedNames(members)


def _escaped_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Half a surrogate pair in a name becomes ``?``, as in Java."""
    return _object(
        [
            (name if name.isascii() else name.encode("utf-8", "replace").decode(), value)
            for name, value in members
        ]
    )


_SKIPPER = json.JSONDecoder(parse_int=len, parse_float=len, object_pairs_hook=len)
"""Decodes valid JSON only to find its end: lengths take less memory than values."""


def _decoded(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at an index, and its end."""
    try:
        return decoder.raw_decode(text, at)
    except RecursionError:
        # The result must not depend on how much of the stack the caller has used.
        return decode_without_recursion(decoder, text, at)


def decode_without_recursion(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
    """Return a value and its end like the decoder, but slowly, and for any depth of nesting.

    Raises:
        JSONDecodeError: no JSON value begins at that index.
    """
    # The stack of the containers that are being read, as generators instead of calls. Each yields where an
    # inner container begins, and gets its value when that one has ended.
    readers = [_reader(decoder, text, at)]
    value: tuple[Any, int] | None = None
    while readers:
        try:
            inner_at = readers[-1].send(value)
        except StopIteration as end:
            value = end.value
            readers.pop()
        else:
            value = None
            readers.append(_reader(decoder, text, inner_at))
    assert value is not None
    return value


def _reader(
    decoder: json.JSONDecoder, text: str, at: int
) -> Generator[int, tuple[Any, int] | None, tuple[Any, int]]:
    """Read a value. Yields the start of each nested object or array, and is sent its value and end."""
    if not text.startswith(("{", "["), at):
        return decoder.raw_decode(text, at)
    is_object = text[at] == "{"
    closing = "}" if is_object else "]"
    names: list[str] = []
    values: list[Any] = []
    at = _after_space(text, at + 1)
    ended = text.startswith(closing, at)
    while not ended:
        if is_object:
            if not text.startswith('"', at):
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
            name, at = decoder.raw_decode(text, at)
            names.append(name)
            at = _after_space(text, at)
            if not text.startswith(":", at):
                raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
            at = _after_space(text, at + 1)
        read = (yield at) if text.startswith(("{", "["), at) else decoder.raw_decode(text, at)
        assert read is not None
        value, at = read
        values.append(value)
        at = _after_space(text, at)
        ended = text.startswith(closing, at)
        if not ended:
            if not text.startswith(",", at):
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
            at = _after_space(text, at + 1)
    assert decoder.object_pairs_hook is not None
    return decoder.object_pairs_hook(list(zip(names, values, strict=True))) if is_object else values, at + 1


def _after_space(text: str, at: int) -> int:
    spaces = _SPACES.match(text, at)
    assert spaces is not None, "the pattern also matches an empty text"
    return spaces.end()


def member_texts(members: dict[str, Any], text: str) -> dict[str, str]:
    """Return the texts of a record's members. Of a repeated name, the last value counts."""
    texts: dict[str, str] = {}
    at = 0
    for name in names_of(members):
        member = _MEMBER.match(text, at)
        assert member is not None, "the record was read before"
        begin, at = member.span(1)
        # The pattern takes simple values whole. Only the scanner finds the end of a container.
        if begin == at:
            _, at = _decoded(_SKIPPER, text, begin)
        # The last value of a repeated name also takes its place.
        texts.pop(name, None)
        texts[name] = text[begin:at]
    return texts


TextPlaces: TypeAlias = "bool | dict[str | None, TextPlaces]"
"""Places at which values are kept as texts: True for the place itself, or by field; None for all items."""


def written_out(members: dict[str, Any], places: TextPlaces, text: str) -> dict[str, Any]:
    """Return a record's object in which objects and arrays at some places are bytes with their texts."""
    written, _ = _written_out(members, places, text, text.index("{"))
    assert isinstance(written, dict)
    return written


def _written_out(container: Any, places: TextPlaces, text: str, begin: int) -> tuple[Any, int]:  # noqa: ANN401
    """Return the object or array that begins at an index of a text, written out, and its end."""
    in_list = isinstance(container, list)
    # No place below this container needs its text, so the scanner in C finds its end.
    if not isinstance(places, dict) or (in_list and None not in places):
        _, end = _decoded(_SKIPPER, text, begin)
        return text[begin:end].encode() if places is True else container, end
    names = [""] * len(container) if in_list else names_of(container)
    items = list(container if in_list else items_of(container))
    at = begin + 1
    for index, name in enumerate(names):
        if isinstance(items[index], _CONTAINERS):
            inner = places.get(None) or places.get(name, False)
            items[index], at = _written_out(items[index], inner, text, _bracket(text, at))
    return items if in_list else _object(list(zip(names, items, strict=True))), _bracket(text, at) + 1


def _bracket(text: str, at: int) -> int:
    """Return the index of the next bracket outside strings."""
    to_bracket = _TO_BRACKET.match(text, at)
    assert to_bracket is not None, "the record was read before"
    return to_bracket.end() - 1


def strict_text(text: str, dialect: JsonDialect) -> str:
    """Return a record with its strings and numbers rewritten to standard JSON."""

    def rewritten(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] in "+-":
            number = token.lstrip("+").replace("INF", "Infinity")
            return number if dialect.allow_non_numeric_numbers else token
        if len(token) == 1 or token[-1] != token[0] or not dialect.allow_single_quotes:
            return token
        # In double quotes, a double quote needs an escape, and a single quote needs none.
        content = _ESCAPED.sub(
            lambda part: '\\"' if part[0] == '"' else "'" if part[1] == "'" else part[0], token[1:-1]
        )
        return f'"{content}"'

    # Strings are tokens as well, so that a name such as INF inside a string stays as it is.
    if "'" not in text and "INF" not in text and "+Infinity" not in text:
        return text
    return _LENIENT_TOKEN.sub(rewritten, text)
