"""CSV fields are what Spark's ``from_csv`` makes of the same records, but for differences listed here.

The list is that of docs/options.md. Spark reads with ``escape='"'``: quotes inside quotes are doubled.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from gazette_spark.errors import RecordError
from gazette_spark.framing.base import Block
from gazette_spark.framing.csv_rows import CsvFormat, CsvParser
from gazette_spark.framing.csv_style import CsvStyle
from gazette_spark.framing.json_values import JsonDialect

TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,18)": pa.decimal128(38, 18),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
RFC_4180 = {"escape": '"'}

NUMBERS = [
    "1",
    "0",
    "-1",
    "+1",
    "1.0",
    "1.5",
    "1.",
    "1e3",
    "1E-3",
    ".5",
    "-.5",
    "127",
    "128",
    "-128",
    "-129",
    "32768",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "1,5",
    "1,234.50",
    "1_000",
    "0x10",
    "0X1F",
    "1f",
    "1d",
    "1L",
    "NaN",
    "nan",
    "NAN",
    "Inf",
    "inf",
    "-Inf",
    "+Inf",
    "Infinity",
    "-Infinity",
    "infinity",
    "INF",
    "+Infinity",
    "1e400",
    "1e39",
    "1e-50",
    "-0",
    "-0.0",
    "00012",
    "1.005",
    "1.015",
    "12345678.12",
    "123456789.12",
    "99999999.999",
    "99999999.994",
    "0.001",
    "1e2",
    "1E+2",
    "12345678901234567890.123456789012345678",
    "1e",
    "--1",
    "1-",
    "3.4028236e38",
    "16777217",
]
MOMENTS = [
    *[
        "2026-01-02",
        "2026-1-2",
        "2026-01",
        "2026",
        "2026-13-01",
        "2026-02-30",
        "2024-02-29",
        "2026-01-02T",
        "0001-01-01",
        "0000-01-01",
        "9999-12-31",
        "10000-01-01",
        "+10000-01-01",
        "-0001-01-01",
        "1582-10-10",
        "20260102",
        "2026/01/02",
        "01/02/2026",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05.678901Z",
        "2026-01-02T03:04:05.6789012Z",
        "2026-01-02T03:04:05+01:00",
        "2026-01-02T03:04:05+0100",
        "2026-01-02T03:04:05+01",
        "2026-01-02T03:04",
        "2026-01-02T03",
        "2026-01-02T24:00:00",
        "2026-01-02T23:59:60",
        "2026-01-02T03:04:05.",
        "1767323045",
        "2026-01-02T03:04:05.1",
        "2026-01-02T03:04:05,1",
        "2026-01-02t03:04:05z",
        "2026-01-02T03:04:05-18:00",
    ],
    "2026-01-02 ",
    "2026-01-02 03:04:05",
    "2026-01-02 3:4:5",
    "2026-01-02T03:04:05 UTC",
    "2026-01-02T03:04:05 Europe/Berlin",
    "2026-01-02T03:04:05+19:00",
    "2026-01-02T03:04Z",
    " 2026-01-02",
]
WORDS = ["", "a", "true", "TRUE", "True", "t", " 1", "1 ", "null", "NULL", "\\N", "ü", "  ", "\t", "now", "e"]

DIFFERENCES: list[tuple[str, str, object, object]] = [
    # Type, text, Spark's value, ours.
    ("string", "\0", None, "\0"),
    ("int", "\u0663", 3, None),
    ("decimal(10,2)", "\uff11", pa.scalar("1.00").cast(pa.decimal128(10, 2)).as_py(), None),
]
"""What the docs list: digits that are not ASCII's, and a field that is a NUL in quotes."""


def texts() -> list[str]:
    """Return texts of fields: listed ones, and those with a character or two changed."""
    chance = random.Random(7)
    listed = NUMBERS + MOMENTS + WORDS
    found = dict.fromkeys(listed)
    while len(found) < 1500:
        text = list(chance.choice(NUMBERS + MOMENTS))
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(text))
            text[at : at + chance.randint(0, 1)] = chance.choice([*"0123456789+-.:eE ,TZ/", ""])
            text = text or ["1"]
        found["".join(text)] = None
    return [text for text in found if not _differs(text)]


def _differs(text: str) -> bool:
    """Tell whether a text is of a kind that is listed: a time without a date."""
    return ":" in text[:4] or text.startswith("T")


def ours(records: Sequence[str], schema: pa.Schema, *, fast: bool = True, **options: Any) -> pa.Table:
    """Return our rows of some records."""
    raw = [record.encode() for record in records]
    ends = np.cumsum([len(each) + 1 for each in raw]) - 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    block = Block("log/a", 0, b"".join(each + b"\n" for each in raw), starts, ends)
    parser = CsvParser(CsvFormat(schema, **options), fast=fast)
    return pa.Table.from_batches(list(parser.record_batches([block])), schema)


