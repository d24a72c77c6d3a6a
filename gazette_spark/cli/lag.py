"""Implements ``gazette-spark lag``; here, ``lag evaluate``, which judges recorded windows without a broker.

Exit codes: 0 for any verdict; 1 for invalid input; 2 for wrong usage.
"""

from __future__ import annotations

import json
from typing import BinaryIO

import click

from gazette_spark.cli.lag_service import serve, show
from gazette_spark.cli.main import broker_here
from gazette_spark.errors import InputError
from gazette_spark.lag.burrow_json import group_json, parse_recording
from gazette_spark.lag.rules import evaluate_group

bad_only_option = click.option(
    "--bad-only", is_flag=True, help="Show only the partitions that are not OK, as Burrow does by default."
)


@click.group()
@broker_here
def lag() -> None:
    """Judge whether queries keep up, by the rules of Burrow."""


lag.add_command(serve)
lag.add_command(show)


@lag.command()
@click.argument("source", metavar="FILE", type=click.File("rb"))
@bad_only_option
def evaluate(source: BinaryIO, bad_only: bool) -> None:
    """Judge a group by the windows recorded in FILE; '-' is stdin.

    FILE is a JSON object with these fields, and defaults in parentheses: now_ms, cluster, group, allowed_lag
    (0), minimum_complete (0), and partitions, which is null if the group is unknown. A partition has topic,
    partition, owner (""), client_id (""), current_lag, broker_offsets and offsets, oldest first. Each of the
    offsets has offset, timestamp, observedAt (0) and lag, which may be null. An unused slot is null instead.
    Times are milliseconds since 1970.

    The command prints what Burrow's HTTP API has under "status". The exit code is 0 for any verdict, and 1 if
    FILE does not have this form.
    """
    recording = parse_recording(decode(source.read()))
    status = evaluate_group(
        recording.cluster, recording.group, recording.windows, recording.now_ms, recording.thresholds
    )
    click.echo(json.dumps(group_json(status, show_all=not bad_only), indent=2, ensure_ascii=False))


def decode(content: bytes) -> str:
    """Decode UTF-8 input."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error}") from error
