"""The JSON questions for Spark, our parsing of the same records, and the intended differences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._formats.json_infer import infer
from gazette_spark._formats.json_records import strict_text
from gazette_spark._formats.values import SPARK_DIALECT, JsonDialect
from tests.oracles.framings import line_spans
from tests.oracles.json_lines import lines, record_groups, schemas
from tests.oracles.spark_answers import CORRUPT, Answers, Ask, Question, rows_of, type_text

Row = tuple[Any, Any, bool]
"""Value of a field, value of another field, and whether the record was malformed."""
NAMED = {"columnNameOfCorruptRecord": CORRUPT}

PATTERNS = {
    "yyyy-MM-dd HH:mm:ss": "2024-01-02 03:04:05|2024-1-2 3:4:5|2024-01-02 03:04:05Z|12024-01-02 03:04:05|"
    "+12024-01-02 03:04:05|2024-02-30 00:00:00| 2024-01-02 03:04:05|-2024-01-02 03:04:05|0000-01-01 00:00:00",
    "dd/MM/yyyy HH:mm": "02/01/2024 03:04|2/1/2024 3:4|02/01/2024 24:00",
    "d/M/yy H:m": "02/01/24 03:04|2/1/99 3:4|2/1/2024 3:4|002/1/24 3:4",
    "yyyy-MM-dd'T'HH:mm:ss.SSSXXX": "2024-01-02T03:04:05.123Z|2024-01-02T03:04:05.12+01:00|"
    "2024-01-02T03:04:05.123456Z|2024-01-02T03:04:05Z|2024-01-02T03:04:05.1+0100|2024-01-02t03:04:05.123z|"
    "2024-01-02T03:04:05.1+18:00|2024-01-02T03:04:05.1+18:01|2024-01-02T03:04:05.1+01:60",
    "yyyy-MM-dd HH:mm:ss[.SSSSSS][XXX]": "2024-01-02 03:04:05|2024-01-02 03:04:05.1|2024-01-02 03:04:05Z|"
    "2024-01-02 03:04:05.123456+01:00|2024-01-02 03:04:05.1234567",
    "MMM d, yyyy h:mm:ss a": "Jan 2, 2024 3:04:05 PM|jan 2, 2024 3:04:05 pm|Jan 2, 2024 12:04:05 AM|"
    "Jan 2, 2024 12:04:05 PM|Jan 2, 2024 13:04:05 AM|Jan 2, 2024 0:04:05 AM|JANUARY 2, 2024 1:04:05 AM|"
    "Sep 2, 2024 1:04:05 AM|May 2, 2024 1:04:05 AM",
    "MMMM dd yyyy": "January 02 2024|Jan 02 2024|may 02 2024",
    "yyyyMMdd": "20240102|202401022|2024012|+120240102",
    "yyyyMMddHHmmss": "20240102030405|2024010203040",
    "yyyyMMdd'T'HHmmssX": "20240102T030405Z|20240102T030405+01|20240102T030405+0130|20240102T030405+01:30",
    "yyyy-MM-dd HH:mm:ss Z": "2024-01-02 03:04:05 +0100|2024-01-02 03:04:05 +01:00|2024-01-02 03:04:05 Z",
    "yyyy-MM-dd HH:mm:ss x": "2024-01-02 03:04:05 +01|2024-01-02 03:04:05 Z|2024-01-02 03:04:05 -0130",
    "yyyy-MM-dd HH:mm:ss xxx": "2024-01-02 03:04:05 +01:00|2024-01-02 03:04:05 +00:00|2024-01-02 03:04:05 Z",
    "yyyy-MM-dd HH:mm:ss XX": "2024-01-02 03:04:05 +0100|2024-01-02 03:04:05 Z",
    "yyyy": "2024|24|+12024",
    "yyyy-MM": "2024-01|2024-1|2024-13",
    "HH:mm:ss": "03:04:05|3:04:05|23:59:60",
    "MM/dd": "01/02|02/29",
    "yyyy-MM-dd HH:mm:ss.S": "2024-01-02 03:04:05.1|2024-01-02 03:04:05.12|2024-01-02 03:04:05.",
    "yyyy-MM-dd hh:mm": "2024-01-02 03:04|2024-01-02 12:04|2024-01-02 13:04|2024-01-02 00:04",
    "yyyy-MM-dd kk:mm": "2024-01-02 24:04|2024-01-02 00:04|2024-01-02 13:04",
    "yyyy-MM-dd KK:mm a": "2024-01-02 00:04 PM|2024-01-02 11:04 AM|2024-01-02 12:04 AM",
    "y-M-d": "2024-1-2|24-1-2|2024-01-02|-5-1-2|+5-1-2|2024-01-2",
    "yyyy-MM-dd''HH": "2024-01-02'03|2024-01-0203",
    "yyyy-MM-dd HH:mm:ss.SSSSSSSSS": "2024-01-02 03:04:05.123456789|2024-01-02 03:04:05.1",
    "'on' dd.MM.yyyy": "on 02.01.2024|ON 02.01.2024|02.01.2024",
}
"""Patterns, each with texts that match it or almost do."""

OPTIONS: dict[str, tuple[dict[str, str], JsonDialect]] = {
    "zone": ({"timeZone": "Europe/Paris"}, JsonDialect(time_zone="Europe/Paris")),
    "strict": (
        {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"},
        JsonDialect(allow_single_quotes=False, allow_non_numeric_numbers=False),
    ),
}
OPTION_LINES = (
    "{'v':1}", "{\"v\":'2024-01-02'}", '{"v":NaN}', '{"v":"NaN"}', '{"x":[Infinity]}', '{"v":"a\'b"}',
)  # fmt: skip
FILE_KINDS = ("string", "array<string>", "map<string,string>", "struct<x:int,y:string>")
INFERRED: dict[str, tuple[str, ...]] = {
    "empty": ('{"a":1}', "", '{"b":"x"}'),
    "malformed": ('{"a":1}', "oops", '{"a":2.5}', "null", "1"),
    "called_like_the_column": ('{"_corrupt_record":1}', "oops"),
}
INFERRING_MODES = ("PERMISSIVE", "DROPMALFORMED")

BIG_SECONDS = re.compile(r"(?<![\w.\"])-?\d{13,19}(?![\w.\"])")
DIFFERENCES: dict[str, Callable[[str, str, Row, Row], bool]] = {
    "an empty record is malformed": lambda line, _kind, _spark, _ours: not line.strip(),
    "what follows the object makes a record malformed": (
        lambda line, _kind, spark, ours: _is_followed(line) and ours == (None, None, True) and not spark[2]
    ),
    "no field of a record that is no JSON is kept": (
        lambda line, _kind, spark, ours: not is_json(line) and ours == (None, None, True) and spark[2]
    ),
    "128 to 255 is no tinyint": lambda line, kind, _spark, _ours: (
        "tinyint" in kind
        and re.search(r"(?<![\w.\"-])(12[89]|1[3-9]\d|2[0-4]\d|25[0-5])(?![\w.\"])", line) is not None
    ),
    "seconds past the range of timestamps are null": (
        lambda line, kind, _spark, _ours: "timestamp" in kind and BIG_SECONDS.search(line) is not None
    ),
    "a time of day is not a timestamp": lambda line, kind, _spark, _ours: (
        "timestamp" in kind and re.search(r"[\"']\s*T?\d{1,2}:\d{1,2}", line) is not None
    ),
    "a number of days in quotes is no date": lambda line, kind, _spark, _ours: (
        "date" in kind and re.search(r"[\"'](?:[+-]?\d{1,12}|\\u0663)[\"']", line) is not None
    ),
    "Java's short names of zones are unknown": lambda line, kind, _spark, ours: (
        "timestamp" in kind and "PST" in line and ours[2]
    ),
    "a control character in base64 is as wrong as elsewhere": lambda line, kind, _spark, ours: (
        "binary" in kind and "\x01" in line and ours == (None, None, True)
    ),
    "base64 that ends too early costs its field only": lambda _line, kind, spark, ours: (
        "binary" in kind and spark == (None, None, True) and ours[2]
    ),
}
"""Known differences, by name: predicates of the line, the type, Spark's row and our row."""


