"""Any JSON records to columns, by the schema: what the fast reader of ``_formats.json`` is compared with.

All values of a field, wherever they are in a block, are converted at once: strings, and words (numbers and
booleans). A value that does not fit its type is noted, and the field it is in becomes null, be it a column or
a field of a struct: arrays and maps are read as a whole or not at all, as in Spark. The rest of the record
counts. JSON extensions that Spark's reader accepts are rewritten to standard JSON first.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark._formats.arrays import Mask, Positions, bool_array, int64_array, valid
from gazette_spark._formats.framing import Block, as_lines, lines_of
from gazette_spark._formats.json_tokens import ARRAY, OBJECT, TEXT, WORD, Octets, Values, values_of
from gazette_spark._formats.rows import WHOLE_RECORD, Columns
from gazette_spark._formats.timestamps import MICROS_PER_S, in_range
from gazette_spark._formats.values import (
    Converted,
    JsonDialect,
    decimal_of,
    from_texts,
    is_variant,
    matching,
    places,
    spread,
    text_converter,
)

_LENIENT = (b"'", b"INF", b"+Infinity")
"""Bytes of records that are JSON to Spark only."""

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

_END = r"(?![A-Za-z0-9_$])"
# A string without an end is a token, too: if it were none, each quote in it would be looked behind again.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*+"?' + r"|'(?:[^'\\]|\\.)*+'?" + r"|[+-]INF" + _END + r"|\+Infinity" + _END, re.DOTALL
)
_ESCAPED = re.compile(r'\\(.)|"', re.DOTALL)
_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*+"?|(NaN|Infinity)', re.DOTALL)

Convert = Callable[[Positions], Converted]
"""Converts the values at some places."""


class JsonReferenceParser:
    """Reads blocks by a schema. Immutable.

    With ``rescue``, the text of each field that does not fit, or that no column takes, is kept, and the
    record is fine. A field in which something deeper does not fit is kept as a whole.
    """

    def __init__(self, fields: Sequence[pa.Field], *, rescue: bool, dialect: JsonDialect) -> None:
        self._fields = fields
        self._rescue = rescue
        self._dialect = dialect

    def columns(self, block: Block) -> Columns:
        """Read records. Never raises for bad bytes, only for something missing on the machine."""
        values = self._values(as_lines(block))
        reading = _Reading(values, self._dialect, self._rescue)
        owners = np.full(values.container_count, -1, np.int64)
        owners[: len(values.records)] = values.records
        members = reading.members(self._fields, owners, len(block), 1, "")
        problems = {} if self._rescue else reading.problems
        rescued = _rescued(values, members) if self._rescue else {}
        for index in _invalid_records(values, len(block)):
            # Errors and logs show the first reason only, and to find it costs another parse.
            problems[index] = "not a JSON object" if problems else _problem(block.record(index))
            if self._rescue:
                rescued[index] = {WHOLE_RECORD: json.dumps(block.record(index).decode("utf-8", "replace"))}
        return Columns(members.columns, problems, rescued)

    def _values(self, lines: Block) -> Values:
        numbers = self._dialect.allow_non_numeric_numbers
        values = values_of(lines, constants=numbers)
        invalid = _invalid_records(values, len(lines))
        if not invalid or not any(mark in lines.data for mark in _LENIENT):
            return values
        # Spark's parser accepts more than JSON: such records are rewritten, and the block is read again.
        records = [lines.record(index) for index in range(len(lines))]
        for index in invalid:
            text = records[index].decode("utf-8", "surrogateescape")
            records[index] = strict_text(text, self._dialect).encode("utf-8", "surrogateescape")
        return values_of(lines_of(lines, records), constants=numbers)


@dataclass(frozen=True, slots=True, eq=False)
class _FieldValues:
    """The values of one field, wherever it occurs."""

    column: pa.Array
    wrong: Mask
    """The value does not fit."""
    troubled: Mask
    """The value, or something in it, does not fit."""


@dataclass(frozen=True, slots=True, eq=False)
class _MemberColumns:
    """The members of some objects."""

    columns: dict[str, pa.Array]
    """By field, an item for each object."""
    at: Positions
    """Places of all members."""
    owners: Positions
    """The object that each is in."""
    troubled: Mask
    """It, or something in it, does not fit, or it has no field and that counts."""


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """One reading of a block. ``level`` is the depth of values, ``path`` names a field from the record on."""

    values: Values
    dialect: JsonDialect
    rescue: bool
    problems: dict[int, str] = field(default_factory=dict)
    """By record."""

    def members(
        self, fields: Sequence[pa.Field], owners: Positions, count: int, level: int, path: str
    ) -> _MemberColumns:
        """Read ``count`` objects, the owners of containers; of a repeated name the last that fits counts."""
        at, objects = self.values.inside(owners, level)
        field_index = _index_in(self.values.names(at), [child.name for child in fields])
        # A member that no column takes is rescued.
        troubled = (field_index < 0) & self.rescue
        columns = {}
        for number, child in enumerate(fields):
            members = np.flatnonzero(field_index == number)
            values = self._read(at[members], child.type, level, path + child.name)
            troubled[members] = values.troubled
            column = values.column
            if values.wrong.any():
                column, members = column.filter(bool_array(~values.wrong)), members[~values.wrong]
            columns[child.name] = spread(count, child.type, [(objects[members], column)])
        return _MemberColumns(columns, at, objects, troubled)

    def _read(self, at: Positions, kind: pa.DataType, level: int, path: str) -> _FieldValues:
        """Read values of one depth."""
        if pa.types.is_struct(kind) and not is_variant(kind):
            return self._structs(at, kind, level, path)
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            return self._collections(at, kind, level, path)
        wrong = ~self._nulls(at)
        columns = []
        for mask, convert in self._converters(self.values.kinds[at], wrong, kind):
            chosen = np.flatnonzero(mask)
            if len(chosen):
                converted = convert(at[chosen])
                wrong[chosen] = False
                wrong[chosen[list(converted.problems)]] = True
                columns.append((chosen, converted.column))
        self._note(at[wrong], kind, path)
        return _FieldValues(spread(len(at), kind, columns), wrong, wrong)

    def _converters(self, kinds: Octets, not_null: Mask, kind: pa.DataType) -> list[tuple[Mask, Convert]]:
        """Return which values can be of a type, and what converts them."""
        texts, dialect = self.values.texts, self.dialect
        if is_variant(kind):
            # Few queries have one.
            from gazette_spark._formats.variant import encode

            return [(kinds >= 0, lambda at: from_texts(self.values.written(at), kind, encode, None))]
        if pa.types.is_string(kind):
            return [(not_null.copy(), lambda at: Converted(texts(at)))]
        converters: list[tuple[Mask, Convert]] = [
            ((kinds == WORD) & not_null, lambda at: from_words(texts(at), kind))
        ]
        convert, zone = text_converter(kind, dialect), dialect.usual_zone(kind)
        if convert is not None:
            converters.append((kinds == TEXT, lambda at: from_texts(texts(at), kind, convert, zone)))
        if pa.types.is_floating(kind) and dialect.allow_non_numeric_numbers:
            converters.append((kinds == TEXT, lambda at: constants(texts(at), kind)))
        return converters

    def _structs(self, at: Positions, kind: pa.StructType, level: int, path: str) -> _FieldValues:
        chosen, owners = self._containers(at, OBJECT)
        members = self.members(list(kind), owners, len(chosen), level + 1, f"{path}.")
        columns = [members.columns[child.name] for child in kind]
        column = spread(len(at), kind, [(chosen, pa.StructArray.from_arrays(columns, fields=list(kind)))])
        wrong = self._misplaced(at, chosen, kind, path)
        troubled = wrong.copy()
        troubled[chosen[members.owners[members.troubled]]] = True
        return _FieldValues(column, wrong, troubled)

    def _collections(self, at: Positions, kind: pa.DataType, level: int, path: str) -> _FieldValues:
        """Read arrays or maps: one with an item that does not fit is lost."""
        is_map = pa.types.is_map(kind)
        chosen, containers = self._containers(at, OBJECT if is_map else ARRAY)
        items_at, owners = self.values.inside(containers, level + 1)
        item_type = kind.item_type if is_map else kind.value_type
        values = self._read(items_at, item_type, level + 1, path + ("{}" if is_map else "[]"))
        wrong = self._misplaced(at, chosen, kind, path)
        troubled = wrong.copy()
        wrong[chosen[owners[values.wrong]]] = True
        troubled[chosen[owners[values.troubled]]] = True
        items, keys = values.column, None
        if is_map:
            keys = self.values.names(items_at)
            owners, keys, items = _once(owners, keys, items)
        bounds = np.zeros(len(chosen) + 1, np.int32)
        np.cumsum(np.bincount(owners, minlength=len(chosen)), out=bounds[1:])
        offsets = pa.array(bounds)
        whole = (
            pa.MapArray.from_arrays(offsets, keys, items, kind)
            if is_map
            else pa.ListArray.from_arrays(offsets, items, kind)
        )
        fits = ~wrong[chosen]
        column = whole if fits.all() else whole.filter(bool_array(fits))
        return _FieldValues(spread(len(at), kind, [(chosen[fits], column)]), wrong, troubled | wrong)

    def _containers(self, at: Positions, kind: int) -> tuple[Positions, Positions]:
        """Return which values are containers of a kind, and by container which of these it is, or -1."""
        chosen = np.flatnonzero(self.values.kinds[at] == kind)
        owners = np.full(self.values.container_count, -1, np.int64)
        owners[self.values.inner[at[chosen]]] = np.arange(len(chosen))
        return chosen, owners

    def _nulls(self, at: Positions) -> Mask:
        # No other word begins with this letter.
        nulls: Mask = (self.values.kinds[at] == WORD) & (self.values.firsts(at) == ord("n"))
        return nulls

    def _misplaced(self, at: Positions, chosen: Positions, kind: pa.DataType, path: str) -> Mask:
        """Return, and note, values that are neither null nor among the chosen ones."""
        wrong = ~self._nulls(at)
        wrong[chosen] = False
        self._note(at[wrong], kind, path)
        return wrong

    def _note(self, at: Positions, kind: pa.DataType, path: str) -> None:
        """Note that values do not fit; the first problem of a record counts."""
        if len(at):
            records = self.values.records_of(at).tolist()
            self.problems.update(dict.fromkeys(records, f"field {path} does not fit {kind}") | self.problems)


def _index_in(texts: pa.StringArray, names: Sequence[str]) -> Positions:
    """Return each text's index among some names, -1 for other texts."""
    indices = pc.index_in(texts, pa.array(names, pa.string()))
    if not len(indices):
        return np.zeros(0, np.int64)
    return np.where(valid(indices), np.frombuffer(indices.buffers()[1], np.int32, len(indices)), -1)


