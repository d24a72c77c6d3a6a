"""gazette-spark-python runs Spark's workers with this Python and a compiled PySpark."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pyspark
import pytest

from gazette_spark import session
from pyspark_gazette.worker_python import COMMAND, with_compiled_pyspark

ROOT = Path(__file__).parents[2]
COMMAND_OF_PIP = "import sys; sys.argv[0] = 'x'; from pyspark_gazette.worker_python import main; main()"
"""Program of the command that pip creates."""


def archives_of(home: Path) -> list[str]:
    """Return what Spark puts first in PYTHONPATH."""
    library = home / "python" / "lib"
    return [str(library / "pyspark.zip"), str(library / "py4j-0.10.9.9-src.zip")]


def package(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    return folder


def test_workers_of_an_installed_spark_import_its_compiled_package() -> None:
    """Arguments are passed unchanged, and the user's own entries stay."""
    show = "import os, sys, pyspark; print(pyspark.__file__, os.environ['PYTHONPATH'], *sys.argv, sep='\\n')"
    assert pyspark.__file__ is not None
    home = Path(pyspark.__file__).parent
    (py4j,) = home.glob("python/lib/py4j-*-src.zip")
    entries = [str(home / "python" / "lib" / "pyspark.zip"), str(py4j)]
    assert all(Path(entry).exists() for entry in entries)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND_OF_PIP, "-c", show, "a b"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*entries, "/sent/along.zip", str(ROOT)])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [pyspark.__file__, f"/sent/along.zip:{ROOT}", "-c", "a b"]


def test_a_downloaded_spark_has_the_package_beside_its_zip(tmp_path: Path) -> None:
    """The folder replaces the zip. The zip of py4j stays, because no folder has it."""
    package(tmp_path / "python" / "pyspark")
    spark, py4j = archives_of(tmp_path)
    assert with_compiled_pyspark([spark, py4j, "/mine"], sys.path) == [
        str(tmp_path / "python"),
        py4j,
        "/mine",
    ]


def test_a_zip_of_another_release_stays(tmp_path: Path) -> None:
    """This Python's PySpark does not fit a Spark of another release."""
    entries = [*archives_of(tmp_path / "cluster"), "/mine"]
    (tmp_path / "cluster").mkdir()
    installed = package(tmp_path / "site" / "pyspark").parent
    package(installed / "py4j")
    assert with_compiled_pyspark(entries, [*entries, str(installed)]) == entries


@pytest.mark.parametrize("missing", ["pyspark", "py4j"])
def test_a_zip_stays_where_its_package_is_not_installed(missing: str, tmp_path: Path) -> None:
    """An executor may have PySpark only from the zip."""
    for name in {"pyspark", "py4j"} - {missing}:
        package(tmp_path / name)
    entries = archives_of(tmp_path / "pyspark")
    assert with_compiled_pyspark(entries, [*entries, str(tmp_path)]) == entries


def test_a_path_without_spark_stays() -> None:
    assert with_compiled_pyspark(["", "/sent/along.zip"], sys.path) == ["", "/sent/along.zip"]


def test_pip_makes_the_command() -> None:
    """Sessions look for the command by this name."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    assert scripts[COMMAND] == "pyspark_gazette.worker_python:main"


def test_local_sessions_use_the_command_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the command, workers run Python itself, which starts more slowly."""
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    assert session.worker_python() == sys.executable
    (tmp_path / COMMAND).touch()
    assert session.worker_python() == str(tmp_path / COMMAND)
