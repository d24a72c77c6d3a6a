"""The site builds without dead links, and its pages for users keep to their vocabulary."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser import Browser

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, which checks links, anchors, references and the menu."""
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
    """The list of open work is the only page that is not published."""
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md")} - {"plan"}
    built = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")} - {"404"}
    assert pages == built


def test_no_text_becomes_an_attribute(site: Path) -> None:
    """Markdown reads braces at the end of a table cell as attributes, so pages show JSON there as code."""
    cells = re.compile(r"<t[dh]((?: [^>]*)?)>")
    odd = {
        (page.relative_to(site).as_posix(), attributes)
        for page in site.rglob("*.html")
        for attributes in cells.findall(page.read_text())
        if attributes and not attributes.startswith((" class=", " style="))
    }
    assert odd == set()


def test_the_reference_comes_from_docstrings(site: Path) -> None:
    page = (site / "reference" / "api" / "delta-sink.html").read_text()
    assert "accept_gaps" in page
    assert "Policy for a batch that is partly in the table" in page
    assert ":class:" not in page
    assert ":func:" not in page
    assert "gazette_spark.DeltaSink" in page
    assert 'id="gazette_spark.DeltaSink.resume"' in page
    assert 'id="gazette_spark.DeltaSink.__' not in page


LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)\"|<link\b[^>]*\bhref=\"([^\"]+)\"")


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and pictures are part of the site, and diagrams need no script."""
    foreign = {
        (page.relative_to(site).as_posix(), address)
        for page in site.rglob("*.html")
        for addresses in LOADED.findall(page.read_text())
        for address in addresses
        if address.startswith(("http:", "https:", "//"))
    }
    assert foreign == set()
    assert [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text()] == []


def test_diagrams_are_in_the_text(site: Path) -> None:
    """An inline diagram uses the palette's colours and has a description for screen readers."""
    page = (site / "how-it-works" / "architecture.html").read_text()
    assert re.search(r'<span class="diagram" role="img" aria-label="The processes of [^"]+"><svg ', page)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        """Log nothing."""


@pytest.fixture(params=["from a server", "from a disk"])
def address(site: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "from a disk":
        yield f"{site.as_uri()}/"
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_browser_needs_no_other_server(address: str, tmp_path: Path) -> None:
    """The front page contacts no other host, fits a phone, and finds an option by search."""
    with Browser(tmp_path) as browser:
        browser.resize(390, 800)
        browser.call("Page.navigate", url=f"{address}index.html?q=maxBytesPerTrigger")
        browser.wait("document.querySelectorAll('.md-search-result__link').length > 0")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        options = f"{address}reference/options.html"
        assert browser.evaluate(
            f"document.querySelector('.md-search-result__link[href^=\"{options}\"]') !== null"
        )
        assert [url for url in browser.requests if not url.startswith((address, "data:", "blob:"))] == []
        browser.call("Page.navigate", url=options)
        browser.wait("document.getElementById('maxBytesPerTrigger') !== null")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
