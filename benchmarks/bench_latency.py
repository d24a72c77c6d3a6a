"""Measures the latency of a trickle, from an acknowledged append to the row in ``foreachBatch``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep, time

from bench_kafka import progress_ms
from pyspark.sql import DataFrame, SparkSession

TRICKLE_EVERY_S = 0.37
"""Seconds between records, not a multiple of a trigger, so that they arrive at all times between triggers."""

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of a trickle."""

    peer: str
    records: int
    row_ms: tuple[float, float]
    """Median and 99th percentile of the time from the acknowledged append to the row in the sink."""
    trigger_ms: tuple[float, float]
    """The same of the duration that Spark reports for a trigger with rows."""


def trickle(
    spark: SparkSession, name: str, frame: DataFrame, append: Callable[[str], object], *, records: int
) -> Latency:
    """Append numbered records, one after the other, during a query that runs as fast as it can.

    Args:
        spark: the session.
        name: name of the reader.
        frame: a stream of the records, in the column ``value``.
        append: appends one record and returns when it is stored.
        records: number of records.
    """
    arrived: dict[str, float] = {}

    def take(batch: DataFrame, _batch_id: int) -> None:
        values = [bytes(row.value).decode() for row in batch.select("value").collect()]
        now = time()
        arrived.update((value, now) for value in values)

    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    query = frame.writeStream.foreachBatch(take).start()
    try:
        appended: dict[str, float] = {}
        # The first records only start the query and warm it up.
        for number in range(-10, records):
            text = f"record {number}"
            append(text)
            appended[text] = time()
            if number < 0:
                _wait(lambda: len(arrived) == len(appended), START_TIMEOUT_S)
            sleep(TRICKLE_EVERY_S)
        _wait(lambda: len(arrived) == len(appended), END_TIMEOUT_S)
        progress = [each for each in query.recentProgress if each["numInputRows"]]
    finally:
        query.stop()
    row_ms = [(arrived[text] - appended[text]) * 1000 for text in appended if "-" not in text]
    trigger_ms = [progress_ms(each) for each in progress][10:]
    return Latency(name, records, _percentiles(row_ms), _percentiles(trigger_ms))


def _wait(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline, pause = monotonic() + timeout_s, threading.Event()
    while not condition():
        if monotonic() > deadline:
            raise SystemExit("records did not arrive")
        pause.wait(0.005)


def _percentiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def table(found: list[Latency]) -> str:
    """Return latencies as markdown."""
    rows = [
        "| reader | append to row: median | p99 | trigger: median | p99 |",
        "|---|---|---|---|---|",
        *(
            f"| {each.peer} | {each.row_ms[0]:.0f} ms | {each.row_ms[1]:.0f} ms "
            f"| {each.trigger_ms[0]:.0f} ms | {each.trigger_ms[1]:.0f} ms |"
            for each in found
        ),
    ]
    return "\n".join(rows)
