"""The wheel contains the package and its run-time requirements: every module, but no test rig."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from pyspark_gazette.worker_python import COMMAND
from tests.rig.native import cargo_runs
from tests.rig.wheel import ROOT, build_wheel
from tests.unit.test_imports import PACKAGE, imported_modules, sources

pytestmark = pytest.mark.slow

JSON_TASK = ROOT / "tests" / "rig" / "json_task.py"
LIBRARY = "gazette_spark/_formats/libgazette_json.so"
JAR = "gazette_spark/_delta/s3-log-store.jar"
DATA = {"gazette_spark/py.typed", "gazette_spark/lag/page.html"}
"""Files other than Python modules that the package needs at run time."""


def contents(wheel: Path) -> set[str]:
    """Return the paths of all files in a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("pure"), GAZETTE_SPARK_NATIVE="0")


@pytest.fixture(scope="module")
def platform_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not cargo_runs():
        pytest.skip("without Rust there is no such wheel")
    return build_wheel(tmp_path_factory.mktemp("platform"))


@pytest.fixture(scope="module")
def names(pure_wheel: Path) -> set[str]:
    return contents(pure_wheel)


def test_the_wheel_holds_every_module(pure_wheel: Path, names: set[str]) -> None:
    assert pure_wheel.name.endswith("-py3-none-any.whl")
    packages = [
        PACKAGE,
        ROOT / "pyspark_gazette",
        ROOT / "pyspark_gazette_delta",
        ROOT / "pyspark_gazette_iceberg",
    ]
    modules = {str(path.relative_to(ROOT)) for root in packages for path in root.rglob("*.py")}
    stubs = {str(path.relative_to(ROOT)) for path in PACKAGE.glob("protocol/*.p*") if path.suffix != ".py"}
    assert names == modules | stubs | DATA | ({JAR} if shutil.which("javac") else set())


def test_a_package_index_shows_the_readme_without_dead_links(pure_wheel: Path) -> None:
    """The description is README.md, and its links must work without the repository."""
    with zipfile.ZipFile(pure_wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    shown = metadata.get_payload()
    assert isinstance(shown, str)
    links = re.findall(r"\]\(([^)]*)\)", shown)
    assert links
    assert all(link.startswith("https://") for link in links)
    assert (
        re.sub(r"\]\([^)]*\)|\[", "", shown).split()
        == re.sub(r"\]\([^)]*\)|\[", "", (ROOT / "README.md").read_text()).split()
    )


def test_a_wheel_of_a_platform_holds_the_library_too(platform_wheel: Path, names: set[str]) -> None:
    """One file serves all Pythons, so its name has the platform but no version of Python."""
    assert re.search(r"-py3-none-(?!any)\w+\.whl$", platform_wheel.name)
    assert contents(platform_wheel) == names | {LIBRARY}


@pytest.mark.parametrize(
    ("wheel", "absence"),
    [
        pytest.param("pure_wheel", "not built", id="any platform"),
        pytest.param("platform_wheel", "", id="this platform"),
    ],
)
def test_a_new_environment_with_the_wheel_reads_json(
    wheel: str, absence: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Dependencies come from this Python, but the source tree is not visible."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=60)
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    file = request.getfixturevalue(wheel)
    subprocess.run(
        [*pip, "--quiet", "--no-deps", "--no-index", "--no-compile", file], check=True, timeout=120
    )
    # A folder named in a .pth file is searched, but its own .pth files, one of which is ours, are not read.
    (site,) = tmp_path.glob("env/lib/python*/site-packages")
    (site / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    done = subprocess.run(
        [python, "-I", JSON_TASK], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert (done.stdout, done.returncode) == (f"{absence}\n", 0), done.stderr
    assert (python.parent / COMMAND).exists()


def test_without_rust_the_wheel_is_for_any_platform(names: set[str], tmp_path: Path) -> None:
    """A failing cargo must not fail the installation."""
    (tmp_path / "cargo").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "cargo").chmod(0o755)
    wheel = build_wheel(tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert contents(wheel) == names


def test_the_package_does_without_the_test_rig() -> None:
    """The wheel lacks ``tests``, so no module of the package may import it."""
    users = {
        str(path.relative_to(ROOT))
        for path in sources()
        for module in imported_modules(path)
        if module.split(".")[0] == "tests"
    }
    assert users == set()


def test_what_the_rig_needs_is_not_shipped(names: set[str]) -> None:
    """The helpers that ship are those that a user's own tests need."""
    shipped = {Path(name).stem for name in names if name.startswith("gazette_spark/testing/")}
    assert shipped == {
        "__init__",
        "crash",
        "micro_batch",
        "oracle",
        "pytest_plugin",
        "stub_broker",
        "table_watch",
    }
