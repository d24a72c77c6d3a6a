"""Runs notebooks: in a kernel, as a reader does, or in this process, in the tests' Spark session.

``python -m tests.rig.notebooks [NAME …]`` runs them in a kernel and stores their outputs, for GitHub to show.
Each code cell stores a digest of the code up to its end, so that a test detects outputs of older code. The
first plot of each notebook is also a picture of the docs.

Notebooks of ``notebooks/databricks`` get ``spark``, ``dbutils``, ``display`` and a broker from their
workspace, which ``tests.rig.databricks`` stands in for.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
PICTURES = ROOT / "docs" / "start" / "notebooks"
DIGEST = "executed"
"""Key of the digest in the metadata of a code cell."""

CELL_TIMEOUT_S = 240
"""Maximum seconds for a cell. The first cell that starts Spark may have to download Delta's jar."""

STARTING = re.compile(r"starting Spark.* Its log is in .*\n")
"""Pattern of the line that ``local_spark`` prints before its JVM starts."""

WORKSPACE = """
from tests.rig.databricks import Workspace

get_ipython().register_magic_function(lambda line: None, magic_name="pip")
workspace = Workspace.in_kernel(globals())
"""
"""Code that runs before the cells of a notebook for Databricks, and is not stored. It installs nothing."""

CLOSE = "workspace.close()"

Notebook = Any
"""An ``nbformat.NotebookNode``, whose keys are attributes."""


def paths() -> list[Path]:
    return sorted(FOLDER.rglob("*.ipynb"))


def name_of(path: Path) -> str:
    """Return a notebook's name, such as ``databricks/01_quickstart``."""
    return str(path.relative_to(FOLDER).with_suffix(""))


def needs_workspace(path: Path) -> bool:
    return path.parent.name == "databricks"


def read(path: Path) -> Notebook:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: Notebook) -> list[Notebook]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digests(notebook: Notebook) -> Iterator[str]:
    """Yield for each code cell a digest of the code up to its end."""
    so_far = hashlib.sha256()
    for cell in code_cells(notebook):
        so_far.update(cell.source.encode() + b"\0")
        yield so_far.hexdigest()[:16]


def stale(notebook: Notebook) -> list[str]:
    """Return the ids of the code cells with outputs of other code."""
    pairs = zip(code_cells(notebook), digests(notebook), strict=True)
    return [cell.id for cell, digest in pairs if cell.metadata.get(DIGEST) != digest]


def run_in_kernel(path: Path, directory: Path) -> Notebook:
    """Run a notebook in a new kernel, and return it with its outputs.

    Args:
        path: The notebook.
        directory: An empty directory: the kernel's, and where it makes temporary files.

    Raises:
        CellExecutionError: a cell raised.
    """
    from nbclient import NotebookClient

    notebook = read(path)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    around = needs_workspace(path)
    if around:
        notebook.cells = [_code(WORKSPACE), *notebook.cells, _code(CLOSE)]
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "TMPDIR": str(directory),
        "IPYTHONDIR": str(directory.parent / "ipython"),
        "MPLCONFIGDIR": str(directory.parent / "matplotlib"),
    }
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        coalesce_streams=True,  # Otherwise, pauses between two lines appear in the file.
        kernel_name="python3",
        resources={"metadata": {"path": str(directory)}},
    ).execute(env=env)
    if around:
        notebook.cells = notebook.cells[1:-1]
    return notebook


def _code(source: str) -> Notebook:
    return nbformat.v4.new_code_cell(source)


def store(path: Path, notebook: Notebook) -> None:
    """Write a notebook with its outputs, without anything that differs between machines."""
    for count, (cell, digest) in enumerate(zip(code_cells(notebook), digests(notebook), strict=True), 1):
        cell.metadata = nbformat.from_dict({DIGEST: digest})
        cell.execution_count = count
        # A revision or a count that a call returns incidentally looks like a result. The line that says that
        # Spark is starting contains a folder of this machine.
        cell.outputs = [
            output
            for output in cell.outputs
            if not output.get("data", {}).get("text/plain", "").isdigit()
            and not (output.get("name") == "stderr" and STARTING.fullmatch(output.text))
        ]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def run_here(path: Path, names: dict[str, Any]) -> int:
    """Run the cells in this process, as IPython does; return how many plots they drew.

    Args:
        path: The notebook.
        names: Names that its cells use, as in a workspace; the names that they define are added.
    """
    from matplotlib import pyplot as plt

    drawn = 0
    for number, cell in enumerate(code_cells(read(path)), 1):
        source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%pip "))
        place = f"{path.name}[{number}]"
        tree = ast.parse(source, place)
        shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, place, "exec"), names)
        if isinstance(shown, ast.Expr):
            value = eval(compile(ast.Expression(shown.value), place, "eval"), names)
            getattr(value, "_repr_html_", value.__repr__)()
        for figure in map(plt.figure, plt.get_fignums()):
            figure.canvas.draw()
            drawn += 1
        plt.close("all")
    return drawn


def plots(notebook: Notebook) -> list[bytes]:
    found = [output.get("data", {}) for cell in code_cells(notebook) for output in cell.outputs]
    return [base64.b64decode(data["image/png"]) for data in found if "image/png" in data]


def picture_of(path: Path) -> Path:
    return PICTURES / f"{path.stem}.png"


def main(wanted: list[str]) -> None:
    known = {name_of(path): path for path in paths()}
    if unknown := set(wanted) - set(known):
        raise SystemExit(f"no notebook {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in wanted or known:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="notebooks-") as directory:
            work = Path(directory) / "work"
            work.mkdir()
            notebook = run_in_kernel(known[name], work)
        store(known[name], notebook)
        if not needs_workspace(known[name]):
            picture_of(known[name]).parent.mkdir(exist_ok=True)
            picture_of(known[name]).write_bytes(plots(notebook)[0])
        print(f"{name}: {time.monotonic() - began:.0f} s, {known[name].stat().st_size // 1000} kB")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
