"""A stock of child processes that are ready to run the query, because startup is most of their lives."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gazette_spark.testing import CrashChild
from gazette_spark.testing.crash import POLL_S
from tests.rig.class_archive import spark_home
from tests.rig.crashes.outcomes import UnexpectedEndError
from tests.rig.crashes.points import Failpoint, Point, Rename, TaskFailpoint

COMPILE_TIMEOUT_S = 300

END_WITHIN_S = 600
"""Maximum seconds for a driver. Most need 10 s, and many times that on a busy machine."""

READY = 2
"""Number of children prepared in addition to the running one. On two cores, more are no faster."""


def compile_file_system(directory: Path) -> Path:
    """Compile the file system that kills its process, with the Scala compiler that comes with pyspark.

    It is a jar, for a folder on its class path would cost a JVM the class data archive.

    Raises:
        subprocess.CalledProcessError: the compiler failed.
    """
    jar = directory / "fail_at_rename.jar"
    source = Path(__file__).with_name("FailAtRename.scala")
    jars = spark_home() / "jars"
    scalac = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp"]
    command = [*scalac, "-d", str(jar), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S)
    return jar


def command_to_die(point: Point, nth: int) -> dict[str, str]:
    """Return the command that kills a driver at the nth time that it reaches a point."""
    match point.kills:
        case Rename(when, path_end):
            return {"rename": f"{when} {nth} {path_end}"}
        case Failpoint(name):
            return {"failpoint": f"{name}:{nth}:kill_group"}
        case TaskFailpoint(name):
            return {"task_failpoint": f"{name}:{nth}:kill_group"}
    raise ValueError(f"no kill at {point.name!r}")


@dataclass(frozen=True, slots=True)
class Query:
    app_id: str
    format: str
    options: Mapping[str, str]
    load: str = ""
    """Argument of ``load``, if the format takes one."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings in addition to those of every driver."""

    def settings(self) -> dict[str, Any]:
        """Return the settings in the form that :mod:`tests.rig.crashes.child` reads."""
        return {
            "app_id": self.app_id,
            "format": self.format,
            "options": dict(self.options),
            "load": self.load,
            "conf": dict(self.conf),
        }


@dataclass(eq=False)
class _Ready:
    child: CrashChild
    command: Path


class CrashChildren:
    """A stock of drivers. A context manager: leaving it kills the unused ones.

    Used by one thread.
    """

    def __init__(
        self, directory: Path, query: Query, *, ready: int = READY, at_most: int | None = None
    ) -> None:
        """Compile the killer, and start the first drivers.

        Args:
            directory: Directory for their files; made if missing.
            query: Query of the drivers.
            ready: Number of drivers to keep ready.
            at_most: Number of drivers needed in all, None if unknown. One more is no error.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._query = query
        self._jar = compile_file_system(directory)
        self._ready: list[_Ready] = []
        self._wanted = ready
        self._at_most = at_most
        self._started = 0
        self._fill(ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """Kill the unused drivers, and keep none ready from now on."""
        self._wanted = 0
        while self._ready:
            self._ready.pop().child.kill()

    def start(self, **command: Any) -> CrashChild:
        """Let a driver start its query; see :mod:`tests.rig.crashes.child` for the command."""
        self._fill(1)
        taken = self._ready.pop(0)
        written = taken.command.with_suffix(".new")
        written.write_text(json.dumps({"options": {}} | command))
        written.rename(taken.command)
        more = self._wanted if self._at_most is None else self._at_most - self._started
        self._fill(min(self._wanted, len(self._ready) + max(0, more)))
        return taken.child

    def get_ready(self, count: int) -> None:
        """Wait until ``count`` drivers are ready.

        Raises:
            UnexpectedEndError: one of them ended.
        """
        self._fill(count)
        deadline = time.monotonic() + END_WITHIN_S
        while left := [each for each in self._ready if not each.command.with_suffix(".ready").exists()]:
            if time.monotonic() > deadline or not all(each.child.alive for each in left):
                raise UnexpectedEndError(f"a driver did not get ready\n{left[0].child.log_end()}")
            time.sleep(POLL_S)

    def run(self, **command: Any) -> int:
        """Run a driver to the current ends of the journals, or until the command kills it.

        Returns:
            0, or -9 if it was killed.

        Raises:
            UnexpectedEndError: the driver ended otherwise; its log's end is shown.
        """
        with self.start(until="end", **command) as child:
            status = child.wait(END_WITHIN_S)
            if status not in (0, -signal.SIGKILL):
                raise UnexpectedEndError(f"exit status {status}\n{child.log_end()}")
        return status

    def _fill(self, wanted: int) -> None:
        while len(self._ready) < wanted:
            self._started += 1
            self._ready.append(self._prepare(f"child-{self._started}"))

    def _prepare(self, name: str) -> _Ready:
        command = self._directory / f"{name}.command"
        settings = self._query.settings() | {
            "scratch": str(self._directory / name),
            "jar": str(self._jar),
            "command": str(command),
        }
        file = self._directory / f"{name}.json"
        file.write_text(json.dumps(settings))
        script = Path(__file__).with_name("child.py")
        return _Ready(CrashChild(script, [str(file)], log=self._directory / f"{name}.log"), command)
