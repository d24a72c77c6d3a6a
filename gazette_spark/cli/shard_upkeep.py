"""``gazette-spark shards`` for operators: ``stat``, ``unassign``, ``prune``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from gazette_spark.cli.journal_upkeep import check_root, pruning_options, remove_fragments
from gazette_spark.cli.output import Printer, output_option
from gazette_spark.cli.shard_options import ShardConnect, target_shards_option
from gazette_spark.cli.shard_specs import shard_row


@click.command()
@click.argument("shard")
@click.option(
    "--read-through",
    "-r",
    "asked",
    multiple=True,
    metavar="JOURNAL=OFFSET",
    help="Wait until the shard has read up to this offset. Repeatable.",
)
@output_option("table", "json", "jsonl")
@click.pass_obj
def stat(connect: ShardConnect, shard: str, asked: Sequence[str], printer: Printer) -> None:
    """Show how far SHARD has read; wait for given offsets first.

    Each line has a journal, the offset up to which the shard's committed state has read it, and the end of
    the last acknowledgement that the shard wrote there. To wait for an append, give its end as OFFSET.
    """
    with connect() as shards:
        progress = shards.stat(shard, dict(_offset(each) for each in asked))
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


def _offset(text: str) -> tuple[str, int]:
    journal, _, offset = text.rpartition("=")
    if not journal or not offset.isdecimal():
        raise click.UsageError(f"--read-through {text!r}: expected JOURNAL=OFFSET, as shop/orders=4096")
    return journal, int(offset)


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
    with connect() as shards:
        listed = {each.spec.id: shard_row(each) for each in shards.list_shards(selector)}
        wanted = [name for name, row in listed.items() if not failed or row["errors"]]
        done = shards.unassign(wanted, only_failed=failed, dry_run=dry_run)
    what = "would unassign" if dry_run else "unassigned"
    rows = [
        {**{key: listed[name][key] for key in ("id", "status", "primary")}, "done": what} for name in done
    ]
    printer.rows(rows, ["id", "status", "primary", "done"])


@click.command()
@target_shards_option
@pruning_options
@click.pass_obj
def prune(
    connect: ShardConnect, selector: str, dry_run: bool, file_root: Path | None, printer: Printer
) -> None:
    """Delete stored fragments of recovery logs that no hints refer to.

    CAUTION: the selector must match all shards that use a log; for a forked log, the shards of each branch.
    Fragments that only other shards' hints refer to are lost. The command skips logs of shards without all of
    their hints, backups included. It prunes file:// stores only.
    """
    from gazette_spark.consumer.pruning import find_unreferenced

    check_root(dry_run=dry_run, file_root=file_root)
    with connect() as shards, connect.brokers() as client:
        found = find_unreferenced(client, shards, selector)
    for log, reason in sorted(found.skipped.items()):
        click.echo(f"left alone: {log}: {' '.join(reason.split())}", err=True)
    remove_fragments(found.fragments, None if dry_run else file_root, printer)
