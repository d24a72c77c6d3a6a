"""Measures how long the driver plans a batch over many journals, without pass or fail.

    .venv/bin/python benchmarks/planning_bench.py --broker embedded --broker deployed --journals 1000 --timed

A broker runs in a separate process and has the given number of journals with a record each. A reader like
the one in Spark's driver returns its latest offset and the partitions of the batch up to it:

- idle: nothing is new, as mostly;
- with news: a record was appended to every journal.

With ``--query``, Spark's batches are timed as well, with a raw record from each journal that is discarded.

The first of each, which makes connections, is not counted. Pauses between the calls leave time for the
reader's background work, as between two triggers. The answers are always checked: the offset of every
journal, and one piece each. Times are only shown with ``--timed``, and written to the performance page with
``--report``.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from threading import Event
from time import monotonic, process_time
from typing import Any, TypeVar

from harness import REPORT, machine, running_broker, write_section
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark import Client, local_spark, register
from gazette_spark.client import journal_spec
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.source import GazetteDataSource, PiecePartition

RECORD = b'{"id":1,"note":"0123456789012345678901234567890"}\n'
"""The record that is appended to a journal."""

PAUSE_S = 0.3
"""Seconds between two calls, plus the time of the last one. A reader waits less after finding nothing."""

APPENDERS = 8

WARM_BATCHES = 2
"""Number of Spark's first batches that are not counted."""

BATCH_TIMEOUT_S = 120.0

SCHEMA = StructType().add("journal", StringType()).add("offset", LongType()).add("value", BinaryType())

GOALS_S = {1_000: 0.5, 10_000: 4.0}

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """One call, or two that belong together."""

    seconds: float
    cpu_s: float
    """CPU seconds of this process, which runs the reader."""


@dataclass(frozen=True)
class Result:
    """Measurements of a broker."""

    journals: int
    idle: tuple[Sample, ...]
    news: tuple[Sample, ...]
    position_bytes: int
    batches: tuple[dict[str, int], ...] = ()
    """Milliseconds of Spark's batches, by step, as Spark reports them."""


class Rig:
    """Journals on a broker, and a reader of them all."""

    def __init__(self, client: Client, endpoint: str, count: int) -> None:
        self._client = client
        self.names = [f"plan/part-{number:05}" for number in range(count)]
        options = {"brokerAddress": endpoint, "path": "plan/", "startingOffsets": "earliest"}
        self.reader = GazetteDataSource(options).streamReader(SCHEMA)
        self.ends = dict.fromkeys(self.names, 0)

    def create(self) -> None:
        """Create the journals and give each a record."""
        specs = [journal_spec(name) for name in self.names]
        self._client.apply_in_batches([pb.ApplyRequest.Change(upsert=spec) for spec in specs])
        self.append()

    def append(self, names: Sequence[str] = ()) -> None:
        """Append a record to each of these journals, or to all."""
        names = names or self.names
        with ThreadPoolExecutor(APPENDERS) as pool:
            for name, done in zip(
                names, pool.map(lambda name: self._client.append(name, RECORD), names), strict=True
            ):
                self.ends[name] = done.end

    def start(self) -> dict[str, Any]:
        """Return the position of a query that has started."""
        return self.reader.latestOffset(self.reader.initialOffset(), ReadAllAvailable())

    def idle(self, start: dict[str, Any]) -> None:
        """Check that there is nothing new."""
        if self.reader.latestOffset(start, ReadAllAvailable()) != start:
            raise AssertionError("nothing was appended, and the position moved")

    def batch(self, start: dict[str, Any]) -> dict[str, Any]:
        """Plan a batch of one record from each journal."""
        end = self.reader.latestOffset(start, ReadAllAvailable())
        tasks = self.reader.partitions(start, end)
        pieces = [piece for task in tasks if isinstance(task, PiecePartition) for piece in task.pieces]
        if end["journals"] != self.ends or len(pieces) != len(self.names):
            raise AssertionError(f"{len(pieces)} pieces for {len(self.names)} journals, or wrong ends")
        return end


def sampled(question: Callable[[], T], after: Sample) -> tuple[T, Sample]:
    """Call a function, and return its result and usage."""
    Event().wait(PAUSE_S + after.seconds)
    began, cpu_began = monotonic(), process_time()
    answer = question()
    return answer, Sample(monotonic() - began, process_time() - cpu_began)