def _once(
    owners: Positions, keys: pa.StringArray, items: pa.Array
) -> tuple[Positions, pa.StringArray, pa.Array]:
    """Return a map's entries, each key once: where it is first, with the last of its items."""
    codes = keys.dictionary_encode()
    if not len(keys):
        return owners, keys, items
    pairs = owners * len(codes.dictionary) + np.frombuffer(codes.indices.buffers()[1], np.int32, len(keys))
    _, first, entry = np.unique(pairs, return_index=True, return_inverse=True)
    if len(first) == len(keys):
        return owners, keys, items
    last = np.empty(len(first), np.int64)
    last[entry] = np.arange(len(keys))
    order = np.argsort(first)
    first, last = first[order], last[order]
    return owners[first], keys.take(pa.array(first)), items.take(pa.array(last))


def _rescued(values: Values, members: _MemberColumns) -> dict[int, dict[str, str]]:
    """Return by record the texts of fields that do not fit; of a repeated name the last counts."""
    rescued: dict[int, dict[str, str]] = {}
    some = np.zeros(members.owners.max(initial=-1) + 1, np.bool_)
    some[members.owners[members.troubled]] = True
    chosen = np.flatnonzero(some[members.owners])
    at = members.at[chosen]
    for name, text, owner, troubled in zip(
        values.names(at).to_pylist(),
        values.written(at).to_pylist(),
        members.owners[chosen].tolist(),
        members.troubled[chosen].tolist(),
        strict=True,
    ):
        texts = rescued.setdefault(owner, {})
        texts.pop(name, None)
        if troubled:
            texts[name] = text
    return {owner: texts for owner, texts in rescued.items() if texts}


