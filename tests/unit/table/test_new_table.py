"""The arguments for a new table become one statement, or an error that names the argument."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from gazette_spark._delta.new_table import NewTable, ddl
from gazette_spark.errors import OptionError, TableRefusedError

ITEM = StructType([StructField("no", LongType(), nullable=False, metadata={"comment": "it's 1"})])
SCHEMA = StructType(
    [
        StructField("id", LongType(), nullable=False, metadata={"comment": "a \\ key"}),
        StructField("a`b", VarcharType(3)),
        StructField("items", ArrayType(ITEM)),
        StructField("sums", MapType(StringType(), DecimalType(12, 2))),
        StructField("at", TimestampType()),
    ]
)
SCHEMA_DDL = (
    r"`id` bigint NOT NULL COMMENT 'a \\ key', `a``b` varchar(3), "
    r"`items` ARRAY<STRUCT<`no`: bigint NOT NULL COMMENT 'it\'s 1'>>, `sums` MAP<string, decimal(12,2)>, "
    "`at` timestamp_ltz"
)


def test_a_schema_is_written_as_sql() -> None:
    assert ddl(SCHEMA) == SCHEMA_DDL


@pytest.mark.parametrize(
    ("asked", "clauses"),
    [
        pytest.param({}, "", id="columns alone"),
        pytest.param({"partition_by": ["id", "a`b"]}, " PARTITIONED BY (`id`, `a``b`)", id="partitions"),
        pytest.param({"cluster_by": ("ID",)}, " CLUSTER BY (`ID`)", id="clusters"),
        pytest.param(
            {"properties": {"delta.appendOnly": "true", "it's": "${x}"}},
            r" TBLPROPERTIES ('delta.appendOnly' = 'true', 'it\'s' = '$\{x}')",
            id="properties",
        ),
    ],
)
def test_a_new_table_is_one_statement(asked: dict[str, Any], clauses: str) -> None:
    new = NewTable(SCHEMA, **asked)
    statement = f"CREATE TABLE IF NOT EXISTS delta.`/t` ({SCHEMA_DDL}) USING delta{clauses}"
    assert pickle.loads(pickle.dumps(new)).statement("delta.`/t`", SCHEMA) == statement


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        pytest.param({"schema": 5}, "new_table.schema", id="no schema"),
        pytest.param({"partition_by": "id"}, "new_table.partition_by", id="one name for a list"),
        pytest.param({"partition_by": [""]}, "new_table.partition_by", id="empty name"),
        pytest.param({"cluster_by": ["id", "ID"]}, "new_table.cluster_by", id="a name twice"),
        pytest.param({"partition_by": ["no"]}, "new_table.partition_by", id="no such column"),
        pytest.param(
            {"partition_by": ["id"], "cluster_by": ["id"]}, "new_table", id="partitions and clusters"
        ),
        pytest.param({"properties": {"a": 1}}, "new_table.properties", id="property that is no text"),
        pytest.param({"properties": ["a"]}, "new_table.properties", id="properties that are no mapping"),
    ],
)
def test_what_no_table_can_be_is_refused(asked: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        NewTable(**{"schema": SCHEMA, **asked})
    assert caught.value.option == option


def test_columns_of_the_first_batch_may_be_null() -> None:
    """So may fields within them, which are never null in a first batch that makes them of literals."""
    made = NewTable(partition_by=["id"]).columns(None, SCHEMA)  # type: ignore[arg-type]  # No session is needed.
    assert made == SCHEMA.toNullable()
    assert ddl(made) == SCHEMA_DDL.replace(" NOT NULL", "")
    with pytest.raises(OptionError, match="partition_by"):
        NewTable(partition_by=["day"]).columns(None, SCHEMA)  # type: ignore[arg-type]  # No session is needed.


def test_other_partitions_are_refused() -> None:
    new = NewTable(partition_by=["Day"])
    new.check_partitions("t", ["day"])
    with pytest.raises(
        TableRefusedError, match=r"partitioned by \(day, id\), but new_table requests \(Day\)"
    ):
        new.check_partitions("t", ["day", "id"])
    with pytest.raises(TableRefusedError, match=r"partitioned by nothing"):
        new.check_partitions("t", [])
