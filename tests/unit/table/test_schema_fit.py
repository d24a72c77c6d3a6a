"""Each column of a batch is written, cast, added or refused, given the table's columns."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from gazette_spark._delta.schema_fit import Rules, SchemaFit, Unfit, fit, holds
from gazette_spark.errors import SchemaMismatchError

INT, LONG, TEXT = IntegerType(), LongType(), StringType()


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def required(name: str, kind: DataType) -> StructField:
    return StructField(name, kind, nullable=False)


TABLE = columns(
    id=LONG,
    text=TEXT,
    at=columns(x=INT, y=TEXT),
    list=ArrayType(columns(x=INT)),
    map=MapType(TEXT, columns(x=INT)),
)


@pytest.mark.parametrize(
    ("batch", "written"),
    [
        pytest.param(TABLE, TABLE, id="same"),
        pytest.param(columns(text=TEXT, id=LONG), columns(text=TEXT, id=LONG), id="other order"),
        pytest.param(columns(id=LONG), columns(id=LONG), id="missing column"),
        pytest.param(columns(ID=LONG, Text=TEXT), columns(id=LONG, text=TEXT), id="other case"),
        pytest.param(columns(id=INT), columns(id=LONG), id="narrower type"),
        pytest.param(columns(text=NullType()), columns(text=TEXT), id="nothing but nulls"),
        pytest.param(StructType([required("id", LONG)]), columns(id=LONG), id="never null"),
        pytest.param(columns(text=VarcharType(3)), columns(text=TEXT), id="text of a length"),
        pytest.param(
            columns(at=columns(Y=TEXT, X=ShortType())), columns(at=columns(x=INT, y=TEXT)), id="struct"
        ),
        pytest.param(columns(at=columns(y=TEXT)), columns(at=columns(x=INT, y=TEXT)), id="missing field"),
        pytest.param(
            columns(list=ArrayType(columns(x=ByteType()), containsNull=False)),
            columns(list=ArrayType(columns(x=INT))),
            id="struct in an array",
        ),
        pytest.param(
            columns(map=MapType(TEXT, columns(X=INT), valueContainsNull=False)),
            columns(map=MapType(TEXT, columns(x=INT))),
            id="struct in a map",
        ),
    ],
)
def test_what_fits_is_written_as_the_table_has_it(batch: StructType, written: StructType) -> None:
    assert fit("t", batch, TABLE, add=False) == SchemaFit(written)


@pytest.mark.parametrize(
    ("batch", "added", "written"),
    [
        pytest.param(columns(id=LONG, new=INT), ["new"], columns(id=LONG, new=INT), id="column"),
        pytest.param(
            columns(at=columns(z=INT, x=INT)), ["at.z"], columns(at=columns(x=INT, y=TEXT, z=INT)), id="field"
        ),
        pytest.param(
            columns(list=ArrayType(columns(x=INT, z=TEXT))),
            ["list.element.z"],
            columns(list=ArrayType(columns(x=INT, z=TEXT))),
            id="field in an array",
        ),
        pytest.param(
            columns(map=MapType(TEXT, columns(z=TEXT))),
            ["map.value.z"],
            columns(map=MapType(TEXT, columns(x=INT, z=TEXT))),
            id="field in a map",
        ),
        pytest.param(
            columns(new=columns(a=INT, b=ArrayType(columns(c=INT)))),
            ["new"],
            columns(new=columns(a=INT, b=ArrayType(columns(c=INT)))),
            id="struct as a whole",
        ),
    ],
)
def test_what_is_new_is_added_on_request_or_refused(
    batch: StructType, added: list[str], written: StructType
) -> None:
    assert fit("t", batch, TABLE, add=True) == SchemaFit(written, tuple(added))
    refused = fit("t", batch, TABLE, add=False)
    assert isinstance(refused, Unfit)
    assert [each.column for each in refused.problems] == added
    assert all("schema_evolution='addNewColumns'" in each.advice for each in refused.problems)
    assert all(each.batch_type and each.batch_type in each.problem for each in refused.problems)


@pytest.mark.parametrize(
    ("batch", "table", "column", "said"),
    [
        pytest.param(columns(id=TEXT), TABLE, "id", "is bigint in the table but string", id="other type"),
        pytest.param(columns(id=INT), columns(id=ShortType()), "id", "smallint", id="wider type"),
        pytest.param(columns(at=INT), TABLE, "at", "struct<x:int,y:string>", id="no struct"),
        pytest.param(columns(at=columns(x=LONG)), TABLE, "at.x", "is int in the table", id="wider field"),
        pytest.param(
            columns(list=ArrayType(columns(x=TEXT))), TABLE, "list.element.x", "string", id="in an array"
        ),
        pytest.param(columns(map=MapType(INT, columns(x=INT))), TABLE, "map.key", "string", id="key"),
        pytest.param(columns(a=INT, A=INT), columns(a=INT), "A", "'a' and 'A'", id="two that differ in case"),
        pytest.param(
            columns(at=columns(x=INT, X=INT)), TABLE, "at.X", "'x' and 'X'", id="two fields that do"
        ),
        pytest.param(columns(new=columns(x=INT, X=INT)), TABLE, "new.X", "'x' and 'X'", id="in a new struct"),
        pytest.param(columns(new=NullType()), TABLE, "new", "no type", id="void"),
        pytest.param(
            columns(new=ArrayType(columns(x=NullType()))), TABLE, "new.element.x", "no type", id="inner void"
        ),
        pytest.param(columns(**{"a b": INT}), TABLE, "a b", "' ' in its name", id="space"),
        pytest.param(columns(**{"a,(b": INT}), TABLE, "a,(b", "'(,' in its name", id="comma"),
        pytest.param(columns(at=columns(**{"a=": INT})), TABLE, "at.a=", "'=' in its name", id="odd field"),
        pytest.param(columns(**{"": INT}), TABLE, "", "empty name", id="no name"),
        pytest.param(columns(_Change_Type=INT), TABLE, "_Change_Type", "change data feed", id="reserved"),
        pytest.param(
            columns(text=TEXT),
            StructType([required("id", LONG), *TABLE.fields[1:]]),
            "id",
            "NOT NULL",
            id="missing",
        ),
        pytest.param(
            columns(at=columns(y=TEXT)),
            columns(at=StructType([required("x", INT), StructField("y", TEXT)])),
            "at.x",
            "NOT NULL",
            id="missing field",
        ),
        pytest.param(
            columns(id=LONG),
            StructType([*TABLE.fields[:1], StructField("at", StructType([required("x", INT)]))]),
            "at.x",
            "NOT NULL",
            id="missing struct with a required field",
        ),
        pytest.param(
            columns(list=ArrayType(columns(y=INT))),
            columns(list=ArrayType(columns(at=StructType([required("x", INT)]), y=INT))),
            "list.element.at.x",
            "NOT NULL",
            id="missing struct in an array",
        ),
    ],
)
def test_what_does_not_fit_is_named(batch: StructType, table: StructType, column: str, said: str) -> None:
    found = fit("t", batch, table, add=True)
    assert isinstance(found, Unfit)
    (problem,) = found.problems
    assert problem.column == column
    assert said in problem.problem
    assert problem.advice


def test_a_new_table_takes_what_delta_takes() -> None:
    batch = columns(id=INT, at=columns(x=INT))
    assert fit("t", batch, None, add=False) == SchemaFit(batch)
    refused = fit("t", columns(**{"a b": INT, "c": NullType(), "d": INT}), None, add=False)
    assert isinstance(refused, Unfit)
    assert [each.column for each in refused.problems] == ["a b", "c"]


def test_what_the_table_can_counts() -> None:
    """Column mapping allows any name, and ``_change_type`` is reserved only with a change feed."""
    table = StructType([required("id", LONG), *TABLE.fields[1:]])
    batch = columns(**{"text": TEXT, "a b": INT, "_change_type": INT})
    rules = Rules(any_name=True, change_feed=False, fills=True)
    assert fit("t", batch, table, add=True, rules=rules) == SchemaFit(batch, ("a b", "_change_type"))
    refused = fit("t", batch, table, add=True)
    assert isinstance(refused, Unfit)
    assert sorted(each.column for each in refused.problems) == ["_change_type", "a b", "id"]


def test_the_error_lists_columns_types_and_ways_out() -> None:
    batch = columns(**{f"c{n}": INT for n in range(12)}, id=TEXT)
    refused = fit("t", batch, TABLE, add=False)
    assert isinstance(refused, Unfit)
    error = SchemaMismatchError("t", "orders", 7, refused.problems)
    assert len(error.problems) == 13
    text = str(error)
    assert "table t, app id 'orders', batch 7: its columns do not fit the table; nothing was written" in text
    assert (
        "column 'id' is bigint in the table but string in the batch, and not all such values fit; cast it"
        in text
    )
    assert text.endswith("And 3 more columns")


DECIMALS = DecimalType(10, 0), DecimalType(12, 2), DecimalType(38, 18), DecimalType(5, 5)
NUMBERS = (ByteType(), ShortType(), INT, LONG, FloatType(), DoubleType(), *DECIMALS)
OTHERS = (TEXT, BooleanType(), DateType(), TimestampNTZType(), TimestampType())

EXACT = {
    "smallint": "tinyint",
    "int": "tinyint smallint",
    "bigint": "tinyint smallint int",
    "float": "tinyint smallint",
    "double": "tinyint smallint int float",
    "decimal(10,0)": "tinyint smallint int",
    "decimal(12,2)": "tinyint smallint int decimal(10,0)",
    "decimal(38,18)": "tinyint smallint int bigint decimal(10,0) decimal(12,2) decimal(5,5)",
    "timestamp_ntz": "date",
}


@pytest.mark.parametrize("wide", [*NUMBERS, *OTHERS], ids=lambda kind: kind.simpleString())
def test_types_hold_what_they_hold_exactly(wide: DataType) -> None:
    """No other pair of types is cast: not INT to FLOAT, not BIGINT to DOUBLE, and nothing to text."""
    held = {kind.simpleString() for kind in (*NUMBERS, *OTHERS) if holds(wide, kind)}
    name = wide.simpleString()
    assert held == {name, *EXACT.get(name, "").split()}
