"""``gazette-spark quickstart``: broker, journals, writers, a stream and the page of lag in one terminal."""

from __future__ import annotations

from pathlib import Path
from queue import Empty

import click

from gazette_spark.cli.demo import check_needs, keep_option, work_directory
from gazette_spark.cli.server_options import end_signals
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.durations import parse_duration
from gazette_spark.spark_start import starting_spark


def _seconds(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float:
    if text is None:
        return float("inf")
    try:
        return parse_duration(text).ToNanoseconds() / 1e9
    except ProtocolError as error:
        raise click.BadParameter(error.problem) from None


@click.command()
@click.option(
    "--for", "seconds", metavar="DURATION", callback=_seconds, help="End after this time, such as 30s or 2m."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=1),
    default=200.0,
    show_default=True,
    help="Events per second, over all journals.",
)
@keep_option
def quickstart(seconds: float, rate: float, keep: Path | None) -> None:
    """Stream journals into a Delta table and watch its lag in a browser.

    The command starts a broker, four journals, their writers, a Spark query and the lag page, and prints the
    page's address. Ctrl-C, or --for, stops the writers. The table gets the rest, and `verify` compares it
    with the journals. The exit code is that of `verify`.
    """
    check_needs(lag=True)
    ends = end_signals()
    from rich.console import Console

    from gazette_spark.cli.screen import make_screen
    from gazette_spark.demo.child import QueryDiedError
    from gazette_spark.demo.quickstart import QuickstartOptions, run_quickstart

    def wait(timeout_s: float) -> bool:
        try:
            ends.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    with work_directory(keep) as directory, make_screen(Console(stderr=True)) as screen:
        screen.say(starting_spark())
        try:
            code = run_quickstart(QuickstartOptions(rate, seconds), directory, screen, wait)
        except QueryDiedError as error:
            click.echo(error.log_tail, err=True)
            raise
    raise click.exceptions.Exit(code)