def sparks(
    spark: SparkSession, records: Sequence[str], schemas: Sequence[str], options: dict[str, str]
) -> list[pa.StructArray]:
    """Return Spark's rows of the same records, by each of several schemas, in one job."""
    frame = (
        spark.createDataFrame(list(enumerate(records)), "i int, t string")
        .coalesce(1)
        .sortWithinPartitions("i")
    )
    columns = [f.from_csv("t", each, options).alias(f"r{index}") for index, each in enumerate(schemas)]
    return [column.combine_chunks() for column in frame.select(*columns).toArrow().columns]


def plain(values: pa.Array) -> list[Any]:
    """Return values for comparing: moments as numbers, since Python has not all years."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    return [str(each) if isinstance(each, float) else each for each in values.to_pylist()]


@pytest.fixture(scope="module")
def parsed(spark: SparkSession) -> tuple[list[str], dict[str, pa.StructArray]]:
    """Records of one field, as it is and in quotes, and what Spark makes of them by each type."""
    found = texts()
    records = [text for text in found if text and "," not in text] + [f'"{text}"' for text in found]
    schemas = [f"v {kind}, _corrupt_record string" for kind in TYPES]
    return records, dict(zip(TYPES, sparks(spark, records, schemas, RFC_4180), strict=True))


@pytest.mark.parametrize("fast", [pytest.param(True, id="fast"), pytest.param(False, id="exact")])
@pytest.mark.parametrize("kind", TYPES)
def test_fields_are_sparks(
    parsed: tuple[list[str], dict[str, pa.StructArray]], kind: str, fast: bool
) -> None:
    """Values, nulls, and which records are malformed, of every type that a field may have."""
    records, answers = parsed
    mine = ours(records, pa.schema([("v", TYPES[kind]), ("_corrupt_record", pa.string())]), fast=fast)
    theirs = answers[kind]
    got = list(
        zip(records, plain(mine["v"].combine_chunks()), mine["_corrupt_record"].to_pylist(), strict=True)
    )
    expected = list(
        zip(records, plain(theirs.field("v")), theirs.field("_corrupt_record").to_pylist(), strict=True)
    )
    wrong = [pair for pair in zip(got, expected, strict=True) if pair[0] != pair[1]]
    assert not wrong, f"{len(wrong)} of {len(records)} differ (ours, Spark's): {wrong[:10]}"


def test_listed_differences_are_there(spark: SparkSession) -> None:
    """Each with Spark's value and ours: when one goes, the list has to."""
    schemas = [f"v {kind}" for kind, *_ in DIFFERENCES]
    answers = sparks(spark, [f'"{text}"' for _, text, *_ in DIFFERENCES], schemas, RFC_4180)
    for index, (kind, text, theirs, mine) in enumerate(DIFFERENCES):
        assert plain(answers[index].field("v"))[index] == theirs, (kind, text)
        found = ours([f'"{text}"'], pa.schema([("v", TYPES[kind])]))
        assert plain(found["v"].combine_chunks()) == [mine], (kind, text)


RECORDS = [
    '"a"b,c', '"a" ,b', '"a" b,c', '"a","b"x', '"a"b"c"d,e', '""a,b', '"a""b"c,d', '"a"" ,b",c', '"a" \t',
    "a,b", "a", "a,b,c", ",", '"",""', '"a",b', '"a""b",c', 'a"b,c', ' "a",b', '"a,b"', '"a\nb",c', '""',
    '"""",b', '"a""",b', '"""a",b', "'a,b',c", "'a''b',c", "a;b", "'a;b';c", "a\tb", "a, b ,", "  ,  ",
    "a\\,b", "#a,b", "a\rb,c", 'a,"b\r\nc"', "a,b,", ",a,b", "x,NA", 'x,"NA"', 'x,""', "NA,x",
    "\x01,\x7f",
]  # fmt: skip
STYLES: dict[str, tuple[CsvStyle, dict[str, str]]] = {
    "default": (CsvStyle(), RFC_4180),
    "semicolon": (CsvStyle(";"), RFC_4180 | {"sep": ";"}),
    "tab": (CsvStyle("\t"), RFC_4180 | {"sep": "\\t"}),
    "single_quote": (CsvStyle(quote="'"), {"quote": "'", "escape": "'"}),
    "no_quote": (CsvStyle(quote=""), {"quote": ""}),
    "null_value": (CsvStyle(null_value="NA"), RFC_4180 | {"nullValue": "NA"}),
    "empty_value": (CsvStyle(empty_value="E"), RFC_4180 | {"emptyValue": "E"}),
    "both": (CsvStyle(null_value="NA", empty_value="E"), RFC_4180 | {"nullValue": "NA", "emptyValue": "E"}),
}


