"""Compares the time of a replicated log's commit with a synchronous write by kafka-go.

    python benchmarks/replicated_log_bench.py                      # small; only checks the answers
    python benchmarks/replicated_log_bench.py --timed              # prints p50 and p99; needs Java and Go
    python benchmarks/replicated_log_bench.py --timed --no-kafka   # the log alone

Each program commits entries one after the other and waits for each. ``Writer`` writes to a journal of one
broker without a store; kafka-go (``benchmarks/kafka_go``) to a topic of one partition on one broker, with all
replicas' acknowledgement and without a wait for more messages, so that both have one copy of each entry
before they answer. Neither syncs to disk. A second row has eight threads with one ``Writer``, whose entries
share appends. After the time is measured, the log is always read back.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from harness import machine, running_broker

from gazette_spark import Client
from gazette_spark.client import journal_spec
from gazette_spark.replicated_log import NoMoreMessageError, Receiver, Writer

DATA = Path(__file__).parents[1] / ".cache" / "bench"
THREADS = 8
SMALL = 50
"""Number of entries in a run that only checks."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The times of one program's commits."""

    program: str
    took_ms: list[float]
    wall_s: float

    def at(self, share: float) -> float:
        """Return the maximum time of a share of the commits."""
        ordered = sorted(self.took_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def row(self) -> str:
        """Line of the table."""
        rate = len(self.took_ms) / self.wall_s
        return f"| {self.program} | {self.at(0.5):.2f} | {self.at(0.99):.2f} | {rate:,.0f} |"


def entries_of(size: int, first: int, count: int) -> Iterator[bytes]:
    """Yield numbered entries of one size."""
    for number in range(first, first + count):
        yield (b"%d " % number).ljust(size, b"x")


def commit_log(
    client: Client, journal: str, *, threads: int, count: int, size: int, warm_up: int
) -> Measured:
    """Commit entries to a new log, and read them back."""
    with Writer(client, journal, spec=journal_spec(journal, stores=())) as writer:
        for entry in entries_of(size, 0, warm_up):
            writer.commit_entry(entry)

        def commit(thread: int) -> list[float]:
            share = count // threads
            took = []
            for entry in entries_of(size, warm_up + thread * share, share):
                begun = perf_counter()
                writer.commit_entry(entry)
                took.append(1000 * (perf_counter() - begun))
            return took

        begun = perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            took = [each for done in pool.map(commit, range(threads)) for each in done]
        wall_s = perf_counter() - begun
    found = []
    with Receiver(client, journal) as receiver, suppress(NoMoreMessageError):
        while True:
            found.append(receiver.try_fetch_entry())
    expected = list(entries_of(size, 0, warm_up + len(took)))
    if sorted(each for each in found if isinstance(each, bytes)) != sorted(expected):
        raise SystemExit(f"{journal}: {len(found)} entries were fetched, not the {len(expected)} committed")
    name = "one thread" if threads == 1 else f"{threads} threads"
    return Measured(f"`Writer`, {name}", took, wall_s)


def write_kafka(data: Path, *, count: int, size: int, warm_up: int) -> Measured:
    """Write messages to a Kafka broker with kafka-go."""
    from bench_kafka import running_kafka
    from kafka_jars import kafka_jars

    program = data / "kafka_go"
    source = Path(__file__).parent / "kafka_go"
    subprocess.run(["go", "build", "-trimpath", "-o", str(program.resolve()), "."], cwd=source, check=True)
    flags = [f"-count={count}", f"-size={size}", f"-warm-up={warm_up}"]
    jars = kafka_jars(data / "jars")
    with tempfile.TemporaryDirectory() as folder, running_kafka(jars, Path(folder) / "kafka") as address:
        done = subprocess.run(
            [str(program), f"-server={address}", *flags], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"kafka-go failed: {done.stderr}")
    took = [nanoseconds / 1e6 for nanoseconds in json.loads(done.stdout)]
    return Measured("kafka-go, one goroutine", took, sum(took) / 1000)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timed", action="store_true", help="measure times, and print them")
    parser.add_argument("--broker", choices=["deployed", "embedded"], default="deployed")
    parser.add_argument("--entries", type=int, default=2000, help="number of entries in each row")
    parser.add_argument("--bytes", type=int, default=200, help="size of an entry")
    parser.add_argument("--kafka", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--data", type=Path, default=DATA, help="folder for what is kept between runs")
    options = parser.parse_args()
    about = machine()
    count, warm_up = (options.entries, 200) if options.timed else (SMALL, 5)
    with tempfile.TemporaryDirectory() as folder:
        with running_broker(options.broker, Path(folder)) as (endpoint, _), Client(endpoint) as client:
            found = [
                commit_log(
                    client,
                    f"bench/log-{threads}",
                    threads=threads,
                    count=count,
                    size=options.bytes,
                    warm_up=warm_up,
                )
                for threads in (1, THREADS)
            ]
        if options.timed and options.kafka:
            options.data.mkdir(parents=True, exist_ok=True)
            found.append(write_kafka(options.data, count=count, size=options.bytes, warm_up=warm_up))
    if not options.timed:
        print("the logs hold what was committed")
        return
    print(f"{about}; {options.broker} broker, entries of {options.bytes} bytes\n")
    print("| | p50 ms | p99 ms | entries/s |\n|---|---|---|---|")
    print("\n".join(each.row for each in found))


if __name__ == "__main__":
    main()
