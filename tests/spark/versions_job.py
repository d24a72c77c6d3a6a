"""A user's program on one release of Spark: a stream that is killed and continues, reads, and writes.

It runs as a script with a settings file, in a Python with that release, the wheel and no source tree:
``versions_job.py SETTINGS stream`` runs until it is killed; ``finish`` does the rest and writes its results.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

APP_ID = "versions"
WAIT_S = 200
TYPED = "id BIGINT, _journal STRING, _offset BIGINT"
LIMIT = {"maxBytesPerTrigger": "1500"}


class Job:
    """The program's session, and DataFrames over its journals."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.directory = Path(settings["directory"])
        self.enter = {"brokerAddress": settings["endpoint"]}
        self.spark = session(self.directory, delta=settings["delta"])

    def rows(self, schema: str | None = None, **options: str) -> DataFrame:
        loaded: DataFrame = self._reader(self.spark.read, schema, options).load(self.settings["prefix"])
        return loaded

    def reader(self, schema: str | None = None, **options: str) -> Any:
        reader = self._reader(self.spark.readStream, schema, options)
        return reader.option("path", self.settings["prefix"])

    def _reader(self, reader: Any, schema: str | None, options: dict[str, str]) -> Any:
        reader = reader.format("gazette").options(**self.enter, **options)
        reader = reader.option("startingOffsets", "earliest")
        return reader.schema(schema) if schema else reader

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start the stream: into a Delta table, or without Delta into one file for each batch."""
        checkpoint = str(self.directory / "checkpoint")
        stream = self.reader(**LIMIT).load()
        if not self.settings["delta"]:
            writer = stream.writeStream.foreachBatch(self.write_file).option("checkpointLocation", checkpoint)
            query: StreamingQuery = (writer.trigger(**trigger) if trigger else writer).start()
            return query
        from gazette_spark import DeltaSink

        sink = DeltaSink(APP_ID, path=str(self.directory / "table"))
        return sink.start(stream, checkpoint=checkpoint, **trigger)

    def write_file(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch as a file; a repeated batch replaces it."""
        from gazette_spark.failpoints import failpoint

        failpoint("sink.before_write")
        folder = self.directory / "files"
        folder.mkdir(exist_ok=True)
        (folder / f"{batch_id}.json").write_text(json.dumps(raw_rows(batch)))
        failpoint("sink.after_write")


def session(directory: Path, *, delta: bool) -> SparkSession:
    from gazette_spark import local_spark
    from gazette_spark.session import INTERPRETED, LOCAL_CONF

    if delta:
        return local_spark(directory, conf=INTERPRETED)
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder.master("local[2]")
    plain = {key: value for key, value in LOCAL_CONF.items() if "elta" not in value + key}
    for key, value in (plain | {"spark.sql.warehouse.dir": str(directory / "warehouse")}).items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    return made


def raw_rows(frame: DataFrame) -> list[list[Any]]:
    return sorted([row.journal, row.offset, bytes(row.value).decode()] for row in frame.collect())


def finished(query: StreamingQuery) -> bool:
    """Wait for an AvailableNow run; return whether it had a batch, even one that the table already has."""
    if not query.awaitTermination(WAIT_S):
        raise TimeoutError(f"the stream has not ended within {WAIT_S} s")
    last = query.lastProgress
    return last is not None and any(each["startOffset"] != each["endOffset"] for each in last["sources"])


def finish(job: Job) -> dict[str, Any]:
    import pyspark

    runs: list[bool] = []
    while not runs or runs[-1]:
        runs.append(finished(job.start(availableNow=True)))
    seen: dict[str, Any] = {
        "version": pyspark.__version__,
        "module": sys.modules["gazette_spark"].__file__,
        "runs": runs,
        "raw": raw_rows(job.rows(minPartitions="4")),
        **filtered(job),
        **written(job),
    }
    return seen | (on_delta(job) if job.settings["delta"] else {})


def filtered(job: Job) -> dict[str, Any]:
    job.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = job.rows(TYPED, format="json").where(f"_journal = '{job.settings['prefix']}a'")
    seen = {"filtered": sorted([row.id, row._offset] for row in frame.collect())}
    job.spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    return seen


def written(job: Job) -> dict[str, Any]:
    from gazette_spark import Client
    from gazette_spark.client import journal_spec

    names = [f"versions-written/{how}" for how in ("batch", "stream")]
    with Client(job.settings["endpoint"]) as client:
        client.create_journals(*map(journal_spec, names))
    rows = job.spark.range(0, 20, 1, 2).selectExpr("concat('row ', id) AS value")
    rows.write.format("gazette").options(**job.enter).mode("append").save(names[0])
    stream = job.reader().load().selectExpr("cast(value AS STRING) AS value", "offset")
    writer = stream.writeStream.format("gazette").options(**job.enter, journal=names[1])
    query = writer.option("checkpointLocation", str(job.directory / "writing")).start()
    query.processAllAvailable()
    query.stop()

    def values(name: str) -> list[str]:
        frame = job.spark.read.format("gazette").options(**job.enter).load(name)
        return sorted(bytes(row.value).decode() for row in frame.collect())

    return {"written": values(names[0]), "streamed": values(names[1])}


def on_delta(job: Job) -> dict[str, Any]:
    from gazette_spark import DeadLetters, DeltaSink, Upsert, ingest

    def path(name: str) -> str:
        return str(job.directory / name)

    def ids(name: str) -> list[int]:
        return sorted(row.id for row in job.spark.read.format("delta").load(path(name)).collect())

    typed = job.reader(TYPED, format="json")
    direct = DeltaSink("direct", path=path("direct"))
    finished(ingest(typed, direct, checkpoint=path("c-direct"), spark=job.spark, availableNow=True))
    seen = {"direct": ids("direct")}
    if job.settings["brief"]:
        return seen
    upsert = DeltaSink("upsert", path=path("upsert"), upsert=Upsert(["id"]))
    finished(upsert.start(typed.load(), checkpoint=path("c-upsert"), availableNow=True))
    letters = DeadLetters(path=path("dead"))
    fitting = DeltaSink("fitting", path=path("fitting"), dead_letters=letters)
    odd = job.reader(f"{TYPED}, _corrupt_record STRING", format="json").option("path", job.settings["odd"])
    finished(fitting.start(odd.load(), checkpoint=path("c-fitting"), availableNow=True))
    dead = job.spark.read.format("delta").load(path("dead")).count()
    return seen | {"upsert": ids("upsert"), "fitting": ids("fitting"), "dead": dead}


def main(settings_path: str, step: str) -> None:
    settings = json.loads(Path(settings_path).read_text())
    from gazette_spark.failpoints import GROUP_VARIABLE

    os.environ[GROUP_VARIABLE] = str(os.getpid())
    job = Job(settings)
    if step == "stream":
        job.start().awaitTermination(WAIT_S)
        return
    seen = finish(job)
    (job.directory / "result.json").write_text(json.dumps(seen))
    job.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
