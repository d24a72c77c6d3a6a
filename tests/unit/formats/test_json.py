"""JSON records in each mode. Bad or hostile records give a defined result and never crash."""

from __future__ import annotations

import datetime
import decimal
import pickle
import sys
from typing import Any

import pyarrow as pa
import pytest

from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._formats.values import JsonDialect
from gazette_spark.errors import OptionError, RecordError
from tests.oracles.framings import line_spans

pytestmark = pytest.mark.usefixtures("native_library")

UTC = datetime.UTC
BOTH = pytest.mark.parametrize("fast", [pytest.param(True, id="fast"), pytest.param(False, id="exact")])


def block_of(*records: bytes, offset: int = 0) -> Block:
    data = b"".join(record + b"\n" for record in records)
    return Block("acme/events", offset, data, *line_spans(data))


def rows(
    columns: dict[str, pa.DataType], *records: bytes, mode: str = "PERMISSIVE", fast: bool = True
) -> list[dict[str, Any]]:
    schema = pa.schema(list(columns.items()))
    batches = list(JsonParser(JsonFormat(schema, mode), fast=fast).record_batches([block_of(*records)]))
    assert all(batch.schema.equals(schema, check_metadata=True) for batch in batches)
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, schema).to_pylist()
    return found


VALUES: list[tuple[pa.DataType, str, object]] = [
    (pa.bool_(), "true", True),
    (pa.int8(), "-128", -128),
    (pa.int64(), "9223372036854775807", 2**63 - 1),
    (pa.float32(), "0.1", 0.10000000149011612),
    (pa.float64(), "1e3", 1000.0),
    (pa.float64(), "-Infinity", float("-inf")),
    (pa.float64(), '"+INF"', float("inf")),
    (pa.float64(), "1e999", float("inf")),
    (pa.decimal128(10, 2), "1.25", decimal.Decimal("1.25")),
    (pa.decimal128(10, 2), '"1.25"', decimal.Decimal("1.25")),
    (pa.decimal128(10, 2), "1.255", decimal.Decimal("1.26")),
    (pa.decimal128(38, 18), "1e19", decimal.Decimal("1e19")),
    (pa.decimal128(10, 2), "1e-9999999", decimal.Decimal("0.00")),
    (pa.decimal128(10, 2), "0e-1000000000", decimal.Decimal("0.00")),
    (pa.decimal128(10, 2), "1" + "0" * 500 + "e-500", decimal.Decimal("1.00")),
    (pa.decimal128(38, 38), '"0.' + "9" * 38 + '"', decimal.Decimal("0." + "9" * 38)),
    (pa.string(), '"\\u00e9\\ud83d\\ude00"', "é😀"),
    (pa.string(), '"\\ud800x"', "?x"),
    (pa.string(), "1.50", "1.50"),
    (pa.string(), '{"a": [1,  2]}', '{"a": [1,  2]}'),
    (pa.binary(), '"aGk="', b"hi"),
    (pa.date32(), '"2024-02-29"', datetime.date(2024, 2, 29)),
    (pa.date32(), '"2024-2-9"', datetime.date(2024, 2, 9)),
    (
        pa.timestamp("us", "UTC"),
        '"2024-01-01T00:00:00.123456Z"',
        datetime.datetime(2024, 1, 1, 0, 0, 0, 123456, UTC),
    ),
    (pa.timestamp("us", "UTC"), '"2024-01-01 02:00:00+02:00"', datetime.datetime(2024, 1, 1, tzinfo=UTC)),
    (pa.timestamp("us", "UTC"), '"2024-01-01T00:00:00"', datetime.datetime(2024, 1, 1, tzinfo=UTC)),
    (
        pa.timestamp("us", "UTC"),
        '"2024-01-01T00:00:00.1234567Z"',
        datetime.datetime(2024, 1, 1, 0, 0, 0, 123456, UTC),
    ),
    (pa.timestamp("us", "UTC"), "86400", datetime.datetime(1970, 1, 2, tzinfo=UTC)),
    (pa.timestamp("us"), '"2024-01-01"', datetime.datetime(2024, 1, 1)),  # noqa: DTZ001 - the type has no zone
    (pa.list_(pa.int32()), "[1,null]", [1, None]),
    (pa.list_(pa.string()), '["a",{"b" : "]"},[ ],1.0]', ["a", '{"b" : "]"}', "[ ]", "1.0"]),
    (
        pa.map_(pa.string(), pa.string()),
        '{"k":{"x":[1, 2]},"l":true}',
        [("k", '{"x":[1, 2]}'), ("l", "true")],
    ),
    (pa.struct([("x", pa.date32())]), '{"x":"2024-01-01","y":1}', {"x": datetime.date(2024, 1, 1)}),
    (pa.map_(pa.string(), pa.int64()), '{"k":1,"l":null}', [("k", 1), ("l", None)]),
    (pa.list_(pa.struct([("b", pa.binary())])), '[{"b":"aGk="}]', [{"b": b"hi"}]),
]


