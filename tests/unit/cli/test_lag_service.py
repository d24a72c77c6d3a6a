"""``gazette-spark lag serve`` refuses unusable settings and shows no secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from gazette_spark._ledger.delta_reader import DeltaLog
from gazette_spark.cli.lag_service import _config, serve
from gazette_spark.cli.main import main
from gazette_spark.errors import InputError
from gazette_spark.lag.feeds import TableFeed

SERVE = ["lag", "serve", "--broker", "http://127.0.0.1:1", "--table", "orders=/lake/orders"]

SECRET_URLS = {
    "password": "s3://key:SECRET@lake/orders",
    "token": "https://SECRET@lake.example/orders",
    "signature": "https://lake.example/orders?sv=1&sig=SECRET",
    "both": "gs://key:SECRET@lake/orders?token=SECRET",
    "azure": "abfss://orders@account.dfs.core.windows.net/day?sig=SECRET",
}


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        pytest.param("notify 'it", "no closing quotation in", id="quote"),
        pytest.param("notify \\", "no escaped character", id="backslash"),
        pytest.param("  ", "expected a program", id="nothing"),
    ],
)
def test_a_command_that_no_shell_would_take(command: str, problem: str) -> None:
    done = CliRunner().invoke(
        main, [*SERVE, "--listen", "127.0.0.1:0", "--notify-command", command], catch_exceptions=False
    )
    assert done.exit_code == 2
    assert problem in done.stderr
    assert "--notify-command" in done.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--notify-mail", "mail.example.org"], "--notify-mail: expected smtp://[USER@]HOST[:PORT]/TO"),
        (
            ["--notify-mail", "smtp://a:SECRET@mail.example.org/b@example.org?from=c@d"],
            "the password comes from",
        ),
        (
            ["--notify-mail", "smtp://a@mail.example.org/b@example.org?from=c@d"],
            "a needs a password in GAZETTE",
        ),
        (["--notify-mail", "smtp://[SECRET/b@example.org?from=c@d"], "--notify-mail: expected smtp://"),
        (["--notify-webhook", "https://[SECRET"], "--notify-webhook: expected a URL"),
        (["--notify-webhook", "https:///SECRET"], "--notify-webhook: expected a URL"),
        (["--notify-webhook", "http://h", "--notify-template", sys.executable], "it is not UTF-8 at byte"),
        (["--notify-template", __file__], "--notify-template is for --notify-webhook"),
        (["--notify-groups", "("], "expected a regular expression"),
        (["--other-cluster", "http://127.0.0.1:1"], "expected NAME=URL of another monitor"),
        (["--other-cluster", "west=http://"], "expected NAME=URL of another monitor"),
        (["--other-cluster", "west=https://[west"], "expected NAME=URL of another monitor"),
        (["--listen", "8000"], "option 'listen': got '8000'; expected host:port"),
    ],
)
def test_options_of_notices_are_checked_at_the_start(options: list[str], problem: str) -> None:
    """Otherwise the error would appear only when the first incident begins. It must not show secrets."""
    arguments = [*SERVE, "--listen", "127.0.0.1:0", "--notify-command", "true", *options]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert (done.exit_code, problem in done.stderr, "SECRET" in done.stderr) == (2, True, False)


def test_a_topic_has_a_name() -> None:
    """Without a name, the selector's journals would appear under topics derived from their own names."""
    answer = CliRunner().invoke(main, ["lag", "show", "--table", "x", "--topic", "app"])
    assert (answer.exit_code, "--topic 'app': expected NAME=SELECTOR" in answer.stderr) == (2, True)


def test_a_narrow_terminal_still_shows_the_names() -> None:
    """Rich sizes numeric columns first and would leave no width for the group and its verdict."""
    reader, terminal = os.openpty()
    command = [sys.executable, "-m", "gazette_spark.cli", "lag", "show", "--table", "/no/such/table"]
    env = {**os.environ, "COLUMNS": "16", "TERM": "xterm", "BROKER_ADDRESS": "http://127.0.0.1:9"}
    subprocess.run(
        [*command, "--timeout", "0.5"], env=env, stdout=terminal, stderr=subprocess.DEVNULL, check=False
    )
    text = os.read(reader, 4096).decode()
    os.close(terminal)
    os.close(reader)
    assert "table /no/such/table" in text
    assert "UNKNOWN" in text


def test_states_are_those_of_a_named_group() -> None:
    """A location does not reveal which group it belongs to, so the option names the group."""
    done = CliRunner().invoke(main, [*SERVE, "--states", "/lake/states"], catch_exceptions=False)
    assert done.exit_code == 2
    assert "--states '/lake/states': expected GROUP=LOCATION" in done.stderr


@pytest.mark.parametrize("url", SECRET_URLS.values(), ids=SECRET_URLS)
def test_the_configuration_shows_no_secret(url: str) -> None:
    """``/v3/config`` lists every location, with anything that may be a secret removed."""
    arguments = [*SERVE[2:], "--table", url, "--checkpoint", f"other={url}", "--states", f"other={url}"]
    with click.Context(serve) as context:
        serve.parse_args(context, arguments)
        shown = _config(context.params)["consumer"]["default"]
    assert "SECRET" not in json.dumps(shown)
    assert shown["tables"][0] == "orders=/lake/orders"
    scheme, _, rest = url.partition("://")
    host = rest.rpartition("@")[2].partition("?")[0]
    assert shown["tables"][1].startswith(f"{scheme}://")
    assert host in shown["tables"][1]
    assert shown["checkpoints"] == shown["states"] == [f"other={shown['tables'][1]}"]


def test_a_table_that_cannot_be_read_is_named_without_secrets() -> None:
    """Everybody can see the page that shows a feed's failure."""
    url = "lake://key:SECRET@nowhere/orders?sig=SECRET"
    with pytest.raises(InputError, match="nowhere/orders") as caught:
        DeltaLog(url).rows(None)
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in repr(TableFeed(url)) + repr(DeltaLog(url))


def test_a_mail_address_may_have_a_plus(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def mail(*arguments: object, tls: bool) -> None:
        given.extend([*arguments, tls])
        raise click.UsageError("enough is known")

    monkeypatch.setattr("gazette_spark.lag.notifier.MailSender", mail)
    url = "smtp://mail.example.org/ops+a@example.org?from=lag+b@example.org"
    arguments = [*SERVE, "--listen", "127.0.0.1:0", "--notify-mail", url]
    CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert given == ["mail.example.org", 587, "lag+b@example.org", ("ops+a@example.org",), "", "", True]
