"""What Burrow's storage keeps, drops and forgets, request by request."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from gazette_spark.errors import InputError, OptionError
from gazette_spark.lag.history import MAX_PARTITIONS, History, HistoryOptions
from gazette_spark.lag.rings import RingOutcome
from gazette_spark.lag.rules import OffsetCommit, PartitionWindow, Status, Thresholds, evaluate_group

NOW_MS = 1_000_000_500
"""Current time in milliseconds, half a second past a whole one, because the clock is rounded down."""

SECOND_MS = 1000


def made(heads: Sequence[int] = (100,), *, partition_count: int = 1, **options: Any) -> History:
    """Return a history of cluster ``local`` that has the write heads of partition 0 of ``shop/``."""
    history = History(HistoryOptions(**options), ["local"])
    for head in heads:
        history.add_broker_offset("local", "shop/", 0, head, partition_count=partition_count)
    return history


def commit(
    history: History,
    offset: int,
    order: int,
    *,
    age_ms: int = 0,
    group: str = "orders",
    topic: str = "shop/",
    partition: int = 0,
    cluster: str = "local",
) -> RingOutcome:
    return history.add_consumer_offset(
        cluster, group, topic, partition, offset, order=order, timestamp_ms=NOW_MS - age_ms, now_ms=NOW_MS
    )


def window(history: History, *, group: str = "orders", partition: int = 0) -> PartitionWindow:
    topics = history.fetch_consumer("local", group, now_ms=NOW_MS)
    assert topics is not None
    return topics["shop/"][partition]


def offsets(history: History) -> list[int | None]:
    return [None if slot is None else slot.offset for slot in window(history).offset_commits]


def lags(history: History) -> list[int | None]:
    return [slot.lag for slot in window(history).offset_commits if slot]


# Write heads.


def test_a_write_head_of_an_unknown_cluster_is_ignored() -> None:
    history = History(HistoryOptions())
    added = history.add_broker_offset("other", "shop/", 0, 5, partition_count=1)
    assert (added, history.fetch_clusters()) == (RingOutcome.UNKNOWN_CLUSTER, [])


def test_write_heads_are_a_ring_and_need_not_rise() -> None:
    history = made([10, 30, 20, 40], intervals=3)
    commit(history, 5, 1)
    assert window(history).broker_offsets == [30, 20, 40]
    assert history.fetch_topic("local", "shop/") == [40]


def test_a_topic_grows_and_never_shrinks() -> None:
    history = made()
    history.add_broker_offset("local", "shop/", 2, 7, partition_count=3)
    assert history.fetch_topic("local", "shop/") == [100, 7], "the one without a head is left out"
    assert history.add_broker_offset("local", "shop/", 1, 8, partition_count=1) is RingOutcome.STORED
    assert history.fetch_topic("local", "shop/") == [100, 8, 7]


@pytest.mark.parametrize(
    ("partition", "count"),
    [
        pytest.param(3, 3, id="beyond the count"),
        pytest.param(-1, 3, id="negative"),
        pytest.param(0, 0, id="no partitions"),
        pytest.param(0, MAX_PARTITIONS + 1, id="far too many"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(partition: int, count: int) -> None:
    history = made([])
    with pytest.raises(InputError, match=f"topic 'a': partition {partition} of {count}"):
        history.add_broker_offset("local", "a", partition, 5, partition_count=count)
    assert history.fetch_topics("local") == []


# What is dropped, in Burrow's order.


def test_a_commit_of_an_unknown_cluster_is_dropped() -> None:
    assert commit(made(), 5, 1, cluster="other", age_ms=10**12) is RingOutcome.UNKNOWN_CLUSTER


@pytest.mark.parametrize(
    ("age_ms", "outcome"),
    [
        pytest.param(60_500, RingOutcome.APPENDED, id="just young enough"),
        pytest.param(60_501, RingOutcome.EXPIRED, id="a millisecond too old"),
        pytest.param(-5_000, RingOutcome.APPENDED, id="from the future"),
    ],
)
def test_an_expired_commit_is_dropped(age_ms: int, outcome: RingOutcome) -> None:
    """The limit is counted from the last whole second."""
    assert commit(made(expire_group_s=60), 5, 1, age_ms=age_ms) is outcome


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        pytest.param({}, ["app-1", "app-2", "test"], id="no lists"),
        pytest.param({"group_allowlist": "app"}, ["app-1", "app-2"], id="allowed"),
        pytest.param({"group_allowlist": "2"}, ["app-2"], id="found anywhere"),
        pytest.param({"group_allowlist": "^2"}, [], id="anchored"),
        pytest.param({"group_denylist": "-"}, ["test"], id="denied"),
        pytest.param(
            {"group_allowlist": "app", "group_denylist": "1$"}, ["app-2"], id="denied of those allowed"
        ),
    ],
)
def test_lists_say_which_groups_are_kept(options: dict[str, Any], taken: list[str]) -> None:
    history = made(**options)
    for group in ("app-1", "app-2", "test"):
        outcome = commit(history, 5, 1, group=group)
        assert outcome is (RingOutcome.APPENDED if group in taken else RingOutcome.GROUP_REFUSED)
        owner = history.add_consumer_owner("local", group, "shop/", 0, owner="host")
        assert owner is (RingOutcome.STORED if group in taken else RingOutcome.GROUP_REFUSED)
    assert history.fetch_consumers("local") == taken


@pytest.mark.parametrize(
    ("topic", "partition"),
    [
        pytest.param("other/", 0, id="unknown topic"),
        pytest.param("shop/", -1, id="negative partition"),
        pytest.param("shop/", 2, id="partition beyond the count"),
        pytest.param("shop/", 1, id="no head yet"),
    ],
)
def test_a_commit_without_a_write_head_is_dropped(topic: str, partition: int) -> None:
    history = made(partition_count=2)
    assert commit(history, 5, 1, topic=topic, partition=partition) is RingOutcome.NO_BROKER_OFFSET
    assert history.fetch_consumers("local") == []


def test_partitions_are_made_as_many_as_the_topic_has() -> None:
    history = made(partition_count=3)
    commit(history, 5, 1)
    first, *others = (window(history, partition=at) for at in range(3))
    assert len(first.offset_commits) == 10
    assert [(each.offset_commits, each.current_lag) for each in others] == [((), 0)] * 2
    history.add_broker_offset("local", "shop/", 3, 50, partition_count=5)
    commit(history, 6, 2)
    topics = history.fetch_consumer("local", "orders", now_ms=NOW_MS)
    assert len((topics or {})["shop/"]) == 3, "a partition that is there makes no others"
    commit(history, 7, 1, partition=3)
    topics = history.fetch_consumer("local", "orders", now_ms=NOW_MS)
    assert len((topics or {})["shop/"]) == 5


# Which slot a commit takes.


def stored(*orders: int, intervals: int = 4, last: int | None = None) -> tuple[list[int | None], RingOutcome]:
    """Store commits whose offsets are their orders. Return the slots, and the result of the last commit."""
    history = made(intervals=intervals)
    outcomes = [commit(history, order, order) for order in orders]
    return offsets(history), outcomes[-1]


@pytest.mark.parametrize(
    ("orders", "slots", "outcome"),
    [
        pytest.param([1], [None, None, None, 1], RingOutcome.APPENDED, id="first"),
        pytest.param([1, 5], [None, None, 1, 5], RingOutcome.APPENDED, id="newer"),
        pytest.param([1, 2, 3, 4, 5], [2, 3, 4, 5], RingOutcome.APPENDED, id="newer when full"),
        pytest.param([2, 1], [None, None, 1, 2], RingOutcome.INSERTED, id="older, at a blank slot"),
        pytest.param([3, 4, 5, 2], [2, 3, 4, 5], RingOutcome.INSERTED, id="older, at the last blank slot"),
        pytest.param([1, 3, 2], [None, 1, 2, 3], RingOutcome.INSERTED, id="between"),
        pytest.param([1, 3, 5, 7, 6], [3, 5, 6, 7], RingOutcome.INSERTED, id="between when full: oldest out"),
        pytest.param([1, 3, 5, 7, 2], [2, 3, 5, 7], RingOutcome.INSERTED, id="in place of the oldest"),
        pytest.param([3, 5, 7, 9, 2], [3, 5, 7, 9], RingOutcome.TOO_OLD, id="older than all when full"),
        pytest.param([3, 5, 7, 9, 3], [3, 5, 7, 9], RingOutcome.TOO_OLD, id="the oldest again"),
        pytest.param([3, 5, 7, 9, 7], [3, 5, 7, 9], RingOutcome.KNOWN, id="again when full"),
        pytest.param([3, 5, 5], [None, None, 3, 5], RingOutcome.KNOWN, id="the newest again"),
        pytest.param([3, 5, 3], [None, None, 3, 5], RingOutcome.KNOWN, id="again"),
        pytest.param([2, 3, 1, 4, 5], [2, 3, 4, 5], RingOutcome.APPENDED, id="newer after an older"),
    ],
)
def test_commits_are_in_order(orders: list[int], slots: list[int | None], outcome: RingOutcome) -> None:
    assert stored(*orders) == (slots, outcome)


def test_a_ring_of_one_slot_keeps_the_newest() -> None:
    assert stored(3, 5, intervals=1) == ([5], RingOutcome.APPENDED)
    assert stored(5, 3, intervals=1) == ([5], RingOutcome.TOO_OLD)


def test_only_appended_commits_have_a_lag() -> None:
    history = made([100])
    commit(history, 40, 5)
    commit(history, 10, 1)
    commit(history, 130, 9)
    commit(history, 60, 7)
    assert offsets(history)[-4:] == [10, 40, 60, 130]
    assert lags(history) == [None, 60, None, 0]


def test_times_are_kept_in_milliseconds_and_observed_in_seconds() -> None:
    """``observedAt`` comes from the monitor's clock and is rounded down."""
    history = made()
    commit(history, 40, 5, age_ms=250)
    assert window(history).offset_commits[-1] == OffsetCommit(40, NOW_MS - 250, 1_000_000_000, 60)


