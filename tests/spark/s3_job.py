"""Tables, dead letters and checkpoints in a bucket of a real S3 server, under a name that URLs escape.

It runs as a script because Spark's S3 client is a jar of 700 MB that no other test needs. Its arguments are
the server's endpoint, a directory, and the name. It writes its results as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from gazette_spark import Client, DeadLetters, DeltaSink, EmbeddedBroker, ingest, verify_table
from gazette_spark._delta.sql_names import table_at
from gazette_spark.cli.main import main
from gazette_spark.client import journal_spec
from gazette_spark.lag import (
    Evaluator,
    History,
    HistoryOptions,
    Monitor,
    TableFeed,
    Thresholds,
)
from gazette_spark.session import session_builder
from tests.rig.versitygw import BUCKET, HADOOP_AWS, enter, spark_settings

COLUMNS = "id BIGINT, text STRING, _journal STRING, _offset BIGINT"
SCHEMA = f"{COLUMNS}, _record BINARY, _corrupt_record STRING"
TIMEOUT_S = 300


def start_spark(root: Path, endpoint: str) -> SparkSession:
    builder = session_builder(root / "spark", conf=spark_settings(endpoint))
    return configure_spark_with_delta_pip(builder, extra_packages=[HADOOP_AWS]).getOrCreate()


def observe(endpoint: str, root: Path, name: str) -> dict[str, Any]:
    enter(endpoint)
    lake = f"s3a://{BUCKET}/{name}"
    table, dead, checkpoint = f"{lake}/{name}", f"{lake}/dead {name}", f"{lake}/checkpoint {name}"
    seen: dict[str, Any] = {}
    with EmbeddedBroker.start(root / "broker") as broker, Client(broker.endpoint) as client:
        client.create_journals(journal_spec("events", labels={"content-type": "application/x-ndjson"}))
        spark = start_spark(root, endpoint)
        options = {"brokerAddress": broker.endpoint, "journals": "events", "format": "json"}
        reader = spark.readStream.format("gazette").options(**options).option("startingOffsets", "earliest")
        reader = reader.schema(SCHEMA)
        spark.sql(f"CREATE TABLE {table_at(table)} ({COLUMNS}) USING delta")

        def rows(location: str) -> list[Any]:
            return sorted(spark.read.format("delta").load(location).collect())

        # Spark's lane: the second record does not parse; then the query runs without its checkpoint.
        sink = DeltaSink("events", path=table, dead_letters=DeadLetters(path=dead))
        client.append("events", b'{"id": 1, "text": "a"}\nnot JSON\n')
        query = sink.start(reader.load(), checkpoint=checkpoint, availableNow=True)
        assert query.awaitTermination(TIMEOUT_S)
        client.append("events", b'{"id": 2, "text": "b"}\n')
        query = sink.start(
            sink.resume(reader, spark).load(), checkpoint=f"{checkpoint} again", availableNow=True
        )
        assert query.awaitTermination(TIMEOUT_S)
        seen["dead letters"] = [[row.offset, bytes(row.raw).decode()] for row in rows(dead)]

        # The direct lane continues the same table, with its checkpoint in the bucket.
        client.append("events", b'{"id": 3, "text": "c"}\n')
        direct = DeltaSink("events", path=table)
        narrow = spark.readStream.format("gazette").options(**options).schema(COLUMNS)
        query = ingest(
            direct.resume(narrow, spark), direct, checkpoint=f"{checkpoint} direct", availableNow=True
        )
        assert query.awaitTermination(TIMEOUT_S)
        seen["rows"] = [[row.id, row.text] for row in rows(table)]

        # Readers of the table and the checkpoints.
        entry = direct.ledger(spark)
        assert entry is not None
        seen["read through"] = dict(entry.read_through)
        seen["commits"] = [commit.order for commit in direct.commits(spark)]
        for location in (table, table.replace("s3a:", "s3:")):
            shown = CliRunner().invoke(main, ["offsets", "show", location, "--format", "json"])
            seen[f"offsets of {location[:3]}"] = [
                line["batch_id"] for line in json.loads(shown.stdout or shown.output)
            ]
        found = verify_table(spark, sink.table, client, {"brokerAddress": broker.endpoint})
        seen["verify"] = found.result
        history = History(HistoryOptions())
        monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
        TableFeed(table, "table").poll(monitor, 10**12)
        seen["lag"] = monitor.last_order("table")
        seen["entry"] = [entry.batch_id, direct.commits(spark)[-1].order]
        spark.stop()
    return seen


if __name__ == "__main__":
    print(json.dumps(observe(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))  # noqa: T201 - a program's result
