"""Gazette's acceptance test ``stream-sum`` holds for the host on Spark, whose driver fails at any step."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from gazette_spark.client import Client
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL, Chunk, StreamSum
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.errors import EtcdTransactionFailedError
from gazette_spark.failpoints import FailpointError
from gazette_spark.message.uuids import ACK_TXN, Clock, build_uuid, new_producer_id
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol.journals import journal_spec
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.brokers import BrokerHandle
from tests.rig.gazctl import clean_environment, find_binary
from tests.spark.test_consumer import WAIT_S, Consumer, dying

CHUNK_JOURNALS = [f"examples/stream-sum/chunks/part-{part:03}" for part in range(2)]
NDJSON = {"content-type": CONTENT_TYPE_NDJSON}
CHUNKS = NDJSON | {"app.gazette.dev/message-type": "stream_sum.Chunk"}
POINTS = (
    "micro_batch.opened",
    "micro_batch.planned",
    "micro_batch.run",
    "sink.during_merge",
    "micro_batch.committed",
    "micro_batch.acknowledged",
)


def acknowledgement() -> Chunk:
    """Return a message that means nothing."""
    return Chunk(bytes(16), 0, b"", build_uuid(new_producer_id(), Clock.at(time.time_ns()), ACK_TXN))


def dies(consumer: Consumer, shards: Sequence[pc.ShardSpec], point: str | None) -> bool:
    """Run a host that fails at a point; say whether it came there. Another failure is an error."""
    host = consumer.host(StreamSum(), *shards)
    try:
        with dying(point) if point else nullcontext():
            consumer.drain(host)
    except (StreamingQueryException, FailpointError) as error:
        if point is None or point not in str(error):
            raise
        return True
    return False


@pytest.mark.soak
@pytest.mark.deployed_broker
def test_gos_chunker_finds_each_sum_right(
    spark: SparkSession, deployed_broker: BrokerHandle, tmp_path: Path
) -> None:
    """Hosts fail one after the other, and each stream that Go's chunker writes is summed right, and once."""
    drawn = random.Random()
    with Client(deployed_broker.endpoint, timeout_s=30) as client:
        with suppress(EtcdTransactionFailedError):  # Another test of this broker has made them.
            chunks = (journal_spec(name, labels=CHUNKS) for name in CHUNK_JOURNALS)
            client.create_journals(*chunks, journal_spec(SUMS_JOURNAL, labels=NDJSON))
        heads = client.write_heads(CHUNK_JOURNALS)
        shards = [shard_spec(f"sum-{at}", {name: heads[name]}) for at, name in enumerate(CHUNK_JOURNALS)]
        consumer = Consumer(spark, client, deployed_broker.endpoint, "", tmp_path)
        command = [str(find_binary("chunker")), "-broker", deployed_broker.endpoint]
        command += ["-streams", "8", "-chunks", "20", "-workers", "2"]
        client.append(CHUNK_JOURNALS[0], bytes(acknowledgement()) + b"\n")
        dies(consumer, shards, None)  # The session's first transaction takes longer than the chunker waits.
        died = 0
        with (tmp_path / "chunker.log").open("wb") as log:
            chunker = subprocess.Popen(command, stderr=log, env=clean_environment())
            try:
                while chunker.poll() is None:
                    # The chunker waits 40 s for a sum: two failures in a row may take longer.
                    died += dies(consumer, shards, drawn.choice(POINTS))
                    dies(consumer, shards, None)
                assert chunker.returncode == 0, (tmp_path / "chunker.log").read_text()
            finally:
                chunker.kill()
                chunker.wait(WAIT_S)
        assert died
