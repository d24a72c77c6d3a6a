"""The command starts fast and reports an error as one line and an exit code."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gazette_spark.broker import EmbeddedBroker
from gazette_spark.cli.cluster_options import ClusterOptions, cluster_options
from gazette_spark.cli.journal_options import Interrupts
from gazette_spark.cli.journal_reads import AllBytes, ChunkWriter, Pumps
from gazette_spark.cli.journal_specs import show_listing
from gazette_spark.cli.main import COMMANDS, SECTIONS, main
from gazette_spark.cli.output import Printer
from gazette_spark.client import Client, journal_spec
from gazette_spark.errors import JournalNotFoundError, UnavailableError
from gazette_spark.progress import progress
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.version import VERSION


def test_shards_of_no_consumer_fail_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gazette_spark.cli.shards.CONNECT_S", 0.1)
    with EmbeddedBroker(tmp_path) as broker:
        command = ["shards", "--consumer", broker.endpoint, "list"]
        of_broker = CliRunner().invoke(main, command)
    began = time.monotonic()
    of_nobody = CliRunner().invoke(main, command)
    assert time.monotonic() - began < 5, "a client waits ten seconds by default"
    for found, problem in ((of_broker, "it may be a broker's"), (of_nobody, "unavailable")):
        assert (found.exit_code, problem in found.stderr) == (1, True)
    assert "Check CONSUMER_ADDRESS" in of_broker.stderr
    assert "Check --consumer or CONSUMER_ADDRESS, and the consumer" in of_nobody.stderr


def test_shards_are_looked_for_where_they_are_served() -> None:
    """``shards`` uses the default port of ``consumer serve``, which differs from a broker's."""
    words = (["consumer", "serve"], ["shards"])
    serve, shards = (CliRunner().invoke(main, [*each, "--help"]).stdout for each in words)
    (port,) = re.findall(r"--port .*?\[default:\s+(\d+)", serve, re.DOTALL)
    assert re.findall(r"--consumer .*?\[default:\s+(\S+)\]", shards, re.DOTALL) == [
        f"http://localhost:{port}"
    ]


def test_help_lists_every_group_without_loading_it() -> None:
    """``--help`` loads neither Spark nor gRPC nor the module of any group."""
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
    answer = CliRunner().invoke(main, [name, "--help"], catch_exceptions=False)
    assert answer.exit_code == 0
    assert "Usage: " in answer.output


def test_help_groups_the_commands() -> None:
    assert [name for names in SECTIONS.values() for name in names] == list(COMMANDS)
    lines = CliRunner().invoke(main, ["--help"], terminal_width=80).output.splitlines()
    for section, names in SECTIONS.items():
        begin = lines.index(f"{section}:") + 1
        shown = [line.split(maxsplit=1) for line in lines[begin : begin + len(names)]]
        assert shown == [[name, COMMANDS[name][1]] for name in names]


@pytest.mark.parametrize("group", ["broker", "consumer", "journals", "lag", "offsets", "shards"])
def test_help_cuts_no_line_of_a_command(group: str) -> None:
    help_text = CliRunner().invoke(main, [group, "--help"], terminal_width=80).output
    assert "..." not in help_text.partition("Commands:")[2]


def test_version_is_the_packages() -> None:
    assert VERSION in CliRunner().invoke(main, ["--version"]).output


def test_text_in_place_of_an_integer() -> None:
    done = CliRunner().invoke(main, ["journals", "read", "shop/orders", "--offset", "abc"])
    assert done.exit_code == 2
    assert "'abc' is not a valid integer.\n" in done.output


@pytest.mark.parametrize(
    "words",
    [
        ["journals", "--timeout", "{}", "list"],
        ["lag", "show", "--table", "x", "--timeout", "{}"],
        ["lag", "show", "--table", "x", "--for", "{}"],
        ["lag", "serve", "--table", "x", "--interval", "{}"],
        ["broker", "serve", "--pulse-interval", "{}", "--port", "none"],
        ["demo", "--rate", "{}", "--kill", "none"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("number", ["nan", "inf", "-1", "1e10"])
def test_no_time_is_endless_or_negative(words: list[str], number: str) -> None:
    """With such a timeout a command would wait forever, or not at all and then blame the broker."""
    done = CliRunner().invoke(main, [word.format(number) for word in words])
    assert done.exit_code == 2
    assert number in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--etcd", "nonsense"], "'--etcd': got 'nonsense'; expected a URL"),
        (["--etcd", "localhost:2379"], "option '--etcd': got 'localhost:2379'"),
        (["--etcd", "http://a:1", "--etcd-ca-file", "/none"], "'--etcd-ca-file': got '/none': No such file"),
        (["--etcd", "http://a:1", "--advertise", "nonsense"], "--advertise: must be an absolute URL"),
        (["--etcd", "http://a:1", "--id", "a b"], "--id: "),
        (["--etcd", "http://a:1", "--id", "py1"], "--id: "),
    ],
)
def test_a_cluster_that_nothing_can_join_is_wrong_usage(words: list[str], problem: str) -> None:
    """A member with an address that is not a URL would be in Etcd, but no other member could call it."""

    @click.command()
    @cluster_options
    def joins(cluster: ClusterOptions) -> None:
        cluster.open_etcd().close()
        cluster.member("http://127.0.0.1:1")

    done = CliRunner().invoke(joins, words)
    assert done.exit_code == 2
    assert problem in done.stderr


def test_a_timeout_that_the_client_refuses() -> None:
    answer = CliRunner().invoke(main, ["journals", "--timeout", "3e6", "--broker", "http://a:1", "list"])
    assert "option '--timeout': got 3000000.0; expected" in answer.stderr


def test_unknown_commands_are_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["jurnals"]).exit_code == 2


