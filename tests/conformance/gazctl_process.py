"""Helpers for tests that look at more of ``gazctl`` than its standard output."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.rig.brokers import BrokerHandle
from tests.rig.gazctl import clean_environment

TIMEOUT_S = 60.0


def run_gazctl(
    broker: BrokerHandle, *args: str, given: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        broker.gazctl_command(*args),
        input=given,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**clean_environment(), **environ},
    )


@contextmanager
def running_gazctl(broker: BrokerHandle, args: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        broker.gazctl_command(*args),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()


def end_by_signal(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGINT)
    return process.wait(TIMEOUT_S)
