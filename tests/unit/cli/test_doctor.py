"""``gazette-spark doctor`` finds broken parts and says how to fix each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner

from gazette_spark.cli.doctor import (
    Finding,
    check_clock,
    check_java,
    check_native,
    check_python,
    check_spark,
    check_token,
    lines,
)
from gazette_spark.cli.main import main
from gazette_spark.client._list.listing import ListedFragment
from gazette_spark.errors import JournalNotFoundError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.rig.native import require_library, without_library

NOW_S = 1_800_000_000
KEY = "k" * 32


def only(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    assert (finding.state == "problem") == bool(finding.remedy)
    return finding


def program(directory: Path, text: str) -> str:
    (directory / "bin").mkdir()
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)
    return str(directory)


def test_python_and_that_of_workers() -> None:
    assert only(check_python((3, 11, 2), sys.executable, {})).state == "ok"
    assert only(check_python((3, 9, 2), sys.executable, {})).state == "problem"
    ours, workers = check_python((3, 12, 0), sys.executable, {"PYSPARK_PYTHON": "/bin/sh"})
    assert (ours.state, workers.state) == ("ok", "problem")
    assert f"export PYSPARK_PYTHON={sys.executable}" in workers.remedy
    assert only(check_python((3, 12, 0), sys.executable, {"PYSPARK_PYTHON": sys.executable})).state == "ok"


def test_the_command_for_workers_is_the_python_beside_it(tmp_path: Path) -> None:
    """Another interpreter is a problem only if it belongs to a different environment."""
    for environment, python in (("ours", sys.executable), ("another", "/bin/sh")):
        (tmp_path / environment).mkdir()
        (tmp_path / environment / "python").symlink_to(python)
        (tmp_path / environment / "gazette-spark-python").touch()
    python = str(tmp_path / "ours" / "python")
    ours = {"PYSPARK_PYTHON": str(tmp_path / "ours" / "gazette-spark-python")}
    assert only(check_python((3, 12, 0), python, ours)).state == "ok"
    another = {"PYSPARK_PYTHON": str(tmp_path / "another" / "gazette-spark-python")}
    _, workers = check_python((3, 12, 0), python, another)
    assert workers.state == "problem"


def test_the_native_decoder() -> None:
    """A missing decoder is reported with its reason, but it is not a problem."""
    with without_library():
        absent = only(check_native())
    assert absent.state == "skipped"
    assert "switched off by GAZETTE_SPARK_NATIVE=0. JSON is read without it" in absent.text
    require_library()
    assert (only(check_native()).state, only(check_native()).text) == ("ok", "JSON decoder 0.1.0 is loaded")


@pytest.mark.parametrize(
    ("said", "state"),
    [
        pytest.param('openjdk version "17.0.15" 2025-04-15', "ok", id="17"),
        pytest.param('openjdk version "21" 2023-09-19', "ok", id="21"),
        pytest.param('java version "1.8.0_202"', "problem", id="8"),
        pytest.param("no such thing", "problem", id="not java"),
    ],
)
def test_versions_of_java(tmp_path: Path, said: str, state: str) -> None:
    """Spark runs on Java 17 and 21."""
    found = only(check_java({"JAVA_HOME": program(tmp_path, said)}))
    assert (found.state, said in found.text) == (state, True)


def test_no_java() -> None:
    assert only(check_java({"JAVA_HOME": "/nowhere"})).text == "no Java in JAVA_HOME (/nowhere)"
    assert only(check_java({"PATH": "/nowhere"})).text == "no Java on PATH"


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        pytest.param({"pyspark": "4.2.0", "delta-spark": "4.4.0"}, "", id="a pair"),
        pytest.param(
            {"pyspark": "4.1.1", "delta-spark": "4.4.0"}, "but pyspark 4.1.1 is installed", id="no pair"
        ),
        pytest.param({"pyspark": "4.2.0"}, "delta-spark is not installed", id="no delta"),
        pytest.param({"delta-spark": "4.4.0"}, "pyspark is not installed", id="no spark"),
        pytest.param({"pyspark-client": "4.2.0", "delta-spark": "4.4.0"}, "", id="connect"),
    ],
)
def test_spark_and_delta_belong_together(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], problem: str
) -> None:
    """The Delta package declares which Spark releases it supports."""

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda _name: ["numpy", "pyspark<4.3.0,>=4.2.0; extra == 'x'"])
    found = list(check_spark())
    problems = [each.text for each in found if each.state == "problem"]
    assert [problem in text for text in problems] == [True] * bool(problem)
    assert all("pip install" in each.remedy for each in found if each.state == "problem")


@pytest.mark.parametrize(("monitor", "state"), [("uvicorn", "skipped"), ("", "problem")])
def test_a_machine_for_the_lag_monitor_needs_no_spark(
    monkeypatch: pytest.MonkeyPatch, monitor: str, state: str
) -> None:
    def version(name: str) -> str:
        if name != monitor:
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    answer = CliRunner().invoke(
        main, ["--broker", "http://127.0.0.1:1", "doctor", "--timeout", "0.2", "--format", "json"]
    )
    states = {finding["check"]: finding["state"] for finding in json.loads(answer.stdout)}
    assert {states.get(name, "skipped") for name in ("java", "spark", "delta")} == {state}


def test_the_help_shows_the_timeout_that_applies() -> None:
    """A broker that does not answer is a finding, so the default is shorter than that of other commands."""
    assert "[default: 10.0; x>0]" in CliRunner().invoke(main, ["doctor", "--help"]).stdout


def token(**claims: object) -> str:
    return jwt.encode(claims, KEY)


@pytest.mark.parametrize(
    ("env", "state", "text"),
    [
        pytest.param({}, "skipped", "none is set", id="none"),
        pytest.param({"BROKER_AUTH_KEYS": "c2VjcmV0"}, "ok", "signed for each call", id="keys"),
        pytest.param({"BROKER_AUTH_TOKEN": token(exp=NOW_S + 90)}, "ok", "valid for 90 s", id="good"),
        pytest.param({"BROKER_AUTH_TOKEN": token(sub="me")}, "ok", "does not expire", id="lasting"),
        pytest.param({"BROKER_AUTH_TOKEN": token(exp=NOW_S - 5)}, "problem", "expired 5 s ago", id="expired"),
        pytest.param({"BROKER_AUTH_TOKEN": "garbage"}, "problem", "is not a token", id="garbage"),
        pytest.param({"BROKER_AUTH_TOKEN_FILE": "/none"}, "problem", "/none cannot be read", id="no file"),
    ],
)
def test_tokens(env: dict[str, str], state: str, text: str) -> None:
    """The doctor shows a token's remaining lifetime but no part of the token."""
    found = only(check_token(env, NOW_S))
    assert (found.state, text in found.text) == (state, True)
    assert not any(secret in str(found) for name, secret in env.items() if not name.endswith("_FILE"))


