"""Runs ``goclient``, the program of tests/go that uses Gazette's Go client package."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.rig.gazctl import ProcessError, clean_environment, find_binary

RUN_TIMEOUT_S = 60.0
"""Longest a run may take, and a running one may take to say something."""

Event = dict[str, Any]


def run_go(endpoint: str, mode: str, *flags: str, content: bytes = b"") -> list[Event]:
    """Run a mode to its end and return its events; the last one tells how it ended, with ``error`` or not.

    Raises:
        ProcessError: it does not end in time, or ended without saying how.
    """
    command = _command(endpoint, mode, flags)
    try:
        done = subprocess.run(
            command,
            input=content,
            capture_output=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
            env=clean_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"goclient {mode}", "still running", str(error.stderr)) from None
    events = [json.loads(line) for line in done.stdout.splitlines()]
    if not events or events[-1]["event"] != "end":
        raise ProcessError(f"goclient {mode}", f"exit code {done.returncode}", done.stderr.decode())
    return events


def end_of(events: Sequence[Event]) -> Event:
    """Return how a run ended, which has to be without an error."""
    assert "error" not in events[-1], events[-1]
    return events[-1]


class RunningGo:
    """A mode that runs until it is told to end. For one thread."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._events: queue.Queue[Event] = queue.Queue()
        self._reading = threading.Thread(target=self._read, name="goclient-events", daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))

    def until(self, kind: str, **fields: object) -> Event:
        """Return the next event of a kind whose fields are as given; drops those before it."""
        wanted = {"event": kind, **fields}
        while True:
            try:
                event = self._events.get(timeout=RUN_TIMEOUT_S)
            except queue.Empty:
                raise AssertionError(f"goclient never said {wanted}") from None
            if wanted.items() <= event.items():
                return event

    def end(self) -> Event:
        """Tell the program to end, and return its last event."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.until("end")

    def close(self) -> None:
        """End the program, if it has not ended yet."""
        self._process.kill()
        self._process.wait(RUN_TIMEOUT_S)
        self._reading.join(RUN_TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def running_go(endpoint: str, mode: str, *flags: str) -> Iterator[RunningGo]:
    """Run a mode that waits: a read with ``--block``, or ``watch``."""
    process = subprocess.Popen(
        _command(endpoint, mode, flags),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
    )
    running = RunningGo(process)
    try:
        yield running
    finally:
        running.close()


def _command(endpoint: str, mode: str, flags: Sequence[str]) -> list[str]:
    return [str(find_binary("goclient")), mode, f"--broker={endpoint}", *flags]
