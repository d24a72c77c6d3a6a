"""The notebooks run from top to bottom, and are kept without outputs."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

CELL_TIMEOUT_S = 240
"""The first cell that starts Spark may have to download Delta's jar."""


def names(path: Path) -> str:
    """Return a test's id."""
    return path.stem


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_outputs_are_cleared(path: Path) -> None:
    """A commit shows what was written, not what a machine answered."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client.*")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell runs in a fresh kernel, which ends with the notebook; its asserts hold."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_the_quickstart_is_there() -> None:
    """An empty folder would pass all of the above."""
    assert "01_quickstart" in [path.stem for path in NOTEBOOKS]
