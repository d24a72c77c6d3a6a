"""Implements ``gazette-spark journals fragments`` and ``gaps``, which list files and missing bytes."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING

import click

from gazette_spark.cli.journal_options import (
    Connect,
    chosen_journals,
    chosen_selector,
    is_fully_suspended,
    journal_argument,
    leaves_out_deleted,
)
from gazette_spark.cli.main import Integer
from gazette_spark.cli.output import Printer, Row, output_option, size_text, time_text
from gazette_spark.cli.times import Time
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.durations import parse_duration

if TYPE_CHECKING:
    from gazette_spark.client import FragmentGap, ListedFragment


@click.command()
@journal_argument
@click.option(
    "--from",
    "begin",
    type=Time(),
    default=0,
    help="Show fragments stored at or after this time, such as '2h ago', an ISO 8601 time, or Unix seconds.",
)
@click.option("--to", "end", type=Time(), default=0, help="Show fragments stored by this time.")
@click.option(
    "--url-ttl",
    default="0s",
    metavar="DURATION",
    help="Lifetime of signed URLs to request, such as 1m or 2h.",
)
@output_option("table", "json", "jsonl", "proto")
@click.pass_obj
def fragments(
    connect: Connect,
    *,
    journal: str | None,
    selector: str,
    begin: int,
    end: int,
    url_ttl: str,
    printer: Printer,
) -> None:
    """List the fragments of JOURNAL, or of a selection.

    With --to, fragments that are not stored yet are omitted. The format json is one line per fragment,
    as in gazctl.
    """
    if end and end < begin:
        times = f"{time_text(end)} is before --from, {time_text(begin)}"
        raise click.UsageError(f"--to: {times}; give a later --to, or an earlier --from")
    ttl_s = parse_duration(url_ttl, "--url-ttl").ToNanoseconds() / 1e9
    listings = []
    with connect() as client:
        chosen_selector(journal, selector)
        for spec in chosen_journals(client, journal, selector):
            if not is_fully_suspended(spec):
                with leaves_out_deleted(journal):
                    listing = client.list_fragments(
                        spec.name, begin_mod_time=begin, end_mod_time=end, signature_ttl_s=ttl_s or None
                    )
                    listings.append(listing)
    match printer.format:
        case "proto":
            for listing in listings:
                printer.message(fragments_message(listing))
        case "json":
            # One object per line, as in gazctl, so that programs can process each as it arrives.
            for fragment in chain.from_iterable(listings):
                click.echo(json.dumps(go_json(fragment), ensure_ascii=False))
        case _:
            columns = ["journal", "begin", "end", "bytes", "codec", "mod_time", "store", "sha1"]
            rows = [fragment_row(fragment) for fragment in chain.from_iterable(listings)]
            if printer.format == "table":
                rows = [for_people(row) for row in rows]
            printer.rows(rows, columns + ["url"] * (ttl_s != 0))


def fragments_message(listed: list[ListedFragment]) -> pb.FragmentsResponse:
    """Return fragments as brokers send them."""
    response = pb.FragmentsResponse()
    for fragment in listed:
        response.fragments.add(spec=fragment.fragment.to_pb(), signed_url=fragment.signed_url)
    return response


def go_json(listed: ListedFragment) -> dict[str, object]:
    """Return a fragment as Go's encoder writes it, with numbers for enums and without zeros."""
    spec = listed.fragment.to_pb()
    fields: dict[str, object] = {
        field.name: {part.name: number for part, number in spec.sum.ListFields()}
        if field.name == "sum"
        else value
        for field, value in spec.ListFields()
    }
    # Go writes this message even if it is empty, but omits other zero values.
    fields.setdefault("sum", {})
    return {"spec": fields, **({"signed_url": listed.signed_url} if listed.signed_url else {})}


def for_people(row: Row) -> dict[str, object]:
    """Return a fragment's row with size and time as texts."""
    size, moment = row["bytes"], row["mod_time"]
    assert isinstance(size, int)
    assert isinstance(moment, int)
    return {**row, "bytes": size_text(size), "mod_time": time_text(moment)}


def fragment_row(listed: ListedFragment) -> dict[str, object]:
    """Return a fragment's row."""
    fragment = listed.fragment
    return {
        "journal": fragment.journal,
        "begin": fragment.begin,
        "end": fragment.end,
        "bytes": fragment.end - fragment.begin,
        "codec": pb.CompressionCodec.Name(fragment.codec),
        "mod_time": fragment.mod_time,
        "store": fragment.backing_store or "(broker)",
        "sha1": fragment.sum.hex(),
        "url": listed.signed_url,
    }


@click.command(short_help="List the bytes that are no longer in any fragment.")
@journal_argument
@click.option(
    "--begin",
    type=Integer(min=0),
    default=None,
    metavar="OFFSET",
    help="Start of the range. Default: the first byte that exists.",
)
@click.option(
    "--end",
    type=Integer(min=0),
    default=None,
    metavar="OFFSET",
    help="End of the range. Default: the write head.",
)
@output_option("table", "json", "jsonl")
@click.pass_obj
def gaps(
    connect: Connect,
    *,
    journal: str | None,
    selector: str,
    begin: int | None,
    end: int | None,
    printer: Printer,
) -> None:
    """List the bytes of JOURNAL, or of a selection, that are no longer in any fragment.

    A query that reads them loses data. Brokers notice missing files when they list their stores again.
    """
    columns = ["journal", "begin", "end", "bytes"]
    found: list[FragmentGap] = []
    if begin is not None and end is not None and end < begin:
        raise click.UsageError(f"--end {end} is before --begin {begin}; give a later --end")
    with connect() as client:
        chosen_selector(journal, selector)
        for spec in chosen_journals(client, journal, selector):
            with leaves_out_deleted(journal):
                found += client.gaps(spec.name, begin=begin, end=end)
    rows = [{name: getattr(gap, name) for name in columns} for gap in found]
    if not rows and printer.format == "table":
        click.echo("no gaps")
        return
    printer.rows(rows, columns)
