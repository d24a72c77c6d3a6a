"""The query's process is killed with all it started, and its own end is noticed and explained."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from gazette_spark.demo.child import QueryDiedError, QueryProcess
from gazette_spark.testing.crash import session_members

FAMILY = """
import os, subprocess, sys
# As PySpark's worker daemon: a process group of its own, in the same session.
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE,
                         process_group=0)
print("started", os.getpid(), child.pid, flush=True)
sys.stdin.readline()
"""


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds, at most ten seconds."""
    deadline = monotonic() + 10
    while not condition():
        assert monotonic() < deadline, "waited ten seconds"


def is_whole(log: Path) -> bool:
    """Tell whether a line is in the log to its end: an unbuffered child writes it piece by piece."""
    return log.exists() and log.read_text().endswith("\n")


def python(code: str) -> list[str]:
    """Return the command that runs ``code``."""
    return [sys.executable, "-c", code]


def test_a_kill_takes_the_whole_family(tmp_path: Path) -> None:
    """A child's child in another process group is gone, too, when ``kill`` returns."""
    log = tmp_path / "log"
    with QueryProcess(python(FAMILY), log) as process:
        process.start()
        wait_for(lambda: is_whole(log))
        leader, worker = map(int, log.read_text().split()[1:])
        assert set(session_members(leader)) == {leader, worker}
        process.kill()
        assert session_members(leader) == []


def test_leaving_the_context_kills_a_running_child(tmp_path: Path) -> None:
    """Nothing is left behind when the demo fails."""
    log = tmp_path / "log"
    with QueryProcess(python(FAMILY), log) as process:
        process.start()
        wait_for(lambda: is_whole(log))
        leader = int(log.read_text().split()[1])
    assert session_members(leader) == []


def test_a_killed_child_can_be_started_again(tmp_path: Path) -> None:
    """The second run adds to the same log."""
    log = tmp_path / "log"
    with QueryProcess(python("print('up', flush=True); input()"), log) as process:
        for run in (1, 2):
            process.start()

            def is_up(run: int = run) -> bool:
                return log.read_text().count("up\n") == run

            wait_for(is_up)
            process.check()
            process.kill()
    assert log.read_text() == "up\nup\n"


def test_a_child_that_dies_by_itself_shows_its_log(tmp_path: Path) -> None:
    """The error holds the exit code and the last words."""
    with QueryProcess(python("print('out of luck'); raise SystemExit(7)"), tmp_path / "log") as process:
        process.start()

        def never() -> bool:
            process.check()
            return False

        with pytest.raises(QueryDiedError, match="exit code 7") as caught:
            wait_for(never)
    assert caught.value.log_tail == "out of luck"


def test_finish_asks_and_waits(tmp_path: Path) -> None:
    """The child ends by itself after it was told to."""
    with QueryProcess(python("print('told to', input())"), tmp_path / "log") as process:
        process.start()
        process.finish(10)
    assert (tmp_path / "log").read_text() == "told to finish\n"


@pytest.mark.parametrize(
    ("code", "patience_s", "problem"),
    [
        pytest.param("input(); raise SystemExit(3)", 30, "exit code 3", id="fails"),
        pytest.param("import threading; threading.Event().wait(60)", 0.5, "within 0.5 s", id="hangs"),
    ],
)
def test_a_bad_end_is_an_error(tmp_path: Path, code: str, patience_s: float, problem: str) -> None:
    """A child that cannot finish is not waited for without a limit."""
    with QueryProcess(python(code), tmp_path / "log") as process:
        process.start()
        with pytest.raises(QueryDiedError, match=problem):
            process.finish(patience_s)


def test_this_session_is_seen() -> None:
    """The test's own process is a member of its session."""
    assert os.getpid() in session_members(os.getsid(0))


def test_downloads_are_told_once(tmp_path: Path) -> None:
    """Whole lines of the log that say so count, each once."""
    log = tmp_path / "log"
    process = QueryProcess(python("pass"), log)
    assert process.downloads() == []
    log.write_text("WARN something\ndownloading https://repo/delta.jar ...\ndownloading https://re")
    assert process.downloads() == ["downloading https://repo/delta.jar"]
    with log.open("a") as file:
        file.write("po/storage.jar ...\n")
    assert process.downloads() == ["downloading https://repo/storage.jar"]
    assert process.downloads() == []
