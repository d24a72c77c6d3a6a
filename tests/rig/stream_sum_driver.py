"""A driver of stream-sum's host on Spark: starts a session, reports it, takes over, and runs until killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from gazette_spark import local_spark
from gazette_spark.consumer import ShardServer, SparkHost
from gazette_spark.consumer.examples.stream_sum import StreamSum
from gazette_spark.consumer.shard_yaml import parse_shard_yaml
from gazette_spark.session import INTERPRETED

READY = "ready"
"""First line that the driver prints."""


def main(root: Path, endpoint: str, specs: Path) -> None:
    """Run the shards of a file, with their state in ``root``, and print the address of their service."""
    own = root / f"driver-{os.getpid()}"
    spark = local_spark(own / "spark", conf=INTERPRETED, log=own / "log")
    # A session's first jobs take longest; meanwhile, the driver before this one runs.
    spark.range(2).mapInArrow(lambda batches: batches, "id BIGINT").write.format("delta").save(
        str(own / "warm")
    )
    click.echo(READY)
    host = SparkHost(
        StreamSum(),
        spark,
        [change.upsert for change in parse_shard_yaml(specs.read_text())],
        checkpoint=str(own / "checkpoint"),
        state=str(root / "state"),
        broker={"brokerAddress": endpoint},
    )
    with ShardServer() as server:
        server.start(host.shards)
        query = host.start(processingTime="200 milliseconds")
        click.echo(server.endpoint)
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