def test_an_error_is_one_line_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_an_error_of_one_line(tmp_path: Path) -> None:
    """A traceback would look like a bug in the command."""
    command = [sys.executable, "-m", "gazette_spark.cli", "journals", "list"]
    with EmbeddedBroker(tmp_path) as broker, Path("/dev/full").open("wb") as full:
        env = {**os.environ, "BROKER_ADDRESS": broker.endpoint}
        done = subprocess.run(
            command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "Error: cannot write the output or a temporary file: No space left on device\n",
    )


def test_heads_of_a_listing_with_journals_that_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brokers refuse to read a write-only journal, and a journal may be deleted after the listing."""
    with EmbeddedBroker(tmp_path) as broker, Client(broker.endpoint) as client:
        specs = [journal_spec(f"shop/{name}") for name in ("clicks", "deleted", "written")]
        specs[2].flags = pb.JournalSpec.O_WRONLY
        client.create_journals(*specs)
        client.append("shop/clicks", b"four")
        listing = client.list_all_journals()
        client.apply([pb.ApplyRequest.Change(delete="shop/deleted", expect_mod_revision=-1)])
        show_listing(client, listing, Printer("table"), ["name", "write_head"], [])
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]] == ["4", "<none>", "<none>"]


@pytest.mark.parametrize(
    ("command", "output"),
    [("fragments", '"end": 4'), ("gaps", ""), ("read", "four")],
)
def test_a_selection_with_journals_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, output: str
) -> None:
    """One is write-only, and one is deleted after it was listed. The command shows the others."""
    list_journals = Client.list_journals

    def delete_listed(client: Client, selector: str) -> list[pb.ListResponse.Journal]:
        listed = list_journals(client, selector)
        client.apply([pb.ApplyRequest.Change(delete="shop/a", expect_mod_revision=-1)])
        return listed

    with EmbeddedBroker(tmp_path) as broker, Client(broker.endpoint) as client:
        specs = [journal_spec(f"shop/{name}") for name in ("a", "clicks", "written")]
        specs[2].flags = pb.JournalSpec.O_WRONLY
        client.create_journals(*specs)
        client.append("shop/clicks", b"four")
        monkeypatch.setattr(Client, "list_journals", delete_listed)
        options = ["--broker", broker.endpoint, "-l", "prefix=shop/"]
        options += [] if command == "read" else ["-o", "jsonl"]
        answer = CliRunner().invoke(main, ["journals", command, *options])
    assert (answer.exit_code, output in answer.stdout) == (0, True), answer.stderr
    assert answer.stderr.splitlines()[:2] == [
        "shop/written is left out, because it is write-only",
        "shop/a is left out, because it was deleted",
    ]


def test_a_followed_journal_is_deleted_before_the_watch_notices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its reader fails first, which must not end the others."""
    with EmbeddedBroker(tmp_path) as broker, Client(broker.endpoint) as client, progress("reading") as bar:
        client.create_journals(journal_spec("shop/clicks"))
        sink = ChunkWriter(io.BytesIO(), "raw", Interrupts(), bar)
        pumps = Pumps(sink, lambda name: AllBytes(client.read(name, block=True)), {})
        pumps.keep({"shop/clicks": 1, "shop/deleted": 2})
        pumps._running["shop/deleted"][1].join()
        assert pumps._running["shop/clicks"][1].is_alive()
        client.create_journals(journal_spec("shop/deleted"))
        pumps.keep({"shop/clicks": 1, "shop/deleted": 3})
        assert pumps._running["shop/deleted"][1].is_alive()
        pumps.keep({})
    assert pumps.failure is None
    said = capsys.readouterr().err.splitlines()
    assert "shop/deleted is left out, because it was deleted" in said
    assert "shop/deleted was created again, and is read like a new journal" in said


