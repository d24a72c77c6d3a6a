"""Records of ``format=json`` give the rows of Spark's own ``from_json`` and ``spark.read.json``.

Spark's answers are in tests/golden/json_answers.json; ``pytest --soak
tests/spark/test_golden_answers.py`` checks that they are still current.

Each deliberate difference has a name in ``DIFFERENCES`` (tests/oracles/json_questions.py) and a sentence in
``docs/reference/formats.md``. Its rows are left out of the comparison. A listed difference that no row shows
any more fails as well.
"""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from gazette_spark._formats.json_infer import infer
from gazette_spark._formats.values import SPARK_DIALECT, JsonDialect
from gazette_spark.errors import RecordError
from tests.oracles.json_questions import (
    DIFFERENCES,
    FILE_KINDS,
    INFERRED,
    INFERRING_MODES,
    OPTIONS,
    PATTERNS,
    block_of,
    ours,
    parsed,
    plain_row,
    questions,
    wrong_file_rows,
    wrong_option_rows,
    wrong_rows,
    wrong_types,
)
from tests.oracles.spark_answers import GoldenFile, load, rows_of, type_text

pytestmark = pytest.mark.usefixtures("native_library")


@pytest.fixture(scope="module")
def golden() -> GoldenFile:
    return load("json")


def test_the_file_answers_the_questions(golden: GoldenFile) -> None:
    """If a question changes, Spark has to answer it again."""
    assert {name: question for name, (question, _) in golden.answered.items()} == questions()


def test_rows_are_those_of_from_json(golden: GoldenFile) -> None:
    """Every listed difference must occur in at least one row."""
    shown: set[str] = set()
    wrong = list(wrong_rows(*golden.answered["rows"], shown))
    assert not wrong, "\n".join([f"{len(wrong)} rows", *wrong[:40]])
    assert shown == DIFFERENCES.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_options_mean_what_they_mean_to_from_json(golden: GoldenFile, name: str) -> None:
    wrong = list(wrong_option_rows(name, *golden.answered[f"option {name}"]))
    assert not wrong, "\n".join([f"{len(wrong)} rows", *wrong[:40]])


def test_rows_and_modes_are_those_of_files(golden: GoldenFile) -> None:
    question, answers = golden.answered["file"]
    wrong = list(wrong_file_rows(question, answers))
    assert not wrong, "\n".join(wrong[:40])
    schema = answers.arrow_schema(FILE_KINDS[-1])
    mine = rows_of(parsed(question.records, schema, SPARK_DIALECT, mode="DROPMALFORMED"))
    theirs = answers.found["DROPMALFORMED"]
    assert repr([plain_row(row) for row in mine]) == repr([plain_row(row) for row in theirs])
    assert 0 < len(mine) < len(question.records)
    with pytest.raises(RecordError, match="malformed: field "):
        parsed(question.records, schema, SPARK_DIALECT, mode="FAILFAST")
    assert answers.found["FAILFAST"]["error"].startswith("FAILED_READ_FILE")
    assert answers.found["FAILFAST"]["cause"].startswith("MALFORMED_RECORD")


@pytest.mark.parametrize("fast", [pytest.param(True, id="fast"), pytest.param(False, id="exact")])
def test_patterns_are_those_of_from_json(golden: GoldenFile, fast: bool) -> None:
    question, answers = golden.answered["patterns"]
    for pattern in PATTERNS:
        dialect = JsonDialect(
            "-01:30", date_format=pattern, timestamp_format=pattern, timestamp_ntz_format=pattern
        )
        mine = ours(question.records, answers.arrow_schema(pattern), dialect, fast=fast)
        for line, spark_row, our_row in zip(question.records, answers.found[pattern], mine, strict=True):
            assert spark_row == our_row, f"{pattern}, {line}: Spark {spark_row}, ours {our_row}"


def test_inferred_types_are_those_of_spark(golden: GoldenFile) -> None:
    """The objects in these records have no repeated names."""
    wrong = list(wrong_types(*golden.answered["types"]))
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.parametrize("name", INFERRED)
def test_inferred_columns_are_those_of_files(golden: GoldenFile, name: str) -> None:
    question, answers = golden.answered[f"inferred {name}"]
    for mode in INFERRING_MODES:
        mine = infer([block_of(question.records)], mode=mode)
        assert type_text(from_arrow_schema(mine)) == answers.found[mode]
