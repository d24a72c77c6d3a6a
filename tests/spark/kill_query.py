"""The driver that kill tests kill: one query from journals into a table, described by a JSON file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gazette_spark import register
from gazette_spark.sink import DeltaSink
from gazette_spark.testing.local_spark import local_spark

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""This JVM lives for seconds: what it saves at start counts, what it would gain later does not."""


def main(settings: dict[str, str]) -> None:
    """Run until killed, or to the journals' present ends."""
    conf = {"spark.driver.extraJavaOptions": QUICK_START, "spark.sql.streaming.minBatchesToRetain": "5"}
    if classes := settings.get("classes"):
        conf["spark.driver.extraClassPath"] = classes
        conf["spark.hadoop.fs.AbstractFileSystem.file.impl"] = "gazette_spark.testing.KillAtRename"
    spark = local_spark(Path(settings["scratch"]), conf=conf)
    register(spark)
    rows = (
        spark.readStream.format("gazette")
        .option("brokerAddress", settings["endpoint"])
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", settings["max_bytes"])
        .load(settings["journals"])
    )
    sink = DeltaSink(settings["app_id"], path=settings["table"])
    trigger = {"availableNow": True} if settings["until"] == "end" else {"processingTime": "0 seconds"}
    query = sink.start(rows, checkpoint=settings["checkpoint"], **trigger)
    sys.stdout.write("query started\n")
    sys.stdout.flush()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
