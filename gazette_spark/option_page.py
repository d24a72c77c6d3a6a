"""The table of options in ``docs/options.md``, made from the code's own.

In a clone of the repository ``python -m gazette_spark.option_page`` writes the table into the page; a test
fails while the two differ.
"""

from __future__ import annotations

from pathlib import Path

from gazette_spark.errors import OptionError
from gazette_spark.options import OPTIONS, Option

PAGE = Path(__file__).parents[1] / "docs" / "options.md"

BEGIN = "<!-- The table is made from the code: python -m gazette_spark.option_page -->"
END = "<!-- End of the table. -->"


def table() -> str:
    """Return the options as a Markdown table, in the order in which they are checked."""
    head = ["| option | default | for | form | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(row(option) for option in OPTIONS)])


def row(option: Option) -> str:
    """Return an option's line of the table."""
    default = "none" if option.default is None else f"`{option.default}`"
    cells = (f"`{option.name}`", default, option.use or "both", form(option), option.description)
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def form(option: Option) -> str:
    """Return the form an option's text must have, in the words it is refused with."""
    try:
        option.parse(option.name, "")
    except OptionError as error:
        return error.expected
    raise AssertionError(f"option {option.name} takes an empty text")


def with_table(page: str) -> str:
    """Return a page with the table brought up to date between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
