"""The host on Spark counts each message once if its driver is killed by SIGKILL, tasks included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gazette_spark import Client
from gazette_spark.failpoints import FAILPOINT_VARIABLE, GROUP_VARIABLE
from tests.rig.brokers import BrokerHandle
from tests.rig.micro_batches import WordCount
from tests.spark.test_consumer import Consumer

pytestmark = [pytest.mark.slow, pytest.mark.soak]

DIE_WITHIN_S = 240
"""Maximum seconds until a driver has started and reached its failpoint."""

DRIVER = """
import sys
from pathlib import Path
from gazette_spark.client import Client
from gazette_spark.session import INTERPRETED, local_spark
from tests.rig.micro_batches import WordCount
from tests.spark.test_consumer import Consumer
root, endpoint, prefix = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with Client(endpoint) as client:
    consumer = Consumer(local_spark(root / "spark", conf=INTERPRETED), client, endpoint, prefix, root)
    consumer.drain(consumer.host(WordCount(consumer.name("out")), consumer.shard("both", "a", "b")))
"""


@pytest.fixture
def consumer(
    spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str, tmp_path: Path
) -> Consumer:
    made = Consumer(spark, client, broker.endpoint, fresh_prefix, tmp_path)
    made.create("a", "b", "out")
    return made


def run_to_death(consumer: Consumer, point: str) -> None:
    """Run the consumer in a driver that is killed, with all its processes, at a call of a point."""
    command = [sys.executable, "-c", DRIVER, str(consumer.root), consumer.endpoint, consumer.prefix]
    environ = os.environ | {FAILPOINT_VARIABLE: f"{point}:kill_group"}
    # The shell becomes the driver, so its process id is also the id of the group.
    shell = ["sh", "-c", f'export {GROUP_VARIABLE}=$$; exec "$@"', "sh", *command]
    with (consumer.root / "driver.log").open("wb") as log:
        child = subprocess.Popen(shell, env=environ, stdout=log, stderr=log, start_new_session=True)
        status = child.wait(DIE_WITHIN_S)
    assert status == -signal.SIGKILL, (consumer.root / "driver.log").read_text()[-4000:]


@pytest.mark.parametrize(
    ("point", "counted"),
    [
        pytest.param("micro_batch.published:1", 2, id="in a task that has published"),
        pytest.param("micro_batch.run:1", 2, id="before the commit"),
        pytest.param("sink.during_replace:1", 2, id="in the commit"),
        pytest.param("micro_batch.committed:1", 3, id="before the acknowledgements"),
        pytest.param("micro_batch.acknowledged:1", 3, id="after them"),
    ],
)
def test_a_driver_that_is_killed_counts_each_message_once(
    consumer: Consumer, point: str, counted: int
) -> None:
    app, shard = WordCount(consumer.name("out")), consumer.shard("both", "a", "b")
    consumer.publish({"a": ["one two"], "b": ["two"]})
    consumer.drain(consumer.host(app, shard))
    consumer.publish({"b": ["two"]})
    run_to_death(consumer, point)
    assert consumer.state() == {"both": {"one": 1, "two": counted}}
    consumer.publish({"a": ["two"]})
    consumer.drain(consumer.host(app, shard))
    assert consumer.state() == {"both": {"one": 1, "two": 4}}
    totals = consumer.totals()
    assert totals["both", "one"] == [1]
    assert totals["both", "two"] in ([2, 4], [2, 3, 4])
