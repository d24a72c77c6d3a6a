"""Compares our consumer hosts with Gazette's consumer, with the application ``stream-sum``.

    .venv/bin/python benchmarks/consumer_bench.py                      # small; only checks the sums
    .venv/bin/python benchmarks/consumer_bench.py --timed --report     # writes the performance page

Every host runs on a real broker:

- *rate*: two journals are filled with chunks, each committed alone. Then the host gets a shard for each,
  and the time ends when both have read through the write heads. The host and its code are warm.
- *latency*: a chunk is appended, and Stat waits until its transaction is committed and acknowledged.
- *many shards* (Spark): a thousand journals get some chunks each, and one transaction consumes them all.

The application fails at a chunk that is lost, repeated or out of order. After each run, the benchmark checks
that each stream's sum is right and was published once.
"""

from __future__ import annotations

import argparse
import base64
import random
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from statistics import median, quantiles

from bench_processes import driver_bytes
from consumer_hosts import (
    GO,
    LOCAL,
    NDJSON,
    SPARK,
    TIMEOUT_S,
    Cpu,
    Running,
    go_host,
    local_host,
    local_session,
    new_spark_host,
    shard_of,
    spark_host,
)
from harness import REPORT, machine, write_section
from pyspark.sql import SparkSession

from gazette_spark import Client
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.consumer import shard_spec
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL, Sum, crc64
from gazette_spark.message import OUTSIDE_TXN, Clock, build_uuid, new_producer_id, read_committed
from tests.rig.brokers import DeployedBroker

DATA_BYTES = 100
CHUNKS = 100
"""Number of chunks with data in a stream. A chunk that ends the stream follows."""
OPEN_STREAMS = 10
"""Number of streams in a journal whose chunks alternate."""
APPEND_LINES = 20_000
ROUND_CHUNKS = 5
"""Number of chunks of each of many shards in a transaction."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurements."""

    turns: Mapping[str, int]
    """Number of streams in each journal, in tens, by host."""
    warm_turns: int
    appends: Mapping[str, int]
    """Number of latencies to measure, by host."""
    shards: int
    rounds: int


SMALL = Sizes({GO: 2, LOCAL: 1, SPARK: 1}, 1, {GO: 3, LOCAL: 3, SPARK: 2}, 4, 1)
TIMED = Sizes({GO: 400, LOCAL: 60, SPARK: 100}, 10, {GO: 200, LOCAL: 200, SPARK: 40}, 1000, 3)


ABOUT = f"""`make bench-consumer`: `stream-sum`, real broker, chunks of {DATA_BYTES} bytes of data, Spark on
two cores; {{date}}.
{{machine}}.

The first table shows the rate of two shards, from Apply until both have read everything. `max_txn_duration`
is 1 s, on Spark 30 s. The second table shows the latency from the append of a chunk until Stat includes it,
after its commit and the acknowledgements. The third table shows queries
that consume {ROUND_CHUNKS} chunks of each shard in one transaction, and end."""

HOSTS = ("go", "local", "spark")

TABLES = {
    "rate": (
        "| host | messages | time | per second and shard | both shards | CPU, µs per message |\n"
        "|---|---|---|---|---|--|"
    ),
    "latency": "| host | appends | median | p95 | maximum |\n|---|---|---|---|---|",
    "shards": "| shards | transaction | whole query | memory of the JVM | of Python |\n|---|---|---|---|---|",
}