@pytest.mark.parametrize(
    ("distance_ms", "outcome", "kept"),
    [
        pytest.param(1_999, RingOutcome.MERGED, [20], id="too near"),
        pytest.param(2_000, RingOutcome.APPENDED, [10, 20], id="just far enough"),
        pytest.param(-1, RingOutcome.MERGED, [20], id="before the one before"),
    ],
)
def test_commits_too_near_are_merged(distance_ms: int, outcome: RingOutcome, kept: list[int]) -> None:
    """The later commit takes the slot but keeps the time, or quick commits would merge into one forever."""
    history = made(min_distance_s=2)
    commit(history, 10, 1, age_ms=5_000)
    assert commit(history, 20, 2, age_ms=5_000 - distance_ms) is outcome
    slots = [slot for slot in window(history).offset_commits if slot]
    assert [slot.offset for slot in slots] == kept
    assert slots[0].timestamp_ms == NOW_MS - 5_000
    assert slots[-1].lag == 80


def test_without_a_distance_only_a_step_back_in_time_is_merged() -> None:
    history = made(min_distance_s=0)
    commit(history, 10, 1)
    assert commit(history, 20, 2) is RingOutcome.APPENDED
    assert commit(history, 30, 3, age_ms=1) is RingOutcome.MERGED
    assert [slot and slot.timestamp_ms for slot in window(history).offset_commits[-2:]] == [NOW_MS, NOW_MS]


