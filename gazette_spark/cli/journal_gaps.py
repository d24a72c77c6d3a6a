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
    help="Begin of the range. Default: the first byte that is left.",
)
@click.option(
    "--end", type=int, default=None, metavar="OFFSET", help="End of the range. Default: the write head."
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
    """List the bytes that no fragment of JOURNAL holds any more.

    Or those of all journals that --selector matches. A query that reads them loses data. Brokers notice
    missing files when they list their stores again.
    """
    columns = ["journal", "begin", "end", "bytes"]
    with connect() as client:
        chosen_selector(journal, selector)
        rows = [
            {name: getattr(gap, name) for name in columns}
            for spec in chosen_journals(client, journal, selector)
            for gap in client.gaps(spec.name, begin=begin, end=end)
        ]
    if not rows and printer.format == "table":
        click.echo("no gaps")
        return
    printer.rows(rows, columns)
