"""Gazette's acceptance test ``stream-sum`` passes with the host on Spark, while parts of it are killed."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from gazette_spark import Client
from gazette_spark.consumer import JsonStore, Shard, shard_spec
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL, StreamChunk, StreamSum
from gazette_spark.consumer.shard_yaml import format_shard_yaml
from gazette_spark.failpoints import FailpointError
from gazette_spark.message import ACK_TXN, Clock, Envelope, Publisher, build_uuid, new_producer_id
from gazette_spark.protocol import consumer_pb2 as pc
from tests.rig.brokers import BrokerHandle
from tests.rig.stream_sum import CHUNK_JOURNALS, Host, create_journals, sums_since, verifying
from tests.rig.stream_sum_driver import READY
from tests.spark.test_consumer import Consumer, dying

log = logging.getLogger(__name__)

MINUTES = 0.6
TASK = "Python worker exited unexpectedly"
DEATHS = ("micro_batch.run", "micro_batch.committed", TASK)
"""Failpoints of a driver before and after a commit, and Spark's message for a killed task."""

MOST_UNTIL_KILLED_S = 8
"""Maximum seconds from the next driver's session to the kill of the current one; a takeover takes three."""


class Mortal(StreamSum):
    """Computes sums; if a file exists, deletes it and kills the process."""

    def __init__(self, order: Path) -> None:
        super().__init__()
        self.order = order

    def consume_message(
        self, shard: Shard, store: JsonStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        super().consume_message(shard, store, envelope, publisher)
        try:
            self.order.unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def acknowledgement() -> StreamChunk:
    """Return a message without effect."""
    return StreamChunk(bytes(16), 0, b"", build_uuid(new_producer_id(), Clock.at(time.time_ns()), ACK_TXN))


def make_shards(client: Client) -> list[pc.ShardSpec]:
    heads = create_journals(client)
    return [shard_spec(f"sum-{at}", {name: heads[name]}) for at, name in enumerate(CHUNK_JOURNALS)]


def dies(consumer: Consumer, shards: Sequence[pc.ShardSpec], death: str | None) -> bool:
    """Run a host that is to die in a given way; return whether it had work. Other failures raise."""
    order = consumer.root / "order"
    if death == TASK:
        order.touch()
    host = consumer.host(Mortal(order), *shards)
    try:
        with nullcontext() if death in {None, TASK} else dying(str(death)):
            consumer.drain(host)
    except (StreamingQueryException, FailpointError) as error:
        if death is None or death not in str(error):
            raise
        return True
    finally:
        order.unlink(missing_ok=True)
    return False


@pytest.mark.soak  # Go's chunker waits 40 s for a sum, which is short on busy machines.
@pytest.mark.deployed_broker
def test_gos_chunker_finds_each_sum_right(
    spark: SparkSession, deployed_broker: BrokerHandle, tmp_path: Path
) -> None:
    with Client(deployed_broker.endpoint, timeout_s=30) as client:
        shards = make_shards(client)
        begin = client.write_head(SUMS_JOURNAL)
        consumer = Consumer(spark, client, deployed_broker.endpoint, "", tmp_path)
        client.append(CHUNK_JOURNALS[0], bytes(acknowledgement()) + b"\n")
        dies(consumer, shards, None)  # The session's first transaction takes longer than the chunker waits.
        until_s = time.monotonic() + 60 * MINUTES
        with verifying(deployed_broker.endpoint, tmp_path, chunks=20) as chunker:
            while time.monotonic() < until_s:
                for death in DEATHS:
                    while not dies(consumer, shards, death):
                        chunker.check()
                dies(consumer, shards, None)
                chunker.check()
        assert sums_since(client, begin)


@pytest.mark.deployed_broker
@pytest.mark.parametrize(
    "stream_minutes",
    [pytest.param(True, id="for long", marks=[pytest.mark.soak, pytest.mark.timeout(0)])],
    indirect=True,
)
def test_gos_chunker_finds_each_sum_right_of_drivers_that_are_killed(
    deployed_broker: BrokerHandle, stream_minutes: float, tmp_path: Path
) -> None:
    """Each driver gets SIGKILL, JVM included, before or after the next one takes over.

    The next driver starts in the meantime, because a sum may be 40 seconds late and a JVM with a session
    takes half of that.
    """
    with Client(deployed_broker.endpoint, timeout_s=30) as client, ExitStack() as ends:
        shards = make_shards(client)
        begin = client.write_head(SUMS_JOURNAL)
        specs = tmp_path / "shards.yaml"
        specs.write_text(format_shard_yaml(pc.ApplyRequest.Change(upsert=shard) for shard in shards))
        command = [sys.executable, "-m", "tests.rig.stream_sum_driver"]
        command += [str(tmp_path), deployed_broker.endpoint, str(specs)]

        def start() -> Host:
            host = Host(command)
            ends.callback(host.kill)
            assert host.said() == READY
            return host

        def wait_through(host: Host) -> None:
            host.wait_through(client.write_heads(CHUNK_JOURNALS), [shard.id for shard in shards])

        host, killed = start(), 0
        # The first transaction takes longer than the chunker waits. It must read from each journal: a shard
        # that has read nothing reports offset 0, as Gazette's does, and other tests may have filled the
        # journals.
        for name in CHUNK_JOURNALS:
            client.append(name, bytes(acknowledgement()) + b"\n")
        wait_through(host)
        until_s = time.monotonic() + 60 * stream_minutes
        chunker = ends.enter_context(verifying(deployed_broker.endpoint, tmp_path, chunks=20))
        while time.monotonic() < until_s:
            following = start()
            killer = threading.Timer(random.uniform(0, MOST_UNTIL_KILLED_S), host.kill)
            killer.start()
            wait_through(following)
            killer.join()
            chunker.check()
            host, killed = following, killed + 1
        summed = sums_since(client, begin)
        log.info("%d drivers were killed, %d sums verified", killed, summed)
        assert summed >= killed
