"""``gazette-spark lag serve`` and ``show`` on a real broker, a real Delta table and a real browser."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructType

from gazette_spark import Client, JournalOffsets, LedgerEntry
from gazette_spark.message import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, Clock, ProducerId, build_uuid
from gazette_spark.protocol.labels import label_set
from gazette_spark.source import GazetteDataSource
from tests.browser import browse
from tests.conformance.wire import spec
from tests.rig.brokers import BrokerHandle
from tests.waiting import wait_until

pytestmark = pytest.mark.brokers("embedded")

COMMAND = (sys.executable, "-m", "gazette_spark.cli")


class Orders:
    """A journal of 100 bytes, and a table that a sink fills from it."""

    def __init__(self, broker: BrokerHandle, directory: Path) -> None:
        self.broker = broker
        self.table = directory / "orders"
        self.journal = f"lag/{directory.name}/orders"
        self.attempts = 0
        with Client(broker.endpoint) as client:
            client.create_journals(spec(self.journal))
            client.append(self.journal, b"x" * 99 + b"\n")

    def commit(self, offset: int, app_id: str = "orders", planned_ms: int | None = None) -> None:
        """Commit rows up to an offset, as the sink does; without ``planned_ms``, as an old release did."""
        at = (JournalOffsets({self.journal: offset}),)
        self.attempts += 1
        entry = LedgerEntry(
            app_id,
            self.attempts,
            "query",
            self.attempts,
            at,
            at,
            at,
            f"{self.attempts}",
            None,
            planned_ms=planned_ms,
        )
        properties = CommitProperties(custom_metadata={"userMetadata": entry.to_json()})
        rows = pa.table({"value": [offset]})
        write_deltalake(self.table, rows, mode="append", commit_properties=properties)

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--broker", self.broker.endpoint, "-l", f"name={self.journal}", "--table", str(self.table))


@pytest.fixture
def orders(broker: BrokerHandle, tmp_path: Path) -> Orders:
    return Orders(broker, tmp_path)


@pytest.fixture
def embedded_orders(embedded_broker: BrokerHandle, tmp_path: Path) -> Orders:
    """Like ``orders``, for tests that do not depend on the broker."""
    return Orders(embedded_broker, tmp_path)


def show(orders: Orders, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "lag", "show", *orders.flags, *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def served(orders: Orders, *flags: str) -> Iterator[str]:
    command = [*COMMAND, "lag", "serve", *orders.flags, "--listen", "127.0.0.1:0", "--interval", "0.2"]
    with subprocess.Popen(
        [*command, "--expire-cache", "0", *flags], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("listening on ").strip()
            wait_until(
                "heads are known", lambda: httpx.get(f"{address}/burrow/admin/ready").status_code == 200
            )
            yield address
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_show_exits_by_the_verdict(orders: Orders) -> None:
    """A level or undecided query is 0, a silent one that was watched is 2, and a missing table is 3."""
    assert show(orders).returncode == 3
    orders.commit(100)
    level = show(orders, "--format", "json")
    assert level.returncode == 0, level.stderr
    (detail,) = json.loads(level.stdout)
    (journal,) = detail["journals"]
    assert (detail["group"], detail["status"], journal["journal"]) == ("orders", "OK", orders.journal)
    assert (journal["lag_bytes"], journal["lag_age"]) == (0, {"least_ms": 0, "most_ms": 0})
    with Client(orders.broker.endpoint) as client:
        client.append(orders.journal, b"y" * 50)
        client.append(orders.journal, b"y\ny\n")
    doubtful = show(orders)
    assert (doubtful.returncode, columns(doubtful)) == (0, ["orders", orders.journal, "UNKNOWN", "54"])
    assert doubtful.stderr == "one poll is not enough for every verdict; use --for SECONDS to watch\n"
    behind = show(orders, "--max-lag", "53", "--count-records", "54", "--for", "2")
    assert behind.returncode == 2, behind.stderr
    assert behind.stderr == "orders: lag_bytes=54 above 53\n"
    assert columns(behind)[2:5] == ["STOP", "54", "2"]
    assert behind.stdout.split()[:6] == ["GROUP", "JOURNAL", "VERDICT", "LAG", "RECORDS", "OLDEST"]
    uncounted = show(orders, "--count-records", "53")
    assert "RECORDS" not in uncounted.stdout


def columns(done: subprocess.CompletedProcess[str]) -> list[str]:
    (row,) = done.stdout.splitlines()[1:]
    return row.split()


def test_a_healthy_query_with_a_lag_is_no_failure_in_cron(embedded_orders: Orders) -> None:
    """A query that was level after each batch and waits for its next trigger exits with 0."""
    for offset in (40, 70, 100):
        embedded_orders.commit(offset, planned_ms=1)
    with Client(embedded_orders.broker.endpoint) as client:
        client.append(embedded_orders.journal, b"y" * 50)
    shown = show(embedded_orders)
    assert (shown.returncode, columns(shown)[3]) == (0, "50"), shown.stdout


def test_show_without_a_broker_says_that_it_does_not_know(tmp_path: Path) -> None:
    """An unmeasured lag is not shown as 0, and the exit code is that of unreadable data."""
    orders = Orders.__new__(Orders)
    orders.table, orders.journal, orders.attempts = tmp_path / "orders", "lag/orders", 0
    orders.commit(40)
    tables = ["--table", str(orders.table), "--table", str(tmp_path / "lost")]
    shown = subprocess.run(
        [*COMMAND, "lag", "show", "--broker", "http://127.0.0.1:9", "--timeout", "1", *tables],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    rows = [line.split() for line in shown.stdout.splitlines()[1:]]
    assert rows == [
        ["orders", "lag/orders", "UNKNOWN", "-"],
        ["table", str(tmp_path / "lost"), "-", "UNKNOWN", "-"],
    ]
    assert shown.returncode == 3
    assert "write heads: " in shown.stderr
    assert f"table {tmp_path / 'lost'}: " in shown.stderr


def test_two_tables_of_one_app_id_need_names(embedded_orders: Orders, tmp_path: Path) -> None:
    embedded_orders.commit(100)
    other = Orders(embedded_orders.broker, tmp_path / "other")
    other.commit(10)
    clash = show(embedded_orders, "--table", str(other.table))
    assert clash.returncode == 3
    assert "give one of them another name, as in NAME=LOCATION" in clash.stderr
    both = show(embedded_orders, "--table", f"second={other.table}", "--format", "json")
    assert [each["group"] for each in json.loads(both.stdout)] == ["orders", "second"]


def test_a_topic_may_be_a_selector(embedded_orders: Orders) -> None:
    embedded_orders.commit(100)
    flags = list(embedded_orders.flags)
    flags[2:4] = ["--topic", f"mine=name={embedded_orders.journal}"]
    shown = subprocess.run(
        [*COMMAND, "lag", "show", *flags, "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(shown.stdout)[0]["journals"][0]["topic"] == "mine"


@pytest.mark.brokers("embedded", "deployed")
def test_the_api_follows_broker_and_table(orders: Orders) -> None:
    orders.commit(40)
    group = "/v3/kafka/gazette/consumer/orders/lag"
    with served(orders) as address, Client(orders.broker.endpoint) as client:
        wait_until("the lag follows", lambda: total_lag(address, group) == 60)
        client.append(orders.journal, b"y" * 50)
        wait_until("the lag follows", lambda: total_lag(address, group) == 110)
        orders.commit(150)
        wait_until("the lag follows", lambda: total_lag(address, group) == 0)
        DeltaTable(orders.table).restore(0)
        wait_until("the restore shows", lambda: status(address, group)["partitions"][0]["status"] == "REWIND")
        assert total_lag(address, group) == 110
        assert (
            f'gazette_lag_bytes{{cluster="gazette",consumer_group="orders",journal="{orders.journal}"}} 110.0'
            in (httpx.get(f"{address}/metrics").text)
        )


@pytest.mark.brokers("embedded", "deployed")
def test_open_transactions_come_from_the_query_s_files(orders: Orders, tmp_path: Path) -> None:
    states = tmp_path / "states"
    producer, shop = ProducerId(b"\x01\0\0\0\0\x01"), f"{orders.journal}-messages"

    def message(clock: int, flags: int) -> bytes:
        at = Clock(Clock.at(1_700_000_000_000_000_000) + 16 * clock)
        return b'{"_meta":{"uuid":"%s"}}\n' % str(build_uuid(producer, at, flags)).encode()

    def batch(begin: int, end: int, rows: int) -> None:
        options = {"brokerAddress": orders.broker.endpoint, "journals": shop, "format": "raw"}
        options |= {"isolationLevel": "read_committed", "stateLocation": str(states)}
        given = {"startingOffsets": begin, "endingOffsets": end, "messagesSince": 0}
        options |= {name: json.dumps({shop: at}) for name, at in given.items()}
        reader = GazetteDataSource(CaseInsensitiveDict(options)).reader(
            StructType().add("offset", LongType())
        )
        assert sum(len(found) for part in reader.partitions() for found in reader.read(part)) == rows
        orders.commit(end)

    def opened(address: str) -> Any:
        (journal,) = httpx.get(f"{address}/gazette/v1/groups/orders").json()["group"]["journals"]
        return journal["open_transactions"]

    with Client(orders.broker.endpoint) as client:
        client.create_journals(spec(shop, labels=label_set({"content-type": "application/x-ndjson"})))
        orders.journal = shop
        client.append(shop, message(1, OUTSIDE_TXN) + message(2, CONTINUE_TXN) + message(3, CONTINUE_TXN))
        head = client.write_head(shop)
        batch(0, head, rows=1)
        with served(orders, "--states", f"orders={states}") as address:
            wait_until("the transaction shows", lambda: opened(address)["count"] == 1)
            oldest = opened(address)["oldest"]
            assert (oldest["producer"], oldest["begin"]) == (producer.hex(), head // 3)
            assert (oldest["held_bytes"], oldest["age"]["least_ms"] > 10**9) == (head - head // 3, True)
            client.append(shop, message(3, ACK_TXN))
            batch(head, client.write_head(shop), rows=2)
            wait_until("the transaction ends", lambda: opened(address) == {"count": 0, "oldest": None})
    shown = show(orders, "--states", f"orders={states}")
    assert (columns(shown)[3:], shown.stdout.split()[4]) == (["0", "0"], "OPEN"), shown.stderr


def total_lag(address: str, group: str) -> int | None:
    found: int | None = status(address, group).get("totallag")
    return found


def status(address: str, group: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(address + group).json()["status"]
    return found


def test_a_server_on_localhost_answers_to_no_other_name(embedded_orders: Orders) -> None:
    """Otherwise a page on another site could read it through a name that resolves to this host."""
    embedded_orders.commit(40)
    with served(embedded_orders) as address:
        answer = httpx.get(address, headers={"Host": "evil.example"})
        assert (answer.status_code, "orders" in answer.text) == (421, False)
        assert httpx.get(address, headers={"Host": "localhost:1"}).status_code == 200
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"POST /v3/admin/loglevel HTTP/1.1\r\nHost: localhost\r\n")
            connection.sendall(b"Content-Length: 9999\r\n\r\n" + b"x" * 9999)
            assert b"413" in connection.recv(1000)
        clash = subprocess.run(
            [*COMMAND, "lag", "serve", *embedded_orders.flags, "--listen", f"127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert clash.returncode == 1
        assert "option 'listen'" in clash.stderr


def test_the_page_shows_each_journal(embedded_orders: Orders, tmp_path: Path) -> None:
    embedded_orders.commit(40, "<img src=x onerror=alert(1)>")
    with served(embedded_orders, "--table", str(tmp_path / "lost")) as address:
        detail = f"{address}/gazette/v1/groups/%3Cimg%20src=x%20onerror=alert(1)%3E"
        wait_until(
            "the chart has points",
            lambda: len(httpx.get(detail).json()["group"]["journals"][0]["lag_history"]) > 1,
        )
        page = browse(f"{address}#group=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E", tmp_path / "profile")
    assert page.charts == [embedded_orders.journal]
    assert {"gazette", "STOP", "60 B", embedded_orders.journal, "ERR"} <= set(page.words)
    assert "<img src=x onerror=alert(1)>" in page.words
    assert {f"table {tmp_path / 'lost'}", "unknown"} <= set(page.words)
