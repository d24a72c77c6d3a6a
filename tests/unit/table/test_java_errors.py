"""The JVM gets short errors that still show whether a query was stopped."""

from __future__ import annotations

import re
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from gazette_spark._delta.java_errors import (
    INTERRUPTIONS,
    MAX_TEXT,
    first_line,
    short_batch_errors,
    short_java_error,
    short_text,
)
from gazette_spark.errors import InputError

SPARKS_PATTERN = re.compile(
    r"py4j\.protocol\.Py4JJavaError: An error occurred while calling"
    rf"((.|\r\n|\r|\n)*)({'|'.join(INTERRUPTIONS)})"
)
"""Pattern by which ``StreamExecution`` of Spark 4.2 detects that a batch was interrupted."""


def java_exception(*texts: str) -> Any:
    cause = java_exception(*texts[1:]) if len(texts) > 1 else None
    return SimpleNamespace(
        _target_id="o1", _gateway_client=None, toString=lambda: texts[0], getCause=lambda: cause
    )


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_spark_finds_an_interruption_in_a_short_text(depth: int) -> None:
    """The traceback names the interruption at any depth, within the characters that Spark searches."""
    texts = [f"org.apache.spark.SparkException: step {at} {'x' * 900}" for at in range(depth)]
    error = Py4JJavaError("An error occurred\n", java_exception(*texts, "java.lang.InterruptedException"))
    shorter = short_java_error(error)
    assert isinstance(shorter, Py4JJavaError)
    shown = "".join(traceback.format_exception_only(shorter))
    assert SPARKS_PATTERN.search(shown)
    assert len(shown) < MAX_TEXT + 100


def test_an_error_of_python_is_left_alone() -> None:
    assert short_java_error(ValueError("no")) is None


def test_the_first_line_of_an_error_of_java_names_the_cause() -> None:
    """Py4J's own text has the cause in its second line."""
    error = Py4JJavaError("An error occurred\n", java_exception("a.B: no permission\n\tat a.B.c"))
    assert first_line(error) == "An error occurred while calling Spark: a.B: no permission"


def test_an_error_of_a_task_is_named_whole() -> None:
    """Python's frames fill the allowed length and say less than the error behind them."""
    frames = "".join(f'  File "/lib/part_{at}.py", line {at}, in read\n    self.read()\n' for at in range(40))
    lost = "gazette_spark.errors.DataLossError: journal 'shop/orders': bytes [5, 9) are gone"
    text = f"a.PythonException: Traceback (most recent call last):\n{frames}{lost}\n"
    assert short_text(["a.SparkException: task failed", text]) == (
        f"a.SparkException: task failed; caused by a.PythonException: {lost}"
    )


def test_first_and_last_text_are_kept() -> None:
    """The first text says what failed, the last one why."""
    assert short_text(["a.A: one", "a.B: two", "a.C: three"]) == "a.A: one; caused by a.C: three"
    assert len(short_text(["a" * 5000, "b" * 5000])) == MAX_TEXT


ROWS: Any = None
"""Batch for a sink that ignores it."""


class Sink:
    app_id = "orders"

    def __init__(self, error: Exception) -> None:
        self._error = error

    @short_batch_errors
    def __call__(self, df: Any, batch_id: int) -> None:
        raise self._error from LookupError("a cause")


def test_a_batch_raises_errors_as_spark_can_show_them() -> None:
    """Our errors lose their causes, and Java's lose their stacks. Others are unchanged."""
    with pytest.raises(InputError, match="no table") as ours:
        Sink(InputError("no table"))(ROWS, 1)
    assert ours.value.__cause__ is None
    with pytest.raises(Py4JJavaError, match=r"^An error occurred while calling Spark: a\.B: lost$") as java:
        Sink(Py4JJavaError("An error occurred\n", java_exception("a.B: lost")))(ROWS, 2)
    assert java.value.__cause__ is None
    with pytest.raises(ValueError, match="other") as other:
        Sink(ValueError("other"))(ROWS, 3)
    assert isinstance(other.value.__cause__, LookupError)
