"""The monitor's page as a browser shows it."""

from __future__ import annotations

import os
import subprocess
from html.parser import HTMLParser
from pathlib import Path

BROWSER_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
"""For a machine without a screen, and without a connection to the makers."""


class Page(HTMLParser):
    """What a page shows: its words, and the charts' journals and lines."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.charts: list[str] = []
        self.lines = 0
        self.body = ""
        """Class of the body."""
        self._script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count charts and lines, and note the body's class."""
        self._script = tag in ("script", "style")
        if tag == "svg":
            self.charts.append(dict(attrs)["data-journal"] or "")
        self.lines += tag == "polyline"
        if tag == "body":
            self.body = dict(attrs).get("class") or ""

    def handle_endtag(self, tag: str) -> None:
        """Leave a script."""
        self._script = False

    def handle_data(self, data: str) -> None:
        """Take words."""
        if not self._script and data.strip():
            self.words.append(data.strip())


def browse(address: str, directory: Path) -> Page:
    """Return what the page shows in a browser once its script has run."""
    browser = subprocess.run(
        ["sh", ".ci/browser.sh"], capture_output=True, text=True, check=True
    ).stdout.strip()
    profile = f"--user-data-dir={directory}"
    dump = subprocess.run(
        [browser, *BROWSER_FLAGS, profile, "--virtual-time-budget=3000", "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(directory)},
    )
    return Page(dump.stdout)
