"""Starts a small local Spark with Delta, for the demo, notebooks and tests."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from gazette_spark._delta.s3_log_store import JAR, s3_log_store
from gazette_spark.errors import MissingPackageError
from gazette_spark.spark_start import starting_spark
from pyspark_gazette.worker_python import COMMAND

CLASS_PATH_VARIABLE = "SPARK_DIST_CLASSPATH"
"""Environment variable with jars that Spark's launcher appends to the class path."""

COMPILED_BRIEFLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options of a JVM that lives for seconds. Without the optimizing compiler, it needs half the time."""

SHORT_RUN = f"{COMPILED_BRIEFLY} -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m -XX:NewSize=256m"
"""Java options of a JVM that lives for minutes. Without the optimizing compiler, Spark's start and its first
Delta commits take half the time on two cores. The default code cache is then too small for Spark: after some
minutes, sweeping it and compiling evicted code again takes a fifth of the CPU. With the default sizes of
metaspace and new generation, collecting garbage takes another twelfth."""

LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # With the default of 50, reading a small Delta log takes seconds instead of tenths of a second.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings for a laptop or a CI machine; a cluster has its own settings."""

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings that turn off code generation, which costs more than it saves for a few rows."""


def local_spark(
    directory: str | Path,
    *,
    master: str = "local[2]",
    conf: dict[str, str] | None = None,
    java_options: str = SHORT_RUN,
    log: str | Path | None = None,
) -> SparkSession:
    """Start a local Spark with Delta, whose warehouse and scratch files are under ``directory``.

    Spark resolves Delta's jars on the first start and caches them in the user's Ivy cache, unless the class
    path of ``SPARK_DIST_CLASSPATH`` names them. Tables on ``s3a://`` may be written
    by several drivers (:func:`~gazette_spark.s3_log_store`); Spark's client of S3 is not included.

    Args:
        directory: Directory for the warehouse and the scratch files.
        master: Spark's master.
        conf: Settings that are added to :data:`LOCAL_CONF`, or replace some of them.
        java_options: Options of the JVM. The default ones suit short runs; pass "" where throughput matters.
        log: File for what the JVM writes to stderr, such as 80 lines about Delta's jars. Then one line on
            stderr says that Spark is starting, and names the file; so does the error if Spark does not start.
            By default, the JVM writes to this program's stderr.
    """
    builder = session_builder(Path(directory), master=master, conf=conf, java_options=java_options)
    if not delta_is_on_class_path():
        try:
            from delta import configure_spark_with_delta_pip
        except ImportError:
            raise MissingPackageError("a local session with Delta needs the package delta-spark") from None
        builder = configure_spark_with_delta_pip(builder)
    if log is None:
        return start(builder)
    if SparkSession.getActiveSession() is None:
        # On a busy machine, the JVM takes minutes to start, without any other sign of progress.
        sys.stderr.write(f"{starting_spark()}. Its log is in {log}\n")
        sys.stderr.flush()
    with children_log_to(Path(log)):
        return start(builder)


@contextmanager
def children_log_to(log: Path) -> Iterator[None]:
    """Redirect the stderr of processes that start inside the block to a file, until they end.

    The output of this process, such as a progress bar, is not redirected.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # The JVM inherits file descriptor 2 and keeps it, so replacing sys.stderr would have no effect on it. The
    # descriptor is restored when the JVM has started.
    own = sys.stderr
    with os.fdopen(os.dup(2), "w", buffering=1) as stderr:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        # If the program has replaced sys.stderr, as pytest does, leave it unchanged.
        if own is sys.__stderr__:
            sys.stderr = stderr
        try:
            yield
        except Exception as error:
            error.add_note(f"The JVM's output is in {log}")
            raise
        finally:
            os.dup2(stderr.fileno(), 2)
            sys.stderr = own


def delta_is_on_class_path(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``SPARK_DIST_CLASSPATH`` has a jar of Delta."""
    jars = environ.get(CLASS_PATH_VARIABLE, "").split(os.pathsep)
    return any("delta-spark_" in Path(jar).name for jar in jars)


def session_builder(
    directory: Path,
    *,
    master: str = "local[2]",
    conf: dict[str, str] | None = None,
    java_options: str = SHORT_RUN,
) -> SparkSession.Builder:
    """Return the builder of a session for :func:`local_spark`, without Delta's jars."""
    # Otherwise Spark starts workers with "python3", which may be another Python without our packages.
    os.environ.setdefault("PYSPARK_PYTHON", worker_python())
    # Options of the short-lived JVM that assembles the command line of the main one.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", COMPILED_BRIEFLY)
    builder: SparkSession.Builder = SparkSession.builder.master(master).appName("gazette_spark")
    settings = LOCAL_CONF | {
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "scratch"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory / 'derby'} {java_options}",
    }
    # The jar is missing after an installation from source without a JDK. Then the sink refuses tables on
    # s3a://, and all others work.
    if JAR.exists():
        settings |= s3_log_store()
    for key, value in (settings | (conf or {})).items():
        builder = builder.config(key, value)
    return builder


def worker_python() -> str:
    """Return the value of ``PYSPARK_PYTHON`` with which Spark's workers run the Python of this process.

    It is the command ``gazette-spark-python``, which saves each worker from compiling PySpark. If the command
    is not installed, it is the Python itself.
    """
    command = Path(sysconfig.get_path("scripts"), COMMAND)
    return str(command) if command.exists() else sys.executable


def start(builder: SparkSession.Builder) -> SparkSession:
    """Start the session, or return the running one, and make it log only errors."""
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
