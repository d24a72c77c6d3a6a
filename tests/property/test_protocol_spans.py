"""Spans are sets of offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.protocol.spans import joined, outside

offsets = st.integers(0, 30)
some_spans = st.lists(st.tuples(offsets, offsets).map(sorted).map(tuple), max_size=6)


def offsets_of(spans: list[tuple[int, int]]) -> set[int]:
    return {at for begin, end in spans for at in range(begin, end)}


@given(some_spans, some_spans, offsets, offsets)
def test_spans_are_sets_of_offsets(
    some: list[tuple[int, int]], others: list[tuple[int, int]], begin: int, end: int
) -> None:
    union, rest = joined([*some, *others]), outside(sorted(some), begin, end)
    assert offsets_of(union) == offsets_of(some) | offsets_of(others)
    assert offsets_of(rest) == set(range(begin, end)) - offsets_of(some)
    assert all(low < high for low, high in (*union, *rest))
    assert all(high < low for (_, high), (low, _) in pairwise(union))
    assert all(high <= low for (_, high), (low, _) in pairwise(rest))
