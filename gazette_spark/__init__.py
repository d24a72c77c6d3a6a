"""Streams Gazette journals into Spark, Delta Lake and Iceberg, completely, exactly once and fast.

Import what you use from here::

    from gazette_spark import DeltaSink, backfill, local_spark

Further names are in the public packages :mod:`gazette_spark.client`, :mod:`gazette_spark.message`,
:mod:`gazette_spark.replicated_log`, :mod:`gazette_spark.consumer`, :mod:`gazette_spark.broker`,
:mod:`gazette_spark.lag`, :mod:`gazette_spark.errors` and :mod:`gazette_spark.testing`. Everything else may
change at any time; ``docs/reference/public_names.txt`` lists what is public.

Importing this package imports neither Spark nor gRPC. A name is imported when it is first used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gazette_spark import errors
from gazette_spark._exports import lazy_exports
from gazette_spark.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gazette_spark._backfill import Backfilled as Backfilled
    from gazette_spark._backfill import backfill as backfill
    from gazette_spark._delta.new_table import NewTable as NewTable
    from gazette_spark._delta.s3_log_store import s3_log_store as s3_log_store
    from gazette_spark._delta.upsert import Upsert as Upsert
    from gazette_spark._iceberg.sink import IcebergSink as IcebergSink
    from gazette_spark._ingest import ingest as ingest
    from gazette_spark._ingest import ingest_batch as ingest_batch
    from gazette_spark._ledger.dead_letters import DeadLetters as DeadLetters
    from gazette_spark._ledger.entry import LedgerEntry as LedgerEntry
    from gazette_spark._verify.verify import Report as Report
    from gazette_spark._verify.verify import verify_table as verify_table
    from gazette_spark.broker import EmbeddedBroker as EmbeddedBroker
    from gazette_spark.client import Client as Client
    from gazette_spark.errors import *  # noqa: F403 - all error classes
    from gazette_spark.flow import FlowCollection as FlowCollection
    from gazette_spark.listener import LagListener as LagListener
    from gazette_spark.listener import count_malformed as count_malformed
    from gazette_spark.offsets import JournalOffsets as JournalOffsets
    from gazette_spark.session import local_spark as local_spark
    from gazette_spark.sink import DeltaSink as DeltaSink

# PySpark starts its JVM by a fork in which Python code runs. gRPC's fork handlers run there too, and one
# child in thirty dies in them before it becomes a JVM. Our channels are not used across forks anyway.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Otherwise gRPC prints a line on stderr whenever a broker closes a connection, for example because it
# restarts.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__version__ = VERSION

_MODULES = {
    "_backfill": ("Backfilled", "backfill"),
    "_ingest": ("ingest", "ingest_batch"),
    "_verify.verify": ("Report", "verify_table"),
    "broker": ("EmbeddedBroker",),
    "client": ("Client",),
    "_ledger.dead_letters": ("DeadLetters",),
    "_ledger.entry": ("LedgerEntry",),
    "listener": ("LagListener", "count_malformed"),
    "offsets": ("JournalOffsets",),
    "session": ("local_spark",),
    "sink": ("DeltaSink",),
    "_iceberg.sink": ("IcebergSink",),
    "_delta.new_table": ("NewTable",),
    "_delta.s3_log_store": ("s3_log_store",),
    "_delta.upsert": ("Upsert",),
    "flow": ("FlowCollection",),
}
"""Names that are imported when they are first used, by module. All error classes are exported as well."""

_load, _, _names = lazy_exports(__name__, _MODULES)

_ERRORS = {
    name: value
    for name, value in vars(errors).items()
    if not name.startswith("_") and getattr(value, "__module__", "") == errors.__name__
}

__all__ = ["__version__", "gaps", "register", *_names, *_ERRORS]  # noqa: PLE0604 - all are strings


def __getattr__(name: str) -> object:
    return _ERRORS[name] if name in _ERRORS else _load(name)


def __dir__() -> list[str]:
    return __all__


def register(spark: SparkSession) -> None:
    """Register the formats ``gazette``, ``gazette_delta`` and ``gazette_iceberg`` with ``spark``.

    This is not needed if the package is installed in the driver's Python, because PySpark then finds the
    formats itself. It is needed if Spark has searched for formats before the package was installed, as in a
    notebook that installs it.
    """
    from gazette_spark.errors import MissingPackageError

    try:
        from gazette_spark._delta.session import register_sources
        from gazette_spark._delta_format import DeltaFormat
        from gazette_spark._iceberg_format import IcebergFormat
        from gazette_spark.source import GazetteDataSource
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "pyspark":
            raise
        raise MissingPackageError("Spark is not installed") from None

    register_sources(spark, GazetteDataSource, DeltaFormat, IcebergFormat)


def gaps(spark: SparkSession, path: str | None = None, **options: str) -> DataFrame:
    """Return the bytes of journals that no fragment has any more, so that a query cannot read them.

    This also works on Spark Connect. ``gaps(spark, "shop/", brokerAddress=…)`` is
    ``spark.read.format("gazette").option("readGaps", "true")`` with these options.

    Args:
        spark: The session.
        path: A journal, or a prefix that ends in ``/``; None if an option selects the journals.
        options: Options of a batch query, such as ``startingOffsets``.

    Returns:
        Columns ``journal string, begin bigint, end bigint, bytes bigint``: a row for each gap.
    """
    return spark.read.format("gazette").options(readGaps="true", **options).load(path)
