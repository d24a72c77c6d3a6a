"""Measures an hour at constant load: memory, descriptors, threads, files, and the time of a batch.

    python benchmarks/steady_load.py [--timed] [--minutes 60] [--rate 1m] [--trigger "10 seconds"]

A process appends records to four journals of a real broker, at a constant rate. One driver streams them
into two Delta tables, one by each lane of the sink. The benchmark samples all processes and directories, and
fits a line through the second half of each curve. Growth is extrapolated to 30 days. The benchmark always
checks that each record is in both tables once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from bench_data import LINE_BYTES, SCHEMA, make_line
from bench_processes import pids_of
from harness import MEGABYTE, REPORT, machine, parse_size, running_broker, write_section
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gazette_spark import Client, DeltaSink, local_spark, register
from gazette_spark.client import journal_spec
from tests.waiting import wait_until

JOURNALS = [f"bench/steady/part-{part}" for part in range(4)]
LANES: tuple[Literal["direct", "spark"], ...] = ("direct", "spark")

APPENDS_PER_SECOND = 4
"""Number of appends per second to each journal."""

MONTH_HOURS = 720

WHAT_RISES = (
    "- Threads of the driver's process that Python did not start belong to deltalake. Its runtime "
    "starts one for each file of the log that it reads at the same time, at most 512, and ends it "
    "after ten idle seconds.\n"
    "- The JVM's memory is bounded by its heap (`spark.driver.memory`) and the memory that it needs in "
    "addition. The size of the heap after each collection shows whether something leaks.\n"
    "- A query checkpoint keeps `spark.sql.streaming.minBatchesToRetain` batches, 100 by default. A "
    "Delta log grows until its files are older than the table's `delta.logRetentionDuration`, 30 "
    "days by default. Fewer batches per hour, or a shorter retention that is still longer than the query's "
    "longest pause, keep it smaller."
)
"""Text below the table, which explains why some curves rise, and their limits."""

LEVEL_SHARE = 0.02
"""Share of the mean. A curve that rises by less in half a run counts as level, because that is noise."""

STOP_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Curve:
    """Samples of one figure."""

    name: str
    unit: str
    hours: list[float]
    """Time of each sample since the start."""
    values: list[float]

    def growth_per_hour(self) -> float:
        """Return the slope of the line through the samples of the second half; 0 if the curve is level."""
        middle = len(self.values) // 2
        hours, values = self.hours[middle:], self.values[middle:]
        if len(set(hours)) < 2 or len(set(values)) < 2:
            return 0.0
        slope = statistics.linear_regression(hours, values).slope
        rise = slope * (hours[-1] - hours[0])
        return 0.0 if abs(rise) < max(LEVEL_SHARE * statistics.fmean(values), 1) else slope

    def row(self) -> str:
        """Return the curve as a row of the report."""
        growth = self.growth_per_hour()
        quarter, last = self.values[len(self.values) // 4], self.values[-1]
        rises = f"{growth:+,.1f} per hour | {last + growth * MONTH_HOURS:,.0f}" if growth else "level | "
        return f"| {self.name}, {self.unit} | {quarter:,.1f} | {last:,.1f} | {rises} |"


def append_records(endpoint: str, rate: int) -> None:
    """Append records to all journals at ``rate`` bytes per second, until the standard input ends."""
    import select

    lines = rate // len(JOURNALS) // APPENDS_PER_SECOND // LINE_BYTES
    number, begin = 0, time.monotonic()
    with Client(endpoint, timeout_s=60) as client:
        while not select.select([sys.stdin], [], [], 0)[0]:
            for journal in JOURNALS:
                client.append(journal, b"".join(make_line(number + line) for line in range(lines)))
                number += lines
            due = begin + number / (lines * len(JOURNALS) * APPENDS_PER_SECOND)
            time.sleep(max(0.0, due - time.monotonic()))
    print(number, flush=True)


def process_figures(pid: int) -> tuple[float, int, int]:
    """Return the resident megabytes, descriptors and threads of a process; zeros if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return int(fields["VmRSS"].split()[0]) / 1000, descriptors, int(fields["Threads"])
    except (OSError, KeyError):
        return 0.0, 0, 0


def files_and_kilobytes(directory: Path) -> tuple[int, float]:
    """Return the number of files in a directory, at any depth, and their size."""
    sizes = []
    for path in directory.rglob("*"):
        try:
            if path.is_file():
                sizes.append(path.stat().st_size)
        except OSError:  # Spark has removed it.
            continue
    return len(sizes), sum(sizes) / 1000