def is_json(line: str) -> bool:
    """Return whether a line is an object of strict JSON; NaN and the infinities are allowed."""
    try:
        return isinstance(json.loads(line), dict)
    except (json.JSONDecodeError, RecursionError):
        return False


def _is_followed(line: str) -> bool:
    try:
        json.loads(strict_text(line, SPARK_DIALECT))
    except json.JSONDecodeError as error:
        return error.msg == "Extra data"
    return False


def asks(kinds: list[str], options: dict[str, str]) -> dict[str, Ask]:
    return {kind: Ask(f"v {kind}, w int, {CORRUPT} string", NAMED | options) for kind in kinds}


def rows_question(seed: int, count: int) -> Question:
    """Ask for lines of all kinds by all types except strings, which ``from_json`` reformats."""
    kinds = [kind for kind in schemas(seed, count=5) if "string" not in kind.replace("map<string", "")]
    return Question("from_json", tuple(lines(seed, count)), asks(kinds, {}))


def options_question(name: str) -> Question:
    found = [line for line in lines(seed=2, count=0) if "'" not in line or name == "zone"]
    kinds = ["double", "timestamp", "array<timestamp>", "timestamp_ntz"]
    return Question("from_json", (*found, *OPTION_LINES), asks(kinds, OPTIONS[name][0]))


