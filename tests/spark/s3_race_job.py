"""One of several drivers that compete for the same versions of Delta tables in a bucket.

It runs as a script like :mod:`tests.spark.s3_job`. Its arguments are the server's endpoint, a directory, the
start time of the race, the driver's name, and the class of the log store. It writes its results as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark import DeltaSink, JournalOffsets
from tests.rig.versitygw import BUCKET, enter
from tests.spark.s3_job import start_spark

VERSIONS = 60
EVERY_S = 0.25
"""Seconds between two versions that the drivers compete for."""
BATCHES = 12
"""Number of batches that each driver writes through a sink."""
TABLE = f"s3a://{BUCKET}/raced"
COLUMNS = "driver STRING, number BIGINT"


def race_for_versions(spark: SparkSession, log_store: str, start: float, driver: str) -> list[int]:
    """Create log files at the same moments as the other drivers; return those that this driver created."""
    java: Any = spark._jvm
    conf = spark._jsc.hadoopConfiguration()
    store = java
    for part in log_store.split("."):
        store = getattr(store, part)
    store = store(conf)
    won = []
    for version in range(VERSIONS):
        line = java.java.util.Collections.singletonList(json.dumps({"driver": driver}))
        path = java.org.apache.hadoop.fs.Path(f"s3a://{BUCKET}/log/{version:020d}.json")
        time.sleep(max(0.0, start + version * EVERY_S - time.time()))
        try:
            store.write(path, line.iterator(), False, conf)
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" not in str(error.java_exception):
                raise
        else:
            won.append(version)
    return won


def write_batches(spark: SparkSession, driver: str) -> None:
    sink = DeltaSink(driver, path=TABLE)
    for number in range(BATCHES):
        rows = spark.range(1).select(
            F.lit(driver).alias("driver"), F.lit(number).cast("long").alias("number")
        )
        begin, end = (JournalOffsets({f"race/{driver}": at}) for at in (number, number + 1))
        assert sink.write_batch(rows, begin, end)


def main(endpoint: str, root: str, start: str, driver: str, log_store: str) -> dict[str, Any]:
    enter(endpoint)
    spark = start_spark(Path(root), endpoint)
    spark.read.text(f"s3a://{BUCKET}/").limit(0).collect()  # Loads the S3 client before the race.
    won = race_for_versions(spark, log_store, float(start), driver)
    write_batches(spark, driver)
    rows = [list(row) for row in spark.read.format("delta").load(TABLE).collect()]
    spark.stop()
    return {"won": won, "rows": rows}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201 - a program's result