def batches_of(spark: SparkSession, endpoint: str, rig: Rig, rounds: int) -> list[dict[str, int]]:
    """Repeatedly append a record to each journal, and wait for Spark to read them in one batch."""
    count = len(rig.names)
    options = {"brokerAddress": endpoint, "path": "plan/", "minBytesPerTrigger": str(count * len(RECORD))}
    frame = spark.readStream.format("gazette").options(maxTriggerDelay="1h", **options).load()
    query = frame.writeStream.format("noop").start()

    def rows() -> list[int]:
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    try:
        deadline = monotonic() + BATCH_TIMEOUT_S
        while not query.recentProgress and monotonic() < deadline:
            Event().wait(0.05)
        for number in range(1 + WARM_BATCHES + rounds):
            # The first batch does not wait for minBytesPerTrigger.
            rig.append(rig.names if number else rig.names[:1])
            deadline = monotonic() + BATCH_TIMEOUT_S
            while len(rows()) == number:
                if monotonic() > deadline or query.exception() is not None:
                    raise SystemExit(f"no batch in time, {query.exception()}")
                Event().wait(0.05)
            Event().wait(PAUSE_S)
        if rows() != [1, *[count] * (WARM_BATCHES + rounds)]:
            raise AssertionError(f"batches of {rows()} rows for {count} journals")
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        return [dict(each["durationMs"]) for each in progress[1 + WARM_BATCHES :]]
    finally:
        query.stop()


def measure(
    kind: str, count: int, rounds: int, profile: Path | None = None, spark: SparkSession | None = None
) -> Result:
    """Run all measurements on one broker."""
    with (
        tempfile.TemporaryDirectory() as directory,
        running_broker(kind, Path(directory)) as (endpoint, _),
        Client(endpoint) as client,
    ):
        rig = Rig(client, endpoint, count)
        rig.create()
        try:
            position = rig.batch(rig.start())
            samples = [sampled(lambda: rig.idle(position), Sample(1.0, 0.0))[1]]
            for _ in range(rounds):
                samples.append(sampled(lambda at=position: rig.idle(at), samples[-1])[1])  # type: ignore[misc]
            news = [samples[-1]]
            for _ in range(rounds + 1):
                rig.append()
                position, sample = sampled(lambda at=position: rig.batch(at), news[-1])  # type: ignore[misc]
                news.append(sample)
            if profile is not None:
                rig.append()
                shown(profile, lambda at=position: rig.batch(at))  # type: ignore[misc]
        finally:
            rig.reader.stop()
        batches = batches_of(spark, endpoint, rig, rounds) if spark is not None else []
        return Result(count, tuple(samples[1:]), tuple(news[2:]), len(json.dumps(position)), tuple(batches))


def shown(path: Path, question: Callable[[], object]) -> None:
    """Call a function, and write a profile of this thread."""
    profiler = cProfile.Profile()
    profiler.runcall(question)
    with path.open("w") as file:
        pstats.Stats(profiler, stream=file).sort_stats("cumulative").print_stats(60)


def table(results: list[Result]) -> str:
    """Return the results as a table."""
    rows = ["| journals | batch | best | median | CPU of the reader | goal |", "|---|---|---|---|---|---|"]
    for result in results:
        goal_s = GOALS_S.get(result.journals)
        for batch, samples in (("idle", result.idle), ("one record each", result.news)):
            times = sorted(sample.seconds for sample in samples)
            middle = median(times)
            goal = f"{goal_s} s: {'met' if middle <= goal_s else 'missed'}" if goal_s else ""
            cpu = median(sample.cpu_s for sample in samples)
            cells = (
                f"{result.journals:,}",
                batch,
                *(f"{each:.2f} s" for each in (times[0], middle, cpu)),
                goal,
            )
            rows.append(f"| {' | '.join(cells)} |")
        if result.batches:
            times = sorted(each["triggerExecution"] / 1000 for each in result.batches)
            shown = " | ".join(f"{each:.2f} s" for each in (times[0], median(times)))
            rows.append(f"| {result.journals:,} | Spark's, one record each | {shown} | | |")
            steps = {
                step: f"{median(each[step] for each in result.batches) / 1000:.2f} s"
                for step in ("latestOffset", "queryPlanning", "addBatch")
            }
            print(f"of Spark's batch: {steps}")
    return "\n".join(rows)


def main() -> None:
    """Measure on each broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--broker", action="append", choices=["embedded", "deployed"], required=True)
    parser.add_argument("--journals", action="append", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--query", action="store_true", help="run a query in Spark, too")
    parser.add_argument("--timed", action="store_true", help="show times; without it, only check the answers")
    parser.add_argument("--profile", type=Path, help="where to write a profile of one more batch with news")
    parser.add_argument("--report", type=Path, nargs="?", const=REPORT, help="write the times into this file")
    arguments = parser.parse_args()
    spark = None
    if arguments.query:
        spark = local_spark(Path(tempfile.mkdtemp(prefix="planning-")), java_options="")
        register(spark)
    for kind in arguments.broker:
        described = machine()
        results = []
        for count in arguments.journals:
            results.append(result := measure(kind, count, arguments.rounds, arguments.profile, spark))
            print(f"{kind}: {count} journals planned right, a position has {result.position_bytes} bytes")
            if arguments.timed:
                print(table([result]), flush=True)
        if arguments.timed and arguments.report:
            what = f"`latestOffset` and `partitions` in the driver's reader, {arguments.rounds} of each"
            text = f"{what}; {datetime.now(UTC):%Y-%m-%d}.\n{described}.\n\n{table(results)}"
            write_section(arguments.report, f"Planning many journals, {kind} broker", text)


if __name__ == "__main__":
    main()
