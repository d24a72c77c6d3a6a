"""``gazette-spark verify`` connects as the other commands do, and lists what it did not compare."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from gazette_spark._verify.tiling import CommittedSpan, CoveredRange, Difference, Tiling
from gazette_spark._verify.verify import ComparedRange, Report
from gazette_spark.cli.journal_options import Connect
from gazette_spark.cli.main import main
from gazette_spark.cli.verify import report_json, report_lines, source_options, spark_errors
from gazette_spark.errors import InputError
from tests.waiting import wait_until


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--dead-letters", "shop.dead"], id="dead letters without a location"),
        pytest.param(["--conf", "spark.master"], id="setting without a value"),
        pytest.param(["--remote", "sc://host", "--conf", "a=b"], id="settings of a server"),
    ],
)
def test_an_invalid_command_line_has_its_own_exit_code(flags: list[str]) -> None:
    found = CliRunner().invoke(main, ["verify", "table", *flags])
    assert found.exit_code == 2
    assert flags[-2] in found.stderr


def test_a_table_that_is_not_there_is_said_before_spark_starts() -> None:
    found = CliRunner().invoke(main, ["verify", "nowhere"])
    assert found.exit_code == 2
    assert "there is no directory 'nowhere'; TABLE is a directory, a URL, or iceberg:CATALOG" in found.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[FAILED_READ_FILE] Encountered error while reading file a.parquet\nJVM stacktrace:\nat a.B.c",
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'a'. (line 1, pos 1)\n\n== SQL ==\n a\n-^^^\n",
    ],
)
def test_an_error_of_spark_is_shown_by_its_first_line(text: str) -> None:
    with pytest.raises(InputError) as caught, spark_errors():
        raise PySparkException(text)
    assert str(caught.value) == f"Spark could not compare the table: {text.strip().splitlines()[0]}"


@pytest.mark.parametrize("remote", [False, True])
def test_executors_enter_the_cluster_as_the_command_does(tmp_path: Path, remote: bool) -> None:
    """Certificates travel as contents. So does a token, for executors that do not have its file."""
    token, authority = tmp_path / "token", tmp_path / "ca.pem"
    token.write_text("secret\n")
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    environ = {"BROKER_AUTH_TOKEN": "older", "BROKER_AUTH_KEYS": "c2VjcmV0"}
    flags = {"--auth-token-file": str(token), "--tls-ca-file": str(authority)}
    found = source_options(
        Connect("https://broker", 1, environ, flags),
        remote=remote,
        framing="lines",
        separator=";",
        quote="'",
        max_record_bytes=7,
        uuid_path="/id",
        include_acks=True,
    )
    identity = {"auth.token": "secret"} if remote else {"auth.tokenFile": str(token)}
    assert found == identity | {
        "brokerAddress": "https://broker",
        "framing": "lines",
        "sep": ";",
        "quote": "'",
        "maxRecordBytes": "7",
        "uuidPath": "/id",
        "includeAcks": "true",
        "tls.ca": "-----BEGIN CERTIFICATE-----\n",
    }


@pytest.mark.parametrize(
    ("flags", "missing", "packages"),
    [
        pytest.param([], "pyspark.sql", "pip install 'gazette-spark[spark]' (for", id="local"),
        pytest.param(
            ["--remote", "sc://host"],
            "pyspark.sql.connect.session",
            "pip install 'pyspark[connect]' (for",
            id="remote",
        ),
    ],
)
def test_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], missing: str, packages: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    found = CliRunner().invoke(main, ["verify", str(tmp_path), *flags])
    assert found.exit_code == 3
    assert packages in found.stderr


def test_a_jvm_that_does_not_start_ends_in_one_line(tmp_path: Path) -> None:
    """The JVM's output precedes the error because it was not shown on the terminal."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho jars cannot be resolved >&2\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "table").mkdir()
    environ = {"JAVA_HOME": str(tmp_path / "java")}
    words = ["verify", "--spark", "--entries-only", str(tmp_path / "table")]
    command = [sys.executable, "-m", "gazette_spark.cli", *words]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=False)
    *log, line = done.stderr.splitlines()
    assert done.returncode == 3
    assert "jars cannot be resolved" in log
    assert line.startswith("Error: not verified: option 'spark': got a JVM that does not start")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_removes_sparks_scratch_files(tmp_path: Path, number: int) -> None:
    """A comparison may spill gigabytes there."""
    java, scratch, table = tmp_path / "java" / "bin" / "java", tmp_path / "scratch", tmp_path / "table"
    for directory in (java.parent, scratch, table):
        directory.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec cat >/dev/null\n")  # Like a JVM of PySpark, it ends with its input.
    java.chmod(0o755)
    environ = os.environ | {"JAVA_HOME": str(tmp_path / "java"), "TMPDIR": str(scratch)}
    words = ["verify", "--spark", "--entries-only", str(table)]
    command = [sys.executable, "-m", "gazette_spark.cli", *words]
    # A background job of a shell ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        verify = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
    finally:
        signal.signal(signal.SIGINT, before)
    with verify:
        wait_until("Spark starts", lambda: bool([*scratch.glob("verify-*/spark.log")]))
        verify.send_signal(number)
        _, err = verify.communicate(timeout=60)
    assert (verify.returncode, err.splitlines()[-1:]) == (130, ["interrupted"])
    assert not [*scratch.glob("verify-*")]


