"""How CSV records become columns: values, headers, and records that do not fit."""

from __future__ import annotations

import datetime
import decimal
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gazette_spark._formats.csv import CSV, CsvFraming
from gazette_spark._formats.csv_parser import CsvFormat, CsvParser, CsvStyle
from gazette_spark._formats.framing import Block
from gazette_spark._formats.values import JsonDialect
from gazette_spark.errors import OptionError, RecordError

UTC = datetime.UTC
BOTH = pytest.mark.parametrize("fast", [pytest.param(True, id="fast"), pytest.param(False, id="exact")])
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("_corrupt_record", pa.string())])


def rows(
    schema: pa.Schema,
    data: bytes,
    *,
    offset: int = 0,
    header: bool = False,
    fast: bool = True,
    framing: CsvFraming = CSV,
    **options: Any,
) -> list[tuple[object, ...]]:
    cut = framing.cut(data, offset)
    block = Block("acme/table", offset, data, cut.starts, cut.ends)
    parser = CsvParser(CsvFormat(schema, **options), header=header, fast=fast)
    table = pa.Table.from_batches(list(parser.record_batches([block])), schema)
    return [tuple(row.values()) for row in table.to_pylist()]


@BOTH
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        pytest.param(pa.bool_(), "TRUE", True, id="boolean"),
        pytest.param(pa.bool_(), "1", None, id="no_boolean"),
        pytest.param(pa.int8(), "-128", -128, id="tinyint"),
        pytest.param(pa.int8(), "128", None, id="out_of_range"),
        pytest.param(pa.int32(), "0x1F", None, id="hexadecimal"),
        pytest.param(pa.float64(), "1e3", 1000.0, id="double"),
        pytest.param(pa.float64(), "-Infinity", float("-inf"), id="infinity"),
        pytest.param(pa.decimal128(10, 2), "1.255", decimal.Decimal("1.26"), id="decimal_is_rounded"),
        pytest.param(pa.decimal128(10, 2), "1e-9999999", decimal.Decimal("0.00"), id="decimal_small"),
        pytest.param(pa.decimal128(10, 2), "1e-1000000000", None, id="decimal_too_small"),
        pytest.param(pa.decimal128(10, 2), "1" + "0" * 200, None, id="decimal_past_128_bits"),
        pytest.param(pa.decimal128(10, 2), "1" + "0" * 200 + "e-200", decimal.Decimal(1), id="decimal_long"),
        pytest.param(pa.string(), " a ", " a ", id="blanks_belong_to_a_field"),
        pytest.param(pa.string(), '"a ""b"", \n"', 'a "b", \n', id="quotes"),
        pytest.param(pa.binary(), "hi", b"hi", id="binary"),
        pytest.param(pa.date32(), "2024-2-9", datetime.date(2024, 2, 9), id="date"),
        pytest.param(
            pa.timestamp("us", "UTC"),
            "2024-02-29T01:00:00+01:00",
            datetime.datetime(2024, 2, 29, tzinfo=UTC),
            id="zone",
        ),
        pytest.param(
            pa.timestamp("us", "UTC"),
            "2024-02-29 00:00:00",
            datetime.datetime(2024, 2, 29, tzinfo=UTC),
            id="no_zone_is_utc",
        ),
        pytest.param(pa.timestamp("us"), "2024-02-29", datetime.datetime(2024, 2, 29), id="ntz"),  # noqa: DTZ001 - without a zone on purpose.
    ],
)
def test_values(fast: bool, kind: pa.DataType, text: str, value: object) -> None:
    schema = pa.schema([("v", kind), ("w", pa.int64()), ("_corrupt_record", pa.string())])
    assert rows(schema, f"{text},7\r\n,8\n".encode(), fast=fast) == [
        (value, 7, None if value is not None else f"{text},7\r"),
        (None, 8, None),
    ]


@BOTH
def test_a_wrong_number_of_fields_is_malformed(fast: bool) -> None:
    found = rows(SCHEMA, b"1,a\n2\n3,b,c\n4,d\n", fast=fast)
    assert found == [(1, "a", None), (2, None, "2"), (3, "b", "3,b,c"), (4, "d", None)]


