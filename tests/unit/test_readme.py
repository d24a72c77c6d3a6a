"""README.md names what exists: commands, targets, files."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import click
import pytest

from gazette_spark.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FIRST_EXAMPLES = {
    page: re.sub(r"^%.*", "", block[1], flags=re.MULTILINE)
    for page in PAGES
    if page.parent.name in ("guides", "recipes", "start")
    and (block := re.search(r"^```python[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
}


def leaves(command: click.Command, path: str) -> list[str]:
    """Return the full names of the commands below one."""
    if not isinstance(command, click.Group):
        return [path]
    context = click.Context(command)
    found = []
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        found += leaves(below, f"{path} {name}")
    return found


def test_the_table_of_commands_is_complete() -> None:
    """Every command has its line, and no line is about one that is gone."""
    assert sorted(re.findall(r"^\| `(gazette-spark [\w -]+)`", README, re.MULTILINE)) == sorted(
        leaves(main, "gazette-spark")
    )


def test_targets_named_exist() -> None:
    """Targets that the page tells to `make` can be made."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z-]+)", README)) - {"the"} <= targets
    assert {"help", "install", "jvm", "demo", "check", "test", "bench", "clean"} <= targets


def test_ci_runs_what_the_page_says() -> None:
    """CI is `make test` and no more; the script can be run."""
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().splitlines()[-1] == "exec make test"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is to a file of the repository."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", FIRST_EXAMPLES, ids=lambda page: page.name)
def test_a_pages_first_example_defines_what_it_uses(page: Path) -> None:
    """A reader who copies it needs a session, and on one page a vault of secrets."""
    names = [node for node in ast.walk(ast.parse(FIRST_EXAMPLES[page])) if isinstance(node, ast.Name)]
    defined = {node.id for node in names if isinstance(node.ctx, ast.Store)} | {
        *dir(builtins),
        "spark",
        "vault",
    }
    for node in ast.walk(ast.parse(FIRST_EXAMPLES[page])):
        match node:
            case ast.Import() | ast.ImportFrom():
                defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            case ast.FunctionDef() | ast.ClassDef():
                defined.add(node.name)
            case ast.arg():
                defined.add(node.arg)
    assert sorted({node.id for node in names} - defined) == []


def test_decisions_are_numbered_without_holes() -> None:
    """The files count from 1, each heading has its file's number, and the index lists them all."""
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    numbers = [f"{number:04d}" for number in range(1, len(decisions) + 1)]
    assert [path.name[:4] for path in decisions] == numbers
    assert [path.read_text()[:7] for path in decisions] == [f"# {number}:" for number in numbers]
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    assert re.findall(r"\]\((.*)\)", index) == [path.name for path in decisions]
