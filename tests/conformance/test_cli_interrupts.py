"""Ctrl-C ends a command with a report of what is done and how to continue."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.command import TIMEOUT_S, Command
from tests.rig.brokers import BrokerHandle
from tests.waiting import wait_until

pytestmark = pytest.mark.brokers("embedded")


@contextmanager
def command(broker: BrokerHandle, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "gazette_spark.cli", "--broker", broker.endpoint, "journals", *args]
    pipe = subprocess.PIPE
    # A shell's background job ignores SIGINT, and so does everything that the job starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        started = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
    finally:
        signal.signal(signal.SIGINT, before)
    with started as process:
        try:
            yield process
        finally:
            process.kill()


def waits_for_input(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has read all its input so far, and waits in another read."""
    assert process.stdin is not None
    unread = int.from_bytes(fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4)), sys.byteorder)
    return not unread and Path(f"/proc/{process.pid}/wchan").read_text().endswith("pipe_read")


def test_an_append_of_records_says_which_is_next(broker: BrokerHandle, run: Command, orders: str) -> None:
    lines = [b"line %d\n" % number for number in range(7)]
    with command(broker, "append", orders, "--framing", "lines") as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(lines) + b"half a li")
        process.stdin.flush()
        wait_until("the records", lambda: run("read", orders).stdout_bytes.count(b"\n") == len(lines))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert err.decode().splitlines() == [
        "interrupted: the first 7 records are appended; continue with record 8: tail -n +8 FILE"
    ]
    assert run("read", orders).stdout_bytes == b"".join(lines)


def test_a_whole_append_that_waits_for_its_input_appends_nothing(
    broker: BrokerHandle, run: Command, orders: str
) -> None:
    with command(broker, "append", orders) as process:
        assert process.stdin is not None
        process.stdin.write(b"the begin of it\n")
        process.stdin.flush()
        wait_until("the input is read", lambda: waits_for_input(process))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (130, b"interrupted\n")
    assert run("read", orders).stdout_bytes == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_read_says_how_far_it_came(
    broker: BrokerHandle, run: Command, orders: str, tmp_path: Path, number: int
) -> None:
    content = bytes(range(256)) * (16 << 10)
    run.done("append", orders, stdin=content)
    offsets = tmp_path / "offsets.json"
    more = ["--offsets-out", str(offsets)] if number == signal.SIGTERM else []
    with command(broker, "read", orders, *more) as process:
        assert process.stdout is not None
        read = os.read(process.stdout.fileno(), 1)  # Now the process writes to a pipe that is full.
        process.send_signal(number)
        rest, err = process.communicate(timeout=TIMEOUT_S)
    read += rest
    assert process.returncode == 130
    assert 0 < len(read) < len(content)
    if more:
        assert offsets.read_text() == f'{{"{orders}": {len(read)}}}\n'
    else:
        assert re.search(r"is written up to offset (\d+); continue with --offset \1", err.decode())
        assert f"up to offset {len(read)};" in err.decode()
    assert read + run("read", orders, "--offset", str(len(read))).stdout_bytes == content
