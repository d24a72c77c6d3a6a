"""A table that took a batch's columns accepts them again, and keeps its own, whatever the schemas."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from gazette_spark._delta.schema_fit import SchemaFit, Unfit, fit, holds

decimals = st.tuples(st.integers(1, 38), st.integers(0, 38)).filter(lambda pair: pair[1] <= pair[0])
leaves = st.one_of(
    st.sampled_from([ShortType(), IntegerType(), LongType(), FloatType(), DoubleType()]),
    st.sampled_from([StringType(), DateType(), TimestampNTZType()]),
    decimals.map(lambda pair: DecimalType(*pair)),
)


def structs(types: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    fields = st.lists(
        st.tuples(st.sampled_from("abcABC"), types), min_size=1, max_size=3, unique_by=lambda f: f[0].lower()
    )
    return fields.map(lambda found: StructType([StructField(name, kind) for name, kind in found]))


types: st.SearchStrategy[DataType] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        structs(inner),
        inner.map(ArrayType),
        st.tuples(st.just(StringType()), inner).map(lambda pair: MapType(*pair)),
    ),
    max_leaves=5,
)


def leaf_types(kind: DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    match kind:
        case StructType():
            for each in kind.fields:
                yield from leaf_types(each.dataType, (*path, each.name))
        case ArrayType():
            yield from leaf_types(kind.elementType, (*path, "element"))
        case MapType():
            yield from leaf_types(kind.keyType, (*path, "key"))
            yield from leaf_types(kind.valueType, (*path, "value"))
        case _:
            yield path, kind.simpleString()


@given(structs(types), structs(types))
def test_what_was_added_is_there_the_next_time(batch: StructType, table: StructType) -> None:
    """Added columns then fit as they are, and a batch that is refused with ``add`` is refused without."""
    found = fit("t", batch, table, add=True)
    if isinstance(found, Unfit):
        assert {each.column for each in found.problems}
        assert isinstance(fit("t", batch, table, add=False), Unfit)
        return
    written = {each.name: each for each in found.schema.fields}
    kept = [written.pop(each.name, each) for each in table.fields]
    grown = StructType([*kept, *written.values()])
    assert set(leaf_types(table)) <= set(leaf_types(grown))
    assert fit("t", batch, grown, add=False) == SchemaFit(found.schema)
    assert fit("t", found.schema, grown, add=False) == SchemaFit(found.schema)
    assert (fit("t", batch, table, add=False) == found) == (not found.added)


@given(leaves, leaves, leaves)
def test_exact_casts_can_follow_each_other(one: DataType, two: DataType, three: DataType) -> None:
    """The relation is reflexive, transitive and antisymmetric."""
    assert holds(one, one)
    if holds(one, two) and holds(two, three):
        assert holds(one, three)
    if holds(one, two) and holds(two, one):
        assert one.simpleString() == two.simpleString() or {one.typeName(), two.typeName()} == {"decimal"}
