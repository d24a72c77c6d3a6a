"""Converts JSON to Spark's VARIANT, with the same bytes that ``parse_json`` makes of the text.

PySpark has an encoder, ``VariantVal.parseJson``. It differs from the JVM's in three cases, which are handled
here: an object that repeats a name is invalid, as in Spark; a surrogate without its partner becomes ``?``, as
in Java; and where Java sorts an object's names differently from Python, the object is refused, because
Spark looks names up by a binary search and would miss some.
"""

from __future__ import annotations

import json
import re
from collections import Counter

from gazette_spark._formats.values import is_nested_deeper

MAX_DEPTH = 500
"""Deepest nesting: half of Python's recursion limit, so neither encoder nor decoder reaches it."""

_SURROGATE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""An escape of JSON. The group is a surrogate without its partner."""


def encode(text: str) -> dict[str, bytes]:
    """Return the two parts of a JSON value.

    Raises:
        ValueError: Spark does not accept the value, or it is nested too deep or takes more than 16 MiB.
    """
    # Few queries have a column of this type, and programs without Spark import this package, too.
    from pyspark.sql.types import VariantVal

    if is_nested_deeper(text, MAX_DEPTH):
        raise ValueError("is nested too deep")
    if "\\u" in text:
        text = _SURROGATE.sub(lambda escape: "?" if escape[1] else escape[0], text)
    _NAMES.decode(text)
    variant = VariantVal.parseJson(text)
    return {"value": variant.value, "metadata": variant.metadata}


def _check_names(members: list[tuple[str, object]]) -> None:
    names = [name for name, _ in members]
    if len(set(names)) < len(names):
        # Count the names, because searching the earlier names for each one would take hours for a million
        # names.
        repeated = next(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"repeats the name {repeated!r}")
    if not all(map(str.isascii, names)) and sorted(names) != sorted(
        names, key=lambda name: name.encode("utf-16-be")
    ):
        raise ValueError("has names that Python and Java sort in different orders")


_NAMES = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_check_names)
"""Checks the names of objects without parsing numbers: int() refuses more than 4,300 digits."""
