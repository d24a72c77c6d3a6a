"""Draws the chart of speeds on the front page from the first table of the performance page.

``make generated`` runs this module; a test fails if the chart's numbers differ from the page's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "evidence" / "performance.md"
CHART = DOCS / "images" / "speed.svg"

ROW = re.compile(r"^\| ([^|]+) \| (`?[\w.]+`?) \| (\d+) MB/s \| (\d+) MB/s \|", re.MULTILINE)

STYLE = """\
    text { font-family: var(--md-text-font-family, system-ui, sans-serif); font-size: 14px; }
    text { fill: var(--md-default-fg-color, #212121); }
    .speed-peer { fill: #9e9e9e; }
    .speed-ours { fill: #4f7fd6; }"""

WIDTH, BARS, LABELS = 860, 420, 270
"""Width in pixels of the chart, of its longest bar, and of the names at its left."""
ROW_HEIGHT = 54


@dataclass(frozen=True)
class Speed:
    """A job's MB/s with a peer and with gazette_spark."""

    job: str
    peer: str
    peer_mb_s: int
    our_mb_s: int


def speeds(page: str) -> Sequence[Speed]:
    """Return the rows of the page's first table.

    Raises:
        ValueError: the page does not begin with a table of speeds.
    """
    rows = [
        Speed(job, peer.strip("`"), int(peer_mb_s), int(our_mb_s))
        for job, peer, peer_mb_s, our_mb_s in ROW.findall(page.partition("\n## ")[0])
    ]
    if not rows:
        raise ValueError("the performance page must begin with a table of jobs, peers and MB/s")
    return rows


def draw(rows: Sequence[Speed]) -> str:
    """Return the chart, with a bar of the peer above a bar of gazette_spark for each job."""
    scale = BARS / max(max(row.peer_mb_s, row.our_mb_s) for row in rows)
    height = ROW_HEIGHT * len(rows) + 6
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "  <title>MB/s of each job, with its peer and with gazette_spark</title>",
        f"  <style>\n{STYLE}\n  </style>",
    ]
    for number, row in enumerate(rows):
        top = number * ROW_HEIGHT + 6
        lines.append(f'  <text x="{LABELS - 12}" y="{top + 26}" text-anchor="end">{escape(row.job)}</text>')
        bars = ((row.peer, row.peer_mb_s, "peer"), ("gazette_spark", row.our_mb_s, "ours"))
        for line, (name, mb_s, kind) in enumerate(bars):
            y, width = top + 21 * line, round(mb_s * scale)
            lines.append(
                f'  <rect class="speed-{kind}" x="{LABELS}" y="{y}" width="{width}" height="18"/>'
                f'<text x="{LABELS + width + 8}" y="{y + 14}">{mb_s} {escape(name)}</text>'
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    CHART.write_text(draw(speeds(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
