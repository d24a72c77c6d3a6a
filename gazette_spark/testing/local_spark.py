"""A small local Spark with Delta, for tests, the demo and notebooks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from gazette_spark.testing.class_archive import SHORT_RUN, find_archive

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

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings under which no code is compiled for a query: for a few rows that costs more than it saves."""

PACKAGES = frozenset(
    {"spark.jars.packages", "spark.jars", "spark.jars.ivySettings", "spark.driver.extraClassPath"}
)
"""Settings that say which jars there are; a session with one of them starts without the class archive."""


def local_spark(
    directory: Path,
    *,
    master: str = "local[2]",
    conf: dict[str, str] | None = None,
    java_options: str = SHORT_RUN,
) -> SparkSession:
    """Start a local Spark with Delta whose warehouse and scratch files stay under ``directory``.

    The Delta jar is resolved by Spark itself on the first start and cached in the user's Ivy cache. Where
    there is a class data archive (:mod:`gazette_spark.testing.class_archive`), a start takes half the time.

    Args:
        directory: Where Spark may write.
        master: Spark's master.
        conf: Settings beside, or instead of, :data:`LOCAL_CONF`.
        java_options: For the JVM; give "" where throughput is what counts.
    """
    usual = java_options == SHORT_RUN and PACKAGES.isdisjoint(conf or {})
    archive = find_archive() if usual else None
    if archive is None:
        from delta import configure_spark_with_delta_pip

        builder = session_builder(directory, master=master, conf=conf, java_options=java_options)
        return start(configure_spark_with_delta_pip(builder))
    java_options = f"{java_options} {archive.java_options}"
    with archive.on_class_path():
        return start(session_builder(directory, master=master, conf=conf, java_options=java_options))


def session_builder(
    directory: Path,
    *,
    master: str = "local[2]",
    conf: dict[str, str] | None = None,
    java_options: str = SHORT_RUN,
) -> SparkSession.Builder:
    """Return the builder of a session as :func:`local_spark` describes it, without Delta's jars."""
    # Workers are started as "python3" otherwise, which need not be this Python with its packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The JVM that puts together the command line of the JVM.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_RUN)
    builder: SparkSession.Builder = SparkSession.builder.master(master).appName("gazette_spark")
    settings = LOCAL_CONF | {
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "scratch"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory / 'derby'} {java_options}",
    }
    for key, value in (settings | (conf or {})).items():
        builder = builder.config(key, value)
    return builder


def start(builder: SparkSession.Builder) -> SparkSession:
    """Start the session, or return the one that runs, and have it log errors only."""
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
