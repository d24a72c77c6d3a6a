"""Positions survive their JSON, and their order is a partial order."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.errors import OffsetError
from gazette_spark.offsets import MAX_OFFSET, JournalOffsets, Position, check_forward

offsets = st.dictionaries(st.text(min_size=1, max_size=12), st.integers(0, MAX_OFFSET), max_size=6)
marks: st.SearchStrategy[Position] = st.sampled_from(["", "initial", "pinned"])


@st.composite
def seen(draw: st.DrawFn) -> JournalOffsets:
    read_through = draw(offsets)
    behind = [name for name, offset in read_through.items() if offset < MAX_OFFSET and draw(st.booleans())]
    heads = {name: draw(st.integers(read_through[name] + 1, MAX_OFFSET)) for name in behind}
    gaps = {}
    for name in [name for name, offset in read_through.items() if offset > 1 and draw(st.booleans())]:
        ends = st.lists(st.integers(0, read_through[name]), min_size=2, max_size=6, unique=True).map(sorted)
        edges = draw(ends)
        gaps[name] = tuple(zip(edges[::2], edges[1::2], strict=False))
    gone = tuple(name for name in read_through if name not in heads and draw(st.booleans()))
    revision = draw(st.integers(0 if (gaps or gone) and not heads else 1, MAX_OFFSET))
    return JournalOffsets(read_through, draw(marks), revision, heads, gaps, gone)


positions = st.builds(JournalOffsets, offsets, marks) | seen()
small = st.builds(JournalOffsets, st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def state(position: JournalOffsets) -> tuple[object, ...]:
    return position.revision, position.heads, position.gaps, position.gone


def reaches(start: JournalOffsets, end: JournalOffsets) -> bool:
    try:
        check_forward(start, end)
    except OffsetError:
        return False
    return True


@given(positions)
def test_text_round_trips(position: JournalOffsets) -> None:
    again = JournalOffsets.from_json(position.to_json())
    assert again == JournalOffsets.from_dict(json.loads(json.dumps(position.to_dict()))) == position
    assert state(again) == state(position)


@given(positions, positions)
def test_equal_text_means_equal_positions(one: JournalOffsets, other: JournalOffsets) -> None:
    """Spark compares the text; this must agree with comparing the values, and with what was seen."""
    assert (one.to_json() == other.to_json()) == (one == other and state(one) == state(other))


@given(small, small, small)
def test_forward_is_a_partial_order(a: JournalOffsets, b: JournalOffsets, c: JournalOffsets) -> None:
    """The order is reflexive, antisymmetric and transitive, so a query cannot go round in a circle."""
    assert reaches(a, a)
    assert not (reaches(a, b) and reaches(b, a)) or a == b
    assert not (reaches(a, b) and reaches(b, c)) or reaches(a, c)


@given(json_values)
def test_no_other_value_is_taken_for_a_position(value: object) -> None:
    try:
        position = JournalOffsets.from_dict(value)
    except OffsetError:
        return
    assert position.to_dict() == value


@given(st.text(max_size=40))
def test_any_text_is_a_position_or_an_error(text: str) -> None:
    with pytest.raises(OffsetError):
        JournalOffsets.from_json(text)
