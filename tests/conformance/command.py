"""A helper that runs ``gazette-spark journals`` in tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from gazette_spark.cli.main import main

TIMEOUT_S = 60.0

SPECS = """
name: {prefix}
children:
  - name: {prefix}orders
    replication: 1
    labels: [{{name: app, value: shop}}]
    fragment: {{length: 1048576, compression_codec: GZIP, stores: ["file:///"], refresh_interval: 1m0s}}
"""
"""Spec of a journal to create."""


class Command:
    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def __call__(self, *args: str, stdin: bytes | str | None = None, **environ: str) -> Result:
        arguments = ["journals", "--broker", self._endpoint, *args]
        return CliRunner(env=environ).invoke(main, arguments, input=stdin)

    def done(self, *args: str, stdin: bytes | str | None = None, **environ: str) -> str:
        result = self(*args, stdin=stdin, **environ)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    @contextmanager
    def running(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command that does not end by itself, as a process with a pipe for its output."""
        command = [sys.executable, "-m", "gazette_spark.cli", "journals", "--broker", self._endpoint, *args]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)


def end_by_signal(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str, str]:
    """Interrupt a running command; return its exit code and its remaining output."""
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err