def _invalid_records(values: Values, count: int) -> list[int]:
    """Return the records that are not JSON objects."""
    invalid = np.ones(count, np.bool_)
    invalid[values.records] = False
    return list(map(int, np.flatnonzero(invalid)))


def _problem(record: bytes) -> str:
    """Return why a record is not a JSON object, as far as Python's parser knows."""
    try:
        json.loads(record, parse_int=str)  # Python makes no numbers of more than 4,300 digits.
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        return f"not a JSON object: {error.msg} at character {error.pos}"
    except RecursionError:
        return "not a JSON object: nested too deep to say where it ends"
    return "not a JSON object"


def from_words(words: pa.StringArray, kind: pa.DataType) -> Converted:
    """Convert words of JSON other than null to a type without children."""
    if pa.types.is_boolean(kind):
        return matching(words, kind, "^(true|false)$", None)
    if pa.types.is_signed_integer(kind):
        most = 1 << (kind.bit_width - 1)
        # All numbers of fewer digits than the largest one fit.
        short = f"^-?[0-9]{{1,{len(str(most)) - 1}}}$"
        return matching(words, kind, short, lambda word: _whole(word, -most, most - 1))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        seconds = matching(words, pa.int64(), "^-?[0-9]{1,12}$", _seconds)
        return Converted(pc.multiply(seconds.column, MICROS_PER_S).cast(kind), seconds.problems)
    if pa.types.is_decimal(kind):
        return from_texts(words, kind, lambda word: decimal_of(word, kind))
    return _floats(words, kind) if pa.types.is_floating(kind) else matching(words, kind, "^$", None)


