"""The CSV questions for Spark, and our parsing of the same records.

Spark reads with ``escape='"'``: quotes inside quotes are doubled.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gazette_spark._formats.csv_parser import CsvFormat, CsvParser, CsvStyle
from gazette_spark._formats.framing import Block
from gazette_spark._formats.values import JsonDialect
from tests.oracles.spark_answers import CORRUPT, Answers, Ask, Question, rows_of

KINDS = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,18)",
    "string", "binary", "date", "timestamp", "timestamp_ntz",
)  # fmt: skip
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
    ("decimal(10,2)", "\uff11", "1.00", None),
]
"""Differences listed in docs/reference/formats.md: digits outside ASCII, and a field that is a quoted NUL."""

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
    "null_value": (CsvStyle(null_value="NA"), RFC_4180 | {"nullValue": "NA"}),
    "empty_value": (CsvStyle(empty_value="E"), RFC_4180 | {"emptyValue": "E"}),
    "both": (CsvStyle(null_value="NA", empty_value="E"), RFC_4180 | {"nullValue": "NA", "emptyValue": "E"}),
}
NO_QUOTE = (CsvStyle(quote=""), {"quote": ""})
"""Style without quotes, for single-line records only: a newline ends a record."""

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

GOLDEN_TEXTS = 400
"""Number of changed texts in the golden file; the soak draws more, different texts."""

MALFORMED = ("1,2", "x,2", "1,x", "1", "1,2,3", ",", "x", "3,4")
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


LONG_EXPONENT = re.compile(r"[eE][+-]?\d{5}")
"""Pattern of exponents whose power of ten Spark computes digit by digit, in minutes or longer."""


def texts(seed: int, count: int) -> list[str]:
    """Return the listed field texts, and ``count`` variants with one or two characters changed."""
    chance = random.Random(seed)
    found = dict.fromkeys(NUMBERS + MOMENTS + WORDS)
    wanted = len(found) + count
    while len(found) < wanted:
        text = list(chance.choice(NUMBERS + MOMENTS))
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(text))
            text[at : at + chance.randint(0, 1)] = chance.choice([*"0123456789+-.:eE ,TZ/", ""])
            text = text or ["1"]
        found["".join(text)] = None
    return [text for text in found if not _differs(text) and not LONG_EXPONENT.search(text)]


def _differs(text: str) -> bool:
    """Return whether a text is of a kind that the list of differences covers: a time without a date."""
    return ":" in text[:4] or text.startswith("T")


def fields(seed: int, count: int) -> Question:
    """Return records of one field, bare and quoted, to be read by each type."""
    found = texts(seed, count)
    records = [text for text in found if text and "," not in text] + [f'"{text}"' for text in found]
    asks = {kind: Ask(f"v {kind}, {CORRUPT} string", RFC_4180) for kind in KINDS}
    return Question("from_csv", tuple(records), asks)


def questions() -> dict[str, Question]:
    split = f"a string, b string, {CORRUPT} string"
    one_line = tuple(record for record in RECORDS if "\n" not in record)
    return {
        "fields": fields(seed=7, count=GOLDEN_TEXTS),
        "differences": Question(
            "from_csv",
            tuple(f'"{text}"' for _, text, *_ in DIFFERENCES),
            {kind: Ask(f"v {kind}", RFC_4180) for kind, *_ in DIFFERENCES},
        ),
        "styles": Question(
            "from_csv", tuple(RECORDS), {name: Ask(split, given) for name, (_, given) in STYLES.items()}
        ),
        "no_quote": Question("from_csv", one_line, {"no_quote": Ask(split, NO_QUOTE[1])}),
        "patterns": Question(
            "from_csv",
            tuple(STAMPS),
            {
                f"{kind} {pattern}": Ask(f"v {kind}, {CORRUPT} string", {option: pattern})
                for option, (kind, patterns) in PATTERNS.items()
                for pattern in patterns
            },
        ),
        "modes": Question(
            "read_csv", MALFORMED, {mode: Ask("a int, b int", {"mode": mode}) for mode in MODES}
        ),
    }


def style_of(ask: Ask) -> CsvStyle:
    for style, options in (*STYLES.values(), NO_QUOTE):
        if dict(ask.options) == options:
            return style
    for option in PATTERNS:
        if pattern := ask.options.get(option):
            times = JsonDialect(date_format=pattern, timestamp_format=pattern, timestamp_ntz_format=pattern)
            return CsvStyle(times=times)
    return CsvStyle()


def ours(
    question: Question, answers: Answers, key: str, *, fast: bool = True, mode: str = "PERMISSIVE"
) -> list[list[Any]]:
    schema = answers.arrow_schema(key)
    table = parsed(question.records, schema, fast=fast, mode=mode, style=style_of(question.asks[key]))
    return rows_of(table, question.records if mode == "PERMISSIVE" else None)


def parsed(records: Sequence[str], schema: pa.Schema, *, fast: bool = True, **options: Any) -> pa.Table:
    raw = [record.encode() for record in records]
    ends = np.cumsum([len(each) + 1 for each in raw]) - 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    block = Block("log/a", 0, b"".join(each + b"\n" for each in raw), starts, ends)
    parser = CsvParser(CsvFormat(schema, **options), fast=fast)
    return pa.Table.from_batches(list(parser.record_batches([block])), schema)


def wrong_rows(question: Question, answers: Answers, key: str, *, fast: bool) -> Iterator[str]:
    """Yield the records whose row differs from Spark's."""
    mine = ours(question, answers, key, fast=fast)
    for record, spark_row, our_row in zip(question.records, answers.found[key], mine, strict=True):
        if repr(spark_row) != repr(our_row):
            yield f"{key}: {record!r}: Spark {spark_row!r}, ours {our_row!r}"
