"""Gazette journals in Spark and Delta Lake: complete, once, fast.

The front door of the package. Loading it loads neither Spark nor gRPC:

- :func:`register` registers the format ``gazette`` with a Spark session;
- :func:`gaps` lists the bytes of journals that are gone, as a DataFrame;
- :class:`gazette_spark.offsets.JournalOffsets` is a query's position;
- :class:`gazette_spark.sink.DeltaSink` writes a stream into a Delta table exactly once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gazette_spark.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# PySpark starts its JVM by a fork in which Python code runs. gRPC's fork handlers run there too, and one
# child in thirty dies of them before it becomes a JVM. Our channels are not used across forks anyway.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__all__ = ["__version__", "gaps", "register"]

__version__ = VERSION


def register(spark: SparkSession) -> None:
    """Tell ``spark`` about the format ``gazette``.

    Not needed where the package is installed in the Python of the driver: PySpark finds the format
    itself. It is needed where Spark has looked for formats before the package was installed, as in a
    notebook that installs it.
    """
    from gazette_spark.errors import MissingPackageError

    try:
        from gazette_spark.source import GazetteDataSource
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "pyspark":
            raise
        raise MissingPackageError("Spark is not installed") from None

    spark.dataSource.register(GazetteDataSource)


def gaps(spark: SparkSession, path: str | None = None, **options: str) -> DataFrame:
    """Return the bytes of journals that no fragment has any more: a query of the range cannot read them.

    On Spark Connect, too. ``gaps(spark, "shop/", brokerAddress=…)`` is
    ``spark.read.format("gazette").option("readGaps", "true")`` with these options.

    Args:
        spark: The session.
        path: A journal, or a prefix that ends in ``/``; None where an option selects the journals.
        options: Options of a batch query, such as ``startingOffsets``.

    Returns:
        Columns ``journal string, begin bigint, end bigint, bytes bigint``: a row for each gap.
    """
    return spark.read.format("gazette").options(readGaps="true", **options).load(path)
