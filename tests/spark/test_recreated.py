"""A recreated journal continues in its table if its bytes are the same, and is refused otherwise.

On a real broker, fragments stay in the store after a deletion. A journal that is created over them has their
bytes, and accepts appends once its head is reset. Over an empty store it begins at offset 0.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from gazette_spark import Client, DeltaSink, JournalOffsets, backfill
from gazette_spark.client import journal_spec
from gazette_spark.errors import JournalRecreatedError, TableRefusedError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.rig.brokers import BrokerHandle
from tests.rig.upkeep import create_over_fragments, delete_journal
from tests.spark.source_queries import QUERY_TIMEOUT_S, Journals
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "recover.md"

REFUSED = (JournalRecreatedError, StreamingQueryException)
"""Exceptions of a refusal: a backfill raises the error itself, a query raises Spark's with its text."""
SPEC: dict[str, Any] = {"length": 1024, "codec": "NONE", "refresh_interval_s": 1}
RECORD_BYTES = 1100
TEXT = "was deleted and created again"


@dataclass
class Orders:
    """A journal whose records are stored, and the table that is filled from it."""

    journals: Journals
    root: Path
    runs: int = 0
    timeout_ms: int = 60_000

    @property
    def name(self) -> str:
        return self.journals.name("a")

    @property
    def options(self) -> dict[str, str]:
        named = {"brokerAddress": self.journals.broker.endpoint, "journals": self.name}
        return named | {"requestTimeoutMs": str(self.timeout_ms)}

    def append(self, *records: str) -> None:
        """Append the records of one batch; each fills a fragment with its name."""
        self.journals.append(
            "a", "".join(f"{each * (RECORD_BYTES // 4)}"[:-1] + "\n" for each in records).encode()
        )

    def persist(self) -> None:
        client = self.journals.client
        head = client.write_heads([self.name])[self.name]

        def stored() -> bool:
            client.append(self.name, b"")  # A broker closes fragments on appends only.
            return any(
                each.fragment.mod_time and each.fragment.end == head
                for each in client.list_fragments(self.name)
            )

        wait_until("fragments to be stored", stored)

    def recreate(self, *, emptied: bool = False, end: int | None = None) -> None:
        """Delete and recreate the journal: over its stored fragments up to an end, or over an empty store."""
        client = self.journals.client
        end = client.write_head(self.name) if end is None else end
        delete_journal(client, self.name)
        stored = self.journals.broker.file_root / self.name
        if emptied and stored.exists():
            shutil.rmtree(stored)
        if emptied:
            self.journals.create("a", **SPEC)
        else:
            create_over_fragments(client, journal_spec(self.name, **SPEC), end)

    def sink(self, **given: str) -> DeltaSink:
        return DeltaSink("orders", path=str(self.root / "table"), **given)  # type: ignore[arg-type]  # Fields by name, of mixed types.

    def reader(self) -> DataStreamReader:
        reader = self.journals.spark.readStream.format("gazette").options(**self.options)
        return reader.option("startingOffsets", "earliest")

    def run(
        self, reader: DataStreamReader | None = None, sink: DeltaSink | None = None, *, new: bool = False
    ) -> None:
        self.runs += new
        query = (sink or self.sink()).start(
            (reader or self.reader()).load(),
            checkpoint=str(self.root / f"checkpoint-{self.runs}"),
            availableNow=True,
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    def resume(self) -> None:
        """Start with a new checkpoint where the table ends."""
        self.run(self.sink().resume(self.reader()), new=True)

    def trim(self) -> None:
        """Start with a new checkpoint at the first record, and trim what the table has."""
        self.run(sink=self.sink(on_overlap="trim"), new=True)

    def backfill(self) -> None:
        backfill(self.sink(), self.options)

    def follow_the_page(self, offset: int = 0) -> None:
        """Run the page's commands, with this test's broker, journal, table and checkpoint substituted."""
        section = PAGE.read_text().partition("## A journal was deleted and created again")[2]
        (commands,) = re.findall(
            r"^```python\n(.*?)^```", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL
        )
        self.runs += 1
        changes = {
            "http://localhost:8080": self.journals.broker.endpoint,
            '"shop/orders": 0': f'"shop/orders": {offset}',
            "shop/orders": self.name,
            "/data/checkpoints/orders-2": str(self.root / f"checkpoint-{self.runs}"),
        }
        for old, new in changes.items():
            assert old in commands
            commands = commands.replace(old, new)
        names = {"sink": self.sink(), "spark": self.journals.spark, "JournalOffsets": JournalOffsets}
        exec(commands, names)
        query = names["query"]
        assert isinstance(query, StreamingQuery)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def rows(self) -> list[str]:
        rows = self.journals.spark.read.format("delta").load(str(self.root / "table")).collect()
        return [bytes(row.value[:4]).decode() for row in sorted(rows, key=lambda row: row.offset)]


@pytest.fixture
def orders(
    spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str, tmp_path: Path
) -> Orders:
    journals = Journals(spark, broker, client, fresh_prefix)
    journals.create("a", **SPEC)
    return Orders(journals, tmp_path)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        pytest.param(Orders.run, Orders.run, id="the same checkpoint"),
        pytest.param(Orders.run, Orders.resume, id="resume"),
        pytest.param(Orders.run, Orders.trim, id="trim"),
        pytest.param(Orders.backfill, Orders.backfill, id="backfill"),
        pytest.param(Orders.backfill, Orders.resume, id="backfill, then a stream"),
    ],
)
def test_a_table_is_not_continued_with_another_journal(
    orders: Orders, first: Callable[[Orders], None], again: Callable[[Orders], None]
) -> None:
    """The new journal is longer than the old one, so the offsets do not reveal the replacement."""
    orders.append("old0", "old1", "old2")
    first(orders)
    orders.recreate(emptied=True)
    orders.append("new0", "new1", "new2", "new3", "new4")
    with pytest.raises(
        (JournalRecreatedError, StreamingQueryException), match="was deleted and created again"
    ):
        again(orders)
    assert orders.rows() == ["old0", "old1", "old2"]


