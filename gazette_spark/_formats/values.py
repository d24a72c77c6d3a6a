"""Converts texts of JSON and CSV records to values, one text at a time or a whole column.

Arrow converts texts in common shapes all at once; the others are converted one by one. This module decides
which shapes are common, because Arrow also accepts texts that Spark does not, such as ``2024-01-02T03:04Z``
or an offset of 19 hours.
"""

from __future__ import annotations

import base64
import decimal
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import Mask, Positions, bool_array, valid
from gazette_spark._formats.timestamps import (
    UTC,
    DatePattern,
    offset_s,
    parse_date,
    parse_local_timestamp,
    parse_timestamp,
)
from gazette_spark.errors import GazetteError, OptionError

# They are possessive, because backtracking takes quadratic time, which is minutes for a text of 30 KB.
_DECIMAL = re.compile(r"[+-]?(\d++(?:\.\d*+)?|\.\d++)([eE][+-]?\d++)?")
_BASE64 = re.compile(r"([\0- ]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*+[\0- ]*")
_DECIMALS = decimal.Context(
    prec=76, rounding=decimal.ROUND_HALF_UP, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX
)
_LEAST_EXPONENT = -(1 << 29)
"""Java computes no higher power of ten, so Spark refuses numbers with a smaller exponent, except 0."""
_LARGEST_SCALE = (1 << 31) - 1
"""Largest absolute scale of Java's decimals."""

MAX_DEPTH = 1000
"""Deepest nesting of objects and arrays in a record, including the record: the limit of Spark's parser. A
record that nests deeper is malformed for each of our parsers."""

_NO_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[^"\[\]{}]++', re.DOTALL)
"""A string, which may have no end, or the text between brackets and strings."""
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}

V = TypeVar("V")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JsonDialect:
    """Allowed forms of JSON values: the options of Spark's JSON reader by their names. Can be pickled."""

    time_zone: str = UTC
    """The zone of timestamps without a zone."""
    allow_single_quotes: bool = True
    allow_non_numeric_numbers: bool = True
    date_format: str | None = None
    """Pattern of dates; None accepts the shapes of ``_formats.timestamps``, as for the next two."""
    timestamp_format: str | None = None
    timestamp_ntz_format: str | None = None

    def __post_init__(self) -> None:
        formats = {
            "dateFormat": self.date_format,
            "timestampFormat": self.timestamp_format,
            "timestampNTZFormat": self.timestamp_ntz_format,
        }
        for option, text in formats.items():
            try:
                DatePattern.of(text)
            except ValueError as error:
                expected = "a pattern such as yyyy-MM-dd HH:mm:ss.SSSXXX"
                raise OptionError(option, f"{text!r} ({error})", expected) from None
        try:
            offset_s(self.time_zone, 0)
        except ValueError:
            expected = "a time zone such as Europe/Paris, UTC or +01:00"
            raise OptionError("timeZone", repr(self.time_zone), expected) from None

    def usual_zone(self, kind: pa.DataType) -> str | None:
        """Return the zone of a type's texts without a zone; None if they follow a pattern."""
        pattern = None
        if pa.types.is_timestamp(kind):
            pattern = self.timestamp_format if kind.tz else self.timestamp_ntz_format
        elif pa.types.is_date(kind):
            pattern = self.date_format
        return None if pattern else self.time_zone


SPARK_DIALECT = JsonDialect()
"""Default dialect of Spark's reader, in a session whose zone is UTC."""


def is_nested_deeper(text: str, limit: int) -> bool:
    """Return whether brackets nest deeper than a limit, without recursion, which could end the process."""
    # Counting is fast and rules out nearly every text. Only then are strings removed, whose brackets do not
    # count.
    if len(text) <= limit or text.count("[") + text.count("{") <= limit:
        return False
    brackets = _NO_BRACKETS.sub("", text)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > limit


