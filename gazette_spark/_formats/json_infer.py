"""Infers the schema of JSON records, as ``spark.read.json`` does from the same lines.

Each record has a type; types are merged until one remains that fits all records:

- whole numbers are BIGINT; those past 64 bits DECIMAL, past 38 digits DOUBLE; other numbers are DOUBLE;
- two types become the narrowest type that fits both, or STRING;
- an empty text counts as null; a field that is null in every record is STRING; an empty object is omitted;
- under PERMISSIVE a malformed record adds the column for such records, under FAILFAST it is an error.

Columns are sorted by name. Empty records and ``null`` add nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from gazette_spark._formats.framing import Block
from gazette_spark._formats.json_records import no_constant, strict_text
from gazette_spark._formats.values import SPARK_DIALECT, JsonDialect, conversion, is_nested_deeper
from gazette_spark.errors import RecordError

Type = Any
"""An Arrow type; for objects a dict of types by field name; for arrays a list with the elements' type."""

MAX_DEPTH = 64
"""Deepest nesting of a record that is read: Arrow cannot send a deeper column to Spark, so one such record in
the sample would fail every query."""

MAX_DIGITS = 38
"""Maximum number of digits of a decimal."""

_NULL, _STRING, _LONG, _DOUBLE, _BOOLEAN = pa.null(), pa.string(), pa.int64(), pa.float64(), pa.bool_()
_LONG_DIGITS = 20
"""Digits that Spark reserves for a whole number of 64 bits."""


def infer(
    blocks: Iterable[Block],
    *,
    mode: str = "PERMISSIVE",
    corrupt_column: str = "_corrupt_record",
    dialect: JsonDialect = SPARK_DIALECT,
) -> pa.Schema:
    """Return the columns of records, sorted by name; none if no record has a field.

    Raises:
        RecordError: a record is malformed and the mode is FAILFAST.
    """
    record_type: Type = {}
    for block in blocks:
        for index in range(len(block)):
            record = block.record(index)
            if record.strip() in (b"", b"null"):
                continue
            # One record that cannot be read must not end the inference: its mode decides what it adds.
            value, _ = conversion(lambda text: _value(text.decode(), dialect), record)
            if isinstance(value, dict):
                record_type = merged(record_type, value)
            elif mode == "FAILFAST":
                raise RecordError(block.journal, int(block.offsets[index]), "malformed: not a JSON object")
            elif mode == "PERMISSIVE":
                record_type = merged(record_type, {corrupt_column: _STRING})
    struct = _arrow(record_type)
    return pa.schema(list(struct) if struct is not None else [])


def merged(one: Type, other: Type) -> Type:
    """Return the narrowest type for the values of both, which must not be used afterwards."""
    if other in (one, _NULL):
        return one
    match one, other:
        case pa.DataType(), _ if one == _NULL:
            return other
        case dict(), dict():
            # Merge in place: with a copy for each object, thousands of objects with different names would
            # take hours.
            for name, kind in other.items():
                one[name] = merged(one.get(name, _NULL), kind)
            return one
        case list(), list():
            return [merged(one[0], other[0])]
        case pa.DataType(), pa.DataType():
            return _leaf(one, other)
    return _STRING


def _leaf(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the narrowest type for the values of two different types without children."""
    kinds = [one, other]
    if not all(kind in (_DOUBLE, _LONG) or pa.types.is_decimal(kind) for kind in kinds):
        return _STRING
    # As in Spark, a double fits any number, although large whole numbers lose digits.
    if _DOUBLE in kinds:
        return _DOUBLE
    decimals = [pa.decimal128(_LONG_DIGITS, 0) if kind == _LONG else kind for kind in kinds]
    scale = max(kind.scale for kind in decimals)
    return _decimal(max(kind.precision - kind.scale for kind in decimals) + scale, scale)


def _decimal(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale) if precision <= MAX_DIGITS else _DOUBLE


def _value(text: str, dialect: JsonDialect) -> object:
    if is_nested_deeper(text, MAX_DEPTH):
        raise ValueError("is nested too deep")
    decoder = _DECODER if dialect.allow_non_numeric_numbers else _STRICT_DECODER
    try:
        return decoder.decode(text)
    except json.JSONDecodeError:
        if (strict := strict_text(text, dialect)) == text:
            raise
        return decoder.decode(strict)


def _number(text: str) -> pa.DataType:
    digits = len(text.lstrip("-"))
    # Python refuses to parse numbers of more than 4,300 digits.
    if digits < 19 or (digits == 19 and -(2**63) <= int(text) < 2**63):
        return _LONG
    return _decimal(digits, 0)


def _type_of(value: object) -> Type:
    match value:
        case None | "":
            return _NULL
        case bool():
            return _BOOLEAN
        case str():
            return _STRING
        case list():
            item_type: Type = _NULL
            for item in value:
                item_type = merged(item_type, _type_of(item))
            return [item_type]
        case dict() | pa.DataType():
            return value
    raise AssertionError(f"not a JSON value: {value!r}")


def _fields(pairs: list[tuple[str, object]]) -> dict[str, Type]:
    fields: dict[str, Type] = {}
    for written, value in pairs:
        # A surrogate without its partner becomes a question mark, as when records are read.
        name = written if written.isascii() else written.encode("utf-8", "replace").decode()
        kind = _type_of(value)
        fields[name] = merged(fields[name], kind) if name in fields else kind
    return fields


_DECODER, _STRICT_DECODER = (
    json.JSONDecoder(
        parse_int=_number,
        parse_float=lambda _text: _DOUBLE,
        parse_constant=constant,
        object_pairs_hook=_fields,
    )
    for constant in (lambda _text: _DOUBLE, no_constant)
)
"""Decode to types instead of values: the first with NaN and infinities, the second without."""


def _arrow(kind: Type) -> pa.DataType | None:
    """Return the Arrow type; None for objects without fields, and for types made only of such objects."""
    match kind:
        case dict():
            # Java compares strings by UTF-16 units, which differs from Python's order beyond the Basic
            # Multilingual Plane.
            order = sorted(kind, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
            fields = [(name, _arrow(kind[name])) for name in order if name]
            members = [pa.field(name, child) for name, child in fields if child is not None]
            return pa.struct(members) if members else None
        case list():
            child = _arrow(kind[0])
            return None if child is None else pa.list_(pa.field("element", child))
    return _STRING if kind == _NULL else kind
