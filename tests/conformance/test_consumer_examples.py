"""The examples of the package do what they say, on a local host that keeps its state in recovery logs."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gazette_spark.client import AppendService, Client
from gazette_spark.consumer.client import ShardClient
from gazette_spark.consumer.examples import sessions, stream_sum, word_count
from gazette_spark.consumer.json_message import JsonMessage
from gazette_spark.consumer.local import LocalHost
from gazette_spark.consumer.recoverylog.hints import FileHints
from gazette_spark.consumer.shard_yaml import format_shard_yaml, parse_shard_yaml
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.errors import EtcdTransactionFailedError
from gazette_spark.message import Publisher, read_committed
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol.journals import journal_spec
from tests.rig.brokers import BrokerHandle
from tests.rig.consumers import NDJSON, create_journals, wait_through
from tests.rig.gazctl import clean_environment, find_binary

RECOVERY_LOG = {"content-type": "application/x-gazette-recoverylog"}
CHUNK_JOURNALS = [f"examples/stream-sum/chunks/part-{part:03}" for part in range(2)]
CHUNKER_LOG = "chunker.log"
CHUNKS = NDJSON | {"app.gazette.dev/message-type": "stream_sum.Chunk"}


def recorded_shard(client: Client, prefix: str, shard_id: str, *sources: str) -> pc.ShardSpec:
    """Return the spec of a shard, whose recovery log is made."""
    client.create_journals(journal_spec(f"{prefix}logs/{shard_id}", labels=RECOVERY_LOG))
    return shard_spec(shard_id, sources, recovery_log_prefix=f"{prefix}logs", hint_prefix="/hints")


@pytest.fixture
def publisher(client: Client) -> Iterator[Publisher]:
    """A publisher of its own appends."""
    with AppendService(client, timeout_s=30) as service:
        yield Publisher(service)


def test_word_count(client: Client, fresh_prefix: str, publisher: Publisher, tmp_path: Path) -> None:
    """Who publishes a text and waits for it sees it counted, also on the next host."""
    journal = f"{fresh_prefix}ngrams"
    create_journals(client, journal)
    spec = recorded_shard(client, fresh_prefix, "word-count", journal)
    hints = FileHints(tmp_path / "hints")
    with LocalHost(word_count.WordCount(), client, [spec], hints=hints) as host:
        read = word_count.publish(publisher, journal, "The quick fox. The quick dog!")
        counted = word_count.query(host, spec.id, "the ", read)
        assert counted == {"the quick": 2}
    with LocalHost(word_count.WordCount(), client, [spec], hints=hints) as host:
        read = word_count.publish(publisher, journal, "the quick cat", n=3)
        assert word_count.query(host, spec.id, "the quick", read) == {"the quick": 2, "the quick cat": 1}


def test_sessions(client: Client, fresh_prefix: str, publisher: Publisher) -> None:
    """Each session that has ended is published once, although the shard is moved between its orders."""
    orders, summaries = f"{fresh_prefix}orders", f"{fresh_prefix}summaries"
    create_journals(client, orders, summaries)
    spec = recorded_shard(client, fresh_prefix, "sessions", orders)
    mapping = (orders, word_count.CONTENT_TYPE)
    with LocalHost(sessions.Sessions(summaries, gap_s=10), client, [spec]) as host:
        for at, amount in ((100, 5), (105, 7), (130, 1), (135, 2), (200, 9)):
            order = JsonMessage({"customer": "c1", "amount": amount, "at": at})
            publisher.publish_committed(lambda _: mapping, order).result()
            wait_through(host, client, spec.id, orders)
            host.unassign([spec.id])
        wait_through(host, client, spec.id, orders)
    found = []
    with read_committed(client, summaries, JsonMessage.parse) as messages:
        for envelope in messages:
            assert isinstance(envelope.message, JsonMessage)
            if not envelope.message.is_acknowledgement:
                found.append(envelope.message.fields)
    assert found == [
        {"customer": "c1", "orders": 2, "amount": 12, "begin": 100, "end": 105},
        {"customer": "c1", "orders": 2, "amount": 3, "begin": 130, "end": 135},
    ]


def test_a_document_needs_a_recovery_log(client: Client, fresh_prefix: str) -> None:
    """A shard whose spec names no recovery log fails, and says which journal it needs."""
    journal = f"{fresh_prefix}ngrams"
    create_journals(client, journal)
    with LocalHost(word_count.WordCount(), client, [shard_spec("word-count", [journal])]) as host:
        (running,) = host._table.running()
        assert "recovery_log_prefix" in str(running.primary_loop.exception(30))


@contextmanager
def summing(endpoint: str, specs: Path) -> Iterator[str]:
    """Run a host in its own process, give the address of its service, and kill it at the end."""
    app = "gazette_spark.consumer.examples.stream_sum:StreamSum"
    command = [sys.executable, "-m", "gazette_spark.cli", "consumer", "serve", app, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [*command, "--specs", str(specs), "--broker", endpoint], stdout=subprocess.PIPE, env=environment
    )
    assert child.stdout is not None
    try:
        yield child.stdout.readline().decode().strip()
    finally:
        child.kill()
        child.wait(30)
        child.stdout.close()


def create_stream_journals(client: Client, prefix: str) -> list[pc.ShardSpec]:
    """Make the journals of stream-sum, and return the specs of its shards."""
    try:
        client.create_journals(
            *(journal_spec(name, labels=CHUNKS) for name in CHUNK_JOURNALS),
            journal_spec(stream_sum.SUMS_JOURNAL, labels=NDJSON),
        )
    except EtcdTransactionFailedError:
        # Another test has made them. Each test has recovery logs of its own, and begins where it is.
        assert {each.spec.name for each in client.list_journals("prefix=examples/stream-sum/")}
    heads = client.write_heads(CHUNK_JOURNALS)
    specs = []
    for number, journal in enumerate(CHUNK_JOURNALS):
        spec = recorded_shard(client, prefix, f"stream-sum-{number}", journal)
        spec.sources[0].min_offset = heads[journal]
        specs.append(spec)
    return specs


@contextmanager
def verifying(broker: BrokerHandle, folder: Path, streams: int) -> Iterator[subprocess.Popen[bytes]]:
    """Have Go's chunker write streams and verify their sums, -1: without end; kill it at the end."""
    command = [str(find_binary("chunker")), "-broker", broker.endpoint, "-streams", str(streams)]
    command += ["-chunks", "30", "-workers", "2"]
    # A pipe that nobody reads would stop it: it warns of each sum that is late.
    with (folder / CHUNKER_LOG).open("wb") as log:
        chunker = subprocess.Popen(command, stderr=log, env=clean_environment())
        try:
            yield chunker
        finally:
            chunker.kill()
            chunker.wait(30)