def test_the_recovery_page_goes_on_with_a_journal_over_an_empty_store(
    orders: Orders,
) -> None:
    orders.append("old0", "old1", "old2")
    orders.run()
    orders.persist()
    orders.recreate(emptied=True)
    orders.append("new0", "new1", "new2", "new3")
    with pytest.raises(
        (JournalRecreatedError, StreamingQueryException), match="was deleted and created again"
    ):
        orders.resume()
    orders.follow_the_page()
    assert sorted(orders.rows()) == ["new0", "new1", "new2", "new3", "old0", "old1", "old2"]
    orders.append("new4")
    orders.resume()
    assert sorted(orders.rows()) == ["new0", "new1", "new2", "new3", "new4", "old0", "old1", "old2"]


def test_a_journal_over_its_stored_fragments_goes_on(orders: Orders) -> None:
    """The same checkpoint, a new one and a backfill continue; adopting from offset 0 would duplicate rows."""
    orders.append("old0", "old1", "old2")
    orders.run()
    orders.persist()
    orders.recreate()
    orders.append("new3")
    with pytest.raises(
        TableRefusedError, match=r"still has the bytes up to offset 3300, .* write rows twice"
    ):
        orders.follow_the_page()
    orders.run(orders.sink().resume(orders.reader()))
    assert orders.rows() == ["old0", "old1", "old2", "new3"]
    orders.persist()
    orders.recreate()
    orders.append("new4")
    orders.resume()
    orders.persist()
    orders.recreate()
    orders.append("new5")
    orders.backfill()
    assert orders.rows() == ["old0", "old1", "old2", "new3", "new4", "new5"]


@pytest.mark.soak
def test_a_journal_that_lost_what_was_not_stored_goes_on_at_its_stored_end(orders: Orders) -> None:
    """The table has rows whose bytes the journal lost; the recovery page continues without duplicates."""
    orders.append("old0", "old1", "old2")
    orders.run()
    orders.persist()
    unstored = journal_spec(orders.name, **SPEC | {"stores": ()})
    orders.journals.client.apply([pb.ApplyRequest.Change(upsert=unstored, expect_mod_revision=-1)])
    orders.timeout_ms = 5_000  # The query waits that long for stored bytes, because its spec names no store.
    orders.append("los3")
    orders.run()
    orders.recreate(end=3 * RECORD_BYTES)
    orders.append("new3", "new4")
    with pytest.raises(
        (JournalRecreatedError, StreamingQueryException), match="was deleted and created again"
    ):
        orders.resume()
    with pytest.raises(TableRefusedError, match=r"differ from the table's somewhere in \[3300, 4400\)"):
        orders.follow_the_page()
    orders.follow_the_page(3 * RECORD_BYTES)
    assert sorted(orders.rows()) == ["los3", "new3", "new4", "old0", "old1", "old2"]
