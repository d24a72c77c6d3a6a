"""README.md names only commands, targets and files that exist."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gazette_spark._options.delta_format import DELTA_FORMAT_OPTIONS
from gazette_spark._options.iceberg_format import ICEBERG_FORMAT_OPTIONS
from gazette_spark._options.source import OPTIONS
from gazette_spark._options.table import SPARK_OWN
from gazette_spark._options.write import WRITE_OPTIONS
from gazette_spark.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = {
    page: [
        re.sub(r"^%.*", "", block, flags=re.MULTILINE)
        for block in re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    for page in PAGES
}
"""Python blocks of each page, without notebook magics."""
COMMANDS = {
    page: re.findall(r"^```(?:sh|bash)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for page in PAGES
}
"""Shell command blocks of each page."""

OPTION_NAMES = {
    option.name.lower()
    for options in (OPTIONS, WRITE_OPTIONS, DELTA_FORMAT_OPTIONS, ICEBERG_FORMAT_OPTIONS)
    for option in options
} | SPARK_OWN
OPTION_PREFIXES = ("storage.", "catalog.", "kafka.", "subscribe")  # The last two are of Spark's Kafka source.


def leaves(command: click.Command, path: str) -> list[str]:
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
    assert sorted(re.findall(r"^\| `(gazette-spark [\w -]+)`", README, re.MULTILINE)) == sorted(
        leaves(main, "gazette-spark")
    )


def test_targets_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z-]+)", README)) - {"the"} <= targets
    assert {"help", "install", "jvm", "demo", "check", "test", "bench", "clean"} <= targets


def test_ci_runs_what_the_page_says() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().splitlines()[-1] == "exec make test"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page, blocks in EXAMPLES.items() if blocks], ids=ids)
def test_examples_define_what_they_use(page: Path) -> None:
    """A reader who copies them in order needs only a session and, on some pages, secrets."""
    defined = {*dir(builtins), "spark", "vault", "dbutils"}
    for block in EXAMPLES[page]:
        tree = ast.parse(block)
        used = set()
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=str(module)) if module.startswith("gazette_spark"):
                    for alias in node.names:
                        assert hasattr(importlib.import_module(module), alias.name), alias.name
                        defined.add(alias.asname or alias.name)
                case ast.Import() | ast.ImportFrom():
                    defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                    defined.add(name)
                case ast.ExceptHandler(name=str(name)) | ast.Name(id=name, ctx=ast.Store()):
                    defined.add(name)
                case ast.Name(id=name):
                    used.add(name)
        assert sorted(used - defined) == []


def options_of(tree: ast.Module) -> Iterator[str]:
    """Yield the names of options that a program gives to Spark's readers and writers."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="option"), args=[ast.Constant(value=str(name)), _]):
                yield name
            case ast.Call(func=ast.Attribute(attr="options"), keywords=keywords):
                yield from (keyword.arg for keyword in keywords if keyword.arg)
            case ast.Dict(keys=keys):
                names = [
                    key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
                ]
                if {"brokerAddress", "fragmentStore"} & set(names):
                    yield from names


@pytest.mark.parametrize("page", [page for page, blocks in EXAMPLES.items() if blocks], ids=ids)
def test_examples_give_options_that_exist(page: Path) -> None:
    """Spark compares names regardless of case, and so does this test."""
    names = {name for block in EXAMPLES[page] for name in options_of(ast.parse(block))}
    assert {
        name for name in names if name.lower() not in OPTION_NAMES and not name.startswith(OPTION_PREFIXES)
    } == set()


def options_of_command(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", [page for page, blocks in COMMANDS.items() if blocks], ids=ids)
def test_commands_have_options_that_exist(page: Path) -> None:
    """Each ``gazette-spark`` of a page is a command, with options of that command or of its groups."""
    for block in COMMANDS[page]:
        text = re.sub(r"<<'EOF'.*?^EOF$", "", block.replace("\\\n", " "), flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"(?:^|\| )gazette-spark ([^|>\n]*)", text, re.MULTILINE):
            words = shlex.split(line, comments=True)
            command: click.Command = main
            options = {"--help", *options_of_command(main)}
            for word in words:
                if isinstance(command, click.Group) and (
                    below := command.get_command(click.Context(command), word)
                ):
                    command = below
                    options |= options_of_command(command)
                elif word.startswith("-"):
                    assert word.partition("=")[0] in options, line
            assert not isinstance(command, click.Group) or "--help" in words, line


def test_decisions_are_numbered_without_holes() -> None:
    """The files count from 1, each heading has its file's number, and the index lists them all."""
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    numbers = [f"{number:04d}" for number in range(1, len(decisions) + 1)]
    assert [path.name[:4] for path in decisions] == numbers
    assert [path.read_text()[:7] for path in decisions] == [f"# {number}:" for number in numbers]
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    assert re.findall(r"\]\((.*)\)", index) == [path.name for path in decisions]
