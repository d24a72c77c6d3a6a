"""Implements ``gazette-spark shards``, which shows and changes a consumer's shards.

Terms and YAML are the same as in Gazette's ``gazctl``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

import click

from gazette_spark.cli.journal_options import (
    Connect,
    broker_of_command,
    broker_options,
    make_connect,
    shown_option,
    target_option,
)
from gazette_spark.cli.journal_specs import (
    NONE,
    applied,
    label_values,
    max_txn_size_option,
    planned,
    read_specs,
    show_applied,
)
from gazette_spark.cli.main import DEFAULT_CONSUMER_PORT
from gazette_spark.cli.output import Printer, output_option
from gazette_spark.protocol.labels import ID, values_of

if TYPE_CHECKING:
    from gazette_spark.consumer.client import ShardClient
    from gazette_spark.protocol import consumer_pb2 as pc

CONNECT_S = 2.0
"""Timeout for the first connection to a consumer, in seconds."""

_SELECTOR_HELP = "Label selector, such as 'id=shard-000', 'id:prefix=orders-' or 'app=shop'"


@dataclass(frozen=True, slots=True)
class ShardConnect:
    """Makes the clients of a command, for consumers and for the brokers of their journals."""

    endpoint: str
    """URL of a consumer."""
    brokers: Connect

    def at(self, endpoint: str) -> ShardConnect:
        """Return a copy for brokers whose address is on the command line."""
        return replace(self, brokers=self.brokers.at(endpoint))

    def __call__(self) -> ShardClient:
        """Return a consumer client with the settings of the environment and the group's options."""
        from gazette_spark.consumer.client import PREFIX, ShardClient

        # A consumer that accepts no connection is probably down, not busy.
        connect_s = min(CONNECT_S, self.brokers.timeout_s)
        return self.brokers.open(ShardClient, self.endpoint, PREFIX, connect_timeout_s=connect_s)


consumer_option = click.option(
    "--consumer",
    envvar="CONSUMER_ADDRESS",
    default=f"http://localhost:{DEFAULT_CONSUMER_PORT}",
    show_default=True,
    metavar="URL",
    help="Consumer's address; also from CONSUMER_ADDRESS.",
)

shard_selector_option = shown_option(_SELECTOR_HELP, "shard", ID)

target_shards_option = target_option(_SELECTOR_HELP, "shard", ID)

DEFAULT_COLUMNS = ("primary", "sources", "labels")
"""Columns of the table if no option selects a column."""


@click.group()
@consumer_option
@broker_options
@click.pass_context
def shards(ctx: click.Context, consumer: str, endpoint: str, timeout: float) -> None:
    """Work with the shards of a consumer.

    Tokens and keys come from the environment, as in gazctl: CONSUMER_AUTH_TOKEN or CONSUMER_AUTH_KEYS, and
    for brokers BROKER_AUTH_TOKEN or BROKER_AUTH_KEYS. A token file applies to both.
    """
    ctx.obj = ShardConnect(consumer, make_connect(endpoint, timeout))


@click.command("list")
@shard_selector_option
@output_option("table", "yaml", "json", "jsonl", "proto")
@click.option("--primary", "-p", is_flag=True, help="Column: the primary, and its status.")
@click.option("--replicas", "-r", is_flag=True, help="Column: the other consumers, and their status.")
@click.option("--rf", is_flag=True, help="Column: the configured replication factor.")
@click.option("--label-columns", "-L", "labels", multiple=True, metavar="LABEL", help="Column: a label.")
@click.option("--lag", is_flag=True, help="Column: unread bytes of each source, from shards and journals.")
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

    The format yaml is the list that `apply` reads, with revisions. The format json is one ListResponse, as
    in gazctl. Errors of FAILED shards go to stderr.
    """
    from gazette_spark.consumer.shard_yaml import changes_of_shards, format_shard_yaml

    flags = {"rf": rf, "primary": primary, "replicas": replicas}
    columns = [name for name, shown in flags.items() if shown]
    if not columns and not labels:
        columns = list(DEFAULT_COLUMNS)
    with connect() as shard_client:
        listed = shard_client.list_all_shards(selector)
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
                behind = shard_client.lags(client, listed.shards)
    rows = [shard_row(shard, behind.get(shard.spec.id, {}) if lag else None) for shard in listed.shards]
    if printer.format == "table":
        for row in rows:
            # Error texts are too long for a column, and scripts parse stdout.
            for error in row["errors"]:  # type: ignore[attr-defined]  # A list, see shard_row.
                click.echo(f"{row['id']}: {' '.join(error.split())}", err=True)
        rows = [
            {**row, "primary": row["primary"] or NONE}
            | {name: values_of(shard.spec.labels, name) or NONE for name in labels}
            for row, shard in zip(rows, listed.shards, strict=True)
        ]
    printer.rows(rows, ["id", "status", *columns, *labels, *["lag"] * lag])


def shard_row(shard: pc.ListResponse.Shard, lag: Mapping[str, int] | None = None) -> dict[str, object]:
    """Return a shard's row."""
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
        # The primary counts as a replica.
        "rf": 0 if spec.disable else spec.hot_standbys + 1,
        "recovery_log": recovery_log(spec),
        "mod_revision": shard.mod_revision,
        "create_revision": shard.create_revision,
    }
    return row if lag is None else row | {"lag": dict(lag)}


