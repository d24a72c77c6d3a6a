"""Ages are bounds, and an unknown age is None."""

from __future__ import annotations

import random

import pytest

from gazette_spark.lag.estimates import (
    MAX_SAMPLES,
    Age,
    HeadTimeline,
    TimedFragment,
    catch_up_ms,
    lag_age,
    loss_in_ms,
    read_bytes_per_s,
)
from gazette_spark.lag.rules import OffsetCommit


def watched(*samples: tuple[int, int]) -> HeadTimeline:
    """Return a timeline of (milliseconds, write head)."""
    timeline = HeadTimeline()
    for time_ms, head in samples:
        timeline.add(head, time_ms)
    return timeline


def test_commits_of_its_readers_add_no_samples_of_a_journal_that_stands_still() -> None:
    """A commit names the heads of all journals of its query, also of those that do not grow."""
    timeline = watched((0, 7))
    for now_ms in range(10_000, 5_000_000, 10_000):
        timeline.add(7, now_ms)
        # The last one comes from a driver whose clock is ahead.
        for planned_ms in (now_ms - 9000, now_ms - 5000, now_ms + 1000):
            timeline.add_past(7, planned_ms)
    assert len(timeline) == 2
    assert timeline.appended(6) == (None, 0)


def test_an_age_lies_between_two_looks_at_the_head() -> None:
    """The byte did not exist at the first look but did at the second."""
    timeline = watched((1000, 0), (2000, 50), (3000, 200))
    assert lag_age(60, 200, timeline, (), now_ms=10_000) == Age(7000, 8000)


def test_a_reader_at_the_head_has_no_age() -> None:
    assert lag_age(200, 200, watched((1000, 200)), (), now_ms=10_000) == Age(0, 0)


def test_what_was_there_before_the_first_look_is_at_least_as_old() -> None:
    assert lag_age(0, 200, watched((1000, 200)), (), now_ms=10_000) == Age(9000, None)


def test_a_stored_fragment_says_more_than_a_late_look() -> None:
    """A byte was appended before its fragment was stored."""
    fragments = [TimedFragment(0, 100, 400), TimedFragment(100, 200, 600)]
    assert lag_age(120, 200, watched((1000, 200)), fragments, now_ms=10_000) == Age(9400, None)


def test_clocks_that_differ_give_no_negative_age() -> None:
    """A store's clock may be ahead of the monitor's."""
    assert lag_age(0, 9, HeadTimeline(), [TimedFragment(0, 9, 99_000)], now_ms=10_000) == Age(0, None)


def test_a_head_that_goes_back_begins_anew() -> None:
    """The old samples belong to the bytes of another journal."""
    timeline = watched((1000, 500), (2000, 10), (3000, 30))
    assert timeline.appended(20) == (2000, 3000)
    assert timeline.appended(400) == (3000, None)


@pytest.mark.parametrize("seed", range(20))
def test_thinning_never_makes_a_bound_wrong(seed: int) -> None:
    """A byte was appended within the bounds, regardless of the number of samples."""
    draw = random.Random(seed)
    truth: list[tuple[int, int]] = []
    timeline = HeadTimeline()
    head = now_ms = 0
    for _ in range(MAX_SAMPLES * 3):
        now_ms += draw.randint(1, 50)
        head += draw.choice([0, 0, draw.randint(1, 20)])
        truth.append((now_ms, head))
        timeline.add(head, now_ms)
    assert len(timeline) <= MAX_SAMPLES
    for offset in range(head):
        after, by = timeline.appended(offset)
        first_seen = next(time_ms for time_ms, reached in truth if reached > offset)
        last_not = max((time_ms for time_ms, reached in truth if reached <= offset), default=None)
        assert by is not None
        assert by >= first_seen
        assert after is None or (last_not is not None and after <= last_not)


def test_a_journal_that_stands_still_takes_two_samples() -> None:
    """A night without appends must not push out the samples from before it."""
    timeline = watched(*((at * 1000, 7) for at in range(1, 500)))
    assert len(timeline) == 2
    assert timeline.appended(7) == (499_000, None)


def commits(*steps: tuple[int, int]) -> list[OffsetCommit | None]:
    """Return a window of (milliseconds, offset) with an unused slot."""
    return [None, *(OffsetCommit(offset, time_ms) for time_ms, offset in steps)]


def test_speed_is_that_of_the_window() -> None:
    assert read_bytes_per_s(commits((1000, 0), (2000, 900), (3000, 1000))) == 500.0
    assert read_bytes_per_s(commits((1000, 0))) is None
    assert read_bytes_per_s(commits((1000, 50), (2000, 0))) is None
    assert read_bytes_per_s(commits((1000, 0), (1000, 50))) is None
    assert watched((1000, 0), (3000, 500)).bytes_per_s(0) == 250.0
    assert watched((1000, 0)).bytes_per_s(0) is None


def test_catching_up_takes_the_difference_of_speeds() -> None:
    assert catch_up_ms(1000, 600.0, 100.0) == 2000
    assert catch_up_ms(1000, 100.0, 100.0) is None
    assert catch_up_ms(1000, None, 100.0) is None
    assert catch_up_ms(0, None, None) == 0


def test_loss_is_when_the_first_unread_fragment_outlives_its_time() -> None:
    """The estimate ignores fragments that are read in time or were read before."""
    fragments = [TimedFragment(0, 100, 1000), TimedFragment(100, 200, 2000), TimedFragment(200, 900, 3000)]
    assert loss_in_ms(100, fragments, 10_000, 1000.0, now_ms=5000) is None
    assert loss_in_ms(100, fragments, 10_000, 50.0, now_ms=5000) == 8000
    assert loss_in_ms(100, fragments, 10_000, None, now_ms=5000) == 7000
    assert loss_in_ms(100, fragments, 10_000, None, now_ms=50_000) == 0
    assert loss_in_ms(900, fragments, 10_000, None, now_ms=5000) is None
