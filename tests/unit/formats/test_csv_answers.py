"""CSV fields equal those of Spark's ``from_csv``, except for the differences listed here.

Spark's answers are in tests/golden/csv_answers.json; ``pytest --soak
tests/spark/test_golden_answers.py`` checks that they are still current.
The list of differences is the one in docs/reference/formats.md.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from gazette_spark.errors import RecordError
from tests.oracles.csv_questions import (
    DIFFERENCES,
    KINDS,
    MODES,
    NO_QUOTE,
    PATTERNS,
    STYLES,
    ours,
    parsed,
    questions,
    wrong_rows,
)
from tests.oracles.spark_answers import Answers, GoldenFile, Question, load

WAYS = [pytest.param(True, id="fast"), pytest.param(False, id="exact")]


@pytest.fixture(scope="module")
def golden() -> GoldenFile:
    return load("csv")


def assert_sparks(question: Question, answers: Answers, key: str, *, fast: bool) -> None:
    wrong = list(wrong_rows(question, answers, key, fast=fast))
    assert not wrong, "\n".join([f"{len(wrong)} of {len(question.records)} rows", *wrong[:10]])


def test_the_file_answers_the_questions(golden: GoldenFile) -> None:
    """If a question changes, Spark has to answer it again."""
    assert {name: question for name, (question, _) in golden.answered.items()} == questions()


@pytest.mark.parametrize("fast", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_sparks(golden: GoldenFile, kind: str, fast: bool) -> None:
    assert_sparks(*golden.answered["fields"], kind, fast=fast)


def test_listed_differences_are_there(golden: GoldenFile) -> None:
    """Each entry has Spark's value and ours, so a difference that disappears must leave the list."""
    question, answers = golden.answered["differences"]
    for index, (kind, text, theirs, mine) in enumerate(DIFFERENCES):
        assert answers.found[kind][index] == [theirs], (kind, text)
        assert ours(question, answers, kind)[index] == [mine], (kind, text)


@pytest.mark.parametrize("fast", WAYS)
@pytest.mark.parametrize("name", [*STYLES, "no_quote"])
def test_records_are_split_as_spark_does(golden: GoldenFile, name: str, fast: bool) -> None:
    question, answers = golden.answered["styles" if name in STYLES else "no_quote"]
    assert_sparks(question, answers, name, fast=fast)
    assert question.asks[name].options == (STYLES | {"no_quote": NO_QUOTE})[name][1]


@pytest.mark.parametrize("option", PATTERNS)
def test_patterns_read_what_spark_reads(golden: GoldenFile, option: str) -> None:
    kind, patterns = PATTERNS[option]
    for pattern in patterns:
        assert_sparks(*golden.answered["patterns"], f"{kind} {pattern}", fast=True)


def test_modes_do_what_they_do_in_spark(golden: GoldenFile) -> None:
    question, answers = golden.answered["modes"]
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        assert ours(question, answers, mode, mode=mode) == answers.found[mode]
    assert set(answers.found) == set(MODES)
    assert answers.found["FAILFAST"]["error"].startswith("FAILED_READ_FILE")
    assert answers.found["FAILFAST"]["cause"].startswith("MALFORMED_RECORD")
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32())])
    with pytest.raises(RecordError, match="field a does not fit int32"):
        parsed(question.records, schema, mode="FAILFAST")
