"""A Python for Spark's workers that starts three times as fast, with PySpark from site-packages.

Spark puts ``pyspark.zip`` first on the path of each Python it starts. A zip stores no compiled modules, so
each of these processes compiles PySpark again: 0.8 s of CPU time in place of 0.3 s. Each ``load`` of a data
source starts two or three of them. The installation that the zip comes from has the same modules, compiled.

It does for a source tree without installation what the command ``gazette-spark-python`` does for users.
"""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

SCRIPT = """#!/bin/sh
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        */pyspark.zip | */py4j-*-src.zip) ;;
        *) kept=$kept${{kept:+:}}$entry ;;
    esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def write_worker_python(directory: Path) -> Path:
    """Write a script for ``PYSPARK_PYTHON`` that replaces this Python."""
    script = directory / "worker-python"
    script.write_text(SCRIPT.format(python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    return script


def link_pyspark(directory: Path) -> Path:
    """Create a folder with only the compiled PySpark of this Python's packages."""
    directory.mkdir()
    for package in ("pyspark", "py4j"):
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        (directory / package).symlink_to(Path(spec.origin).parent)
    return directory
