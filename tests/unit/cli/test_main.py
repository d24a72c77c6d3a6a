"""The command answers fast, and its errors are one line and an exit code."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from gazette_spark.cli.main import COMMANDS, main
from gazette_spark.errors import JournalNotFoundError
from gazette_spark.version import VERSION


def test_help_lists_every_group_without_loading_it() -> None:
    """``--help`` needs neither Spark nor gRPC nor any group's module."""
    code = (
        "import sys\n"
        "from gazette_spark.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: print('LOADED', *sorted({'pyspark', 'grpc', 'numpy', 'rich'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "LOADED"
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_group_explains_itself(name: str) -> None:
    """``--help`` of every group and command works and has a first line."""
    answer = CliRunner().invoke(main, [name, "--help"], catch_exceptions=False)
    assert answer.exit_code == 0
    assert "Usage: " in answer.output


def test_version_is_the_packages() -> None:
    """The command and the package are one thing."""
    assert VERSION in CliRunner().invoke(main, ["--version"]).output


def test_unknown_commands_are_wrong_usage() -> None:
    """A slip of the user exits with 2."""
    assert CliRunner().invoke(main, ["jurnals"]).exit_code == 2


def test_an_error_is_one_line_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that the package raises on purpose exits with 1 and shows no traceback."""

    @click.command()
    def fails() -> None:
        raise JournalNotFoundError("a/b", "line one\nline two")

    monkeypatch.setattr(type(main), "get_command", lambda *_: fails)
    answer = CliRunner().invoke(main, ["demo"])
    assert answer.exit_code == 1
    assert answer.stderr == (
        "Error: journal 'a/b': JOURNAL_NOT_FOUND: line one line two. Check the name; a token that does not "
        "cover the journal gets the same answer\n"
    )
    assert answer.stdout == ""
