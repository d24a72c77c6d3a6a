"""The example in the pytest plugin's docstring runs as printed."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gazette_spark.testing import pytest_plugin


def examples() -> tuple[str, str]:
    text = inspect.getdoc(pytest_plugin) or ""
    conftest, test = re.findall(r"::\n\n((?: {4}.*\n|\n)+)", text)
    return textwrap.dedent(conftest), textwrap.dedent(test)


def test_the_example_does_what_it_says(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    """The plugin's fixtures are also those of this test run."""
    names: dict[str, Any] = {}
    exec(compile(examples()[1], "example", "exec"), names)
    test = names["test_orders_arrive"]
    given = {name: request.getfixturevalue(name) for name in inspect.signature(test).parameters}
    assert given["delta_spark"] is spark
    test(**given)


@pytest.mark.soak
def test_the_example_runs_alone(tmp_path: Path) -> None:
    """The plugin needs nothing from this repository's tests."""
    conftest, test = examples()
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_example.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
