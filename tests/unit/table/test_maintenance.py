"""A table's columns are looked up when they can have changed, and at no other time."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql.types import CharType, IntegerType, LongType, StructType, VarcharType

from gazette_spark.errors import OptionError, SchemaMismatchError, TableRefusedError
from gazette_spark.ledger.entry import Batch, LedgerEntry, LedgerState
from gazette_spark.table.delta_table import TableDetail
from gazette_spark.table.maintenance import TableMaintenance
from gazette_spark.table.new_table import NewTable

ID = StructType().add("id", LongType())
MORE = StructType([*ID.fields]).add("n", IntegerType())
BATCH = Batch("t", "orders", "q", 1, (), ())


@dataclass
class FakeTable:
    """A table that counts how often it is looked at."""

    columns: StructType
    properties: dict[str, str] = field(default_factory=dict)
    looks: int = 0
    details: int = 0
    name: str = "t"

    def schema(self, _spark: object) -> StructType:
        """Its columns."""
        self.looks += 1
        return self.columns

    def detail(self, _spark: object) -> TableDetail:
        """What else it is."""
        self.details += 1
        return TableDetail("/t", "id", properties=self.properties)


@dataclass
class FakeSpark:
    """A session that runs nothing."""

    error: Exception | None = None
    statements: list[str] = field(default_factory=list)

    def sql(self, statement: str) -> Any:
        """Take a statement."""
        self.statements.append(statement)
        raise self.error or AssertionError(statement)


@dataclass
class FakeRows:
    """Rows of a schema, which nothing has to be done to."""

    schema: StructType
    sparkSession: FakeSpark = field(default_factory=FakeSpark)  # noqa: N815 - Spark's name.


def state(version: int, *, entry_version: int | None = None, number: int = 0) -> LedgerState:
    """A table's history, whose newest commit is the newest entry unless said otherwise."""
    entry = LedgerEntry("orders", number, "q", 1, (), (), (), attempt="x", parent=None)
    at = version if entry_version is None else entry_version
    return LedgerState(entry, table_version=version, entry_version=at)


def write(maintenance: TableMaintenance, rows: FakeRows, before: LedgerState, after: LedgerState) -> bool:
    """Bring one batch in; return whether it adds columns."""
    ready = maintenance.prepare(rows, BATCH, before)  # type: ignore[arg-type]
    maintenance.after_commit(rows.sparkSession, before, after)  # type: ignore[arg-type]
    return ready.add_columns


def test_columns_are_looked_up_once_while_nobody_else_commits() -> None:
    """Columns are the same before and after this writer's commit."""
    table = FakeTable(ID)
    maintenance = TableMaintenance(table)  # type: ignore[arg-type]
    for version in range(3, 8):
        assert not write(maintenance, FakeRows(ID), state(version), state(version + 1))
    assert (table.looks, table.details) == (1, 0)


@pytest.mark.parametrize(
    ("after", "before_next"),
    [
        pytest.param(state(5), state(5), id="in between"),
        pytest.param(state(5, entry_version=4), state(5), id="right after"),
        pytest.param(state(4), state(5), id="later"),
    ],
)
def test_commits_of_others_are_a_reason_to_look_again(after: LedgerState, before_next: LedgerState) -> None:
    """Commits of others may have changed the columns, which are looked up again."""
    table = FakeTable(ID)
    maintenance = TableMaintenance(table)  # type: ignore[arg-type]
    write(maintenance, FakeRows(ID), state(3), after)
    write(maintenance, FakeRows(ID), before_next, state(6))
    assert table.looks == 2


def test_columns_are_looked_up_again_after_some_were_added() -> None:
    """The next batch finds them there."""
    table = FakeTable(ID)
    maintenance = TableMaintenance(table, schema_evolution="addNewColumns")  # type: ignore[arg-type]
    assert write(maintenance, FakeRows(MORE), state(3), state(4))
    table.columns = MORE
    assert not write(maintenance, FakeRows(MORE), state(4), state(5))
    assert table.looks == 2


def test_a_write_that_is_turned_down_is_decided_anew() -> None:
    """Columns that changed meanwhile raise an error of ours, or leave nothing to add."""
    table = FakeTable(ID)
    maintenance = TableMaintenance(table, schema_evolution="addNewColumns")  # type: ignore[arg-type]
    rows = FakeRows(MORE)
    assert maintenance.prepare(rows, BATCH, state(3)).add_columns  # type: ignore[arg-type]
    assert not maintenance.changed(rows.sparkSession)  # type: ignore[arg-type]
    maintenance.prepare(rows, BATCH, state(3))  # type: ignore[arg-type]
    table.columns = MORE
    assert maintenance.changed(rows.sparkSession)  # type: ignore[arg-type]
    assert not maintenance.prepare(rows, BATCH, state(3)).add_columns  # type: ignore[arg-type]


def test_what_else_a_table_says_is_looked_up_where_it_decides() -> None:
    """A table is looked up once; a name that needs column mapping is then written or refused."""
    odd = StructType([*ID.fields]).add("a b", LongType())
    for properties, allowed in (({}, False), ({"delta.columnMapping.mode": "name"}, True)):
        table = FakeTable(ID, properties)
        maintenance = TableMaintenance(table, schema_evolution="addNewColumns")  # type: ignore[arg-type]
        if allowed:
            assert maintenance.prepare(FakeRows(odd), BATCH, state(3)).add_columns  # type: ignore[arg-type]
        else:
            with pytest.raises(SchemaMismatchError, match="column 'a b' has ' ' in its name"):
                maintenance.prepare(FakeRows(odd), BATCH, state(3))  # type: ignore[arg-type]
        assert (table.looks, table.details) == (1, 1)


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
def test_keys_that_no_merge_compares_are_refused(columns: StructType, refused: str | None) -> None:
    """In a table, and in one that is to be made."""
    made = TableMaintenance(FakeTable(StructType()), new_table=NewTable(columns))  # type: ignore[arg-type]
    for maintenance, exists in ((TableMaintenance(FakeTable(columns)), True), (made, False)):  # type: ignore[arg-type]
        if refused is None:
            maintenance.check_keys(FakeSpark(), ["id"], exists=exists)  # type: ignore[arg-type]
            continue
        with pytest.raises(TableRefusedError, match=f"no MERGE by a column of the type CHAR: {refused}\\."):
            maintenance.check_keys(FakeSpark(), ["id"], exists=exists)  # type: ignore[arg-type]


def test_a_failed_compaction_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A compaction is run when due, and ends no query."""
    spark = FakeSpark(RuntimeError("conflict\nat Scala.line"))
    maintenance = TableMaintenance(FakeTable(ID), compact_every=3)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        for number in range(6):
            maintenance.after_commit(spark, state(number), state(number + 1, number=number))  # type: ignore[arg-type]
    assert spark.statements == ["OPTIMIZE t"] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "compaction_failed table=t error=conflict"
    ] * 2


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
    """A bad option is refused by an error that names the argument."""
    with pytest.raises(OptionError) as caught:
        TableMaintenance(FakeTable(ID), **arguments)  # type: ignore[arg-type]
    assert caught.value.option == option
