"""``gazette-spark consumer serve`` runs an application that other programs query and change."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from gazette_spark import Client
from gazette_spark.cli.main import main
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.message import Publisher
from gazette_spark.protocol import consumer_pb2 as pc
from tests.rig.brokers import BrokerHandle
from tests.rig.consumers import NDJSON, number
from tests.rig.gazctl import clean_environment, find_binary
from tests.waiting import wait_until

pytestmark = pytest.mark.brokers("embedded")

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60.0

APPLICATION = '''
import json
import uuid
from concurrent.futures import Future

from gazette_spark.consumer import Application
from gazette_spark.protocol import consumer_pb2 as pc
from tests.rig.messages import Document


class Forgetful:
    """Keeps nothing: each assignment reads all again."""

    def restore_checkpoint(self):
        return pc.Checkpoint()

    def start_commit(self, checkpoint, wait_for):
        done = Future()
        done.set_result(None)
        return done

    def destroy(self):
        pass


class Counting(Application):
    def new_store(self, shard):
        return Forgetful()

    def new_message(self, spec, record):
        fields = json.loads(record)
        return Document(fields, stamp=uuid.UUID(fields.pop("_meta")["uuid"]))

    def consume_message(self, shard, store, envelope, publisher):
        if envelope.message.fields.get("key") == "boom":
            raise ValueError("boom is no number")

    def finalize_txn(self, shard, store, publisher):
        pass

'''


class Process:
    def __init__(self, broker: BrokerHandle, prefix: str, folder: Path, *options: str) -> None:
        self.journal = f"{prefix}numbers"
        (folder / "counting.py").write_text(APPLICATION)
        (folder / "shards.yaml").write_text(
            "common: {max_txn_duration: 1s}\n"
            "shards: [{id: shard-000, revision: -1, hot_standbys: 1, "
            f"sources: [{{journal: {self.journal}}}]}}]\n"
        )
        self.client = Client(broker.endpoint)
        self.client.create_journals(journal_spec(self.journal, labels=NDJSON), exist_ok=True)
        self.environment = {
            **clean_environment(),
            "BROKER_ADDRESS": broker.endpoint,
            "PYTHONPATH": str(ROOT),
        }
        command = ["consumer", "serve", "counting:Counting", "--specs", "shards.yaml", "--port", "0"]
        command += ["--metrics-port", "0", "--max-restart-delay", "0"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gazette_spark.cli", *command, *options],
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().strip()
        self.metrics = self.process.stdout.readline().strip()
        self.environment["CONSUMER_ADDRESS"] = self.endpoint

    def publish(self, key: str) -> int:
        with AppendService(self.client, timeout_s=TIMEOUT_S) as service:
            publisher = Publisher(service)
            publisher.publish_committed(lambda _: (self.journal, NDJSON["content-type"]), number(key))
            service.flush()
        return self.client.write_head(self.journal)

    def run(self, *args: str) -> str:
        done = CliRunner(env=self.environment).invoke(main, ["shards", *args])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def gazctl(self, *args: str) -> str:
        command = [str(find_binary("gazctl")), "shards", *args]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=self.environment
        ).stdout

    def status(self) -> pc.ReplicaStatus:
        (shard,) = json.loads(self.gazctl("list", "-o", "json"))["shards"]
        (status,) = shard["status"]
        return pc.ReplicaStatus(code=status["code"], errors=status["errors"])

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def consumer(broker: BrokerHandle, fresh_prefix: str, tmp_path: Path) -> Iterator[Process]:
    made = Process(broker, fresh_prefix, tmp_path)
    yield made
    made.close()


def test_an_application_is_served(consumer: Process) -> None:
    end = consumer.publish("a")
    assert consumer.run("stat", "shard-000", "-r", f"{consumer.journal}={end}").split()[-2:] == [
        consumer.journal,
        str(end),
    ]
    assert consumer.status() == pc.ReplicaStatus(code=pc.ReplicaStatus.PRIMARY)
    assert f"{consumer.journal}:0" in consumer.gazctl("list", "--lag")
    metrics, shard = httpx.get(consumer.metrics).text, "/gazette-spark/consumers/Counting/items/shard-000"
    assert f'gazette_shard_transactions_total{{shard="{shard}"}} 1' in metrics
    assert f'gazette_shard_read_messages_total{{shard="{shard}"}} 1' in metrics
    assert f'gazette_shard_read_bytes_total{{shard="{shard}"}} {end}' in metrics
    assert f'gazette_shard_read_head{{shard="{shard}",journal="{consumer.journal}"}} {end}' in metrics
    phases = re.findall(r'gazette_shard_phase.*phase="(.*?)",type="(a?sync)"} \d+\.\d+', metrics)
    assert phases == [
        ("10-not-running", "sync"),
        ("20-consuming", "sync"),
        ("30-stalled", "sync"),
        ("40-preparing", "sync"),
        ("50-committing", "async"),
        ("60-acknowledging", "async"),
    ]
    consumer.publish("boom")
    wait_until("it fails", lambda: consumer.status().code == pc.ReplicaStatus.FAILED)
    assert "boom is no number" in consumer.status().errors[0]
    assert 'gazette_shard_up{shard="shard-000",status="FAILED"} 1' in httpx.get(consumer.metrics).text
    assert httpx.get(f"{consumer.metrics}/other").status_code == 404
    (failed,) = json.loads(consumer.run("list", "-o", "jsonl").join("[]"))
    consumer.gazctl("unassign", "--failed", "-l", "id=shard-000")
    assert "shard-000" in consumer.run("unassign", "-l", "id=shard-000")
    (listed,) = json.loads(consumer.run("list", "-o", "jsonl").join("[]"))
    assert (failed["status"], listed["mod_revision"]) == ("FAILED", failed["mod_revision"])
    consumer.process.send_signal(signal.SIGTERM)
    assert consumer.process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("counting", "expected MODULE:APPLICATION", id="no name"),
        pytest.param("nowhere_to_be_found:Counting", "there is no module 'nowhere_to_be_found'", id="module"),
        pytest.param("os:Counting", "module 'os' has no 'Counting'", id="no such name"),
        pytest.param("os:curdir", "is not an Application but of type str", id="something else"),
    ],
)
def test_what_is_no_application(name: str, problem: str) -> None:
    done = CliRunner().invoke(main, ["consumer", "serve", name])
    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.replace("│", " ").split())
