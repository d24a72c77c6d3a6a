"""Tasks that are killed during a read change no row; executors are separate processes.

Speculative copies cannot be tested on one host, because Spark starts them only on another host.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.client import journal_spec
from gazette_spark.testing.crash import session_members
from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics
from tests.spark.source_queries import records
from tests.waiting import wait_until

NAME = "tasks/journal"
CONTENT = b"".join(b"%d %s\n" % (n, b"x" * (n % 90)) for n in range(16_000))
"""Content of more than twice what two tasks read before they are held up."""

HELD_AFTER_BYTES = 200_000
"""Bytes before a task is held up: more than planning reads, which is one window at the journal's end."""

START_WITHIN_S = 240
ANSWER_WITHIN_S = 120


class Job:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        """Log of the driver."""
        self._lines: list[dict[str, Any]] = []
        self._there = threading.Condition()
        assert process.stdout is not None
        self._thread = threading.Thread(target=self._listen, args=(process.stdout,), daemon=True)
        self._thread.start()

    def _listen(self, output: IO[bytes]) -> None:
        for line in output:
            with self._there:
                self._lines.append(json.loads(line))
                self._there.notify_all()

    def ask(self, **options: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(options).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, timeout_s: float = ANSWER_WITHIN_S) -> dict[str, Any]:
        with self._there:
            assert self._there.wait_for(lambda: self._lines, timeout_s), "no answer in time"
            return self._lines.pop(0)

    def workers(self) -> list[int]:
        found = {}
        for pid in session_members(self.process.pid):
            with suppress(OSError):
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found[pid] = parent
        return [pid for pid, parent in found.items() if parent in found]

    def end(self) -> None:
        for pid in session_members(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)
        self._thread.join(20)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    scratch = tmp_path_factory.mktemp("cluster")
    script = Path(__file__).with_name("cluster_job.py")
    with (scratch / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), str(scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    started = Job(process, scratch / "log")
    try:
        assert started.answer(START_WITHIN_S) == {"ready": True}
        yield started
    finally:
        started.end()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        with Client(broker.endpoint, timeout_s=30) as client:
            client.create_journals(journal_spec(NAME))
            client.append(NAME, CONTENT)
        yield broker.endpoint


class Held:
    """A proxy that stalls some connections after they have read for a while; a context manager."""

    def __init__(self, job: Job, endpoint: str) -> None:
        self.job = job
        self.proxy = TcpProxy(endpoint, self._plan)
        self._held: set[int] = set()

    def _plan(self, number: int) -> tuple[Toxics, Toxics] | None:
        held = Toxics(limit_bytes=HELD_AFTER_BYTES, at_limit="silence")
        return (held, CLEAN) if number in self._held else None

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        self.ask()
        assert rows(self.job.answer()) == records(CONTENT)
        self.usual = self.proxy.connections
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__(None, None, None)

    def ask(self, *, held_tasks: int = 0) -> None:
        """Start a read in two tasks, and stall the given number of them for longer than the test lasts."""
        if held_tasks:
            # The planner connects first, then each task once.
            first = self.proxy.connections + self.usual - 2
            self._held = set(range(first, first + held_tasks))
        patience = {"idleTimeoutMs": "600000", "requestTimeoutMs": "600000"}
        self.job.ask(brokerAddress=self.proxy.endpoint, journals=NAME, minPartitions="2", **patience)


def rows(answer: dict[str, Any]) -> list[tuple[int, bytes]]:
    """Return offset and value of an answer's rows, in order."""
    assert "error" not in answer, answer["error"]
    return sorted((offset, value.encode()) for offset, value in answer["rows"])


@pytest.mark.soak
def test_the_log_level_takes_effect_on_the_driver(job: Job, endpoint: str) -> None:
    """Spark shows the output of the planner's process, to which the option sends the lines."""
    options = {"brokerAddress": endpoint, "journals": NAME}
    job.ask(**options)
    assert rows(job.answer()) == records(CONTENT)
    assert "batch planned" not in job.log.read_text()
    job.ask(**options, logLevel="info")
    assert rows(job.answer()) == records(CONTENT)
    wait_until(
        "the line", lambda: f"plan: batch planned journals=1 bytes={len(CONTENT)} " in job.log.read_text()
    )


@pytest.mark.soak
def test_a_worker_killed_in_the_middle_of_a_read(job: Job, endpoint: str) -> None:
    with Held(job, endpoint) as held:
        before = held.proxy.bytes_to_client
        held.ask(held_tasks=2)
        read = 2 * HELD_AFTER_BYTES
        wait_until("both tasks to be held", lambda: held.proxy.bytes_to_client >= before + read)
        killed = job.workers()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert rows(job.answer()) == records(CONTENT)
        assert len(killed) >= 2
        assert held.proxy.connections == 2 * held.usual + 2, "both tasks ran again"
