r'''Provides pytest fixtures for tests of pipelines: an embedded broker, its client, and Spark with Delta.

Name the plugin in the ``conftest.py`` at the root of your tests. pytest starts only what a test requests::

    pytest_plugins = ["gazette_spark.testing.pytest_plugin"]

Then a test requests the fixtures by name::

    from gazette_spark.protocol.journal_specs import journal_spec
    from gazette_spark.sink import DeltaSink

    def test_orders_arrive(gazette_broker, gazette_client, fresh_prefix, delta_spark, tmp_path):
        """Each line of the journal is a row of the table."""
        journal = fresh_prefix + "orders"
        gazette_client.create_journals(journal_spec(journal))
        gazette_client.append(journal, b"first\nsecond\n")
        reader = delta_spark.readStream.format("gazette").option("brokerAddress", gazette_broker.endpoint)
        rows = reader.option("startingOffsets", "earliest").load(journal)
        table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
        sink = DeltaSink("orders", path=table)
        sink.start(rows, checkpoint=checkpoint, availableNow=True).awaitTermination()
        found = delta_spark.read.format("delta").load(table).orderBy("offset").collect()
        assert [bytes(row.value) for row in found] == [b"first", b"second"]

The broker and Spark start once in a run, so each test uses its own journals, tables and checkpoints.
Spark's first start takes about ten seconds. A test that requests only the broker needs no JVM.
'''

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gazette_spark.broker import EmbeddedBroker
    from gazette_spark.client import Client

CLIENT_TIMEOUT_S = 30.0
"""Maximum number of seconds for a call of the client."""


@pytest.fixture(scope="session")
def gazette_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """An embedded broker, started once; its address is ``gazette_broker.endpoint``."""
    from gazette_spark.broker import EmbeddedBroker

    with EmbeddedBroker(tmp_path_factory.mktemp("gazette")) as broker:
        yield broker


@pytest.fixture
def gazette_client(gazette_broker: EmbeddedBroker) -> Iterator[Client]:
    """A client of ``gazette_broker`` whose calls end within 30 seconds."""
    from gazette_spark.client import Client

    with Client(gazette_broker.endpoint, timeout_s=CLIENT_TIMEOUT_S) as client:
        yield client


@pytest.fixture
def fresh_prefix() -> str:
    """A journal prefix, ending in a slash, that no other test uses."""
    # The name is random, because all tests of a run share one broker.
    return f"test-{uuid.uuid4().hex[:12]}/"


@pytest.fixture(scope="session")
def delta_spark_conf() -> dict[str, str]:
    """Spark settings in addition to those of ``local_spark``. Override this fixture to change them."""
    # Imports are inside the fixtures, so that a test that needs only the broker does not import Spark.
    from gazette_spark.session import INTERPRETED

    return INTERPRETED


@pytest.fixture(scope="session")
def delta_spark(
    tmp_path_factory: pytest.TempPathFactory, delta_spark_conf: dict[str, str]
) -> Iterator[SparkSession]:
    """A local Spark session with Delta and the source ``gazette``, started once."""
    from gazette_spark.session import local_spark

    session = local_spark(tmp_path_factory.mktemp("spark"), conf=delta_spark_conf)
    yield session
    session.stop()
