"""``gazette-spark journals``: list, create, append to and read journals through a broker.

The words and the YAML are those of Gazette's own ``gazctl``, for machines that do not have it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO, TextIO

import click

from gazette_spark.cli.output import format_option, show
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journals import parse_journal_yaml

if TYPE_CHECKING:
    from gazette_spark.client import Chunk, Client, ListedFragment

READ_SIZE = 128 << 10
"""Bytes taken from a file at a time while appending it."""


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

    A token is taken from BROKER_AUTH_TOKEN, never from the command line, where other users could see it.
    """
    ctx.obj = lambda: connect(endpoint, timeout)


def connect(endpoint: str, timeout_s: float) -> Client:
    """Make the client of one command."""
    import os

    from gazette_spark.client import Client

    return Client(endpoint, timeout_s=timeout_s, token=os.environ.get("BROKER_AUTH_TOKEN") or None)


Connect = Callable[[], "Client"]


@journals.command("apply")
@click.option("--specs", "-f", type=click.File("r"), default="-", help="YAML of journals; '-' is stdin.")
@click.option("--dry-run", is_flag=True, help="Check the specs and say what would be done.")
@format_option
@click.pass_obj
def apply_specs(connect: Connect, specs: TextIO, dry_run: bool, output_format: str) -> None:
    """Create, change or delete journals as a YAML file says.

    A spec without a revision creates its journal and fails if it exists; revision -1 overwrites. All of
    the file is applied, or nothing.
    """
    changes = parse_journal_yaml(specs.read())
    revision = 0
    if not dry_run:
        with connect() as client:
            revision = client.apply(changes)
    rows = [
        {"name": change.delete or change.upsert.name, "change": "delete" if change.delete else "upsert"}
        for change in changes
    ]
    if output_format == "json":
        click.echo(json.dumps({"dry_run": dry_run, "revision": revision, "changes": rows}, indent=2))
        return
    show(rows, ["name", "change"], output_format)
    click.echo("dry run: nothing was applied" if dry_run else f"applied at revision {revision}", err=True)


@journals.command("list")
@click.option(
    "--selector", "-l", default="", help="Label selector, such as 'name:prefix=shop/' or 'app=shop'."
)
@click.option("--heads", is_flag=True, help="Ask for each journal's write head too.")
@format_option
@click.pass_obj
def list_journals(connect: Connect, selector: str, heads: bool, output_format: str) -> None:
    """List journals, ascending by name."""
    with connect() as client:
        found = client.list_journals(selector)
        write_heads = client.write_heads([each.spec.name for each in found]) if heads else {}
    rows = [journal_row(each, write_heads.get(each.spec.name)) for each in found]
    columns = ["name", "codec", "fragment_length", "stores", "primary", "labels"]
    show(rows, columns[:1] + ["write_head"] * heads + columns[1:], output_format)


def journal_row(journal: pb.ListResponse.Journal, write_head: int | None) -> dict[str, object]:
    """Return one line of the list."""
    spec, route = journal.spec, journal.route
    primary = route.members[route.primary].suffix if 0 <= route.primary < len(route.members) else None
    row: dict[str, object] = {
        "name": spec.name,
        "codec": pb.CompressionCodec.Name(spec.fragment.compression_codec),
        "fragment_length": spec.fragment.length,
        "stores": list(spec.fragment.stores),
        "primary": primary,
        "labels": {label.name: label.value for label in spec.labels.labels},
        "replication": spec.replication,
        "mod_revision": journal.mod_revision,
    }
    return row if write_head is None else row | {"write_head": write_head}


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
    content = b"".join(blocks(source))
    with connect() as client:
        done = client.append(journal, content, offset=offset)
    row = {"journal": journal, "begin": done.begin, "end": done.end, "sha1": done.sum.hex()}
    if output_format == "json":
        click.echo(json.dumps(row, indent=2))
    else:
        click.echo(f"{journal}: appended [{done.begin}, {done.end}), sha1 {done.sum.hex()}")


def blocks(source: BinaryIO) -> Iterator[bytes]:
    """Yield the file in blocks."""
    return iter(lambda: source.read(READ_SIZE), b"")


@journals.command("read")
@click.argument("journal")
@click.option(
    "--offset", type=click.IntRange(min=-1), default=0, show_default=True, help="First byte; -1: the head."
)
@click.option("--end-offset", type=click.IntRange(min=0), default=0, help="Stop here; 0: the write head.")
@click.option("--block", is_flag=True, help="Wait for more at the write head.")
@click.option(
    "--output", "-o", "target", type=click.File("wb"), default="-", help="File to write; '-' is stdout."
)
@format_option
@click.pass_obj
def read(
    connect: Connect,
    *,
    journal: str,
    offset: int,
    end_offset: int,
    block: bool,
    target: BinaryIO,
    output_format: str,
) -> None:
    """Write the bytes of JOURNAL, up to its write head unless told otherwise.

    As JSON: one object a line with the offset of a chunk and its bytes in base64.
    """
    with connect() as client:
        # Without this a journal that does not exist would be an empty one that may yet appear.
        client.get_journal(journal)
        with closing(client.read(journal, offset=offset, end_offset=end_offset, block=block)) as reader:
            for chunk in reader:
                target.write(_chunk_json(chunk) if output_format == "json" else chunk.content)
                target.flush()
    for wanted, available in reader.jumps:
        click.echo(f"{journal}: bytes [{wanted}, {available}) are gone", err=True)


def _chunk_json(chunk: Chunk) -> bytes:
    row = {"offset": chunk.offset, "content": base64.b64encode(chunk.content).decode()}
    return json.dumps(row).encode() + b"\n"


@journals.command("fragments")
@click.argument("journal")
@click.option("--from", "begin", type=int, default=0, metavar="UNIX", help="Stored at or after this time.")
@click.option("--to", "end", type=int, default=0, metavar="UNIX", help="Stored before this time.")
@click.option(
    "--url-ttl", type=click.IntRange(min=1), default=None, metavar="SECONDS", help="Ask for signed URLs."
)
@format_option
@click.pass_obj
def fragments(
    connect: Connect, *, journal: str, begin: int, end: int, url_ttl: int | None, output_format: str
) -> None:
    """List the fragments of JOURNAL: stored ones, and what the broker still holds."""
    with connect() as client:
        found = client.list_fragments(
            journal, begin_mod_time=begin, end_mod_time=end, signature_ttl_s=url_ttl
        )
    rows = [fragment_row(each) for each in found]
    columns = ["begin", "end", "bytes", "codec", "mod_time", "store"]
    show(rows, columns + ["url"] * (url_ttl is not None), output_format)


def fragment_row(listed: ListedFragment) -> dict[str, object]:
    """Return one line of the list."""
    fragment = listed.fragment
    return {
        "begin": fragment.begin,
        "end": fragment.end,
        "bytes": fragment.end - fragment.begin,
        "codec": pb.CompressionCodec.Name(fragment.codec),
        "mod_time": fragment.mod_time,
        "store": fragment.backing_store or "(broker)",
        "sha1": fragment.sum.hex(),
        "url": listed.signed_url,
    }