def _floats(words: pa.StringArray, kind: pa.DataType) -> Converted:
    is_finite = pc.match_substring_regex(words, "^-?[0-9]")
    finite = places(is_finite)
    if len(finite) == len(words):
        return Converted(words.cast(kind))
    others = places(pc.invert(is_finite))
    named = constants(words.take(int64_array(others)), kind)
    parts = [(finite, words.take(int64_array(finite)).cast(kind)), (others, named.column)]
    problems = {int(others[index]): problem for index, problem in named.problems.items()}
    return Converted(spread(len(words), kind, parts), problems)


def constants(texts: pa.StringArray, kind: pa.DataType) -> Converted:
    """Convert NaN and the infinities."""
    indices = pc.index_in(texts, pa.array(list(_NON_FINITE)))
    column = pa.array(list(_NON_FINITE.values())).take(indices).cast(kind)
    return Converted(column, dict.fromkeys(places(indices.is_null()).tolist(), "is not a number"))


def _whole(word: str, least: int, most: int) -> int:
    # A 64-bit number has 19 digits: longer ones are refused unread, int() takes quadratic time on them.
    if not _WHOLE.fullmatch(word) or len(word) > 20 or not least <= int(word) <= most:
        raise ValueError("is not a whole number in range")
    return int(word)


def _seconds(word: str) -> int:
    seconds = _whole(word, -(2**63), 2**63 - 1)
    in_range(seconds * MICROS_PER_S)
    return seconds


def strict_text(text: str, dialect: JsonDialect) -> str:
    """Return a record in which strings and numbers are written as JSON has it, the rest as it is."""

    def rewritten(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] in "+-":
            number = token.lstrip("+").replace("INF", "Infinity")
            return number if dialect.allow_non_numeric_numbers else token
        if len(token) == 1 or token[-1] != token[0] or not dialect.allow_single_quotes:
            return token
        return f'"{_ESCAPED.sub(_in_double_quotes, token[1:-1])}"'

    return _TOKEN.sub(rewritten, text)


def _in_double_quotes(match: re.Match[str]) -> str:
    """Return an escape, or a double quote, as a string in double quotes has it."""
    if match[0] == '"':
        return '\\"'
    return "'" if match[1] == "'" else match[0]


def has_constant(text: str) -> bool:
    """Tell whether some JSON has a number that is invalid in standard JSON: NaN, or infinite."""
    return any(token[1] for token in _CONSTANT.finditer(text))
