"""Each of Burrow's rules on partitions and groups, with its edges and quirks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gazette_spark.errors import GazetteError, InputError, OptionError
from gazette_spark.lag.rules import (
    GroupStatus,
    OffsetCommit,
    PartitionStatus,
    PartitionWindow,
    Status,
    Thresholds,
    evaluate_group,
    evaluate_partition,
    float32,
)

T0_MS = 1_000_000_000
"""Time of the first commit of every window here, in milliseconds."""

SECOND_MS = 1000

Slot = tuple[int, int | None] | None
"""Offset and lag of a commit; None for an unused slot."""


def window(
    *slots: Slot,
    current_lag: int = 10,
    heads: Sequence[int] = (1_000,),
    topic: str = "shop",
    partition: int = 0,
) -> PartitionWindow:
    """Return a window whose slots are a second apart; the first used one is at ``T0_MS``."""
    unused = sum(slot is None for slot in slots)
    commits = [
        slot and OffsetCommit(slot[0], T0_MS + (at - unused) * SECOND_MS, 0, slot[1])
        for at, slot in enumerate(slots)
    ]
    return PartitionWindow(topic, partition, current_lag, heads, commits)


def judged(of: PartitionWindow, *, now_ms: int | None = None, **thresholds: float) -> PartitionStatus:
    """Return the verdict at ``now_ms``, by default at the time of the last commit."""
    times = [slot.timestamp_ms for slot in of.offset_commits if slot]
    now = now_ms if now_ms is not None else max(times, default=T0_MS)
    return evaluate_partition(of, now, Thresholds(**thresholds))  # type: ignore[arg-type] # a test's shorthand


def status(*slots: Slot, now_ms: int | None = None, **arguments: object) -> str:
    return judged(window(*slots, **arguments), now_ms=now_ms).status.name  # type: ignore[arg-type] # passed on


def test_codes_and_names_are_burrows() -> None:
    assert {each.name: each.value for each in Status} == {
        "NOTFOUND": 0,
        "OK": 1,
        "WARN": 2,
        "ERR": 3,
        "STOP": 4,
        "STALL": 5,
        "REWIND": 6,
    }


def test_an_empty_list_is_ok_and_not_complete_at_all() -> None:
    got = judged(window())
    assert (got.status, got.complete, got.start, got.end) == (Status.OK, 0.0, None, None)


@pytest.mark.parametrize(
    ("slots", "complete"),
    [
        pytest.param(10, float32(0.1), id="ten slots"),
        pytest.param(3, float32(1 / 3), id="three slots"),
        pytest.param(1, 1.0, id="one slot"),
    ],
)
def test_a_window_of_unused_slots_counts_one(slots: int, complete: float) -> None:
    got = judged(window(*[None] * slots), now_ms=2 * T0_MS)
    assert (got.status, got.complete, got.start, got.end) == (Status.OK, complete, None, None)


def test_leading_gaps_are_left_out_of_the_window() -> None:
    got = judged(window(None, None, (5, 9), (6, 9), (7, 10)))
    assert got.start == OffsetCommit(5, T0_MS, 0, 9)
    assert got.end == OffsetCommit(7, T0_MS + 2 * SECOND_MS, 0, 10)
    assert (got.complete, got.status.name) == (float32(0.6), "WARN")


def test_a_full_window_is_complete() -> None:
    assert judged(window((5, 9), (6, 9))).complete == 1.0


@pytest.mark.parametrize(
    ("minimum", "verdict"),
    [
        pytest.param(0.0, "WARN", id="none asked for"),
        pytest.param(0.6, "WARN", id="just enough"),
        pytest.param(0.61, "OK", id="too little"),
        pytest.param(1.0, "OK", id="all asked for"),
    ],
)
def test_windows_below_the_minimum_are_ok(minimum: float, verdict: str) -> None:
    """Completeness and minimum are compared as 32-bit floats: three fifths equal 0.6."""
    assert (
        judged(window(None, None, (5, 9), (6, 9), (7, 10)), minimum_complete=minimum).status.name == verdict
    )


def test_the_minimum_is_rounded_as_completeness_is() -> None:
    """0.7 as a 32-bit float is less than 0.7 in 64 bits, and must still satisfy a minimum of 0.7."""
    seven = [(at, 9) for at in range(7)]
    assert float32(0.7) < 0.7
    assert judged(window(None, None, None, *seven), minimum_complete=0.7).status.name == "WARN"


@pytest.mark.parametrize(
    ("current_lag", "allowed", "verdict"),
    [
        pytest.param(0, 0, "OK", id="level"),
        pytest.param(1, 0, "STOP", id="one behind"),
        pytest.param(5, 5, "OK", id="as far behind as allowed"),
        pytest.param(6, 5, "STOP", id="farther than allowed"),
    ],
)
def test_rule_0_what_is_near_enough_is_ok(current_lag: int, allowed: int, verdict: str) -> None:
    of = window((5, 9), (6, 9), current_lag=current_lag)
    assert judged(of, now_ms=2 * T0_MS, allowed_lag=allowed).status.name == verdict


@pytest.mark.parametrize(
    ("after_ms", "verdict"),
    [
        pytest.param(2_000, "WARN", id="as long as the window"),
        pytest.param(2_999, "WARN", id="longer by less than a second"),
        pytest.param(3_000, "STOP", id="longer by a second"),
        pytest.param(-5_000, "WARN", id="clock set back"),
    ],
)
def test_rule_1_silence_longer_than_the_window_is_stop(after_ms: int, verdict: str) -> None:
    """The window is two seconds long. Time is counted in whole seconds, and an equal time is not longer."""
    last_ms = T0_MS + 2_000
    assert status((5, 9), (6, 9), (7, 10), now_ms=last_ms + after_ms) == verdict


@pytest.mark.parametrize(
    ("heads", "verdict"),
    [
        pytest.param([7, 500], "WARN", id="one head was reached"),
        pytest.param([6, 500], "WARN", id="one head was passed"),
        pytest.param([500, 7], "WARN", id="in any place"),
        pytest.param([8, 500], "STOP", id="none reached"),
        pytest.param([], "STOP", id="none known"),
    ],
)
def test_rule_1_a_query_that_was_level_lately_has_not_stopped(heads: list[int], verdict: str) -> None:
    assert status((5, 9), (6, 9), (7, 10), heads=heads, now_ms=2 * T0_MS) == verdict


def test_rule_1_a_single_commit_stops_after_a_second() -> None:
    """A window of one commit has length zero, so any silence exceeds it."""
    assert status((5, 9), now_ms=T0_MS + 999) == "STALL"
    assert status((5, 9), now_ms=T0_MS + 1000) == "STOP"


@pytest.mark.parametrize(
    ("offsets", "verdict"),
    [
        pytest.param([5, 9, 3, 4], "REWIND", id="never recovered"),
        pytest.param([5, 9, 3, 8], "REWIND", id="one short of it"),
        pytest.param([5, 9, 3, 9], "WARN", id="recovered exactly"),
        pytest.param([5, 9, 3, 12], "WARN", id="recovered beyond"),
        pytest.param([5, 9, 3, 12, 4], "WARN", id="only the first one counts"),
        pytest.param([9, 3], "REWIND", id="at the end"),
        pytest.param([9, 9], "STALL", id="equal is no rewind"),
    ],
)
def test_rule_2_an_offset_below_the_one_before_is_rewind(offsets: list[int], verdict: str) -> None:
    assert status(*[(offset, 9) for offset in offsets]) == verdict


@pytest.mark.parametrize(
    ("lags", "verdict"),
    [
        pytest.param([9, 0, 9], "OK", id="zero once"),
        pytest.param([9, 1, 9], "OK", id="down once"),
        pytest.param([9, None, 9], "WARN", id="unknown is not zero"),
    ],
)
def test_rule_3_a_commit_without_lag_pardons(lags: list[int | None], verdict: str) -> None:
    assert status(*[(at, lag) for at, lag in enumerate(lags)]) == verdict


def test_rule_3_asks_for_allowed_lag() -> None:
    of = window((5, 9), (5, 4), (5, 9))
    assert judged(of, allowed_lag=4).status.name == "OK"
    assert judged(of, allowed_lag=3).status.name == "STALL"


def test_rules_1_and_2_come_before_the_pardon() -> None:
    assert status((5, 0), (6, 9), now_ms=2 * T0_MS) == "STOP"
    assert status((9, 0), (3, 9)) == "REWIND"


def test_stop_comes_before_rewind() -> None:
    assert status((9, 9), (3, 9), now_ms=2 * T0_MS) == "STOP"


@pytest.mark.parametrize(
    ("slots", "verdict"),
    [
        pytest.param([(5, 9), (5, 8), (5, 7)], "STALL", id="even if the lag goes down"),
        pytest.param([(5, 9)], "STALL", id="one commit"),
        pytest.param([(5, None), (5, None)], "STALL", id="lags unknown"),
        pytest.param([(5, 9), (5, 9), (6, 9)], "WARN", id="it moved"),
    ],
)
def test_rule_4_the_same_offset_always_is_stall(slots: list[Slot], verdict: str) -> None:
    assert status(*slots) == verdict


@pytest.mark.parametrize(
    ("lags", "verdict"),
    [
        pytest.param([7, 8, 9], "WARN", id="rising"),
        pytest.param([9, 9, 9], "WARN", id="level"),
        pytest.param([9, 8, 9], "OK", id="down once"),
        pytest.param([9, None, 9], "WARN", id="a gap"),
        pytest.param([9, None, 8], "OK", id="down across a gap"),
        pytest.param([None, 9, None], "WARN", id="one known"),
        pytest.param([None, None, None], "WARN", id="none known"),
    ],
)
def test_rules_5_and_6_a_lag_that_never_goes_down_is_warn(lags: list[int | None], verdict: str) -> None:
    assert status(*[(at, lag) for at, lag in enumerate(lags)]) == verdict


def test_a_gap_behind_a_commit_is_refused() -> None:
    """Rings have unused slots only at the front, so the data cannot be from a ring."""
    with pytest.raises(InputError, match="topic 'shop', partition 3: an unused slot follows a commit"):
        window((5, 9), None, partition=3)


STOPPED = window((5, 9), (6, 9), partition=1)
REWOUND = window((9, 9), (3, 9), (4, 9), (5, 9), partition=2)
FINE = window((5, 9), (6, 9), current_lag=0, partition=3)
SLOW = window((5, 9), (6, 9), (7, 9), (8, 9), partition=4)
STALLED = window((5, 9), (5, 9), (5, 9), (5, 9), partition=5)

NOW_MS = T0_MS + 4 * SECOND_MS
"""Time in milliseconds at which STOPPED has stopped and the longer windows have not."""


def group(*windows: PartitionWindow) -> GroupStatus:
    return evaluate_group("local", "orders", windows, NOW_MS, Thresholds())


@pytest.mark.parametrize(
    ("parts", "partition_words", "word"),
    [
        pytest.param([FINE], ["OK"], "OK", id="fine"),
        pytest.param([FINE, SLOW], ["OK", "WARN"], "WARN", id="slow"),
        pytest.param([SLOW, STOPPED], ["WARN", "STOP"], "ERR", id="stopped"),
        pytest.param([REWOUND, SLOW], ["REWIND", "WARN"], "ERR", id="rewound"),
        pytest.param([STALLED, FINE], ["STALL", "OK"], "ERR", id="stalled"),
        pytest.param([STOPPED, REWOUND, STALLED], ["STOP", "REWIND", "STALL"], "ERR", id="all at once"),
    ],
)
def test_a_group_is_as_bad_as_its_worst_partition(
    parts: list[PartitionWindow], partition_words: list[str], word: str
) -> None:
    got = group(*parts)
    assert [each.status.name for each in got.partitions] == partition_words
    assert got.status.name == word


def test_lags_are_added_over_all_partitions() -> None:
    got = group(window((5, 9), current_lag=0), window((5, 9), current_lag=4), window((5, 9), current_lag=7))
    assert (got.total_lag, got.partition_count) == (11, 3)


def test_the_worst_lag_is_the_first_of_several() -> None:
    lags = [3, 8, 8, 2]
    got = group(*[window(None, (5, 0), current_lag=lag, partition=at) for at, lag in enumerate(lags)])
    assert got.maxlag is got.partitions[1]
    level = group(window(current_lag=0, partition=6), window(current_lag=0, partition=7))
    assert level.maxlag is level.partitions[0]
    assert level.maxlag.status is Status.OK


def test_a_group_is_as_complete_as_its_share_of_complete_partitions() -> None:
    """A partition counts if its window is full. The share is a 32-bit float."""
    full, part = window((5, 9), (6, 9)), window(None, (6, 9))
    assert group(full, part, part).complete == float32(1 / 3)
    assert group(full).complete == 1.0
    assert group(part).complete == 0.0
    assert group(window(None)).complete == 1.0, "a window of one unused slot is complete"


def test_a_group_that_is_not_known_is_notfound() -> None:
    got = evaluate_group("local", "nobody", None, NOW_MS, Thresholds())
    assert got == GroupStatus("local", "nobody", Status.NOTFOUND, 1.0, (), None, 0)
    assert got.partition_count == 0


def test_a_group_without_partitions_is_ok_and_not_complete() -> None:
    """This is the state after a topic was deleted."""
    assert group() == GroupStatus("local", "orders", Status.OK, 0.0, (), None, 0)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        pytest.param({"allowed_lag": -1}, "allowed_lag", id="negative lag"),
        pytest.param({"minimum_complete": -0.1}, "minimum_complete", id="negative share"),
        pytest.param({"minimum_complete": 1.1}, "minimum_complete", id="more than all"),
        pytest.param({"minimum_complete": float("nan")}, "minimum_complete", id="no number"),
    ],
)
def test_thresholds_out_of_range_are_named(arguments: dict[str, float], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        Thresholds(**arguments)  # type: ignore[arg-type] # bad on purpose
    assert isinstance(caught.value, GazetteError)
    assert caught.value.option == option
