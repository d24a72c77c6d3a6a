"""What the native decoder accepts, what it leaves to the other parsers, and how it reports its absence."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gazette_spark._formats import library
from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._formats.native import NativeDecoder
from gazette_spark._formats.values import SPARK_DIALECT, JsonDialect
from tests.oracles.framings import line_spans
from tests.rig.native import require_library, without_library
from tests.rig.poison import DECODED, TYPES

EVERY_TYPE = (
    b'{"i8":-1,"i4":2,"i2":3,"i1":4,"d":1.5e-3,"f":0.1,"b":true,"s":"\\u00e9 \xc3\xa9",'
    b'"t":"2024-01-02T03:04:05.5+01:00","n":"2024-01-02 03:04:05","dt":"2024-01-02","dec":1.25,"big":7,'
    b'"o":{"st":"x","lo":[{"q":1,"z":["y"]},null]},"l":[1,null],"other":{"deep":[1,"2",{}]}}'
)


@pytest.fixture(autouse=True)
def _library() -> None:
    require_library()


def block_of(*records: bytes) -> Block:
    data = b"".join(record + b"\n" for record in records)
    return Block("j", 0, data, *line_spans(data))


def decoder_of(
    *fields: tuple[str, pa.DataType], dialect: JsonDialect = SPARK_DIALECT
) -> NativeDecoder | None:
    return NativeDecoder.of(list(pa.schema(fields)), extra_fields=True, dialect=dialect)


def suspects_of(decoder: NativeDecoder | None, *records: bytes) -> list[int]:
    assert decoder is not None
    decoded = decoder.decode(block_of(*records))
    assert decoded is not None
    found: list[int] = decoded[1].tolist()
    return found


def rows(schema: pa.Schema, *records: bytes, **options: Any) -> list[dict[str, Any]]:
    batches = JsonParser(JsonFormat(schema, **options)).record_batches([block_of(*records)])
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, schema).to_pylist()
    return found


def test_common_forms_of_every_type_are_taken() -> None:
    fields = list(DECODED)
    nulls = b"{" + b",".join(b'"%b":null' % field.name.encode() for field in fields) + b"}"
    assert (
        suspects_of(decoder_of(*((field.name, field.type) for field in fields)), EVERY_TYPE, nulls, b"{}")
        == []
    )


def test_integers_of_64_bits_are_taken() -> None:
    """Nanoseconds since 1970 and the ids of many services have 19 digits."""
    texts = (b"1700000000123456789", b"-9223372036854775808", b"9223372036854775807", b"9223372036854775808")
    assert suspects_of(decoder_of(("a", pa.int64())), *[b'{"a":%b}' % text for text in texts]) == [3]


def test_many_columns_are_found_in_any_order() -> None:
    fields = [(f"column {number}", pa.int64()) for number in range(300)]
    members = [b'"column %d":%d' % (number, number) for number in range(300)]
    records = [b"{" + b",".join(order) + b"}" for order in (members, members[::-1], members[7::13])]
    assert suspects_of(decoder_of(*fields), *records) == []
    *whole, part = rows(pa.schema(fields), *records)
    assert whole == [{name: int(name.split()[1]) for name, _ in fields}] * 2
    assert {name: value for name, value in part.items() if value is not None} == {
        f"column {number}": number for number in range(7, 300, 13)
    }


@pytest.mark.parametrize(
    "kind",
    [
        TYPES["binary"],
        TYPES["variant"],
        TYPES["map<string,decimal>"],
        pa.list_(TYPES["variant"]),
        pa.struct([("x", TYPES["map<string,decimal>"])]),
        pa.decimal128(5, -2),
        pa.struct([pa.field("x", pa.int64()), pa.field("x", pa.string())]),
        pa.struct([('a"b', pa.int64())]),
    ],
    ids=str,
)
def test_types_that_it_does_not_have(kind: pa.DataType) -> None:
    assert decoder_of(("v", kind), ("w", pa.int64())) is None


def test_patterns_are_left_to_python() -> None:
    dialect = JsonDialect(date_format="d.M.yyyy")
    assert decoder_of(("v", pa.date32()), dialect=dialect) is None
    assert decoder_of(("v", pa.timestamp("us", "UTC")), dialect=dialect) is not None


def test_local_times_are_suspect_outside_utc() -> None:
    """Only texts with a zone mean the same in every zone."""
    decoder = decoder_of(("t", pa.timestamp("us", "UTC")), dialect=JsonDialect("Europe/Paris"))
    records = b'{"t":"2024-01-02T03:04:05"}', b'{"t":"2024-01-02T03:04:05Z"}'
    assert suspects_of(decoder, *records) == [0]


@pytest.mark.parametrize("every", [1, 2, 3, 10, 100])
def test_suspects_are_read_again_in_their_places(every: int) -> None:
    schema = pa.schema([("a", pa.int64()), ("s", pa.string()), ("_corrupt_record", pa.string())])
    suspects = [
        (b'{"a":"x","s":"kept"}', {"a": None, "s": "kept", "_corrupt_record": '{"a":"x","s":"kept"}'}),
        (b"{no json", {"a": None, "s": None, "_corrupt_record": "{no json"}),
        (b'{"a":1,"a":2,"s":"\\ud800"}', {"a": 2, "s": "?", "_corrupt_record": None}),
    ]
    records, expected = [], []
    for number in range(200):
        if number % every == 0:
            record, row = suspects[number // every % 3]
        else:
            record = b'{"a":%d,"s":"n%d"}' % (number, number)
            row = {"a": number, "s": f"n{number}", "_corrupt_record": None}
        records.append(record)
        expected.append(row)
    assert rows(schema, *records) == expected


def test_fields_without_a_column_are_rescued() -> None:
    schema = pa.schema([("a", pa.int64()), ("rest", pa.string())])
    first, *others = rows(schema, b'{"a":1,"b":2}', *[b'{"a":3}'] * 9, rescued_column="rest")
    assert first == {"a": 1, "rest": '{"_journal":"j","_offset":0,"b":2}'}
    assert others == [{"a": 3, "rest": None}] * 9


def test_records_that_do_not_touch() -> None:
    whole = block_of(b'{"a":1}', b'{"a":"', b'{"a":2}', b"\xff")
    schema = pa.schema([("a", pa.int64()), ("_corrupt_record", pa.string())])
    kept = whole.only(np.array([True, False, True, False]))
    (batch,) = JsonParser(JsonFormat(schema)).record_batches([kept])
    assert batch.to_pylist() == [{"a": 1, "_corrupt_record": None}, {"a": 2, "_corrupt_record": None}]


def test_positions_that_make_no_sense_are_refused() -> None:
    """The decoder must not read bytes outside of the block."""
    decoder = decoder_of(("a", pa.int64()))
    assert decoder is not None
    for starts, ends in (([0], [99]), ([-1], [2]), ([2], [1]), ([0, 1], [2, 3])):
        assert decoder.decode(Block("j", 0, b"{}{}", np.array(starts), np.array(ends))) is None
    decoded = decoder.decode(Block("j", 0, b"", np.empty(0, np.int64), np.empty(0, np.int64)))
    assert decoded is not None
    assert [len(column) for column in decoded[0]] == [0]


def test_columns_outlive_the_decoder() -> None:
    """The memory of the columns is freed with the last of them."""
    decoder = decoder_of(("s", pa.string()), ("l", pa.list_(pa.int32())))
    assert decoder is not None
    decoded = decoder.decode(block_of(*[b'{"s":"text","l":[1,2]}'] * 1000))
    assert decoded is not None
    texts, lists = decoded[0]
    del decoder, decoded
    gc.collect()
    item = lists.flatten()
    del lists
    assert (texts.to_pylist(), item.to_pylist()) == (["text"] * 1000, [1, 2] * 1000)


def test_why_it_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason is named, and records are read without it."""
    with without_library():
        assert library.library().absence == "switched off by GAZETTE_SPARK_NATIVE=0"
        assert decoder_of(("a", pa.int64())) is None
        assert rows(pa.schema([("a", pa.int64())]), b'{"a":1}') == [{"a": 1}]
    with monkeypatch.context() as patch:
        patch.setattr(library, "ABI_VERSION", 99)
        library.library.cache_clear()
        assert "has interface 2, and this package needs 99" in library.library().absence
        patch.setattr(library, "LIBRARY", tmp_path / "library.so")
        library.library.cache_clear()
        assert library.library().absence == "not built"
        library.LIBRARY.write_bytes(b"no library")
        library.library.cache_clear()
        assert "cannot be loaded" in library.library().absence
        assert decoder_of(("a", pa.int64())) is None
    library.library.cache_clear()
    assert library.library().functions is not None
