"""``gazette-spark journals gaps``: what journals have lost."""

from __future__ import annotations

import click

from gazette_spark.cli.journal_options import Connect, chosen_journals, chosen_selector, journal_argument
from gazette_spark.cli.output import Printer, output_option


@click.command()
@journal_argument
@click.option(
    "--begin",
    type=int,
    default=None,
    metavar="OFFSET",
    help="Look from here; by default the first byte left.",
)
@click.option(
    "--end", type=int, default=None, metavar="OFFSET", help="Look up to here; by default the write head."
)
@output_option("table", "json", "jsonl")
@click.pass_obj
def gaps(
    connect: Connect,
    *,
    journal: str | None,
    selector: str,
    begin: int | None,
    end: int | None,
    printer: Printer,
) -> None:
    """List the bytes of JOURNAL, or of all that --selector matches, that no fragment holds any more.

    Reading them is data loss. Brokers learn of files that are gone when they list their stores again.
    """
    with connect() as client:
        chosen_selector(journal, selector)
        found = [
            gap
            for spec in chosen_journals(client, journal, selector)
            for gap in client.gaps(spec.name, begin=begin, end=end)
        ]
    if not found and printer.format == "table":
        click.echo("no gaps")
        return
    columns = ["journal", "begin", "end", "bytes"]
    printer.rows([{name: getattr(gap, name) for name in columns} for gap in found], columns)