def test_a_merged_commit_has_its_own_order() -> None:
    history = made(min_distance_s=60)
    commit(history, 10, 1)
    commit(history, 20, 5)
    assert commit(history, 30, 5) is RingOutcome.KNOWN
    assert offsets(history)[-1] == 20


def test_a_late_commit_is_merged_into_the_one_before_it() -> None:
    history = made(min_distance_s=2)
    commit(history, 10, 1, age_ms=9_000)
    commit(history, 50, 5, age_ms=2_000)
    assert commit(history, 20, 2, age_ms=8_500) is RingOutcome.MERGED
    assert [
        (slot.offset, slot.timestamp_ms, slot.lag) for slot in window(history).offset_commits if slot
    ] == [
        (20, NOW_MS - 9_000, None),
        (50, NOW_MS - 2_000, 50),
    ]


def test_what_takes_the_oldest_slot_is_not_merged() -> None:
    """In a full ring the slot before the oldest is that of the newest, so its time must not be reused."""
    history = made(min_distance_s=2, intervals=2)
    commit(history, 10, 1, age_ms=9_000)
    commit(history, 50, 5, age_ms=2_000)
    assert commit(history, 20, 2, age_ms=8_500) is RingOutcome.INSERTED
    assert [(slot.offset, slot.timestamp_ms) for slot in window(history).offset_commits if slot] == [
        (20, NOW_MS - 8_500),
        (50, NOW_MS - 2_000),
    ]


