"""The process that gets killed: one query from journals into a table, configured by a JSON file.

It gets everything ready, then waits for a file with its command to appear: the slow part of a driver's life
is over before its turn comes.

==================  =========================================================================
``checkpoint``      the query checkpoint
``table``           the table's directory
``options``         of the source, beside those it was started with
``format``          of the source, if not the one it was started with
``schema``          of the source, if any
``load``            argument of ``load``, if not the one it was started with
``resume``          whether a query without a checkpoint goes on where the table ends, true unless given
``on_overlap``      of the sink
``failpoint``       variable of :mod:`gazette_spark.failpoints`, for this process
``task_failpoint``  likewise, for the processes of :mod:`tests.rig.crashing_source`
``rename``          which rename kills, for ``FailAtRename.scala``
``until``           ``end``: of the journals, as they are now; ``killed``; or ``fenced``: then it starts
                    again, with a new query checkpoint, until it is killed
``backfill``        options of a backfill, to run in place of the query; of the above it needs ``table``
``outcomes``        with ``fenced``: file that gets a line for each run that the sink has ended
``sink``            name of one in :mod:`tests.rig.crashes.sinks`, ``raw`` unless given
``direct``          whether tasks write the files where the sink's kind lets them, true unless given; of an
                    Iceberg table, whether the query takes the direct lane and not the format
==================  =========================================================================
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from gazette_spark import DeltaSink, ingest, local_spark, register
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.files import clear_unfinished
from gazette_spark.failpoints import FAILPOINT_VARIABLE
from gazette_spark.session import CLASS_PATH_VARIABLE, INTERPRETED
from tests.rig.crashes.backfills import fill
from tests.rig.crashes.outcomes import refusal
from tests.rig.crashes.sinks import SINKS, iceberg_sink, location
from tests.rig.crashing_formats import CRASHING_FORMATS
from tests.rig.crashing_source import CrashingGazette
from tests.rig.file_source import FileJournals

GO_TIMEOUT_S = 1800.0
"""Maximum seconds that a driver waits for its turn."""

RENAME_PROPERTY = "gazette_spark.fail_at_rename"

CONF = INTERPRETED | {
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "gazette_spark.testing.FailAtRename",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}

Settings = dict[str, Any]


def warm_up(spark: SparkSession, directory: Path) -> None:
    """Write, read and describe a throwaway table: a JVM's first Delta commit takes ten seconds."""
    target = DeltaTable(path=str(directory), table=None)
    spark.range(1).write.format("delta").mode("overwrite").save(str(directory))
    target.history(spark, 1)
    target.check(spark, "/nowhere")


def journals(spark: SparkSession, settings: Settings) -> DataStreamReader:
    reader = spark.readStream.format(settings["format"]).options(**settings["options"])
    return reader.schema(settings["schema"]) if settings.get("schema") else reader


def load(reader: DataStreamReader, settings: Settings) -> DataFrame:
    return reader.load(settings["load"]) if settings["load"] else reader.load()


def await_command(path: Path) -> Settings:
    """Report that the driver is ready, and wait for the file with its command.

    A driver whose parent is gone ends here.
    """
    path.with_suffix(".ready").touch()
    deadline = time.monotonic() + GO_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear within {GO_TIMEOUT_S:g} s")
        time.sleep(0.02)
    command: Settings = json.loads(path.read_text())
    return command


def changed(settings: Settings, command: Settings) -> Settings:
    source = {name: command[name] for name in ("format", "schema", "load") if name in command}
    return settings | source | {"options": settings["options"] | command["options"]}


def apply(spark: SparkSession, command: Settings) -> None:
    """Arm the failpoint that kills this process."""
    if failpoint := command.get("failpoint"):
        os.environ[FAILPOINT_VARIABLE] = failpoint
    if rename := command.get("rename"):
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        jvm.java.lang.System.setProperty(RENAME_PROPERTY, rename)


def contend(spark: SparkSession, settings: Settings, command: Settings) -> None:
    """Write until killed; after each defeat, continue where the table ends.

    While this writer restarts, the other one moves on, so every other run trims what that has written.
    Nothing is trimmed in an Iceberg table, so a run only succeeds there while the other writer is stopped.
    """
    for run in itertools.count():
        checkpoint = f"{command['checkpoint']}-{run}"
        try:
            if SINKS[command.get("sink", "raw")].iceberg:
                lake = iceberg_sink(settings["app_id"], command["table"])
                reader = lake.resume(journals(spark, settings))
                query = ingest(reader, lake, checkpoint=checkpoint, spark=spark, processingTime="0 seconds")
            else:
                on_overlap = "trim" if run % 2 else "fail"
                sink = DeltaSink(settings["app_id"], path=location(command["table"]), on_overlap=on_overlap)
                rows = load(sink.resume(journals(spark, settings), spark), settings)
                query = sink.start(rows, checkpoint=checkpoint, processingTime="0 seconds")
            query.awaitTermination()
        except StreamingQueryException as error:
            name = refusal(str(error))
            if name is None:
                raise
            with Path(command["outcomes"]).open("a") as file:
                file.write(name + "\n")


