"""Runs the query that the demo kills: ``python query.py DIRECTORY BROKER FRAGMENT_ROOT JOURNAL...``.

A user's program looks like this: a session, ``readStream``, ``DeltaSink``. It runs until the file
``DIRECTORY/finish`` appears. Then it stops the query and writes the table's ids and amounts to a file for the
proof.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyarrow import feather
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

import gazette_spark
from gazette_spark.demo.events import SCHEMA
from gazette_spark.demo.run import APP_ID, MAX_BYTES_PER_TRIGGER
from gazette_spark.session import local_spark
from gazette_spark.sink import DeltaSink


def main(directory: Path, broker: str, fragment_root: str, journals: list[str]) -> None:
    """Run the query until the demo requests its end, or until the demo itself has ended."""
    # Store the parent now, because this process gets another one when the demo dies.
    demo = os.getppid()
    spark = local_spark(directory / "spark")
    gazette_spark.register(spark)
    reader = (
        spark.readStream.format("gazette")
        .option("brokerAddress", broker)
        .option("journals", ",".join(journals))
        .option("format", "json")
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", MAX_BYTES_PER_TRIGGER)
        .schema(SCHEMA)
    )
    if fragment_root:
        reader = reader.option("fragmentRoot", fragment_root)
    sink = DeltaSink(APP_ID, path=str(directory / "table"))
    query = sink.start(reader.load(), checkpoint=str(directory / "checkpoint"))
    while not (directory / "finish").exists():
        query.awaitTermination(1)  # Raises the error that ended the query.
        if not query.isActive:
            raise SystemExit("the query ended by itself")
        if os.getppid() != demo:
            os._exit(1)  # The demo was killed, so nothing else would end this process.
    query.stop()
    # Use whole cents, because sums and comparisons of doubles are not exact.
    cents = F.round(F.col("amount") * 100).cast("long")
    table = spark.read.format("delta").load(str(directory / "table"))
    # With a null, NumPy would convert the column to floats, which lose digits of the ids.
    rows = table.select(F.coalesce("id", F.lit(-1)).alias("id"), F.coalesce(cents, F.lit(-1)).alias("cents"))
    feather.write_feather(rows.toArrow(), str(directory / "rows.arrow"))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
