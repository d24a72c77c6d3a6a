"""Records of ``format=json`` give the rows that Spark's own ``from_json`` and ``spark.read.json`` give.

Where they differ on purpose, the difference has a name in :data:`DIFFERENCES` and a sentence in
``docs/formats.md``, and its rows are left out of the comparison; a difference that no row shows any more
fails, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, StringType, StructType

from gazette_spark.errors import RecordError
from gazette_spark.framing.base import Block
from gazette_spark.framing.json import JsonFormat, JsonParser
from gazette_spark.framing.json_exact import ExactReader
from gazette_spark.framing.json_infer import infer
from gazette_spark.framing.json_lenient import strict_text
from gazette_spark.framing.json_values import SPARKS, JsonDialect
from gazette_spark.framing.lines import cut
from tests.oracles.json_lines import lines, record_groups, schemas

CORRUPT = "_corrupt_record"
Row = tuple[Any, Any, bool]
"""A field's value, another field's, and whether the record was malformed."""


def numbers(kind: pa.DataType) -> pa.DataType:
    """Return a type with days and microseconds in place of dates and timestamps: Python has no year 0."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(numbers(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(numbers(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(numbers(kind.item_type)))
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def plain(value: Any) -> Any:
    """Return a value in which maps are dicts and zeros have no sign."""
    match value:
        case float():
            return value + 0.0
        case [(str(), _), *_] as pairs:
            return {key: plain(item) for key, item in pairs}
        case list() as items:
            return [plain(item) for item in items] or "empty"
        case dict() as fields:
            return {name: plain(item) for name, item in fields.items()} or "empty"
    return value


def rows_of(value: pa.ChunkedArray | pa.Array, other: pa.Array, corrupt: pa.Array) -> list[Row]:
    """Return rows that can be compared by ``repr``."""
    values = value.cast(numbers(value.type)).to_pylist()
    bad = corrupt.is_valid().to_pylist()
    return [(plain(v), w, c) for v, w, c in zip(values, other.to_pylist(), bad, strict=True)]


def ours(found: list[str], kind: str, dialect: JsonDialect, *, fast: bool = True) -> list[Row]:
    """Return the rows of lines read by this package as one block."""
    table = parsed(found, kind, dialect, fast=fast)
    return rows_of(table["v"], table["w"], table[CORRUPT])


def parsed(
    found: list[str], kind: str, dialect: JsonDialect, *, mode: str = "PERMISSIVE", fast: bool = True
) -> pa.Table:
    """Return lines read by this package as one block."""
    schema = to_arrow_schema(StructType.fromDDL(f"v {kind}, w int, {CORRUPT} string"), timezone="UTC")
    data = b"".join(line.encode() + b"\n" for line in found)
    parser = JsonParser(JsonFormat(schema, mode, CORRUPT, dialect=dialect), fast=fast)
    return pa.Table.from_batches(parser.record_batches([Block("j", 0, data, *cut(data))]), schema)


def from_json(
    spark: SparkSession, found: list[str], kinds: list[str], options: dict[str, str]
) -> list[list[Row]]:
    """Return the rows of lines read by Spark, for each type: one job."""
    frame = spark.createDataFrame([(line,) for line in found], "line string").coalesce(1)
    given = {"columnNameOfCorruptRecord": CORRUPT, **options}
    columns = [
        f.from_json("line", f"v {kind}, w int, {CORRUPT} string", given).alias(str(at))
        for at, kind in enumerate(kinds)
    ]
    table = frame.select(*columns).toArrow()
    answers = []
    for column in table.columns:
        whole = column.combine_chunks()
        whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
        answers.append(rows_of(*whole.flatten()))
    return answers


BIG_SECONDS = re.compile(r"(?<![\w.\"])-?\d{13,19}(?![\w.\"])")
DIFFERENCES: dict[str, Callable[[str, str, Row, Row], bool]] = {
    "an empty record is malformed": lambda line, _kind, _spark, _ours: not line.strip(),
    "what follows the object makes a record malformed": (
        lambda line, _kind, spark, ours: _is_followed(line) and ours == (None, None, True) and not spark[2]
    ),
    "no field of a record that is no JSON is kept": (
        lambda line, _kind, spark, ours: not _is_json(line) and ours == (None, None, True) and spark[2]
    ),
    "128 to 255 is no tinyint": lambda line, kind, _spark, _ours: (
        "tinyint" in kind
        and re.search(r"(?<![\w.\"-])(12[89]|1[3-9]\d|2[0-4]\d|25[0-5])(?![\w.\"])", line) is not None
    ),
    "seconds past the range of timestamps are null": (
        lambda line, kind, _spark, _ours: "timestamp" in kind and BIG_SECONDS.search(line) is not None
    ),
    "a time of day is no timestamp": lambda line, kind, _spark, _ours: (
        "timestamp" in kind and re.search(r"[\"']\s*T?\d{1,2}:\d{1,2}", line) is not None
    ),
    "a control character in base64 is as wrong as elsewhere": lambda line, kind, _spark, ours: (
        "binary" in kind and "\x01" in line and ours == (None, None, True)
    ),
    "base64 that ends too early costs its field only": lambda _line, kind, spark, ours: (
        "binary" in kind and spark == (None, None, True) and ours[2]
    ),
}
"""By name, which rows show it: line, type, Spark's row, ours."""


