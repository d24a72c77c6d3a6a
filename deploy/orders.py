"""Stream journals of orders into a Delta table: the program that compose, Kubernetes and Databricks run.

    spark-submit orders.py --broker http://broker:8080 --path s3a://lake/orders \
        --checkpoint s3a://lake/checkpoints/orders shop/

It runs until it is stopped, which may happen at any moment: the next start goes on where the table ends.
Secrets come from the environment, because others can see a command line.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

import gazette_spark
from gazette_spark import DeadLetters, DeltaSink

SCHEMA = "id BIGINT, user STRING, amount DOUBLE, _journal STRING, _offset BIGINT, _corrupt_record STRING"
"""`verify` compares the table by `_journal` and `_offset`. Records that do not parse become dead letters."""

SECURITY = {
    "BROKER_AUTH_KEYS": "auth.keysSecret",
    "BROKER_AUTH_TOKEN_FILE": "auth.tokenFile",
    "BROKER_TRUSTED_CA_FILE": "tls.caFile",
}
"""By environment variable, the option of the source that it sets; `gazette-spark` also reads them."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line, by default that of this process."""
    parser = argparse.ArgumentParser(description="Stream journals of orders into a Delta table.")
    parser.add_argument("journals", help="journals to read: a name, or a prefix that ends in a slash")
    parser.add_argument("--broker", required=True, metavar="URL", help="address of the brokers")
    table = parser.add_mutually_exclusive_group(required=True)
    table.add_argument("--path", metavar="LOCATION", help="directory of the table")
    table.add_argument("--table", metavar="NAME", help="name of the table in the catalog")
    parser.add_argument("--checkpoint", required=True, metavar="LOCATION", help="directory of the checkpoint")
    parser.add_argument("--interval", default="10 seconds", help="time between two batches")
    parser.add_argument("--available-now", action="store_true", help="end when all that is there is read")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the query until it ends."""
    options = parse(arguments)
    spark = SparkSession.builder.appName("orders").getOrCreate()
    # A session that looked for formats before the wheel was installed does not know this one.
    gazette_spark.register(spark)
    reader = (
        spark.readStream.format("gazette")
        .option("brokerAddress", options.broker)
        .option("startingOffsets", "earliest")
        .option("format", "json")
        # After an outage the backlog is read in batches of bounded size.
        .option("maxBytesPerTrigger", "1g")
        .schema(SCHEMA)
    )
    for variable, option in SECURITY.items():
        if value := os.environ.get(variable):
            reader = reader.option(option, value)
    if options.path:
        letters = DeadLetters(path=f"{options.path}_dead_letters")
        sink = DeltaSink("orders", path=options.path, dead_letters=letters)
    else:
        letters = DeadLetters(table=f"{options.table}_dead_letters")
        sink = DeltaSink("orders", table=options.table, dead_letters=letters)
    # `resume` makes a lost checkpoint harmless.
    rows = sink.resume(reader, spark).load(options.journals)
    trigger: dict[str, Any] = {"processingTime": options.interval}
    if options.available_now:
        trigger = {"availableNow": True}
    query = sink.start(rows, checkpoint=options.checkpoint, query_name="orders", **trigger)
    query.awaitTermination()


if __name__ == "__main__":
    main()
