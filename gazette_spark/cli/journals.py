"""``gazette-spark journals``: specs, bytes and upkeep of journals, through a broker.

The words and the YAML are those of Gazette's own ``gazctl``, for machines that do not have it.
"""

from __future__ import annotations

import json
from typing import BinaryIO

import click

from gazette_spark.cli.journal_options import Connect, make_connect
from gazette_spark.cli.journal_reads import fragments, read
from gazette_spark.cli.journal_specs import apply_specs, edit, list_journals
from gazette_spark.cli.journal_upkeep import prune, reset_head, store_health, suspend
from gazette_spark.cli.output import format_option


@click.group()
@click.option(
    "--broker",
    "endpoint",
    envvar="BROKER_ADDRESS",
    default="http://localhost:8080",
    show_default=True,
    metavar="URL",
    help="Address of a broker; BROKER_ADDRESS in the environment says the same.",
)
@click.option(
    "--timeout", default=60.0, show_default=True, metavar="SECONDS", help="Give up after this long."
)
@click.pass_context
def journals(ctx: click.Context, endpoint: str, timeout: float) -> None:
    """Work with the journals of a broker.

    Tokens, keys and certificates are taken from the environment, in the variables of gazctl:
    BROKER_AUTH_TOKEN, BROKER_AUTH_KEYS, BROKER_TRUSTED_CA_FILE, BROKER_CERT_FILE, BROKER_CERT_KEY_FILE. Never
    from the command line, where other users could see them.
    """
    ctx.obj = make_connect(endpoint, timeout)


for _command in (apply_specs, edit, fragments, list_journals, prune, read, reset_head, store_health, suspend):
    journals.add_command(_command)


@journals.command("append")
@click.argument("journal")
@click.option(
    "--input", "-i", "source", type=click.File("rb"), default="-", help="File to append; '-' is stdin."
)
@click.option(
    "--offset", type=click.IntRange(min=0), default=0, help="Append only if this is the write head."
)
@format_option
@click.pass_obj
def append(connect: Connect, journal: str, source: BinaryIO, offset: int, output_format: str) -> None:
    """Append a whole file to JOURNAL: all of its bytes together, or none."""
    # Read before the call opens: a slow pipe would trip the broker's lowest append rate.
    content = source.read()
    with connect() as client:
        done = client.append(journal, content, offset=offset)
    row = {"journal": journal, "begin": done.begin, "end": done.end, "sha1": done.sum.hex()}
    if output_format == "json":
        click.echo(json.dumps(row, indent=2))
    else:
        click.echo(f"{journal}: appended [{done.begin}, {done.end}), sha1 {done.sum.hex()}")
