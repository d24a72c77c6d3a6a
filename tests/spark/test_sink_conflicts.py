"""Concurrent changes of the table during a batch are ignored, retried or reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import LedgerEntry
from gazette_spark._delta.delta_table import DeltaTable
from tests.spark.conftest import DEADLINE_S, FileStream

CONF = {"spark.databricks.delta.properties.defaults.checkpointInterval": "1"}
"""Setting that makes every commit write a checkpoint of Delta's log, including commits in between."""


def wait_for(path: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear")
        time.sleep(0.01)


def held_up(df: DataFrame, reached: Path, go: Path) -> DataFrame:
    """Return rows whose only task signals that it has started, and waits for permission to continue."""
    seconds, paths = DEADLINE_S, (str(reached), str(go))

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Workers cannot import this module, so the function uses nothing from it.
        import time
        from pathlib import Path

        Path(paths[0]).touch()
        deadline = time.monotonic() + seconds
        while not Path(paths[1]).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield from batches

    return df.coalesce(1).mapInArrow(hold, df.schema)


def during_write(
    monkeypatch: pytest.MonkeyPatch, stream: FileStream, batch_id: int, happen: Callable[[], None]
) -> list[str]:
    """Run an action once while the files of a batch are being written; return that batch's attempts."""
    append = DeltaTable.append
    reached, go = stream.table.with_name("reached"), stream.table.with_name("go")
    tries: list[str] = []

    def interrupt() -> None:
        try:
            wait_for(str(reached))
            happen()
        finally:
            go.touch()

    def patched(self: DeltaTable, df: DataFrame, entry: LedgerEntry, **options: bool) -> None:
        if entry.batch_id == batch_id:
            tries.append(entry.attempt)
        if entry.batch_id != batch_id or len(tries) > 1:
            append(self, df, entry, **options)
            return
        with ThreadPoolExecutor(1) as pool:
            interrupted = pool.submit(interrupt)
            try:
                append(self, held_up(df, reached, go), entry, **options)
            finally:
                interrupted.result()

    monkeypatch.setattr(DeltaTable, "append", patched)
    return tries


@contextmanager
def conf_set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Change a session's settings for a while and restore the defaults."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@contextmanager
def in_another_catalog(spark: SparkSession, settings: dict[str, str] | None = None) -> Iterator[None]:
    """Make a catalog without Delta tables, ``elsewhere``, the current one for a while."""
    name = "spark.sql.catalog.elsewhere"
    catalog = {
        name: "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        f"{name}.url": "jdbc:derby:memory:elsewhere;create=true",
        f"{name}.driver": "org.apache.derby.jdbc.EmbeddedDriver",
    }
    with conf_set(spark, catalog | (settings or {})):
        spark.catalog.setCurrentCatalog("elsewhere")
        try:
            yield
        finally:
            spark.catalog.setCurrentCatalog("spark_catalog")


@pytest.mark.parametrize(
    ("statement", "tries", "deleted"),
    [
        pytest.param("OPTIMIZE {t}", 1, 0, id="OPTIMIZE and a Delta checkpoint"),
        pytest.param("VACUUM {t}", 1, 0, id="VACUUM", marks=pytest.mark.soak),
        pytest.param("DELETE FROM {t} WHERE offset = 0", 1, 2, id="DELETE", marks=pytest.mark.soak),
        pytest.param(
            "ALTER TABLE {t} SET TBLPROPERTIES ('note' = 'x')", 2, 0, id="property", marks=pytest.mark.soak
        ),
        pytest.param("ALTER TABLE {t} ADD COLUMN note STRING", 2, 0, id="column added"),
    ],
)
def test_a_batch_lands_beside_what_others_do(
    stream: FileStream, monkeypatch: pytest.MonkeyPatch, statement: str, tries: int, deleted: int
) -> None:
    """If Delta rejects the first write, the second attempt succeeds; the rows are there once."""
    stream.append(12)
    tried = during_write(monkeypatch, stream, 2, lambda: stream.sql(statement))
    with conf_set(stream.spark, CONF):
        stream.run(maxBytesPerTrigger=40)
    verdict = stream.verdict()
    assert len(tried) == tries
    assert (verdict.rows, verdict.lost, verdict.duplicated, verdict.altered) == (12 - deleted, deleted, 0, 0)
    assert verdict.exact or deleted


def test_a_constraint_that_the_batch_breaks_is_reported(
    stream: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def constrain() -> None:
        entry = stream.sink().ledger(stream.spark)
        assert entry is not None
        limit = max(entry.read_through.values())
        stream.sql(f"ALTER TABLE {{t}} ADD CONSTRAINT early CHECK (offset < {limit})")

    stream.append(12)
    tried = during_write(monkeypatch, stream, 2, constrain)
    with pytest.raises(StreamingQueryException, match="DELTA_VIOLATE_CONSTRAINT"):
        stream.run(maxBytesPerTrigger=40)
    assert len(tried) == 2
    assert stream.verdict(complete=False).exact
    stream.sql("ALTER TABLE {t} DROP CONSTRAINT early")
    stream.run()
    assert stream.assert_exact().rows == 12
