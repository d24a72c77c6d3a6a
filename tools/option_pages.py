"""Writes the tables of options in ``docs/reference`` from the code's tables.

``make generated`` runs this module; a test fails if a page differs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from gazette_spark._options.delta_format import DELTA_FORMAT_OPTIONS
from gazette_spark._options.iceberg_format import ICEBERG_FORMAT_OPTIONS
from gazette_spark._options.source import OPTIONS
from gazette_spark._options.table import Option
from gazette_spark._options.write import WRITE_OPTIONS
from gazette_spark.errors import OptionError
from tools.error_page import between_marks

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGES: dict[Path, Sequence[Option]] = {
    REFERENCE / "options.md": OPTIONS,
    REFERENCE / "write-options.md": WRITE_OPTIONS,
    REFERENCE / "delta-options.md": DELTA_FORMAT_OPTIONS,
    REFERENCE / "iceberg-options.md": ICEBERG_FORMAT_OPTIONS,
}
"""Each page and the options of its tables."""

BEGIN = "<!-- The tables are made from the code: make generated -->"


def tables(options: Sequence[Option]) -> str:
    """Return options as Markdown tables, one for each section.

    A table has only two columns, so that it can be read on a phone. With five columns, the meaning would get
    a tenth of the line.
    """
    lines = []
    # The options of a section are adjacent, and each section becomes a table.
    for section, declared in groupby(options, lambda option: option.section):
        lines += [
            f"## {section}",
            "",
            '<div class="options" markdown>',
            "",
            "| option | meaning |",
            "|---|---|",
            *map(row, declared),
            "",
            "</div>",
            "",
        ]
    return "\n".join(lines).rstrip()


def row(option: Option) -> str:
    """Return an option's row."""
    default = option.shown_default or {None: "none", "": "an empty string"}.get(
        option.default, f"`{option.default}`"
    )
    use = {"stream": "Streaming only. ", "batch": "Batch only. ", None: ""}[option.use]
    meaning = f"{option.description}<br>{use}*Value:* {form(option)}. *Default:* {default}."
    cells = (f'<a id="{option.name}"></a>`{option.name}`', meaning)
    return f"| {' | '.join(map(escape, cells))} |"


def escape(cell: str) -> str:
    """Escape a cell's text: bars, and ``<`` except in our own markup."""
    signs = re.sub(r"<(?!br>|a id=|/a>)", "&lt;", cell)
    return signs.replace("|", "\\|")


def form(option: Option) -> str:
    """Return the form that an option's text must have, with words and JSON as code."""
    if option.form is not None:
        return as_code(option.form)
    try:
        option.parse(option.name, "")
    except OptionError as error:
        words = error.expected.split(" or ")
        if all(map(str.isidentifier, words)):
            return ", ".join(map("`{}`".format, words))
        return as_code(error.expected)
    raise AssertionError(f"option {option.name} takes an empty text")


def as_code(text: str) -> str:
    """Return a text with its JSON as code, because the site treats braces at a cell's end as attributes."""
    return re.sub(r"\{.*\}", r"`\g<0>`", text)


def with_tables(page: str, options: Sequence[Option]) -> str:
    """Return a page with updated tables between its two marks."""
    return between_marks(page, BEGIN, tables(options))


if __name__ == "__main__":
    for path, options in PAGES.items():
        path.write_text(with_tables(path.read_text(encoding="utf-8"), options), encoding="utf-8")
