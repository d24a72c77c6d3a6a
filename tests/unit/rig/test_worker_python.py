"""The script runs Spark's workers with this Python, and removes the zips that Spark adds to its path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.rig.worker_python import link_pyspark, write_worker_python

SHOW = "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], *sys.argv[1:], sep='\\n')"


def test_only_the_zips_of_spark_are_taken_off_the_path(tmp_path: Path) -> None:
    script = write_worker_python(tmp_path)
    path = ["/spark/python/lib/pyspark.zip", "/sent/along.zip", "/spark/python/lib/py4j-0.1-src.zip", "/mine"]
    done = subprocess.run(
        [script, "-c", SHOW, "a b"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [sys.prefix, "/sent/along.zip:/mine", "a b"]


def test_a_folder_has_pyspark_and_nothing_else(tmp_path: Path) -> None:
    """A Python that searches the folder gets no other package of this environment."""
    linked = link_pyspark(tmp_path / "pyspark")
    assert sorted(path.name for path in linked.iterdir()) == ["py4j", "pyspark"]