def _is_json(line: str) -> bool:
    return ExactReader([]).row(line.encode()).problem is None


def _is_followed(line: str) -> bool:
    problem = ExactReader([]).row(strict_text(line, SPARKS).encode()).problem
    return problem is not None and "more after the object's end" in problem


def compare(
    found: list[str], kinds: list[str], theirs: list[list[Row]], mine: list[list[Row]], shown: set[str]
) -> list[str]:
    """Return the rows that differ and should not; note the differences that were seen."""
    wrong = []
    for kind, spark_rows, our_rows in zip(kinds, theirs, mine, strict=True):
        for line, spark_row, our_row in zip(found, spark_rows, our_rows, strict=True):
            if repr(spark_row) == repr(our_row):
                continue
            names = {name for name, shows in DIFFERENCES.items() if shows(line, kind, spark_row, our_row)}
            shown |= names
            if not names:
                wrong.append(f"{kind}: {line!r}: Spark {spark_row!r}, ours {our_row!r}")
    return wrong


def has_strings(kind: str) -> bool:
    """Tell whether a type has strings that are no keys."""
    return "string" in kind.replace("map<string", "")


def test_rows_are_those_of_from_json(spark: SparkSession) -> None:
    """For every type and every line, but for the differences that are listed, each of which is seen."""
    found = lines(seed=1, count=200)
    kinds = [kind for kind in schemas(seed=1, count=5) if not has_strings(kind)]
    theirs = from_json(spark, found, kinds, {})
    shown: set[str] = set()
    mine = [ours(found, kind, SPARKS, fast=False) for kind in kinds]
    wrong = compare(found, kinds, theirs, mine, shown)
    assert not wrong, "\n".join([f"{len(wrong)} rows", *wrong[:40]])
    assert shown == DIFFERENCES.keys()
    for kind, rows in zip(kinds, mine, strict=True):
        fine = [at for at, row in enumerate(rows) if not row[2]]
        again = ours([found[at] for at in fine], kind, SPARKS)
        assert repr(again) == repr([rows[at] for at in fine])