def file_question(seed: int, count: int) -> Question:
    """Ask for a file of objects by types with strings.

    Unlike ``from_json``, ``read.json`` keeps other values as they are written.
    """
    found = [line for line in lines(seed, count) if line.strip() and is_json(line)]
    found = [line for line in found if strict_text(line, SPARK_DIALECT) == line]
    given = {kind: Ask(f"v {kind}, w int, {CORRUPT} string", {"lineSep": "\n"}) for kind in FILE_KINDS}
    struct = given[FILE_KINDS[-1]].ddl
    given["DROPMALFORMED"] = Ask(struct, {"lineSep": "\n", "mode": "DROPMALFORMED"})
    given["FAILFAST"] = Ask(struct.rpartition(",")[0], {"lineSep": "\n", "mode": "FAILFAST"})
    return Question("read_json", tuple(found), given)


def patterns_question() -> Question:
    """Ask for dates and timestamps by custom patterns, with texts that match or almost match them."""
    texts = map(json.dumps, sorted({text for texts in PATTERNS.values() for text in texts.split("|")}))
    found = [f'{{"t":{text},"d":{text},"n":{text},"l":[{text}]}}' for text in texts]
    ddl = f"t timestamp, d date, n timestamp_ntz, l array<timestamp>, {CORRUPT} string"
    return Question(
        "from_json",
        tuple(found),
        {
            p: Ask(
                ddl,
                NAMED
                | {"timestampFormat": p, "dateFormat": p, "timestampNTZFormat": p, "timeZone": "-01:30"},
            )
            for p in PATTERNS
        },
    )


def types_question(seed: int, count: int) -> Question:
    """Ask for the types of records of all kinds, alone and in groups of lines.

    No object repeats a name.
    """
    groups = record_groups(seed, count)
    return Question("schema_of_json", tuple("\n".join(group) for group in groups), {"type": Ask("", {})})


def questions() -> dict[str, Question]:
    return {
        "rows": rows_question(seed=1, count=200),
        **{f"option {name}": options_question(name) for name in OPTIONS},
        "file": file_question(seed=3, count=300),
        "patterns": patterns_question(),
        "types": types_question(seed=4, count=60),
        **{
            f"inferred {name}": Question(
                "infer_json", records, {mode: Ask("", {"mode": mode}) for mode in INFERRING_MODES}
            )
            for name, records in INFERRED.items()
        },
    }


def block_of(records: tuple[str, ...]) -> Block:
    data = b"".join(record.encode() + b"\n" for record in records)
    return Block("j", 0, data, *line_spans(data))