@BOTH
@pytest.mark.parametrize(
    ("kind", "text", "expected"), VALUES, ids=[f"{kind}-{text[:20]}" for kind, text, _ in VALUES]
)
def test_values(kind: pa.DataType, text: str, expected: object, *, fast: bool) -> None:
    columns = {"a": kind, "_corrupt_record": pa.string()}
    records = (f'{{"a":{text}}}'.encode(), b'{"a":null}', b"{}")
    fine = {"_corrupt_record": None}
    assert rows(columns, *records, fast=fast) == [
        {"a": expected} | fine,
        {"a": None} | fine,
        {"a": None} | fine,
    ]


MISFITS = [
    (pa.bool_(), "1"),
    (pa.int8(), "128"),
    (pa.int64(), "9223372036854775808"),
    (pa.int64(), "1.0"),
    (pa.int64(), "9" * 5000),
    (pa.int64(), '"1"'),
    (pa.float64(), '"1.5"'),
    (pa.decimal128(10, 2), "100000E3"),
    (pa.decimal128(38, 18), "7.2e33"),
    (pa.decimal128(38, 18), '"7.2e33"'),
    (pa.decimal128(10, 2), "1e999999999999"),
    (pa.decimal128(10, 2), "1e-1000000000"),
    (pa.decimal128(10, 2), "0e-99999999999"),
    (pa.decimal128(38, 38), '"9.' + "9" * 38 + '"'),
    (pa.timestamp("us", "UTC"), '"2024-01-02 03:04:05 Europe' + "/Berlin" * 400 + '"'),
    (pa.binary(), '"aGk"'),
    (pa.date32(), "19000"),
    (pa.date32(), '"2024-02-30"'),
    (pa.timestamp("us", "UTC"), '"2024-01-01T24:00:00Z"'),
    (pa.timestamp("us", "UTC"), "9223372036854775807"),
    (pa.list_(pa.int32()), "1"),
    (pa.struct([("x", pa.int32())]), "[]"),
]


@BOTH
@pytest.mark.parametrize(("kind", "text"), MISFITS, ids=[f"{kind}-{text[:12]}" for kind, text in MISFITS])
def test_a_misfit_is_null_and_the_rest_of_its_row_is_kept(
    kind: pa.DataType, text: str, *, fast: bool
) -> None:
    record = f'{{"a":{text},"b":1}}'
    columns = {"a": kind, "b": pa.int64(), "_corrupt_record": pa.string()}
    assert rows(columns, record.encode(), fast=fast) == [{"a": None, "b": 1, "_corrupt_record": record}]


MALFORMED = {
    "empty": b"",
    "blank": b"  ",
    "carriage-return": b"\r",
    "null": b"null",
    "array": b'[{"a":1}]',
    "number": b"1",
    "text": b"Jan 01 kernel: hello",
    "cut": b'{"a":1',
    "two-values": b'{"a":1} {"a":2}',
    "two-values-touching": b'{"a":1}{"a":2}',
    "trailing-comma": b'{"a":1,}',
    "byte-order-mark": b'\xef\xbb\xbf{"a":1}',
    "invalid-utf8": b'{"a":1,"b":"\xff"}',
    "encoded-surrogate": b'{"b":"\xed\xa0\x80"}',
    "nul-between": b'{"a":1}\x00{"a":2}',
    "nul-in-string": b'{"b":"\x00"}',
    "control-character": b'{"b":"\x01"}',
    "open-arrays": b'{"b":' + b"[" * 1_000_000,
    "deep-in-a-column": b'{"a":' + b"[" * 600_000 + b"]" * 600_000 + b"}",
    "deep-at-the-top": b"[" * 600_000 + b"]" * 600_000,
}


