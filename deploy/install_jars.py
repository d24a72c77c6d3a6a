"""Put the jars of Maven packages, which are the arguments, beside Spark's own, but not those that Spark has.

Spark resolves the packages as it does for `--packages`, once while an image is built and not at each start.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory


def artifact(jar: Path) -> str:
    """Return a jar's name without its version: `jackson-core` of `jackson-core-2.13.5.jar`."""
    return re.sub(r"-\d[\w.]*(-\w+)?\.jar$", "", jar.name)


def missing(resolved: Iterable[Path], bundled: Iterable[Path]) -> list[Path]:
    """Return the resolved jars whose artifact, of whatever version, is not among Spark's."""
    artifacts = {artifact(jar) for jar in bundled}
    # Ivy puts the organisation before the name: com.fasterxml.jackson.core_jackson-core-2.13.5.jar.
    return [jar for jar in resolved if artifact(jar.with_name(jar.name.partition("_")[2])) not in artifacts]


def main() -> None:
    """Resolve the packages, and copy their jars."""
    import pyspark
    from pyspark.sql import SparkSession

    jars = Path(pyspark.__path__[0], "jars")
    with TemporaryDirectory() as ivy:
        builder = SparkSession.builder.config("spark.jars.packages", ",".join(sys.argv[1:]))
        builder.config("spark.jars.ivy", ivy).getOrCreate().stop()
        for jar in missing(sorted(Path(ivy, "jars").glob("*.jar")), jars.glob("*.jar")):
            shutil.copy(jar, jars)


if __name__ == "__main__":
    main()
