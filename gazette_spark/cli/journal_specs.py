"""Implements ``gazette-spark journals list`` and ``apply``, which show and change specs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import click
from google.protobuf.message import Message

from gazette_spark.cli.journal_options import (
    Connect,
    interrupted_by_signals,
    selector_option,
)
from gazette_spark.cli.main import Integer
from gazette_spark.cli.output import Printer, Row, output_option, say_reading
from gazette_spark.client._list.apply import conflict
from gazette_spark.errors import JournalNotFoundError, NotAllowedError, StatusError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_yaml import changes_of_journals, format_journal_yaml, parse_journal_yaml
from gazette_spark.protocol.labels import values_of

if TYPE_CHECKING:
    from gazette_spark.client import Client, Listing

NONE = "<none>"
"""Text of a missing value in tables; ``gazctl`` uses it, too."""

DEFAULT_COLUMNS = ("codec", "fragment_length", "stores", "primary", "labels")
"""Columns of the table if no option selects a column."""

max_txn_size_option = click.option(
    "--max-txn-size",
    type=Integer(min=0),
    default=0,
    show_default=True,
    help="Maximum number of changes per transaction; 0: one transaction for all, which Etcd refuses above "
    "128. With several transactions, some may be applied and others not.",
)


@click.command("list")
@selector_option
@output_option("table", "yaml", "json", "jsonl", "proto")
@click.option(
    "--primary", "-p", is_flag=True, help="Column: the primary broker; <S> marks a suspended journal."
)
@click.option("--replicas", "-r", is_flag=True, help="Column: the other brokers.")
@click.option("--rf", is_flag=True, help="Column: the configured replication factor.")
@click.option("--stores", is_flag=True, help="Column: the fragment stores.")
@click.option("--label-columns", "-L", "labels", multiple=True, metavar="LABEL", help="Column: a label.")
@click.option("--heads", is_flag=True, help="Column: the write head.")
@click.option("--watch", is_flag=True, help="Show the list again after each change, until interrupted.")
@click.pass_obj
def list_journals(  # noqa: PLR0917 - click's
    connect: Connect,
    selector: str,
    printer: Printer,
    primary: bool,
    replicas: bool,
    rf: bool,
    stores: bool,
    labels: tuple[str, ...],
    heads: bool,
    watch: bool,
) -> None:
    """List journals, ascending by name.

    The format yaml is the tree that `apply` reads, with revisions. The format json is one ListResponse, as
    in gazctl.
    """
    flags = {"rf": rf, "primary": primary, "replicas": replicas, "stores": stores}
    columns = [name for name, shown in flags.items() if shown]
    # As in gazctl, selecting columns replaces the default ones.
    if not columns and not labels:
        columns = list(DEFAULT_COLUMNS)
    columns = ["name", *["write_head"] * heads, *columns]
    with connect() as client:
        if not watch:
            show_listing(client, client.list_all_journals(selector), printer, columns, labels)
            return
        show_updates(client, selector, printer, columns, labels)


def show_updates(
    client: Client, selector: str, printer: Printer, columns: Sequence[str], labels: Sequence[str]
) -> None:
    """Show the list again after each change, until interrupted."""
    from gazette_spark.client import WatchedList

    separator = {"table": "", "yaml": "---"}.get(printer.format)
    with interrupted_by_signals(), suppress(KeyboardInterrupt), WatchedList(client, selector) as watched:
        for at, listing in enumerate(watched.updates()):
            if at and separator is not None:
                click.echo(separator)
            show_listing(client, listing, printer, columns, labels)


def show_listing(
    client: Client, listing: Listing, printer: Printer, columns: Sequence[str], labels: Sequence[str]
) -> None:
    """Print one listing."""
    match printer.format:
        case "yaml":
            # With revisions, so that apply fails instead of overwriting a change made in between.
            changes = changes_of_journals(listing.journals)
            click.echo(format_journal_yaml(changes) if changes else "{}\n", nl=False)
        case "json" | "proto":
            printer.message(listing.to_pb())
        case _:
            # Only on request, because each journal needs a call.
            refusals: dict[str, StatusError] = {}
            heads = client.write_heads(listing.names, refusals=refusals) if "write_head" in columns else {}
            rows = [journal_row(journal, heads.get(journal.spec.name)) for journal in listing.journals]
            if printer.format == "table":
                rows = [
                    table_row(row, journal.spec, labels)
                    for row, journal in zip(rows, listing.journals, strict=True)
                ]
            printer.rows(rows, [*columns, *labels])
            for refusal in refusals.values():
                # A journal that was deleted after the listing, or is write-only, has no head to show.
                if not isinstance(refusal, (JournalNotFoundError, NotAllowedError)):
                    raise refusal


def journal_row(journal: pb.ListResponse.Journal, write_head: int | None = None) -> dict[str, object]:
    """Return a journal's row."""
    spec, route = journal.spec, journal.route
    members = [member.suffix for member in route.members]
    primary = members.pop(route.primary) if 0 <= route.primary < len(members) else None
    row: dict[str, object] = {
        "name": spec.name,
        "codec": pb.CompressionCodec.Name(spec.fragment.compression_codec),
        "fragment_length": spec.fragment.length,
        "stores": list(spec.fragment.stores),
        "primary": primary,
        "replicas": members,
        "labels": label_values(spec.labels),
        "rf": spec.replication,
        "suspended": pb.JournalSpec.Suspend.Level.Name(spec.suspend.level),
        "mod_revision": journal.mod_revision,
        "create_revision": journal.create_revision,
    }
    return row if write_head is None else row | {"write_head": write_head}


