"""Spark's own servers from a pip install of pyspark, as child processes on the loopback device.

:class:`StandaloneCluster` is one master and two workers, :class:`ConnectServer` a Spark Connect server on a
local master. Each server leads a session; leaving the context manager kills that session, so that executors
and Python workers end with the server that started them. Servers choose their ports, and are ready when their
log says so. If the process that started them dies, they die, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gazette_spark.session import CLASS_PATH_VARIABLE, COMPILED_BRIEFLY, SHORT_RUN
from gazette_spark.testing.crash import POLL_S, session_members
from tests.rig.class_archive import JAVA_OPTIONS_VARIABLE, ClassArchive, spark_home

START_TIMEOUT_S = 120.0
"""Maximum seconds until a server's log says it is ready; five seconds are usual on an idle machine."""

GONE_WITHIN_S = 20.0
"""Maximum seconds until a killed session has disappeared."""

LOG_TAIL = 6000
"""Number of characters of a log that an error shows."""

WORKERS = 2

MASTER_READY = re.compile(r"Starting Spark master at (spark://\S+)")
WORKER_READY = re.compile(r"Successfully registered with master")
CONNECT_READY = re.compile(r"Spark Connect server started at: \S*?:(\d+)")

WATCHED = """
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
{ cat <&3 >/dev/null; kill -KILL 0; } &
exec 3<&-
wait $child
"""
"""Script that runs a command in a process group, and ends it when no process holds the standard input open,
so that a server does not outlive the tests, however they end."""

LEFT_OUT = (
    "PYTHONPATH",
    "PYTHONHOME",
    "SPARK_CONF_DIR",
    "SPARK_REMOTE",
    "PYSPARK_DRIVER_PYTHON",
    JAVA_OPTIONS_VARIABLE,
)
"""Variables that a server must not inherit, because it would find files that another machine lacks."""


def server_environment(python: Path | str, archive: ClassArchive | None = None) -> dict[str, str]:
    """Return the environment of a Spark process whose Python workers use ``python``.

    With an archive, Delta's jars are on the class path of all its JVMs.
    """
    kept = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
    return kept | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "SPARK_LAUNCHER_OPTS": COMPILED_BRIEFLY,
        CLASS_PATH_VARIABLE: os.pathsep.join(archive.jars) if archive else "",
    }


def java_options(archive: ClassArchive | None) -> str:
    """Return the options of a JVM that lives for a minute, and uses the archive if there is one."""
    return f"{SHORT_RUN} {archive.java_options}" if archive else SHORT_RUN


class ServerError(Exception):
    """A Spark process failed to start or to respond; the text ends with its log."""


class SparkProcess:
    """A child process with a log, in a new session. A context manager: leaving it kills the session.

    Used by one thread.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str],
        directory: Path | None = None,
    ) -> None:
        """Start ``command``.

        Args:
            command: Program and arguments.
            log: File that gets its output.
            env: Its whole environment.
            directory: Its working directory, by default that of the log.
        """
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", WATCHED, "sh", *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=directory or log.parent,
                start_new_session=True,
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pid={self._process.pid}, returncode={self._process.poll()})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def wait_for_log(self, pattern: re.Pattern[str], timeout_s: float = START_TIMEOUT_S) -> re.Match[str]:
        """Return the first match in the log.

        Raises:
            ServerError: the process ended early, or the timeout passed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # Checked before the log is read, so that no last line is missed.
            ended = self._process.poll() is not None
            found = pattern.search(self.log.read_text(errors="replace"))
            if found:
                return found
            if ended or time.monotonic() > deadline:
                raise ServerError(
                    f"{self!r}: no {pattern.pattern!r} within {timeout_s:g} s\n{self.log_end()}"
                )
            time.sleep(POLL_S)

    def wait(self, timeout_s: float) -> None:
        """Wait for the process to succeed.

        Raises:
            ServerError: it failed, or is still running and has been killed.
        """
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(f"{self!r}: still running after {timeout_s:g} s\n{self.log_end()}") from None
        if status != 0:
            raise ServerError(f"{self!r} failed\n{self.log_end()}")

    def kill(self) -> None:
        """Kill the process and all its descendants in its session, and wait until it is gone."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while members := session_members(self._process.pid):
            for pid in members:
                _kill(pid)
            self._process.poll()
            if time.monotonic() > deadline:
                raise ServerError(f"{self!r}: {members} survive SIGKILL")
            time.sleep(POLL_S)
        self._process.wait(GONE_WITHIN_S)
        if self._process.stdin:
            self._process.stdin.close()

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL:]


class StandaloneCluster:
    """A master and two workers of one core each, on different hosts. A context manager.

    Spark starts a speculative copy of a task on another host only.

    Args:
        directory: Existing folder for logs and the workers' directories.
        python: Interpreter of the executors.
        archive: What makes its JVMs start faster.
    """

    def __init__(
        self, directory: Path, *, python: Path | str = sys.executable, archive: ClassArchive | None = None
    ) -> None:
        self.url = ""
        self.directory = directory
        self._env = server_environment(python, archive) | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": java_options(archive),
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }
        self._processes: list[SparkProcess] = []

    def __repr__(self) -> str:
        return f"StandaloneCluster({self.url!r})"

    def __enter__(self) -> Self:
        try:
            master = self._start("master", "master.Master", "--port", "0")
            self.url = master.wait_for_log(MASTER_READY).group(1)
            workers = [self._start_worker(number) for number in range(WORKERS)]
            for worker in workers:
                worker.wait_for_log(WORKER_READY)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all servers, the last one first."""
        while self._processes:
            self._processes.pop().kill()

    def _start_worker(self, number: int) -> SparkProcess:
        name = f"worker-{number}"
        limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / name))
        return self._start(name, "worker.Worker", *limits, self.url, host=f"127.0.0.{number + 2}")

    def _start(self, name: str, server: str, *arguments: str, host: str = "127.0.0.1") -> SparkProcess:
        command = [
            str(spark_home() / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{server}",
            *("--host", host, "--webui-port", "0"),
            *arguments,
        ]
        process = SparkProcess(command, log=self.directory / f"{name}.log", env=self._env)
        self._processes.append(process)
        return process


class ConnectServer(SparkProcess):
    """A Spark Connect server on ``local[2]``. A context manager; ``url`` is the clients' address.

    Args:
        directory: Existing folder for its log and scratch files.
        conf: Spark's settings.
        python: Interpreter of its Python workers, which run sources, sinks and ``foreachBatch``.
        archive: Class archive that makes its JVM start faster.
    """

    def __init__(
        self,
        directory: Path,
        *,
        conf: Mapping[str, str],
        python: Path | str = sys.executable,
        archive: ClassArchive | None = None,
    ) -> None:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            **conf,
        }
        super().__init__(
            [
                spark_home() / "bin" / "spark-submit",
                *(
                    "--master",
                    "local[2]",
                    "--class",
                    "org.apache.spark.sql.connect.service.SparkConnectServer",
                ),
                *conf_arguments(settings),
                "spark-internal",
            ],
            log=directory / "connect.log",
            env=server_environment(python, archive),
        )
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self.url = f"sc://127.0.0.1:{self.wait_for_log(CONNECT_READY).group(1)}"
        except BaseException:
            self.kill()
            raise
        return self


def conf_arguments(conf: Mapping[str, str]) -> list[str]:
    return [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
