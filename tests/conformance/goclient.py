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
"""Maximum seconds for a run, and for the next output of a running one."""

Event = dict[str, Any]


def run_go(endpoint: str, mode: str, *flags: str, content: bytes = b"") -> list[Event]:
    """Run a mode to its end and return its events; the last event has ``error`` if the run failed.

    Raises:
        ProcessError: The program did not end in time, or ended without a last event.
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
    """Return the last event of a run, which must have no error."""
    assert "error" not in events[-1], events[-1]
    return events[-1]


class RunningGo:
    """A mode that runs until it is ended. Not thread-safe."""

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
        """Return the next event of a kind with the given fields; drop the events before it."""
        wanted = {"event": kind, **fields}
        while True:
            try:
                event = self._events.get(timeout=RUN_TIMEOUT_S)
            except queue.Empty:
                raise AssertionError(f"goclient never said {wanted}") from None
            if wanted.items() <= event.items():
                return event

    def end(self) -> Event:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.until("end")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(RUN_TIMEOUT_S)
        self._reading.join(RUN_TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def running_go(endpoint: str, mode: str, *flags: str) -> Iterator[RunningGo]:
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
