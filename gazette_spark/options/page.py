"""The tables of options in ``docs/reference``, made from the code's own.

In a clone of the repository ``python -m gazette_spark.options.page`` writes the tables into the pages; a test
fails while they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gazette_spark.errors import OptionError
from gazette_spark.options.source import OPTIONS
from gazette_spark.options.table import Option
from gazette_spark.options.write import WRITE_OPTIONS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[Path, Sequence[Option]] = {
    REFERENCE / "options.md": OPTIONS,
    REFERENCE / "write-options.md": WRITE_OPTIONS,
}
"""Each page and the options of its table."""

BEGIN = "<!-- The table is made from the code: python -m gazette_spark.options.page -->"
END = "<!-- End of the table. -->"


def table(options: Sequence[Option]) -> str:
    """Return options as a Markdown table, in the order in which they are checked."""
    head = ["| option | default | for | form | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(row(option) for option in options)])


def row(option: Option) -> str:
    """Return an option's line of the table."""
    default = {None: "none", "": "empty"}.get(option.default, f"`{option.default}`")
    cells = (f"`{option.name}`", default, option.use or "both", form(option), option.description)
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def form(option: Option) -> str:
    """Return the form an option's text must have, in the words it is refused with."""
    if option.form is not None:
        return option.form
    try:
        option.parse(option.name, "")
    except OptionError as error:
        return error.expected
    raise AssertionError(f"option {option.name} takes an empty text")


def with_table(page: str, options: Sequence[Option]) -> str:
    """Return a page with its table brought up to date between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table(options)}\n\n{END}{after}"


if __name__ == "__main__":
    for path, options in PAGES.items():
        path.write_text(with_table(path.read_text(encoding="utf-8"), options), encoding="utf-8")
