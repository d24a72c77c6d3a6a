"""A verdict is computed on request and cached for a while."""

from __future__ import annotations

import pytest

from gazette_spark.errors import OptionError
from gazette_spark.lag import history as history_module
from gazette_spark.lag.burrow_json import group_json
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.rules import Thresholds

NOW_MS = 1_000_000_000


@pytest.fixture
def history() -> History:
    """The history of one group, which is level, with one partition."""
    found = History(HistoryOptions(), ["local"])
    found.add_broker_offset("local", "shop/", 0, 100, partition_count=1)
    add(found, "orders", 100)
    return found


def add(history: History, group: str, offset: int) -> None:
    history.add_consumer_offset(
        "local", group, "shop/", 0, offset, order=1, timestamp_ms=NOW_MS, now_ms=NOW_MS
    )


def words(evaluator: Evaluator, group: str, *moments_ms: int) -> list[str]:
    return [evaluator.status("local", group, now_ms=NOW_MS + at).status.name for at in moments_ms]


def test_a_verdict_holds_for_the_time_given(history: History) -> None:
    evaluator = Evaluator(history, Thresholds(), expire_cache_s=10)
    assert words(evaluator, "orders", 0) == ["OK"]
    history.add_broker_offset("local", "shop/", 0, 300, partition_count=1)
    history.delete_group("local", "orders")
    assert words(evaluator, "orders", 5_000, 9_999, 10_000) == ["OK", "OK", "NOTFOUND"]


def test_not_found_holds_as_long(history: History) -> None:
    evaluator = Evaluator(history, Thresholds(), expire_cache_s=10)
    assert words(evaluator, "late one", 0) == ["NOTFOUND"]
    add(history, "late one", 100)
    assert words(evaluator, "late one", 9_999, 10_000) == ["NOTFOUND", "OK"]


def test_without_a_time_every_request_is_judged(history: History) -> None:
    evaluator = Evaluator(history, Thresholds(), expire_cache_s=0)
    assert words(evaluator, "orders", 0) == ["OK"]
    history.delete_group("local", "orders")
    assert words(evaluator, "orders", 0) == ["NOTFOUND"]


def test_a_clock_set_back_ends_a_verdict(history: History) -> None:
    """Otherwise the cached verdict would stay valid for as long as the clock went back."""
    evaluator = Evaluator(history, Thresholds(), expire_cache_s=10)
    assert words(evaluator, "orders", 0) == ["OK"]
    history.delete_group("local", "orders")
    assert words(evaluator, "orders", -1) == ["NOTFOUND"]


def test_groups_of_one_name_in_two_clusters_are_two(history: History) -> None:
    """Cache keys must not join the two names into one text."""
    history.add_cluster("local a")
    evaluator = Evaluator(history, Thresholds())
    add(history, "a b", 100)
    assert evaluator.status("local", "a b", now_ms=NOW_MS).status.name == "OK"
    assert evaluator.status("local a", "b", now_ms=NOW_MS).status.name == "NOTFOUND"


def test_what_is_shown_does_not_change_what_is_held(history: History) -> None:
    evaluator = Evaluator(history, Thresholds())
    status = evaluator.status("local", "orders", now_ms=NOW_MS)
    assert group_json(status, show_all=False)["partitions"] == []
    again = evaluator.status("local", "orders", now_ms=NOW_MS)
    assert again is status
    assert len(group_json(again, show_all=True)["partitions"]) == 1


def test_names_asked_for_do_not_pile_up(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is bounded. Past the limit all verdicts are computed again."""
    monkeypatch.setattr(history_module, "MAX_CACHED", 3)
    evaluator = Evaluator(history, Thresholds())
    for at in range(10):
        words(evaluator, f"group-{at}", 0)
    assert repr(evaluator).endswith("cached=1)")


def test_a_negative_time_is_refused(history: History) -> None:
    with pytest.raises(OptionError, match="option 'expire-cache': got -1"):
        Evaluator(history, Thresholds(), expire_cache_s=-1)
