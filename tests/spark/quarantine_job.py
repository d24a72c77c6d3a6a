"""A query over a store with a record that kills its parser: ``quarantine_job.py DIRECTORY MASTER MODE``.

It runs as a script with a separate Spark, whose workers import the ``sitecustomize`` that lets the parser be
killed. The directory has the store, and gets the rows or the end of the error as ``answer.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SCHEMA = "_offset bigint, n bigint, _corrupt_record string"


def main(directory: Path, master: str, mode: str) -> None:
    from gazette_spark import local_spark
    from gazette_spark.session import INTERPRETED

    spark = local_spark(directory, master=master, conf=INTERPRETED)
    options = {"fragmentStore": f"file://{directory}/store", "format": "json", "mode": mode}
    reader = spark.read.format("gazette").schema(SCHEMA).options(**options, framing="lines")
    try:
        answer: object = sorted(map(tuple, reader.load("log/a").collect()))
    except Exception as error:  # noqa: BLE001  # The test looks for what it says.
        answer = str(error)
    (directory / "answer.json").write_text(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
