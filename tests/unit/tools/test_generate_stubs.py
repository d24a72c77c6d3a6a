"""The committed stubs are what the ``.proto`` files in ``tools`` generate."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.generate_stubs import PROTOCOL, PROTOS, generate


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="no grpcio-tools of this release for Python 3.14")
def test_committed_stubs_are_current(tmp_path: Path) -> None:
    fresh = {path.name: path.read_text("utf-8") for path in generate(tmp_path)}
    committed = {path.name: path.read_text("utf-8") for path in PROTOCOL.glob("*_pb2*.py*")}
    assert sorted(fresh) == sorted(committed)
    stale = [name for name, text in fresh.items() if text != committed[name]]
    assert stale == [], "run `make generated`"


def test_stubs_do_not_ask_for_a_release_of_protobuf() -> None:
    """A check of the runtime would warn under protobuf releases 6.30 and 6.31."""
    stubs = sorted(PROTOCOL.glob("*_pb2.py"))
    assert [path.name for path in stubs] == [f"{name}_pb2.py" for name in sorted(PROTOS)]
    assert [path.name for path in stubs if "runtime_version" in path.read_text("utf-8")] == []
