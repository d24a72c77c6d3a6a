"""Each byte is served by one fragment, and a range includes the fragments that it may need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gazette_spark._planning.store_layout import FragmentCoverage, StoredFragment, check_fragments
from gazette_spark.errors import CorruptFragmentError, FragmentConflictError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.oracles.stores import fragment_of

CONTENT = bytes(range(200))


def stored(begin: int, end: int, codec: int = pb.GZIP, *, content: bytes = CONTENT) -> StoredFragment:
    fragment = fragment_of("log/a", begin, content[begin:end], codec)
    return StoredFragment(fragment, fragment.content_path, end - begin)


def spans(found: Iterable[Any]) -> list[tuple[int, int]]:
    return [(each.begin, each.end) for each in found]


def test_the_fragment_that_reaches_furthest_serves() -> None:
    fragments = [stored(0, 10), stored(0, 30), stored(20, 40), stored(25, 28), stored(50, 60)]
    coverage = FragmentCoverage(fragments)
    assert spans(coverage.serving) == [(0, 30), (20, 40), (50, 60)]
    assert [coverage.covering(at) for at in (0, 25, 45)] == [fragments[1], fragments[2], None]
    assert coverage.following(45) == fragments[4]
    assert (coverage.begin, coverage.end) == (0, 60)
    left = coverage.without(fragments[1])
    assert spans(left.serving) == [(0, 10), (20, 40), (50, 60)]


def test_of_equal_spans_the_first_path_serves() -> None:
    """The choice must not depend on the order of the listing, so that a query repeats exactly."""
    packed, raw = stored(0, 10), stored(0, 10, pb.NONE)
    assert FragmentCoverage([packed, raw]).covering(0) == packed
    assert FragmentCoverage([packed, raw]).serving == [packed]


def test_a_range_takes_along_what_comes_after_a_hole() -> None:
    coverage = FragmentCoverage([stored(0, 10), stored(5, 8), stored(10, 20), stored(90, 95), stored(95, 99)])
    assert spans(coverage.of_range(0, 10)) == [(0, 10), (5, 8)]
    assert spans(coverage.of_range(9, 12)) == [(0, 10), (10, 20)]
    assert spans(coverage.of_range(12, 40)) == [(10, 20), (90, 95)]
    assert spans(coverage.of_range(30, 40)) == [(90, 95)]
    assert spans(coverage.of_range(98, 200)) == [(95, 99)]
    assert spans(FragmentCoverage([]).of_range(0, 10)) == []


def test_fragments_are_held_against_each_other_by_name() -> None:
    check_fragments([stored(0, 10), stored(0, 10, pb.NONE), stored(5, 9)], "memory:///")
    with pytest.raises(FragmentConflictError, match="SHA-1 sums differ"):
        check_fragments([stored(0, 10), stored(0, 10, content=CONTENT[::-1])], "memory:///")
    longer = fragment_of("log/a", 0, CONTENT[:10])
    lie = StoredFragment(longer, longer.content_path.replace("a-", "b-", 1), 10)
    other = StoredFragment(type(longer)("log/a", 0, 11, longer.sum, pb.GZIP), "log/a/other", 11)
    with pytest.raises(FragmentConflictError, match="equal and their lengths differ"):
        check_fragments([lie, other], "memory:///")
    short = StoredFragment(longer, longer.content_path, 9)
    with pytest.raises(CorruptFragmentError, match="has 9 bytes, not 10"):
        check_fragments([short], "memory:///")
