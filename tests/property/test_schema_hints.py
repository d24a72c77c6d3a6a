"""Hints mean the types that the same text means to Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from gazette_spark._options.schema_hints import SchemaHint, parse_hints

simple = st.sampled_from(
    [
        t.BinaryType(),
        t.BooleanType(),
        t.ByteType(),
        t.DateType(),
        t.DoubleType(),
        t.FloatType(),
        t.IntegerType(),
        t.LongType(),
        t.ShortType(),
        t.StringType(),
        t.TimestampNTZType(),
        t.TimestampType(),
        t.VariantType(),
    ]
)
decimals = st.integers(1, 38).flatmap(lambda p: st.builds(t.DecimalType, st.just(p), st.integers(0, p)))
names = st.sampled_from(["a", "b_2", "Order", "3rd", "größe"])


def structs(inner: st.SearchStrategy[t.DataType]) -> st.SearchStrategy[t.StructType]:
    fields = st.lists(
        st.builds(t.StructField, names, inner), min_size=1, max_size=3, unique_by=lambda f: f.name
    )
    return fields.map(t.StructType)


kinds = st.recursive(
    simple | decimals,
    lambda inner: structs(inner) | st.builds(t.ArrayType, inner) | st.builds(t.MapType, inner, inner),
    max_leaves=6,
)


@given(st.lists(st.tuples(names, kinds), min_size=1, max_size=4, unique_by=lambda each: each[0]))
def test_types_as_spark_writes_them(columns: list[tuple[str, t.DataType]]) -> None:
    text = " , ".join(f"`{name}`: {kind.simpleString()}" for name, kind in columns)
    found = parse_hints("schemaHints", text)
    assert found == tuple(SchemaHint((name,), kind.jsonValue()) for name, kind in columns)
