"""Commands that change journals require an explicit selection: an empty variable never means all."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from gazette_spark.cli.journals import journals
from gazette_spark.cli.main import main

NO_BROKER = ("--broker", "http://127.0.0.1:1", "--timeout", "0.2")
"""Options with an address where nobody listens: a command that calls a broker exits with 1, not 2."""

CHANGING = {
    "append": ["append"],
    "append records": ["append", "-f", "lines", "-m", "direct"],
}

EMPTY = {"nothing": "", "no name": "name=", "no prefix": "prefix=", "no value": "app=shop,name="}


def run(*arguments: str) -> Result:
    """Run a command of ``journals`` with the address of a broker that does not exist."""
    return CliRunner().invoke(main, ["journals", *NO_BROKER, *arguments], input="", catch_exceptions=False)


@pytest.mark.parametrize("selector", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("command", CHANGING.values(), ids=CHANGING)
def test_an_unset_variable_is_wrong_usage(command: list[str], selector: str) -> None:
    done = run(*command, "--selector", selector)
    assert done.exit_code == 2
    assert "write 'name'" in done.stderr or "no journals are selected" in done.stderr


@pytest.mark.parametrize("command", CHANGING.values(), ids=CHANGING)
def test_every_journal_can_be_meant(command: list[str]) -> None:
    done = run(*command, "-l", "name")
    assert done.exit_code == 1
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.parametrize(
    "words", [["journals", "list"], ["journals", "gaps"], ["lag", "show", "--table", "x"], ["shards", "list"]]
)
def test_a_command_that_shows_refuses_an_empty_value(words: list[str]) -> None:
    """The output for all journals would look like the output for the requested one."""
    label = "id" if words[0] == "shards" else "name"
    done = CliRunner().invoke(main, [*words, "-l", f"{label}=="])
    assert done.exit_code == 2
    assert f"an empty value selects any; write a value, or '{label}' alone" in done.stderr


def test_a_selector_that_does_not_parse_is_wrong_usage() -> None:
    done = run("list", "-l", "app in (shop")
    assert (done.exit_code, "--selector: cannot parse 'app in (shop'" in done.stderr) == (2, True)


@pytest.mark.parametrize("journal", [";meta", "a/b,app=shop", ""])
def test_a_name_is_no_selector(journal: str) -> None:
    done = run("append", "-f", "lines", "-m", "direct", journal)
    assert done.exit_code != 0
    assert "127.0.0.1:1" not in done.stderr


def test_every_command_with_a_selector_is_known() -> None:
    """A new command with a selector must be added to the tests of changing or of read-only commands."""
    taking = {
        name
        for name, command in journals.commands.items()
        if any("--selector" in parameter.opts for parameter in command.params)
    }
    assert taking == {words[0] for words in CHANGING.values()} | {"list", "read", "fragments", "gaps"}