def test_modes() -> None:
    assert rows(SCHEMA, b"1,a\nx,b\n", mode="DROPMALFORMED") == [(1, "a", None)]
    with pytest.raises(RecordError, match="field id does not fit int64") as caught:
        rows(SCHEMA, b"1,a\nx,b\n", offset=100, mode="FAILFAST")
    assert caught.value.offset == 104


@BOTH
def test_headers_are_left_out_wherever_they_are(fast: bool) -> None:
    data = b'id,text\n1,a\n"id","text"\r\n2,b\n'
    assert rows(SCHEMA, data, header=True, fast=fast) == [(1, "a", None), (2, "b", None)]
    assert rows(SCHEMA, data, header=True, fast=fast, mode="FAILFAST", offset=9) == [
        (1, "a", None),
        (2, "b", None),
    ]
    assert len(rows(SCHEMA, data, fast=fast)) == 4


@BOTH
@pytest.mark.parametrize(
    "header", [pytest.param("id,text", id="plain"), pytest.param('"id","text"', id="quoted")]
)
def test_a_header_may_begin_with_a_byte_order_mark(fast: bool, header: str) -> None:
    """Concatenated files each have a byte order mark, and their records give the same rows."""
    file = f"\ufeff{header}\n" + "1,a\n" * 20
    assert rows(SCHEMA, file.encode() * 3, header=True, fast=fast) == [(1, "a", None)] * 60


def test_the_journals_first_record_may_have_been_left_out_of_a_block() -> None:
    """Messages of an open transaction appear as rows after the header, in the same block."""
    data = b"\r\nid,text\n1,a\n2,b\n"
    cut = CSV.cut(data, 0)
    block = Block("acme/table", 0, data, cut.starts, cut.ends).only(np.array([False, True, True]))
    parser = CsvParser(CsvFormat(SCHEMA), header=True)
    (found,) = parser.record_batches([block])
    assert found.column("id").to_pylist() == [1, 2]


def test_a_header_of_other_columns_is_an_error() -> None:
    with pytest.raises(
        RecordError, match=r"is not the header that header=true expects: it has \['text', 'id'\], not"
    ):
        rows(SCHEMA, b"\ntext,id\na,1\n", header=True)
    assert rows(SCHEMA, b"text,id\n", header=True, offset=5) == [(None, "id", "text,id")]


@pytest.mark.parametrize(
    ("record", "malformed"),
    [
        pytest.param('7,"' + "x" * (1 << 20) + '"b', False, id="field"),
        pytest.param("7,x" + "," * (1 << 17), True, id="fields"),
    ],
)
def test_a_long_record_takes_a_few_times_its_bytes(record: str, malformed: bool) -> None:
    """A record with an unbalanced quote or too many fields is read alone and may have the maximum length."""
    rows(SCHEMA, b'7,"a"b\n')
    tracemalloc.start()
    try:
        found = rows(SCHEMA, f"{record}\n".encode())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [(7, "x" if malformed else record[2:], record if malformed else None)]
    assert peak < 20 * len(record)


@pytest.mark.timeout(60)
def test_records_that_are_all_malformed_are_read_by_column() -> None:
    """A type that fits no value, or a column that no record has, must not make a journal unreadable."""
    count = 100_000
    schema = pa.schema([("v", pa.bool_()), ("w", pa.int64()), ("_corrupt_record", pa.string())])
    assert rows(schema, b"yes\n" * count) == [(None, None, "yes")] * count
    assert rows(schema, b"no,x\n" * count) == [(None, None, "no,x")] * count


