"""Extends the site's build: the version in the footer, files from the repository's root, diagrams, search.

MkDocs calls these functions by their names (``hooks`` in ``mkdocs.yml``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from mkdocs.structure.files import InclusionLevel

from gazette_spark.version import VERSION

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

LINK = re.compile(r"\[([^]]+)\]\(([\w./-]+)(#[\w-]+)?\)")
"""A link to a file of the repository."""

DIAGRAM = re.compile(r'<img alt="([^"]*)" src="([^"]*images/[\w-]+\.svg)" ?/?>')
"""An image of ``docs/images`` in Markdown's HTML."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the package's version on each page, and a link to the page's source if there is a repository."""
    config.copyright = f"gazette_spark {VERSION}"
    if config.repo_url:
        config.edit_uri = "edit/main/docs/"
    return config


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace a page that names a ``source`` by that file of the repository's root.

    GitHub expects such files in the root, so the site takes their text from there. A link to a file that is
    not on the site becomes plain text.
    """
    del config
    if (source := page.meta.get("source")) is None:
        return markdown

    def on_the_site(link: re.Match[str]) -> str:
        text, path, anchor = link.groups("")
        target = path.removeprefix("docs/") if path.startswith("docs/") else f"project/{path.lower()}"
        file = files.get_file_from_path(target)
        return (
            f"[{text}](../{target}{anchor})"
            if file and file.inclusion is not InclusionLevel.EXCLUDED
            else text
        )

    return LINK.sub(on_the_site, (ROOT / source).read_text(encoding="utf-8"))


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the diagrams of a page into its HTML.

    An image in a separate file cannot use the colours of the page, so it would be readable with either the
    light or the dark palette, but not with both.
    """
    del files

    def inline(image: re.Match[str]) -> str:
        text, source = image.groups()
        path = urljoin(f"/{page.file.dest_uri}", source).lstrip("/")
        svg = (Path(config.docs_dir) / path).read_text(encoding="utf-8")
        return f'<span class="diagram" role="img" aria-label="{text}">{svg}</span>'

    return DIAGRAM.sub(inline, html)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the search index also as a script, because pages opened from a disk cannot load JSON.

    The theme loads it under this name.
    """
    index = Path(config.site_dir, "search", "search_index.json").read_text(encoding="utf-8")
    script = Path(config.site_dir, "search", "search_index.js")
    script.write_text(f"var __index = {index}", encoding="utf-8")