@pytest.mark.parametrize("fast", [pytest.param(True, id="fast"), pytest.param(False, id="exact")])
@pytest.mark.parametrize("name", STYLES)
def test_records_are_split_as_spark_does(spark: SparkSession, name: str, fast: bool) -> None:
    """By any separator and quote, with what stands for null, and too few or too many fields."""
    style, options = STYLES[name]
    records = [each for each in RECORDS if name != "no_quote" or "\n" not in each]
    (theirs,) = sparks(spark, records, ["a string, b string, _corrupt_record string"], options)
    schema = pa.schema([(column, pa.string()) for column in ("a", "b", "_corrupt_record")])
    mine = ours(records, schema, fast=fast, style=style).to_pylist()
    assert list(zip(records, mine, strict=True)) == list(zip(records, theirs.to_pylist(), strict=True))


PATTERNS = {
    "dateFormat": ("date", ["yyyy/MM/dd", "dd.MM.yyyy", "yyyyMMdd", "d/M/yyyy"]),
    "timestampFormat": (
        "timestamp",
        [
            "yyyy/MM/dd HH:mm:ss",
            "dd/MM/yyyy HH:mm",
            "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            "yyyy-MM-dd HH:mm:ss[.SSS]",
            "yyyy-MM-dd H:m:sXX",
        ],
    ),
    "timestampNTZFormat": (
        "timestamp_ntz",
        ["yyyy/MM/dd HH:mm:ss", "yyyy-MM-dd HH:mm:ss.SSSSSS", "d.M.yyyy H"],
    ),
}
STAMPS = [
    "2026/01/02", "2026/1/2", "26/01/02", "2026/13/01", "2026/02/30", " 2026/01/02", "12026/01/02",
    "02.01.2026", "2.1.2026", "31.02.2026", "20260102", "202601022", "2/1/2026", "02/01/2026",
    "2026/01/02 03:04:05", "", "2026/01/02 3:04:05", "2026/01/02 24:00:00", "2026/01/02 23:59:60",
    "02/01/2026 03:04", "2026-01-02", "2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.678+01:00",
    "2026-01-02T03:04:05.67Z", "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05.678+0100",
    "2026-01-02 03:04:05", "2026-01-02 03:04:05.678", "2026-01-02 03:04:05.678901", "2026-01-02 3:4:5Z",
    "2026-01-02 3:4:5-0330", "2.1.2026 7", "0001/01/01", "9999/12/31",
]  # fmt: skip


def test_patterns_read_what_spark_reads(spark: SparkSession) -> None:
    """Texts of a pattern and others, with dates that there are and those there are not."""
    for option, (kind, patterns) in PATTERNS.items():
        for pattern in patterns:
            (theirs,) = sparks(spark, STAMPS, [f"v {kind}, _corrupt_record string"], {option: pattern})
            given = JsonDialect(date_format=pattern, timestamp_format=pattern, timestamp_ntz_format=pattern)
            style = CsvStyle(times=given)
            schema = pa.schema([("v", TYPES[kind]), ("_corrupt_record", pa.string())])
            mine = ours(STAMPS, schema, style=style)
            got = zip(
                STAMPS, plain(mine["v"].combine_chunks()), mine["_corrupt_record"].to_pylist(), strict=True
            )
            expected = zip(
                STAMPS, plain(theirs.field("v")), theirs.field("_corrupt_record").to_pylist(), strict=True
            )
            assert list(got) == list(expected), pattern


MALFORMED = ["1,2", "x,2", "1,x", "1", "1,2,3", ",", "x", "3,4"]


def test_modes_do_what_they_do_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Partial rows, no rows, or an error, for fields that are none and for too few or too many."""
    (tmp_path / "records.csv").write_text("".join(f"{record}\n" for record in MALFORMED))
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32())])
    reader = spark.read.schema("a int, b int")
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        theirs = reader.csv(str(tmp_path / "records.csv"), mode=mode).collect()
        assert ours(MALFORMED, schema, mode=mode).to_pylist() == [row.asDict() for row in theirs]
    with pytest.raises(Exception, match=r"MALFORMED|FAILED_READ_FILE"):  # PySpark has no class for it.
        reader.csv(str(tmp_path / "records.csv"), mode="FAILFAST").collect()
    with pytest.raises(RecordError, match="field a is no int32"):
        ours(MALFORMED, schema, mode="FAILFAST")
