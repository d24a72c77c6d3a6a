"""Rows are adapted to the columns of the snapshot that their batch was decided on."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.sql.types import CharType, IntegerType, LongType, StructType, VarcharType

from gazette_spark import DeltaSink, Upsert
from gazette_spark._delta import writers
from gazette_spark._delta.delta_table import DeltaTable, TableDetail, TableSnapshot
from gazette_spark._delta.new_table import NewTable
from gazette_spark._delta.row_steps import TableLayout, align
from gazette_spark._delta.small_files import compact
from gazette_spark._delta.start_checks import check_key_types
from gazette_spark._delta.writers import MergeWriter
from gazette_spark._ledger.entry import Batch, LedgerEntry, LedgerState
from gazette_spark.errors import OptionError, SchemaMismatchError, TableRefusedError

ID = StructType().add("id", LongType())
BATCH = Batch("t", "orders", "q", 1, (), (), output_mode="complete")


@dataclass
class FakeTable:
    columns: StructType
    properties: dict[str, str] = field(default_factory=dict)
    name: str = "t"
    partition_by: tuple[str, ...] = ()

    def schema(self, _spark: object) -> StructType:
        return self.columns

    def detail(self, _spark: object) -> TableDetail:
        return TableDetail("/t", "id", properties=self.properties)


@dataclass
class FakeSpark:
    error: Exception | None = None

    def sql(self, statement: str) -> Any:
        raise self.error or AssertionError(statement)


@dataclass
class FakeRows:
    """Rows of a schema that need no conversion."""

    schema: StructType
    sparkSession: FakeSpark = field(default_factory=FakeSpark)  # noqa: N815 - Spark's name.


def ledger(version: int, *, entry_version: int | None = None, attempt: str = "x") -> LedgerState:
    entry = LedgerEntry("orders", 0, "q", 1, (), (), (), attempt=attempt, parent=None)
    at = version if entry_version is None else entry_version
    return LedgerState(entry, table_version=version, entry_version=at)


@pytest.mark.parametrize(
    ("after", "holds"),
    [
        pytest.param(ledger(4), True, id="nobody"),
        pytest.param(ledger(5), False, id="in between"),
        pytest.param(ledger(5, entry_version=4), False, id="right after"),
    ],
)
def test_columns_hold_while_nobody_else_commits(after: LedgerState, holds: bool) -> None:
    """Another writer's commit may have changed the columns."""
    before = TableSnapshot(ledger(3), schema=ID)
    assert TableSnapshot(after).with_columns_of(before).schema == (ID if holds else None)


def test_a_snapshot_keeps_the_columns_of_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    more = StructType([*ID.fields]).add("n", IntegerType())
    table, spark = DeltaTable(path="/t", table=None), FakeSpark()
    monkeypatch.setattr(DeltaTable, "schema", lambda _self, _spark: more)
    since = TableSnapshot(ledger(3), schema=ID, detail=TableDetail("/t", "id"))
    for now, columns in ((ledger(3), ID), (ledger(4), more), (LedgerState(), None)):
        monkeypatch.setattr(DeltaTable, "ledger", lambda *_args, now=now: now)
        read = table.snapshot(spark, "orders", since, columns=True)  # type: ignore[arg-type]  # A fake session.
        assert read.schema == columns
        assert (read.detail is None) == (now.table_version != 3)


@pytest.mark.parametrize("allowed", [True, False])
def test_what_else_a_table_says_is_read_where_it_decides(allowed: bool) -> None:
    odd = StructType([*ID.fields]).add("a b", LongType())
    table: Any = FakeTable(ID, {"delta.columnMapping.mode": "name"} if allowed else {})
    rows: Any = FakeRows(odd)
    snapshot = TableSnapshot(ledger(3), schema=ID)
    layout = TableLayout(schema_evolution="addNewColumns")
    if allowed:
        aligned = align(rows, snapshot, table, layout, BATCH)
        assert aligned.add_columns
        assert aligned.table.detail is not None, "it need not be read again"
    else:
        with pytest.raises(SchemaMismatchError, match="column 'a b' has ' ' in its name"):
            align(rows, snapshot, table, layout, BATCH)


def test_a_complete_result_looks_for_rows_of_others_after_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit after the first attempt may be that of another stream."""

    def conflict(*_args: object, **_options: object) -> None:
        raise ConcurrentAppendException("turned down")

    def refuse(*_args: object) -> None:
        raise TableRefusedError("t", "another stream writes to it")

    monkeypatch.setattr(writers, "check_alone", lambda *_args: None)
    monkeypatch.setattr(writers, "last_rows", conflict)
    first: Any = replace(ledger(3), entry=replace(ledger(3).entry, mode="upsert"))  # type: ignore[type-var]  # The ledger has an entry.
    entry = LedgerEntry("orders", 1, "q", 2, (), (), (), attempt="y", parent="x")
    table: Any = FakeTable(ID)
    rows: Any = FakeRows(ID)
    writer = MergeWriter(table, TableLayout(), Upsert(("id",)))
    assert writer.commit(rows, entry, TableSnapshot(first), BATCH).conflict is not None
    monkeypatch.setattr(writers, "check_alone", refuse)
    with pytest.raises(TableRefusedError):
        writer.commit(rows, entry, TableSnapshot(replace(first, table_version=4)), BATCH)


SHOWN = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}


@pytest.mark.parametrize(
    ("columns", "refused"),
    [
        pytest.param(StructType().add("id", "string", metadata=SHOWN), "id", id="as Spark shows it"),
        pytest.param(StructType().add("id", CharType(5)), "id", id="as a type"),
        pytest.param(StructType().add("ID", CharType(5)), "ID", id="in other case"),
        pytest.param(StructType().add("id", VarcharType(5)).add("b", CharType(5)), None, id="not the key"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_keys_that_no_merge_compares_are_refused(
    columns: StructType, refused: str | None, exists: bool
) -> None:
    table: Any = FakeTable(columns if exists else StructType())
    spark: Any = FakeSpark()
    new = None if exists else NewTable(columns)
    if refused is None:
        check_key_types(table, spark, ["id"], new, exists=exists)
        return
    with pytest.raises(TableRefusedError, match=f"no MERGE by a column of the type CHAR: {refused}\\."):
        check_key_types(table, spark, ["id"], new, exists=exists)


def test_a_failed_compaction_ends_no_query(caplog: pytest.LogCaptureFixture) -> None:
    spark: Any = FakeSpark(RuntimeError("conflict\nat Scala.line"))
    with caplog.at_level(logging.WARNING):
        compact(spark, "t")
    assert [record.getMessage() for record in caplog.records] == ["compaction_failed table=t error=conflict"]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        pytest.param({"new_table": {"schema": "a INT"}}, "new_table", id="no NewTable"),
        pytest.param({"schema_evolution": "rescue"}, "schema_evolution", id="unknown evolution"),
        pytest.param({"target_file_bytes": 0}, "target_file_bytes", id="no bytes"),
        pytest.param({"target_file_bytes": "128m"}, "target_file_bytes", id="bytes as text"),
        pytest.param({"compact_every": True}, "compact_every", id="yes is no number"),
    ],
)
def test_bad_options_are_refused(arguments: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        DeltaSink("orders", path="/t", **arguments)
    assert caught.value.option == option
