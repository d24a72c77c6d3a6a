"""The command ``gazette-spark-python``: a Python for Spark's workers that has PySpark compiled.

Spark puts ``pyspark.zip`` first on the path of each Python that it starts. A zip keeps no compiled modules,
so each of these processes compiles PySpark again: 0.6 seconds of CPU time, and a session's first query starts
five of them, one after the other. Where the zip comes from, the same PySpark lies in a folder, whose modules
Python compiles once. Named in ``PYSPARK_PYTHON``, this command is the Python that it is installed in, with
the folder in the zip's place.

It runs in each of these processes, so it imports nothing that Python has not loaded already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

COMMAND = "gazette-spark-python"
"""Name of the command, in the folder of the commands of a Python."""

PYSPARK_ZIP = os.path.join("", "python", "lib", "pyspark.zip")
"""How Spark's entry in ``PYTHONPATH`` ends, below ``SPARK_HOME``; one of py4j is beside it."""


def main() -> None:
    """Become this Python, with the arguments of the command."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # Python has put the folder of this command first, and the entries of PYTHONPATH next.
    os.environ["PYTHONPATH"] = os.pathsep.join(with_compiled_pyspark(entries, sys.path[1:]))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - a shell would not help


def with_compiled_pyspark(entries: Sequence[str], search_path: Sequence[str]) -> list[str]:
    """Return the entries of ``PYTHONPATH`` with a folder in place of ``pyspark.zip``.

    They stay as they are where PySpark's folder is missing, or might be of another release than the zip.

    Args:
        entries: ``PYTHONPATH``, as Spark has set it.
        search_path: ``sys.path``, where an installed PySpark is looked for.
    """
    archive = next((entry for entry in entries if entry.endswith(PYSPARK_ZIP)), None)
    if archive is None:
        return list(entries)
    home = archive.removesuffix(PYSPARK_ZIP)

    # Spark as it is downloaded: its folder `python` has the package, beside the zip of it.
    folder = os.path.join(home, "python")
    if os.path.isfile(os.path.join(folder, "pyspark", "__init__.py")):
        return [folder if entry == archive else entry for entry in entries]

    # Spark as pip installs it: SPARK_HOME itself is the package. Another PySpark, which this Python may have
    # as well, does not fit this Spark.
    library = os.path.dirname(archive)
    archives = [entry for entry in entries if os.path.dirname(entry) == library]
    installed = [entry for entry in search_path if entry not in archives]
    pyspark, py4j = (PathFinder.find_spec(name, installed) for name in ("pyspark", "py4j"))
    if pyspark and py4j and pyspark.origin and os.path.samefile(os.path.dirname(pyspark.origin), home):
        return [entry for entry in entries if entry not in archives]
    return list(entries)