def parsed(
    records: tuple[str, ...],
    schema: pa.Schema,
    dialect: JsonDialect,
    *,
    mode: str = "PERMISSIVE",
    fast: bool = True,
) -> pa.Table:
    parser = JsonParser(JsonFormat(schema, mode, CORRUPT, dialect=dialect), fast=fast)
    return pa.Table.from_batches(parser.record_batches([block_of(records)]), schema)


def ours(
    records: tuple[str, ...], schema: pa.Schema, dialect: JsonDialect, *, fast: bool = True
) -> list[list[Any]]:
    return rows_of(parsed(records, schema, dialect, fast=fast), records)


def plain(value: Any) -> Any:
    """Return an encoded value without signed zeros and with each map key once."""
    match value:
        case float():
            return value + 0.0
        case {"map": list() as pairs}:
            return {key: plain(item) for key, item in pairs}
        case list() as items:
            return [plain(item) for item in items]
        case dict() as fields:
            return {name: plain(item) for name, item in fields.items()}
    return value


def plain_row(row: list[Any]) -> Row:
    """Return a row of ``v``, ``w`` and the corrupt record for comparing by ``repr``."""
    value, other, corrupt = row
    return plain(value), other, corrupt is not None


def malformed_as_nulls(row: Row) -> Row:
    """Return the row without the text of a malformed record."""
    return (None, None, True) if row[2] else row


def compare(
    records: tuple[str, ...], kind: str, theirs: list[Row], mine: list[Row], shown: set[str]
) -> Iterator[str]:
    """Yield the rows that differ by mistake; record the intended differences that occur."""
    for line, spark_row, our_row in zip(records, theirs, mine, strict=True):
        if repr(spark_row) == repr(our_row):
            continue
        names = {name for name, shows in DIFFERENCES.items() if shows(line, kind, spark_row, our_row)}
        shown |= names
        if not names:
            yield f"{kind}: {line!r}: Spark {spark_row!r}, ours {our_row!r}"


def wrong_rows(question: Question, answers: Answers, shown: set[str]) -> Iterator[str]:
    """Yield the rows of lines that differ by mistake, from the exact and the fast parser."""
    for kind in question.asks:
        schema = answers.arrow_schema(kind)
        theirs = [plain_row(row) for row in answers.found[kind]]
        mine = [plain_row(row) for row in ours(question.records, schema, SPARK_DIALECT, fast=False)]
        yield from compare(question.records, kind, theirs, mine, shown)
        fine = [at for at, row in enumerate(mine) if not row[2]]
        again = ours(tuple(question.records[at] for at in fine), schema, SPARK_DIALECT)
        for at, row in zip(fine, again, strict=True):
            if repr(plain_row(row)) != repr(mine[at]):
                yield f"{kind}: {question.records[at]!r}: exact {mine[at]!r}, fast {row!r}"


def wrong_file_rows(question: Question, answers: Answers) -> Iterator[str]:
    """Yield the rows of a file that differ by mistake."""
    for kind in FILE_KINDS:
        mine = ours(question.records, answers.arrow_schema(kind), SPARK_DIALECT)
        theirs = [plain_row(row) for row in answers.found[kind]]
        yield from compare(question.records, kind, theirs, [plain_row(row) for row in mine], set())


def wrong_option_rows(name: str, question: Question, answers: Answers) -> Iterator[str]:
    """Yield the rows under an option that differ by mistake; malformed records count as nulls."""
    for kind in question.asks:
        theirs = [malformed_as_nulls(plain_row(row)) for row in answers.found[kind]]
        for fast in (True, False):
            found = ours(question.records, answers.arrow_schema(kind), OPTIONS[name][1], fast=fast)
            mine = [malformed_as_nulls(plain_row(row)) for row in found]
            yield from compare(question.records, kind, theirs, mine, set())


def wrong_types(question: Question, answers: Answers) -> Iterator[str]:
    """Yield the groups of records whose inferred type differs; Spark returns None for no fields."""
    for record, theirs in zip(question.records, answers.found["type"], strict=True):
        mine = infer([block_of(tuple(record.split("\n")))])
        found = type_text(from_arrow_schema(mine))
        if found != (theirs or "struct<>"):
            yield f"{record!r}: Spark {theirs!r}, ours {found!r}"
