"""Words of JSON, which are numbers and booleans, to columns: most by Arrow, the others one by one."""

from __future__ import annotations

import math
import re

import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark.framing.base import int64_array
from gazette_spark.framing.json_values import decimal_of
from gazette_spark.framing.text_columns import Converted, from_texts, matching, places, spread
from gazette_spark.framing.timestamps import MICROS_PER_S, in_range

_WHOLE = re.compile(r"-?[0-9]+")
_NON_FINITE = {
    "NaN": math.nan,
    "+INF": math.inf,
    "+Infinity": math.inf,
    "Infinity": math.inf,
    "-INF": -math.inf,
    "-Infinity": -math.inf,
}
"""Texts, with quotes or without, that Spark reads as floating point numbers."""


def from_words(words: pa.StringArray, kind: pa.DataType) -> Converted:
    """Convert words of JSON other than null to a type without children."""
    if pa.types.is_boolean(kind):
        return matching(words, kind, "^(true|false)$", None)
    if pa.types.is_signed_integer(kind):
        most = 1 << (kind.bit_width - 1)
        # Numbers of fewer digits than the largest one has all fit.
        short = f"^-?[0-9]{{1,{len(str(most)) - 1}}}$"
        return matching(words, kind, short, lambda word: _whole(word, -most, most - 1))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        seconds = matching(words, pa.int64(), "^-?[0-9]{1,12}$", _seconds)
        return Converted(pc.multiply(seconds.column, MICROS_PER_S).cast(kind), seconds.problems)
    if pa.types.is_decimal(kind):
        return from_texts(words, kind, lambda word: decimal_of(word, kind))
    if pa.types.is_floating(kind):
        return _floating(words, kind)
    return matching(words, kind, "^$", None)


def constants(texts: pa.StringArray, kind: pa.DataType) -> Converted:
    """Convert NaN and the infinities."""
    found = pc.index_in(texts, pa.array(list(_NON_FINITE)))
    column = pa.array(list(_NON_FINITE.values())).take(found).cast(kind)
    return Converted(column, dict.fromkeys(places(found.is_null()).tolist(), "is not a number"))


def _floating(words: pa.StringArray, kind: pa.DataType) -> Converted:
    finite = places(pc.match_substring_regex(words, "^-?[0-9]"))
    if len(finite) == len(words):
        return Converted(words.cast(kind))
    others = places(pc.invert(pc.match_substring_regex(words, "^-?[0-9]")))
    found = constants(words.take(int64_array(others)), kind)
    parts = [(finite, words.take(int64_array(finite)).cast(kind)), (others, found.column)]
    problems = {int(others[index]): problem for index, problem in found.problems.items()}
    return Converted(spread(len(words), kind, parts), problems)


def _whole(word: str, least: int, most: int) -> int:
    # A 64-bit number has 19 digits: longer ones are refused unread, int() takes quadratic time on them.
    if not _WHOLE.fullmatch(word) or len(word) > 20 or not least <= int(word) <= most:
        raise ValueError("is not a whole number in range")
    return int(word)


def _seconds(word: str) -> int:
    seconds = _whole(word, -(2**63), 2**63 - 1)
    in_range(seconds * MICROS_PER_S)
    return seconds
