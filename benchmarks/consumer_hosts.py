"""Runs the hosts that ``consumer_bench`` measures: Gazette's consumer, the local host, and the host on Spark.

Each serves ``consumer.Shard``, through which it gets its shards and reports their progress. The first two are
separate processes; Spark's driver is this process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench_processes import measured, process_cpu_s
from pyspark.sql import SparkSession

from gazette_spark import Client, local_spark
from gazette_spark.client import journal_spec
from gazette_spark.consumer import ShardServer, SparkHost, shard_spec
from gazette_spark.consumer.client import ShardClient
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL, StreamSum
from gazette_spark.consumer.specs import recovery_log
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_NDJSON, CONTENT_TYPE_RECOVERY_LOG
from tests.rig.brokers import DeployedBroker
from tests.rig.gazctl import clean_environment, find_binary

TIMEOUT_S = 240.0
NDJSON = {CONTENT_TYPE: CONTENT_TYPE_NDJSON}
KEYS = "YmVuY2htYXJr"
"""Key for tokens, which Gazette's consumer always requires."""

GO = "Gazette's, `JSONFileStore`"
LOCAL = "local, `JsonFileStore`"
SPARK = "Spark, Delta"


@dataclass
class Running:
    """A running host, with the brokers from which it reads. Not thread-safe."""

    name: str
    short: str
    """A part of the journals' names."""
    shards: ShardClient
    client: Client
    max_txn_s: float = 1.0
    records: bool = True
    """Whether stores have recovery logs."""
    pid: int = 0
    """Id of the host's process; 0 for Spark's driver."""

    def create(self, *shorts: str) -> list[str]:
        """Create journals of chunks, and return their names."""
        names = [f"bench/{self.short}/{short}" for short in shorts]
        self.client.create_journals(*(journal_spec(name, labels=NDJSON) for name in names))
        return names

    def apply(self, *journals: str) -> None:
        """Give the host a shard for each journal, with the same name."""
        logs = f"recovery/{self.short}" if self.records else ""
        specs = [
            shard_spec(shard_of(each), [each], recovery_log_prefix=logs, max_txn_s=self.max_txn_s)
            for each in journals
        ]
        if self.records:
            labels = {CONTENT_TYPE: CONTENT_TYPE_RECOVERY_LOG}
            self.client.create_journals(*(journal_spec(recovery_log(spec), labels=labels) for spec in specs))
        self.shards.apply([pc.ApplyRequest.Change(upsert=spec) for spec in specs])

    def wait(self, heads: Mapping[str, int]) -> None:
        """Wait until the journals' shards have read through offsets."""
        for journal, head in heads.items():
            self.shards.stat(shard_of(journal), {journal: head}, timeout_s=TIMEOUT_S)

    @contextmanager
    def cpu(self) -> Iterator[Cpu]:
        """Measure the CPU seconds used during the block."""
        found = Cpu()
        before_s = process_cpu_s(self.pid) if self.pid else 0.0
        with measured() as usage:
            yield found
            if self.pid:
                found.by_process["consumer"] = process_cpu_s(self.pid) - before_s
        names = ("broker",) if self.pid else ("JVM", "Python", "broker")
        found.by_process |= {name: usage.cpu_s[name] for name in names}


@dataclass
class Cpu:
    """CPU seconds."""

    by_process: dict[str, float] = field(default_factory=dict)

    def per(self, messages: int) -> str:
        """Return the microseconds per message, as a cell of a table."""
        return ", ".join(f"{name} {1e6 * s / messages:.1f}" for name, s in self.by_process.items())


def shard_of(journal: str) -> str:
    """Return the id of a journal's shard."""
    return f"sum-{journal.rpartition('/')[2]}"


@contextmanager
def go_host(broker: DeployedBroker, client: Client, folder: Path) -> Iterator[Running]:
    """Run the consumer of ``goclient``."""
    flags = [f"--broker={broker.endpoint}", f"--etcd={broker.etcd_url}", f"--auth-keys={KEYS}"]
    command = [str(find_binary("goclient")), "consume", f"--sums={SUMS_JOURNAL}", *flags]
    with (
        _process(command, {}, folder / "go.log", lambda line: json.loads(line)["endpoint"]) as (
            pid,
            endpoint,
        ),
        ShardClient(endpoint, auth_keys=KEYS, timeout_s=TIMEOUT_S) as shards,
    ):
        yield Running(GO, "go", shards, client, pid=pid)


@contextmanager
def local_host(broker: DeployedBroker, client: Client, folder: Path) -> Iterator[Running]:
    """Run ``gazette-spark consumer serve``."""
    app = f"{StreamSum.__module__}:{StreamSum.__name__}"
    flags = ["--port=0", f"--hints={folder / 'hints'}", f"--work-dir={folder / 'work'}"]
    command = [sys.executable, "-m", "gazette_spark.cli", "consumer", "serve", app, *flags]
    env = {"BROKER_ADDRESS": broker.endpoint}
    with (
        _process(command, env, folder / "local.log", str.strip) as (pid, endpoint),
        ShardClient(endpoint, timeout_s=TIMEOUT_S) as shards,
    ):
        yield Running(LOCAL, "local", shards, client, pid=pid)


@contextmanager
def _process(
    command: list[str], env: dict[str, str], log: Path, endpoint_of: Callable[[str], str]
) -> Iterator[tuple[int, str]]:
    """Run a server that prints its endpoint on its first line; yield its process id and the endpoint."""
    pipe = subprocess.PIPE
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=clean_environment() | env
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.pid, endpoint_of(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def local_session(folder: Path) -> Iterator[SparkSession]:
    """Run Spark on two cores, with the optimizing compiler."""
    conf = {"spark.databricks.delta.snapshotPartitions": "1"}
    spark = local_spark(folder / "spark", conf=conf, java_options="")
    try:
        yield spark
    finally:
        spark.stop()


def new_spark_host(
    spark: SparkSession, broker: DeployedBroker, folder: Path, shards: list[pc.ShardSpec]
) -> SparkHost:
    """Return a host on Spark with its files in a folder."""
    return SparkHost(
        StreamSum(),
        spark,
        shards,
        checkpoint=str(folder / "checkpoint"),
        state=str(folder / "state"),
        broker={"brokerAddress": broker.endpoint, "requestTimeoutMs": "60000"},
    )


@contextmanager
def spark_host(
    spark: SparkSession, broker: DeployedBroker, client: Client, folder: Path, trigger: str
) -> Iterator[Running]:
    """Run a query in a session, and serve its shards."""
    short = f"spark-{trigger.replace(' ', '-')}"
    host = new_spark_host(spark, broker, folder / short, [])
    with ShardServer() as server, ShardClient(server.endpoint, timeout_s=TIMEOUT_S) as shards:
        host.shards.serve_at(server.endpoint)
        server.start(host.shards)
        query = host.start(processingTime=trigger)
        try:
            yield Running(SPARK, short, shards, client, max_txn_s=30.0, records=False)
            if (error := query.exception()) is not None:
                raise SystemExit(f"the query failed: {error}")
        finally:
            query.stop()
