"""A local session takes Delta's jars from the class path if they are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gazette_spark import session
from gazette_spark.errors import MissingPackageError
from gazette_spark.session import children_log_to, delta_is_on_class_path, local_spark

COMPLAIN = [sys.executable, "-c", "import sys; print('a line about jars', file=sys.stderr)"]


@pytest.mark.parametrize(
    ("jars", "found"),
    [
        pytest.param({}, False, id="no class path"),
        pytest.param({"SPARK_DIST_CLASSPATH": "/jars/other.jar"}, False, id="other jars"),
        pytest.param(
            {"SPARK_DIST_CLASSPATH": "/jars/other.jar:/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar"},
            True,
            id="a jar of Delta",
        ),
    ],
)
def test_the_class_path_says_where_delta_is(jars: dict[str, str], found: bool) -> None:
    """A class path counts only if it has a jar of delta-spark."""
    assert delta_is_on_class_path(jars) is found


def test_a_log_takes_what_children_write(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "spark" / "jvm.log"
    with children_log_to(log):
        subprocess.run(COMPLAIN, check=True)
    assert (log.read_text(), capfd.readouterr().err) == ("a line about jars\n", "")
    subprocess.run(COMPLAIN, check=True)
    assert (log.read_text(), capfd.readouterr().err) == ("a line about jars\n", "a line about jars\n")


def test_what_this_process_writes_stays_on_its_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The progress bar stays visible while the JVM's lines go to the file."""
    with os.fdopen(os.dup(2), "w", buffering=1) as own:
        monkeypatch.setattr(sys, "stderr", own)
        monkeypatch.setattr(sys, "__stderr__", own)
        with children_log_to(tmp_path / "jvm.log"):
            sys.stderr.write("starting Spark\n")
        assert sys.stderr is own
    assert capfd.readouterr().err == "starting Spark\n"


@pytest.mark.parametrize("running", [False, True], ids=["no session yet", "a running session"])
def test_a_start_with_a_log_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, running: bool
) -> None:
    """The line comes before the JVM starts, which may take minutes. A running session needs none."""
    said: list[str] = []
    monkeypatch.setattr(session, "start", lambda _builder: said.append(capsys.readouterr().err))
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: object() if running else None)
    local_spark(str(tmp_path), log=str(tmp_path / "spark.log"))
    expected = "" if running else rf"starting Spark[^\n]*\. Its log is in {tmp_path / 'spark.log'}\n"
    assert re.fullmatch(expected, said.pop())
    local_spark(tmp_path)
    assert said == [""], "without a log, the JVM's own lines show that it starts"


def test_a_missing_package_of_delta_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what to install, in place of Python's error about a module."""
    monkeypatch.setitem(sys.modules, "delta", None)
    monkeypatch.delenv("SPARK_DIST_CLASSPATH", raising=False)
    with pytest.raises(
        MissingPackageError, match="needs the package delta-spark: pip install 'gazette-spark"
    ):
        local_spark(tmp_path)


def test_an_error_says_where_the_log_is(tmp_path: Path) -> None:
    """Spark's own error says only that the JVM has exited, and the log has the reason."""
    with pytest.raises(RuntimeError, match="has ended") as caught, children_log_to(tmp_path / "jvm.log"):
        raise RuntimeError("the JVM has ended")
    assert caught.value.__notes__ == [f"The JVM's output is in {tmp_path / 'jvm.log'}"]
