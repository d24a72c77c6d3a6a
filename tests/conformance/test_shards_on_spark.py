"""``gazctl shards`` against the driver of the host on Spark, whose tasks run in this process."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from gazette_spark import Client
from gazette_spark._options.write import parse_write_options
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.consumer import ShardServer
from gazette_spark.consumer.batch_driver import BatchDriver
from gazette_spark.consumer.client import ShardClient
from gazette_spark.consumer.spark_shards import SparkShards
from gazette_spark.message import Publisher
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.brokers import BrokerHandle
from tests.rig.gazctl import clean_environment, find_binary
from tests.rig.messages import Document
from tests.rig.micro_batches import MemoryEngine, MemoryTable, Refusing

pytestmark = pytest.mark.brokers("embedded")

WAIT_S = 30

SPECS = """
common: {{max_txn_duration: 1s}}
shards:
  - {{id: on-a, sources: [{{journal: {prefix}a}}]}}
  - {{id: on-b, sources: [{{journal: {prefix}b}}]}}
"""


@contextmanager
def running(driver: BatchDriver, engine: MemoryEngine) -> Iterator[None]:
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            if not driver.transaction(engine):
                ended.wait(0.05)

    driver.open(engine)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(WAIT_S)


def test_gazctl_applies_lists_and_unassigns(broker: BrokerHandle, fresh_prefix: str, tmp_path: Path) -> None:
    def gazctl(*args: str, given: str = "") -> str:
        done = subprocess.run(
            [str(find_binary("gazctl")), "shards", *args],
            input=given,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            env=clean_environment()
            | {"CONSUMER_ADDRESS": server.endpoint, "BROKER_ADDRESS": broker.endpoint},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def publish(short: str, text: str) -> dict[str, int]:
        with AppendService(client) as service:
            to = (f"{fresh_prefix}{short}", CONTENT_TYPE_NDJSON)
            Publisher(service).publish_committed(lambda _: to, Document({"text": text})).result()
        return {to[0]: client.write_head(to[0])}

    with (
        Client(broker.endpoint, timeout_s=WAIT_S) as client,
        ShardServer() as server,
        ShardClient(server.endpoint, timeout_s=WAIT_S) as shards,
    ):
        labels = {"content-type": CONTENT_TYPE_NDJSON}
        names = (f"{fresh_prefix}{short}" for short in ("a", "b", "out"))
        client.create_journals(*(journal_spec(name, labels=labels) for name in names))
        refusal = tmp_path / "refused"
        refusal.touch()
        app = Refusing(f"{fresh_prefix}out", str(refusal))
        options = parse_write_options({"brokerAddress": broker.endpoint, "requestTimeoutMs": "30000"})
        driven = SparkShards("/tests", [], client)
        driven.table.serve_at(server.endpoint)
        server.start(driven.table)
        with running(BatchDriver(driven, client, 1 << 20), MemoryEngine(MemoryTable(), app, options)):
            gazctl("apply", "--specs", "-", given=SPECS.format(prefix=fresh_prefix))
            progress = shards.stat("on-b", publish("b", "fine"))
            assert progress.publish_at == {f"{fresh_prefix}out": client.write_head(f"{fresh_prefix}out")}
            with pytest.raises(Exception, match="SHARD_STOPPED"):
                shards.stat("on-a", publish("a", "poison"))
            assert "FAILED" in gazctl("list", "-l", "id=on-a")
            assert "PRIMARY" in gazctl("list", "-l", "id=on-b")
            listed = yaml.safe_load(gazctl("list", "-o", "yaml"))
            listed["common"]["max_txn_duration"] = "5s"
            listed["shards"] = [each for each in listed["shards"] if each["id"] == "on-b"]
            gazctl("apply", "--specs", "-", given=yaml.safe_dump(listed))
            assert "FAILED" in gazctl("list", "-l", "id=on-a")
            refusal.unlink()
            gazctl("unassign", "-l", "id in (on-a, on-b)", "--failed")
            assert shards.stat("on-a", {f"{fresh_prefix}a": client.write_head(f"{fresh_prefix}a")})
            codes = [each.status[0].code for each in shards.list_shards()]
            assert codes == [pc.ReplicaStatus.PRIMARY] * 2
