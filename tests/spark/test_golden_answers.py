"""The golden CSV and JSON answers still match Spark, and so do our answers for newly drawn records.

``python -m tests.rig.golden_answers`` writes the files again.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.oracles import csv_questions, json_questions
from tests.oracles.spark_answers import MADE_BY, golden_path
from tests.rig.golden_answers import ask, text_of

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

DRAWN_TEXTS = 400
DRAWN_LINES = 400


@pytest.fixture
def seed() -> int:
    """A seed that a failure prints."""
    found = random.SystemRandom().randrange(2**32)
    print(f"seed {found}")  # noqa: T201 - Beside the failure.
    return found


@pytest.mark.parametrize("name", ["csv", "json"])
def test_the_files_hold_what_spark_answers(spark: SparkSession, tmp_path: Path, name: str) -> None:
    wanted = text_of(spark, name, tmp_path).splitlines()
    held = golden_path(name).read_text().splitlines()
    changed = [f"{at}: {line}" for at, line in enumerate(wanted, 1) if at > len(held) or held[at - 1] != line]
    assert wanted == held, "\n".join([f"{MADE_BY} writes other lines:", *changed[:20]])


def test_drawn_fields_of_csv_are_sparks(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    question = csv_questions.fields(seed, DRAWN_TEXTS)
    answers = ask(spark, question, tmp_path)
    wrong = [
        row
        for kind in question.asks
        for fast in (True, False)
        for row in csv_questions.wrong_rows(question, answers, kind, fast=fast)
    ]
    assert not wrong, "\n".join([f"{len(wrong)} rows", *wrong[:40]])


def test_drawn_rows_of_json_are_sparks(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    question = json_questions.rows_question(seed, DRAWN_LINES)
    wrong = list(json_questions.wrong_rows(question, ask(spark, question, tmp_path), set()))
    assert not wrong, "\n".join([f"{len(wrong)} rows", *wrong[:40]])


def test_drawn_files_of_json_are_sparks(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Strings that no golden file has must match ``read.json``."""
    question = json_questions.file_question(seed, DRAWN_LINES)
    wrong = list(json_questions.wrong_file_rows(question, ask(spark, question, tmp_path)))
    assert not wrong, "\n".join([f"{len(wrong)} rows", *wrong[:40]])


def test_drawn_types_of_json_are_sparks(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    question = json_questions.types_question(seed, count=200)
    wrong = list(json_questions.wrong_types(question, ask(spark, question, tmp_path)))
    assert not wrong, "\n".join([f"{len(wrong)} rows", *wrong[:40]])
