"""A Python for Spark's workers that has imported what they need before Spark starts one.

Spark starts a new Python process for each streaming query, and one for each kind of worker. Each imports
pyspark, pyarrow and the data source, which takes as long as the rest of a small query. On a busy machine it
takes longer than the ten seconds that Spark waits.

A :class:`WarmPython` is a process that imports all of it once. Spark gets a script as its Python:
``-m pyspark.…`` becomes a fork of that process, anything else runs the usual Python.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.rig import warm_caller

MODULES = (
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "gazette_spark.source",
    "tests.rig.file_source",
)
"""Modules imported before the first fork. None of them starts a thread."""

SCRIPT = """#!/bin/sh
case "$2" in
    pyspark.*) exec '{python}' -I -S '{caller}' '{socket}' "$@" ;;
esac
exec '{python}' "$@"
"""

ORDER_BYTES = 1 << 20
"""Maximum bytes of a worker's environment."""


class WarmPython:
    """The process, and the script for ``PYSPARK_PYTHON``; a context manager."""

    def __init__(self, directory: Path) -> None:
        self.script = directory / "python"
        self._socket = directory / "warm"

    def __enter__(self) -> Self:
        self.script.write_text(
            SCRIPT.format(python=sys.executable, caller=warm_caller.__file__, socket=self._socket)
        )
        self.script.chmod(0o755)
        # The socket listens before the process runs, so that no caller comes too early.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(self._socket))
            listening.listen(64)
            command = [sys.executable, "-m", "tests.rig.warm_python", str(listening.fileno())]
            # Spark gives its workers this seed.
            environment = os.environ | {"PYTHONHASHSEED": "0"}
            self._process = subprocess.Popen(command, env=environment, pass_fds=[listening.fileno()])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)


def serve(listening: socket.socket) -> None:
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        caller, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            work(caller)
            return
        caller.close()


def work(caller: socket.socket) -> None:
    """Do the caller's work, with its files and its environment."""
    message, files, _, _ = socket.recv_fds(caller, ORDER_BYTES, 3)
    # When the caller dies, the socket becomes readable: the kernel sends SIGIO, which ends this process.
    fcntl.fcntl(caller, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(caller, fcntl.F_SETFL, fcntl.fcntl(caller, fcntl.F_GETFL) | os.O_ASYNC)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    order = json.loads(message)
    os.environ.clear()
    os.environ.update(order["environment"])
    _, module, *arguments = order["arguments"]
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
