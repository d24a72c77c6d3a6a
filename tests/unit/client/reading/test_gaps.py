"""Tests that gaps are exactly the bytes that no fragment contains."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._options.source import parse_options
from gazette_spark._planning.gaps import byte_range
from gazette_spark.client._read.gaps import FragmentGap, gaps_between
from gazette_spark.errors import OffsetError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import NO_SUM, Fragment

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=8)


def fragments_of(some: list[tuple[int, int]], mod_time: int = 0) -> list[Fragment]:
    return [Fragment("ab/c", at, at + size, NO_SUM, pb.NONE, mod_time=mod_time) for at, size in some]


@given(spans, st.integers(0, 50), st.integers(0, 50))
def test_gaps_are_the_bytes_in_no_fragment(some: list[tuple[int, int]], one: int, other: int) -> None:
    begin, end = sorted((one, other))
    gaps = gaps_between("ab/c", fragments_of(some), begin, end)
    held = {at for low, size in some for at in range(low, low + size)}
    assert [at for gap in gaps for at in range(gap.begin, gap.end)] == [
        at for at in range(begin, end) if at not in held
    ]
    assert all(gap.bytes == gap.end - gap.begin > 0 for gap in gaps)
    assert all(gap.end < after.begin for gap, after in pairwise(gaps))
    assert {gap.journal for gap in gaps} <= {"ab/c"}


def ranged(**given: str) -> tuple[int, int]:
    """Return the byte range of a journal with fragments [10, 20) stored at 5 s and [30, 40) at 9 s."""
    address = {"brokerAddress": "http://broker.test:80", "path": "ab/c", "readGaps": "true"}
    options = parse_options(address | given, "batch", environ={})
    stored = [*fragments_of([(10, 10)], mod_time=5), *fragments_of([(30, 10)], mod_time=9)]
    return byte_range("ab/c", stored, 45, options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, (10, 45), id="first byte left to the head"),
        pytest.param({"startingOffsets": '{"ab/c":0}'}, (0, 45), id="before the first byte left"),
        pytest.param(
            {"startingOffsets": '{"ab/c":15}', "endingOffsets": '{"ab/c":33}'}, (15, 33), id="inside"
        ),
        pytest.param({"startingTimestamp": "6000", "endingTimestamp": "10000"}, (30, 45), id="by time"),
        pytest.param({"startingTimestamp": "10000"}, (45, 45), id="nothing since"),
        pytest.param({"startingOffsetsByTimestamp": '{"ab/c":6000}'}, (30, 45), id="by the journal's time"),
    ],
)
def test_the_range_is_that_of_the_options(options: dict[str, str], expected: tuple[int, int]) -> None:
    """The range need not begin or end at a record or a stored byte."""
    assert ranged(**options) == expected


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"startingOffsets": '{"ab/c":46}'}, id="start past the head"),
        pytest.param({"endingOffsets": '{"ab/c":46}'}, id="end past the head"),
        pytest.param({"endingOffsets": '{"ab/c":5}'}, id="end before the start"),
    ],
)
def test_a_range_that_is_none_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(OffsetError, match="journal 'ab/c'"):
        ranged(**options)


def test_a_gap_knows_its_size() -> None:
    assert FragmentGap("ab/c", 3, 10).bytes == 7
