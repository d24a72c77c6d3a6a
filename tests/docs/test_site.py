"""The site builds without a dead link, and users' pages keep to their own words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does; links, anchors, references and the menu are checked."""
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_pages_are_built(site: Path) -> None:
    """Each page in the repository is a page of the site, but for the list of open work."""
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md")} - {"plan"}
    built = {path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")}
    assert {page.removesuffix("index").rstrip("/") or "." for page in pages} == built


def test_no_text_becomes_an_attribute(site: Path) -> None:
    """Braces at the end of a cell are attributes to Markdown, so a page shows JSON there as code."""
    cells = re.compile(r"<t[dh]((?: [^>]*)?)>")
    odd = {
        (page.parent.relative_to(site).as_posix(), attributes)
        for page in site.rglob("index.html")
        for attributes in cells.findall(page.read_text())
        if attributes and not attributes.startswith((" class=", " style="))
    }
    assert odd == set()


def test_the_reference_comes_from_docstrings(site: Path) -> None:
    """Arguments stand in a table, and roles of reStructuredText have become code."""
    page = (site / "reference" / "api" / "spark" / "index.html").read_text()
    assert "accept_gaps" in page
    assert "Policy for a batch that is partly in the table" in page
    assert ":class:" not in page
    assert ":func:" not in page
