"""Parses JSON records simply and exactly, as the reference for the fast parsers in ``_formats.json``.

Each record becomes a Python object (``_formats.json_records``). Then the values that all records have in a
field are converted to the type of its column. A value that does not fit is noted, and its field becomes null,
whether it is a column or a field of a struct. Arrays and maps are read as a whole or not at all, as in Spark.
The rest of the record is kept.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import (
    Mask,
    Positions,
    bool_array,
    int64_array,
    number_array,
    string_array,
)
from gazette_spark._formats.framing import Block
from gazette_spark._formats.json_records import (
    RecordDecoder,
    RepeatedNames,
    TextPlaces,
    items_of,
    member_texts,
    names_of,
    written_out,
)
from gazette_spark._formats.rows import WHOLE_RECORD, Columns
from gazette_spark._formats.timestamps import MICROS_PER_S
from gazette_spark._formats.values import (
    Converted,
    JsonDialect,
    decimal_of,
    from_texts,
    is_nested_deeper,
    is_variant,
    spread,
    text_converter,
)

_NON_FINITE = {
    "NaN": math.nan,
    "+INF": math.inf,
    "+Infinity": math.inf,
    "Infinity": math.inf,
    "-INF": -math.inf,
    "-Infinity": -math.inf,
}
"""Strings that Spark reads as floating-point numbers."""

_ABSENT = object()
"""Represents a missing field of an object, if null is a value."""

_NO_OBJECT: dict[str, Any] = {}
"""Represents a missing object: none of its fields has a value."""

MAX_VARIANT_DEPTH = 500
"""Deepest nesting: half of Python's recursion limit, so neither encoder nor decoder reaches it."""