@click.command("apply")
@click.option("--specs", "-f", type=click.File("r"), default="-", help="YAML of shards; '-' is stdin.")
@click.option("--dry-run", is_flag=True, help="Compare the specs with the consumer's; change nothing.")
@max_txn_size_option
@output_option("table", "json", "proto")
@click.pass_obj
def apply_specs(
    connect: ShardConnect, specs: TextIO, dry_run: bool, max_txn_size: int, printer: Printer
) -> None:
    """Create, change or delete shards according to a YAML file.

    A spec without a revision creates its shard, or fails if it exists. Revision -1 overwrites. The journals
    of sources and recovery logs must exist, with suitable content types. The command applies the whole file
    or nothing, unless --max-txn-size splits it. The format proto is the ApplyRequest.
    """
    from gazette_spark.consumer.client import verify_referenced_journals
    from gazette_spark.consumer.shard_yaml import parse_shard_yaml
    from gazette_spark.protocol import consumer_pb2 as pc

    with connect.brokers() as client:
        changes = parse_shard_yaml(read_specs(specs))
        # As in gazctl. A consumer accepts any spec, and the shard would fail later.
        verify_referenced_journals(client, changes)
    revision = None
    with connect() as shard_client:
        if dry_run:
            existing = {shard.spec.id: shard for shard in shard_client.list_shards()}
            rows = [planned(change, "id", existing) for change in changes]
        else:
            revision = shard_client.apply_in_batches(changes, max_txn_size)
            rows = [applied(change, "id") for change in changes]
    show_applied(printer, pc.ApplyRequest(changes=changes), "id", rows, revision)


@click.command(short_help="Show how far SHARD has read, or wait for offsets.")
@click.argument("shard")
@click.option(
    "--read-through",
    "-r",
    multiple=True,
    metavar="JOURNAL=OFFSET",
    help="Wait until the shard has read up to this offset. Repeatable.",
)
@output_option("table", "json", "jsonl")
@click.pass_obj
def stat(connect: ShardConnect, shard: str, read_through: Sequence[str], printer: Printer) -> None:
    """Show how far SHARD has read, after waiting for offsets if any are given.

    Each line has a journal, the offset up to which the shard's committed state has read it, and the end of
    the last acknowledgement that the shard wrote there. To wait for an append, give its end as OFFSET.
    """
    offsets = {}
    for text in read_through:
        journal, _, offset = text.rpartition("=")
        if not journal or not offset.isdecimal():
            raise click.UsageError(f"--read-through {text!r}: expected JOURNAL=OFFSET, as shop/orders=4096")
        offsets[journal] = int(offset)
    with connect() as shard_client:
        progress = shard_client.stat(shard, offsets)
    if printer.format == "json":
        click.echo(json.dumps({"shard": shard, **progress._asdict()}, indent=2, sort_keys=True))
        return
    printer.rows(
        [
            {
                "journal": journal,
                "read_through": progress.read_through.get(journal),
                "publish_at": progress.publish_at.get(journal),
            }
            for journal in sorted(progress.read_through.keys() | progress.publish_at.keys())
        ],
        ["journal", "read_through", "publish_at"],
    )


@click.command()
@target_shards_option
@click.option("--failed", is_flag=True, help="Unassign only shards that have failed.")
@click.option("--dry-run", is_flag=True, help="Show the shards, and unassign none.")
@output_option("table", "json", "jsonl")
@click.pass_obj
def unassign(connect: ShardConnect, selector: str, failed: bool, dry_run: bool, printer: Printer) -> None:
    """Restart shards, on this or another consumer.

    Use it for a failed shard, or to move a shard off a busy consumer. A shard keeps what it has committed,
    and reads the rest again.
    """
    with connect() as shard_client:
        listed = {shard.spec.id: shard_row(shard) for shard in shard_client.list_shards(selector)}
        # With only_failed, the consumer checks again, because a shard may have failed or recovered since the
        # listing.
        chosen = [name for name, row in listed.items() if not failed or row["errors"]]
        done = shard_client.unassign(chosen, only_failed=failed, dry_run=dry_run)
    if not done:
        click.echo(f"no {'failed ' * failed}shards match {selector!r}", err=True)
    what = "would unassign" if dry_run else "unassigned"
    rows = [
        {**{key: listed[name][key] for key in ("id", "status", "primary")}, "done": what} for name in done
    ]
    printer.rows(rows, ["id", "status", "primary", "done"])


for _command in (apply_specs, list_shards, stat, unassign):
    shards.add_command(broker_of_command(_command))
