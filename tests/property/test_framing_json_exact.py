"""The reference JSON parser gives the rows that Python's own parser gives, whatever the bytes."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._formats.json_records import decode_without_recursion
from gazette_spark._formats.values import JsonDialect
from tests.rig.examples import examples

NODE = pa.struct([("n", pa.int64()), ("t", pa.string()), ("b", pa.list_(pa.bool_()))])
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("t", pa.string()),
        ("o", NODE),
        ("l", pa.list_(NODE)),
        ("m", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ("_corrupt_record", pa.string()),
    ]
)
STRICT = JsonDialect(allow_single_quotes=False, allow_non_numeric_numbers=False)
"""Dialect that accepts what Python's parser accepts once its constants are refused."""

LONGS = range(-(2**63), 2**63)


class MisfitError(Exception):
    """A value does not fit its type."""


class Written:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, text: object) -> bool:
        return isinstance(text, str) and bool(json.loads(text, object_pairs_hook=tuple) == self.value)

    __hash__ = None  # type: ignore[assignment]  # It equals texts.


class Reader:
    def __init__(self) -> None:
        self.fine = True

    def members(self, pairs: list[tuple[str, Any]], fields: list[pa.Field]) -> dict[str, Any]:
        found: dict[str, Any] = {field.name: None for field in fields}
        kinds = {field.name: field.type for field in fields}
        for name, value in pairs:
            if name in kinds:
                try:
                    found[name] = self.value(value, kinds[name])
                except MisfitError:
                    self.fine = False
        return found

    def value(self, value: Any, kind: pa.DataType) -> Any:  # noqa: PLR0911 - one for each kind.
        """Return a value with objects as tuples of pairs; raise MisfitError if it does not fit."""
        match value:
            case None:
                return None
            case bool() if pa.types.is_boolean(kind):
                return value
            case int() if kind == pa.int64() and not isinstance(value, bool) and value in LONGS:
                return value
            case str() if pa.types.is_string(kind):
                return value.encode("utf-8", "replace").decode()
            case _ if pa.types.is_string(kind):
                return Written(value)
            case tuple() if pa.types.is_struct(kind):
                return self.members(list(value), list(kind))
            case tuple() if pa.types.is_map(kind):
                items = [self.tried(item, kind.item_type) for _, item in value]
                keys = [key.encode("utf-8", "replace").decode() for key, _ in value]
                return list(dict(zip(keys, self.all_of(items), strict=True)).items())
            case list() if pa.types.is_list(kind):
                return self.all_of([self.tried(item, kind.value_type) for item in value])
        raise MisfitError

    def tried(self, value: Any, kind: pa.DataType) -> Any:
        """Return an item or a MisfitError, because the remaining items are read in either case."""
        try:
            return self.value(value, kind)
        except MisfitError:
            return MisfitError

    @staticmethod
    def all_of(items: list[Any]) -> list[Any]:
        if MisfitError in items:
            raise MisfitError
        return items


def expected(record: bytes) -> dict[str, Any]:
    def refused(text: str) -> object:
        raise ValueError(text)

    row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    reader = Reader()
    try:
        found = json.loads(record.decode(), object_pairs_hook=tuple, parse_constant=refused)
        reader.fine = isinstance(found, tuple)
    except ValueError:
        reader.fine = False
        found = None
    if isinstance(found, tuple):
        row |= reader.members(list(found), [field for field in SCHEMA if field.name != "_corrupt_record"])
    if not reader.fine:
        row["_corrupt_record"] = record.decode("utf-8", "replace")
    return row


names = st.sampled_from(['"n"', '"t"', '"o"', '"l"', '"m"', '"b"', '"x"', '"\\u006e"', '""', '"\\ud800"'])
spaces = st.sampled_from(["", "", "", " ", "\t", "\r", "\n"])
strings = st.one_of(
    st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text('\\"/bnu0é😀\ud83d', max_size=6).map(json.dumps),
    st.sampled_from(['"\\\\"', '"\\\\\\""', '"\\/"', '"{"', '"}"', '"[\\""', '"\\ud83d\\ude00"']),
)
leaves = st.one_of(
    st.sampled_from(["null", "true", "false", "1.5", "-0", "1e3", "9223372036854775808", "[]", "{}"]),
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.integers(-9, 9).map(str),
)


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(spaces, names, spaces, spaces, values, spaces).map(
        lambda parts: f"{parts[0]}{parts[1]}{parts[2]}:{parts[3]}{parts[4]}{parts[5]}"
    )
    return st.lists(member, max_size=5).map(lambda members: "{" + ",".join(members) + "}")


values = st.recursive(
    st.one_of(leaves, strings),
    lambda inner: st.one_of(
        objects(inner), st.lists(inner, max_size=4).map(lambda items: "[" + ",".join(items) + "]")
    ),
    max_leaves=8,
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Draw objects; one in three has a byte inserted, removed or changed."""
    record = bytearray(draw(objects(values)).encode("utf-8", "surrogatepass"))
    if draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(0, len(record) - 1))
        octet = draw(st.sampled_from(b'{}[],:"\\ 01-.eun\x00\x1f\x7f\xff'))
        record[at : at + draw(st.integers(0, 1))] = [octet][: draw(st.integers(0, 1))]
    return bytes(record)


def framed(found: list[bytes]) -> Block:
    """Return records with a byte before each, because they may contain newlines."""
    ends = [0]
    for record in found:
        ends.append(ends[-1] + 1 + len(record))
    data = b"".join(b"#" + record for record in found)
    bounds = pa.array(ends).to_numpy()
    return Block("a/journal", 0, data, bounds[:-1] + 1, bounds[1:], header_bytes=1, trailer_bytes=0)


@given(st.lists(records(), min_size=1, max_size=5))
@example([b'{"n":1}', b'{"n":1,}', b'{"n",1}', b',{"n":1}', b'{"n":1},', b'{"n":[1}]', b'{"n":1', b""])
@example([b'{"m":{"a":[1],"b":[1,"x"]}}', b'{"m":{"a":[1],"a":[2],"\\u0061":null}}', b'{"m":{}}'])
@example([b'{"l":[{"n":1},null,{"n":"x"}],"o":{"b":[true,null]}}', b'{"l":[[]]}', b'{"o":[]}'])
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_those_of_pythons_parser(found: list[bytes]) -> None:
    """JSON records have their values, other records have none, and no record changes another's row."""
    strict = JsonFormat(SCHEMA, dialect=STRICT)
    (batch,) = JsonParser(strict, fast=False).record_batches([framed(found)])
    batch.validate(full=True)
    for record, row in zip(found, batch.to_pylist(), strict=True):
        assert row == expected(record), record


@given(records())
def test_what_is_read_without_recursion_is_the_same(record: bytes) -> None:
    text, decoder = record.decode("utf-8", "replace"), json.JSONDecoder(object_pairs_hook=tuple)
    outcomes: list[tuple[Any, int]] = []
    for decode in (decoder.raw_decode, partial(decode_without_recursion, decoder)):
        try:
            outcomes.append(decode(text, 0))
        except json.JSONDecodeError as error:
            outcomes.append((error.msg, error.pos))
    assert outcomes[0] == outcomes[1]
