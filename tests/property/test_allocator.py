"""From any state, any leader's steps keep every rule, terminate, and place as much as possible."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gazette_spark.consumer._cluster.allocator import solve
from tests.rig.allocation import Cluster, Code, member_of
from tests.rig.examples import examples

pytestmark = pytest.mark.slow

NAMES = [f"{zone}/{number}" for zone in "abc" for number in range(3)]
SHARDS = [f"shard-{number}" for number in range(8)]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw a cluster with assignments that an interrupted or older leader may have left."""
    shards = draw(st.dictionaries(st.sampled_from(SHARDS), st.integers(0, 3)))
    members = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 6), min_size=1))
    held = draw(st.lists(st.tuples(st.sampled_from(SHARDS), st.sampled_from(sorted(members))), unique=True))
    slots: dict[str, int] = {}
    lines = []
    for shard, member in held:
        # A shard may be without a primary.
        slot = slots.get(shard, draw(st.integers(0, 1)))
        slots[shard] = slot + 1
        lines.append(f"{shard} {member} {slot}")
    code = draw(st.sampled_from([Code.IDLE, Code.STANDBY, Code.FAILED]))
    cluster = Cluster(shards, members, "\n".join(lines), code)
    cluster.exiting = draw(st.sets(st.sampled_from(sorted(members)), max_size=2))
    return cluster


def most_replicas(cluster: Cluster) -> int:
    """Count the replicas that can be placed, by a plain maximum flow without zones."""
    held: dict[str, set[str]] = {shard: set() for shard in cluster.shards}
    limits = {name: cluster.effective[member_of(name)] for name in cluster.limits}

    def loads(name: str) -> int:
        return sum(name in members for members in held.values())

    def place(shard: str, visited: set[str]) -> bool:
        for name, limit in limits.items():
            if name in held[shard] or name in visited:
                continue
            visited.add(name)
            if loads(name) < limit:
                held[shard].add(name)
                return True
            for other, members in held.items():
                if name in members and other != shard and place(other, visited):
                    members.remove(name)
                    held[shard].add(name)
                    return True
        return False

    placed = 0
    for shard, replicas in sorted(cluster.shards.items()):
        for _ in range(replicas):
            placed += place(shard, set())
    return placed


def has_enough_places(cluster: Cluster) -> bool:
    return all(len(members) == cluster.shards[shard] for shard, members in cluster.desired().items())


@settings(max_examples=examples(400))
@given(clusters())
def test_every_rule_holds_on_the_way(cluster: Cluster) -> None:
    """The steps terminate; each shard then has its replicas in the right places, and a primary.

    If there are too few places, a shard that has no replica to spare may keep one that it should lose.
    """
    cluster.settle()
    desired, enough = cluster.desired(), has_enough_places(cluster)
    for shard, members in desired.items():
        assert len(members) <= cluster.shards[shard]
        if enough:
            assert {member for held, member in cluster.assignments if held == shard} == members
        slots = sorted(a.slot for a in cluster.assignments.values() if a.shard == shard)
        assert slots == list(range(len(slots)))
    assert {shard for shard, _ in cluster.assignments} <= cluster.shards.keys()


@settings(max_examples=examples(400))
@given(clusters())
def test_as_much_is_placed_as_can_be(cluster: Cluster) -> None:
    desired = cluster.desired()
    assert sum(map(len, desired.values())) == most_replicas(cluster)
    limits = {member: limit for member, limit in cluster.effective.items() if limit}
    loads = {member: sum(member in members for members in desired.values()) for member in limits}
    for member, load in loads.items():
        assert load <= limits[member]
    zones = {zone for zone, _ in limits}
    for shard, members in desired.items():
        free = {member for member in limits if loads[member] < limits[member]} - members
        if len(members) > 1 and len(zones) > 1 and len({zone for zone, _ in members}) == 1:
            assert not {zone for zone, _ in free} - {zone for zone, _ in members}, shard


@settings(max_examples=examples(200))
@given(clusters())
def test_nothing_moves_without_need(cluster: Cluster) -> None:
    assume(has_enough_places(cluster))
    cluster.settle()
    again = solve(cluster.items, cluster.effective, cluster.sorted_assignments)
    assert again == cluster.desired()


@settings(max_examples=examples(200))
@given(st.integers(1, 30), st.integers(1, 6))
def test_equal_members_have_equal_loads(shards: int, members: int) -> None:
    """Loads differ by at most one shard, and losing a member moves only that member's shards."""
    cluster = Cluster({f"shard-{n}": 1 for n in range(shards)}, {f"a/{n}": 100 for n in range(members)})
    cluster.settle()
    loads = cluster.loads().values()
    assert max(loads) - min(loads) <= 1
    if members > 1:
        lost = cluster.loads()["a/0"]
        cluster.moves = 0
        cluster.lose("a/0")
        cluster.settle()
        assert cluster.moves == lost
