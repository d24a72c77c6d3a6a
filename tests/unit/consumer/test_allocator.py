"""Tests which member runs which shard, in Gazette's own scenarios of a state, a change and a result."""

from __future__ import annotations

import pytest

from gazette_spark.consumer._cluster.allocator import (
    ClusterMember,
    ShardAssignment,
    ShardItem,
    effective_limits,
    is_consistent,
    leader,
    next_steps,
)
from tests.rig.allocation import Cluster, Code

THREE = {"item-1": 1, "item-2": 2, "item-3": 3}


def test_everything_is_placed_over_two_zones() -> None:
    cluster = Cluster(THREE, {"a/A1": 2, "a/A2": 2, "b/B": 4})
    cluster.settle()
    assert len(cluster.assignments) == 6
    for shard in ("item-2", "item-3"):
        assert {zone for held, (zone, _) in cluster.assignments if held == shard} == {"a", "b"}


def test_three_replicas_on_three_members() -> None:
    """Large member limits must not keep replicas from other members (Gazette's issue 157)."""
    shards = {f"item-{number}": 3 for number in range(7)}
    cluster = Cluster(shards, {"a/A1": 1024, "a/A2": 1024, "b/B1": 1024})
    cluster.settle()
    assert cluster.loads() == {"a/A1": 7, "a/A2": 7, "b/B1": 7}


def test_a_replica_is_replaced_only_by_one_that_can_take_over() -> None:
    """The old replicas stay while the new ones still play their logs."""
    before = """
        item-1 a/A 0
        item-2 a/old 0
        item-2 b/B 1
        item-3 a/A 1
        item-3 a/old 0
        item-3 b/B 2
    """
    cluster = Cluster(THREE, {"a/A": 2, "b/B": 4, "a/old": 0, "a/new": 3}, before)
    cluster.step()
    assert cluster.step() == []
    assert cluster.show().splitlines() == [
        "item-1 a/A 0",
        "item-2 a/new 2",
        "item-2 a/old 0",
        "item-2 b/B 1",
        "item-3 a/A 1",
        "item-3 a/new 3",
        "item-3 a/old 0",
        "item-3 b/B 2",
    ]
    cluster.catch_up()
    cluster.settle()
    # The member with the fewest primaries is promoted.
    assert cluster.show().splitlines() == [
        "item-1 a/A 0",
        "item-2 a/new 1",
        "item-2 b/B 0",
        "item-3 a/A 1",
        "item-3 a/new 0",
        "item-3 b/B 2",
    ]


def test_replicas_that_cannot_take_over_are_never_few_enough_to_remove() -> None:
    cluster = Cluster(
        {"item-2": 2}, {"a/new": 3, "a/old": 0, "b/B": 3}, "item-2 a/old 0\nitem-2 b/B 1", Code.IDLE
    )
    cluster.step()
    assert cluster.step() == []
    assert {member for _, member in cluster.assignments} == {("a", "new"), ("a", "old"), ("b", "B")}


def test_a_limit_that_is_raised_takes_load_in_proportion() -> None:
    before = """
        item-1 b/B 0
        item-2 a/A 0
        item-2 b/B 1
        item-3 a/A 0
        item-3 a/limit 1
        item-3 b/B 2
    """
    cluster = Cluster(THREE, {"a/A": 2, "a/limit": 2, "b/B": 4}, before)
    assert cluster.settle() == 0
    cluster.limits["a/limit"] = 10
    cluster.settle()
    assert cluster.loads()["a/limit"] == 3
    cluster.limits["a/limit"] = 1
    cluster.settle()
    assert cluster.loads() == {"a/A": 2, "a/limit": 1, "b/B": 3}
    assert cluster.settle() == 0


def test_the_number_of_replicas_changes() -> None:
    before = "item-1 b/B 0\nitem-2 a/A1 0\nitem-2 b/B 1\nitem-3 a/A1 0\nitem-3 a/A2 1\nitem-3 b/B 2"
    cluster = Cluster(THREE, {"a/A1": 2, "a/A2": 2, "b/B": 4}, before)
    assert cluster.settle() == 0
    cluster.shards |= {"item-1": 3, "item-3": 1}
    cluster.settle()
    assert cluster.moves == 2
    assert [shard for shard, _ in sorted(cluster.assignments)] == ["item-1"] * 3 + ["item-2"] * 2 + ["item-3"]


def test_too_few_places() -> None:
    cluster = Cluster(THREE, {"a/A1": 1})
    cluster.settle()
    assert len(cluster.assignments) == 1
    cluster.limits["a/A2"] = 2
    cluster.settle()
    assert len(cluster.assignments) == 3
    cluster.limits["a/A3"] = 3
    cluster.settle()
    assert len(cluster.assignments) == 6
    cluster.limits["a/A3"] = 2
    assert cluster.settle() == 0, "a removal would leave too few replicas"


