"""Measures a stream of small batches by the sink's settings: the files in the table, and each batch's time.

    python benchmarks/small_batches.py [--timed] [--batches 50]

Four journals of a real broker are streamed in batches of 1 MB, raw with the settings for small files, and as
JSON with audit and with dead letters. The benchmark always checks that each record is in the tables once.
Times are only measured with ``--timed``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_data import LINE_BYTES, SCHEMA, make_line
from bench_processes import measured
from deltalake import DeltaTable
from harness import MEGABYTE, REPORT, machine, running_broker, write_section
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import Client, DeadLetters, DeltaSink, local_spark, register
from gazette_spark.client import journal_spec

JOURNALS = [f"bench/small/part-{part}" for part in range(4)]
BATCH_BYTES = MEGABYTE
BAD_EVERY = 100
"""Interval of malformed records."""
COLUMNS = "_journal STRING, _offset BIGINT"
TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """One way to run the stream."""

    name: str
    sink: dict[str, Any] = field(default_factory=dict)
    typed: bool = False
    parted: bool = False
    """Whether there are dead letters."""


SETTINGS = (
    Setting("raw"),
    Setting("raw, `target_file_bytes=128 << 20`", {"target_file_bytes": 128 << 20}),
    Setting("raw, `compact_every=10`", {"compact_every": 10}),
    Setting("raw, both", {"target_file_bytes": 128 << 20, "compact_every": 10}),
    Setting("raw, `audit`", {"audit": True}),
    Setting("JSON", typed=True),
    Setting("JSON, `audit`", {"audit": True}, typed=True),
    Setting("JSON, `dead_letters`", typed=True, parted=True),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one setting."""

    batch_s: list[float]
    cpu_s: float
    """CPU seconds of all processes, per batch."""
    files: int
    written: int
    read_s: float


def fill(endpoint: str, batches: int) -> int:
    """Create the journals and append to them; return the number of records."""
    each = batches * BATCH_BYTES // len(JOURNALS) // LINE_BYTES
    with Client(endpoint, timeout_s=60) as client:
        client.create_journals(*(journal_spec(name) for name in JOURNALS))
        for name in JOURNALS:
            lines = (b"{bad}\n" if number % BAD_EVERY == 0 else make_line(number) for number in range(each))
            client.append(name, b"".join(lines))
    return each * len(JOURNALS)


def frame(spark: SparkSession, endpoint: str, setting: Setting) -> DataFrame:
    """Return the stream."""
    # One record in a hundred is malformed, and each task would log it.
    options = {"brokerAddress": endpoint, "startingOffsets": "earliest", "logLevel": "error"}
    reader = spark.readStream.format("gazette").options(maxBytesPerTrigger=str(BATCH_BYTES), **options)
    if setting.typed:
        more = ", _record BINARY, _corrupt_record STRING" if setting.parted else ""
        reader = reader.option("format", "json").schema(f"{SCHEMA}, {COLUMNS}{more}")
    rows: DataFrame = reader.load("bench/small/")
    return rows


def run(spark: SparkSession, endpoint: str, setting: Setting, folder: Path, records: int) -> Measured:
    """Stream all records into a new table."""
    sink = DeltaSink(
        "bench",
        path=str(folder / "table"),
        dead_letters=DeadLetters(path=str(folder / "dead")) if setting.parted else None,
        **setting.sink,
    )
    checkpoint = str(folder / "checkpoint")
    with measured() as usage:
        rows = frame(spark, endpoint, setting)
        query = sink.start(rows, checkpoint=checkpoint, lane="spark", availableNow=True)
        if not query.awaitTermination(TIMEOUT_S):
            raise SystemExit("the query did not end in time")
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    begin = time.perf_counter()
    rows = spark.read.format("delta").load(str(folder / "table"))
    found = rows.selectExpr("count(*)", "sum(hash(*))").collect()[0][0]
    read_s = time.perf_counter() - begin
    if setting.parted:
        found += spark.read.format("delta").load(str(folder / "dead")).count()
    assert found == records, (setting, found, records)
    table = DeltaTable(str(folder / "table"))
    written = [path for path in (folder / "table").rglob("*.parquet") if "_delta_log" not in path.parts]
    return Measured(
        [each["durationMs"]["triggerExecution"] / 1000 for each in progress],
        sum(usage.cpu_s.values()) / len(progress),
        len(table.file_uris()),
        len(written),
        read_s,
    )


def report(found: dict[Setting, Measured]) -> str:
    """Return the rows of the report."""
    lines = [
        (
            "| stream | batch, median | slowest batch | CPU per batch | files in the table | files written | "
            "time to read the table |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for setting, each in found.items():
        lines.append(
            f"| {setting.name} | {statistics.median(each.batch_s):.2f} s | {max(each.batch_s):.2f} s | "
            f"{each.cpu_s:.2f} s | {each.files} | {each.written} | {each.read_s:.2f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timed", action="store_true", help="measure times, and write the performance page")
    parser.add_argument("--batches", type=int, default=50)
    options = parser.parse_args()
    about = machine()
    batches = options.batches if options.timed else 3
    with tempfile.TemporaryDirectory(prefix="small-batches-") as name:
        folder = Path(name)
        with running_broker("deployed", folder) as (endpoint, _):
            spark = local_spark(folder / "spark", java_options="")
            register(spark)
            records = fill(endpoint, batches)
            if options.timed:  # Otherwise the first setting would include the JVM's start.
                run(spark, endpoint, SETTINGS[-1], folder / "warm", records)
            found = {
                setting: run(spark, endpoint, setting, folder / str(number), records)
                for number, setting in enumerate(SETTINGS)
            }
            spark.stop()
    if not options.timed:
        print("each record is there once")
        return
    text = (
        f"`benchmarks/small_batches.py --timed`: {batches} batches of {BATCH_BYTES // MEGABYTE} MB from "
        f"{len(JOURNALS)} journals; {datetime.now(UTC):%Y-%m-%d}. {about}.\n\n{report(found)}"
    )
    write_section(REPORT, "Small batches", text)
    print(text)


if __name__ == "__main__":
    main()