def kill_at_work(broker: BrokerHandle, client: Client, specs: Path, pause_s: float) -> None:
    """Run a host, and kill it a time after each of its shards has summed what there was."""
    heads = client.write_heads(CHUNK_JOURNALS)
    with summing(broker.endpoint, specs) as address:
        with ShardClient(address, timeout_s=120) as shards:
            for change in parse_shard_yaml(specs.read_text()):
                shards.stat(change.upsert.id, heads)
        threading.Event().wait(pause_s)


def specs_file(client: Client, prefix: str, folder: Path) -> Path:
    """Make the journals of stream-sum, and a file of its shards."""
    changes = [pc.ApplyRequest.Change(upsert=spec) for spec in create_stream_journals(client, prefix)]
    path = folder / "shards.yaml"
    path.write_text(format_shard_yaml(changes))
    return path


@pytest.mark.slow
@pytest.mark.brokers("deployed")
def test_gos_chunker_finds_each_sum_right(
    broker: BrokerHandle, client: Client, fresh_prefix: str, tmp_path: Path
) -> None:
    """Gazette's acceptance test holds for hosts of which one is killed at work."""
    specs = specs_file(client, fresh_prefix, tmp_path)
    with verifying(broker, tmp_path, streams=60) as chunker:
        kill_at_work(broker, client, specs, pause_s=0.1)
        assert chunker.poll() is None, "the chunker has ended before the host was killed"
        with summing(broker.endpoint, specs):
            assert chunker.wait(240) == 0, (tmp_path / CHUNKER_LOG).read_text()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.brokers("deployed")
def test_gos_chunker_finds_each_sum_right_for_long(
    broker: BrokerHandle, client: Client, fresh_prefix: str, tmp_path: Path
) -> None:
    """Gazette's acceptance test holds for twenty minutes of kills."""
    specs = specs_file(client, fresh_prefix, tmp_path)
    until_s, drawn = time.monotonic() + 1200, random.Random()
    with verifying(broker, tmp_path, streams=-1) as chunker:
        while time.monotonic() < until_s:
            kill_at_work(broker, client, specs, pause_s=drawn.uniform(0, 10))
            assert chunker.poll() is None, (tmp_path / CHUNKER_LOG).read_text()


@pytest.mark.brokers("embedded")
def test_the_page_runs(broker: BrokerHandle, fresh_prefix: str) -> None:
    """The application of docs/guides/applications.md adds an order, and its total is published."""
    text = (Path(__file__).parents[2] / "docs" / "guides" / "applications.md").read_text()
    section = text[text.index("## Write an application") : text.index("## Guarantees")]
    names: dict[str, Any] = {}
    try:
        for block in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            there = block.replace("http://localhost:8080", broker.endpoint)
            exec(there.replace("shop/", fresh_prefix), names)
        with read_committed(names["client"], f"{fresh_prefix}totals", JsonMessage.parse) as messages:
            total = next(messages).message
        assert isinstance(total, JsonMessage)
        assert (names["counted"], total.fields) == (5, {"customer": "c1", "total": 5})
    finally:
        if "client" in names:
            names["client"].close()