PLACES = [
    pytest.param(["--broker", "{url}", "journals", "list"], id="before the group"),
    pytest.param(["journals", "--broker", "{url}", "list"], id="group"),
    pytest.param(["journals", "list", "--broker", "{url}"], id="command"),
    pytest.param(
        ["--broker", "http://a:1", "journals", "list", "--broker", "{url}"], id="the inner one wins"
    ),
    pytest.param(["lag", "--broker", "{url}", "show", "--table", "x"], id="lag group"),
    pytest.param(["lag", "show", "--table", "x", "--broker", "{url}"], id="lag command"),
    pytest.param(["--broker", "{url}", "verify", "."], id="before verify"),
]


@pytest.mark.parametrize("words", PLACES)
def test_the_broker_is_named_at_any_place(words: list[str]) -> None:
    arguments = [word.format(url="localhost:8080") for word in words]
    answer = CliRunner(env={"BROKER_ADDRESS": "http://other:1"}).invoke(main, arguments)
    assert "option '--broker': got 'localhost:8080'; expected a URL" in answer.stderr
    assert answer.exit_code == 2


def test_a_broker_that_a_command_would_not_use_is_refused(tmp_path: Path) -> None:
    """Quickstart starts its own broker, so the user would believe the table is filled from the given one."""
    (tmp_path / "file").write_text("")
    answer = CliRunner().invoke(main, ["--broker", "http://a:1", "quickstart", "--keep", str(tmp_path)])
    assert (answer.exit_code, "starts its own broker" in answer.stderr) == (2, True)


@pytest.mark.parametrize("words", [["journals", "list"], ["lag", "show", "--table", "x"]], ids=" ".join)
def test_the_environment_names_the_broker(words: list[str]) -> None:
    answer = CliRunner(env={"BROKER_ADDRESS": "localhost:8080"}).invoke(main, words)
    assert (answer.exit_code, "option 'BROKER_ADDRESS': got 'localhost:8080'" in answer.stderr) == (2, True)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_an_empty_address_is_refused(before: int) -> None:
    """It comes from an unset variable, and the default could be a broker that the user did not mean."""
    words = ["journals", "list"]
    answer = CliRunner().invoke(main, [*words[:before], "--broker", "", *words[before:]])
    assert (answer.exit_code, "it is empty; give a URL" in answer.stderr) == (2, True)


def test_an_option_of_the_group_after_the_command_is_pointed_out() -> None:
    """``--broker`` is accepted anywhere, so users expect the same of the other options."""
    answer = CliRunner().invoke(
        main, ["shards", "list", "--consumer", "http://a:1"], prog_name="gazette-spark"
    )
    problem = "--consumer comes before the command: gazette-spark shards --consumer … list"
    assert (answer.exit_code, answer.stderr.splitlines()[-1]) == (2, f"Error: {problem}")


def test_a_host_that_nobody_knows_is_named_in_one_sentence() -> None:
    """The text of gRPC contains internal field names."""
    error = UnavailableError(
        "http://nowhere.invalid:8080",
        "errors resolving nowhere.invalid:8080: [field:hostname lookup error:address lookup failed for "
        "nowhere.invalid:8080: Domain name not found]",
    )
    assert str(error) == (
        "broker http://nowhere.invalid:8080: unavailable: the name of its host cannot be looked up "
        "(Domain name not found). Check brokerAddress (for a command, --broker or BROKER_ADDRESS) and "
        "the broker"
    )


def test_a_look_without_a_broker_names_the_option(tmp_path: Path) -> None:
    words = ["lag", "show", "--table", str(tmp_path), "--broker", "http://127.0.0.1:1", "--timeout", "0.2"]
    answer = CliRunner().invoke(main, words)
    assert answer.exit_code == 3
    assert "Check --broker or BROKER_ADDRESS, and the broker" in answer.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_works_as_its_page_says(shell: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    (variable,) = re.findall(rf"`[^`]*\b(\w+)={shell}_source gazette-spark[^`]*`", page)
    script = CliRunner().invoke(main, [], prog_name="gazette-spark", env={variable: f"{shell}_source"})
    assert (script.exit_code, f"{variable}={shell}_complete" in script.stdout) == (0, True)
    typed = {"COMP_WORDS": "gazette-spark jour", "COMP_CWORD": "jour" if shell == "fish" else "1"}
    answer = CliRunner().invoke(
        main, [], prog_name="gazette-spark", env={variable: f"{shell}_complete", **typed}
    )
    assert "journals" in answer.stdout


def test_a_slip_gets_a_suggestion() -> None:
    answer = CliRunner().invoke(main, ["journal", "list"])
    assert "Did you mean 'journals'?" in answer.stderr
