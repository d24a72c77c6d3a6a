"""A read limit is shared fairly, and no limit stops a query."""

from __future__ import annotations

import pytest

from gazette_spark._planning.admission import (
    Backlog,
    ReadLimits,
    admit,
    admit_fragments,
    fragment_ends,
    is_due,
)

FIVE = {f"journal/{number}": Backlog(0, 100) for number in range(5)}

ADMITTED: dict[str, tuple[dict[str, Backlog], int | None, dict[str, int]]] = {
    "no journals": ({}, 10, {}),
    "no limit": ({"a/b": Backlog(10, 30), "c/d": Backlog(0, 5)}, None, {"a/b": 30, "c/d": 5}),
    "a limit that is not reached": (
        {"a/b": Backlog(10, 30), "c/d": Backlog(0, 5)},
        25,
        {"a/b": 30, "c/d": 5},
    ),
    "three times the backlog gets three times the bytes": (
        {"a/b": Backlog(0, 3000), "c/d": Backlog(500, 1500)},
        400,
        {"a/b": 300, "c/d": 600},
    ),
    "a quarter of the limit is for small backlogs, the rest is shared in proportion": (
        {"big": Backlog(0, 10**12), "small": Backlog(0, 90), "middle": Backlog(0, 2000)},
        1200,
        {"small": 90, "middle": 100, "big": 1010},
    ),
    "a share below one byte is one byte": (
        {"big": Backlog(0, 10**12), "small": Backlog(7, 8)},
        10,
        {"big": 9, "small": 8},
    ),
    "what rounding leaves goes to the last name": (
        {name: Backlog(0, 100) for name in "abc"},
        10,
        {"a": 3, "b": 3, "c": 4},
    ),
    "a limit below the number of journals gives each a byte": (FIVE, 1, dict.fromkeys(FIVE, 1)),
    "a journal without backlog takes no share": (
        {"idle": Backlog(9, 9), "busy": Backlog(0, 50)},
        20,
        {"idle": 9, "busy": 20},
    ),
}
"""By case: bytes left to read, read limit, and offsets up to which journals may be read."""


@pytest.mark.parametrize(("backlogs", "max_bytes", "ends"), ADMITTED.values(), ids=ADMITTED.keys())
def test_a_limit_is_shared(backlogs: dict[str, Backlog], max_bytes: int | None, ends: dict[str, int]) -> None:
    assert admit(backlogs, max_bytes) == ends


@pytest.mark.parametrize(
    ("begin", "head"), [pytest.param(5, 4, id="head_before_begin"), pytest.param(-1, 4, id="negative")]
)
def test_an_impossible_backlog_is_refused(begin: int, head: int) -> None:
    with pytest.raises(ValueError, match="0 <= begin <= head"):
        Backlog(begin, head)


@pytest.mark.parametrize(
    ("spans", "ends"),
    [
        pytest.param([(0, 10), (10, 20), (20, 30)], [10, 20, 25], id="neighbours"),
        pytest.param([(0, 20), (10, 12), (9, 25)], [20, 25], id="overlaps"),
        pytest.param([(0, 5), (15, 20), (20, 40)], [20, 25], id="hole_at_the_begin"),
        pytest.param([(0, 12)], [12, 25], id="head_not_listed_yet"),
        pytest.param([], [25], id="none"),
        pytest.param([(0, 10), (25, 40)], [10, 25], id="beyond"),
    ],
)
def test_fragments_of_a_backlog(spans: list[tuple[int, int]], ends: list[int]) -> None:
    assert fragment_ends(spans, Backlog(6, 25)) == ends


def test_a_batch_ends_with_a_fragment_in_each_journal() -> None:
    ends = {"big": [10, 20, 30, 40, 50, 60, 70, 80, 90], "small": [7, 8, 9]}
    assert admit_fragments(ends, 4) == {"big": 30, "small": 7}
    assert admit_fragments(ends, 1) == {"big": 10, "small": 7}


@pytest.mark.parametrize(
    ("backlog", "waited_s", "due"),
    [
        pytest.param(100, 0, True, id="enough"),
        pytest.param(99, 59, False, id="too_little_too_early"),
        pytest.param(1, 60, True, id="waited"),
        pytest.param(0, 1e9, False, id="nothing"),
    ],
)
def test_when_a_batch_is_due(backlog: int, waited_s: float, due: bool) -> None:
    assert is_due(backlog, waited_s, ReadLimits(min_bytes=100, max_delay_s=60)) == due
