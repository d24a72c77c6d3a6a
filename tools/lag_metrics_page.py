"""Writes the table of metrics in ``docs/reference/burrow.md`` from the monitor's table.

``make generated`` runs this module; a test fails if the page differs.
"""

from __future__ import annotations

from pathlib import Path

from gazette_spark.lag.metrics import METRICS
from tools.error_page import between_marks

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "burrow.md"

BEGIN = "<!-- The table is made from the code: make generated -->"


def table() -> str:
    """Return the metrics as a Markdown table."""
    lines = ["| metric | labels | JSON | shown as | meaning |", "|---|---|---|---|---|"]
    for metric in METRICS:
        name, key = (f"`{word}`" if word else "" for word in (metric.name, metric.key))
        labels = ", ".join(metric.labels) if metric.name else ""
        lines.append(f"| {name} | {labels} | {key} | {metric.column} | {metric.help} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """Return the page with an updated table between its two marks."""
    return between_marks(page, BEGIN, table())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
