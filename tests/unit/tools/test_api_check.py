"""Breaking changes of the public interface are distinguished from compatible and internal ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import griffe
import pytest

from tools.api_check import breaking_changes, interface, may_break
from tools.public_names import ROOT

BEFORE = """
class Cart:
    def add(self, item, count=1): ...
    def clear(self): ...
    def _sort(self): ...

def total(cart, currency="EUR"): ...
def _helper(): ...
"""


def loaded(folder: Path, text: str) -> Any:
    folder.mkdir()
    (folder / "shop.py").write_text(text)
    return griffe.load("shop", search_paths=[folder])


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        pytest.param("count=1)", "count)", ["add"], id="a default that is gone"),
        pytest.param("    def clear(self): ...\n", "", ["clear"], id="a method that is gone"),
        pytest.param(
            "cart, currency", "basket, currency", ["cart", "basket"], id="a new name of a parameter"
        ),
        pytest.param("def total", "def sum_up", ["total"], id="a name that is gone"),
        pytest.param('currency="EUR"', 'currency="EUR", tax=0', [], id="one more optional parameter"),
        pytest.param("    def _sort(self): ...\n", "", [], id="a private method"),
        pytest.param("def _helper(): ...\n", "", [], id="a private function"),
    ],
)
def test_what_breaks_a_program(before: str, after: str, broken: list[str], tmp_path: Path) -> None:
    old = loaded(tmp_path / "old", BEFORE)
    new = loaded(tmp_path / "new", BEFORE.replace(before, after))
    lines = breaking_changes(old, new)
    assert len(lines) == len(broken)
    assert all(any(name in line for line in lines) for name in broken)


@pytest.mark.slow
def test_the_interface_has_public_names_only() -> None:
    names = interface(griffe.load("gazette_spark", search_paths=[ROOT])).members
    assert {"gazette_spark.DeltaSink", "gazette_spark.client.Client"} <= set(names)
    assert not any("._" in name or name.startswith("gazette_spark.cli.") for name in names)


@pytest.mark.parametrize(
    ("released", "version", "allowed"),
    [
        ("0.1.0", "0.1.1", False),
        ("0.1.0", "0.2.0", True),
        ("0.9.0", "1.0.0", True),
        ("1.0.0", "1.1.0", False),
        ("1.4.2", "2.0.0", True),
    ],
)
def test_which_version_may_break_programs(released: str, version: str, allowed: bool) -> None:
    assert may_break(released, version) is allowed
