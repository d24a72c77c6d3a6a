"""The query that gets killed: ``python -m gazette_spark.demo.query SETTINGS.json``.

It runs until its stdin says "finish" (then it stops the query and writes a summary of the table) or
is closed (the demo itself has died: then it ends at once). This file also shows the form of a user's program:
a session, ``readStream``, ``DeltaSink``.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

import gazette_spark
from gazette_spark.demo.events import SCHEMA
from gazette_spark.demo.settings import APP_ID, Settings
from gazette_spark.session import local_spark
from gazette_spark.sink import DeltaSink


def read_events(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the journals as a stream of typed rows."""
    reader = (
        spark.readStream.format("gazette")
        .option("brokerAddress", settings.endpoint)
        .option("journals", ",".join(settings.journals))
        .option("format", "json")
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", settings.max_bytes_per_trigger)
        .schema(SCHEMA)
    )
    if settings.fragment_root:
        reader = reader.option("fragmentRoot", settings.fragment_root)
    return reader.load()


def write_result(spark: SparkSession, settings: Settings, sink: DeltaSink) -> None:
    """Write the table's rows, as the proof compares them, and the ledger."""
    rows = (
        spark.read.format("delta")
        .load(str(settings.table))
        .select(
            F.coalesce("id", F.lit(-1)).alias("id"),
            F.coalesce(F.round(F.col("amount") * 100).cast("long"), F.lit(-1)).alias("cents"),
        )
        .toArrow()
    )
    with pa.OSFile(str(settings.rows), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    entry = sink.ledger()
    settings.ledger.write_text(entry.to_json() if entry else "{}")


def obey_stdin(finish: threading.Event) -> None:
    """Set ``finish`` when the demo says so; end this process at once when the demo is gone."""
    if sys.stdin.readline().strip() == "finish":
        finish.set()
    else:
        os._exit(1)


def main(settings: Settings) -> None:
    """Run the query until stdin says "finish"."""
    finish = threading.Event()
    threading.Thread(target=obey_stdin, args=(finish,), daemon=True).start()
    spark = local_spark(Path(settings.directory) / "spark")
    gazette_spark.register(spark)
    sink = DeltaSink(APP_ID, path=str(settings.table))
    query = sink.start(read_events(spark, settings), checkpoint=str(settings.checkpoint))
    while not finish.is_set():
        query.awaitTermination(1)  # Raises what ended the query.
        if not query.isActive:
            raise SystemExit("the query ended by itself")
    query.stop()
    write_result(spark, settings, sink)
    spark.stop()


if __name__ == "__main__":
    main(Settings.load(Path(sys.argv[1])))
