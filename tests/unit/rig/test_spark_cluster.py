"""A server ends with the process that started it, and its errors include its log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gazette_spark.testing.crash import session_members
from tests.rig.spark_cluster import ServerError, SparkProcess

SLEEPER = ["sh", "-c", "echo ready at $$; sleep 600"]
READY = re.compile(r"ready at (\d+)")
WITHIN_S = 20


def test_leaving_it_ends_all_it_started(tmp_path: Path) -> None:
    with SparkProcess(SLEEPER, log=tmp_path / "log", env=os.environ) as process:
        session = os.getsid(int(process.wait_for_log(READY, WITHIN_S).group(1)))
        assert len(session_members(session)) >= 3
    assert not session_members(session)


def test_it_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    """The process ends even if its starter is killed without time to clean up."""
    log = tmp_path / "log"
    starter = (
        "import os, sys; from pathlib import Path; "
        "from tests.rig.spark_cluster import SparkProcess; "
        f"SparkProcess({SLEEPER!r}, log=Path({str(log)!r}), env=os.environ); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdin=subprocess.PIPE) as parent:
        deadline = time.monotonic() + WITHIN_S
        while not (log.exists() and READY.search(log.read_text())):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        found = READY.search(log.read_text())
        assert found
        session = os.getsid(int(found.group(1)))
        parent.kill()
    while session_members(session):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("status", [0, 3])
def test_an_end_before_it_is_ready_is_told(tmp_path: Path, status: int) -> None:
    command = ["sh", "-c", f"echo no luck; exit {status}"]
    with (
        SparkProcess(command, log=tmp_path / "log", env=os.environ) as process,
        pytest.raises(ServerError, match="no luck"),
    ):
        process.wait_for_log(READY, WITHIN_S)


def test_a_failure_is_told(tmp_path: Path) -> None:
    with (
        SparkProcess(["sh", "-c", "exit 3"], log=tmp_path / "log", env=os.environ) as process,
        pytest.raises(ServerError, match="returncode=3"),
    ):
        process.wait(WITHIN_S)
    with SparkProcess(["sh", "-c", "exit 0"], log=tmp_path / "log", env=os.environ) as process:
        process.wait(WITHIN_S)
