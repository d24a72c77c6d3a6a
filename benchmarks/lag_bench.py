"""Measures how fast the lag monitor judges, stores and answers, and the memory of a stored commit.

    python benchmarks/lag_bench.py [--timed] [--partitions 100000]

Verdicts are always checked against the rules one by one. Times are only measured with ``--timed``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import httpx

from gazette_spark.lag import Evaluator, GroupCommit, History, HistoryOptions, Monitor, Thresholds, metrics
from gazette_spark.lag.api import Api
from gazette_spark.lag.history import windows_of
from gazette_spark.lag.rules import evaluate_group
from gazette_spark.lag.server import LagService

NOW_MS = 1_700_000_000_000
COMMITS = 10
REQUESTS = 3000


def filled(partitions: int) -> History:
    """Return a history of one group with ten commits in each partition, with all kinds of progress."""
    draw = random.Random(1)
    history = History(HistoryOptions(intervals=COMMITS), ["c"])
    for partition in range(partitions):
        history.add_broker_offset("c", "t", partition, 10_000, partition_count=partitions)
        offset = draw.randint(0, 9000)
        for order in range(COMMITS):
            offset += draw.choice([0, 10, 50, 100, -20])
            history.add_consumer_offset(
                "c",
                "g",
                "t",
                partition,
                max(0, offset),
                order=order,
                timestamp_ms=NOW_MS - (COMMITS - order) * draw.choice([100, 1000]),
                now_ms=NOW_MS,
            )
            if draw.random() < 0.2:
                history.add_broker_offset("c", "t", partition, 10_000 + order, partition_count=partitions)
    return history


def check(history: History) -> None:
    """Compare the verdicts of the columns with those of the rules, one by one."""
    got = Evaluator(history, Thresholds(), expire_cache_s=0).status("c", "g", now_ms=NOW_MS)
    windows = windows_of(history.fetch_consumer("c", "g", now_ms=NOW_MS))
    expected = evaluate_group("c", "g", windows, NOW_MS, Thresholds())
    assert tuple(got.partitions) == expected.partitions
    assert (got.status, got.total_lag, got.maxlag) == (expected.status, expected.total_lag, expected.maxlag)


def best_of(rounds: int, work: Callable[[], object]) -> float:
    """Return the minimum seconds of some rounds."""
    least = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - begin)
    return least


def bytes_a_commit(partitions: int) -> float:
    """Return the memory of a history, divided by its commits."""
    gc.collect()
    tracemalloc.start()
    history = filled(partitions)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert history.fetch_topics("c") == ["t"]
    return used / (partitions * COMMITS)


def requests_a_second() -> tuple[float, float]:
    """Return status requests per second for one client, and per CPU second of the server."""
    kept = History(HistoryOptions())
    monitor = Monitor("c", kept, Evaluator(kept, Thresholds()))
    journals = {f"shop/part-{at:03}": 1000 for at in range(20)}
    now_ms = time.time_ns() // 1_000_000
    monitor.observe_heads(journals, now_ms)
    monitor.observe_commits("g", [GroupCommit(1, now_ms, dict.fromkeys(journals, 900))], now_ms)
    api = Api(monitor, lambda: time.time_ns() // 1_000_000, "host", {"cluster": {}})
    with LagService(api, [], listen="127.0.0.1:0") as service, httpx.Client() as client:
        url = f"{service.address}/v3/kafka/c/consumer/g/status"
        answer = json.loads(client.get(url).content)
        assert answer["status"]["totallag"] == 2000, answer
        begin, cpu = time.perf_counter(), server_cpu_s()
        for _ in range(REQUESTS):
            assert client.get(url).status_code == 200
        return REQUESTS / (time.perf_counter() - begin), REQUESTS / (server_cpu_s() - cpu)


def seconds_a_scrape(partitions: int) -> float:
    """Return the seconds that the metrics of a number of partitions take."""
    kept = History(HistoryOptions())
    monitor = Monitor("c", kept, Evaluator(kept, Thresholds()))
    journals = {f"shop/part-{at:05}": 1000 for at in range(partitions)}
    monitor.observe_heads(journals, NOW_MS)
    monitor.observe_commits("g", [GroupCommit(1, NOW_MS, dict.fromkeys(journals, 900))], NOW_MS)
    text = metrics.exposition(monitor, NOW_MS).decode()
    assert text.count("\nburrow_kafka_consumer_partition_lag{") == partitions
    return best_of(3, lambda: metrics.exposition(monitor, NOW_MS))


def server_cpu_s() -> float:
    """Return the CPU seconds of the server's thread."""
    (thread,) = (each for each in threading.enumerate() if each.name == "lag-http")
    fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timed", action="store_true")
    parser.add_argument("--partitions", type=int, default=100_000)
    options = parser.parse_args()
    partitions = options.partitions if options.timed else min(options.partitions, 2000)
    history = filled(partitions)
    check(history)
    assert seconds_a_scrape(100) > 0
    if not options.timed:
        print("verdicts agree")
        return
    evaluator = Evaluator(history, Thresholds(), expire_cache_s=0)
    seconds = best_of(5, lambda: evaluator.status("c", "g", now_ms=NOW_MS))
    print(f"evaluate {partitions:,} partitions of {COMMITS} commits: {seconds:.2f} s")
    print(f"memory: {bytes_a_commit(min(partitions, 20_000)):.0f} bytes a stored commit")
    print(f"metrics of 10,000 partitions: {seconds_a_scrape(10_000):.2f} s")
    wall, cpu = requests_a_second()
    print(f"status requests: {wall:.0f}/s for one client, {cpu:.0f} a CPU second of the server")
    print(f"peak memory of all this: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
