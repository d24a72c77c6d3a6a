"""``gazette-spark verify``: proves that a Delta table matches its journals and ledger, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gazette_spark.cli.journal_options import broker_options, make_connect, record_options
from gazette_spark.cli.output import format_option, text_table

if TYPE_CHECKING:
    from gazette_spark.audit.verify import Report

COMPARED = {
    "entries": "the rows were not compared",
    "counts": "the table has no column of offsets: records were counted where commits say their rows",
    "offsets": "each record has one row at its offset; bytes were not compared",
    "bytes": "each record is one row, its bytes unchanged",
}
"""Text of the result for each depth of the comparison."""


@click.command()
@click.argument("table")
@broker_options
@click.option("--app-id", default=None, help="Only this writer; else every one the table's history names.")
@click.option(
    "--entries-only", is_flag=True, help="Look at the ledger alone: read neither journals nor rows."
)
@click.option("--allow-gone", is_flag=True, help="Name bytes that journals no longer have, and go on.")
@click.option(
    "--dead-letters",
    multiple=True,
    metavar="NAME=LOCATION",
    help="Where a table of dead letters is that the entries name by its name in a catalog. Repeatable.",
)
@record_options
@format_option
def verify(
    *,
    table: str,
    endpoint: str,
    timeout: float,
    app_id: str | None,
    entries_only: bool,
    dead_letters: tuple[str, ...],
    output_format: str,
    **options: Any,  # noqa: ANN401 - those of RecordOptions
) -> None:
    """Prove that the Delta table TABLE, a directory or a URL, holds its journals' records exactly.

    The entries of its ledger must tile each journal without gap or overlap, but for gaps they name. And if
    the table has the columns _journal and _offset, or journal, offset and value, its rows must be the
    journals' records: each once, and in the second case the same bytes. Of a table without them, records are
    counted. Where entries count and digest their rows (DeltaSink's option audit), that must agree, too; and
    they vouch for rows whose bytes journals no longer have. Records among the table's dead letters have no
    row. A query that leaves records out, or makes several rows of one, is not exact in this sense.

    The exit code is 0 if that is so; 1 if not, and the first difference is printed.
    """
    from gazette_spark.audit.table import TableSnapshot
    from gazette_spark.audit.verify import RecordOptions, verify_table

    snapshot = TableSnapshot(table)
    how = RecordOptions(**options, dead_letters=dict(map(_named_location, dead_letters)))
    if entries_only:
        report = verify_table(snapshot, None, how, name=table, app_id=app_id)
    else:
        with make_connect(endpoint, timeout)() as client:
            report = verify_table(snapshot, client, how, name=table, app_id=app_id)
    if output_format == "json":
        click.echo(json.dumps(report_json(report), indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(report_lines(report)))
    if report.difference:
        raise click.exceptions.Exit(1)


def _named_location(text: str) -> tuple[str, str]:
    name, equals, location = text.partition("=")
    if not (name and equals and location):
        raise click.BadParameter(f"{text!r} is not NAME=LOCATION", param_hint="--dead-letters")
    return name, location


def journal_rows(report: Report) -> Iterator[dict[str, object]]:
    """Yield a line for each journal of each writer."""
    for claim in report.claims:
        yield {
            "app_id": claim.app_id,
            "journal": claim.journal,
            "begin": claim.start,
            "end": claim.end,
            "commits": len(claim.spans),
            "records": report.records.get(claim.journal),
            "dead_letters": report.dead.get(claim.journal, 0),
        }


def lost_rows(report: Report) -> Iterator[dict[str, object]]:
    """Yield a line for each gap that entries name, and for bytes that are gone without being named."""
    named = [(claim.journal, *gap, True) for claim in report.claims for gap in claim.gaps]
    found = [(*gone, False) for gone in report.gone]
    for journal, begin, end, recorded in sorted(named + found):
        yield {"journal": journal, "begin": begin, "end": end, "bytes": end - begin, "recorded": recorded}


def report_lines(report: Report) -> Iterator[str]:
    """Yield the report's lines for people."""
    if rows := list(journal_rows(report)):
        yield text_table(rows, ["app_id", "journal", "begin", "end", "commits", "records"])
    if lost := list(lost_rows(report)):
        yield "\nBytes that are gone: in the ledger (recorded), or only now missing in the journal:"
        yield text_table(lost, ["journal", "begin", "end", "bytes", "recorded"])
    for tiling in report.tilings:
        if tiling.cleaned_up:
            yield f"app id {tiling.app_id!r}: Delta's log no longer has its first entries"
    for journal, begin, end in report.vouched:
        yield f"journal {journal!r}, [{begin}, {end}): the table's rows are what their commit's entry says"
    if report.difference:
        yield f"difference: {report.difference}"
        return
    entries = sum(tiling.entries for tiling in report.tilings)
    proof = f"{entries} entries tile each journal; {COMPARED[report.compared]}"
    if dead := sum(report.dead.values()):
        proof += f"; {dead} records are dead letters"
    if report.audited:
        proof += f"; {report.audited} ranges have the rows, and digests, that their entries say"
    yield f"verified: version {report.table_version}, {proof}"


def report_json(report: Report) -> dict[str, Any]:
    """Return the report's JSON for programs."""
    different = report.difference
    return {
        "table": report.table,
        "table_version": report.table_version,
        "verified": different is None,
        "compared": report.compared,
        "difference": different
        and {
            "table_version": different.table_version,
            "journal": different.journal,
            "offset": different.offset,
            "end_offset": different.end_offset,
            "problem": different.problem,
        },
        "writers": [
            {
                "app_id": tiling.app_id,
                "entries": tiling.entries,
                "first_entries_cleaned_up": tiling.cleaned_up,
                "commits": [
                    {"table_version": version, "rows": report.rows.get(version)}
                    for version in sorted(
                        {span.table_version for each in tiling.claims for span in each.spans}
                    )
                ],
            }
            for tiling in report.tilings
        ],
        "journals": list(journal_rows(report)),
        "gone": list(lost_rows(report)),
        "audited": report.audited,
        "vouched": [
            {"journal": journal, "begin": begin, "end": end} for journal, begin, end in report.vouched
        ],
    }
