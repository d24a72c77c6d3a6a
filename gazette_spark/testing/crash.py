"""Runs a driver in a separate process, and kills all its processes with SIGKILL.

A driver consists of many processes: Python, the JVM, the data source's planner, Python workers. A
:class:`CrashChild` leads a session that contains all of them. Their process groups differ, because Spark puts
its workers into a separate group. :meth:`CrashChild.kill` sends SIGKILL to the leader's group in one call, so
that Python and the JVM die at the same moment, and then to the rest of the session. A driver can also kill
itself at a certain point of its program; see ``tests.rig.crashes``.
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
"""Seconds between two checks of a condition, which is also the maximum delay of a kill that follows it."""

GONE_WITHIN_S = 30.0
"""Seconds within which a killed session must have disappeared."""

LEADER = (
    "import os, runpy, sys; os.environ['GAZETTE_SPARK_FAILPOINT_GROUP'] = str(os.getpid()); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Python code that runs a script after naming the group to be killed, which only the child knows."""


class CrashChild:
    """A driver process and everything that it starts; leaving its ``with`` block kills all of them."""

    def __init__(self, script: Path, arguments: Sequence[str], *, log: Path) -> None:
        """Start ``script``.

        Args:
            script: A Python file.
            arguments: Its arguments.
            log: File to which its output is appended.
        """
        # A failpoint that is armed for this process must not be passed to the child.
        env = {name: value for name, value in os.environ.items() if name != FAILPOINT_VARIABLE}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LEADER, str(script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                # All processes are in one session: Spark's workers leave the process group, but no process
                # creates another session.
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
            TimeoutError: a process survived.
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
        """Wait for the leader's end and kill the rest; return its status, which is negative for a signal.

        Raises:
            TimeoutError: the leader has not ended in time. It is killed then.
        """
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self!r} has not ended within {timeout_s} s; {self.log_end()}") from None
        # The leader has ended, but its JVM and workers may continue for seconds and keep files open that the
        # caller reads next.
        self.kill()
        return status

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition is true.

        Raises:
            TimeoutError: the condition did not become true in time, or the driver ended first.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not self.alive or time.monotonic() > deadline:
                raise TimeoutError(f"{self!r}: the condition did not hold in {timeout_s} s; {self.log_end()}")
            time.sleep(POLL_S)

    def kill_after(self, delay_s: float) -> None:
        """Kill the driver after a delay. It may end by itself before that."""
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
        TimeoutError: a process survived.
    """
    # If the leader was reaped, another process may have its number by now.
    if leader.poll() is None:
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait(GONE_WITHIN_S)  # This reaps it; otherwise it would remain in the session.
    deadline = time.monotonic() + GONE_WITHIN_S
    # Repeat this, because a process may start another one while the list is read.
    while survivors := session_members(leader.pid):
        for pid in survivors:
            _kill(pid)
        if time.monotonic() > deadline:
            raise TimeoutError(f"session {leader.pid}: {survivors} survived SIGKILL for {GONE_WITHIN_S} s")
        time.sleep(POLL_S)


def session_members(session: int) -> list[int]:
    """Return the process ids of a session, without processes that have ended but are not reaped yet.

    Without /proc (macOS) the list is empty: there, the JVM and workers end when their leader has ended.
    """
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command's name may contain spaces and parentheses, so the fields begin after the last
            # parenthesis.
            state, _parent, _group, in_session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(in_session) == session and state != "Z":
            pids.append(int(stat.parent.name))
    return pids


def _kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
