"""The broker of the Spark tests, and a stream from files to a Delta table that tests run and crash.

A test that takes ``broker`` runs on the embedded broker, and with ``--soak`` also on the real one. Tests
marked :data:`~tests.spark.source_queries.BOTH_BROKERS` always run on both.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import DeltaSink
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._ledger.history import HistoryRow
from gazette_spark.failpoints import FAILPOINT_VARIABLE
from gazette_spark.testing.oracle import OracleVerdict, check_table
from tests.rig.brokers import BrokerHandle
from tests.rig.file_source import FileJournals

BROKERS = ["embedded", pytest.param("deployed", marks=[pytest.mark.deployed_broker, pytest.mark.soak])]
APP_ID = "orders"
DEADLINE_S = 120


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> BrokerHandle:
    """The embedded broker, and in soak also the real one."""
    handle: BrokerHandle = request.getfixturevalue(f"{request.param}_broker")
    return handle


class FileStream:
    """Two journals that are files, a table, and a query checkpoint."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        spark.dataSource.register(FileJournals)
        self.spark = spark
        self.journals = root / "journals"
        self.journals.mkdir()
        for journal in ("a", "b"):
            (self.journals / journal).touch()
        self.table = root / "table"
        self.checkpoint = root / "checkpoint"
        self._written = 0

    def append(self, records: int, journal: str | None = None) -> None:
        """Append numbered records to both journals in turn, or to the named one."""
        for _ in range(records):
            name = journal or ("a", "b")[self._written % 2]
            with (self.journals / name).open("ab") as file:
                file.write(b"record %d %s\n" % (self._written, b"x" * (self._written % 7)))
            self._written += 1

    def truth(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.journals.iterdir()}

    def sink(self) -> DeltaSink:
        """Return a sink as a new process would create it."""
        return DeltaSink(APP_ID, path=str(self.table))

    def rows(self, **options: Any) -> DataFrame:
        return (
            self.spark.readStream.format("file_journals").options(root=str(self.journals), **options).load()
        )

    def run(self, sink: DeltaSink | None = None, *, checkpoint: Path | None = None, **options: Any) -> None:
        query = (sink or self.sink()).start(
            self.rows(**options), checkpoint=str(checkpoint or self.checkpoint), availableNow=True
        )
        assert query.awaitTermination(DEADLINE_S)

    def run_batches(self, write: Callable[[DataFrame, int], None], **options: Any) -> None:
        writer = self.rows(**options).writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S)

    def copy_checkpoint(self, name: str) -> Path:
        return shutil.copytree(self.checkpoint, self.checkpoint.parent / name)

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint)

    def sql(self, statement: str) -> None:
        """Run a statement on the table, written ``{t}``."""
        self.spark.sql(statement.format(t=f"delta.`{self.table}`")).collect()

    def verdict(self, *, complete: bool = True) -> OracleVerdict:
        return check_table(self.table, self.truth(), app_id=APP_ID, complete=complete)

    def assert_exact(self) -> OracleVerdict:
        """Check that every record is in the table once, and that every version is consistent."""
        verdict = self.verdict()
        assert verdict.exact, verdict
        return verdict


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStream:
    monkeypatch.delenv(FAILPOINT_VARIABLE, raising=False)
    return FileStream(spark, tmp_path)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often the history of a table is searched instead of followed."""
    counts: Counter[str] = Counter()
    search = DeltaTable.history

    def counted(table: DeltaTable, spark: SparkSession, limit: int) -> list[HistoryRow]:
        counts[table.name] += 1
        return search(table, spark, limit)

    monkeypatch.setattr(DeltaTable, "history", counted)
    return counts
