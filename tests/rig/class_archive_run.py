"""The run of a JVM whose classes go into the archive: a stream from a journal into a Delta table.

``python -m tests.rig.class_archive_run DIRECTORY --jars FILE`` writes Delta's jars, as Spark resolved them;
``… --archive FILE JAR…`` makes the JVM write the archive when it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from gazette_spark import Client, DeltaSink, EmbeddedBroker
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.s3_log_store import JAR
from gazette_spark.client import journal_spec
from gazette_spark.session import CLASS_PATH_VARIABLE, SHORT_RUN, session_builder, start

JOURNAL = "class/archive"

JVM_END_TIMEOUT_S = 400
"""Maximum seconds until the JVM ends, including the time to write the archive."""


def write_a_table(spark: SparkSession, directory: Path) -> None:
    """Stream two batches, with an error in between, and read the table."""
    with EmbeddedBroker(directory / "broker") as broker, Client(broker.endpoint) as client:
        client.create_journals(journal_spec(JOURNAL))
        reader = spark.readStream.format("gazette").option("brokerAddress", broker.endpoint)
        rows = reader.option("startingOffsets", "earliest").load(JOURNAL)
        sink = DeltaSink("archive", path=str(directory / "table"))
        for number in range(2):
            client.append(JOURNAL, b"record %d\n" % number)
            checkpoint = str(directory / "checkpoint")
            sink.start(rows, checkpoint=checkpoint, lane="spark", availableNow=True).awaitTermination()
    table = DeltaTable(path=str(directory / "table"), table=None)
    table.history(spark, 1)
    table.check(spark, "/nowhere")
    spark.read.format("delta").load(str(directory / "table")).orderBy("offset").toArrow()


def main(directory: Path, what: str, file: str, jars: list[str]) -> None:
    if what == "--jars":
        spark = start(configure_spark_with_delta_pip(session_builder(directory)))
        # The session's setting names only the jar of the log store. The jars that Spark's launcher resolved
        # are in a property of the JVM. The log store is in the source tree, so it would make the archive
        # stale.
        jvm: Any = spark.sparkContext._jvm
        resolved: str = jvm.java.lang.System.getProperty("spark.jars")
        jars = [jar for jar in resolved.split(",") if not jar.endswith(JAR.name)]
        Path(file).write_text(json.dumps(jars))
    else:
        options = f"{SHORT_RUN} -XX:ArchiveClassesAtExit={file}"
        os.environ[CLASS_PATH_VARIABLE] = os.pathsep.join(jars)
        spark = start(session_builder(directory, java_options=options))
        write_a_table(spark, directory)
    stop(spark)


def stop(spark: SparkSession) -> None:
    """Stop Spark and wait for the JVM, which PySpark does not do: the JVM writes the archive at its end."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin is not None
    process.stdin.close()  # The JVM ends when its standard input closes.
    process.wait(JVM_END_TIMEOUT_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
