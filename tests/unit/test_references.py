"""Names in docstrings and pages exist: modules, functions, classes, options and headings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click

from gazette_spark._options.delta_format import DELTA_FORMAT_OPTIONS, REFUSED
from gazette_spark._options.iceberg_format import ICEBERG_FORMAT_OPTIONS
from gazette_spark._options.source import OPTIONS
from gazette_spark._options.write import WRITE_OPTIONS
from gazette_spark.cli.main import main

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gazette_spark"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

FOREIGN_ROOTS = re.compile(
    r"(access|asyncio|at|auth|bytes|concurrent|consumer\.[A-Z]\w+|delta|df|gazette_broker|google|io|list|map|pa|protocol\.[A-Z]\w+|"
    r"pyarrow|recoverylog\.[A-Z]\w+|shard|sink|source\.read|spark|tests|threading)\b"
)
"""Prefixes of dotted names that are not modules of the package: libraries, Gazette's messages, Spark's
settings, points at which a test can crash a process, options, and columns."""

FILES = frozenset({"conftest.py", "next.json", "schema.json", "state.json"})

FOREIGN_FLAGS = re.compile(
    r"--(archives|broker.file-only|build-arg|create|describe|descriptor_set_out|help|include_imports|no-deps|py-files"
    r"|require-hashes|soak|stream-sum-minutes|tls-|volumes)"
)
"""Options of Gazette, docker, pip, protoc, pytest, spark-submit and Kafka; and a prefix of ours."""


FOREIGN_OPTIONS = frozenset(
    """
    addNewColumns additionalProperties availableNow checkpointLocation commitInfo dropDuplicates endOffset
    endingOffsetsByTimestamp foreachBatch groupIdPrefix includeHeaders lastEntryOffset latestOffset
    mapInArrow maxOffsetsPerTrigger maxRecordsPerPartition memoryOverhead minOffsetsPerTrigger
    numInputRows operationMetrics processingTime readSchema readStream snapshotPartitions startOffset
    streamReader subscribePattern userMetadata writeSchema writeStream
    """.split()  # noqa: SIM905 - a list of this length is read more easily as words
)
"""Options, triggers, fields and methods of Spark, its operator and Kafka source, Delta and Gazette."""


@cache
def docstrings() -> Sequence[tuple[str, str, str]]:
    """Return the place, the module and the text of each docstring of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", module, text))
    return found


