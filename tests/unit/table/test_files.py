"""How a full disk is reported, and how Java is called.

tests/spark/test_sink_start.py has a query that meets a full disk.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gazette_spark
from gazette_spark._delta import files
from gazette_spark._delta.files import SCARCE_BYTES, without_space

JAVA = (
    "org.apache.spark.SparkException: Job aborted.\nCaused by: java.io.IOException: No space left on device"
)


class Elsewhere:
    """A session without a JVM to call."""


def test_java_classes_have_their_full_names() -> None:
    """A name that is looked up package by package took 60 of the 264 ms of a small batch."""
    found = {
        f"{file.name}: {ast.unparse(node)}"
        for file in Path(gazette_spark.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute | ast.Call)
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.Attribute) and child.attr == "_jvm"
    }
    assert found == {"files.py: getattr(spark._jvm, name)"}


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Set the free bytes of directories by path; all others have plenty."""
    free: dict[str, int] = {}
    monkeypatch.setattr(files, "disk_usage", lambda path: SimpleNamespace(free=free.get(str(path), 1 << 39)))
    return free


def test_the_fullest_disk_is_named(tmp_path: Path, full: dict[str, int]) -> None:
    session: Any = Elsewhere()
    places = {"the table": str(tmp_path / "a" / "table"), "the query checkpoint": "/", "scratch": None}
    full[str(tmp_path)] = 4096
    assert without_space(session, JAVA, places) == (
        f"No space left on device; the disk of the table {tmp_path}/a/table has 4,096 bytes free"
    )
    full["/"] = 0
    assert "the disk of the query checkpoint / has 0 bytes free" in without_space(session, JAVA, places)


def test_all_places_are_named_where_no_disk_is_known_to_be_full(full: dict[str, int]) -> None:
    """The table may be on another machine, or the file that did not fit may be gone again."""
    session: Any = Elsewhere()
    full |= {"/": SCARCE_BYTES, ".": 0}
    places = {"the table": "/", "the query checkpoint": "s3://bucket/checkpoint"}
    assert without_space(session, "OSError: [Errno 122] Disk quota exceeded", places) == (
        "Disk quota exceeded; the full disk is that of the table /, or of the query checkpoint "
        "s3://bucket/checkpoint"
    )


def test_other_errors_are_of_something_else(full: dict[str, int]) -> None:
    session: Any = Elsewhere()
    full["/"] = 0
    assert without_space(session, "java.io.IOException: Connection reset", {"the table": "/"}) == ""
