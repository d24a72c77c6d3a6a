"""A driver with two executors in separate JVMs, which reads journals on request.

A line of standard input is a JSON object of the source's options; the answer is a line of JSON: the rows'
offsets and values, or the error's text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gazette_spark import local_spark, register

CONF = {"spark.executor.memory": "512m"}


def answer(spark: SparkSession, options: dict[str, str]) -> dict[str, object]:
    try:
        rows = spark.read.format("gazette").options(**options).load().collect()
    except PySparkException as error:
        return {"error": str(error)}
    return {"rows": [(row.offset, bytes(row.value).decode()) for row in rows]}


def main(scratch: Path) -> None:
    spark = local_spark(scratch, master="local-cluster[2,1,512]", conf=CONF)
    register(spark)
    spark.range(4).repartition(4).collect()
    say({"ready": True})
    for line in sys.stdin:
        say(answer(spark, json.loads(line)))
    spark.stop()


def say(value: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