class Sampler:
    """Takes the samples of a run."""

    def __init__(self, spark: SparkSession, folder: Path, queries: dict[str, StreamingQuery]) -> None:
        self._folder, self._queries = folder, queries
        assert spark._jvm is not None
        self._runtime = spark._jvm.java.lang.Runtime.getRuntime()
        self._begin = time.monotonic()
        self.curves: dict[str, Curve] = {}

    def take(self) -> None:
        """Add a sample to each curve."""
        hours = (time.monotonic() - self._begin) / 3600

        def add(name: str, unit: str, value: float) -> None:
            curve = self.curves.setdefault(f"{name}, {unit}", Curve(name, unit, [], []))
            curve.hours.append(hours)
            curve.values.append(value)

        # The used heap after a collection shows leaks; without one, it depends on the collector.
        self._runtime.gc()
        add("heap of the JVM in use", "MB", (self._runtime.totalMemory() - self._runtime.freeMemory()) / 1e6)
        for name, pids in (
            ("driver's Python", [os.getpid()]),
            ("JVM", pids_of("JVM")),
            ("Spark's Pythons", pids_of("Python")),
        ):
            figures = [process_figures(pid) for pid in pids]
            add(name, "MB", sum(figure[0] for figure in figures))
            add(name, "descriptors", sum(figure[1] for figure in figures))
            add(name, "threads", sum(figure[2] for figure in figures))
        # Libraries in Rust and C++ start threads when many files are read at once, and end them when idle.
        # Python's own threads are ours, PySpark's or gRPC's, and their number must stay constant.
        add("driver's Python", "threads of Python", threading.active_count())
        for lane, query in self._queries.items():
            checkpoint, log = self._folder / f"{lane}-checkpoint", self._folder / lane / "_delta_log"
            for name, directory in (
                (f"checkpoint, {lane} lane", checkpoint),
                (f"Delta log, {lane} lane", log),
            ):
                files, kilobytes = files_and_kilobytes(directory)
                add(name, "files", files)
                add(name, "kB", kilobytes)
            batches = [progress["durationMs"].get("triggerExecution", 0) for progress in query.recentProgress]
            if batches:
                add(f"batch, {lane} lane", "ms", statistics.median(batches[-6:]))


def run(folder: Path, endpoint: str, *, seconds: float, sample_s: float, rate: int, trigger: str) -> Sampler:
    """Stream for a while, and check both tables."""
    with Client(endpoint, timeout_s=60) as client:
        client.create_journals(*(journal_spec(name) for name in JOURNALS))
    spark = local_spark(folder / "session", conf={"spark.sql.streaming.numRecentProgressUpdates": "20"})
    register(spark)
    queries: dict[str, StreamingQuery] = {}
    for lane in LANES:
        reader = spark.readStream.format("gazette").options(
            brokerAddress=endpoint, startingOffsets="earliest"
        )
        rows = reader.option("format", "json").schema(SCHEMA).load("bench/steady/")
        sink = DeltaSink("bench", path=str(folder / lane), compact_every=50)
        queries[lane] = sink.start(
            rows, checkpoint=str(folder / f"{lane}-checkpoint"), lane=lane, processingTime=trigger
        )
    command = [sys.executable, __file__, "--append-to", endpoint, "--rate", f"{rate // 1000}k"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as appender:
        sampler = Sampler(spark, folder, queries)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, sample_s))
            for name, query in queries.items():
                if not query.isActive:
                    raise SystemExit(f"the query of the {name} lane has ended: {query.exception()}")
            sampler.take()
        records, _ = appender.communicate("\n", timeout=STOP_TIMEOUT_S)
    wait_until(
        "both tables have all records",
        lambda: all(_ids(spark, folder / lane)[0] == int(records) for lane in LANES),
        STOP_TIMEOUT_S,
    )
    for name, query in queries.items():
        query.stop()
        total, distinct = _ids(spark, folder / name)
        assert total == distinct == int(records), (name, total, distinct, records)
    spark.stop()
    return sampler


def _ids(spark: SparkSession, table: Path) -> Sequence[int]:
    return (
        spark.read.format("delta").load(str(table)).selectExpr("count(id)", "count(DISTINCT id)").collect()[0]
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timed", action="store_true", help="run for long, and write the performance page")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=parse_size, default=parse_size("1m"), help="bytes a second: 500k, 1m")
    parser.add_argument("--trigger", default="10 seconds", help="trigger interval of the queries")
    parser.add_argument("--append-to", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.append_to:
        append_records(options.append_to, options.rate)
        return
    about = machine()
    seconds, sample_s = (options.minutes * 60, 20.0) if options.timed else (20.0, 5.0)
    with (
        tempfile.TemporaryDirectory(prefix="steady-load-") as name,
        running_broker("deployed", Path(name)) as (endpoint, _),
    ):
        sampler = run(
            Path(name),
            endpoint,
            seconds=seconds,
            sample_s=sample_s,
            rate=options.rate,
            trigger=options.trigger if options.timed else "1 second",
        )
    if not options.timed:
        print("each record is in both tables once")
        return
    rows = "\n".join(curve.row() for curve in sampler.curves.values())
    text = (
        f"`benchmarks/steady_load.py --timed`: {options.minutes:g} minutes, {options.rate / MEGABYTE:g} MB/s "
        f"of JSON in {len(JOURNALS)} journals, a batch every {options.trigger} by each lane, "
        f"`compact_every=50`; {datetime.now(UTC):%Y-%m-%d}. {about}. Growth is the slope of the second "
        "half.\n\n"
        f"| figure | after a quarter | at the end | growth | after 30 days |\n|---|---|---|---|---|\n{rows}"
        f"\n\n{WHAT_RISES}"
    )
    write_section(REPORT, "An hour at constant load", text)
    print(text)


if __name__ == "__main__":
    main()
