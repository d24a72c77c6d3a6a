from __future__ import annotations

import pytest
from mkdocs.config.base import load_config

from gazette_spark.version import VERSION
from tools import site_hooks


@pytest.mark.parametrize(
    ("repository", "link"),
    [("", None), ("https://git.example/gazette_spark", "edit/main/docs/")],
)
def test_pages_link_to_their_source_where_there_is_a_repository(repository: str, link: str | None) -> None:
    config = site_hooks.on_config(load_config("mkdocs.yml", repo_url=repository))
    assert config.edit_uri == link
    assert VERSION in (config.copyright or "")