def run(spark: SparkSession, rows: DataFrame, settings: Settings, command: Settings) -> None:
    kind = SINKS[command.get("sink", "raw")]
    trigger = {"availableNow": True} if command["until"] == "end" else {"processingTime": "0 seconds"}
    # Only drivers in a separate process have one; the tests' session crashes by its own failpoints.
    crash_file = str(Path(settings["scratch"]) / "crash") if "scratch" in settings else ""
    if kind.iceberg:
        lake = iceberg_sink(settings["app_id"], command["table"])
        reader = journals(spark, settings)
        reader = lake.resume(reader) if command.get("resume", True) else reader
        app_id, table, checkpoint = settings["app_id"], command["table"], command["checkpoint"]
        clear_unfinished(spark, checkpoint)
        if command.get("direct", True):
            query = ingest(reader, lake, checkpoint=checkpoint, spark=spark, **trigger)
        else:
            query = kind.start_format(
                load(reader, settings), app_id, table, checkpoint, crash_file, **trigger
            )
        query.awaitTermination()
        return
    sink = kind.sink(settings["app_id"], command["table"], on_overlap=command.get("on_overlap", "fail"))
    if kind.direct and command.get("direct", True):
        reader = journals(spark, settings)
        rows = kind.load(
            sink.resume(reader, spark) if command.get("resume", True) else reader, sink, direct=True
        )
        sink = kind.with_lane(sink, command["table"], direct=True)
    elif command["options"] or not Path(command["checkpoint"], "offsets", "0").exists():
        reader = journals(spark, settings)
        rows = load(sink.resume(reader, spark) if command.get("resume", True) else reader, settings)
    if kind.is_format:
        clear_unfinished(spark, command["checkpoint"])
        query = kind.start_format(
            rows, settings["app_id"], command["table"], command["checkpoint"], crash_file, **trigger
        )
        query.awaitTermination()
        return
    mode, checkpoint = kind.output_mode, command["checkpoint"]
    query = sink.start(kind.shape(rows), checkpoint=checkpoint, output_mode=mode, lane="spark", **trigger)
    query.awaitTermination()


def recover(spark: SparkSession, settings: Settings, command: Settings) -> None:
    command = {"options": {}, "until": "end"} | command
    settings = changed(settings, command)
    run(spark, load(journals(spark, settings), settings), settings, command)


def run_backfill(spark: SparkSession, settings: Settings, command: Settings) -> None:
    sink = SINKS[command["sink"]].sink(settings["app_id"], command["table"])
    crash_file = Path(settings["scratch"]) / "crash"
    fill(spark, sink, command["backfill"], settings["schema"], crash_file)


def main(settings: Settings) -> None:
    # After all other jars, because the class data archive allows extra jars only there.
    before = os.environ.get(CLASS_PATH_VARIABLE)
    os.environ[CLASS_PATH_VARIABLE] = f"{before}:{settings['jar']}" if before else settings["jar"]
    spark = local_spark(Path(settings["scratch"]), conf=CONF | settings["conf"])
    register(spark)
    spark.dataSource.register(FileJournals)
    spark.dataSource.register(CrashingGazette)
    for crashing in CRASHING_FORMATS:
        spark.dataSource.register(crashing)
    rows = load(journals(spark, settings), settings)
    warm_up(spark, Path(settings["scratch"]) / "warmed-up")
    command = await_command(Path(settings["command"]))
    apply(spark, command)
    settings = changed(settings, command)
    is_format = SINKS[command.get("sink", "raw")].is_format
    if ordered := command.get("task_failpoint") or (is_format and command.get("failpoint")):
        crash_file = Path(settings["scratch"]) / "crash"
        crash_file.write_text(ordered)
        settings["options"]["crashFile"] = str(crash_file)
    if "backfill" in command:
        run_backfill(spark, settings, command)
    elif command["until"] == "fenced":
        contend(spark, settings, command)
    else:
        run(spark, rows, settings, command)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
