"""A small local Spark with Delta, for tests, the demo and notebooks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Small Delta logs are read in seconds instead of tenths with the default of 50.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    "spark.ui.showConsoleProgress": "false",
}
"""What a laptop or a CI machine wants; a cluster brings its own."""

SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options of a session that lives for minutes: without the optimizing compiler Spark's start and
its first Delta commits take half the time on two cores."""


def local_spark(
    directory: Path,
    *,
    master: str = "local[2]",
    conf: dict[str, str] | None = None,
    java_options: str = SHORT_RUN,
) -> SparkSession:
    """Start a local Spark with Delta whose warehouse and scratch files stay under ``directory``.

    The Delta jar is resolved by Spark itself on the first start and cached in the user's Ivy cache.

    Args:
        directory: Where Spark may write.
        master: Spark's master.
        conf: Settings beside, or instead of, :data:`LOCAL_CONF`.
        java_options: For the JVM; give "" where throughput is what counts.
    """
    from delta import configure_spark_with_delta_pip

    # Workers are started as "python3" otherwise, which need not be this Python with its packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("gazette_spark")
    settings = LOCAL_CONF | {
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "scratch"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory / 'derby'} {java_options}",
    }
    for key, value in (settings | (conf or {})).items():
        builder = builder.config(key, value)
    session: SparkSession = configure_spark_with_delta_pip(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
