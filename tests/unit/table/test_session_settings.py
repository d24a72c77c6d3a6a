"""Settings that are changed for a statement do not stay in a session that several threads share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from gazette_spark._delta.session import session_settings

KEY = "parquet.enable.dictionary#value"
CHANGED = {KEY: "false"}


def session(values: dict[str, str]) -> Any:
    """Return a session without a JVM."""
    conf = SimpleNamespace(get=values.get, set=values.__setitem__, unset=lambda key: values.pop(key, None))
    return SimpleNamespace(conf=conf)


@pytest.mark.parametrize("before", [{}, {KEY: "true"}], ids=["unset", "set"])
@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_whoever_ends_last_leaves_what_was_before(before: dict[str, str], order: Sequence[int]) -> None:
    values = dict(before)
    threads = [session_settings(session(values), CHANGED) for _ in order]
    for thread in threads:
        thread.__enter__()
        assert values == CHANGED
    for number in order:
        threads[number].__exit__(None, None, None)
    assert values == before


def test_a_value_that_the_program_sets_in_the_meantime_stays() -> None:
    values: dict[str, str] = {}
    with session_settings(session(values), CHANGED):
        values[KEY] = "true"
    assert values == {KEY: "true"}
