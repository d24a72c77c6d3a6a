"""Tests how a read offset resolves: to a fragment, to a jump, or to nothing yet."""

from __future__ import annotations

import pytest

from gazette_spark.broker.storage.index import HOLE_AGE_S, IndexView, resolve_read
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

NOW = 1_700_000_000.0
OLD = int(NOW - HOLE_AGE_S - 1)
YOUNG = int(NOW - 60)


def fragment(begin: int, end: int, mod_time: int = 0) -> Fragment:
    """Return a fragment, which is stored if it has a modification time."""
    store = "file:///" if mod_time else ""
    return Fragment("a/journal", begin, end, bytes(20), pb.NONE, backing_store=store, mod_time=mod_time)


def test_empty_view() -> None:
    view = IndexView()
    assert (view.begin, view.end, list(view.fragments())) == (0, 0, [])
    found = resolve_read(view, 0, 0, NOW)
    assert (found.offset, found.fragment, found.write_head) == (0, None, 0)


VIEW = IndexView((fragment(100, 200, OLD), fragment(150, 300, OLD)), fragment(300, 350))


@pytest.mark.parametrize(
    ("offset", "span"),
    [
        pytest.param(100, (100, 200), id="only-one"),
        pytest.param(160, (150, 300), id="furthest-of-two"),
        pytest.param(299, (150, 300), id="last-byte"),
        pytest.param(300, (300, 350), id="growing"),
        pytest.param(350, None, id="at-head"),
        pytest.param(400, None, id="past-head"),
    ],
)
def test_covering(offset: int, span: tuple[int, int] | None) -> None:
    """Of the fragments that cover an offset, the one that reaches furthest serves it."""
    found = resolve_read(VIEW, offset, 0, NOW)
    assert (found.fragment and (found.fragment.begin, found.fragment.end)) == span
    assert (found.offset, found.write_head) == (offset, 350)


def test_minus_one_is_the_write_head() -> None:
    assert resolve_read(VIEW, -1, 0, NOW).offset == 350


def test_a_missing_begin_is_jumped_at_once() -> None:
    """A read before the first stored fragment jumps to it, regardless of the fragment's age."""
    view = IndexView((fragment(100, 200, YOUNG),))
    assert resolve_read(view, 0, 0, NOW).offset == 100


@pytest.mark.parametrize(
    ("mod_time", "offset"),
    [
        pytest.param(YOUNG, 60, id="young-hole-waits"),
        pytest.param(OLD, 100, id="old-hole-jumps"),
        pytest.param(0, 60, id="local-waits"),
    ],
)
def test_hole(mod_time: int, offset: int) -> None:
    """A hole is skipped only once the stored fragment after it is six hours old."""
    view = IndexView((fragment(0, 50, OLD), fragment(100, 200, mod_time)))
    assert resolve_read(view, 60, 0, NOW).offset == offset


def test_a_begin_that_is_only_local_is_waited_for() -> None:
    found = resolve_read(IndexView((), fragment(100, 200)), 0, 0, NOW)
    assert (found.offset, found.fragment) == (0, None)


def test_begin_mod_time_passes_over_old_fragments() -> None:
    """Stored fragments older than requested are skipped; the growing one never is."""
    assert resolve_read(VIEW, 100, YOUNG, NOW).offset == 300
    stored = IndexView((fragment(0, 50, OLD), fragment(50, 90, OLD)))
    found = resolve_read(stored, 10, YOUNG, NOW)
    assert (found.offset, found.fragment) == (90, None)
