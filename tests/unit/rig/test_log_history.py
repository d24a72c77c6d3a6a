"""The checker of replicated logs finds each broken promise, and finds none in a correct history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.rig.log_history import Acknowledged, History, Promotion, problems


def sound() -> History:
    """Return a history of two primaries and two replicas; ``b`` was never acknowledged."""
    return History(
        [
            Acknowledged("a", "one", 1, 2),
            Acknowledged("c", "one", 3, 5),
            Acknowledged("d", "two", 8, 9),
            Acknowledged("e", "two", 8, 10),
        ],
        [Promotion("one", 0, ()), Promotion("two", 400, ("a", 1, "b", "c"))],
        {"first": ["a", 1, "b", "c", "e", 2, "d"], "second": ["a", 1, "b", "c", "e", 2, "d"]},
    )


def test_a_sound_history() -> None:
    """Concurrent entries may be in any order, and unacknowledged ones may be present."""
    assert problems(sound()) == []


def twice(history: History) -> None:
    for steps in history.replicas.values():
        steps.insert(4, "c")


def lost(history: History) -> None:
    for steps in history.replicas.values():
        steps.remove("d")


def version_back(history: History) -> None:
    for steps in history.replicas.values():
        steps[5] = 1


def version_left_out(history: History) -> None:
    for steps in history.replicas.values():
        steps[5] = 3


def another_order(history: History) -> None:
    steps = history.replicas["second"]
    steps[4], steps[6] = steps[6], steps[4]


def less(history: History) -> None:
    """Leave out an entry of one replica that was never acknowledged."""
    history.replicas["second"].pop()
    history.acknowledged = [each for each in history.acknowledged if each.entry != "d"]


def against_time(history: History) -> None:
    for steps in history.replicas.values():
        steps[0], steps[3] = steps[3], steps[0]


def not_applied(history: History) -> None:
    history.promotions[1] = Promotion("two", 400, ("a", 1, "b"))


def old_primary(history: History) -> None:
    history.acknowledged.append(Acknowledged("e2", "one", 11, 12))
    for steps in history.replicas.values():
        steps.append("e2")


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (twice, ["first applied c 2 times", "second applied c 2 times"]),
        (lost, [f"{name} lacks d, which two had acknowledged" for name in ("first", "second")]),
        (version_back, ["first went from version 1 to 1", "second went from version 1 to 1"]),
        (version_left_out, ["first went from version 1 to 3", "second went from version 1 to 3"]),
        (another_order, ["second and first differ at step 4"]),
        (less, ["second and first differ in length, 6 and 7"]),
        (against_time, ["c was begun after a was acknowledged, and is before it"]),
        (not_applied, ["two became primary without c of one"]),
        (old_primary, ["two became primary without e2 of one"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_each_broken_promise_is_found(break_it: Callable[[History], None], expected: list[str]) -> None:
    history = sound()
    break_it(history)
    assert problems(history) == expected
