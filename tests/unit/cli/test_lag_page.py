"""The examples in docs/reference/burrow.md show what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gazette_spark.cli.main import main

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "burrow.md").read_text()

EXAMPLES = re.findall(
    r"^`([\w.]+)`: .*?^```json\n(.*?)```.*?^```sh\n(.*?)```.*?^```json\n(.*?)```",
    PAGE,
    re.MULTILINE | re.DOTALL,
)
"""Examples of the page: file name, content, command and output."""
assert EXAMPLES, "the page introduces an example's file with its name and a colon"


@pytest.mark.parametrize("example", EXAMPLES, ids=["recording"])
def test_examples_are_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: tuple[str, str, str, str]
) -> None:
    file, content, command, printed = example
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text(content)
    program, *arguments = shlex.split(command)
    answer = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert (program, answer.exit_code) == ("gazette-spark", 0)
    assert answer.stdout == printed
