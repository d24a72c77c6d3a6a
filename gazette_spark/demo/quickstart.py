"""Runs everything at once on one machine: broker, journals, writers, a stream into Delta, and the lag page.

The parts are those of the demo, without kills, and commands as a user runs them: the page is ``lag serve``,
and the end is ``verify``. No process outlives the call.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gazette_spark.client import Client
from gazette_spark.demo.child import QueryDiedError, QueryProcess
from gazette_spark.demo.run import FINISH_S, MAX_BYTES_PER_TRIGGER, new_journals, open_broker
from gazette_spark.demo.scenario import START_STALL_S, Progress, Screen
from gazette_spark.demo.settings import APP_ID, Settings
from gazette_spark.demo.writers import Writers
from gazette_spark.spark_start import log_tail
from gazette_spark.testing.table_watch import TableWatch, ledger_heads

POLL_S = 0.1

EXIT_S = 10.0
"""Time for the page's process to end."""

COMMAND = (sys.executable, "-m", "gazette_spark.cli")

Wait = Callable[[float], bool]
"""Waits for some seconds; returns at once, and True, when the user wants the end."""


@dataclass(frozen=True, slots=True)
class QuickstartOptions:
    """The user's options."""

    rate: float
    """Events a second, in all."""
    seconds: float
    """Time from the table's first commit to the end; infinite until the user ends it."""
    query: Sequence[str] = (sys.executable, "-m", "gazette_spark.demo.query")
    """Command of the query, but for the file of its settings."""


def run_quickstart(options: QuickstartOptions, directory: Path, screen: Screen, wait: Wait) -> int:
    """Run everything in an empty ``directory``; return the exit code of ``verify``.

    Raises:
        GazetteError: the broker failed, or the query or the page ended by itself (``QueryDiedError``).
    """
    with ExitStack() as stack:
        endpoint, fragment_root = stack.enter_context(open_broker(None, directory))
        client = stack.enter_context(Client(endpoint))
        journals = stack.enter_context(new_journals(client, deployed=False))
        screen.say(f"broker   {endpoint}, with {', '.join(journals)}")
        settings = Settings(endpoint, journals, fragment_root, str(directory), MAX_BYTES_PER_TRIGGER)
        settings.save(directory / "settings.json")
        page = stack.enter_context(lag_page(endpoint, settings.table, directory / "lag.log"))
        screen.say(f"lag page {page}")
        writers = stack.enter_context(Writers(client, journals, options.rate))
        child = stack.enter_context(
            QueryProcess([*options.query, str(directory / "settings.json")], directory / "query.log")
        )
        child.start()
        if not _until_table(child, settings, screen, wait):
            screen.say("ended before the table's first commit: there is nothing to verify")
            return 0
        writers.start()
        screen.say(f"table    {settings.table}, {options.rate:,.0f} events a second; Ctrl-C ends it")
        _stream(options, child, settings, writers, screen=screen, wait=wait)
        screen.say(f"{writers.rows:,} events appended and in the table")
        child.finish(FINISH_S)
        words = ["verify", str(settings.table), "--broker", endpoint]
        screen.say(f"$ gazette-spark {' '.join(words)}")
        return subprocess.run([*COMMAND, *words], check=False).returncode


def _until_table(child: QueryProcess, settings: Settings, screen: Screen, wait: Wait) -> bool:
    """Wait for the query's first commit; return whether it came before the user's wish to end."""
    deadline = time.monotonic() + START_STALL_S
    watch = TableWatch(settings.table)
    while not watch.look().commits:
        child.check()
        if time.monotonic() > deadline:
            raise child.failure(f"the query made no table within {START_STALL_S:g} s")
        for line in child.downloads():
            screen.say(line)
        screen.show(Progress("starting", 0, 0, 0))
        if wait(POLL_S):
            return False
    return True


def _stream(
    options: QuickstartOptions,
    child: QueryProcess,
    settings: Settings,
    writers: Writers,
    *,
    screen: Screen,
    wait: Wait,
) -> None:
    """Show how far table and writers are, until the end; then until the table has everything."""
    watch, began = TableWatch(settings.table), time.monotonic()
    phase, deadline = "writing", float("inf")
    while True:
        table = watch.look()
        screen.show(Progress(phase, writers.rows, table.rows, max(writers.rows, 1)))
        if phase == "draining" and ledger_heads(table.metadata, APP_ID) == writers.heads:
            return
        child.check()
        if writers.error is not None:
            raise writers.error
        if time.monotonic() > deadline:
            raise child.failure(f"the table did not get everything within {FINISH_S:g} s")
        ended = wait(POLL_S)
        if phase == "writing" and (ended or time.monotonic() - began > options.seconds):
            writers.stop()
            phase, deadline = "draining", time.monotonic() + FINISH_S


@contextmanager
def lag_page(endpoint: str, table: Path, log: Path) -> Iterator[str]:
    """Serve the page of lag at any free port, and give its address."""
    words = ["lag", "serve", "--broker", endpoint, "--table", str(table), "--listen", "127.0.0.1:0"]
    # In a session of its own: Ctrl-C is for this process, which ends the page.
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*COMMAND, *words, "--interval", "2"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                problem = f"the page of lag ended with exit code {process.wait(EXIT_S)}"
                raise QueryDiedError(problem, log_tail(log))
            yield line.split()[-1]
        finally:
            process.terminate()
            try:
                process.wait(EXIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
