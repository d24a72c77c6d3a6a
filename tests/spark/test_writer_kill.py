"""SIGKILL to a driver and its Spark at each step of an exactly-once commit: each row is committed once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gazette_spark import Client
from gazette_spark.failpoints import FAILPOINT_VARIABLE, GROUP_VARIABLE
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import Journals
from tests.spark.test_writer_transactions import committed, feed, made, stream

pytestmark = pytest.mark.slow

DIE_WITHIN_S = 240
"""Maximum seconds until a driver has started and reached its failpoint."""

DRIVER = """
import sys
from pathlib import Path
from gazette_spark.client import Client
from gazette_spark.session import INTERPRETED, local_spark
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import Journals
from tests.spark.test_writer_transactions import stream
root, endpoint, prefix = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with Client(endpoint) as client:
    spark = local_spark(root / "spark", conf=INTERPRETED)
    stream(Journals(spark, BrokerHandle(endpoint, root), client, prefix), root / "checkpoint")
"""


@pytest.fixture
def journals(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Journals:
    return made(Journals(spark, broker, client, fresh_prefix))


def run_to_death(journals: Journals, root: Path, point: str) -> None:
    """Run the query in a driver that is killed, with all its processes, at a point of its first commit."""
    command = [sys.executable, "-c", DRIVER, str(root), journals.broker.endpoint, journals.prefix]
    environ = os.environ | {FAILPOINT_VARIABLE: f"{point}:1:kill_group"}
    # The shell becomes the driver, so its process id is also the id of the group.
    shell = ["sh", "-c", f'export {GROUP_VARIABLE}=$$; exec "$@"', "sh", *command]
    with (root / "driver.log").open("wb") as log:
        child = subprocess.Popen(shell, env=environ, stdout=log, stderr=log, start_new_session=True)
        status = child.wait(DIE_WITHIN_S)
    assert status == -signal.SIGKILL, (root / "driver.log").read_text()[-4000:]


@pytest.mark.parametrize(
    ("broker", "point"),
    [
        pytest.param("deployed", "transaction.recorded", marks=pytest.mark.deployed_broker),
        pytest.param("embedded", "transaction.recorded", marks=pytest.mark.soak),
        pytest.param("embedded", "transaction.read", marks=pytest.mark.soak),
        pytest.param("embedded", "transaction.done", marks=pytest.mark.soak),
        pytest.param("embedded", "writer.written", marks=pytest.mark.soak),
    ],
    indirect=["broker"],
)
def test_a_driver_that_is_killed_commits_each_row_once(
    journals: Journals, tmp_path: Path, point: str
) -> None:
    """The next driver completes the batch, or runs it again with other producers, and continues."""
    feed(journals, range(10))
    stream(journals, tmp_path / "checkpoint")
    feed(journals, range(10, 30))
    run_to_death(journals, tmp_path, point)
    before = committed(journals)[0]
    assert before == Counter(range(30 if point == "transaction.done" else 10))
    feed(journals, range(30, 40))
    stream(journals, tmp_path / "checkpoint")
    assert committed(journals)[0] == Counter(range(40))
