"""Implements ``gazette-spark offsets``, which shows a table's ledger without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

from gazette_spark._ledger.delta_reader import is_catalog_managed
from gazette_spark._ledger.entry import LedgerState
from gazette_spark._ledger.history import HistoryRow, app_ids, read_state, visible_entries
from gazette_spark._ledger.iceberg_reader import TableName
from gazette_spark._ledger.table_log import table_log
from gazette_spark.cli.journal_options import Connect, broker_options, make_connect, record_options
from gazette_spark.cli.main import broker_here
from gazette_spark.cli.output import format_option, show
from gazette_spark.locations import local_path, masked_url
from gazette_spark.offsets import JournalOffsets


@click.group()
@broker_here
def offsets() -> None:
    """Show how far a table has read its journals."""


@offsets.command("show")
@click.argument("table")
@click.option("--app-id", default=None, help="Show one writer. Default: all writers in the table's history.")
@click.option("--from-data", is_flag=True, help="Show where the rows end, for a table that lost its ledger.")
@broker_options
@record_options
@format_option
def show_offsets(
    *,
    table: str,
    app_id: str | None,
    from_data: bool,
    endpoint: str,
    timeout: float,
    output_format: str,
    **options: Any,  # noqa: ANN401 - values of RecordOptions
) -> None:
    """Show the ledger of the table TABLE.

    TABLE is the directory of a Delta table; or its location, such as s3://bucket/orders, without
    percent-encoding; or iceberg:catalog/namespace.table for an Iceberg table of pyiceberg's configuration.
    The versions of an Iceberg table are the sequence numbers of its snapshots.

    The command also lists bytes that are not in the table because they were lost or skipped, as far back as
    the table's history goes.

    With --from-data, it ignores the ledger and finds where the rows end, from the columns _journal, _offset
    and _end_offset. Without _end_offset, and for rows of the format raw, it reads the last record of each
    journal from the broker. The sink's method adopt and the option startingOffsets accept the JSON output.
    Rows of several writers are not distinguished. Journals without a row in the table are missing.

    For a table of a catalog, use `DeltaSink(app_id, table=…).ledger()`.
    """
    location = checked_location(table)
    if from_data:
        show_data_ends(location, make_connect(endpoint, timeout), options, output_format)
    else:
        show_ledger(location, app_id, output_format)


def checked_location(table: str) -> str:
    """Return a table's directory, which must exist, or its location in an object store."""
    directory = None if TableName.parse(table) else local_path(table)
    if directory is None:
        return table
    # Checked before the log is read, because Delta's reader reports a missing directory as "not a table".
    if not Path(directory).is_dir():
        # Spark's paths are not percent-encoded, but URLs that people copy are.
        plain = unquote(directory)
        hint = f". Write it without quoting: {plain!r}" if plain != directory and Path(plain).is_dir() else ""
        expected = "TABLE is a directory, a URL, or iceberg:CATALOG/NAMESPACE.TABLE"
        raise click.UsageError(f"there is no directory {directory!r}; {expected}{hint}")
    return directory


def show_data_ends(table: str, connect: Connect, options: dict[str, Any], output_format: str) -> None:
    """Show where a table's rows end; call the broker only if the rows do not have their end offset."""
    from gazette_spark._verify.data_ends import DeltaRows, IcebergRows, RecordOptions, data_ends

    iceberg = TableName.parse(table)
    rows = DeltaRows(table) if iceberg is None else IcebergRows(iceberg)
    journal_ends = data_ends(rows, None)
    # Without _end_offset, the end depends on the length of the last record, which is not in the table.
    if any(end.read_through is None for end in journal_ends):
        with connect() as client:
            journal_ends = data_ends(rows, client, RecordOptions(**options))
    if output_format == "json":
        offsets = {end.journal: end.read_through for end in journal_ends if end.read_through is not None}
        click.echo(JournalOffsets(offsets).to_json())
        return
    columns = ["journal", "rows", "last_offset", "read_through"]
    show([asdict(end) for end in journal_ends], columns, output_format)


def show_ledger(table: str, app_id: str | None, output_format: str) -> None:
    """Show the ledger in a table's history."""
    history = table_log(table).rows(None)
    if is_catalog_managed(table):
        click.echo(
            f"{table} is catalog-managed: commits that its catalog has not published yet are missing here. "
            "DeltaSink(app_id, table=…).ledger() has them.",
            err=True,
        )
    # A URL may contain credentials, and users paste the output into tickets.
    table = masked_url(table)
    states: dict[str, LedgerState] = {}
    for name in [app_id] if app_id else app_ids(history):
        state = read_state(lambda limit: history[:limit], name, table=table, entries=1)
        if state.entry is not None:
            states[name] = state
    if not states:
        whose = f"of app id {app_id!r}" if app_id else "of any writer"
        problem = f"{table} has no ledger entry {whose} in its {len(history)} commits"
        if others := ", ".join(map(repr, app_ids(history))):
            problem += f", only of {others}"
        raise click.ClickException(problem)
    if output_format == "json":
        shown = [
            entry_json(state) | {"skipped": list(skipped_rows(history, name, table))}
            for name, state in states.items()
        ]
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    rows = [row for state in states.values() for row in entry_rows(state)]
    show(rows, ["app_id", "batch_id", "table_version", "journal", "read_through"], output_format)
    if skipped := [row for name in states for row in skipped_rows(history, name, table)]:
        click.echo("\nBytes that were missing or skipped and are not in the table:")
        columns = ["app_id", "batch_id", "table_version", "journal", "begin", "end", "bytes"]
        show(skipped, columns, output_format)


def skipped_rows(history: Sequence[HistoryRow], app_id: str, table: str) -> Iterator[dict[str, object]]:
    """Yield a row for each gap that batches of an app id skipped, newest batch first."""
    for row, entry in visible_entries(history, app_id, table=table):
        for gap in entry.gaps:
            yield {
                "app_id": app_id,
                "batch_id": entry.batch_id,
                "table_version": row.version,
                "journal": gap.journal,
                "begin": gap.begin,
                "end": gap.end,
                "bytes": gap.end - gap.begin,
            }


def entry_json(state: LedgerState) -> dict[str, Any]:
    """Return an entry with the version and time of its commit."""
    assert state.entry is not None
    entry: dict[str, Any] = json.loads(state.entry.to_json())
    return {"table_version": state.entry_version, "time": state.entry_time} | entry


def entry_rows(state: LedgerState) -> Iterator[dict[str, object]]:
    """Yield a row for each journal of an entry."""
    assert state.entry is not None
    for journal, offset in state.entry.read_through.items():
        yield {
            "app_id": state.entry.app_id,
            "batch_id": state.entry.batch_id,
            "table_version": state.entry_version,
            "journal": journal,
            "read_through": offset,
        }