def exists(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return has(found, parts[end:])
    return False


def has(found: Any, parts: list[str]) -> bool:
    """Return whether an object has an attribute, or its class declares or sets it."""
    for part in parts:
        if not hasattr(found, part):
            fields = getattr(found, "__annotations__", {})
            return part in fields or (isinstance(found, type) and f"self.{part} = " in source_of(found))
        found = getattr(found, part)
    return True


@cache
def source_of(found: type) -> str:
    module = found.__module__
    return inspect.getsource(sys.modules[module]) if module.startswith("gazette_spark.") else ""


def is_in_module(name: str, module: str) -> bool:
    """Return whether a module, or a class in it, has a name, for references without a module."""
    inside = importlib.import_module(module)
    classes = [each for each in vars(inside).values() if isinstance(each, type)]
    return any(has(each, name.split(".")) for each in [inside, *classes])


def test_references_in_docstrings_resolve() -> None:
    """``:func:`name``` and so on: a dotted name of a module, or a name in the docstring's own module."""
    lost = [
        f"{place}: {name}"
        for place, module, text in docstrings()
        for name in re.findall(r":(?:mod|class|func|meth|data|attr|exc):`~?(?:[^`<]*<)?([^`<>]+)>?`", text)
        if not (exists(name) or is_in_module(name, module))
    ]
    assert lost == []


def test_modules_named_in_docstrings_exist() -> None:
    """``part.module`` is below the package, or beside the docstring's module."""
    lost = []
    for place, module, text in docstrings():
        around = [".".join(module.split(".")[:end]) for end in range(1, module.count(".") + 2)]
        for name in re.findall(r"``([a-z_]+(?:\.\w+)+)``", text):
            if FOREIGN_ROOTS.match(name) or name in FILES:
                continue
            if not (exists(name) or any(exists(f"{parent}.{name}") for parent in around)):
                lost.append(f"{place}: {name}")
    assert lost == []


def test_names_on_pages_resolve() -> None:
    """Dotted names of the package, and what examples import from it."""
    lost = []
    for page in PAGES:
        text = page.read_text()
        names = re.findall(r"\b(gazette_spark(?:\.\w+)+)\b(?!/)", text)
        for module, imported in re.findall(r"from (gazette_spark[\w.]*) import ([\w, ]+)", text):
            names += [f"{module}.{each.split()[0]}" for each in imported.split(",") if each.strip()]
        lost += [f"{page.name}: {name}" for name in names if not (name.endswith(".zip") or exists(name))]
    assert lost == []


@cache
def flags() -> frozenset[str]:
    def of(command: click.Command) -> Iterator[str]:
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from of(below)

    parts = ("benchmarks", "deploy", "tests", "tools")
    scripts = [path for part in parts for path in (ROOT / part).rglob("*.py")]
    found = {
        each for path in scripts for each in re.findall(r'add_argument\(\s*"(--[\w-]+)', path.read_text())
    }
    return frozenset(found | set(of(main)))


def codes() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each piece of code in a line of a page or a docstring."""
    pages = [(str(page.relative_to(ROOT)), page.read_text()) for page in PAGES]
    for place, text in [*pages, *((place, text) for place, _, text in docstrings())]:
        yield from ((place, code) for code in re.findall(r"`+([^`\n]+)`+", text))


def test_flags_exist() -> None:
    """``--flag`` is an option of a command, of a script, or of one of the tools listed above."""
    lost = [
        f"{place}: {flag}"
        for place, code in codes()
        for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*", code)
        if flag not in flags() and not FOREIGN_FLAGS.fullmatch(flag)
    ]
    assert lost == []


def test_options_exist() -> None:
    """A camel-case word is an option of reading or writing, or a word of another project."""
    options = (*OPTIONS, *WRITE_OPTIONS, *DELTA_FORMAT_OPTIONS, *ICEBERG_FORMAT_OPTIONS)
    known = {option.name for option in options} | REFUSED.keys() | FOREIGN_OPTIONS
    lost = [
        f"{place}: {found[1]}"
        for place, code in codes()
        if not place.startswith(("docs/decisions", "docs/evidence", "docs/plan"))
        if (found := re.fullmatch(r"([a-z]+(?:[A-Z][a-z]+)+)(?:=.*)?", code)) and found[1] not in known
    ]
    assert lost == []


def slug(heading: str) -> str:
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", text)).strip("-")


def headings(page: Path) -> Mapping[str, str]:
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {slug(each): each for each in found}


def test_sections_that_pages_link_exist() -> None:
    """Anchors of links, and ``*Heading* in [page](link)``."""
    lost = []
    for page in PAGES:
        text = page.read_text()
        links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text)
        links += [
            (link, slug(title)) for title, link in re.findall(r"\*([^*]+)\* in \[[^]]+\]\(([^)#]+)\)", text)
        ]
        for link, anchor in links:
            target = page.parent / link if link else page
            if "://" not in link and target.suffix == ".md" and anchor not in headings(target):
                lost.append(f"{page.name}: {link}#{anchor}")
    assert lost == []


def test_the_table_of_changes_names_at_most_three_files_each() -> None:
    """A file in docs/how-it-works/architecture.md that was moved is found here."""
    section = (ROOT / "docs/how-it-works/architecture.md").read_text().partition("## Where things are")[2]
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 8
    for change, edit, test in rows:
        files = re.findall(r"`([\w/]+(?:\.py|/))`", edit + test)
        assert 0 < len(files) <= 3, change
        missing = [file for file in files if not (ROOT / file).exists()]
        assert not missing, change
