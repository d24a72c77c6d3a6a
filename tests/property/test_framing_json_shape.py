"""Blocks of records of one shape, and blocks that nearly are, give the rows that the exact half gives."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from gazette_spark.framing.base import Block
from gazette_spark.framing.json import JsonFormat, JsonParser
from gazette_spark.framing.json_shape import ShapeReader
from gazette_spark.framing.lines import cut
from tests.rig.examples import examples

SCHEMA = pa.schema(
    [
        ("_offset", pa.int64()),
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("whole", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("_corrupt_record", pa.string()),
    ]
)

PLAIN = {
    "number": st.from_regex(r"-?(0|[1-9][0-9]{0,2})", fullmatch=True),
    "fraction": st.from_regex(r"-?(0|[1-9][0-9]{0,8})\.[0-9]{1,6}", fullmatch=True),
    "bool": st.sampled_from(["true", "false"]),
    "text": st.text(st.characters(codec="utf-8", exclude_characters='"\\', min_codepoint=32), max_size=9).map(
        lambda text: f'"{text}"'
    ),
    "day": st.sampled_from(['"2024-02-29"', '"2023-02-29"', '"1969-12-31"', '""']),
}
WRONG_NUMBERS = "01 -01 00 1. .5 - --1 1- 1.2.3 1..2 +1 1e3 0x1F NaN 9223372036854775808 128"
NASTY = st.sampled_from(
    [
        *WRONG_NUMBERS.split(),
        "1 2",
        "null",
        "",
        "True",
        "tru",
        "truee",
        "{}",
        "[1]",
        r'"a\"b"',
        '"a"b"',
        '"',
        '"\t"',
    ]
)
KINDS = {
    "flag": "bool",
    "small": "number",
    "whole": "number",
    "single": "fraction",
    "double": "fraction",
    "text": "text",
    "raw": "text",
    "day": "day",
    "other": "number",
    "stranger": "text",
    "ü": "bool",
}
blanks = st.sampled_from(["", "", " "])


@st.composite
def blocks(draw: st.DrawFn) -> list[bytes]:
    """Records of one shape; in some draws a few have a value, or a byte, that is none of it."""
    names = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=6))
    template = [f'{draw(blanks)}"{name}"{draw(blanks)}:{draw(blanks)}' for name in names]
    spoilt = draw(st.booleans())
    found = []
    for _ in range(draw(st.integers(1, 12))):
        values = [
            draw(NASTY if spoilt and draw(st.integers(0, 9)) == 0 else PLAIN[KINDS[name]]) for name in names
        ]
        record = "{" + ",".join(map("".join, zip(template, values, strict=True))) + "}"
        octets = bytearray(record.encode())
        if spoilt and draw(st.integers(0, 9)) == 0:
            octets[draw(st.integers(0, len(octets) - 1))] = draw(st.sampled_from(b'"\\ {},:x0.\t\x7f\xff'))
        found.append(bytes(octets))
    return found


def rows(found: list[bytes], *, fast: bool) -> list[dict[str, object]]:
    """Return the rows of a block of these records."""
    data = b"".join(record + b"\n" for record in found)
    block = Block("a/journal", 1000, data, *cut(data))
    batches = list(JsonParser(JsonFormat(SCHEMA), fast=fast).record_batches([block]))
    table = pa.Table.from_batches(batches, SCHEMA)
    table.validate(full=True)
    rows: list[dict[str, object]] = table.to_pylist()
    return rows


@given(blocks())
@example([b'{"other":1.2.3}'])
@example([b'{"text":"a","text":"b"}'])
@example([b'{"whole":1}', b'{"whole":1 }'])
@example([b'{"text":"a"}', b'{"text":","}'])
@example([b'{"whole":1,}'])
@settings(max_examples=examples(150), deadline=None)
def test_shapes_change_no_row(found: list[bytes]) -> None:
    """The rows of a block are those of the exact half, whether it is of one shape or not."""
    data = b"".join(record + b"\n" for record in found)
    if data.isascii():
        storage = pa.schema([("text", pa.string()), ("whole", pa.int64())])
        taken = ShapeReader(storage, extra_fields=True).columns(Block("a", 0, data, *cut(data)))
        event("of one shape" if taken else "of several")
    # As text: NaN does not equal itself.
    assert repr(rows(found, fast=True)) == repr(rows(found, fast=False))