@BOTH
@pytest.mark.parametrize("record", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_records_by_mode(record: bytes, *, fast: bool) -> None:
    columns = {"a": pa.int64(), "_offset": pa.int64(), "_corrupt_record": pa.string()}
    records = (b'{"a":1}', record, b'{"a":3}')
    good = [
        {"a": 1, "_offset": 0, "_corrupt_record": None},
        {"a": 3, "_offset": 9 + len(record), "_corrupt_record": None},
    ]
    bad = {"a": None, "_offset": 8, "_corrupt_record": record.decode("utf-8", "replace")}
    assert rows(columns, *records, fast=fast) == [good[0], bad, good[1]]
    assert rows(columns, *records, mode="DROPMALFORMED", fast=fast) == good
    with pytest.raises(RecordError, match="offset 8: malformed: ") as caught:
        rows(columns, *records, mode="FAILFAST", fast=fast)
    assert (caught.value.journal, caught.value.offset) == ("acme/events", 8)


@BOTH
@pytest.mark.parametrize("name", ["a", "other"])
def test_records_nest_1000_levels(name: str, *, fast: bool) -> None:
    """Deeper records are malformed for every parser, whether or not a column selects the nested value."""
    columns = {"a": pa.string(), "b": pa.int64(), "_corrupt_record": pa.string()}
    deep, deeper = ("[" * levels + "]" * levels for levels in (999, 1000))
    records = [f'{{"{name}":{value},"b":1}}' for value in (deep, deeper, f'"{"[{" * 2000}"')]
    fine = {"a": deep if name == "a" else None, "b": 1, "_corrupt_record": None}
    brackets = fine | {"a": "[{" * 2000 if name == "a" else None}
    malformed = {"a": None, "b": None, "_corrupt_record": records[1]}
    got = rows(columns, *(record.encode() for record in records), b"{}", fast=fast)
    assert got == [fine, malformed, brackets, dict.fromkeys(columns)]


def test_blocks_at_fault_change_none_that_follow() -> None:
    """A block that needs the reference parser must not change how later blocks are parsed."""
    columns = pa.schema([("a", pa.int64()), ("_corrupt_record", pa.string())])
    wrong, fine = b'{"a":"x"}', b'{"a":1}'
    blocks = [block_of(wrong, wrong)] * 3 + [block_of(fine, wrong, fine)] + [block_of(fine)] * 40
    batches = list(JsonParser(JsonFormat(columns)).record_batches(blocks))
    found = [row["a"] for batch in batches for row in batch.to_pylist()]
    assert found == [None] * 6 + [1, None, 1] + [1] * 40


def test_results_do_not_depend_on_the_stack() -> None:
    """The C scanner could exceed Python's remaining stack, so deep records must not depend on it."""
    array = "[" * 999 + "]" * 999
    record = f'{{"b":{array},"a":1,"a":2}}'.encode()

    def at_depth(frames: int) -> list[dict[str, Any]]:
        return at_depth(frames - 1) if frames else rows({"a": pa.int64(), "b": pa.string()}, record)

    assert at_depth(sys.getrecursionlimit() // 2) == [{"a": 2, "b": array}]


@BOTH
def test_values_on_several_lines_are_not_joined(*, fast: bool) -> None:
    columns = {"a": pa.int64()}
    assert rows(columns, b'{"a":', b"1}", b'{"a":2}', fast=fast) == [{"a": None}, {"a": None}, {"a": 2}]
    shifted = (b'{"a":1} {"a":2}', b'{"a":3}', b"", b'{"a":4}')
    assert [row["a"] for row in rows(columns, *shifted, fast=fast)] == [None, 3, None, 4]


@BOTH
def test_repeated_names_and_white_space(*, fast: bool) -> None:
    columns = {"a": pa.int64(), "_corrupt_record": pa.string()}
    records = (b'{"a":1,"a":2}', b' \t{"a" : 3}\r', b" " * 20 + b'{"a":4}', b'{"x":1,"x":2}')
    assert [row["a"] for row in rows(columns, *records, fast=fast)] == [2, 3, 4, None]
    assert {row["_corrupt_record"] for row in rows(columns, *records, fast=fast)} == {None}


def test_metadata_columns_stand_where_the_schema_has_them() -> None:
    columns = {"_offset": pa.int64(), "a": pa.int64(), "_journal": pa.string()}
    got = rows(columns, b'{"a":1,"_offset":99,"_journal":"x"}', b"oops")
    assert got == [
        {"_offset": 0, "a": 1, "_journal": "acme/events"},
        {"_offset": 36, "a": None, "_journal": "acme/events"},
    ]
    assert rows({"_offset": pa.int64()}, b"{}", b"{}") == [{"_offset": 0}, {"_offset": 3}]


@pytest.mark.parametrize("nested", [False, True])
def test_short_records_of_many_columns_give_small_batches(*, nested: bool) -> None:
    """Rows are bounded by the number of values, because a row of nulls takes a thousand times its record."""
    fields = [pa.field(f"c{number}", pa.int64()) for number in range(1000)]
    schema = pa.schema([("s", pa.struct(fields))] if nested else fields)
    block = block_of(*[b"{}"] * 10_000)
    found = list(JsonParser(JsonFormat(schema)).record_batches([block]))
    assert sum(record_batch.num_rows for record_batch in found) == 10_000
    assert max(record_batch.nbytes for record_batch in found) < 48 << 20


def test_malformed_records_are_counted() -> None:
    records = [b'{"a":1}', b"x"] * 500
    for mode, left in (("PERMISSIVE", 1000), ("DROPMALFORMED", 500)):
        parser = JsonParser(JsonFormat(pa.schema([("a", pa.int64())]), mode))
        batches = list(parser.record_batches([block_of(*records), block_of(b"y")]))
        assert sum(batch.num_rows for batch in batches) == left + (mode == "PERMISSIVE")
        assert parser.malformed == 501


GEOMETRY = pa.struct(
    [
        pa.field("srid", pa.int32(), nullable=False),
        pa.field("wkb", pa.binary(), nullable=False, metadata={"geometry": "true", "srid": "4326"}),
    ]
)
"""Arrow's type of a column GEOMETRY(4326), which only Spark 4.1 and later have."""


@pytest.mark.parametrize(
    ("schema", "mode", "option"),
    [
        pytest.param({"a": pa.int64()}, "permissive", "mode", id="mode-unknown"),
        pytest.param({}, "PERMISSIVE", "schema", id="no-column"),
        pytest.param({"a": pa.time64("us")}, "PERMISSIVE", "schema", id="time"),
        pytest.param({"a": pa.list_(pa.duration("us"))}, "PERMISSIVE", "schema", id="interval-in-an-array"),
        pytest.param({"a": pa.map_(pa.int64(), pa.string())}, "PERMISSIVE", "schema", id="map-from-numbers"),
        pytest.param({"a": pa.null()}, "PERMISSIVE", "schema", id="void"),
        pytest.param({"a": pa.list_(GEOMETRY)}, "PERMISSIVE", "schema", id="geometry-in-an-array"),
        pytest.param({"_offset": pa.string()}, "PERMISSIVE", "schema", id="offset-as-string"),
        pytest.param({"_corrupt_record": pa.int64()}, "PERMISSIVE", "schema", id="corrupt-record-as-number"),
    ],
)
def test_what_json_cannot_give_is_refused(schema: dict[str, pa.DataType], mode: str, option: str) -> None:
    with pytest.raises(OptionError) as caught:
        JsonFormat(pa.schema(list(schema.items())), mode)
    assert caught.value.option == option


def test_a_format_can_be_pickled() -> None:
    """Partitions carry the format to the executors."""
    wanted = JsonFormat(pa.schema([("a", pa.int64())]), "FAILFAST", None)
    assert pickle.loads(pickle.dumps(wanted)) == wanted


RESCUE = pa.schema(
    [
        ("id", pa.int64()),
        ("nest", pa.struct([("x", pa.int64())])),
        ("rest", pa.string()),
        ("_corrupt_record", pa.string()),
    ]
)


@BOTH
@pytest.mark.parametrize(
    ("record", "row"),
    [
        pytest.param(b'{"id":1,"nest":{"x":2}}', (1, {"x": 2}, None, None), id="all_fits"),
        pytest.param(b'{"id":1,"more":[1, 2]}', (1, None, '"more":[1, 2]', None), id="no_column"),
        pytest.param(b'{"id":"1"}', (None, None, '"id":"1"', None), id="another_type"),
        pytest.param(
            b'{"nest":{"x":"a","y":1}}', (None, {"x": None}, '"nest":{"x":"a","y":1}', None), id="deeper"
        ),
        pytest.param(b'{"nest":{"x":1,"y":1}}', (None, {"x": 1}, '"nest":{"x":1,"y":1}', None), id="partly"),
        pytest.param(b'{"id', (None, None, '"_record":"{\\"id"', '{"id'), id="no_object"),
    ],
)
def test_what_does_not_fit_is_rescued(fast: bool, record: bytes, row: tuple[object, ...]) -> None:
    values = list(row)
    if values[2] is not None:
        values[2] = '{"_journal":"acme/events","_offset":5,' + str(values[2]) + "}"
    parser = JsonParser(JsonFormat(RESCUE, rescued_column="rest"), fast=fast)
    (batch,) = parser.record_batches([block_of(record, offset=5)])
    assert [tuple(found.values()) for found in batch.to_pylist()] == [tuple(values)]
    assert parser.malformed == (values[3] is not None)


def test_only_what_is_no_json_is_dropped_where_the_rest_is_rescued() -> None:
    """The modes DROPMALFORMED and FAILFAST apply only to records that cannot be parsed at all."""
    wanted = JsonFormat(RESCUE, "DROPMALFORMED", rescued_column="rest")
    (batch,) = JsonParser(wanted).record_batches([block_of(b'{"id":"x"}', b"x", b'{"id":1}')])
    assert batch["id"].to_pylist() == [None, 1]
    wanted = JsonFormat(RESCUE, "FAILFAST", rescued_column="rest")
    assert len(list(JsonParser(wanted).record_batches([block_of(b'{"id":"x"}')]))) == 1


def test_a_column_cannot_be_corrupt_and_rescued() -> None:
    """One column would overwrite the other."""
    with pytest.raises(OptionError, match="rescuedDataColumn"):
        JsonFormat(RESCUE, corrupt_column="rest", rescued_column="rest")


@BOTH
@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        pytest.param(pa.list_(pa.int32()), '[1,"x"]', None, id="array"),
        pytest.param(pa.list_(pa.list_(pa.int32())), '[[1],["x"]]', None, id="array_of_arrays"),
        pytest.param(pa.map_(pa.string(), pa.int64()), '{"k":1,"l":"x"}', None, id="map"),
        pytest.param(pa.map_(pa.string(), pa.int64()), '{"k":"x","k":1}', None, id="map_with_a_key_twice"),
        pytest.param(
            pa.list_(pa.struct([("x", pa.int64()), ("y", pa.int64())])),
            '[{"x":1,"y":"x"},{"x":2}]',
            [{"x": 1, "y": None}, {"x": 2, "y": None}],
            id="array_of_structs",
        ),
        pytest.param(pa.struct([("x", pa.list_(pa.date32()))]), '{"x":["x"]}', {"x": None}, id="struct"),
    ],
)
def test_a_misfit_costs_the_field_it_is_in(
    kind: pa.DataType, text: str, expected: object, *, fast: bool
) -> None:
    columns = {"a": kind, "b": pa.int64(), "_corrupt_record": pa.string()}
    record = f'{{"a":{text},"b":1}}'
    assert rows(columns, record.encode(), fast=fast) == [{"a": expected, "b": 1, "_corrupt_record": record}]


