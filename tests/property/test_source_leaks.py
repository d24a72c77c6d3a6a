"""A query that runs for long has no more open files and threads than one that has just begun."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from gazette_spark._planning import plan
from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.broker.faults import Faults
from gazette_spark.broker.settings import ServingSettings, StorageSettings
from gazette_spark.client import Client
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.source import GazetteDataSource
from gazette_spark.testing.micro_batch import MicroBatches, TaskFaults
from tests.property.test_source_machine import SCHEMA

pytestmark = pytest.mark.slow

BATCHES = 100
WARM = 10
NAME = "leaks/journal"


def held() -> tuple[int, int]:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def test_a_hundred_batches_leave_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches include killed tasks, broken connections and stores that refuse."""
    monkeypatch.setattr(plan, "IDLE_POLL_S", 0.0)
    faults = Faults()
    with (
        EmbeddedBroker(
            tmp_path,
            faults=faults,
            storage=StorageSettings(fragment_urls="http"),
            serving=ServingSettings(min_append_rate=0, threads=80),
        ) as broker,
        Client(broker.endpoint, timeout_s=30) as client,
    ):
        client.create_journals(journal_spec(NAME, length=1024, codec="GZIP", refresh_interval_s=1))
        options = {"brokerAddress": broker.endpoint, "path": NAME, "startingOffsets": "earliest"}
        reader = GazetteDataSource(CaseInsensitiveDict(options | {"minPartitions": "3"})).streamReader(SCHEMA)
        run = MicroBatches().start(lambda: reader)
        assert run.batch()
        at_first = held()
        for number in range(BATCHES):
            client.append(NAME, b"some record of some length\n" * 20)
            if number % 3 == 0:
                broker.flush()
                faults.refuse_fragment(403)
            assert run.batch(faults=TaskFaults(killed_after=(0, 1), speculative=True))
            if number == WARM:
                at_first = held()
        files, threads = held()
        run.stop()
    # A broker's threads and connections come and go.
    assert files <= at_first[0] + 5
    assert threads <= at_first[1] + 5
