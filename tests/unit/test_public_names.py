"""The public names are listed, can be loaded, and are the only ones that our pages and examples import."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.public_names import PAGE, PUBLIC_MODULES, ROOT, lines, public_names

EXAMPLES = "gazette_spark.consumer.examples"
"""Package of example programs that users read and run."""

LAZY = ("gazette_spark", "gazette_spark.consumer", "gazette_spark.lag", "gazette_spark.message")


def test_the_list_is_that_of_the_code() -> None:
    """The list makes a change of the public interface visible in review. ``make generated`` writes it."""
    assert PAGE.read_text() == "\n".join(lines())


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_loads(module: str) -> None:
    """Lazy imports name modules and attributes as text, which must be spelled correctly."""
    loaded = importlib.import_module(module)
    for name in public_names(module):
        # As `from module import name` does: a name may be a module that nothing has imported yet.
        if not hasattr(loaded, name):
            importlib.import_module(f"{module}.{name}")
        assert getattr(loaded, name) is not None


@pytest.mark.parametrize("module", LAZY)
def test_type_checkers_see_what_loads(module: str) -> None:
    seen = set(public_names(module))
    if module == "gazette_spark":
        seen |= {"__version__", *public_names("gazette_spark.errors")}
    assert set(importlib.import_module(module).__all__) == seen


def test_the_functions_are_not_hidden_by_their_modules() -> None:
    """``gazette_spark.ingest`` must be the function, whatever was imported before."""
    front = importlib.import_module("gazette_spark")
    importlib.import_module("gazette_spark._backfill")
    importlib.import_module("gazette_spark._ingest")
    assert callable(front.ingest)
    assert callable(front.backfill)


def python_in(path: Path) -> Iterator[str]:
    """Yield the Python code of a page, a notebook or a file."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    elif path.suffix == ".md":
        sources = re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    else:
        sources = [text]
    for source in sources:
        # Notebook commands are not Python, and examples omit parts.
        yield re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE).replace("…", "...")


def imported_modules(source: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gazette_spark"):
            yield str(node.module), tuple(alias.name for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((a.name, ()) for a in node.names if a.name.startswith("gazette_spark"))


PAGES = sorted(
    path
    for pattern in (
        "README.md",
        "docs/**/*.md",
        "notebooks/**/*.ipynb",
        "deploy/*.py",
        "gazette_spark/consumer/examples/*.py",
    )
    for path in ROOT.glob(pattern)
    if ".ipynb_checkpoints" not in path.parts
)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_and_examples_import_public_names_only(path: Path) -> None:
    """A reader who copies an example must not come to depend on private names."""
    for source in python_in(path):
        for module, names in imported_modules(source):
            if not module.startswith(EXAMPLES):
                assert module in PUBLIC_MODULES
                assert set(names) <= {*public_names(module), "__version__"}
