"""From the calls of Spark 4.0 and 4.1 the source derives where a query is, or refuses the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gazette_spark._planning.tracked_position import TrackedPosition
from gazette_spark.errors import OffsetError
from gazette_spark.offsets import JournalOffsets

FIRST = JournalOffsets({"log/a": 10}, "initial")
PINNED = FIRST.at("pinned")
ONE, TWO = JournalOffsets({"log/a": 20}), JournalOffsets({"log/a": 30})


def first() -> JournalOffsets:
    return FIRST


def unasked() -> JournalOffsets:
    """Fail, because a query that continues must not look up a new query's start."""
    raise AssertionError("the start of a new query was made")


def test_a_new_query_begins_at_its_start() -> None:
    """Spark asks for the end of batch 0 before its start. Both must be equal."""
    made = iter([FIRST, JournalOffsets({"log/a": 11}, "initial")])
    tracked = TrackedPosition()
    assert not tracked.is_known
    assert tracked.next_begin(lambda: next(made)) == FIRST
    tracked.plan(FIRST, PINNED)
    assert tracked.first(lambda: next(made)) == FIRST
    assert tracked.check(FIRST, PINNED)
    assert tracked.next_begin(unasked) == PINNED
    tracked.plan(PINNED, ONE)
    assert tracked.check(PINNED, ONE)
    assert tracked.check(PINNED, ONE), "Spark may plan a batch twice"


def test_a_restarted_query_goes_on_at_its_last_end() -> None:
    tracked = TrackedPosition()
    assert not tracked.check(ONE, ONE)
    assert tracked.next_begin(unasked) == ONE
    tracked.plan(ONE, ONE)
    assert tracked.next_begin(unasked) == ONE
    tracked.plan(ONE, TWO)
    assert tracked.check(ONE, TWO)


@pytest.mark.parametrize("told", [True, False], ids=["told", "run_at_once"])
def test_a_batch_that_was_planned_runs_again(told: bool) -> None:
    tracked = TrackedPosition()
    if told:
        assert not tracked.check(TWO, TWO)
    assert tracked.check(ONE, TWO)
    assert tracked.check(ONE, TWO)
    assert tracked.next_begin(unasked) == TWO


def test_the_first_batch_runs_again() -> None:
    tracked = TrackedPosition()
    assert not tracked.check(PINNED, PINNED)
    assert tracked.first(unasked) == FIRST
    assert tracked.check(FIRST, PINNED)
    assert tracked.next_begin(unasked) == PINNED


def planned_new(tracked: TrackedPosition) -> None:
    tracked.plan(tracked.next_begin(first), PINNED)


def restarted(tracked: TrackedPosition) -> None:
    tracked.check(ONE, ONE)
    tracked.plan(tracked.next_begin(first), TWO)


@pytest.mark.parametrize(
    ("before", "begin", "end", "problem"),
    [
        pytest.param(planned_new, ONE, ONE, "ends at .* mistook a restarted query for a new", id="told_late"),
        pytest.param(planned_new, ONE, PINNED, "begins at .*triggerAvailableNowWrapper", id="not_told"),
        pytest.param(
            lambda _: None, ONE, PINNED, "Delete the newest file in .* offsets", id="not_told_again"
        ),
        pytest.param(restarted, ONE, JournalOffsets({"log/a": 31}), "ends at", id="another_end"),
        pytest.param(restarted, PINNED, TWO, "begins at", id="another_begin"),
    ],
)
def test_a_batch_that_was_not_given_is_refused(
    before: Callable[[TrackedPosition], None], begin: JournalOffsets, end: JournalOffsets, problem: str
) -> None:
    """If Spark reports the start of a continued query late or never, rows would be lost or doubled."""
    tracked = TrackedPosition()
    before(tracked)
    with pytest.raises(OffsetError, match=problem):
        tracked.check(begin, end)