class Chunks:
    """Writes streams of chunks. The data of all streams are the same, so their sums are known."""

    def __init__(self, client: Client, chunks: int = CHUNKS) -> None:
        self._client = client
        drawn = random.Random(1)
        data = [drawn.randbytes(DATA_BYTES) for _ in range(chunks)]
        self._tails = [f'"Data":"{base64.b64encode(each).decode()}"}}\n' for each in data]
        self._tails.append('"Data":null}\n')
        self._value = crc64(b"".join(data))
        self._producer = new_producer_id()
        self._clock = Clock.at(time.time_ns())
        self._expected: Counter[bytes] = Counter()
        self._read_from = client.write_head(SUMS_JOURNAL)

    def fill(self, journal: str, turns: int) -> int:
        """Append ten streams with alternating chunks, several times; return the number of messages."""
        lines: list[bytes] = []
        total = 0
        for _ in range(turns):
            for line in self._lines([self._stream() for _ in range(OPEN_STREAMS)]):
                lines.append(line)
                total += 1
            if len(lines) >= APPEND_LINES:
                self._client.append(journal, b"".join(lines))
                lines = []
        if lines:
            self._client.append(journal, b"".join(lines))
        return total

    def one_stream(self) -> Iterator[bytes]:
        """Yield the chunks of a stream, all of which must be appended."""
        return self._lines([self._stream()])

    def _stream(self) -> bytes:
        stream = secrets.token_bytes(16)
        self._expected[stream] += 1
        return stream

    def _lines(self, streams: list[bytes]) -> Iterator[bytes]:
        heads = [f'"ID":{list(stream)},'.replace(" ", "") for stream in streams]
        for number, tail in enumerate(self._tails, 1):
            for head in heads:
                self._clock = self._clock.ticked()
                stamp = build_uuid(self._producer, self._clock, OUTSIDE_TXN)
                yield f'{{"UUID":"{stamp}",{head}"SeqNo":{number},{tail}'.encode()

    def check(self) -> None:
        """Compare the sums that were published in the meantime with the right ones."""
        found: Counter[bytes] = Counter()
        with read_committed(self._client, SUMS_JOURNAL, Sum.parse, offset=self._read_from) as reader:
            for envelope in reader:
                each = envelope.message
                assert isinstance(each, Sum)
                if each.seq_no:
                    found[each.stream] += 1
                    if (each.seq_no, each.value) != (len(self._tails), self._value):
                        raise SystemExit(f"a sum is wrong: {each}")
        if found != self._expected:
            missing, extra = self._expected - found, found - self._expected
            raise SystemExit(f"{missing.total()} sums are missing, {extra.total()} are too many")


def measure_rate(host: Running, sizes: Sizes) -> str:
    """Let a host consume two full journals; return the row of the table."""
    chunks = Chunks(host.client)
    warm, *journals = host.create("warm", "part-0", "part-1")
    chunks.fill(warm, sizes.warm_turns)
    host.apply(warm)
    host.wait(host.client.write_heads([warm]))
    messages = sum(chunks.fill(journal, sizes.turns[host.name]) for journal in journals)
    heads = host.client.write_heads(journals)
    with host.cpu() as cpu:
        began = time.perf_counter()
        host.apply(*journals)
        host.wait(heads)
        seconds = time.perf_counter() - began
    chunks.check()
    return rate_row(host, messages, sum(heads.values()), seconds, cpu)


def rate_row(host: Running, messages: int, size: int, seconds: float, cpu: Cpu) -> str:
    """Return a row of the table of rates."""
    return (
        f"| {host.name} | {messages:,} | {seconds:.1f} s | {messages / seconds / 2:,.0f} | "
        f"{size / seconds / 1e6:.1f} MB/s | {cpu.per(messages)} |"
    )


def measure_latency(host: Running, label: str, sizes: Sizes) -> str:
    """Append chunks one by one, and wait for each; return the row of the table."""
    chunks = Chunks(host.client)
    (journal,) = host.create(f"latency-{secrets.token_hex(3)}")
    host.apply(journal)
    drawn = random.Random(1)
    times: list[float] = []
    wanted = sizes.appends[host.name]
    lines = chunks.one_stream()
    for number in range(wanted + 3):
        line = next(lines, None)
        if line is None:
            lines = chunks.one_stream()
            line = next(lines)
        if number >= 3:  # The first chunks start the shard.
            time.sleep(drawn.uniform(0, 0.2))  # Keeps appends out of step with ticks.
        began = time.perf_counter()
        end = host.client.append(journal, line).end
        host.wait({journal: end})
        times.append(time.perf_counter() - began)
    host.client.append(journal, b"".join(lines))
    host.wait(host.client.write_heads([journal]))
    chunks.check()
    cuts = quantiles(times[3:], n=20, method="inclusive")
    return (
        f"| {host.name}{label} | {wanted} | {1000 * median(times[3:]):.0f} ms | {1000 * cuts[-1]:.0f} ms | "
        f"{1000 * max(times[3:]):.0f} ms |"
    )