@BOTH
def test_a_repeated_name_that_does_not_fit_leaves_what_was_there(*, fast: bool) -> None:
    """As in Spark, the earlier value stays. Null is a value too."""
    columns = {"a": pa.int64(), "_corrupt_record": pa.string()}
    records = (b'{"a":1,"a":"x"}', b'{"a":1,"a":null}', b'{"a":"x","a":1}')
    got = rows(columns, *records, fast=fast)
    assert [row["a"] for row in got] == [1, None, 1]
    assert [row["_corrupt_record"] is None for row in got] == [False, True, False]


@BOTH
def test_what_spark_takes_for_json(*, fast: bool) -> None:
    columns = {"a": pa.float64(), "b": pa.string()}
    records: tuple[bytes, ...] = (
        b"{'a':1.5,'b':'it\\'s \"x\"'}",
        b'{"a":-INF}',
        b'{"a":+Infinity}',
        b'{"a":Inf}',
        b'{"a":"Inf"}',
    )
    got = rows(columns, *records, fast=fast)
    assert got[0] == {"a": 1.5, "b": 'it\'s "x"'}
    assert [row["a"] for row in got[1:]] == [float("-inf"), float("inf"), None, None]
    strict = JsonDialect(allow_single_quotes=False, allow_non_numeric_numbers=False)
    wanted = JsonFormat(pa.schema(list(columns.items())), dialect=strict)
    records += (b'{"a":NaN}', b'{"a":"NaN"}', b'{"x":[Infinity],"a":1}', b'{"b":"NaN, Inf, Infinity"}')
    parser = JsonParser(wanted, fast=fast)
    (batch,) = parser.record_batches([block_of(*records)])
    assert batch.column("a").null_count == len(records)
    assert parser.malformed == len(records) - 1
