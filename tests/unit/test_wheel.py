"""The wheel holds the package and what it needs at run time: every module, no test rig."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.rig.wheel import ROOT, build_wheel
from tests.unit.test_imports import PACKAGE, imported_modules, sources

DATA = {"gazette_spark/py.typed", "gazette_spark/lag/page.html"}
"""Files beside Python's that the package reads at run time."""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The paths of all files in the wheel, without its metadata."""
    with zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel"))) as wheel:
        return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_module(names: set[str]) -> None:
    """Each Python file of both packages is in it, and nothing but these and the protocol's typed stubs."""
    packages = [PACKAGE, ROOT / "pyspark_gazette"]
    modules = {str(path.relative_to(ROOT)) for root in packages for path in root.rglob("*.py")}
    stubs = {str(path.relative_to(ROOT)) for path in PACKAGE.glob("protocol/*.p*") if path.suffix != ".py"}
    assert names == modules | stubs | DATA


def test_the_package_does_without_the_test_rig() -> None:
    """No module of the package imports one of ``tests``, which is not in the wheel."""
    users = {
        str(path.relative_to(ROOT))
        for path in sources()
        for module in imported_modules(path)
        if module.split(".")[0] == "tests"
    }
    assert users == set()


def test_what_the_rig_needs_is_not_shipped(names: set[str]) -> None:
    """The helpers that ship are those a user's own tests need."""
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
