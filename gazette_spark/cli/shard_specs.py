"""``gazette-spark shards list`` and ``apply``: specs of shards, and their YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

import click

from gazette_spark.cli.journal_specs import (
    NONE,
    applied,
    label_values,
    max_txn_size_option,
    planned,
    read_specs,
    show_applied,
)
from gazette_spark.cli.output import Printer, output_option
from gazette_spark.cli.shard_options import ShardConnect, shard_selector_option
from gazette_spark.protocol.labels import values_of

if TYPE_CHECKING:
    from gazette_spark.client import Client
    from gazette_spark.protocol import consumer_pb2 as pc

DEFAULT_COLUMNS = ("primary", "sources", "labels")
"""Shown if no column is asked for."""


@click.command("list")
@shard_selector_option
@output_option("table", "yaml", "json", "jsonl", "proto")
@click.option("--primary", "-p", is_flag=True, help="Column: the primary, and its status.")
@click.option("--replicas", "-r", is_flag=True, help="Column: the other consumers, and their status.")
@click.option("--rf", is_flag=True, help="Column: the configured replication factor.")
@click.option("--label-columns", "-L", "labels", multiple=True, metavar="LABEL", help="Column: a label.")
@click.option("--lag", is_flag=True, help="Column: unread bytes of each source; asks shards and journals.")
@click.pass_obj
def list_shards(  # noqa: PLR0917 - click's
    connect: ShardConnect,
    selector: str,
    printer: Printer,
    primary: bool,
    replicas: bool,
    rf: bool,
    labels: tuple[str, ...],
    lag: bool,
) -> None:
    """List shards and their status, ascending by id.

    As yaml: the list that `apply` takes, with revisions. As json: one ListResponse, as gazctl prints it.
    Errors of FAILED shards go to stderr.
    """
    from gazette_spark.consumer.shard_yaml import changes_of_shards, format_shard_yaml

    flags = {"rf": rf, "primary": primary, "replicas": replicas}
    columns = [name for name, shown in flags.items() if shown]
    if not columns and not labels:
        columns = list(DEFAULT_COLUMNS)
    with connect() as shards:
        listed = shards.list_all_shards(selector)
        match printer.format:
            case "yaml":
                click.echo(format_shard_yaml(changes_of_shards(listed.shards)), nl=False)
                return
            case "json" | "proto":
                printer.message(listed)
                return
        behind: Mapping[str, Mapping[str, int]] = {}
        if lag:
            with connect.brokers() as client:
                behind = shards.lags(client, listed.shards)
    rows = [shard_row(shard, behind.get(shard.spec.id, {}) if lag else None) for shard in listed.shards]
    if printer.format == "table":
        for row in rows:
            for error in row["errors"]:  # type: ignore[attr-defined]  # A list, see shard_row.
                click.echo(f"{row['id']}: {' '.join(error.split())}", err=True)
        rows = [_table_row(row, shard.spec, labels) for row, shard in zip(rows, listed.shards, strict=True)]
    printer.rows(rows, ["id", "status", *columns, *labels, *["lag"] * lag])


def shard_row(shard: pc.ListResponse.Shard, lag: Mapping[str, int] | None = None) -> dict[str, object]:
    """Return one line of the list."""
    from gazette_spark.consumer.specs import recovery_log, reduce_statuses
    from gazette_spark.protocol import consumer_pb2 as pc

    def code(status: pc.ReplicaStatus) -> str:
        return pc.ReplicaStatus.Code.Name(status.code)

    spec, route = shard.spec, shard.route
    members = [
        f"{member.suffix}:{code(status)}" for member, status in zip(route.members, shard.status, strict=True)
    ]
    primary = members.pop(route.primary) if 0 <= route.primary < len(members) else None
    reduced = reduce_statuses(shard.status)
    row: dict[str, object] = {
        "id": spec.id,
        "status": code(reduced),
        "errors": list(reduced.errors),
        "primary": primary,
        "replicas": members,
        "sources": [source.journal for source in spec.sources],
        "labels": label_values(spec.labels),
        "rf": 0 if spec.disable else spec.hot_standbys + 1,
        "recovery_log": recovery_log(spec),
        "mod_revision": shard.mod_revision,
        "create_revision": shard.create_revision,
    }
    return row if lag is None else row | {"lag": dict(lag)}


def _table_row(row: dict[str, object], spec: pc.ShardSpec, labels: Sequence[str]) -> dict[str, object]:
    """Return a table's line: with words for missing values, and a column for each label."""
    columns: dict[str, object] = {name: values_of(spec.labels, name) or NONE for name in labels}
    return {**row, "primary": row["primary"] or NONE, **columns}


@click.command("apply")
@click.option("--specs", "-f", type=click.File("r"), default="-", help="YAML of shards; '-' is stdin.")
@click.option("--dry-run", is_flag=True, help="Compare the specs with the consumer's; change nothing.")
@max_txn_size_option
@output_option("table", "json", "proto")
@click.pass_obj
def apply_specs(
    connect: ShardConnect, specs: TextIO, dry_run: bool, max_txn_size: int, printer: Printer
) -> None:
    """Create, change or delete shards as a YAML file says.

    A spec without a revision creates its shard, and fails if it exists. Revision -1 overwrites. The journals
    of sources and recovery logs must exist, with fitting content types. The command applies the whole file or
    nothing, unless --max-txn-size cuts it. As proto: the ApplyRequest.
    """
    from gazette_spark.protocol import consumer_pb2 as pc

    with connect.brokers() as client:
        changes = _checked(client, read_specs(specs))
    revision = None
    with connect() as shards:
        if dry_run:
            existing = {shard.spec.id: shard for shard in shards.list_shards()}
            rows = [planned(change, "id", existing) for change in changes]
        else:
            revision = shards.apply_in_batches(changes, max_txn_size)
            rows = [applied(change, "id") for change in changes]
    show_applied(printer, pc.ApplyRequest(changes=changes), "id", rows, revision)


def _checked(client: Client, text: str) -> list[pc.ApplyRequest.Change]:
    """Return the changes of a YAML text whose journals are there."""
    from gazette_spark.consumer.client import verify_referenced_journals
    from gazette_spark.consumer.shard_yaml import parse_shard_yaml

    changes = parse_shard_yaml(text)
    verify_referenced_journals(client, changes)
    return changes
