"""Settings that are changed for a statement do not stay in a session that several threads share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from gazette_spark._delta.session import session_settings, use_catalog_in_batch

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


class Names:
    """The catalog of a session without a server."""

    def __init__(self) -> None:
        self.now = "dev", "test"

    def currentCatalog(self) -> str:  # noqa: N802 - Spark's names.
        return self.now[0]

    def currentDatabase(self) -> str:  # noqa: N802
        return self.now[1]

    def setCurrentCatalog(self, name: str) -> None:  # noqa: N802
        self.now = name, "default"

    def setCurrentDatabase(self, name: str) -> None:  # noqa: N802
        self.now = self.now[0], name


@pytest.mark.parametrize("is_classic", [True, False])
@pytest.mark.parametrize("has_names", [True, False])
def test_a_batch_moves_the_programs_own_session_only_for_the_name_of_a_table(
    is_classic: bool, has_names: bool
) -> None:
    """Spark Connect runs batches in the program's session, where it may have gone on in another catalog."""
    names = Names()
    batch: Any = SimpleNamespace(catalog=names, _jsparkSession=object() if is_classic else None)
    use_catalog_in_batch(batch, "lake", "shop", has_names=has_names)
    assert names.now == (("lake", "shop") if is_classic or has_names else ("dev", "test"))
