"""A driver and all its child processes are stopped, resumed and killed together."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gazette_spark.testing.crash import CrashChild, session_members

SCRIPT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("started", flush=True)
time.sleep(600)
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def states(session: int) -> set[str]:
    """Return the kernel's states of a session's processes; T means stopped."""
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in session_members(session)]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def test_a_paused_child_stands_still(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    log = tmp_path / "log"
    with CrashChild(script, [], log=log) as child:
        session = child._process.pid
        # Until then, the parent may wait in the kernel for the child's exec, which SIGSTOP would block.
        wait_until(lambda: "started" in log.read_text())
        assert len(session_members(session)) == 2
        with child.paused():
            wait_until(lambda: states(session) == {"T"})
        wait_until(lambda: "T" not in states(session))
    assert session_members(session) == []
