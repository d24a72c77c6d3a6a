"""What a command found, as a table for people or as one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., object])

format_option = click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="A table for people, or one JSON document for programs.",
)


def show(rows: Sequence[Mapping[str, object]], columns: Sequence[str], output_format: str) -> None:
    """Write ``rows`` to stdout: every field as JSON, or ``columns`` as text."""
    if output_format == "json":
        click.echo(json.dumps([dict(row) for row in rows], indent=2, ensure_ascii=False))
    else:
        click.echo(text_table(rows, columns))


def text_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Return aligned columns under a heading; what is longer than the screen is never cut.

    >>> print(text_table([{"name": "a/b", "bytes": 1024}, {"name": "a/long", "bytes": 7}], ["name", "bytes"]))
    NAME    BYTES
    a/b      1024
    a/long      7
    """
    cells = [[column.upper() for column in columns]]
    cells += [[_cell(row.get(column)) for column in columns] for row in rows]
    numeric = [all(isinstance(row.get(column), int) for row in rows) for column in columns]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    lines = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )
    return "\n".join(lines)


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case list() | tuple():
            return ",".join(map(str, value))
        case dict():
            return ",".join(f"{key}={item}" for key, item in value.items())
    return str(value)
