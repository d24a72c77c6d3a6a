"""Run a driver in a separate process, kill all of it with SIGKILL, look at its remains.

A driver is many processes: Python, the JVM, the data source's planner, Python workers. A
:class:`CrashChild` leads a session, which all of them stay in; their process groups differ, because
Spark gives its workers one of their own. :meth:`CrashChild.kill` sends SIGKILL to the leader's group in
one call, so Python and JVM die at one moment, and then to whatever is left of the session. A driver
can also be told to kill itself, at a point that only it can know: see
``tests.rig.crashes``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from gazette_spark.failpoints import FAILPOINT_VARIABLE

POLL_S = 0.02
"""Time between two checks of a condition, and so the maximum delay of a kill that follows it."""

GONE_WITHIN_S = 30.0
"""Time within which a killed session must have disappeared."""

LEADER = (
    "import os, runpy, sys; os.environ['GAZETTE_SPARK_FAILPOINT_GROUP'] = str(os.getpid()); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Runs a script after it has named the group to be killed, which is known in the child only."""


class CrashChild:
    """A driver process and all that it starts. A context manager: leaving it kills the session."""

    def __init__(self, script: Path, arguments: Sequence[str], *, log: Path) -> None:
        """Start ``script``.

        Args:
            script: A Python file.
            arguments: Its arguments.
            log: File that gets its output, appended.
        """
        # A failpoint that is armed for this process is none of the child's.
        env = {name: value for name, value in os.environ.items() if name != FAILPOINT_VARIABLE}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LEADER, str(script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                # One session for all: Spark's workers leave the process group, and nothing that is started
                # here makes a session.
                start_new_session=True,
            )
        self._log = log

    def __repr__(self) -> str:
        return f"CrashChild(pid={self._process.pid}, returncode={self._process.poll()})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    @property
    def alive(self) -> bool:
        """Whether the leader is running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill everything with SIGKILL and wait until it is gone. Killing a dead driver does nothing.

        Raises:
            TimeoutError: something survived.
        """
        kill_session(self._process)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop everything with SIGSTOP for the length of a block."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in session_members(self._process.pid):
            _kill(pid, number)

    def wait(self, timeout_s: float) -> int:
        """Wait for the leader's end and clean up after it; return its status, negative for a signal.

        Raises:
            TimeoutError: it has not ended; it is killed then.
        """
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self!r} has not ended within {timeout_s} s; {self.log_end()}") from None
        # The leader has ended, but its JVM and workers may go on for seconds, and hold files that the caller
        # looks at next.
        self.kill()
        return status

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition holds.

        Raises:
            TimeoutError: it did not hold in time, or the driver ended before it did.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not self.alive or time.monotonic() > deadline:
                raise TimeoutError(f"{self!r}: the condition did not hold in {timeout_s} s; {self.log_end()}")
            time.sleep(POLL_S)

    def kill_after(self, delay_s: float) -> None:
        """Let the driver run a while longer, then kill it. It may end by itself before that."""
        try:
            self._process.wait(delay_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_end(self) -> str:
        """Return the last lines of the output."""
        return self._log.read_text(errors="replace")[-4000:]


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """Kill a session with SIGKILL, its leader's group in one call, and wait until it is gone.

    Raises:
        TimeoutError: something survived.
    """
    # A leader that was reaped may have given its number to another process by now.
    if leader.poll() is None:
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait(GONE_WITHIN_S)  # Reaps it; otherwise it remains in the session.
    deadline = time.monotonic() + GONE_WITHIN_S
    # Again and again, because a process may start another one while the list is read.
    while survivors := session_members(leader.pid):
        for pid in survivors:
            _kill(pid)
        if time.monotonic() > deadline:
            raise TimeoutError(f"session {leader.pid}: {survivors} survived SIGKILL for {GONE_WITHIN_S} s")
        time.sleep(POLL_S)


def session_members(session: int) -> list[int]:
    """Return the process ids of a session, without those that have ended and wait to be reaped.

    Without /proc (macOS) none is seen: JVM and workers end when their leader is gone.
    """
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command's name may hold spaces and parentheses; the fields begin after its last one.
            state, _parent, _group, in_session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(in_session) == session and state != "Z":
            pids.append(int(stat.parent.name))
    return pids


def _kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
