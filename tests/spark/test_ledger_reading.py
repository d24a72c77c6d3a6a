"""A running query follows a table's log file by file, and notices when the table is replaced."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from gazette_spark import DeltaSink, JournalOffsets
from gazette_spark._delta import delta_table
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._ledger.entry import LedgerState
from tests.spark.conftest import APP_ID, DEADLINE_S, FileStream


@pytest.mark.soak
def test_a_young_table_of_the_catalog_is_not_searched(
    stream: FileStream, searches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits are read by name, also at the start, unless the catalog denies access to files."""
    stream.spark.sql("CREATE TABLE followed (journal STRING, offset BIGINT, value BINARY) USING delta")
    try:
        location = DeltaTable(path=None, table="followed").detail(stream.spark)
        assert location is not None
        stream.table = Path(location.location.removeprefix("file:"))
        done = 0
        for denied in (False, True):
            stream.append(30)
            query = DeltaSink(APP_ID, table="followed").start(
                stream.rows(maxBytesPerTrigger="100"), checkpoint=str(stream.checkpoint), availableNow=True
            )
            assert query.awaitTermination(DEADLINE_S)
            batches = len(list((stream.checkpoint / "commits").glob("[0-9]*"))) - done
            assert batches >= 3
            assert searches == ({"followed": 1 + 2 * batches} if denied else {})
            stream.assert_exact()
            monkeypatch.setattr(delta_table, "find_line", deny)
            done += batches
            searches.clear()
    finally:
        stream.spark.sql("DROP TABLE followed")


def test_the_catalog_tells_where_a_table_is_without_its_log(spark: SparkSession, tmp_path: Path) -> None:
    """The location must equal DESCRIBE's; names that may mean something else are left to DESCRIBE."""
    spark.sql("CREATE SCHEMA located")
    at = f"USING delta LOCATION '{tmp_path}"
    spark.sql(f"CREATE TABLE located.orders (id BIGINT) {at}/orders'")
    spark.sql(f"CREATE TABLE located.noted (id BIGINT) {at}/noted' COMMENT 'a\\nLocation: /elsewhere'")
    spark.sql(f"CREATE TABLE orders (id BIGINT) {at}/unqualified'")
    try:
        for name in ("located.orders", "orders"):
            shown = delta_table._shown_location(spark, name)
            assert shown is not None
            assert shown == delta_table._location_now(spark, name)
        spark.range(1).createTempView("orders")
        for name in ("orders", "located.noted", "located.`orders`", "located.gone", "nowhere.orders"):
            assert delta_table._shown_location(spark, name) is None, name
        assert delta_table._location_now(spark, "located.noted") == f"file:{tmp_path}/noted"
        assert delta_table._location_now(spark, "located.gone") is None
    finally:
        spark.catalog.dropTempView("orders")
        spark.sql("DROP TABLE orders")
        spark.sql("DROP SCHEMA located CASCADE")


def deny(*_: object) -> str:
    """Refuse to open a file, as a catalog does that vends credentials for tables only."""
    raise Py4JError("not yours")


def filled(spark: SparkSession, table: DeltaTable, app_id: str, until: int) -> LedgerState:
    """Write ten bytes a commit; return what the history reports."""
    sink = DeltaSink(app_id, path=table.path, table=table.table)
    for begin in range(0, until, 10):
        rows = spark.range(begin, begin + 10)
        sink.write_batch(rows, JournalOffsets({"a": begin}), JournalOffsets({"a": begin + 10}))
    table.check(spark, None)
    return table.ledger(spark, app_id)


@pytest.mark.parametrize(
    "named", [pytest.param(False, id="path", marks=pytest.mark.soak), pytest.param(True, id="catalog")]
)
def test_a_table_made_anew_is_not_taken_for_the_old_one(
    spark: SparkSession, tmp_path: Path, searches: Counter[str], named: bool
) -> None:
    """This holds although the new table's log has versions that would follow those of the old one."""
    name = "made_anew" if named else f"delta.`{tmp_path}/table`"
    table = DeltaTable.named(name)
    for place in ("first", "second"):
        at = f"LOCATION '{tmp_path}/{place}'" if named else ""
        spark.sql(f"CREATE TABLE {name} (id BIGINT) USING delta {at}")
        try:
            if place == "first":
                known = filled(spark, table, APP_ID, 10)
                searches.clear()
                assert table.ledger(spark, APP_ID, known) == known
                assert not searches
            else:
                filled(spark, table, "another", 30)
                found = table.ledger(spark, APP_ID, known)
                assert (found.entry, found.table_version > known.table_version) == (None, True)
        finally:
            if named:
                spark.sql(f"DROP TABLE {name}")
            else:
                shutil.rmtree(tmp_path / "table")
