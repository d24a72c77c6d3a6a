"""A query that leaves bytes unread for its filters has the rows of one that reads all and filters them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gazette_spark.offsets import MAX_OFFSET
from gazette_spark.scan.boundary import boundaries_around, window_reader
from gazette_spark.scan.conditions import (
    Comparison,
    Condition,
    RowFilter,
    Subject,
    Value,
    both,
    joined,
    outside,
)
from gazette_spark.scan.piece_scan import PieceScan, raw_record_batches
from gazette_spark.scan.pruning import narrow, split_narrowed
from gazette_spark.scan.ranges import OffsetRange, split
from tests.oracles.brokers import FakeFragment
from tests.oracles.framings import FAST
from tests.oracles.lines import FakeJournal
from tests.property.test_framings import NAME, cases

ORDERED = ("<", "<=", ">", ">=", "=", "<=>", "in")
TEXT = ("starts with", "ends with", "contains")
LONG = 1 << 20


def sql(condition: Condition, value: Value) -> bool | None:
    """Evaluate a condition as SQL does, None for unknown."""
    test, values = condition.test.value, condition.values
    if test == "is null":
        found: bool | None = value is None
    elif test == "<=>":
        found = value == values[0]
    elif test == "in":
        found = any(value == each for each in values if value is not None)
        found = None if not found and (value is None or None in values) and values else found
        found = None if value is None else found
    elif value is None or values[0] is None:
        found = None
    elif isinstance(value, str):
        other = str(values[0])
        mine, theirs = value.encode(), other.encode()
        found = {
            "starts with": mine.startswith(theirs),
            "ends with": mine.endswith(theirs),
            "contains": theirs in mine,
            "<": mine < theirs,
            "<=": mine <= theirs,
            ">": mine > theirs,
            ">=": mine >= theirs,
            "=": mine == theirs,
        }[test]
    else:
        found = eval(f"a {'==' if test == '=' else test} b", {"a": value, "b": values[0]})
    return None if found is None else found != condition.negated


@st.composite
def conditions(draw: st.DrawFn, subject: Subject, values: st.SearchStrategy[Value]) -> Condition:
    """Any filter on one column."""
    tests = (*ORDERED, "is null", *(TEXT if subject is Subject.JOURNAL else ()))
    test = Comparison(draw(st.sampled_from(tests)))
    size = {"in": st.integers(1, 4), "is null": st.just(0)}.get(test.value, st.just(1))
    count = draw(size)
    some = st.none() | values if test.value not in TEXT else values
    return Condition(subject, test, tuple(draw(some) for _ in range(count)), draw(st.booleans()))


texts = st.text("ab/\U0001f600\uffff", max_size=4)
numbers = st.integers(-5, 30) | st.sampled_from([MAX_OFFSET, -(2**63), 2**63 - 2])


@given(conditions(Subject.JOURNAL, texts), st.none() | texts)
def test_a_condition_on_text_is_what_sql_says(condition: Condition, value: str | None) -> None:
    """Unknown counts as no; texts are ordered by their UTF-8 bytes."""
    assert condition.holds(value) == (sql(condition, value) is True)


@given(
    conditions(Subject.OFFSET, numbers), st.integers(0, 35) | st.sampled_from([MAX_OFFSET, MAX_OFFSET - 1])
)
@example(Condition(Subject.OFFSET, Comparison.IN, (None, 3), negated=True), 4)
def test_the_spans_of_a_condition_are_the_offsets_that_meet_it(condition: Condition, value: int) -> None:
    """Ascending and apart; an offset is in one of them if SQL would keep its row."""
    spans = condition.spans()
    assert spans == joined(spans)
    assert any(begin <= value < end for begin, end in spans) == (sql(condition, value) is True)


some_spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple), max_size=6)


def offsets_of(spans: list[tuple[int, int]]) -> set[int]:
    """Return all offsets in some spans."""
    return {at for begin, end in spans for at in range(begin, end)}


@given(some_spans, some_spans)
def test_spans_are_sets_of_offsets(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    """Union, intersection and complement are those of the offsets, in ascending spans that lie apart."""
    a, b = joined(some), joined(others)
    union, common, rest = joined([*a, *b]), both(a, b), outside(a, 3, 25)
    assert offsets_of(union) == offsets_of(a) | offsets_of(b)
    assert offsets_of(common) == offsets_of(a) & offsets_of(b)
    assert offsets_of(rest) == set(range(3, 25)) - offsets_of(a)
    for spans in (union, common, rest):
        assert all(begin < end for begin, end in spans)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_nothing_is_known_of_the_time_of_bytes_that_are_not_stored() -> None:
    """Bytes that are not stored are kept whatever the condition; a stored time decides for itself."""
    fragments = [
        FakeFragment(0, 10, 1),
        FakeFragment(10, 20, 5),
        FakeFragment(30, 40, 1),
        FakeFragment(40, 50),
        FakeFragment(5, 12, 1),
    ]
    late = Condition(Subject.MOD_TIME, Comparison.AT_LEAST, (5_000_000,))
    null = Condition(Subject.MOD_TIME, Comparison.IS_NULL)
    assert RowFilter((late,)).spans(fragments) == [(10, 30), (40, MAX_OFFSET + 1)]
    assert RowFilter((null,)).spans(fragments) == [(20, 30), (40, MAX_OFFSET + 1)]


fragments = st.lists(
    st.builds(
        lambda begin, size, at: FakeFragment(begin, begin + size, at),
        st.integers(0, 20),
        st.integers(1, 10),
        st.integers(0, 4),
    ),
    max_size=6,
)
times = conditions(Subject.MOD_TIME, st.integers(0, 5).map(lambda second: second * 1_000_000))


@given(fragments, st.lists(times, max_size=3))
def test_only_bytes_whose_times_are_all_unwanted_are_left_out(
    listed: list[FakeFragment], wanted: list[Condition]
) -> None:
    """A byte may be read from any fragment that holds it, and what is not stored yet may get any time."""
    spans = RowFilter(tuple(wanted)).spans(listed)
    for offset in range(35):
        known = [each.mod_time for each in listed if each.begin <= offset < each.end]
        may_be = any(at == 0 or all(each.holds(at * 1_000_000) for each in wanted) for at in known or [0])
        assert any(begin <= offset < end for begin, end in spans) == may_be


def rows_of(
    journal: FakeJournal, name: str, wanted: RowFilter | None, cut: dict[str, Any]
) -> tuple[set[tuple[int, bytes]], int]:
    """Return the rows of a whole journal as a query with filters reads them, and the bytes it asked for."""
    framing = FAST[name]
    whole = OffsetRange(NAME, journal.base, journal.base + len(journal.content))
    window = window_reader(journal, NAME, fail_on_data_loss=False)

    def around(first: int, last: int) -> tuple[int, int]:
        return boundaries_around(window, (whole.begin, whole.end), (first, last), LONG, framing=framing)

    narrowed = narrow(whole, (wanted or RowFilter()).spans(), framing, around=around)
    pieces = split_narrowed(
        [narrowed] if narrowed else [], lambda parts: split(parts, framings={NAME: framing}, **cut)
    )
    journal.reads.clear()
    rows: list[tuple[int, bytes]] = []
    for piece in pieces:
        scan = PieceScan(journal, piece, fail_on_data_loss=False, framing=framing)
        for batch in raw_record_batches(scan, ("offset", "value"), framing=framing):
            rows += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    assert len(set(rows)) == len(rows), "a record twice"
    return set(rows), sum(end - begin for begin, end in journal.reads)


@pytest.mark.parametrize("name", list(FAST))
@settings(deadline=None)
@given(st.data())
def test_rows_with_filters_pushed_are_the_rows_that_meet_them(name: str, data: st.DataObject) -> None:
    """Pushed filters give the rows that meet them, whatever the framing, the holes and the cuts."""
    journal, found = data.draw(cases(name))
    if data.draw(st.booleans()) and len(found.boundaries) > 2:
        low, high = sorted(
            data.draw(st.lists(st.sampled_from(found.boundaries[:-1]), min_size=2, max_size=2))
        )
        journal.holes = [(low, high)] if low < high else []
    wanted = RowFilter(
        tuple(data.draw(st.lists(conditions(Subject.OFFSET, st.integers(0, 110)), max_size=3)))
    )
    cut = {"max_bytes": data.draw(st.integers(1, 60)), "min_partitions": data.draw(st.integers(1, 4))}
    every, _ = rows_of(journal, name, None, cut)
    got, _ = rows_of(journal, name, wanted, cut)
    meeting = {row for row in every if all(sql(each, row[0]) is True for each in wanted.conditions)}
    assert {row for row in got if all(each.holds(row[0]) for each in wanted.conditions)} == meeting
    if not FAST[name].anchored:
        assert got == meeting


@pytest.mark.parametrize("name", ["lines", "fixed"])
def test_a_narrow_filter_reads_few_bytes(name: str) -> None:
    """A filter reads the bytes it names, and those to find where its first record begins."""
    one = {"lines": b"x" * 99 + b"\n", "fixed": b"\x66\x33\x93\x36\x5c\0\0\0" + b"x" * 92}[name]
    journal = FakeJournal(one * 1000)
    between = (
        Condition(Subject.OFFSET, Comparison.AT_LEAST, (50_000,)),
        Condition(Subject.OFFSET, Comparison.LESS, (51_000,)),
    )
    rows, read = rows_of(journal, name, RowFilter(between), {"max_bytes": 2000})
    assert {offset for offset, _ in rows} >= set(range(50_000, 51_000, 100))
    assert len(rows) <= 30
    assert read <= 60_000
