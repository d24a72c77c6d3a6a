"""The committed stubs are what the ``.proto`` files beside them generate."""

from __future__ import annotations

from pathlib import Path

import pytest

from gazette_spark import protocol
from gazette_spark.protocol import generate

COMMITTED = Path(protocol.__file__).parent


def test_committed_stubs_are_current(tmp_path: Path) -> None:
    """A fresh run writes the committed files: the same names with the same text."""
    fresh = {path.name: path.read_text("utf-8") for path in generate.generate(tmp_path)}
    committed = {path.name: path.read_text("utf-8") for path in COMMITTED.glob("*_pb2*.py*")}
    assert sorted(fresh) == sorted(committed)
    stale = [name for name, text in fresh.items() if text != committed[name]]
    assert stale == [], "run `python -m gazette_spark.protocol.generate`"


def test_command_line_writes_where_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command makes the directory given and prints the path of each file it writes."""
    assert generate.main(["--out", str(tmp_path / "stubs")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == sorted(str(path) for path in (tmp_path / "stubs").iterdir())


def test_stubs_do_not_ask_for_a_release_of_protobuf() -> None:
    """Message stubs hold no check of the protobuf runtime: it warns under releases 6.30 and 6.31."""
    stubs = sorted(COMMITTED.glob("*_pb2.py"))
    assert [path.name for path in stubs] == [f"{name}_pb2.py" for name in sorted(generate.PROTOS)]
    assert [path.name for path in stubs if "runtime_version" in path.read_text("utf-8")] == []
