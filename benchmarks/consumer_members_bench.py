"""Compares clusters of one, two or four consumer processes, of ours and of Gazette's in Go.

    .venv/bin/python benchmarks/consumer_members_bench.py

On a real broker, four journals are filled with chunks of ``stream-sum``, and the members join. Then the
shards of the journals are written to Etcd, and the time ends when all sums are published. After that, the
members are idle for a while. Rows show:

- messages per second of all members together, and the members' CPU time per message
- Etcd's transactions per second, under load and idle
- the CPU time of an idle member

Only compare rows of the same run, because the numbers depend on other work on the machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from bench_processes import process_cpu_s
from consumer_bench import Chunks
from consumer_hosts import NDJSON
from harness import machine

from gazette_spark import Client
from gazette_spark.client import journal_spec
from gazette_spark.consumer import shard_spec
from gazette_spark.consumer._cluster.etcd import EtcdClient, put
from gazette_spark.consumer._cluster.mirror import ClusterMirror
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL
from gazette_spark.consumer.specs import recovery_log
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG
from tests.rig.brokers import DeployedBroker
from tests.rig.consumer_cluster import MemberProcess, go_member, our_member, running
from tests.rig.stream_sum import sums_since
from tests.waiting import wait_until

SHARDS = 4
STREAMS_EACH = 10
"""Number of streams in each turn of :class:`Chunks`."""
TURNS = {"py": 30, "go": 120}
"""Number of turns in each journal, enough for some seconds."""
IDLE_S = 20.0
TIMEOUT_S = 300.0

HEAD = (
    "| members | messages a second | CPU, µs a message | Etcd's transactions a second | the same, idle | "
    "CPU of an idle member |\n|---|---|---|---|---|---|"
)


def transactions(etcd_url: str) -> float:
    """Return the number of transactions that Etcd has made for its clients."""
    lines = httpx.get(f"{etcd_url}/metrics").text.splitlines()
    begin = 'grpc_server_handled_total{grpc_code="OK",grpc_method="Txn"'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(begin))


def measure(broker: DeployedBroker, client: Client, kind: str, count: int, folder: Path) -> str:
    """Let members of a kind consume four full journals; return a row of the table."""
    name = f"{kind}-{count}"
    prefix, etcd_url = f"/bench/{name}", broker.etcd_url
    chunks = Chunks(client)
    journals = [f"bench/{name}/part-{number}" for number in range(SHARDS)]
    client.create_journals(*(journal_spec(journal, labels=NDJSON) for journal in journals))
    specs = [
        shard_spec(f"{name}-{number}", [journal], recovery_log_prefix=f"logs/{name}", max_txn_s=1.0)
        for number, journal in enumerate(journals)
    ]
    labels = {CONTENT_TYPE: CONTENT_TYPE_RECOVERY_LOG}
    client.create_journals(*(journal_spec(recovery_log(spec), labels=labels) for spec in specs))
    begin = client.write_head(SUMS_JOURNAL)
    messages = sum(chunks.fill(journal, TURNS[kind]) for journal in journals)
    expected = SHARDS * TURNS[kind] * STREAMS_EACH

    empty = folder / "none.yaml"
    empty.write_text("shards: []\n")
    commands: list[Sequence[str | Path]] = [
        [*our_member(f"py-{number}", broker, [etcd_url], prefix, empty), "--lease", "20"]
        if kind == "py"
        else [*go_member(f"go-{number}", broker, etcd_url, prefix), "--lease=20s"]
        for number in range(count)
    ]
    members = [
        MemberProcess(str(number), command, folder / f"{name}-{number}.log")
        for number, command in enumerate(commands)
    ]
    with running(members), EtcdClient([etcd_url]) as etcd, ClusterMirror(etcd, prefix) as mirror:
        mirror.start()
        wait_until("all are members", lambda: len(mirror.state.members) == count)

        def cpu_s() -> float:
            return sum(process_cpu_s(member.pid) for member in members)

        before_s, before = cpu_s(), transactions(etcd_url)
        began_s = time.perf_counter()
        etcd.txn([], [put(f"{prefix}/items/{spec.id}", spec.SerializeToString()) for spec in specs])
        wait_until("all is summed", lambda: sums_since(client, begin) == expected, TIMEOUT_S)
        took_s = time.perf_counter() - began_s
        used_s, made = cpu_s() - before_s, transactions(etcd_url) - before
        chunks.check()

        time.sleep(2)
        before_s, before = cpu_s(), transactions(etcd_url)
        time.sleep(IDLE_S)
        idle_share, idle = (cpu_s() - before_s) / count / IDLE_S, transactions(etcd_url) - before
    kinds = {"py": "ours", "go": "in Go"}
    return (
        f"| {count} {kinds[kind]} | {messages / took_s:,.0f} | {1e6 * used_s / messages:.1f} | "
        f"{made / took_s:.1f} | {idle / IDLE_S:.2f} | {100 * idle_share:.1f} % |"
    )


def main() -> None:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory(prefix="members-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with DeployedBroker(folder / "broker") as broker, Client(broker.endpoint, timeout_s=60) as client:
            client.create_journals(journal_spec(SUMS_JOURNAL, labels=NDJSON))
            print(f"{machine()}\n\n{HEAD}", flush=True)
            for kind, count in (("py", 1), ("py", 2), ("py", 4), ("go", 1), ("go", 2)):
                print(measure(broker, client, kind, count, folder), flush=True)


if __name__ == "__main__":
    main()