_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""An escape of JSON. The group is a surrogate without its partner."""


class JsonReferenceParser:
    """Reads blocks by a schema. Immutable.

    With ``rescue``, the texts of fields that do not fit, or have no column, are kept, and the record is
    valid. A field that contains a value that does not fit is kept as a whole.
    """

    def __init__(self, fields: Sequence[pa.Field], *, rescue: bool, dialect: JsonDialect) -> None:
        self._fields = fields
        self._names = {column.name for column in fields}
        self._rescue = rescue
        self._dialect = dialect
        self._decoder = RecordDecoder(dialect)
        self._text_places = _text_places(pa.struct(fields))

    def columns(self, block: Block) -> Columns:
        """Read records. It never raises for invalid bytes, only for a problem of the machine."""
        # First make objects, record by record. A malformed record keeps its row, as an object without fields:
        # under PERMISSIVE its text is in the column for malformed records.
        objects: list[dict[str, Any]] = []
        texts: list[str] = []
        problems: dict[int, str] = {}
        for index, (start, end) in enumerate(zip(block.starts.tolist(), block.ends.tolist(), strict=True)):
            try:
                members, text = self._decoder.decode(block.data[start:end])
            except ValueError as error:
                members, text = _NO_OBJECT, ""
                problems[index] = str(error)
            objects.append(members)
            texts.append(text)
        rescued: dict[int, dict[str, str]] = {}
        if self._rescue:
            for index in problems:
                text = block.record(index).decode("utf-8", "replace")
                rescued[index] = {WHOLE_RECORD: json.dumps(text)}

        # Then make columns. A record may have a field several times, and each of its values is read.
        columns: dict[str, pa.Array] = {}
        misfits: dict[int, set[str]] = {}
        for column in self._fields:
            columns[column.name], reading = self._column(objects, texts, column)
            owners = reading.owners.tolist() if reading.misfits else []
            for at, problem in reading.misfits.items():
                if not self._rescue:
                    problems.setdefault(owners[at], problem)
                elif owners[at] not in owners[at + 1 : at + 2]:
                    # Only the last of several fields with the same name is rescued.
                    misfits.setdefault(owners[at], set()).add(column.name)

        if self._rescue:
            for index, members in enumerate(objects):
                names = misfits.get(index, set())
                # Texts cost a second scan, so only records that have something to rescue are scanned.
                if names or not self._names.issuperset(members):
                    rescued[index] = {
                        name: text
                        for name, text in member_texts(members, texts[index]).items()
                        if name in names or name not in self._names
                    }
        return Columns(columns, problems, rescued)

    def _column(
        self, objects: list[dict[str, Any]], texts: list[str], column: pa.Field
    ) -> tuple[pa.Array, _ColumnReading]:
        """Return a column of records, and the reading with its problems."""
        # Whether a string column has objects is only known after the first reading. The second one finds
        # none.
        for _ in range(2):
            values, owners = _values_of(objects, column)
            reading = _ColumnReading(owners, self._dialect, self._rescue)
            read, wrong = reading.read(values, column.type, np.arange(len(values)), column.name)
            if not reading.unwritten:
                break
            # The column has objects or arrays as texts, so it is read again after these are written out.
            for index in reading.unwritten:
                objects[index] = written_out(objects[index], self._text_places, texts[index])
        return _last_fitting(len(objects), read, owners, wrong), reading


def _text_places(kind: pa.DataType) -> TextPlaces:
    """Return the places in a type at which values are kept as their texts."""
    if pa.types.is_string(kind) or is_variant(kind):
        return True
    inner: dict[str | None, TextPlaces] = {}
    if pa.types.is_struct(kind):
        inner = {child.name: _text_places(child.type) for child in kind}
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = {None: _text_places(kind.value_type if pa.types.is_list(kind) else kind.item_type)}
    return inner if any(inner.values()) else False


def _values_of(objects: Sequence[dict[str, Any]], child: pa.Field) -> tuple[list[Any], Positions]:
    """Return the values of a field of objects, in order, and the index of each value's object.

    Each object has at least one value, which may stand for a missing one.
    """
    # For a variant, null is a value.
    absent, name = _ABSENT if is_variant(child.type) else None, child.name
    # The usual case needs no list of owners: one value for each object, in order.
    if RepeatedNames not in set(map(type, objects)):
        return [members.get(name, absent) for members in objects], np.arange(len(objects))
    values: list[Any] = []
    owners: list[int] = []
    for owner, members in enumerate(objects):
        value = members.get(name, absent)
        if isinstance(members, RepeatedNames) and name in members:
            values += value
            owners += [owner] * len(value)
        else:
            values.append(value)
            owners.append(owner)
    return values, np.array(owners, np.int64)


def _last_fitting(count: int, column: pa.Array, owners: Positions, wrong: list[int]) -> pa.Array:
    """Return a field of ``count`` objects. Of several values of one object, the last that fits counts."""
    if len(column) == count:
        return column
    # Spark writes each value into the row as it comes, and one that does not fit leaves the row as it is.
    fits = np.ones(len(column), np.bool_)
    fits[wrong] = False
    return spread(count, column.type, [(owners[fits], column.filter(bool_array(fits)))])


@dataclass(frozen=True, slots=True, eq=False)
class _ColumnReading:
    """Reads the values of one column, including nested values.

    ``origins`` has, for each value, the index of the column's value that contains it.
    """

    owners: Positions
    """The record of each of the column's values."""
    dialect: JsonDialect
    rescue: bool
    misfits: dict[int, str] = field(default_factory=dict)
    """The first problem in each of the column's values. With ``rescue``, a member without a field counts."""
    unwritten: set[int] = field(default_factory=set)
    """Records with objects or arrays that are kept as texts, but have not been written out."""

    def read(  # noqa: C901, PLR0912, PLR0915 - one kind of type after the other
        self, values: list[Any], kind: pa.DataType, origins: Positions, path: str
    ) -> tuple[pa.Array, list[int]]:
        """Return values as a type, and the indices of those that do not fit, which become null.

        ``path`` is the path of their field in the record.
        """
        wrong: list[int] = []
        if is_variant(kind):
            self._note_unwritten(values, origins)
            if self.unwritten:
                # The column is read again with its containers as texts, so this result does not matter.
                column = pa.nulls(len(values), kind)
            else:
                filled = np.flatnonzero(np.array([value is not _ABSENT for value in values], np.bool_))
                texts = [
                    json.dumps(value) if isinstance(value, str) else _text(value)
                    for value in values
                    if value is not _ABSENT
                ]
                converted = from_texts(string_array(texts), kind, encode_variant, None)
                column = spread(len(values), kind, [(filled, converted.column)])
                wrong = filled[list(converted.problems)].tolist()
        elif pa.types.is_struct(kind):
            objects = [value if isinstance(value, dict) else _NO_OBJECT for value in values]
            children = []
            for child in kind:
                items, owners = _values_of(objects, child)
                column, unfit = self.read(items, child.type, origins[owners], f"{path}.{child.name}")
                children.append(_last_fitting(len(objects), column, owners, unfit))
            # A struct is one value of its column. A member without a field must not be lost with it, so the
            # whole value is rescued.
            if self.rescue:
                names = {child.name for child in kind}
                for at, members in enumerate(objects):
                    if not names.issuperset(members):
                        problem = f"field {path} has members without a column"
                        self.misfits.setdefault(int(origins[at]), problem)
            is_object, wrong = _by_class(values, dict)
            bits = bool_array(is_object).buffers()[1]
            column = pa.Array.from_buffers(kind, len(values), [bits], children=children)
        elif pa.types.is_list(kind):
            lists: list[Sequence[Any]] = [value if isinstance(value, list) else () for value in values]
            sizes = np.fromiter(map(len, lists), np.int64, len(lists))
            # All items of all arrays are converted at once. Their owners lead back from an item that does not
            # fit to its array, which is then null, and `origins` from there to the record.
            owners = np.repeat(np.arange(len(lists)), sizes)
            items = list(chain.from_iterable(lists))
            column, unfit = self.read(items, kind.value_type, origins[owners], f"{path}[]")
            column = pa.ListArray.from_arrays(_bounds(sizes), column, kind)
            column, wrong = _whole(column, values, list, owners[unfit])
        elif pa.types.is_map(kind):
            objects = [value if isinstance(value, dict) else _NO_OBJECT for value in values]
            keys = list(chain.from_iterable(map(names_of, objects)))
            items = list(chain.from_iterable(map(items_of, objects)))
            sizes = np.fromiter((len(names_of(members)) for members in objects), np.int64, len(objects))
            owners = np.repeat(np.arange(len(objects)), sizes)
            column, unfit = self.read(items, kind.item_type, origins[owners], f"{path}{{}}")
            # A map with a value that does not fit is null.
            lost = owners[unfit]
            if RepeatedNames in set(map(type, objects)):
                # A map has each key once. As in a dictionary, the first position and the last value count.
                last = {entry: at for at, entry in enumerate(zip(owners.tolist(), keys, strict=True))}
                keys = [key for _, key in last]
                chosen = np.fromiter(last.values(), np.int64, len(last))
                column = column.take(int64_array(chosen))
                sizes = np.bincount(owners[chosen], minlength=len(sizes))
            column = pa.MapArray.from_arrays(_bounds(sizes), string_array(keys), column, kind)
            column, wrong = _whole(column, values, dict, lost)
        elif pa.types.is_string(kind):
            # Values that are not strings become strings as they are written in the record.
            if set(map(type, values)) <= {str}:
                column = string_array(values)
            else:
                self._note_unwritten(values, origins)
                filled = np.flatnonzero(np.array([value is not None for value in values], np.bool_))
                strings = string_array([_text(value) for value in values if value is not None])
                column = spread(len(values), pa.string(), [(filled, strings)])
        else:
            # One conversion for each JSON type, because the type decides what a value may become: to Spark,
            # the string "5" is not an integer, but the number 5 is.
            parts: list[tuple[Positions, pa.Array]] = []
            types = set(map(type, values))
            for json_type in types - {type(None)}:
                places, of_type = np.arange(len(values)), values
                if len(types) > 1:
                    indices = [at for at, value in enumerate(values) if type(value) is json_type]
                    places, of_type = np.array(indices, np.int64), [values[at] for at in indices]
                scalars = _converted(of_type, kind, self.dialect)
                if scalars is None:
                    wrong += places.tolist()
                else:
                    wrong += places[list(scalars.problems)].tolist()
                    parts.append((places, scalars.column))
            column = spread(len(values), kind, parts)
        if wrong:
            # The kind of the value shows users which type their schema should have. The value may be private.
            for at, origin in zip(wrong, origins[wrong].tolist(), strict=True):
                if origin not in self.misfits:
                    self.misfits[origin] = f"field {path} does not fit {kind}: it is {_kind_of(values[at])}"
        return column, wrong

    def _note_unwritten(self, values: list[Any], origins: Positions) -> None:
        unwritten = np.array([isinstance(value, (dict, list)) for value in values], np.bool_)
        self.unwritten.update(self.owners[origins[unwritten]].tolist())


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return a value as it is written, a string without quotes, and a container as an empty text."""
    match value:
        case str():
            return value
        case bytes():
            return value.decode()
        case None | bool():
            return json.dumps(value)
    return ""


def _by_class(values: list[Any], container: type) -> tuple[Mask, list[int]]:
    """Return a mask of the containers of a class, and the indices of other values that are not null."""
    is_one = np.array([isinstance(value, container) for value in values], np.bool_)
    return is_one, [at for at in np.flatnonzero(~is_one).tolist() if values[at] is not None]


def _bounds(sizes: Positions) -> pa.Array:
    """Return the offsets of lists with these sizes, as an Arrow array."""
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return pa.Array.from_buffers(pa.int32(), len(bounds), [None, pa.py_buffer(bounds)], null_count=0)


def _whole(
    column: pa.Array, values: list[Any], container: type, lost: Positions
) -> tuple[pa.Array, list[int]]:
    """Return arrays or maps, null for lost ones and for other values, and which values do not fit."""
    sound, misplaced = _by_class(values, container)
    if sound.all() and not len(lost):
        return column, []
    sound[lost] = False
    parts = [(np.flatnonzero(sound), column.filter(bool_array(sound)))]
    return spread(len(values), column.type, parts), sorted({*misplaced, *lost.tolist()})


def _converted(values: list[Any], kind: pa.DataType, dialect: JsonDialect) -> Converted | None:
    """Return values, all of one JSON type, as a type without children; None if none of them fits."""
    converted = None
    match values[0]:
        case bool() if pa.types.is_boolean(kind):
            converted = Converted(bool_array(np.array(values, np.bool_)))
        case bytes() if pa.types.is_signed_integer(kind):
            converted = _one_by_one(values, kind, lambda word: _integer(word, kind.bit_width))
        case bytes() if pa.types.is_timestamp(kind) and kind.tz is not None:
            converted = _one_by_one(values, kind, lambda word: _integer(word, 64, MICROS_PER_S))
        case bytes() if pa.types.is_floating(kind):
            converted = Converted(string_array(list(map(bytes.decode, values))).cast(kind))
        case bytes() if pa.types.is_decimal(kind):
            converted = from_texts(
                string_array(list(map(bytes.decode, values))), kind, lambda word: decimal_of(word, kind)
            )
        case str() if pa.types.is_floating(kind) and dialect.allow_non_numeric_numbers:
            converted = _one_by_one(values, kind, _NON_FINITE.get)
        case str() if (convert := text_converter(kind, dialect)) is not None:
            converted = from_texts(string_array(values), kind, convert, dialect.usual_zone(kind))
    return converted


def _one_by_one(values: list[Any], kind: pa.DataType, convert: Callable[[Any], float | None]) -> Converted:
    """Convert values to a numeric type; ``convert`` returns None for one that does not fit."""
    numbers = list(map(convert, values))
    misfits = [at for at, number in enumerate(numbers) if number is None]
    return Converted(number_array(numbers, kind), dict.fromkeys(misfits, "does not fit"))


def _integer(word: bytes, bits: int, factor: int = 1) -> int | None:
    """Return an integer times a factor; None if it has too many bits or, like 1.0, is not an integer."""
    # A 64-bit number has at most 19 digits. int() takes quadratic time for longer ones.
    if len(word) > 20:
        return None
    try:
        number = int(word) * factor
    except ValueError:
        return None
    return number if -(1 << (bits - 1)) <= number < 1 << (bits - 1) else None


def _kind_of(value: object) -> str:
    """Return the kind of a JSON value. Numbers are still bytes."""
    match value:
        case bool():
            return "true or false"
        case bytes() if value.lstrip(b"-").isdigit():
            return "an integer"
        case bytes():
            return "a number with a fraction or an exponent"
        case str():
            return "a string"
        case dict():
            return "an object"
        case _:
            return "an array"


def encode_variant(text: str) -> dict[str, bytes]:
    """Return the two parts of a JSON value as a VARIANT, with the bytes that ``parse_json`` makes of it.

    PySpark has an encoder, ``VariantVal.parseJson``. It differs from the JVM's in three cases, which are
    handled here: an object that repeats a name is invalid, as in Spark; a surrogate without its partner
    becomes ``?``, as in Java; and where Java sorts an object's names differently from Python, the object is
    refused, because Spark looks names up by a binary search and would miss some.

    Raises:
        ValueError: Spark does not accept the value, or it is nested too deep or takes more than 16 MiB.
    """
    # Few queries have a column of this type, and programs without Spark import this package, too.
    from pyspark.sql.types import VariantVal

    if is_nested_deeper(text, MAX_VARIANT_DEPTH):
        raise ValueError("is nested too deep")
    if "\\u" in text:
        text = _ESCAPE.sub(lambda escape: "?" if escape[1] else escape[0], text)
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
