"""Brokers hang, die and return, and connections break: rows stay complete, errors are clear."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Self

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.broker import Faults, StorageSettings
from tests.conformance.test_embedded_broker import serve
from tests.rig.brokers import BrokerHandle
from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics
from tests.spark.source_queries import QUERY_TIMEOUT_S, Journals, raw, records
from tests.waiting import wait_until

PATIENCE = {"requestTimeoutMs": "30000", "idleTimeoutMs": "1000", "connectTimeoutMs": "10000"}
"""Options that close a silent connection after a second, but allow a broker to be away for half a minute."""

HURRY = {"requestTimeoutMs": "3000", "idleTimeoutMs": "1000", "connectTimeoutMs": "1000"}
"""Options that give up a broker after three seconds."""


def content(size: int, seed: int = 1) -> bytes:
    rng = random.Random(seed)
    lines = [b"%d %s\n" % (n, rng.randbytes(rng.randrange(60)).hex().encode()) for n in range(size)]
    return b"".join(lines)


class Followed:
    """A running query that collects its rows; a context manager."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.rows: dict[int, list[Row]] = {}
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query: StreamingQuery = writer.trigger(processingTime="0 seconds").start()

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        self.rows[batch_id] = batch.collect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def records(self) -> list[tuple[int, bytes]]:
        return raw(row for batch in list(self.rows.values()) for row in batch)

    def wait_for(self, wanted: list[tuple[int, bytes]]) -> None:
        """Wait for the expected number of rows, and compare them."""

        def arrived() -> bool:
            if (error := self.query.exception()) is not None:
                raise error
            return len(self.records()) >= len(wanted)

        wait_until(f"{len(wanted)} rows", arrived, QUERY_TIMEOUT_S)
        assert self.records() == wanted

    def failure(self) -> str:
        """Wait for the query to fail, and return the error text that its user sees."""
        with pytest.raises(StreamingQueryException) as caught:
            self.query.awaitTermination(QUERY_TIMEOUT_S)
        return str(caught.value)


@pytest.mark.parametrize("cut", ["reset", pytest.param("close", marks=pytest.mark.soak)])
def test_connections_that_break_in_mid_chunk_change_no_row(
    spark: SparkSession, broker: BrokerHandle, client: Client, fresh_prefix: str, cut: Any
) -> None:
    """Every second connection is cut at a random byte; planner and tasks resume where they were cut."""
    rng = random.Random(5)
    written = content(20_000)

    def plan(connection: int) -> tuple[Toxics, Toxics] | None:
        # The limits are below the bytes that a task reads, and around the size of the broker's messages.
        limit = rng.randrange(350_000)
        return None if connection % 2 else (Toxics(limit_bytes=limit, at_limit=cut), CLEAN)

    with TcpProxy(broker.endpoint, plan) as proxy:
        journals = Journals(spark, BrokerHandle(proxy.endpoint, broker.file_root), client, fresh_prefix)
        journals.create("a", codec="NONE")
        journals.append("a", written)
        rows = journals.batch("a", minPartitions="3", **PATIENCE).collect()
        assert raw(rows) == records(written)
        assert proxy.connections >= 6, "of three tasks one at least was cut"


class Served:
    """A broker in a separate process, which can be stopped, killed and restarted; a context manager."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._life = ExitStack()
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._life.close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process, endpoint = self._life.enter_context(serve(self._root, port=self.port))
        self.port = int(endpoint.rpartition(":")[2])

    def kill(self) -> None:
        self._life.close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "served") as running:
        yield running


@pytest.fixture
def followed(spark: SparkSession, served: Served) -> Iterator[Journals]:
    with Client(served.endpoint, timeout_s=30) as client:
        journals = Journals(spark, BrokerHandle(served.endpoint, Path()), client, "served/")
        journals.create("a")
        yield journals


def test_a_broker_that_hangs_or_dies_for_a_while_is_waited_for(
    followed: Journals, served: Served, tmp_path: Path
) -> None:
    parts = [content(100, seed) for seed in range(4)]

    def written(parts_there: int) -> list[tuple[int, bytes]]:
        return records(b"".join(parts[:parts_there]))

    followed.append("a", parts[0])
    with Followed(followed.stream("a", **PATIENCE), tmp_path / "checkpoint") as query:
        query.wait_for(written(1))
        served.stop()
        hung = threading.Timer(2.5, served.go_on)
        hung.start()
        followed.append("a", parts[1])
        query.wait_for(written(2))
        hung.join()
        for part in (2, 3):
            served.kill()
            served.start()
            followed.append("a", parts[part])
            query.wait_for(written(part + 1))


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(Served.kill, id="dead", marks=pytest.mark.soak),
        pytest.param(Served.stop, id="hung"),
    ],
)
def test_a_broker_that_is_gone_under_a_query_is_named(
    followed: Journals, served: Served, tmp_path: Path, end: Callable[[Served], None]
) -> None:
    followed.append("a", b"one\n")
    with Followed(followed.stream("a", **HURRY), tmp_path / "checkpoint") as query:
        query.wait_for([(0, b"one")])
        end(served)
        began = monotonic()
        text = query.failure()
        assert monotonic() - began < 60
    assert f"UnavailableError: broker {served.endpoint}: unavailable" in text
    assert "Check brokerAddress (for a command, --broker or BROKER_ADDRESS) and the broker" in text


def test_the_planner_process_is_killed(spark: SparkSession, followed: Journals, tmp_path: Path) -> None:
    first, more = content(50), content(50, 2)
    followed.append("a", first)
    frame = followed.stream("a", **PATIENCE)
    with Followed(frame, tmp_path / "checkpoint") as query:
        query.wait_for(records(first))
        for pid in planners(spark):
            os.kill(pid, signal.SIGKILL)
        text = query.failure()
    assert "STREAM_FAILED" in text
    followed.append("a", more)
    with Followed(frame, tmp_path / "checkpoint") as query:
        query.wait_for(records(more, len(first)))


def planners(spark: SparkSession) -> list[int]:
    """Return the driver's processes that plan streams of Python sources."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc.pid
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == java and b"python_streaming_source_runner" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def test_urls_that_expire_change_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """The source asks for a refused URL again, and reads through the broker if that fails."""
    written = content(2_000)
    faults = Faults()
    with (
        EmbeddedBroker(tmp_path, faults=faults, storage=StorageSettings(fragment_urls="http")) as running,
        Client(running.endpoint, timeout_s=30) as client,
    ):
        journals = Journals(spark, BrokerHandle(running.endpoint, tmp_path), client, "signed/")
        journals.create("a", length=20_000, codec="GZIP")
        for begin in range(0, len(written), 10_000):
            journals.append("a", written[begin : begin + 10_000])
        running.flush()
        for status, times in ((403, 2), (503, 3), (403, None), (404, None)):
            faults.clear()
            refused = faults.refuse_fragment(status, times=times)
            assert raw(journals.batch("a", minPartitions="2").collect()) == records(written)
            assert refused.hits
        faults.clear()
        faults.corrupt(times=None)
        with pytest.raises(
            PySparkException, match=r"CorruptFragmentError: journal 'signed/a': fragment \[\d+, \d+\)"
        ):
            journals.batch("a").collect()
