"""``gazette-spark demo``: the main job on one machine, with crashes, and the proof that nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gazette_spark.cli.doctor import find_java, no_java
from gazette_spark.cli.main import typed_broker
from gazette_spark.errors import GazetteError
from gazette_spark.spark_start import starting_spark

if TYPE_CHECKING:
    from rich.console import Console

    from gazette_spark.demo.run import Report


keep_option = click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="Keep broker, table, checkpoint and logs in DIR, which must be empty or new.",
)


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=40.0,
    show_default=True,
    help="Time that the writers append. The two kills may prolong it.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=10),
    default=10_000.0,
    show_default=True,
    help="Events per second, over all journals.",
)
@click.option(
    "--broker",
    default=None,
    metavar="URL",
    callback=lambda ctx, _parameter, value: value or typed_broker(ctx),
    help="Use this broker instead of an embedded one.",
)
@keep_option
def demo(seconds: float, rate: float, broker: str | None, keep: Path | None) -> None:
    """Stream journals into a Delta table, with crashes, and prove it exact.

    Four writers append shop events to four journals while a Spark query streams them into a Delta
    table. The query is killed with SIGKILL in mid-flight twice and started again. Then every appended
    event is looked up in the table. Exit code 1 if one is lost or doubled.
    """
    check_needs()
    # An exception lets everything be closed and removed, which the signal's own way would not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    from rich.console import Console

    from gazette_spark.cli.screen import make_screen
    from gazette_spark.demo.child import QueryDiedError
    from gazette_spark.demo.run import DemoOptions, run_demo

    console = Console()
    with work_directory(keep) as directory, make_screen(console) as screen:
        screen.say(starting_spark())
        try:
            report = run_demo(DemoOptions(seconds, rate, broker), directory, screen)
        except QueryDiedError as error:
            click.echo(error.log_tail, err=True)
            raise
        show_report(report, console)
        report.proof.check()


def check_needs(*, lag: bool = False) -> None:
    """Report missing requirements before anything is started; with ``lag`` those of its page, too."""
    from importlib.util import find_spec

    if find_spec("pyspark") is None or find_spec("delta") is None:
        raise click.ClickException("Spark is not installed: pip install 'gazette-spark[spark]'")
    if lag and (find_spec("deltalake") is None or find_spec("uvicorn") is None):
        raise click.ClickException("the lag page is not installed: pip install 'gazette-spark[spark,lag]'")
    if find_java(os.environ) is None:
        raise click.ClickException(f"{no_java(os.environ)}: install a JRE of version 17 or 21")


@contextmanager
def work_directory(keep: Path | None) -> Iterator[Path]:
    """Give an empty directory: the user's, or one that is removed unless it holds a failure's evidence."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
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
        is_evidence = (directory / "query.log").exists()
        raise
    finally:
        if is_evidence:
            click.echo(f"kept for a closer look: {directory}", err=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def show_report(report: Report, console: Console) -> None:
    """Print the demo's result."""
    from rich.table import Table

    proof, times = report.proof, report.times
    lines = {
        "rows appended": f"{proof.appended:,}",
        "rows in the table": f"{proof.in_table:,}",
        "lost": f"{proof.lost:,}",
        "duplicated": f"{proof.duplicated:,}",
        "foreign or altered": f"{proof.foreign + proof.altered:,}",
        "kills of the query": f"{times.kills:,}",
        "commits of the table": f"{times.table_commits:,}",
        "bytes appended": f"{report.appended_bytes:,}",
        "bytes/s appended": f"{report.appended_bytes / times.writing_s:,.0f}",
        "bytes/s into the table": f"{report.appended_bytes / times.drained_s:,.0f} (kills included)",
    }
    totals = Table(show_header=False, box=None, pad_edge=False)
    for name, value in lines.items():
        totals.add_row(name, value)
    ledger = Table("journal", "read through", title="the ledger's last entry", title_justify="left", box=None)
    for journal, offset in report.ledger.items():
        ledger.add_row(journal, f"{offset:,}")
    console.print()
    console.print(totals)
    console.print()
    console.print(ledger)
    console.print()
    if proof.exact:
        console.print(
            "[bold green]exactly once[/]: every appended event is in the table, and nothing else is"
        )
