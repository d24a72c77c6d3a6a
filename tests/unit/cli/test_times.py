"""Options that take a time understand how people write it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gazette_spark.cli.main import main
from gazette_spark.cli.times import parse_time

NOW_S = 1_795_370_762.5
"""2026-11-22T18:06:02.5Z in seconds since 1970."""


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("1795370762", 1_795_370_762),
        ("0", 0),
        ("now", 1_795_370_762),
        ("2h ago", 1_795_363_562),
        ("2 h ago", 1_795_363_562),
        ("1h30m ago", 1_795_365_362),
        ("3d ago", 1_795_111_562),
        ("1 d 2 h ago", 1_795_277_162),
        ("2026-11-22T18:06:02Z", 1_795_370_762),
        ("2026-11-22T19:06:02+01:00", 1_795_370_762),
        ("2026-11-22 18:06:02", 1_795_370_762),
        ("2026-11-22", 1_795_305_600),
    ],
)
def test_a_time_is_read(text: str, unix_s: int) -> None:
    """A time without a zone is in UTC, as in the output of the commands."""
    assert parse_time(text, NOW_S) == unix_s


@pytest.mark.parametrize(
    "text",
    ["", "ago", "yesterday", "-5", "-2h ago", "2 weeks ago", "2h", "99999d ago", "1795370762000", "9" * 400],
)
def test_a_text_that_is_not_a_time_is_refused(text: str) -> None:
    assert parse_time(text, NOW_S) is None


@pytest.mark.parametrize("words", [["fragments", "--from"], ["fragments", "--to"], ["read", "--from"]])
def test_commands_say_how_to_write_a_time(words: list[str]) -> None:
    command, option = words
    done = CliRunner().invoke(main, ["journals", command, "a/b", option, "yesterday"])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}': 'yesterday' is not a time" in done.stderr
    assert "'2h ago'" in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["fragments", "--from", "10", "--to", "5"], "--to: 1970-01-01T00:00:05Z is before --from"),
        (["read", "--offset", "5", "--end-offset", "3"], "--end-offset 3 is before --offset 5"),
        (["gaps", "--begin", "5", "--end", "3"], "--end 3 is before --begin 5"),
        (["gaps", "--begin", "-1"], "'--begin': -1 is not in the range"),
        (["read", "--offset", "9" * 20], f"'--offset': {'9' * 20} does not fit into 64 bits"),
    ],
)
def test_a_range_is_checked_in_the_options_words(words: list[str], problem: str) -> None:
    """The broker's own error would name protocol fields, which differ from the options."""
    done = CliRunner().invoke(main, ["journals", words[0], "a/b", *words[1:]])
    assert (done.exit_code, problem in done.stderr) == (2, True)
