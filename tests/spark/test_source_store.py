"""Spark reads stored fragments without a broker, and records carry the time at which they were stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import Client
from gazette_spark.protocol.fragments import Fragment
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import Journals, raw, records
from tests.waiting import wait_until

PARTS = 3
TIMES = "offset bigint, _fragment_mod_time timestamp"


@dataclass
class Store:
    """A journal whose fragments are stored, except for the last one."""

    journals: Journals
    content: bytes

    @property
    def name(self) -> str:
        return self.journals.name("a")

    @property
    def root(self) -> Path:
        return self.journals.broker.file_root

    def persisted(self) -> list[Fragment]:
        """Return the stored fragments, as the broker lists them."""
        listed = self.journals.client.list_fragments(self.name)
        return [each.fragment for each in listed if each.fragment.mod_time]

    def batch(self, path: str, schema: str | None = None, **options: str) -> DataFrame:
        given = {"fragmentStore": f"file://{self.root}", "framing": "lines"} | options
        reader = self.journals.spark.read.format("gazette").options(**given)
        return (reader.schema(schema) if schema else reader).load(path)


@pytest.fixture
def store(spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str) -> Store:
    """A journal in compressed fragments of slightly more than 1 KB."""
    journals = Journals(spark, broker, client, fresh_prefix)
    journals.create("a", length=1024, codec="SNAPPY", refresh_interval_s=1)
    content = b""
    for n in range(PARTS + 1):
        part = b"".join(b"record %d of part %d, of some length\n" % (i, n) for i in range(32))
        journals.append("a", part)
        content += part
    made = Store(journals, content)
    wait_until("fragments to be stored", lambda: len(made.persisted()) >= PARTS)
    return made


def test_a_store_is_read_with_no_broker(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and times are the same as through the broker, and BROKER_ADDRESS is ignored."""
    monkeypatch.setenv("BROKER_ADDRESS", "http://127.0.0.1:1")
    end = store.persisted()[-1].end
    assert raw(store.batch(store.journals.prefix).collect()) == records(store.content[:end])
    cut = store.batch(store.name, maxBytesPerPartition="500")
    assert raw(cut.collect()) == records(store.content[:end])
    times = {(each.begin, each.end): each.mod_time for each in store.persisted()}
    for row in store.batch(store.name, schema=TIMES).collect():
        (time,) = [time for (low, high), time in times.items() if low <= row.offset < high]
        assert row._fragment_mod_time == datetime.fromtimestamp(time, UTC).replace(tzinfo=None)


def test_a_record_knows_when_it_was_stored(store: Store) -> None:
    """The times are read through the broker and directly; records that only the broker has have no time."""
    stored = store.persisted()
    end = stored[-1].end
    first = datetime.fromtimestamp(stored[0].mod_time, UTC).replace(tzinfo=None)
    for options in ({}, {"fragmentRoot": str(store.root)}):
        rows = store.journals.batch("a", schema=TIMES, **options).collect()
        assert [row.offset for row in rows] == [offset for offset, _ in records(store.content)]
        assert {row.offset < end for row in rows if row._fragment_mod_time is not None} == {True}
        assert {row.offset >= end for row in rows if row._fragment_mod_time is None} == {True}
        assert rows[0]._fragment_mod_time == first