# Reading a group.


def test_what_is_not_known_reads_as_none() -> None:
    history = made()
    assert history.fetch_consumer("other", "orders", now_ms=NOW_MS) is None
    assert history.fetch_consumer("local", "orders", now_ms=NOW_MS) is None


def test_a_silent_group_is_forgotten_when_it_is_asked_for() -> None:
    history = made(expire_group_s=60)
    commit(history, 10, 1, age_ms=500)
    last_ms = NOW_MS - 500
    assert history.fetch_consumer("local", "orders", now_ms=last_ms + 60_999) is not None
    assert history.fetch_consumer("local", "orders", now_ms=last_ms + 61_000) is None
    assert history.fetch_consumers("local") == []
    assert history.fetch_consumer("local", "orders", now_ms=last_ms) is None, "gone for good"


def test_a_group_lives_by_its_newest_commits() -> None:
    """Late or repeated commits do not keep a group alive, and neither does listing groups."""
    history = made(expire_group_s=60)
    commit(history, 10, 5, age_ms=50_500)
    commit(history, 5, 1, age_ms=0)
    commit(history, 10, 5, age_ms=0)
    assert history.fetch_consumers("local") == ["orders"]
    assert history.fetch_consumer("local", "orders", now_ms=NOW_MS + 11_000) is None


@pytest.mark.parametrize(
    ("head", "lag"),
    [
        pytest.param(140, 100, id="behind"),
        pytest.param(40, 0, id="level"),
        pytest.param(30, 0, id="ahead"),
    ],
)
def test_current_lag_is_counted_from_the_newest_head(head: int, lag: int) -> None:
    history = made([100])
    commit(history, 40, 1)
    history.add_broker_offset("local", "shop/", 0, head, partition_count=1)
    assert window(history).current_lag == lag
    assert window(history).broker_offsets == [100, head]


def test_a_deleted_topic_leaves_the_group() -> None:
    history = made()
    commit(history, 40, 1)
    assert history.delete_topic("local", "shop/") is RingOutcome.STORED
    assert history.fetch_topics("local") == []
    assert history.fetch_topic("local", "shop/") is None
    assert history.fetch_consumers_for_topic("local", "shop/") == []
    assert history.fetch_consumer("local", "orders", now_ms=NOW_MS) == {}
    status = evaluate_group("local", "orders", [], NOW_MS, Thresholds())
    assert (status.status, status.complete) == (Status.OK, 0.0)


def test_a_deleted_group_is_gone() -> None:
    history = made()
    history.add_cluster("other")
    history.add_broker_offset("other", "shop/", 0, 7, partition_count=1)
    commit(history, 40, 1)
    commit(history, 5, 1, cluster="other")
    assert history.delete_group("local", "orders") is RingOutcome.STORED
    assert history.fetch_consumer("local", "orders", now_ms=NOW_MS) is None
    kept = history.fetch_consumer("other", "orders", now_ms=NOW_MS)
    assert kept is not None
    assert kept["shop/"][0].current_lag == 2
    assert history.delete_group("local", "orders") is RingOutcome.STORED, "also if it is not there"


# Owners.


def test_owners_are_noted() -> None:
    history = made()
    commit(history, 40, 1)
    history.add_consumer_owner("local", "orders", "shop/", 0, owner="host-1", client_id="driver")
    assert (window(history).owner, window(history).client_id) == ("host-1", "driver")


