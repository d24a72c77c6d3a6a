"""The notebooks run from top to bottom.

In `make test` the cells of the short ones and of those for Databricks run in the session of the tests, which
spares a kernel and a JVM for each. `make soak` gives every one a kernel, as a reader does.
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
"""The others wait for fragments, restarts or verdicts, or take a minute."""

FOR_DATABRICKS_IN_SOAK = ("databricks/01_quickstart", "databricks/04_lag")
"""The first runs its stream three times, the other waits for verdicts."""


@pytest.fixture
def names(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a notebook's cells find: the session of the tests in place of one of its own, and no screen."""
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
    """Their asserts hold, something is drawn, the broker is stopped, and no temporary file is left."""
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
    """They fit our package, with stand-ins for what a workspace has."""
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
    """It ends with the notebook; the asserts in the cells hold, and no temporary file is left."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("MEGABYTES", "20")  # Of the notebook on speed, which takes a gigabyte by default.
    work = tmp_path / "work"
    work.mkdir()
    notebook = notebooks.run_in_kernel(PATHS[name], work)
    assert all(cell.execution_count for cell in notebooks.code_cells(notebook) if cell.source)
    assert [path.name for path in work.iterdir()] == []