def label_values(labels: pb.LabelSet) -> dict[str, object]:
    """Return the value of each label, or its values if it has several."""
    values_by_label: dict[str, object] = {}
    for label in labels.labels:
        values = values_of(labels, label.name)
        values_by_label[label.name] = values[0] if len(values) == 1 else values
    return values_by_label


def table_row(row: Row, spec: pb.JournalSpec, labels: Sequence[str]) -> dict[str, object]:
    """Return a row of the table, with texts for missing values and a column for each label."""
    suspended = spec.suspend.level != pb.JournalSpec.Suspend.NONE
    columns: dict[str, object] = {name: values_of(spec.labels, name) or NONE for name in labels}
    shown = {"write_head": NONE, **row, "primary": f"{row['primary'] or NONE}{' <S>' if suspended else ''}"}
    return {**shown, "stores": row["stores"] or NONE, **columns}


@click.command("apply")
@click.option("--specs", "-f", type=click.File("r"), default="-", help="YAML of journals; '-' is stdin.")
@click.option("--dry-run", is_flag=True, help="Compare the specs with the brokers'; change nothing.")
@max_txn_size_option
@output_option("table", "json", "proto")
@click.pass_obj
def apply_specs(connect: Connect, specs: TextIO, dry_run: bool, max_txn_size: int, printer: Printer) -> None:
    """Create, change or delete journals according to a YAML file.

    A spec without a revision creates its journal, or fails if it exists. Revision -1 overwrites. The command
    applies the whole file or nothing, unless --max-txn-size splits it. The format proto is the ApplyRequest.

    --dry-run shows create, change, no change, delete or refused for each journal. The exit code is 1 if a
    change would be refused.
    """
    changes = parse_journal_yaml(read_specs(specs))
    with connect() as client:
        if dry_run:
            # Only the named journals, because a cluster may have many thousands.
            existing = client.journals_named(change.delete or change.upsert.name for change in changes)
            rows = [planned(change, "name", existing) for change in changes]
            show_applied(printer, pb.ApplyRequest(changes=changes), "name", rows, None)
            return
        revision = client.apply_in_batches(changes, max_txn_size)
    rows = [applied(change, "name") for change in changes]
    show_applied(printer, pb.ApplyRequest(changes=changes), "name", rows, revision)


def read_specs(specs: TextIO) -> str:
    """Return the YAML. At a terminal, print that the command waits for it."""
    say_reading(specs)
    return specs.read()


def applied(change: Any, key: str) -> dict[str, str]:  # noqa: ANN401 - of journals or shards
    """Return the row of a change that was applied; ``key`` is the field with the item's name."""
    if change.delete:
        return {key: change.delete, "change": "delete"}
    # The words of a dry run. A change at revision -1 does not require or exclude that the item existed.
    words = {0: "create", -1: "create or change"}
    return {key: getattr(change.upsert, key), "change": words.get(change.expect_mod_revision, "change")}


def planned(change: Any, key: str, existing: Mapping[str, Any]) -> dict[str, str]:  # noqa: ANN401 - as above
    """Return the row of a change in a dry run, with the reason if brokers would refuse it.

    ``existing`` has the items that exist, by name.
    """
    row = applied(change, key)
    now = existing.get(row[key])
    # These are the broker's own conditions. A dry run can still be wrong if a journal changes before the real
    # run.
    if problem := conflict(change.expect_mod_revision, now, delete=bool(change.delete)):
        return row | {"change": "refused", "problem": problem}
    if not change.delete:
        same = now is not None and now.spec == change.upsert
        row["change"] = "create" if now is None else "no change" if same else "change"
    return row


def show_applied(
    printer: Printer, request: Message, key: str, rows: Sequence[Row], revision: int | None
) -> None:
    """Show what was applied; ``revision`` is None for a dry run.

    Raises:
        click.exceptions.Exit: with code 1, if it was a dry run and brokers would refuse a change.
    """
    refused = [row for row in rows if "problem" in row]
    match printer.format:
        case "proto":
            printer.message(request)
        case "json":
            document = {"dry_run": revision is None, "revision": revision or 0, "changes": list(rows)}
            click.echo(json.dumps(document, indent=2))
        case _:
            printer.rows(rows, [key, "change", *["problem"][: len(refused)]])
            done = "dry run: nothing was applied" if revision is None else f"applied at revision {revision}"
            click.echo(done, err=True)
    if refused:
        raise click.exceptions.Exit(1)
