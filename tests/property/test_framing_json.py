"""The two JSON parsers give the same rows, and each row depends on its own record only."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._formats.values import SPARK_DIALECT, JsonDialect
from tests.oracles.framings import line_spans
from tests.oracles.json_lines import DAYS, TIMES, ZONES
from tests.rig.examples import examples

pytestmark = pytest.mark.usefixtures("native_library")

SCHEMA = pa.schema(
    [
        ("_journal", pa.string()),
        ("_offset", pa.int64()),
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("whole", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("list", pa.list_(pa.field("element", pa.int32()))),
        ("nest", pa.struct([("x", pa.int64()), ("d", pa.date32()), ("l", pa.list_(pa.string()))])),
        ("_corrupt_record", pa.string()),
    ]
)
NAMES = [name for name in SCHEMA.names if not name.startswith("_")]

numbers = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(-200, 200).map(str),
    st.floats().map(json.dumps),
    st.from_regex(r"-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
    st.sampled_from(["-0", "-0.0", "1e400", "1.10", "1.125", "01", "1.", "NaN", "-Infinity", "+1"]),
)
moments = st.from_regex(
    r"(2024|0000|1969|9999)-(0[0-9]|1[0-3]|7)-([0-2][0-9]|31|5)"
    r"([ T]([01][0-9]|2[3-5])(:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,9})?)?)?(Z|[+-][0-2][0-9](:?[0-6][0-9])?)?)?",
    fullmatch=True,
)
texts = st.one_of(
    st.text(max_size=8),
    moments,
    moments,
    st.sampled_from(["", "aGk=", "aGk", "1.5", "+.5", "NaN", "INF", "-INF", "1_0", " 1", "1e3", "true"]),
)
strings = st.one_of(
    texts.map(lambda text: json.dumps(text, ensure_ascii=False)),
    texts.map(json.dumps),
    st.sampled_from(['"\\ud800"', '"\\u0000"', '"\\x"', '"a\\/b"', '"\x01"', '"\x7f"', '"\\ud83d\\ude00"']),
)
scalars = st.one_of(numbers, strings, st.sampled_from(["null", "true", "false", "nul", "{}", "[]", ""]))
spaces = st.sampled_from(["", "", "", " ", "\t", " \r "])


def joined(parts: list[str], brackets: str) -> str:
    return brackets[0] + ",".join(parts) + brackets[1]


values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: joined(parts, "[]")),
        st.lists(st.tuples(st.sampled_from(['"x"', '"d"', '"l"', '"z"']), inner), max_size=3).map(
            lambda pairs: joined([f"{key}:{value}" for key, value in pairs], "{}")
        ),
    ),
    max_leaves=5,
)
FITTING = {
    "flag": st.sampled_from(["true", "false"]),
    "text": strings,
    "raw": strings,
    "day": moments.map(json.dumps),
    "at": moments.map(json.dumps),
    "local": moments.map(json.dumps),
    "list": st.lists(numbers, max_size=3).map(lambda parts: joined(parts, "[]")),
}


@st.composite
def members(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from([*NAMES, "other"]))
    value = draw(st.one_of(FITTING.get(name, numbers), FITTING.get(name, numbers), values))
    return f"{json.dumps(name)}{draw(spaces)}:{draw(spaces)}{value}"


objects = st.lists(members(), max_size=4).map(lambda parts: joined(parts, "{}"))
records = st.one_of(
    objects.map(str.encode),
    st.tuples(spaces, objects, spaces).map("".join).map(str.encode),
    st.tuples(objects, st.sampled_from(["", " ", ",", "x", "\0"]), objects).map("".join).map(str.encode),
    st.tuples(objects.map(str.encode), st.integers(0, 60)).map(lambda pair: pair[0][: pair[1]]),
    st.sampled_from([b"", b"null", b"1", b"[]", b"{", b"}", b"{}", b'{"other":"\xff"}', b'{"text":"\xff"}']),
).map(lambda record: record.replace(b"\n", b""))


def block_of(found: list[bytes], offset: int = 1000) -> Block:
    data = b"".join(record + b"\n" for record in found)
    return Block("a/journal", offset, data, *line_spans(data))


RESCUING = SCHEMA.append(pa.field("rest", pa.string()))


def parsed(
    block: Block, *, fast: bool = True, mode: str = "PERMISSIVE", schema: pa.Schema = SCHEMA
) -> list[dict[str, Any]]:
    """Return rows with instants as numbers, because Python has no year 0."""
    wanted = JsonFormat(schema, mode, rescued_column="rest")
    batches = list(JsonParser(wanted, fast=fast).record_batches([block]))
    table = pa.Table.from_batches(batches, schema)
    table.validate(full=True)
    for name in ("at", "local"):
        table = table.set_column(table.column_names.index(name), name, table.column(name).cast(pa.int64()))
    for name in ("day",):
        table = table.set_column(table.column_names.index(name), name, table.column(name).cast(pa.int32()))
    nest = table.column("nest").cast(
        pa.struct([("x", pa.int64()), ("d", pa.int32()), ("l", pa.list_(pa.string()))])
    )
    table = table.set_column(table.column_names.index("nest"), "nest", nest)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@given(st.lists(records, min_size=1, max_size=100), st.integers(0, 100))
@settings(max_examples=examples(50), deadline=None)
def test_a_row_depends_on_its_record_alone(found: list[bytes], at: int) -> None:
    block = block_of(found)
    at = min(at, len(found))
    whole = parsed(block)
    assert repr(whole) == repr(parsed(block.rows(0, at)) + parsed(block.rows(at, len(found))))
    assert [row["_offset"] for row in whole] == block.offsets.tolist()


FLAT = pa.schema([SCHEMA.field(name) for name in ("whole", "day", "at", "local", "raw", "price")])
DIALECTS = [
    SPARK_DIALECT,
    JsonDialect(time_zone="Europe/Paris", allow_non_numeric_numbers=False),
    JsonDialect(date_format="d.M.yyyy", timestamp_format="yyyy-MM-dd HH:mm:ss[XXX]"),
    JsonDialect(timestamp_ntz_format="yyyy-MM-dd'T'HH:mm:ss.SSS", allow_single_quotes=False),
]
moments_or_not = st.one_of(
    moments,
    st.tuples(st.sampled_from(DAYS), st.sampled_from(["", *TIMES]), st.sampled_from(["", *ZONES])).map(
        "".join
    ),
    st.datetimes().map(lambda at: at.isoformat(" ", "seconds") + "Z"),
    st.datetimes().map(lambda at: at.isoformat("T", "microseconds")),
    st.dates().map(lambda day: f"{day.day}.{day.month}.{day.year:04}"),
).map(json.dumps)


@st.composite
def rows_of_one_shape(draw: st.DrawFn) -> list[bytes]:
    kinds: dict[str, st.SearchStrategy[str]] = {
        "whole": st.integers(-100, 100).map(str),
        "day": moments_or_not,
        "at": moments_or_not,
        "local": moments_or_not,
        "raw": st.sampled_from(['"aGk="', '"aGk"', '""', '"aGk= "']),
        "price": st.sampled_from(['"1,5"', '"1.5"', '"x"']),
    }
    names = draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=4, unique=True))
    odd = draw(st.booleans())
    return [
        joined(
            [f'"{name}":{draw(st.one_of(kinds[name], scalars) if odd else kinds[name])}' for name in names],
            "{}",
        )
        .replace("\n", " ")
        .encode()
        for _ in range(draw(st.integers(1, 12)))
    ]


@given(rows_of_one_shape(), st.sampled_from(DIALECTS))
@settings(max_examples=examples(80), deadline=None)
def test_texts_are_converted_alike(found: list[bytes], dialect: JsonDialect) -> None:
    """A whole column of dates or timestamps converts like its single texts, whatever the options."""

    def rows(*, fast: bool) -> list[dict[str, Any]]:
        wanted = JsonFormat(FLAT.append(SCHEMA.field("_corrupt_record")), dialect=dialect)
        (batch,) = JsonParser(wanted, fast=fast).record_batches([block_of(found)])
        numbers = {"day": pa.int32(), "at": pa.int64(), "local": pa.int64()}
        columns = {name: batch.column(name).cast(kind) for name, kind in numbers.items()}
        plain = {name: columns.get(name, batch.column(name)) for name in batch.schema.names}
        result: list[dict[str, Any]] = pa.table(plain).to_pylist()
        return result

    assert repr(rows(fast=True)) == repr(rows(fast=False))


@given(st.lists(records, min_size=1, max_size=40))
@settings(max_examples=examples(50), deadline=None)
def test_modes_agree_on_what_is_malformed(found: list[bytes]) -> None:
    kept = [row for row in parsed(block_of(found)) if row["_corrupt_record"] is None]
    assert repr(parsed(block_of(found), mode="DROPMALFORMED")) == repr(kept)


@given(records)
@example(b'{"price":100000E3}')
@example(b'{"nest":{"z":1}}')
@example(b'{"nest":{"z":null}}')
@example(b'{"list":[1,"x"],"whole":7}')
@example(b'{"whole":"x","whole":7}')
@settings(max_examples=examples(100), deadline=None)
def test_halves_agree(record: bytes) -> None:
    (fast,) = parsed(block_of([record]), schema=RESCUING)
    (exact,) = parsed(block_of([record]), schema=RESCUING, fast=False)
    assert repr(fast) == repr(exact)
    (plain,) = parsed(block_of([record]), fast=False)
    assert repr(plain) == repr(parsed(block_of([record]))[0])
    names = [name for name in SCHEMA.names if name != "_corrupt_record"]
    assert repr([exact[name] for name in names]) == repr([plain[name] for name in names])
    if exact["rest"] is not None:
        rescued = json.loads(exact["rest"])
        assert (rescued.pop("_journal"), rescued.pop("_offset")) == ("a/journal", 1000)
        assert rescued or any(name in ("_journal", "_offset") for name in json.loads(record))
