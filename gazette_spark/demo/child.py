"""The process that runs the query: started in a new session, killed with everything it started.

Spark's driver, its JVM and its Python workers are several processes in several process groups (PySpark's
worker daemon makes a new group), but all in the session of the child. So a kill goes to the session.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gazette_spark.errors import GazetteError
from gazette_spark.spark_start import log_tail
from gazette_spark.testing.crash import kill_session


@dataclass(eq=False)
class QueryDiedError(GazetteError):
    """The query's process ended, or stopped making progress, without a request to stop."""

    problem: str
    log_tail: str = ""
    """Last lines of the process's log."""

    def __str__(self) -> str:
        return self.problem


class QueryProcess:
    """A child process with a log file, in its own session. A context manager; leaving it kills the child.

    Used by one thread.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = list(command)
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self._read = 0
        """Bytes of the log in which downloads were looked for."""

    def __repr__(self) -> str:
        state = "not started" if self._child is None else f"pid={self._child.pid} exit={self._child.poll()}"
        return f"QueryProcess({state})"

    def start(self) -> None:
        """Start the command; its output is added to the log."""
        # The workers must run the Python that has this package, whatever PATH says.
        env = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
            )

    def check(self) -> None:
        """Raise if the child has ended by itself."""
        code = self._running().poll()
        if code is not None:
            raise self.failure(f"the query's process ended by itself with exit code {code}")

    def failure(self, problem: str) -> QueryDiedError:
        """Return an error with the end of the log."""
        return QueryDiedError(problem, log_tail(self._log))

    def downloads(self) -> list[str]:
        """Return what the child has said it downloads since the last call: Spark fetches Delta's jars."""
        if not self._log.exists():
            return []
        with self._log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        return [line.removesuffix(" ...") for line in lines if line.startswith("downloading ")]

    def kill(self) -> None:
        """Kill the child and all it started with SIGKILL, and wait until they are gone."""
        try:
            kill_session(self._running())
        except TimeoutError as error:
            raise self.failure(str(error)) from None
        self._close()

    def finish(self, timeout_s: float) -> None:
        """Ask the child to end by closing its stdin after one line, and wait for that.

        Raises:
            QueryDiedError: the query failed, or ran longer than ``timeout_s``.
        """
        child = self._running()
        try:
            child.communicate(b"finish\n", timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failure(f"the query's process did not end within {timeout_s:g} s") from None
        if child.returncode != 0:
            raise self.failure(f"the query's process failed with exit code {child.returncode}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._child is not None:
            self.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise QueryDiedError("the query's process was not started")
        return self._child

    def _close(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
