"""Hooks of the site's build: the version in the footer, files from the repository's root, diagrams, search.

MkDocs calls them by their names (``hooks`` in ``mkdocs.yml``).
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
"""An image of ``docs/images`` as Markdown writes it."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version of the package on each page, and a link to its source where there is a repository."""
    config.copyright = f"gazette_spark {VERSION}"
    if config.repo_url:
        config.edit_uri = "edit/main/docs/"
    return config


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show a file of the repository's root where a page names it as its ``source``.

    GitHub looks for such files in the root, so the site takes their text from there. A link to a file that is
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
    """Put the diagrams of a page into its text.

    An image in a file of its own does not see the colours of the page, so it could be read with the light
    palette or with the dark one, but not with both.
    """
    del files

    def inline(image: re.Match[str]) -> str:
        text, source = image.groups()
        path = urljoin(f"/{page.file.dest_uri}", source).lstrip("/")
        svg = (Path(config.docs_dir) / path).read_text(encoding="utf-8")
        return f'<span class="diagram" role="img" aria-label="{text}">{svg}</span>'

    return DIAGRAM.sub(inline, html)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the index of the search as a script, too, because pages opened from a disk may load no JSON.

    The theme loads it from there under this name.
    """
    index = Path(config.site_dir, "search", "search_index.json").read_text(encoding="utf-8")
    script = Path(config.site_dir, "search", "search_index.js")
    script.write_text(f"var __index = {index}", encoding="utf-8")
