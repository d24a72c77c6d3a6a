"""Implements ``gazette-spark demo`` and ``quickstart``, which stream into a Delta table on one machine."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import click

from gazette_spark.cli.doctor import find_java, no_java
from gazette_spark.cli.main import Integer, Number, typed_broker
from gazette_spark.cli.server_options import EndSignals
from gazette_spark.errors import GazetteError, MissingPackageError, ProtocolError
from gazette_spark.protocol.durations import parse_duration
from gazette_spark.spark_start import starting_spark

if TYPE_CHECKING:
    from rich.console import Console

    from gazette_spark.demo.run import DemoOptions, DemoReport, Wait

PLAIN_INTERVAL_S = 5.0
"""Interval between progress lines when the output is not a terminal."""

Decorated = TypeVar("Decorated", bound=Callable[..., object])


def _stream_options(*, rate: float, kills: int) -> Callable[[Decorated], Decorated]:
    """Add the options that both commands have, with these defaults."""

    def decorate(command: Decorated) -> Decorated:
        rate_option = click.option(
            "--rate",
            type=Number(min=1),
            default=rate,
            show_default=True,
            metavar="EVENTS",
            help="Events per second, in all journals together.",
        )
        kill_option = click.option(
            "--kill",
            "kills",
            type=Integer(min=0),
            default=kills,
            show_default=True,
            metavar="TIMES",
            help="Number of times to kill the running query with SIGKILL and start it again.",
        )
        keep_option = click.option(
            "--keep",
            type=click.Path(path_type=Path, file_okay=False),
            default=None,
            metavar="DIR",
            help="Keep broker, table, checkpoint and logs in DIR, which must be empty or new.",
        )
        return rate_option(kill_option(keep_option(command)))

    return decorate


@click.command()
@click.option(
    "--seconds",
    type=Number(min=1),
    default=40.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for which the writers append. Kills may prolong it.",
)
@click.option(
    "--broker",
    default=None,
    metavar="URL",
    callback=lambda ctx, _parameter, value: value or typed_broker(ctx),
    help="Use this broker instead of an embedded one.",
)
@_stream_options(rate=10_000.0, kills=2)
def demo(seconds: float, broker: str | None, rate: float, kills: int, keep: Path | None) -> None:
    """Stream journals into a Delta table with crashes, and prove that the table is exact.

    Four writers append shop events to four journals while a Spark query streams them into a Delta
    table. The running query is killed with SIGKILL twice and started again. Then the command looks up every
    appended event in the table. The exit code is 1 if an event is lost or duplicated.
    """
    _check_requirements()
    from rich.console import Console
    from rich.table import Table

    from gazette_spark.demo.run import DemoOptions

    # An exception cleans up everything; the signal's default action would not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def wait(timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return False

    console = Console()
    report = _run(DemoOptions(seconds, rate, kills, broker), keep, console, wait)
    if report is None:
        return
    proof = report.proof
    lines = {
        "rows appended": f"{proof.appended:,}",
        "rows in the table": f"{proof.in_table:,}",
        "lost": f"{proof.lost:,}",
        "duplicated": f"{proof.duplicated:,}",
        "foreign or altered": f"{proof.foreign + proof.altered:,}",
        "kills of the query": f"{report.kills:,}",
        "commits of the table": f"{report.table_commits:,}",
        "bytes appended": f"{report.appended_bytes:,}",
        "bytes/s appended": f"{report.appended_bytes / report.writing_s:,.0f}",
        "bytes/s into the table": f"{report.appended_bytes / report.drained_s:,.0f} (kills included)",
    }
    totals = Table(show_header=False, box=None, pad_edge=False)
    for name, value in lines.items():
        totals.add_row(name, value)
    ledger = Table("journal", "read through", title="the ledger's last entry", title_justify="left", box=None)
    for journal, offset in report.ledger.items():
        ledger.add_row(journal, f"{offset:,}")
    for part in ("", totals, "", ledger, ""):
        console.print(part)
    proof.check()
    console.print("[bold green]exactly once[/]: every appended event is in the table, and nothing else is")


def _duration_s(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float:
    if text is None:
        return float("inf")
    try:
        return parse_duration(text).ToNanoseconds() / 1e9
    except ProtocolError as error:
        raise click.BadParameter(error.problem) from None


@click.command()
@click.option(
    "--for",
    "seconds",
    metavar="DURATION",
    callback=_duration_s,
    help="End after this time, such as 30s or 2m.",
)
@_stream_options(rate=200.0, kills=0)
@click.pass_context
def quickstart(ctx: click.Context, seconds: float, rate: float, kills: int, keep: Path | None) -> None:
    """Stream journals into a Delta table and watch its lag in a browser.

    The command starts a broker, four journals, their writers, a Spark query and the lag page, and prints the
    page's address. Ctrl-C, or --for, stops the writers. The query reads the rest, and `verify` compares the
    table with the journals. The exit code is that of `verify`.
    """
    if typed_broker(ctx) is not None:
        raise click.UsageError("quickstart starts its own broker; leave out --broker, or run demo")
    _check_requirements(lag=True)
    import logging

    from rich.console import Console

    from gazette_spark.demo.run import DemoOptions

    # Until the table exists, the lag page logs that it cannot read it. Keep that off the terminal.
    logging.getLogger("gazette_spark").addHandler(logging.NullHandler())
    ends = EndSignals()
    options = DemoOptions(seconds, rate, kills, has_lag_page=True)
    report = _run(options, keep, Console(stderr=True), ends.wait)
    if report is not None:
        report.proof.check()
        raise click.exceptions.Exit(report.verify_exit_code)


def _check_requirements(*, lag: bool = False) -> None:
    """Report missing requirements before anything is started; with ``lag``, also those of the lag page."""
    from importlib.util import find_spec

    # Looked up instead of imported, because importing Spark takes seconds and the error must be immediate.
    if find_spec("pyspark") is None or find_spec("delta") is None:
        raise MissingPackageError("Spark is not installed")
    if lag and (find_spec("deltalake") is None or find_spec("uvicorn") is None):
        raise MissingPackageError("the lag page is not installed", "gazette-spark[spark,lag]")
    if find_java(os.environ) is None:
        raise click.ClickException(f"{no_java(os.environ)}: install a JRE of version 17 or 21")


def _run(options: DemoOptions, keep: Path | None, console: Console, wait: Wait) -> DemoReport | None:
    from gazette_spark.demo.run import QueryDiedError, run_demo

    with _work_directory(keep) as directory, _ConsoleScreen(console) as screen:
        screen.say(starting_spark())
        try:
            return run_demo(options, directory, screen, wait)
        except QueryDiedError as error:
            # The cause is in the log of another process. It is removed with the directory unless that is
            # kept.
            click.echo(error.log_tail, err=True)
            raise


@contextmanager
def _work_directory(keep: Path | None) -> Iterator[Path]:
    """Yield an empty directory: the user's, or a temporary one that is removed unless the demo fails."""
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
            is_empty = not any(keep.iterdir())
        except OSError as error:
            problem = f"{keep} cannot be created or listed: {error.strerror}"
            raise click.BadParameter(problem, param_hint="--keep") from None
        if not is_empty:
            raise click.BadParameter(f"{keep} is not empty", param_hint="--keep")
        try:
            yield keep.resolve()
        finally:
            click.echo(f"kept in {keep}: {' '.join(sorted(path.name for path in keep.iterdir()))}")
        return
    directory = Path(tempfile.mkdtemp(prefix="gazette-spark-demo-"))
    is_evidence = False
    try:
        yield directory
    except GazetteError:
        # A failure before the start of the query leaves nothing to inspect.
        is_evidence = (directory / "query.log").exists()
        raise
    finally:
        if is_evidence:
            click.echo(f"kept for inspection: {directory}", err=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


class _ConsoleScreen:
    """Prints lines with the elapsed time, and the current state: on a terminal, as one status line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None
        self._began = time.monotonic()
        self._shown = 0.0

    def say(self, text: str) -> None:
        """Print one line without buffering, even to a pipe."""
        elapsed_s = time.monotonic() - self._began
        self._console.print(f"{elapsed_s:5.1f} s  {text}", highlight=False, soft_wrap=True)

    def show(self, phase: str, appended_rows: int, table_rows: int) -> None:
        """Update the status line. Without a terminal, print a line if the last one is old enough."""
        text = f"{phase}: {appended_rows:,} rows appended, {table_rows:,} in the table"
        if self._status is not None:
            self._status.update(text)
        elif time.monotonic() - self._shown >= PLAIN_INTERVAL_S:
            self._shown = time.monotonic()
            self.say(text)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._status is not None:
            self._status.stop()