class Stored:
    def __init__(self, mod_time: int) -> None:
        self._fragment = Fragment("a/journal", 0, 1, bytes(20), pb.NONE, "file:///", mod_time)

    def list_fragments(self, _journal: str) -> list[ListedFragment]:
        return [ListedFragment(self._fragment, "")]


@pytest.mark.parametrize(
    ("mod_time", "state"), [(0, "skipped"), (NOW_S - 9, "ok"), (NOW_S + 3600, "problem")], ids=str
)
def test_a_clock_that_is_behind(mod_time: int, state: str) -> None:
    """A fragment cannot have been stored in the future, so the local clock must be behind."""
    found = only(check_clock(Stored(mod_time), ["a/journal"], NOW_S))  # type: ignore[arg-type]  # Its one method.
    assert found.state == state


def test_a_journal_whose_fragments_cannot_be_listed() -> None:
    """Without fragments the clock is not checked, and the broker is not blamed."""

    class Unlisted:
        def list_fragments(self, journal: str) -> None:
            raise JournalNotFoundError(journal)

    found = only(check_clock(Unlisted(), ["a/journal"], NOW_S))  # type: ignore[arg-type]  # Its one method.
    assert found.state == "skipped"
    assert "'a/journal'" in found.text


def test_lines_show_the_remedy_below() -> None:
    shown = list(lines([Finding("java", "problem", "none", "install it"), Finding("python", "ok", "3.12")]))
    assert shown == ["PROBLEM  java    none", "                 -> install it", "OK       python  3.12"]


def test_java_first_says_which_variables_it_takes_options_from(tmp_path: Path) -> None:
    said = 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.15" 2025-04-15'
    found = only(check_java({"JAVA_HOME": program(tmp_path, said)}))
    assert (found.state, found.text.partition(",")[0]) == ("ok", 'openjdk version "17.0.15" 2025-04-15')


def test_the_python_of_another_virtual_environment(tmp_path: Path) -> None:
    """Both are links to the interpreter that made them, which has the packages of neither."""
    base = Path(sys.executable).resolve()
    for environment in ("ours", "another"):
        (tmp_path / environment / "bin").mkdir(parents=True)
        (tmp_path / environment / "pyvenv.cfg").touch()
        (tmp_path / environment / "bin" / "python").symlink_to(base)
    (tmp_path / "ours" / "bin" / "python3").symlink_to("python")
    python = str(tmp_path / "ours" / "bin" / "python")
    same = {"PYSPARK_PYTHON": str(tmp_path / "ours" / "bin" / "python3")}
    assert only(check_python((3, 12, 0), python, same)).state == "ok"
    for workers in (tmp_path / "another" / "bin" / "python", base):
        _, found = check_python((3, 12, 0), python, {"PYSPARK_PYTHON": str(workers)})
        assert found.state == "problem"
