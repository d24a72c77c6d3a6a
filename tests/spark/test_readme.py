"""The README's first example and the tutorial run as printed, each block in a separate process.

Only the installation is omitted, because the tests' Python has the package.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from gazette_spark.session import INTERPRETED
from tests.conftest import SMALL_TABLES
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND_TIMEOUT_S = 280

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Block(NamedTuple):
    language: str
    file: str
    text: str


def free_port(wanted: int) -> int:
    """Return a free port: ``wanted`` if possible."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError("no port is free")


BROKER_PORT, LAG_PORT = free_port(8080), free_port(8000)
"""Ports of the page, or free ones if another process uses them."""


def printed_blocks(page: str) -> list[Block]:
    """Return a page's blocks after the installation."""
    if (BROKER_PORT, LAG_PORT) != (8080, 8000):
        page = page.replace("8080", str(BROKER_PORT))
        page = page.replace("lag serve", f"lag serve --listen 127.0.0.1:{LAG_PORT}")
    install, *rest = (Block(*found) for found in BLOCK.findall(page))
    assert "pip install" in install.text
    return rest


README = (ROOT / "README.md").read_text()
FIRST_EXAMPLE = README[README.index("[start:first]") : README.index("[end:first]")]
TUTORIAL = (ROOT / "docs" / "start" / "tutorial.md").read_text()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a shell with the commands on PATH, and a Spark that is tuned for few rows."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("gazette-spark", "-m gazette_spark.cli"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        program.chmod(0o755)
    # A folder of settings would be the first of the class path, which would then not fit the class archive.
    settings = " ".join(f"--conf {name}={value}" for name, value in (INTERPRETED | SMALL_TABLES).items())
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    address = {} if BROKER_PORT == 8080 else {"BROKER_ADDRESS": f"http://localhost:{BROKER_PORT}"}
    found = {"PATH": path, "PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell"}
    return {**os.environ, **found, **address}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def serving(text: str, port: int, directory: Path, env: dict[str, str]) -> Iterator[None]:
    """Run a server command in the background, as a reader does in another terminal."""
    with subprocess.Popen(["/bin/sh", "-c", text], cwd=directory, env=env, start_new_session=True) as process:
        try:
            wait_until(f"{text} listens", lambda: listens(port))
            assert process.poll() is None, f"it ended: {text}"
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def run(text: str, directory: Path, env: dict[str, str]) -> str:
    command = ["/bin/sh", "-eu", "-c", text]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=directory, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            printed, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # Includes the shell's children, such as a JVM.
            raise
    assert process.returncode == 0, f"{text}\n{printed}\n{errors[-4000:]}"
    if "verify" in text:
        # On a busy machine, the command prints what it waits for.
        of_jvm = [line for line in errors.splitlines() if not line.endswith("…")]
        assert of_jvm == [], "lines of the JVM beside the verdict"
    return printed


def lag_groups() -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{LAG_PORT}/gazette/v1/groups", timeout=60) as answer:
        return [group["group"] for group in json.load(answer)["groups"]]


def run_page(page: str, shell: Path, env: dict[str, str]) -> int:
    """Run a page from its top; return how many outputs it shows, all of which must be printed."""
    shell.mkdir()
    output, shown = "", 0
    with ExitStack() as terminals:
        for block in printed_blocks(page):
            if block.file:
                (shell / block.file).write_text(block.text)
            elif block.language == "text":
                missing = [line for line in block.text.splitlines() if line.strip() not in output]
                assert missing == [], output
                shown += 1
            elif " serve" in block.text:
                port = LAG_PORT if " lag " in block.text else BROKER_PORT
                terminals.enter_context(serving(block.text, port, shell, env))
            else:
                output = run(block.text, shell, env)
        wait_until("the lag page shows the table's group", lambda: "orders" in lag_groups())
    return shown


def test_the_first_example_runs_as_printed(tmp_path: Path, environment: dict[str, str]) -> None:
    assert run_page(FIRST_EXAMPLE, tmp_path / "shell", environment) == 3


@pytest.mark.soak
def test_the_tutorial_runs_as_printed(tmp_path: Path, environment: dict[str, str]) -> None:
    """The tutorial continues the first example: a lost checkpoint, SQL, and the journal commands."""
    page = TUTORIAL.replace('--8<-- "README.md:first"', FIRST_EXAMPLE)
    assert run_page(page, tmp_path / "shell", environment) == 6