def test_many_records_that_do_not_fit_keep_their_places() -> None:
    data = b"".join(b"%s,%d\n" % (b"x" if n % 97 == 0 else b"%d" % n, n) for n in range(5000))
    found = rows(SCHEMA, data)
    assert [row[0] for row in found] == [None if n % 97 == 0 else n for n in range(5000)]
    assert [row[1] for row in found] == [str(n) for n in range(5000)]
    assert sum(row[2] is not None for row in found) == 52


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        pytest.param({"a": pa.list_(pa.int64())}, {}, id="nested"),
        pytest.param({"_offset": pa.int64()}, {}, id="no_field"),
        pytest.param({"a": pa.int64()}, {"rescued_column": "b"}, id="rescued"),
    ],
)
def test_what_csv_cannot_give_is_refused(schema: dict[str, pa.DataType], options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        CsvFormat(pa.schema(list(schema.items())), **options)


TEXTS = pa.schema([("a", pa.string()), ("b", pa.string()), ("_corrupt_record", pa.string())])


@BOTH
@pytest.mark.parametrize(
    ("style", "data", "expected"),
    [
        pytest.param(CsvStyle(), b',""\n', (None, None), id="empty_fields_are_null"),
        pytest.param(CsvStyle(null_value="NA"), b'"","NA"\n', ("", None), id="null_value_in_quotes"),
        pytest.param(CsvStyle(null_value="NA"), b"NA,\n", (None, None), id="null_value"),
        pytest.param(CsvStyle(empty_value="E"), b',""\n', (None, "E"), id="empty_value"),
        pytest.param(CsvStyle(null_value="E", empty_value="E"), b'"",x\n', (None, "x"), id="empty_is_null"),
        pytest.param(CsvStyle(";", "'"), b"'a;''b\n';\"c,\"\n", ("a;'b\n", '"c,"'), id="separator_and_quote"),
        pytest.param(CsvStyle("\t", ""), b'"a"\tb,"\n', ('"a"', 'b,"'), id="no_quote"),
    ],
)
def test_styles(fast: bool, style: CsvStyle, data: bytes, expected: tuple[object, ...]) -> None:
    framing = CsvFraming(style.separator, style.quote)
    assert rows(TEXTS, data, fast=fast, framing=framing, style=style) == [(*expected, None)]


@BOTH
@pytest.mark.parametrize(
    ("pattern", "kind", "text", "value"),
    [
        pytest.param("dd.MM.yyyy", pa.date32(), "09.02.2024", datetime.date(2024, 2, 9), id="date"),
        pytest.param("yyyyMMdd", pa.date32(), "20240209", datetime.date(2024, 2, 9), id="no_separators"),
        pytest.param("d/M/yyyy", pa.date32(), "9/12/2024", datetime.date(2024, 12, 9), id="one_digit"),
        pytest.param("dd.MM.yyyy", pa.date32(), "9.2.2024", None, id="too_few_digits"),
        pytest.param("dd.MM.yyyy", pa.date32(), "30.02.2024", None, id="no_day"),
        pytest.param("dd.MM.yyyy", pa.date32(), "2024-02-09", None, id="form_of_casts"),
        pytest.param(
            "yyyy-MM-dd 'at' HH:mm:ss[.SSS]",
            pa.timestamp("us"),
            "2024-02-09 at 01:02:03.5",
            datetime.datetime(2024, 2, 9, 1, 2, 3, 500_000),  # noqa: DTZ001 - without a zone on purpose.
            id="fraction",
        ),
        pytest.param(
            "yyyy-MM-dd HH:mm:ss[.SSS]",
            pa.timestamp("us", "UTC"),
            "2024-02-09 01:02:03",
            datetime.datetime(2024, 2, 9, 1, 2, 3, tzinfo=UTC),
            id="left_out",
        ),
        pytest.param(
            "dd/MM/yyyy HH:mmXXX",
            pa.timestamp("us", "UTC"),
            "09/02/2024 01:02+01:00",
            datetime.datetime(2024, 2, 9, 0, 2, tzinfo=UTC),
            id="zone",
        ),
        pytest.param("yyyy-MM-dd HH", pa.timestamp("us"), "2024-02-09 24", None, id="no_hour"),
    ],
)
def test_patterns(fast: bool, pattern: str, kind: pa.DataType, text: str, value: object) -> None:
    given = JsonDialect(date_format=pattern, timestamp_format=pattern, timestamp_ntz_format=pattern)
    style = CsvStyle(times=given)
    schema = pa.schema([("v", kind), ("w", pa.int64()), ("_corrupt_record", pa.string())])
    assert rows(schema, f"{text},7\n,8\n".encode(), fast=fast, style=style) == [
        (value, 7, None if value is not None else f"{text},7"),
        (None, 8, None),
    ]
