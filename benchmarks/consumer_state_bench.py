"""Measures a transaction of the host on Spark, by the number of keys in the state and of touched keys.

    .venv/bin/python benchmarks/consumer_state_bench.py                      # small; only checks the counts
    .venv/bin/python benchmarks/consumer_state_bench.py --timed --keys 1m --keys 10m --report

Spark fills the state of one shard directly, sorted as the host leaves it. Then messages for random keys are
published on an embedded broker, and one transaction consumes them: planned, run, committed and acknowledged.
The state grows with the files of earlier transactions, which a host compacts every hundred transactions.

Each touched key is counted once per transaction, which is checked unless times are measured.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench_processes import measured
from consumer_hosts import NDJSON, local_session
from harness import REPORT, machine, parse_size, running_broker, write_section
from pyspark.sql import SparkSession

from gazette_spark import Client
from gazette_spark._delta.session import session_settings
from gazette_spark._options.write import parse_write_options
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.consumer import JsonMessage, shard_spec
from gazette_spark.consumer.batch_driver import BatchDriver
from gazette_spark.consumer.examples.word_count import CONTENT_TYPE, WordCount
from gazette_spark.consumer.micro_batch import STATE
from gazette_spark.consumer.spark import LAYOUT, MAX_BATCH_BYTES, SparkBatchEngine, StateTable
from gazette_spark.consumer.spark_shards import SparkShards
from gazette_spark.message import Publisher, write_ack_intents

TITLE = "State on Spark"
JOURNAL, SHARD = "bench/state", "counts"
FILE_KEYS = 1_000_000
"""Number of keys per file of the filled state, about as many as the host writes to one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Transactions of one kind."""

    keys: int
    touched: int
    seconds: float
    cpu_s: float
    """CPU seconds of the JVM and the Python workers."""
    files: int
    """Number of the state's files that Delta lists for the touched keys."""

    def row(self) -> str:
        """Return a row of the report's table."""
        times = f"{self.seconds:.1f} s | {self.cpu_s:.1f} s"
        return f"| {self.keys:,} | {self.touched:,} | {times} | {self.files} |"


class Host:
    """A state table with a number of keys, and the host of its shard."""

    def __init__(self, spark: SparkSession, client: Client, folder: Path, keys: int) -> None:
        """Fill the table."""
        self.spark, self.client, self.keys = spark, client, keys
        self.path = str(folder / "state")
        self.table = StateTable("counts", path=self.path, table=None)
        options = parse_write_options({"brokerAddress": client.endpoint, "requestTimeoutMs": "60000"})
        shards = SparkShards("counts", [shard_spec(SHARD, [f"{JOURNAL}/{keys}"], max_txn_s=600)], client)
        self.driver = BatchDriver(shards, client, MAX_BATCH_BYTES)
        self.engine = SparkBatchEngine(
            spark, shards.name, WordCount(), options, self.table, str(folder / "batch")
        )
        client.create_journals(journal_spec(f"{JOURNAL}/{keys}", labels=NDJSON))
        self.driver.open(self.engine)
        rows = spark.range(0, keys, 1, -(-keys // FILE_KEYS)).selectExpr(
            f"'{SHARD}' AS shard",
            f"'{STATE}' AS kind",
            "concat('customer-', lpad(id, 12, '0')) AS `key`",
            "cast(id % 100000 AS string) AS value",
            "cast(null AS binary) AS checkpoint",
            "0L AS txn",
        )
        with session_settings(spark, LAYOUT):
            rows.write.format("delta").mode("append").save(self.path)

    def transaction(self, touched: Sequence[int]) -> tuple[float, float]:
        """Publish messages for some keys and consume them; return the seconds and the CPU seconds."""
        mapping = (f"{JOURNAL}/{self.keys}", CONTENT_TYPE)
        with AppendService(self.client) as service:
            publisher = Publisher(service)
            for key in touched:
                message = JsonMessage({"ngram": f"customer-{key:012}", "count": 1})
                publisher.publish_uncommitted(lambda _: mapping, message)
            service.flush()
            write_ack_intents(self.client, publisher.build_ack_intents())
        began_s = time.monotonic()
        with measured() as usage:
            assert self.driver.transaction(self.engine), "nothing was consumed"
        return time.monotonic() - began_s, usage.cpu_s["JVM"] + usage.cpu_s["Python"]

    def measure(self, touched: int, times: int) -> Measured:
        """Run transactions that touch random keys, after one that does not count."""
        draw = random.Random(touched)
        figures = [self.transaction(draw.sample(range(self.keys), touched)) for _ in range(times + 1)][1:]
        seconds, cpu_s = zip(*figures, strict=True)
        names = [(SHARD, f"customer-{key:012}") for key in draw.sample(range(self.keys), touched)]
        asked = self.spark.createDataFrame(names, "shard STRING, `key` STRING")
        files = self.table.state(self.spark, [SHARD], asked).inputFiles()
        return Measured(self.keys, touched, median(seconds), median(cpu_s), len({*files}))

    def check(self, counted: int) -> None:
        """Check that each message was counted once, and that each key occurs once."""
        rows = self.spark.read.format("delta").load(self.path).where(f"kind = '{STATE}'")
        keys, total = rows.selectExpr("count(DISTINCT `key`)", "sum(cast(value AS bigint))").first() or (0, 0)
        before = self.spark.range(self.keys).selectExpr("sum(id % 100000)").first()
        assert before is not None
        assert (keys, rows.count(), total) == (self.keys, self.keys, before[0] + counted)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keys", type=parse_size, action="append", help="keys of the state, such as 1m")
    parser.add_argument("--touched", type=int, action="append", help="keys of a transaction")
    parser.add_argument("--timed", action="store_true", help="touch 1, 100 and 10,000 keys; check no count")
    parser.add_argument("--times", type=int, default=1, help="transactions of a kind")
    parser.add_argument("--folder", type=Path, help="where the tables are; by default a temporary folder")
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    default = (1, 100, 10_000) if given.timed else (1, 20)
    kinds = [(touched, given.times) for touched in given.touched or default]
    header = "| keys | keys touched | transaction | CPU | files of the state |\n|---|---|---|---|---|"
    print(header, flush=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=given.folder) as directory:
        root = Path(directory)
        with (
            running_broker("embedded", root) as (endpoint, _),
            Client(endpoint, timeout_s=60) as client,
            local_session(root) as spark,
        ):
            for keys in given.keys or [10_000]:
                host = Host(spark, client, root / str(keys), keys)
                for touched, times in kinds:
                    rows.append(host.measure(touched, times).row())
                    print(rows[-1], flush=True)
                if not given.timed:
                    host.check(sum(touched * (times + 1) for touched, times in kinds))
    if given.report:
        about = (
            "one shard, an application that adds counts, keys at random. Each transaction is planned, run, "
        )
        about += f"committed and acknowledged; medians. {machine()}."
        text = "\n".join([f"`make bench-consumer-state`: {about}\n", header, *rows])
        write_section(REPORT, TITLE, text)


if __name__ == "__main__":
    main()
