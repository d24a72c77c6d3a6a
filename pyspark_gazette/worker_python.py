"""Implements ``gazette-spark-python``, a Python for Spark's workers in which PySpark is already compiled.

Spark puts ``pyspark.zip`` first on the path of each Python that it starts. A zip has no compiled modules, so
each of these processes compiles PySpark again, which takes 0.6 seconds of CPU time. A session's first query
starts five of them, one after the other. Beside the zip, the same PySpark is in a folder, whose modules
Python compiles only once. If ``PYSPARK_PYTHON`` names this command, it runs the Python in which it is
installed, with the folder instead of the zip.

It runs in each of these processes, so it only imports modules that Python has already loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

COMMAND = "gazette-spark-python"
"""Name of the command in a Python's folder of scripts."""

PYSPARK_ZIP = os.path.join("", "python", "lib", "pyspark.zip")
"""End of Spark's entry in ``PYTHONPATH``, below ``SPARK_HOME``. An archive of py4j is in the same folder."""


def main() -> None:
    """Replace this process by this Python, with the arguments of the command."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # Python has put the folder of this command first, and the entries of PYTHONPATH next.
    os.environ["PYTHONPATH"] = os.pathsep.join(with_compiled_pyspark(entries, sys.path[1:]))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - a shell would not help


def with_compiled_pyspark(entries: Sequence[str], search_path: Sequence[str]) -> list[str]:
    """Return the entries of ``PYTHONPATH`` with a folder instead of ``pyspark.zip``.

    They are unchanged if PySpark's folder is missing, or might be of another release than the zip.

    Args:
        entries: ``PYTHONPATH``, as Spark has set it.
        search_path: ``sys.path``, to find an installed PySpark.
    """
    archive = next((entry for entry in entries if entry.endswith(PYSPARK_ZIP)), None)
    if archive is None:
        return list(entries)
    home = archive.removesuffix(PYSPARK_ZIP)

    # A downloaded Spark has the package, and the zip, in its folder `python`.
    folder = os.path.join(home, "python")
    if os.path.isfile(os.path.join(folder, "pyspark", "__init__.py")):
        return [folder if entry == archive else entry for entry in entries]

    # With Spark from pip, SPARK_HOME itself is the package. Another PySpark in this Python may not fit this
    # Spark.
    library = os.path.dirname(archive)
    archives = [entry for entry in entries if os.path.dirname(entry) == library]
    installed = [entry for entry in search_path if entry not in archives]
    pyspark, py4j = (PathFinder.find_spec(name, installed) for name in ("pyspark", "py4j"))
    if pyspark and py4j and pyspark.origin and os.path.samefile(os.path.dirname(pyspark.origin), home):
        return [entry for entry in entries if entry not in archives]
    return list(entries)
