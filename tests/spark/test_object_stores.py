"""A table, its dead letters and its checkpoints in a bucket of a real S3 server, under an odd name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.versitygw import running_versitygw
from tests.spark.test_names import ODD

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_part_finds_a_table_in_a_bucket(tmp_path: Path) -> None:
    """Both lanes, dead letters, ``resume``, ``offsets show``, ``verify`` and lag, as on a disk."""
    with running_versitygw(tmp_path / "buckets") as endpoint:
        command = [sys.executable, "-m", "tests.spark.s3_job", endpoint, str(tmp_path), ODD]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1700, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["rows"] == [[1, "a"], [2, "b"], [3, "c"]]
    assert seen["dead letters"] == [[23, "not JSON"]]
    assert seen["read through"] == {"events": 78}
    newest_batch, newest_version = seen["entry"]
    assert seen["offsets of s3a"] == seen["offsets of s3:"] == [newest_batch]
    assert seen["verify"] == "verified"
    assert seen["lag"] == newest_version