def measure_shards(
    spark: SparkSession, broker: DeployedBroker, client: Client, folder: Path, sizes: Sizes
) -> list[str]:
    """Let one query consume chunks of many shards, one transaction per round; return rows of the table."""
    names = [f"bench/many/part-{number:04}" for number in range(sizes.shards)]
    client.create_journals(*(journal_spec(name, labels=NDJSON) for name in names))
    specs = [shard_spec(shard_of(name), [name], max_txn_s=30.0) for name in names]
    rounds = [
        "new shards, cold",
        *["warm"] * sizes.rounds,
        "warm, each publishes",
    ]
    chunks = Chunks(client, len(rounds) * ROUND_CHUNKS - 1)
    streams = {name: chunks.one_stream() for name in names}
    rows = []
    for label in [*rounds, "warm, all but one idle"]:
        if label not in rounds:
            streams = {names[0]: chunks.one_stream()}
        with AppendService(client, timeout_s=60) as service:
            for name, stream in streams.items():
                service.append(name, b"".join(islice(stream, ROUND_CHUNKS if label in rounds else None)))
        began = time.perf_counter()
        query = new_spark_host(spark, broker, folder, specs).start(availableNow=True)
        if not query.awaitTermination(int(TIMEOUT_S)):
            raise SystemExit("the query did not end in time")
        whole_s = time.perf_counter() - began
        batch_s = max(each["durationMs"]["triggerExecution"] for each in query.recentProgress) / 1000
        jvm, python = (size / 1e6 for size in driver_bytes())
        cells = (f"{len(names):,}, {label}", f"{batch_s:.1f} s", f"{whole_s:.1f} s", f"{jvm:.0f} MB")
        rows.append(show(f"| {' | '.join(cells)} | {python:.0f} MB |"))
    chunks.check()
    return rows


def measure(wanted: set[str], hosts: set[str], sizes: Sizes, folder: Path) -> dict[str, list[str]]:
    """Measure everything that is requested; return the rows of each table."""
    found: dict[str, list[str]] = {name: [] for name in TABLES}

    def take(host: Running, label: str, tables: set[str]) -> None:
        if "rate" in tables & wanted:
            found["rate"].append(show(measure_rate(host, sizes)))
        if "latency" in tables & wanted:
            found["latency"].append(show(measure_latency(host, label, sizes)))

    with DeployedBroker(folder / "broker") as broker, Client(broker.endpoint, timeout_s=60) as client:
        client.create_journals(journal_spec(SUMS_JOURNAL, labels=NDJSON))
        for name, start in (("go", go_host), ("local", local_host)):
            if name in hosts and wanted & {"rate", "latency"}:
                with start(broker, client, folder) as host:
                    take(host, "", {"rate", "latency"})
        if "spark" not in hosts:
            return found
        with local_session(folder) as spark:
            for trigger, tables in (("0 seconds", {"rate", "latency"}), ("100 milliseconds", {"latency"})):
                if wanted & tables:
                    with spark_host(spark, broker, client, folder, trigger) as host:
                        take(host, f", trigger {trigger}", tables)
            if "shards" in wanted:
                found["shards"] += measure_shards(spark, broker, client, folder / "many", sizes)
    return found


def show(row: str) -> str:
    """Print a row immediately, and return it."""
    print(row, flush=True)
    return row


def report(found: Mapping[str, list[str]]) -> str:
    """Return the tables that have rows."""
    return "\n\n".join("\n".join([TABLES[name], *rows]) for name, rows in found.items() if rows)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--timed", action="store_true", help="use enough messages for meaningful times")
    parser.add_argument("--report", action="store_true", help="write the performance page")
    for flag, choices in (("--only", TABLES), ("--host", HOSTS)):
        parser.add_argument(flag, choices=[*choices], action="append", help="measure only this; repeatable")
    options = parser.parse_args()
    about = machine()
    with tempfile.TemporaryDirectory(prefix="consumer-bench-", ignore_cleanup_errors=True) as name:
        wanted, hosts = set(options.only or TABLES), set(options.host or HOSTS)
        found = measure(wanted, hosts, TIMED if options.timed else SMALL, Path(name))
    print("each stream is summed right, and once")
    if not options.timed:
        return
    text = f"{ABOUT.format(date=f'{datetime.now(UTC):%Y-%m-%d}', machine=about)}\n\n{report(found)}"
    print(text)
    if options.report:
        write_section(REPORT, "Consumers beside Gazette's", text)


if __name__ == "__main__":
    main()