def is_variant(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is the one Spark has for VARIANT."""
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["value", "metadata"]:
        return False
    return (kind.field("metadata").metadata or {}).get(b"variant") == b"true"


def readable(kind: pa.DataType) -> bool:
    """Return whether JSON can give values of a type."""
    if is_variant(kind):
        return True
    if pa.types.is_struct(kind):
        # GEOMETRY and GEOGRAPHY are structs whose last field has one of these marks.
        marks = {mark for field in kind for mark in field.metadata or ()}
        return marks.isdisjoint((b"geometry", b"geography")) and all(readable(field.type) for field in kind)
    if pa.types.is_list(kind):
        return readable(kind.value_type)
    if pa.types.is_map(kind):
        return bool(pa.types.is_string(kind.key_type)) and readable(kind.item_type)
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    plain = (pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float32(), pa.float64())
    return kind in plain or pa.types.is_signed_integer(kind) or pa.types.is_decimal128(kind)


def text_converter(kind: pa.DataType, dialect: JsonDialect) -> Callable[[str], object] | None:
    """Return the converter of a string's content, which raises ValueError; None if no string fits."""
    if pa.types.is_decimal128(kind):
        return lambda text: decimal_of(text.replace(",", ""), kind)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        local = DatePattern.of(dialect.timestamp_ntz_format)
        return local.local_timestamp if local else parse_local_timestamp
    if pa.types.is_timestamp(kind):
        zone, pattern = dialect.time_zone, DatePattern.of(dialect.timestamp_format)
        if pattern:
            return lambda text: pattern.timestamp(text, zone)
        return lambda text: _forgiving(lambda t: parse_timestamp(t, zone), text)
    if pa.types.is_date32(kind):
        dates = DatePattern.of(dialect.date_format)
        return dates.date if dates else lambda text: _forgiving(parse_date, text)
    return decode_base64 if pa.types.is_binary(kind) else None


def decimal_of(text: str, kind: pa.Decimal128Type) -> decimal.Decimal:
    """Return a decimal, rounded half up; raise ValueError if it does not fit."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError("is not a decimal number")
    try:
        unit = decimal.Decimal(1).scaleb(-kind.scale)
        number = _DECIMALS.create_decimal(text)
        # A small text can name a number of a billion digits. The exponent is checked before the number is
        # rescaled.
        least = _LEAST_EXPONENT if number else -_LARGEST_SCALE
        if not least <= number.adjusted() <= _LARGEST_SCALE:
            raise ValueError("has an exponent out of range")
        number = number.quantize(unit, context=_DECIMALS)
    except decimal.DecimalException as error:
        raise ValueError("is out of range") from error
    if len(number.as_tuple().digits) > kind.precision:
        raise ValueError("has more digits than the column")
    return number


def decode_base64(value: str) -> bytes:
    """Decode base64 text, as Spark does for binary columns; raise ValueError if it is not."""
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        if not _BASE64.fullmatch(value):
            raise
    # Spark's parser allows white space before each four letters, and letters after a padding.
    letters = re.sub(r"[\0- ]", "", value)
    return b"".join(base64.b64decode(letters[at : at + 4]) for at in range(0, len(letters), 4))


def _forgiving(parse: Callable[[str], int], text: str) -> int:
    """Parse a text; if that fails, try without "GMT", as Spark does for the format of its first versions."""
    try:
        return parse(text)
    except ValueError:
        if "GMT" not in text:
            raise
        return parse(text.replace("GMT", ""))


@dataclass(frozen=True, slots=True)
class Converted:
    """A column, and the problems of texts that did not fit and became null."""

    column: pa.Array
    problems: dict[int, str] = field(default_factory=dict)
    """Problems by index."""


def from_texts(
    texts: pa.StringArray, kind: pa.DataType, convert: Callable[[str], object], zone: str | None = UTC
) -> Converted:
    """Convert texts.

    Args:
        texts: Nulls stay null.
        kind: Type of the column.
        convert: Converts one text. If it raises, the error is the text's problem.
        zone: Zone of timestamps without one; None if only ``convert`` decides, not the usual formats.
    """
    shapes = [] if zone is None else _usual_shapes(texts, kind, zone)
    # Most columns have one shape, and need neither a filter nor a copy.
    for mask, shape in shapes:
        if mask.all():
            try:
                return Converted(texts.cast(shape).cast(kind))
            except pa.ArrowInvalid:
                break
    return _by_shapes(texts, kind, convert, shapes)


def matching(
    texts: pa.StringArray, kind: pa.DataType, pattern: str, convert: Callable[[str], object] | None
) -> Converted:
    """Convert texts: Arrow converts those that match a pattern, and ``convert`` the others.

    Args:
        texts: Nulls stay null.
        kind: Type of the column.
        pattern: A regular expression.
        convert: Converts one of the other texts; None if none of them fits.
    """
    return _by_shapes(texts, kind, convert, [(_matches(texts, pattern), kind)])


def conversion(convert: Callable[[V], R], value: V) -> tuple[R | None, str | None]:
    """Return the converted value, or None and the reason why it cannot be converted.

    Every exception counts as a reason, because converters call time zone databases, codecs and Arrow, which
    raise all kinds of errors: no list of classes would stay complete. Two kinds pass through: our own errors,
    which are about the machine or an option, and a lack of memory, after which a retry may succeed.
    """
    try:
        return convert(value), None
    except (GazetteError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # See above.
        return None, str(error) if isinstance(error, ValueError) else f"does not fit: {type(error).__name__}"


def spread(count: int, kind: pa.DataType, parts: Sequence[tuple[Positions, pa.Array]]) -> pa.Array:
    """Return a column of values at their places, null elsewhere. The last of several at one place counts."""
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return pa.nulls(count, kind)
    order = parts[0][0] if len(parts) == 1 else np.concatenate([at for at, _ in parts])
    values = parts[0][1] if len(parts) == 1 else pa.concat_arrays([column for _, column in parts])
    # Every place already has its value, in order, so nothing has to be moved.
    if len(order) == count and (order[:-1] < order[1:]).all():
        return values
    # The last write to a place wins, which is the rule for repeated values.
    taken = np.full(count, -1, np.int64)
    taken[order] = np.arange(len(order))
    filled = bool_array(taken >= 0).buffers()[1]
    return values.take(pa.Array.from_buffers(pa.int64(), count, [filled, pa.py_buffer(taken)]))


def places(flags: pa.BooleanArray) -> Positions:
    """Return where flags are set."""
    # Imported here because importing it takes longer than importing this package, and few records need it.
    import pyarrow.compute as pc

    indices = pc.indices_nonzero(flags)
    if not len(indices):
        return np.empty(0, np.int64)
    return np.frombuffer(indices.buffers()[1], np.uint64, len(indices)).astype(np.int64)


def _by_shapes(
    texts: pa.StringArray,
    kind: pa.DataType,
    convert: Callable[[str], object] | None,
    shapes: list[tuple[Mask, pa.DataType]],
) -> Converted:
    """Convert the texts of each shape at once, and the rest one by one."""
    parts = []
    remaining = valid(texts)
    for mask, shape in shapes:
        chosen = mask & remaining  # Nulls have any shape.
        try:
            of_shape = texts if chosen.all() else texts.filter(bool_array(chosen))
            parts.append((np.flatnonzero(chosen), of_shape.cast(shape).cast(kind)))
        except pa.ArrowInvalid:
            continue  # One of them has the shape but no value, such as February 30.
        remaining &= ~chosen
    rest = np.flatnonzero(remaining)
    if convert is None:
        return Converted(spread(len(texts), kind, parts), dict.fromkeys(rest.tolist(), "does not fit"))
    values: list[object] = []
    problems = {}
    for index, text in zip(rest.tolist(), texts.filter(bool_array(remaining)).to_pylist(), strict=True):
        value, problem = conversion(convert, text)
        values.append(value)
        if problem is not None:
            problems[index] = problem
    parts.append((rest, pa.array(values, kind)))
    return Converted(spread(len(texts), kind, parts), problems)


def _matches(texts: pa.StringArray, pattern: str) -> Mask:
    import pyarrow.compute as pc

    matches = np.zeros(len(texts), np.bool_)
    matches[places(pc.match_substring_regex(texts, pattern))] = True
    return matches


def _usual_shapes(texts: pa.StringArray, kind: pa.DataType, zone: str) -> list[tuple[Mask, pa.DataType]]:
    """Return masks of the texts, and nulls, that have a shape that Arrow converts, each with its type."""
    _, bounds, data = texts.buffers()
    ends = np.frombuffer(bounds, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    starts, ends = ends[:-1], ends[1:]
    sizes = ends - starts
    null = ~valid(texts) if texts.null_count else np.zeros(len(texts), np.bool_)
    if pa.types.is_decimal(kind):
        # Convert only numbers with at most the column's digits and without an exponent. Arrow drops bits
        # beyond 128, and a small exponent or a long fraction leaves the bounds of its table for rescaling,
        # which can kill the process.
        whole, scale = kind.precision - kind.scale, kind.scale
        digits = f"[0-9]{{1,{whole}}}" if whole > 0 else "0"
        fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale > 0 else ""
        return [(_matches(texts, f"^-?{digits}{fraction}$") | null, kind)]
    if pa.types.is_date32(kind):
        # Arrow's cast accepts this length only in this form, and then agrees with Spark.
        return [((sizes == len("2024-01-02")) | null, kind)]
    # Shorter texts, such as those without seconds, are where Arrow and Spark differ. They go one by one.
    long = sizes >= len("2024-01-02T03:04:05")
    if not pa.types.is_timestamp(kind) or not long.any():
        return []
    octets = np.frombuffer(data, np.uint8)
    starts, ends = np.where(long, starts, 0), np.where(long, ends, 0)
    long &= octets[starts + len("2024-01-02T03:04")] == ord(":")
    # An end of 0 wraps around to the last bytes, which does no harm because those texts are not long.
    signed = [(octets[ends - back] == ord("+")) | (octets[ends - back] == ord("-")) for back in (3, 5, 6)]
    ends_in_z = octets[ends - 1] == ord("Z")
    local = long & ~ends_in_z & ~(signed[0] | signed[1] | signed[2])
    if kind.tz is None:
        return [(local | null, kind)]
    tens, ones = octets[ends - 5], octets[ends - 4]
    offset = (
        signed[2]
        & (octets[ends - 3] == ord(":"))
        & ((tens == ord("0")) | ((tens == ord("1")) & (ones < ord("8"))))
    )
    shapes = [((long & (ends_in_z | offset)) | null, kind)]
    # Arrow reads a text without a zone as a time in UTC, which is right in that zone only.
    return [*shapes, (local | null, pa.timestamp("us"))] if zone == UTC else shapes
