"""``gazette-spark shards`` for operators: ``stat`` and ``unassign``."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from gazette_spark.cli.output import Printer, output_option
from gazette_spark.cli.shard_options import ShardConnect, target_shards_option
from gazette_spark.cli.shard_specs import shard_row


@click.command()
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
    """Show how far SHARD has read; wait for given offsets first.

    Each line has a journal, the offset up to which the shard's committed state has read it, and the end of
    the last acknowledgement that the shard wrote there. To wait for an append, give its end as OFFSET.
    """
    with connect() as shards:
        progress = shards.stat(shard, dict(_offset(text) for text in read_through))
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
        listed = {shard.spec.id: shard_row(shard) for shard in shards.list_shards(selector)}
        chosen = [name for name, row in listed.items() if not failed or row["errors"]]
        done = shards.unassign(chosen, only_failed=failed, dry_run=dry_run)
    what = "would unassign" if dry_run else "unassigned"
    rows = [
        {**{key: listed[name][key] for key in ("id", "status", "primary")}, "done": what} for name in done
    ]
    printer.rows(rows, ["id", "status", "primary", "done"])
