"""Asks Spark the questions of tests/golden/csv_answers.json and json_answers.json, and writes the files.

``python -m tests.rig.golden_answers`` needs a JVM and about two minutes. Run it after a change of the
questions (tests/oracles/csv_questions.py, json_questions.py) or of Spark's version, and review the diff.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StringType, StructType

from gazette_spark import local_spark
from gazette_spark.session import INTERPRETED
from tests.oracles import csv_questions, json_questions
from tests.oracles.spark_answers import Answers, Ask, Question, dump, golden_path, rows_of, type_text

DAY_US = 86_400_000_000
"""Microseconds per day."""

QUESTIONS = {"csv": csv_questions.questions, "json": json_questions.questions}


def ask(spark: SparkSession, question: Question, directory: Path) -> Answers:
    """Return Spark's answers.

    Args:
        spark: The session.
        question: What to ask.
        directory: An empty folder for the files that Spark reads.
    """
    schemas = {key: _struct(each.ddl).jsonValue() for key, each in question.asks.items() if each.ddl}
    match question.how:
        case "from_csv" | "from_json":
            found = _from_columns(spark, question)
        case "schema_of_json":
            found = dict.fromkeys(question.asks, _types(spark, question.records))
        case _:
            file = directory / "records"
            file.write_bytes(b"".join(record.encode() + b"\n" for record in question.records))
            found = {key: _from_file(spark, question.how, each, file) for key, each in question.asks.items()}
    return Answers(schemas, found)


def _struct(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def _from_columns(spark: SparkSession, question: Question) -> dict[str, Any]:
    """Read a column of strings by each ask, all in one job."""
    frame = spark.createDataFrame(list(enumerate(question.records)), "i int, t string")
    frame = frame.coalesce(1).sortWithinPartitions("i")
    parse = f.from_csv if question.how == "from_csv" else f.from_json
    columns = [
        parse(f.col("t"), each.ddl, dict(each.options)).alias(f"r{at}")
        for at, each in enumerate(question.asks.values())
    ]
    table = frame.select(*columns).toArrow()
    found = {}
    for key, column in zip(question.asks, table.columns, strict=True):
        whole = column.combine_chunks()
        whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
        rows = pa.Table.from_arrays(whole.flatten(), [field.name for field in whole.type])
        found[key] = _undated(rows_of(rows, question.records), time.time_ns() // 1000)
    return found


def _undated(value: Any, now_us: int) -> Any:
    """Replace timestamps of today by "today", because Spark completes a time of day with the current date."""
    match value:
        case int() if abs(value - now_us) < 2 * DAY_US:
            return "today"
        case list():
            return [_undated(item, now_us) for item in value]
        case dict():
            return {name: _undated(item, now_us) for name, item in value.items()}
    return value


def _types(spark: SparkSession, records: tuple[str, ...]) -> list[str | None]:
    """Return the types of the objects in each group; None for objects without fields."""
    texts = ["[" + ",".join(record.split("\n")) + "]" for record in records]
    row = spark.range(1).select(*[f.schema_of_json(f.lit(text)) for text in texts]).first()
    assert row is not None
    found: list[str | None] = []
    for ddl in row:
        (field,) = _struct(f"v {ddl}").fields
        assert isinstance(field.dataType, ArrayType)
        kind = field.dataType.elementType
        found.append(None if isinstance(kind, StringType) else type_text(kind))
    return found


def _from_file(spark: SparkSession, how: str, given: Ask, file: Path) -> Any:
    reader = spark.read.options(**given.options)
    if given.ddl:
        reader = reader.schema(given.ddl)
    frame = reader.csv(str(file)) if how == "read_csv" else reader.json(str(file))
    if how == "infer_json":
        return type_text(frame.schema)
    if given.options.get("mode") != "FAILFAST":
        return rows_of(frame.toArrow())
    try:
        return [list(row) for row in frame.collect()]
    except Py4JJavaError as error:  # PySpark has no class for this error.
        failed = error.java_exception
        return {"error": failed.getCondition(), "cause": failed.getCause().getCondition()}


def answered(spark: SparkSession, name: str, directory: Path) -> Mapping[str, tuple[Question, Answers]]:
    found = {}
    for title, question in QUESTIONS[name]().items():
        folder = directory / f"{name}-{title}"
        folder.mkdir()
        found[title] = (question, ask(spark, question, folder))
    return found


def text_of(spark: SparkSession, name: str, directory: Path) -> str:
    return dump(name, pyspark.__version__, answered(spark, name, directory))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        spark = local_spark(Path(directory), conf=INTERPRETED)
        for name in QUESTIONS:
            golden_path(name).write_text(text_of(spark, name, Path(directory)))
        spark.stop()


if __name__ == "__main__":
    main()
