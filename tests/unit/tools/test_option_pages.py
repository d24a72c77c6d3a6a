"""The page of options is up to date with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gazette_spark._options.delta_format import DELTA_FORMAT_OPTIONS
from gazette_spark._options.iceberg_format import ICEBERG_FORMAT_OPTIONS
from gazette_spark._options.source import OPTIONS
from gazette_spark._options.write import WRITE_OPTIONS
from tools.error_page import END
from tools.option_pages import BEGIN, PAGES, tables, with_tables

SPARKS_OWN_NAMES = {"writeStream", "checkpointLocation", "addNewColumns"}

PAGE_NAMES = [path.name for path in PAGES]


@pytest.mark.parametrize("path", PAGES, ids=PAGE_NAMES)
def test_the_table_is_up_to_date(path: Path) -> None:
    """If the page changes when it is generated, run ``make generated``."""
    page = path.read_text(encoding="utf-8")
    assert with_tables(page, PAGES[path]) == page


@pytest.mark.parametrize("path", PAGES, ids=PAGE_NAMES)
def test_the_table_has_every_option(path: Path) -> None:
    lines = [line for line in tables(PAGES[path]).splitlines() if line.startswith("| <a")]
    names = [re.match(r'\| <a id="([\w.*]+)"></a>`\1` \|', line) for line in lines]
    assert sorted(name[1] for name in names if name) == sorted(option.name for option in PAGES[path])
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}


@pytest.mark.parametrize("path", PAGES, ids=PAGE_NAMES)
def test_what_the_page_names_as_an_option_is_one(path: Path) -> None:
    """The check covers every backquoted camel-case word outside of the page's tables."""
    named = set(re.findall(r"`([a-z]+[A-Z]\w*)(?:=\w+)?`", path.read_text(encoding="utf-8")))
    options = (*OPTIONS, *WRITE_OPTIONS, *DELTA_FORMAT_OPTIONS, *ICEBERG_FORMAT_OPTIONS)
    assert named <= {option.name for option in options} | SPARKS_OWN_NAMES


@pytest.mark.parametrize("page", ["", BEGIN, END])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    """Without the marks, the generator could overwrite the wrong text."""
    with pytest.raises(ValueError, match="needs the lines"):
        with_tables(page, OPTIONS)


def test_what_stands_around_the_table_is_kept() -> None:
    made = with_tables(f"before\n{BEGIN}\nold\n{END}\nafter\n", OPTIONS)
    assert made == f"before\n{BEGIN}\n\n{tables(OPTIONS)}\n\n{END}\nafter\n"
