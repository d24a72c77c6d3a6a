"""Parses stored or received JSON strictly, with a single kind of error.

:func:`parse_json` returns a value that is safe to handle, or raises JsonError. Python's parser raises
RecursionError on deep nesting and ValueError on a number with 5,000 digits. It also accepts values that break
later code: NaN passes every limit, half of a surrogate pair cannot be encoded, a duplicate key hides a value,
and a value that is nested a thousand deep cannot be printed in an error.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from types import NoneType
from typing import Any, NoReturn

from gazette_spark.errors import JsonError

MAX_BYTES = 64 << 20
"""Maximum length of a text, which is enough for the positions of a million journals."""

MAX_DEPTH = 100
"""Maximum nesting. Spark's types of nested columns are the deepest values that we store."""

MAX_DIGITS = 400
"""Maximum number of digits. Without an exponent, the largest float has 309."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""The escape of half a surrogate pair."""

_LEAVES = frozenset({str, int, float, bool, NoneType})
"""Types of most values that contain no others."""

SHOWN = 60
"""Number of characters of an invalid value that errors show."""


def parse_json(text: str | bytes, *, max_bytes: int = MAX_BYTES) -> Any:  # noqa: ANN401 - parsed JSON
    """Return the value of a JSON text.

    Raises:
        JsonError: the text is not JSON in UTF-8, is too long or too deeply nested, or has a number that is
            not finite or has more than 400 digits, a duplicate key, or half of a surrogate pair.
    """
    try:
        encoded = text.encode() if isinstance(text, str) else bytes(text)
        if len(encoded) > max_bytes:
            raise JsonError(f"{len(encoded)} bytes, more than {max_bytes}")
        decoded = encoded.decode()
        value = json.loads(
            decoded,
            object_pairs_hook=_unique_keys,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_no_constant,
        )
        if decoded.count("[") + decoded.count("{") > MAX_DEPTH:
            # Only a reason to check, because brackets inside strings were counted, too.
            level = [value]
            for _ in range(MAX_DEPTH):
                level = [
                    member
                    for container in level
                    for member in (container.values() if isinstance(container, dict) else container)
                    if isinstance(member, dict | list)
                ]
            if level:
                raise JsonError(f"nested more than {MAX_DEPTH} deep")
        if _SURROGATE.search(decoded):
            # The parser has joined complete pairs, so only half pairs raise an error here.
            json.dumps(value, ensure_ascii=False).encode()
    except JsonError:
        raise
    except RecursionError:
        raise JsonError(f"nested more than {MAX_DEPTH} deep") from None
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        raise JsonError(f"it is not Unicode: {error.reason}") from None
    except ValueError as error:
        raise JsonError(str(error)) from None
    return value


def check_keys(document: object) -> None:
    """Refuse keys that the encoder would turn into texts.

    What is read back would have other keys, or lack entries, because 1 and "1" become the same key.

    Args:
        document: A value that the encoder has accepted, so it does not contain itself.

    Raises:
        TypeError: an object at any level has a key that is not a text.
    """
    containers: list[Any] = [[document]]
    while containers:
        container = containers.pop()
        if isinstance(container, dict):
            for key in container:
                if type(key) is not str and not isinstance(key, str):
                    problem = f"there is the key {key!r}, but the keys of a JSON object must be strings"
                    raise TypeError(f"{problem}: give the entry another key, such as {str(key)!r}")
            container = container.values()
        # A look at the type is cheaper than isinstance, and a loop than a list for each of many objects.
        for item in container:
            if type(item) not in _LEAVES and isinstance(item, dict | list | tuple):
                containers.append(item)  # noqa: PERF401


def shown(text: str | bytes) -> str:
    """Return the beginning of a text in printable form, for errors."""
    decoded = text if isinstance(text, str) else text[: 4 * SHOWN].decode("utf-8", "backslashreplace")
    # Half of a surrogate pair cannot be written to stderr.
    begin = decoded[:SHOWN].encode("utf-8", "backslashreplace").decode()
    return begin if len(decoded) <= SHOWN else f"{begin}…"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name in unique if times[name] > 1)
        raise JsonError(f"the key {shown(twice)!r} occurs twice in one object")
    return unique


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise JsonError(f"a number has {len(text)} digits, more than {MAX_DIGITS}")
    return int(text)


def _number(text: str) -> float:
    if len(text) > MAX_DIGITS:
        raise JsonError(f"a number has {len(text)} digits, more than {MAX_DIGITS}")
    if (number := float(text)) in (float("inf"), float("-inf")):
        raise JsonError(f"the number {text} is too large")
    return number


def _no_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not a number in JSON")


def unescaped_pointer(part: str) -> str:
    """Return the name that a part of a JSON pointer represents (RFC 6901).

    >>> unescaped_pointer("a~1b~0c")
    'a/b~c'
    """
    return part.replace("~1", "/").replace("~0", "~")
