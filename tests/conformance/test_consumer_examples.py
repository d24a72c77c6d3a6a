"""The package's examples do what they say, on a local host that keeps its state in recovery logs."""

from __future__ import annotations

import logging
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gazette_spark import Client
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.consumer import JsonMessage, LocalHost, shard_spec
from gazette_spark.consumer.examples import sessions, word_count
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL
from gazette_spark.consumer.recoverylog.hints import FileHints
from gazette_spark.consumer.shard_yaml import format_shard_yaml
from gazette_spark.message import Publisher, read_committed
from gazette_spark.protocol import consumer_pb2 as pc
from tests.rig.brokers import BrokerHandle, DeployedBroker
from tests.rig.consumers import create_journals, wait_through
from tests.rig.stream_sum import at_work, go_at_work, sums_since, verifying
from tests.rig.stream_sum import create_journals as create_stream_journals

log = logging.getLogger(__name__)

RECOVERY_LOG = {"content-type": "application/x-gazette-recoverylog"}

MOST_PAUSES_S = (0.1, 2, 10)
"""Maximum seconds until a host that has caught up is killed; each kill draws one of them."""


def recorded_shard(client: Client, prefix: str, shard_id: str, *sources: str) -> pc.ShardSpec:
    client.create_journals(journal_spec(f"{prefix}logs/{shard_id}", labels=RECOVERY_LOG))
    return shard_spec(
        shard_id, sources, recovery_log_prefix=f"{prefix}logs", hint_prefix=f"/hints/{prefix.strip('/')}"
    )


@pytest.fixture
def publisher(client: Client) -> Iterator[Publisher]:
    with AppendService(client, timeout_s=30) as service:
        yield Publisher(service)


def test_word_count(client: Client, fresh_prefix: str, publisher: Publisher, tmp_path: Path) -> None:
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
    journal = f"{fresh_prefix}ngrams"
    create_journals(client, journal)
    with LocalHost(word_count.WordCount(), client, [shard_spec("word-count", [journal])]) as host:
        (running,) = host._table.running()
        assert "recovery_log_prefix" in str(running.primary_loop.exception(30))


def specs_file(
    client: Client, prefix: str, folder: Path, *, hot_standbys: int = 0
) -> tuple[Path, list[pc.ShardSpec]]:
    """Create the journals of stream-sum and a file of its shards, which begin at the journals' ends."""
    specs = []
    for number, (journal, head) in enumerate(create_stream_journals(client).items()):
        specs.append(recorded_shard(client, prefix, f"stream-sum-{number}", journal))
        specs[-1].sources[0].min_offset = head
        specs[-1].hot_standbys = hot_standbys
    path = folder / "shards.yaml"
    path.write_text(format_shard_yaml(pc.ApplyRequest.Change(upsert=spec) for spec in specs))
    return path, specs


def serving(specs: Path, broker: BrokerHandle) -> list[str]:
    app = "gazette_spark.consumer.examples.stream_sum:StreamSum"
    command = [sys.executable, "-m", "gazette_spark.cli", "consumer", "serve", app, "--port", "0"]
    return [*command, "--specs", str(specs), "--broker", broker.endpoint]


@pytest.mark.slow
@pytest.mark.brokers("deployed")
def test_gos_chunker_finds_each_sum_right(
    broker: BrokerHandle, client: Client, fresh_prefix: str, stream_minutes: float, tmp_path: Path
) -> None:
    """Gazette's acceptance test passes with hosts that are killed at work, one after the other."""
    path, specs = specs_file(client, fresh_prefix, tmp_path)
    command = serving(path, broker)
    begin = client.write_head(SUMS_JOURNAL)
    until_s, killed = time.monotonic() + 60 * stream_minutes, 0
    with verifying(broker.endpoint, tmp_path, chunks=30) as chunker:
        while time.monotonic() < until_s:
            with at_work(command, client, [spec.id for spec in specs]):
                threading.Event().wait(random.uniform(0, random.choice(MOST_PAUSES_S)))
            chunker.check()
            killed += 1
    summed = sums_since(client, begin)
    log.info("%d hosts were killed, %d sums verified", killed, summed)
    assert summed >= killed > 1


def test_shards_pass_between_gazettes_host_and_ours(
    deployed_broker: DeployedBroker, fresh_prefix: str, tmp_path: Path
) -> None:
    with Client(deployed_broker.endpoint) as client:
        path, specs = specs_file(client, fresh_prefix, tmp_path)
        ours = [*serving(path, deployed_broker), "--hints", str(tmp_path / "hints")]
        begin = client.write_head(SUMS_JOURNAL)
        with verifying(deployed_broker.endpoint, tmp_path, chunks=30) as chunker:
            for _ in range(2):
                with at_work(ours, client, [spec.id for spec in specs]):
                    threading.Event().wait(random.uniform(0, 1))
                with go_at_work(deployed_broker, client, specs):
                    threading.Event().wait(random.uniform(0, 1))
                chunker.check()
        assert sums_since(client, begin) > 0


@pytest.mark.brokers("embedded")
def test_the_page_runs(broker: BrokerHandle, fresh_prefix: str) -> None:
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
