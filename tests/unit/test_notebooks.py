"""The outputs stored with the notebooks match the code beside them, and are fit for readers."""

from __future__ import annotations

import ast
import copy
import re

import pytest

from tests.rig import notebooks

PATHS = {notebooks.name_of(path): path for path in notebooks.paths()}
LOCAL = [name for name, path in PATHS.items() if not notebooks.needs_workspace(path)]

LARGEST_BYTES = 300_000
"""Maximum bytes of a notebook: GitHub shows larger ones late or never, and each version stays in git."""

OF_A_MACHINE = re.compile(r"(?:/tmp|/home|/root|/Users|/var/folders)/\S+")
"""Local paths, which mean nothing to a reader."""


@pytest.mark.parametrize("name", PATHS)
def test_stored_outputs_are_of_the_code(name: str) -> None:
    """Each cell ran after the cells above it in their current form; if not, run ``make notebooks``."""
    notebook = notebooks.read(PATHS[name])
    cells = notebooks.code_cells(notebook)
    assert cells
    assert notebooks.stale(notebook) == []
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


def test_a_change_makes_outputs_stale() -> None:
    notebook = copy.deepcopy(notebooks.read(PATHS["02_backfill"]))
    cells = notebooks.code_cells(notebook)
    cells[2].source += "\nprint()"
    assert notebooks.stale(notebook) == [cell.id for cell in cells[2:]]


@pytest.mark.parametrize("name", PATHS)
def test_stored_outputs_are_for_readers(name: str) -> None:
    """Notebooks have a plot, are small, and contain no error, no log and no path of the build machine."""
    notebook = notebooks.read(PATHS[name])
    outputs = [each for cell in notebooks.code_cells(notebook) for each in cell.outputs]
    texts = [each.get("text", "") + each.get("data", {}).get("text/plain", "") for each in outputs]
    results = [each.data["text/plain"] for each in outputs if each.output_type == "execute_result"]
    assert [text for text in results if text.isdigit()] == [], "values that nobody asked for"
    assert notebooks.plots(notebook)
    assert {each.get("name", "stdout") for each in outputs} == {"stdout"}
    assert [each for each in outputs if each.output_type == "error"] == []
    assert [found for text in texts for found in OF_A_MACHINE.findall(text)] == []
    assert PATHS[name].stat().st_size < LARGEST_BYTES


@pytest.mark.parametrize("name", sorted(PATHS.keys() - LOCAL))
def test_notebooks_for_databricks_run_on_serverless_compute(name: str) -> None:
    """Serverless compute allows only the trigger ``availableNow``, which classic compute accepts too."""
    code = "\n".join(cell.source for cell in notebooks.code_cells(notebooks.read(PATHS[name])))
    assert code.count("sink.start(") == code.count("availableNow=True")
    assert "processingTime" not in code


@pytest.mark.parametrize("name", LOCAL)
def test_pictures_of_the_docs_are_the_stored_plots(name: str) -> None:
    picture = notebooks.picture_of(PATHS[name])
    assert picture.read_bytes() == notebooks.plots(notebooks.read(PATHS[name]))[0]
    page = picture.parent.with_suffix(".md").read_text()
    assert f"({picture.parent.name}/{picture.name})" in page


@pytest.mark.parametrize("name", PATHS)
def test_links_lead_to_files(name: str) -> None:
    texts = [cell.source for cell in notebooks.read(PATHS[name]).cells if cell.cell_type == "markdown"]
    links = [link for text in texts for link in re.findall(r"\]\(([^)#]+)\)", text)]
    assert [
        link
        for link in links
        if not link.startswith("https://") and not (PATHS[name].parent / link).is_file()
    ] == []


def test_the_reference_has_all_that_notebooks_import() -> None:
    """The reference must describe each imported name, and no notebook may import a private module."""
    reference = notebooks.ROOT / "docs" / "reference"
    pages = "\n".join(page.read_text() for page in (reference / "api").glob("*.md"))
    errors = re.findall(r"`(\w+Error)`", (reference / "errors.md").read_text())
    described = {
        *re.findall(r"^::: (\S+)", pages, re.MULTILINE),
        *(f"gazette_spark.{name}" for name in errors),
    }
    code = "\n".join(
        cell.source for path in PATHS.values() for cell in notebooks.code_cells(notebooks.read(path))
    )
    tree = ast.parse(re.sub(r"^%.*$", "", code, flags=re.MULTILINE))
    names = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gazette_spark")
        for alias in node.names
    }
    assert names - described == set()
