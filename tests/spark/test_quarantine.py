"""In Spark, a record that kills its worker costs one attempt of its task, not the query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracles.stores import MemoryFiles
from tests.spark import quarantine_job

MORTAL = """
import os, signal
from gazette_spark._formats import json
parse = json.JsonParser._parse
def mortal(parser, block):
    if b"kill" in block.data:
        os.kill(os.getpid(), signal.SIGSEGV)
    return parse(parser, block)
json.JsonParser._parse = mortal
"""
"""Source of a ``sitecustomize`` that crashes a worker or its child on a block containing ``kill``."""
RECORDS = [b'{"n":0}', b'{"n":1,"kill":1}', b'{"n":2}', b'{"n":3}']
TEXT = RECORDS[1].decode()


@pytest.mark.parametrize(
    ("master", "mode", "expected"),
    [
        pytest.param(
            "local[1,4]", "PERMISSIVE", [[0, 0, None], [8, None, TEXT], [25, 2, None], [33, 3, None]]
        ),
        pytest.param(
            "local[1,4]",
            "FAILFAST",
            "journal 'log/a', record at offset 8: malformed: its parser ended the process with SIGSEGV",
            marks=pytest.mark.soak,
        ),
        # A local master attempts a task once, unless it is given a number.
        pytest.param("local[1]", "PERMISSIVE", "SparkException: Job aborted", marks=pytest.mark.soak),
    ],
)
def test_a_record_that_kills_its_worker(tmp_path: Path, master: str, mode: str, expected: object) -> None:
    """The second attempt treats it as a malformed record, according to the mode."""
    files = MemoryFiles()
    files.put("log/a", 0, b"".join(record + b"\n" for record in RECORDS))
    files.write_to(tmp_path / "store")
    (tmp_path / "mortal").mkdir()
    (tmp_path / "mortal" / "sitecustomize.py").write_text(MORTAL)
    path = os.pathsep.join([str(tmp_path / "mortal"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    subprocess.run(
        [sys.executable, quarantine_job.__file__, str(tmp_path), master, mode],
        env=os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        check=True,
        timeout=200,
        stderr=subprocess.DEVNULL,
    )
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer == expected if isinstance(expected, list) else expected in answer
