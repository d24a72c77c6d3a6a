"""``gazette-spark verify`` compares a small table without a JVM; `spark/test_verify.py` has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from gazette_spark.cli.main import main
from tests.rig.audited_table import Orders, rows_of
from tests.rig.brokers import BrokerHandle


def test_a_small_table_is_compared_without_a_jvm(
    embedded_broker: BrokerHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    # Earlier tests of this worker may have left a session, which the command would reuse.
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", asked.append)
    orders = Orders(embedded_broker, tmp_path)
    command = ["verify", str(orders.table), "--broker", embedded_broker.endpoint]
    orders.commit(0, 160, rows_of(0, 160))
    DeltaTable(orders.table).alter.set_table_description("a change that keeps the rows")
    whole = CliRunner(catch_exceptions=False).invoke(main, command)
    assert whole.exit_code == 0
    assert "VERIFIED: 20 records, each once; table version" in whole.stdout
    assert "may have changed rows" not in whole.stdout
    orders.commit(160, 320, [*rows_of(160, 320), *rows_of(168, 176)])
    wrong = CliRunner(catch_exceptions=False).invoke(main, command)
    assert wrong.exit_code == 1
    assert "offset 168: the record is in the table more than once" in wrong.stdout
    assert asked == [], "a session was asked for"
