"""The notebooks run from top to bottom.

In `make test` the cells of the short notebooks and of those for Databricks run in the tests' Spark session,
which saves a kernel and a JVM for each. In `make soak` every notebook runs in a kernel, as it does for a
reader.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.rig import notebooks
from tests.rig.databricks import Workspace

PATHS = {notebooks.name_of(path): path for path in notebooks.paths()}
FOR_DATABRICKS = [name for name, path in PATHS.items() if notebooks.needs_workspace(path)]
SHORT = ("01_quickstart", "05_read_committed", "06_application")
"""Short notebooks; the others wait for fragments, restarts or verdicts, or take a minute."""

FOR_DATABRICKS_IN_SOAK = ("databricks/01_quickstart", "databricks/04_lag")
"""Databricks notebooks for soak: the first runs its stream three times, the other waits for verdicts."""


@pytest.fixture
def names(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the names that the cells use: the tests' Spark session in place of a new one, and no display."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.use("Agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    monkeypatch.setattr("gazette_spark.session.local_spark", lambda *_args, **_options: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with plt.rc_context():
        yield {"__name__": "__main__"}
    assert spark.streams.active == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SHORT)
def test_cells_run_in_the_session_of_the_tests(name: str, names: dict[str, Any], tmp_path: Path) -> None:
    assert notebooks.run_here(PATHS[name], names) > 0
    assert repr(names["broker"]).endswith("stopped)")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak) if name in FOR_DATABRICKS_IN_SOAK else name
        for name in FOR_DATABRICKS
    ],
)
def test_cells_for_databricks_run(
    name: str, names: dict[str, Any], spark: SparkSession, tmp_path: Path
) -> None:
    """The names that a Databricks workspace provides are replaced by stand-ins."""
    workspace = Workspace(spark, tmp_path)
    try:
        assert notebooks.run_here(PATHS[name], names | workspace.names()) > 0
        assert workspace.dbutils.library.restarts == 1
    finally:
        workspace.close()


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client.*")
@pytest.mark.parametrize("name", PATHS)
def test_a_kernel_runs_every_cell(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends with the notebook, whose cells assert their results, and no temporary file is left."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("MEGABYTES", "20")  # The notebook on speed uses 1 GB by default.
    work = tmp_path / "work"
    work.mkdir()
    notebook = notebooks.run_in_kernel(PATHS[name], work)
    assert all(cell.execution_count for cell in notebooks.code_cells(notebook) if cell.source)
    assert [path.name for path in work.iterdir()] == []
