"""The driver that kill tests kill: one query from journals into a table, described by a JSON file.

It gets everything ready, then waits for a file to appear, so that the slow part of a driver's life can
be over before its turn has come.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from gazette_spark import register
from gazette_spark.sink import DeltaSink
from gazette_spark.table.delta_table import DeltaTable
from gazette_spark.testing.class_archive import CLASS_PATH_VARIABLE
from gazette_spark.testing.local_spark import local_spark

GO_TIMEOUT_S = 600.0
"""Longest a driver waits for its turn; the one before it runs for less than a minute."""


def wake_delta(spark: SparkSession, directory: Path) -> None:
    """Write, read and describe a table of no importance: a JVM's first Delta commit takes ten seconds."""
    target = DeltaTable(path=str(directory), table=None)
    spark.range(1).write.format("delta").mode("overwrite").save(str(directory))
    target.history(spark, 1)
    target.check(spark, "/nowhere")


def read_journals(spark: SparkSession, settings: dict[str, str]) -> DataFrame:
    """Return the journals as a stream."""
    return (
        spark.readStream.format("gazette")
        .option("brokerAddress", settings["endpoint"])
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", settings["max_bytes"])
        .load(settings["journals"])
    )


def await_go(path: Path) -> None:
    """Wait for the file that says it is this driver's turn; a driver whose parent is gone ends here."""
    deadline = time.monotonic() + GO_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear within {GO_TIMEOUT_S:g} s")
        time.sleep(0.02)


def main(settings: dict[str, str]) -> None:
    """Run until killed, or to the journals' present ends."""
    conf = {
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "gazette_spark.testing.KillAtRename",
        "spark.sql.streaming.minBatchesToRetain": "5",
    }
    # Behind all other jars, for the class data archive allows for more of them there only.
    os.environ[CLASS_PATH_VARIABLE] = settings["classes"]
    spark = local_spark(Path(settings["scratch"]), conf=conf)
    register(spark)
    rows = read_journals(spark, settings)
    wake_delta(spark, Path(settings["scratch"]) / "woken")
    await_go(Path(settings["go"]))
    sink = DeltaSink(settings["app_id"], path=settings["table"])
    trigger = {"availableNow": True} if settings["until"] == "end" else {"processingTime": "0 seconds"}
    sink.start(rows, checkpoint=settings["checkpoint"], **trigger).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