def test_an_owner_before_any_commit_makes_an_unused_window() -> None:
    history = made(intervals=4, expire_group_s=2_000_000)
    assert (
        history.add_consumer_owner("local", "orders", "other/", 0, owner="h") is RingOutcome.NO_BROKER_OFFSET
    )
    assert history.fetch_consumers("local") == ["orders"], "made all the same"
    history.add_consumer_owner("local", "orders", "shop/", 0, owner="host-1")
    assert window(history).offset_commits == (None,) * 4
    assert window(history).current_lag == 0
    assert history.fetch_consumer("local", "orders", now_ms=3 * NOW_MS) is None


# Lists, and requests for unknown names.


def test_lists_of_names() -> None:
    history = made()
    history.add_broker_offset("local", "logs/", 0, 5, partition_count=1)
    commit(history, 40, 1)
    commit(history, 5, 1, topic="logs/", group="audit")
    assert history.fetch_clusters() == ["local"]
    assert history.fetch_consumers("local") == ["orders", "audit"]
    assert history.fetch_topics("local") == ["shop/", "logs/"]
    assert history.fetch_consumers_for_topic("local", "logs/") == ["audit"]


def test_nothing_is_known_of_other_clusters() -> None:
    history = made()
    assert history.fetch_consumers("other") is None
    assert history.fetch_topics("other") is None
    assert history.fetch_topic("other", "shop/") is None
    assert history.fetch_consumers_for_topic("other", "shop/") is None
    assert {
        history.add_consumer_owner("other", "orders", "shop/", 0, owner="host"),
        history.delete_topic("other", "shop/"),
        history.delete_group("other", "orders"),
    } == {RingOutcome.UNKNOWN_CLUSTER}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a/b", id="slash"),
        pytest.param("a%2Fb", id="escaped slash"),
        pytest.param("größe", id="unicode"),
        pytest.param("a\r\nX: 1", id="header"),
        pytest.param("../..", id="dots"),
        pytest.param("", id="empty"),
    ],
)
def test_names_are_only_names(name: str) -> None:
    history = made()
    history.add_broker_offset("local", name, 0, 10, partition_count=1)
    assert commit(history, 4, 1, topic=name, group=name) is RingOutcome.APPENDED
    topics = history.fetch_consumer("local", name, now_ms=NOW_MS)
    assert topics is not None
    assert list(topics) == [name]
    assert history.fetch_consumers("local") == [name]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        pytest.param({"intervals": 0}, "intervals", id="no slots"),
        pytest.param({"intervals": -1}, "intervals", id="negative slots"),
        pytest.param({"min_distance_s": -1}, "min-distance", id="negative distance"),
        pytest.param({"expire_group_s": -1}, "expire-group", id="negative expiry"),
        pytest.param({"group_allowlist": "("}, "group-allowlist", id="bad allow list"),
        pytest.param({"group_denylist": "*"}, "group-denylist", id="bad deny list"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        HistoryOptions(**options)  # type: ignore[arg-type] # bad on purpose
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("offset", "order"),
    [
        pytest.param(-1, 1, id="negative offset"),
        pytest.param(2**63, 1, id="offset too large"),
        pytest.param(1, 2**63, id="order too large"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(offset: int, order: int) -> None:
    history = made()
    with pytest.raises(InputError):
        commit(history, offset, order)
    assert history.fetch_consumers("local") == []


def test_the_largest_numbers_fit() -> None:
    history = made([2**63 - 1])
    commit(history, 0, -(2**63))
    commit(history, 2**63 - 1, 2**63 - 1)
    assert lags(history) == [2**63 - 1, 0]


def test_a_stored_commit_takes_less_than_200_bytes() -> None:
    """The bound covers everything kept of 500 full rings, including names, write heads and owners."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        history = made([], intervals=10)
        for at in range(500):
            history.add_broker_offset("local", "shop/", at, 10**6 + at, partition_count=500)
            for order in range(10):
                commit(history, 10**5 + order, order, partition=at)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 5_000 < 200


def test_a_history_shows_how_much_it_knows() -> None:
    history = made()
    commit(history, 40, 1)
    assert repr(history) == "History(clusters=['local'], groups=1)"
