"""Questions to Spark's readers of CSV and JSON, and its answers as stored in tests/golden.

``python -m tests.rig.golden_answers`` asks Spark and writes the files; nothing here needs a JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

GOLDEN = Path(__file__).parents[1] / "golden"
MADE_BY = "python -m tests.rig.golden_answers"
CORRUPT = "_corrupt_record"


@dataclass(frozen=True, slots=True)
class Ask:
    """A way to read records: a schema as DDL ("" to infer it), and the reader's options."""

    ddl: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """Records that Spark reads in several ways.

    ``how`` is ``from_csv``, ``from_json``, ``read_csv``, ``read_json`` (a file, one row or none for each
    record), ``schema_of_json`` (a record is a group of lines) or ``infer_json`` (a file).
    """

    how: str
    records: tuple[str, ...]
    asks: Mapping[str, Ask]


@dataclass(frozen=True, slots=True)
class Answers:
    schemas: Mapping[str, dict[str, Any]]
    """Schema of each ask as JSON; absent where it is inferred."""
    found: Mapping[str, Any]
    """Result by ask: rows of :func:`rows_of`, ``{"error": condition}``, or types of :func:`type_text`."""

    def arrow_schema(self, ask: str) -> pa.Schema:
        return to_arrow_schema(StructType.fromJson(self.schemas[ask]), timezone="UTC")


def numbers(kind: pa.DataType) -> pa.DataType:
    """Map dates and timestamps to days and microseconds, because Python has no year 0."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(numbers(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(numbers(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(numbers(kind.item_type)))
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def encode(value: Any) -> Any:
    """Encode a value as JSON, uniquely among the values of its type; maps keep their order."""
    match value:
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case [(_, _), *_] as pairs if isinstance(pairs[0], tuple):
            return {"map": [[key, encode(item)] for key, item in pairs]}
        case list() as items:
            return [encode(item) for item in items]
        case dict() as fields:
            return {name: encode(item) for name, item in fields.items()}
    return value


def rows_of(table: pa.Table, records: Sequence[str] | None = None) -> list[list[Any]]:
    """Return rows as lists of encoded values.

    Args:
        table: The rows. The corrupt record's column becomes true where it holds the record.
        records: The record of each row; by default any corrupt record is the row's.
    """
    columns = [column.cast(numbers(column.type)).to_pylist() for column in table.columns]
    rows = [[encode(value) for value in row] for row in zip(*columns, strict=True)]
    if CORRUPT in table.column_names:
        at = table.column_names.index(CORRUPT)
        for index, row in enumerate(rows):
            if row[at] is not None and (records is None or row[at] == records[index]):
                row[at] = True
    return rows


def type_text(kind: DataType) -> str:
    """Return a type as text in which everything is nullable."""
    _assert_nullable(kind)
    return kind.simpleString()


def _assert_nullable(kind: DataType) -> None:
    match kind:
        case StructType():
            assert all(field.nullable and not field.metadata for field in kind.fields), kind
            for field in kind.fields:
                _assert_nullable(field.dataType)
        case ArrayType():
            assert kind.containsNull, kind
            _assert_nullable(kind.elementType)
        case MapType():
            assert kind.valueContainsNull, kind
            _assert_nullable(kind.valueType)


def malformed_row(schema: Mapping[str, Any]) -> list[Any]:
    """Return the row of nulls that most malformed records become; the golden files omit it."""
    return [True if field["name"] == CORRUPT else None for field in schema["fields"]]


def dump(name: str, spark: str, answered: Mapping[str, tuple[Question, Answers]]) -> str:
    """Return a golden file's text: one line for each record, with the answers that are not malformed rows.

    Asks are numbered in order.
    """
    lines = [f'{{"answers": {_json(name)},', f'"spark": {_json(spark)},', f'"made_by": {_json(MADE_BY)},']
    lines.append('"questions": {')
    for at, (title, (question, answers)) in enumerate(answered.items()):
        lines.append(f'{"," if at else ""}{_json(title)}: {{"how": {_json(question.how)}, "asks": {{')
        asks = [
            f"{_json(key)}: {_json([ask.ddl, dict(ask.options), answers.schemas.get(key)])}"
            for key, ask in question.asks.items()
        ]
        lines.append(",\n".join(asks))
        lines.append('}, "records": [')
        lines.append(",\n".join(_record_lines(question, answers)))
        lines.append('], "whole": {')
        whole = {key: found for key, found in answers.found.items() if not _by_record(question)}
        lines.append(",\n".join(f"{_json(key)}: {_whole(found)}" for key, found in whole.items()))
        lines.append("}}")
    return "\n".join([*lines, "}}"]) + "\n"


def _record_lines(question: Question, answers: Answers) -> Iterator[str]:
    """Yield for each record the record itself, and each answer with the numbers of its asks."""
    keys = list(question.asks)
    for index, record in enumerate(question.records):
        given: dict[str, list[int]] = {}
        for at, key in enumerate(keys if _by_record(question) else ()):
            row = _json(answers.found[key][index])
            if row != _default(answers, key):
                given.setdefault(row, []).append(at)
        yield f"[{_json(record)},[{','.join(f'[{row},{_json(asked)}]' for row, asked in given.items())}]]"


def _default(answers: Answers, key: str) -> str:
    """Return the default answer, which golden files omit."""
    return _json(malformed_row(answers.schemas[key])) if key in answers.schemas else "null"


def _by_record(question: Question) -> bool:
    """Return whether each record has its own answer, independent of the other records."""
    return question.how in ("from_csv", "from_json", "schema_of_json")


def _whole(found: Any) -> str:
    return "[\n" + ",\n".join(map(_json, found)) + "\n]" if isinstance(found, list) else _json(found)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class GoldenFile:
    """A parsed file of answers."""

    spark: str
    """Version of Spark."""
    answered: Mapping[str, tuple[Question, Answers]]


def golden_path(name: str) -> Path:
    return GOLDEN / f"{name}_answers.json"


def load(name: str) -> GoldenFile:
    raw = json.loads(golden_path(name).read_text())
    return GoldenFile(raw["spark"], {title: _loaded(each) for title, each in raw["questions"].items()})


def _loaded(raw: dict[str, Any]) -> tuple[Question, Answers]:
    keys = list(raw["asks"])
    asks = {key: Ask(ddl, options) for key, (ddl, options, _) in raw["asks"].items()}
    question = Question(raw["how"], tuple(record for record, _ in raw["records"]), asks)
    schemas = {key: schema for key, (*_, schema) in raw["asks"].items() if schema is not None}
    if not _by_record(question):
        return question, Answers(schemas, raw["whole"])
    found: dict[str, list[Any]] = {
        key: [malformed_row(schemas[key]) if key in schemas else None] * len(question.records) for key in asks
    }
    for index, (_, given) in enumerate(raw["records"]):
        for row, asked in given:
            for at in asked:
                found[keys[at]][index] = row
    return question, Answers(schemas, found)
