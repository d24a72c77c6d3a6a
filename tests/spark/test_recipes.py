"""The programs of docs/recipes run as printed and do what their pages say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gazette_spark import Client
from gazette_spark._formats.fixed import frame
from gazette_spark.client import journal_spec
from tests.oracles.messages import descriptor_set, order_class
from tests.rig.brokers import BrokerHandle
from tests.waiting import wait_until

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("broker", ["embedded"], indirect=True),
]


def lines(*records: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


class Kitchen:
    """Runs recipes, with the broker, journals and directories of a test substituted."""

    def __init__(
        self, spark: SparkSession, broker: BrokerHandle, client: Client, prefix: str, home: Path
    ) -> None:
        self.spark = spark
        self.client = client
        self._changes = {
            "http://localhost:8080": broker.endpoint,
            "s3://journals/fragments/": f"file://{broker.file_root}/",
            "s3a://lake/": f"{home}/",
            '"/data/': f'"{home}/',
            "app=orders": f"prefix={prefix}shop/orders/",
        }
        for directory in ("shop", "web", "clicks"):
            self._changes[f'"{directory}/'] = f'"{prefix}{directory}/'
        self.prefix = prefix
        self.home = home
        self.broker = broker

    def append(self, journal: str, content: bytes, **spec: Any) -> None:
        """Create a journal with content, under the test's prefix."""
        self.client.create_journals(journal_spec(self.prefix + journal, **spec))
        if content:
            self.client.append(self.prefix + journal, content)

    def cook(self, page: str, **names: Any) -> dict[str, Any]:
        """Run the programs of a page one after the other; return their names."""
        names |= {"spark": self.spark}
        program = (RECIPES / page).read_text()
        for old, new in self._changes.items():
            program = program.replace(old, new)
        for block in re.findall(r"^```python\n(.*?)^```", program, re.MULTILINE | re.DOTALL):
            # The Kafka topic is one of the names.
            if 'format("kafka")' not in block:
                exec(compile(block, page, "exec"), names)
        return names

    def rows(self, table: str, *columns: str) -> Sequence[tuple[Any, ...]]:
        frame = self.spark.read.format("delta").load(str(self.home / table)).select(*columns)
        return sorted(tuple(row) for row in frame.collect())


@pytest.fixture
def kitchen(
    spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str, tmp_path: Path
) -> Kitchen:
    return Kitchen(spark, broker, client, fresh_prefix, tmp_path)


def test_changes_of_a_database_become_its_table(kitchen: Kitchen) -> None:
    """The page's example changes must leave the page's example row."""
    page = (RECIPES / "cdc.md").read_text()
    (changes,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    kitchen.append("shop/customers", changes.encode())
    kitchen.cook("cdc.md")
    assert kitchen.rows("customers", "id", "name", "city") == [(1, "ada", "Osaka")]
    assert "`(1, ada, Osaka)`" in page


def test_sessions_end_after_silence(kitchen: Kitchen) -> None:
    """Two clicks within ten minutes are one session; only the first user's is behind the watermark."""
    times = [("ada", "00:00"), ("ada", "00:05"), ("bob", "01:00"), ("bob", "01:01")]
    clicks = [{"user": user, "page": "/", "at": f"2026-01-01T{time}:00Z"} for user, time in times]
    kitchen.append("web/clicks", lines(*clicks))
    kitchen.cook("sessions.md")
    assert kitchen.rows("sessions", "user", "clicks") == [("ada", 2)]


def test_protobuf_is_read_and_copied(kitchen: Kitchen) -> None:
    content_type = {"content-type": "application/x-protobuf-fixed"}
    orders = [order_class()(id=n, name=f"n{n}", price=n / 2) for n in (1, 2)]
    content = b"".join(frame(order.SerializeToString()) for order in orders)
    kitchen.append("shop/orders", content, labels=content_type)
    kitchen.append("shop/orders-copy", b"", labels=content_type)
    (kitchen.home / "shop.desc").write_bytes(descriptor_set())
    kitchen.cook("protobuf.md")
    assert kitchen.rows("orders", "id", "name", "price") == [(1, "n1", 0.5), (2, "n2", 1.0)]
    with kitchen.client.read(kitchen.prefix + "shop/orders-copy") as reader:
        copied = reader.read()
    assert copied == content


def test_a_backfill_has_no_seam(kitchen: Kitchen) -> None:
    order = {"user": "ada", "amount": 1.0}
    kitchen.append("shop/orders", b"", length=1024, codec="GZIP", refresh_interval_s=1)
    for n in range(3):
        kitchen.client.append(
            kitchen.prefix + "shop/orders", lines(*({"id": 60 * n + k, **order} for k in range(60)))
        )
    root = kitchen.broker.file_root / kitchen.prefix / "shop/orders"
    wait_until("fragments to be stored", lambda: len(list(root.glob("0*.gz"))) > 1)
    names = kitchen.cook("s3-backfill.md")
    try:
        assert names["done"].size_bytes > 0
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert kitchen.rows("orders", "id") == [(n,) for n in range(180)]


def test_a_table_moves_from_kafka(kitchen: Kitchen, capsys: pytest.CaptureFixture[str]) -> None:
    orders = [{"id": n, "user": "ada", "amount": 1.5} for n in range(20)]
    kitchen.append("topic", lines(*orders))
    for journal in ("shop/orders/000", "shop/orders/001"):
        kitchen.append(journal, b"", labels={"content-type": "application/x-ndjson"})
    kitchen.spark.createDataFrame(orders).write.format("delta").save(str(kitchen.home / "orders"))
    topic = (
        kitchen.spark.readStream.format("gazette")
        .options(brokerAddress=kitchen.broker.endpoint, startingOffsets="earliest")
        .load(kitchen.prefix + "topic")
        .selectExpr("CAST(offset AS STRING) AS key", "value")
    )
    kitchen.cook("move-from-kafka.md", topic=topic)
    assert capsys.readouterr().out.splitlines() == [
        "0 rows are only in the old table",
        "0 rows are only in the new table",
    ]


def test_several_streams_fill_one_table(kitchen: Kitchen) -> None:
    kitchen.append("shop/web", lines({"id": 1, "amount": 2.5}))
    kitchen.append("shop/stores", lines({"receipt": 2, "cents": 150}))
    kitchen.append("clicks/a", lines({"id": 1, "page": "/"}))
    kitchen.append("clicks/b", lines({"id": 2, "page": "/"}))
    kitchen.cook("several-streams.md")
    assert kitchen.rows("orders", "id", "amount", "channel") == [(1, 2.5, "web"), (2, 1.5, "store")]
    assert kitchen.rows("clicks", "id") == [(1,), (2,)]


def test_one_stream_fills_several_tables(kitchen: Kitchen) -> None:
    order, visit = {"kind": "order", "id": 1, "amount": 2.5}, {"kind": "visit", "id": 2, "page": "/"}
    kitchen.append("shop/events", lines(order, visit))
    kitchen.cook("several-tables.md")
    assert kitchen.rows("orders", "id", "amount") == [(1, 2.5)]
    assert kitchen.rows("visits", "id", "page") == [(2, "/")]
