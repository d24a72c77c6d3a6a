"""Prints the output of commands, for people or for programs.

A command passes its results to :class:`Printer` as *rows*, which are dictionaries of plain values, or as
Gazette's message for them, if there is one. The printer writes the requested format:

=========  ==========================================================================
``table``  aligned columns under a heading
``json``   one document; for ``journals`` commands, the same JSON as ``gazctl`` prints
``jsonl``  a line for each row, with this command's field names
``yaml``   a tree of specs, to edit and apply
``proto``  the message in protobuf's text format
=========  ==========================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, TypeVar

import click
from google.protobuf import json_format, text_format
from google.protobuf.message import Message

Decorated = TypeVar("Decorated", bound=Callable[..., object])

Row = Mapping[str, object]

format_option = click.option(
    "--format",
    "-o",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="A table for people, or one JSON document for programs.",
)


def output_option(*formats: str) -> Callable[[Decorated], Decorated]:
    """Return the option ``--format``, whose default is the first. The command gets a :class:`Printer`."""
    return click.option(
        "--format",
        "-o",
        "printer",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        callback=lambda _ctx, _param, value: Printer(value),
        help="Output format.",
    )


def say_reading(source: IO[Any]) -> None:
    """If the input is a terminal, print that the command waits for it."""
    if source.isatty():
        click.echo("reading stdin: end it with Ctrl-D", err=True)


@dataclass(frozen=True, slots=True)
class Printer:
    """Writes to stdout in one format."""

    format: str

    def rows(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """Write ``columns`` of the rows as a table, or all fields as JSON."""
        if self.format == "table":
            click.echo(text_table(rows, columns))
        elif self.format == "json":
            click.echo(json.dumps([dict(row) for row in rows], indent=2, ensure_ascii=False))
        else:
            for row in rows:
                click.echo(json.dumps(dict(row), ensure_ascii=False))

    def message(self, message: Message) -> None:
        """Write a message as JSON with all fields and their wire names, or in protobuf's text format."""
        if self.format == "proto":
            click.echo(text_format.MessageToString(message), nl=False)
        else:
            click.echo(message_json(message))


def message_json(message: Message) -> str:
    """Return a message as one line of JSON, with wire names and default values, as Go's tools print it."""
    return json_format.MessageToJson(
        message,
        preserving_proto_field_name=True,
        # Go's encoder writes zeros, and scripts for gazctl rely on them.
        always_print_fields_with_no_presence=True,
        indent=None,
    )


def show(rows: Sequence[Row], columns: Sequence[str], output_format: str) -> None:
    """Write ``rows`` to stdout: every field as JSON, or ``columns`` as text."""
    Printer("json" if output_format == "json" else "table").rows(rows, columns)


def text_table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return aligned columns under a heading. Lines are never cut.

    >>> print(text_table([{"name": "a/b", "bytes": 1024}, {"name": "a/long", "bytes": 7}], ["name", "bytes"]))
    NAME    BYTES
    a/b      1024
    a/long      7
    """
    cells = [[column.upper() for column in columns]]
    for row in rows:
        line = []
        for column in columns:
            match row.get(column):
                case None:
                    line.append("")
                case list() | tuple() as items:
                    line.append(",".join(map(str, items)))
                case dict() as members:
                    line.append(",".join(f"{key}={item}" for key, item in members.items()))
                case value:
                    line.append(str(value))
        cells.append(line)
    numeric = [
        column == "bytes" or all(isinstance(row.get(column), int) for row in rows) for column in columns
    ]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    lines = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )
    return "\n".join(lines)


def size_text(size: int) -> str:
    """Return a number of bytes for people.

    >>> size_text(7), size_text(1536), size_text(64 << 20)
    ('7 B', '1.5 KiB', '64.0 MiB')
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    # Bits instead of a logarithm, which is inexact near powers of 1024.
    at = min(max(size.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{size / 1024**at:.{1 if at else 0}f} {units[at]}"


def time_text(unix_s: int) -> str:
    """Return a time for people; "-" for a missing one.

    >>> time_text(0), time_text(1_795_370_762)
    ('-', '2026-11-22T18:06:02Z')
    """
    if not unix_s:
        return "-"
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")