def test_a_missing_java_is_named(tmp_path: Path) -> None:
    words = ["verify", "--spark", "--entries-only", str(tmp_path)]
    answer = CliRunner(env={"JAVA_HOME": "/nowhere"}).invoke(main, words)
    assert answer.exit_code == 3
    assert "got no Java in JAVA_HOME (/nowhere); expected Java 17 or 21" in answer.stderr


def report(*ranges: ComparedRange) -> Report:
    claim = CoveredRange("app", 0, "a/b", 0, 30, 1, (CommittedSpan(0, 30, 1),))
    return Report("t", 1, "bytes", [Tiling("app", 1, (claim,), False, False)], list(ranges), {"a/b": 3})


def test_what_was_not_compared_is_listed() -> None:
    part = ComparedRange("app", "a/b", 0, 10, "nothing", "the journal no longer has these bytes")
    found = report(part, ComparedRange("app", "a/b", 10, 30, "bytes"))
    found.unproven = ["the journal no longer has these bytes"]
    lines = "\n".join(report_lines(found)).splitlines()
    assert lines[-3].split() == ["app", "a/b", "0", "10", "not", "at", "all", *str(part.reason).split()]
    assert lines[-1] == "NOT VERIFIED: the journal no longer has these bytes"
    assert not any(line.startswith("VERIFIED") for line in lines)


def test_dead_letters_that_were_not_counted_are_unknown() -> None:
    """``--entries-only`` counts neither records nor dead letters, so JSON has null instead of 0."""
    unread = report()
    unread.records = {}
    counts = [
        (journal["records"], journal["dead_letters"])
        for result in (unread, report())
        for journal in report_json(result, "t")["journals"]
    ]
    assert counts == [(None, None), (3, 0)]


WHOLE = ComparedRange("app", "a/b", 0, 30, "bytes")
GONE = ComparedRange("app", "a/b", 0, 10, "nothing", "gone", accepted=True)


@pytest.mark.parametrize(
    ("ranges", "changes", "verdict"),
    [
        pytest.param(
            [WHOLE],
            {"records": {"a/b": 2403}},
            "VERIFIED: 2,403 records, each once; table version 1, compared by offset and bytes.",
            id="bytes",
        ),
        pytest.param(
            [WHOLE],
            {"depth": "offsets", "dead": {"a/b": 1}},
            "VERIFIED: 3 records, each once, 1 of them in a dead letter table; table version 1, compared by "
            "offset, not by bytes.",
            id="offsets",
        ),
        pytest.param(
            [],
            {"depth": "entries"},
            "VERIFIED: the ledger of table version 1; no row was compared.",
            id="ledger alone",
        ),
        pytest.param(
            [GONE, ComparedRange("app", "a/b", 10, 30, "bytes")],
            {"records": {"a/b": 1}},
            "VERIFIED, but for the offsets listed: 1 record, each once; table version 1, compared by offset "
            "and bytes.",
            id="accepted",
        ),
        pytest.param(
            [],
            {"depth": "counts", "unproven": ["the columns are missing"]},
            "NOT VERIFIED: the columns are missing",
            id="not verified",
        ),
        pytest.param(
            [],
            {"difference": Difference("there is no row for this record", 2, "a/b", 10)},
            f"DIFFERENT: {Difference('there is no row for this record', 2, 'a/b', 10)}",
            id="different",
        ),
    ],
)
def test_the_last_line_is_the_verdict(
    ranges: list[ComparedRange], changes: dict[str, object], verdict: str
) -> None:
    *above, last = report_lines(replace(report(*ranges), **changes))  # type: ignore[arg-type]  # Fields by name, of mixed types.
    assert last == verdict
    assert ("1 ledger entry covers" in "\n".join(above)) == (changes.get("depth") == "entries")