@pytest.mark.parametrize(
    ("options", "dialect"),
    [
        pytest.param({"timeZone": "Europe/Paris"}, JsonDialect(time_zone="Europe/Paris"), id="zone"),
        pytest.param(
            {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"},
            JsonDialect(allow_single_quotes=False, allow_non_numeric_numbers=False),
            id="strict",
        ),
    ],
)
def test_options_mean_what_they_mean_to_from_json(
    spark: SparkSession, options: dict[str, str], dialect: JsonDialect
) -> None:
    """Whether a record is malformed, and what becomes of values that are not."""
    found = [line for line in lines(seed=2, count=0) if "'" not in line or "time_zone" in repr(options)]
    found += [
        "{'v':1}",
        "{\"v\":'2024-01-02'}",
        '{"v":NaN}',
        '{"v":"NaN"}',
        '{"x":[Infinity]}',
        '{"v":"a\'b"}',
    ]
    kinds = ["double", "timestamp", "array<timestamp>", "timestamp_ntz"]
    theirs = from_json(spark, found, kinds, options)
    for fast in (True, False):
        mine = [ours(found, kind, dialect, fast=fast) for kind in kinds]
        bad = [[row if not row[2] else (None, None, True) for row in rows] for rows in (*theirs, *mine)]
        wrong = compare(found, kinds, bad[: len(kinds)], bad[len(kinds) :], set())
        assert not wrong, "\n".join([f"{len(wrong)} rows, fast={fast}", *wrong[:40]])


def test_rows_and_modes_are_those_of_files(spark: SparkSession, tmp_path: Path) -> None:
    """Strings take other values as they are written, and malformed records are dropped or fail, too."""
    kinds = ["string", "array<string>", "map<string,string>", "struct<x:int,y:string>"]
    found = [line for line in lines(seed=3, count=300) if line.strip() and _is_json(line)]
    found = [line for line in found if strict_text(line, SPARKS) == line]
    file = tmp_path / "records.json"
    file.write_bytes(b"".join(line.encode() + b"\n" for line in found))

    def read(kind: str, mode: str) -> list[Row]:
        reader = spark.read.schema(f"v {kind}, w int, {CORRUPT} string").option("lineSep", "\n")
        table = reader.option("mode", mode).json(str(file)).toArrow()
        return rows_of(table["v"], table["w"], table[CORRUPT])

    for kind in kinds:
        wrong = compare(found, [kind], [read(kind, "PERMISSIVE")], [ours(found, kind, SPARKS)], set())
        assert not wrong, "\n".join(wrong[:40])
    kind = kinds[-1]
    table = parsed(found, kind, SPARKS, mode="DROPMALFORMED")
    assert repr(rows_of(table["v"], table["w"], table[CORRUPT])) == repr(read(kind, "DROPMALFORMED"))
    assert 0 < table.num_rows < len(found)
    with pytest.raises(RecordError, match="malformed: field "):
        parsed(found, kind, SPARKS, mode="FAILFAST")
    failing = spark.read.schema(f"v {kind}, w int").option("mode", "FAILFAST").json(str(file))
    with pytest.raises(Exception, match="FAILED_READ_FILE"):  # PySpark has no class for it.
        failing.collect()


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
"""Patterns, and texts that follow them or nearly do."""


def test_patterns_are_those_of_from_json(spark: SparkSession) -> None:
    """Dates and timestamps by the user's own patterns, and texts that follow them nearly."""
    texts = map(json.dumps, _pattern_texts())
    found = [f'{{"t":{text},"d":{text},"n":{text},"l":[{text}]}}' for text in texts]
    frame = spark.createDataFrame([(line,) for line in found], "line string")
    ddl = f"t timestamp, d date, n timestamp_ntz, l array<timestamp>, {CORRUPT} string"
    schema = to_arrow_schema(StructType.fromDDL(ddl), timezone="UTC")
    options = [
        {"timestampFormat": p, "dateFormat": p, "timestampNTZFormat": p, "timeZone": "-01:30"}
        for p in PATTERNS
    ]
    data = b"".join(line.encode() + b"\n" for line in found)
    columns = [
        f.from_json("line", ddl, {"columnNameOfCorruptRecord": CORRUPT, **given}).alias(str(at))
        for at, given in enumerate(options)
    ]
    table = frame.coalesce(1).select(*columns).toArrow()
    for pattern, column in zip(PATTERNS, table.columns, strict=True):
        dialect = JsonDialect(
            "-01:30", date_format=pattern, timestamp_format=pattern, timestamp_ntz_format=pattern
        )
        for fast in (True, False):
            parser = JsonParser(JsonFormat(schema, "PERMISSIVE", CORRUPT, dialect=dialect), fast=fast)
            (batch,) = parser.record_batches([Block("j", 0, data, *cut(data))])
            theirs = _numbered(column.combine_chunks())
            mine = _numbered(pa.StructArray.from_arrays(batch.columns, schema.names))
            for line, spark_row, our_row in zip(found, theirs, mine, strict=True):
                assert spark_row == our_row, (
                    f"{pattern}, {line}, fast={fast}: Spark {spark_row}, ours {our_row}"
                )


def _pattern_texts() -> list[str]:
    return sorted({text for texts in PATTERNS.values() for text in texts.split("|")})


def _numbered(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    found: list[Any] = column.cast(numbers(column.type)).to_pylist()
    return found


def test_inferred_types_are_those_of_spark(spark: SparkSession) -> None:
    """For records of all kinds, alone and together; names that an object repeats are left out."""
    groups = record_groups(seed=4, count=60)
    texts = ["[" + ",".join(group) + "]" for group in groups]
    row = spark.range(1).select(*[f.schema_of_json(f.lit(text)) for text in texts]).first()
    assert row is not None
    for group, ddl in zip(groups, row, strict=True):
        (theirs,) = StructType.fromDDL(f"v {ddl}").fields
        assert isinstance(theirs.dataType, ArrayType)
        data = b"".join(record.encode() + b"\n" for record in group)
        mine = infer([Block("j", 0, data, *cut(data))])
        expected = theirs.dataType.elementType
        if isinstance(expected, StringType):  # No record has a field: an array of nothing.
            assert not mine.names
        else:
            assert from_arrow_schema(mine) == expected, group


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(['{"a":1}', "", '{"b":"x"}'], id="empty"),
        pytest.param(['{"a":1}', "oops", '{"a":2.5}', "null", "1"], id="malformed"),
        pytest.param(['{"_corrupt_record":1}', "oops"], id="called_like_the_column"),
    ],
)
def test_inferred_columns_are_those_of_files(spark: SparkSession, tmp_path: Path, found: list[str]) -> None:
    """Malformed records add their column, or are left out."""
    file = tmp_path / "records.json"
    file.write_text("\n".join(found) + "\n")
    data = file.read_bytes()
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        expected = spark.read.option("mode", mode).json(str(file)).schema
        assert from_arrow_schema(infer([Block("j", 0, data, *cut(data))], mode=mode)) == expected
