"""``gazette-spark offsets show --from-data`` finds where a table's rows end, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake

from gazette_spark import JournalOffsets
from gazette_spark.cli.main import main
from tests.rig.audited_table import Orders, rows_of
from tests.rig.brokers import BrokerHandle


@pytest.fixture
def embedded_orders(embedded_broker: BrokerHandle, tmp_path: Path) -> Orders:
    return Orders(embedded_broker, tmp_path)


def test_where_rows_end_is_read_from_them(embedded_orders: Orders) -> None:
    """The command reads the last record again to find its end; different bytes there are an error."""
    orders = embedded_orders
    show = ["offsets", "show", str(orders.table), "--from-data", "--broker", orders.broker.endpoint]

    def shown(*flags: str) -> Result:
        return CliRunner().invoke(main, [*show, *flags])

    orders.commit(0, 80)
    assert JournalOffsets.from_json(shown("--format", "json").stdout) == JournalOffsets({orders.journal: 80})
    (line,) = shown().stdout.splitlines()[1:]
    assert line.split() == [orders.journal, "10", "72", "80"]
    orders.commit(80, 88, [(80, b"other")])
    assert "has other bytes there" in shown().stderr
    orders.another_table("messages", orders.columns)
    orders.places = {0: 40}
    orders.commit(0, 64, rows_of(0, 16))
    show[2] = str(orders.table)
    assert JournalOffsets.from_json(shown("--format", "json").stdout) == JournalOffsets({orders.journal: 48})
    orders.places = {}
    orders.another_table("parsed", ("-", "-", "name"))
    orders.commit(0, 80)
    show[2] = str(orders.table)
    assert "do not show the origin of rows" in shown().stderr


def test_rows_that_say_where_they_end_need_no_broker(tmp_path: Path) -> None:
    """Rows with their ends need no broker, unless a query without that column wrote the last one."""

    def rows(journals: list[str], offsets: list[int], ends: list[int | None]) -> None:
        columns = {"_journal": journals, "_offset": offsets, "_end_offset": pa.array(ends, pa.int64())}
        write_deltalake(tmp_path, pa.table(columns), mode="append", partition_by=["_journal"])

    show = [
        "offsets",
        "show",
        str(tmp_path),
        "--from-data",
        "--broker",
        "http://localhost:1",
        "--timeout",
        "1",
    ]
    rows(["a/%2B=+", "b", "b"], [0, 5, 0], [7, 9, 5])
    found = CliRunner().invoke(main, [*show, "--format", "json"])
    assert found.exit_code == 0, found.output
    assert JournalOffsets.from_json(found.stdout) == JournalOffsets({"a/%2B=+": 7, "b": 9})
    rows(["b"], [9], [None])
    assert CliRunner().invoke(main, show).exit_code == 1