def test_a_second_zone() -> None:
    shards = {"item-1": 2, "item-2": 2}
    cluster = Cluster(shards, {"a/A1": 2, "a/A2": 2})
    cluster.settle()
    cluster.limits["b/B"] = 2
    cluster.settle()
    for shard in shards:
        assert {zone for held, (zone, _) in cluster.assignments if held == shard} == {"a", "b"}
    # Without the second zone, replicas in one zone are better than too few.
    cluster.lose("b/B")
    cluster.settle()
    assert cluster.loads() == {"a/A1": 2, "a/A2": 2}


def test_a_member_is_lost() -> None:
    """A lost primary is replaced at once, and no other shard moves."""
    shards = {f"item-{number}": 2 for number in range(6)}
    cluster = Cluster(shards, {"a/1": 10, "b/2": 10, "c/3": 10})
    cluster.settle()
    lost = cluster.loads()["b/2"]
    cluster.moves = 0
    cluster.lose("b/2")
    cluster.step()
    assert {a.shard for a in cluster.assignments.values() if a.slot == 0} == set(shards)
    cluster.settle()
    assert cluster.moves == lost
    assert cluster.loads() == {"a/1": 6, "c/3": 6}


def test_a_new_member_gets_its_share() -> None:
    cluster = Cluster({f"item-{number}": 1 for number in range(12)}, {"a/1": 100, "a/2": 100})
    cluster.settle()
    cluster.moves = 0
    cluster.limits["a/3"] = 100
    cluster.settle()
    assert cluster.loads() == {"a/1": 4, "a/2": 4, "a/3": 4}
    assert cluster.moves == 4


def test_members_that_exit_shed_their_shards() -> None:
    cluster = Cluster({f"item-{number}": 2 for number in range(4)}, {f"a/{name}": 5 for name in "1234"})
    cluster.settle()
    cluster.exiting |= {"a/1"}
    cluster.settle()
    assert cluster.loads()["a/1"] == 0
    # Two members are needed for two replicas, so only the older of the two exiting ones is emptied.
    cluster.lose("a/1")
    cluster.exiting = {"a/2", "a/3"}
    cluster.settle()
    assert cluster.loads() == {"a/2": 0, "a/3": 4, "a/4": 4}


def test_members_that_exit_keep_what_nobody_else_has_room_for() -> None:
    """A rolling restart of a full cluster must not lose a replica."""
    cluster = Cluster({f"item-{number}": 1 for number in range(6)}, {"a/1": 4, "a/2": 4})
    cluster.settle()
    cluster.exiting = {"a/1"}
    cluster.settle()
    assert cluster.loads() == {"a/1": 2, "a/2": 4}


def test_a_shard_that_is_gone_leaves_nothing_behind() -> None:
    cluster = Cluster({"item-1": 1, "item-2": 1}, {"a/1": 5}, "gone a/1 0\nitem-1 a/1 0\nitem-2 a/1 0")
    cluster.shards["item-2"] = 0
    cluster.settle()
    assert cluster.show() == "item-1 a/1 0"


def test_a_second_assignment_of_a_member_is_removed() -> None:
    """A leader that missed the answer of a transaction may have added it."""
    items, members = [ShardItem("item", 2)], [ClusterMember("a", "A", 2), ClusterMember("b", "B", 2)]
    first, second, other = (
        ShardAssignment("item", zone, suffix, slot, Code.STANDBY)
        for zone, suffix, slot in (("a", "A", 1), ("a", "A", 2), ("b", "B", 3))
    )
    desired = {"item": frozenset({first.member, other.member})}
    (steps,) = next_steps(items, members, [first, second, other], desired, effective_limits(items, members))
    assert steps.remove == [second]
    assert [moved for moved, slot in steps.move] in ([first], [other])


@pytest.mark.parametrize(
    ("code", "primary", "expected"),
    [
        pytest.param(Code.IDLE, Code.PRIMARY, False, id="starting"),
        pytest.param(Code.BACKFILL, Code.PRIMARY, False, id="playing its log"),
        pytest.param(Code.STANDBY, Code.PRIMARY, True, id="standing by"),
        pytest.param(Code.FAILED, Code.PRIMARY, False, id="failed"),
        pytest.param(Code.FAILED, Code.FAILED, True, id="failed as the primary has"),
    ],
)
def test_who_can_take_over(code: int, primary: int, expected: bool) -> None:
    """A failed replica counts as consistent if its primary has failed, too."""
    of_shard = [ShardAssignment("s", "a", "1", 0, primary), ShardAssignment("s", "a", "2", 1, code)]
    assert is_consistent(of_shard[1], of_shard) is expected


def test_the_leader_came_first() -> None:
    members = [
        ClusterMember("b", "1", 1, create_revision=5),
        ClusterMember("a", "2", 1, create_revision=7),
        ClusterMember("a", "9", 1, create_revision=5),
    ]
    assert leader(members) == ("a", "9")
    assert leader([]) is None
