"""Brokers store bytes, lose them, or break off within a batch: the rows are the same, or data loss is named.

A copy of Spark's batch loop replaces Spark, so that this runs on every broker.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructType

from gazette_spark import Client
from gazette_spark._planning import plan
from gazette_spark.client import journal_spec
from gazette_spark.errors import DataLossError
from gazette_spark.message import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, Clock, ProducerId, build_uuid
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.source import GazetteDataSource, StreamReader
from gazette_spark.testing import MicroBatches
from gazette_spark.testing.micro_batch import CrashPoint, TaskFaults
from tests.conformance.wire import wait_for
from tests.rig.brokers import BrokerHandle
from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics

pytestmark = pytest.mark.brokers("embedded")

SCHEMA = StructType().add("offset", LongType()).add("_end_offset", LongType())
LINE = b"a record of forty bytes, its end included"[:39] + b"\n"
OLD_S = 7 * 3600
"""Age in seconds above which a broker treats a hole as deleted data instead of data to come."""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "IDLE_POLL_S", 0.0)


def reader(endpoint: str, journal: str, **options: str) -> StreamReader:
    given = {"brokerAddress": endpoint, "path": journal, "startingOffsets": "earliest"} | options
    made = GazetteDataSource(CaseInsensitiveDict(given)).streamReader(SCHEMA)
    assert isinstance(made, StreamReader)
    return made


def spans(size: int) -> list[tuple[int, int]]:
    """Return ``(begin, end)`` of each record."""
    return [(at, at + len(LINE)) for at in range(0, size, len(LINE))]


def stored(client: Client, journal: str) -> list[Fragment]:
    return [each.fragment for each in client.list_fragments(journal) if each.fragment.mod_time]


@pytest.mark.brokers("embedded", "deployed")
def test_bytes_that_go_to_the_store_between_planning_and_reading(
    broker: BrokerHandle, client: Client, journal_name: str
) -> None:
    client.create_journals(journal_spec(journal_name, length=1024, codec="GZIP", refresh_interval_s=1))
    client.append(journal_name, LINE * 20)

    def is_stored() -> bool:
        return any(each.end >= 20 * len(LINE) for each in stored(client, journal_name))

    def store(step: CrashPoint) -> None:
        if step == "partitions":
            client.append(journal_name, LINE * 30)
            client.append(journal_name, LINE)
            wait_for(
                lambda: any(each.end >= 800 for each in stored(client, journal_name)), "fragment in the store"
            )

    query = MicroBatches()
    options = {"fragmentRoot": str(broker.file_root), "minPartitions": "3"}
    run = query.start(lambda: reader(broker.endpoint, journal_name, **options))
    assert run.batch()
    assert run.batch(meanwhile=store, faults=TaskFaults(killed_after=(1,), speculative=True))
    assert query.rows() == spans(20 * len(LINE))
    assert run.batch()
    run.stop()
    assert query.rows() == spans(51 * len(LINE))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_bytes_that_are_deleted_between_planning_and_reading(
    broker: BrokerHandle, client: Client, journal_name: str, fail: str
) -> None:
    client.create_journals(journal_spec(journal_name, length=1024, codec="NONE", refresh_interval_s=1))
    for _ in range(4):
        client.append(journal_name, LINE * 30)
    wait_for(lambda: len(stored(client, journal_name)) >= 3, "fragments in the store")
    first, lost = stored(client, journal_name)[:2]

    def delete(step: CrashPoint) -> None:
        if step != "partitions":
            return
        for path in (broker.file_root / journal_name).iterdir():
            modified = path.stat().st_mtime - OLD_S
            os.utime(path, (modified, modified))
        path_of(broker, lost).unlink()
        wait_for(is_seen, "listing without the fragment")

    def is_seen() -> bool:
        left = stored(client, journal_name)
        young = max(each.mod_time for each in left) > first.mod_time - OLD_S + 600
        return not young and lost.begin not in [each.begin for each in left]

    query = MicroBatches()
    options = {"failOnDataLoss": fail, "maxBytesPerPartition": "700"}
    run = query.start(lambda: reader(broker.endpoint, journal_name, **options))
    assert run.batch()
    if fail == "true":
        with pytest.raises(DataLossError, match=f"'{journal_name}': cannot read offset {lost.begin}"):
            run.batch(meanwhile=delete)
        assert query.rows() == []
    else:
        assert run.batch(meanwhile=delete)
        kept = [
            (begin, end) for begin, end in spans(120 * len(LINE)) if end <= lost.begin or begin > lost.end
        ]
        assert query.rows() == kept
    run.stop()


def message(producer: int, clock: int, flags: int) -> bytes:
    """Return a message of 300 bytes."""
    uuid = build_uuid(ProducerId(bytes([1, 0, 0, 0, 0, producer])), Clock((1 << 62) + clock), flags)
    head = f'{{"_meta":{{"uuid":"{uuid}"}},"pad":"'
    return f"{head:x<297}".encode() + b'"}\n'


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_transaction_whose_begin_is_gone_is_lost_as_a_whole(
    broker: BrokerHandle, client: Client, journal_name: str, tmp_path: Path, fail: str
) -> None:
    labels = {"content-type": "application/x-ndjson"}
    spec = journal_spec(journal_name, labels=labels, length=1024, codec="NONE", refresh_interval_s=1)
    client.create_journals(spec)
    for producer, clock in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (1, 5), (2, 2), (1, 6)):
        client.append(journal_name, message(producer, clock, CONTINUE_TXN))
    wait_for(lambda: len(stored(client, journal_name)) >= 2, "fragments in the store")
    query = MicroBatches()
    options = {
        "failOnDataLoss": fail,
        "isolationLevel": "read_committed",
        "stateLocation": str(tmp_path / "states"),
    }
    run = query.start(lambda: reader(broker.endpoint, journal_name, **options))
    assert run.batch()
    assert run.batch()
    assert query.rows() == []
    lost = stored(client, journal_name)[0]
    assert 0 < lost.end <= 1200, "the other producer's messages stay"
    for path in (broker.file_root / journal_name).iterdir():
        modified = path.stat().st_mtime - OLD_S
        os.utime(path, (modified, modified))
    path_of(broker, lost).unlink()
    wait_for(
        lambda: 0 not in [each.begin for each in stored(client, journal_name)], "listing without the fragment"
    )
    client.append(journal_name, message(1, 7, ACK_TXN) + message(2, 3, ACK_TXN) + message(1, 8, OUTSIDE_TXN))
    if fail == "true":
        with pytest.raises(DataLossError, match=f"'{journal_name}': cannot read offset 0"):
            run.batch()
    else:
        assert run.batch()
        assert query.rows() == [(1200, 1500), (1800, 2100), (3000, 3300)]
    run.stop()


def path_of(broker: BrokerHandle, fragment: Fragment) -> Path:
    return broker.file_root / fragment.journal / fragment.content_name


@pytest.mark.parametrize("at_limit", ["reset", "close"])
def test_connections_that_are_cut_in_every_batch(
    broker: BrokerHandle, client: Client, journal_name: str, at_limit: str
) -> None:
    client.create_journals(journal_spec(journal_name))
    client.append(journal_name, LINE * 5_000)
    rng = random.Random(3)

    def plan(_connection: int) -> tuple[Toxics, Toxics]:
        return Toxics(limit_bytes=rng.randrange(120_000), at_limit=at_limit), CLEAN  # type: ignore[arg-type]  # One of two literals.

    query = MicroBatches()
    with TcpProxy(broker.endpoint, plan) as proxy:
        options = {"maxBytesPerTrigger": "60k", "minPartitions": "2"}
        run = query.start(lambda: reader(proxy.endpoint, journal_name, **options), available_now=True)
        while run.batch(faults=TaskFaults(speculative=True)):
            pass
        run.stop()
        assert proxy.connections > 10
    assert query.rows() == spans(5_000 * len(LINE))
