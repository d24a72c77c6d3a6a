"""An in-memory cluster that follows its leader's steps, and checks each one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gazette_spark.consumer._cluster.allocator import (
    ClusterMember,
    ItemSteps,
    MemberId,
    Placement,
    ShardAssignment,
    ShardItem,
    effective_limits,
    is_consistent,
    next_steps,
    solve,
)
from gazette_spark.protocol import consumer_pb2 as pc

Code = pc.ReplicaStatus.Code


def member_of(name: str) -> MemberId:
    """Return the id of a member that tests write as ``zone/suffix``."""
    zone, _, suffix = name.partition("/")
    return zone, suffix


class Cluster:
    """Shards, members and assignments. Assignments are written as ``shard zone/suffix slot``."""

    def __init__(
        self,
        shards: Mapping[str, int],
        members: Mapping[str, int],
        assignments: str = "",
        code: int = Code.STANDBY,
    ) -> None:
        """Start with shards and their replicas, members and their limits, and assignments of one status."""
        self.shards = dict(shards)
        self.limits = dict(members)
        self.exiting: set[str] = set()
        self.assignments: dict[tuple[str, MemberId], ShardAssignment] = {}
        for line in assignments.strip().splitlines():
            shard, member, slot = line.split()
            zone, suffix = member_of(member)
            self.assignments[shard, (zone, suffix)] = ShardAssignment(shard, zone, suffix, int(slot), code)
        self.moves = 0
        """Number of assignments that were added."""
        self._solved: object = None
        self._desired: Placement = {}

    @property
    def items(self) -> list[ShardItem]:
        return [ShardItem(shard, replicas) for shard, replicas in sorted(self.shards.items())]

    @property
    def members(self) -> list[ClusterMember]:
        """The members, ascending; tests create them in any order."""
        ages = {name: age for age, name in enumerate(self.limits, start=1)}
        return [
            ClusterMember(*member_of(name), limit, name in self.exiting, create_revision=ages[name])
            for name, limit in sorted(self.limits.items())
        ]

    @property
    def effective(self) -> dict[MemberId, int]:
        return effective_limits(self.items, self.members)

    @property
    def sorted_assignments(self) -> list[ShardAssignment]:
        return [assignment for _, assignment in sorted(self.assignments.items())]

    def show(self) -> str:
        return "\n".join(f"{a.shard} {a.zone}/{a.suffix} {a.slot}" for a in self.sorted_assignments)

    def loads(self) -> dict[str, int]:
        counts = Counter(assignment.member for assignment in self.assignments.values())
        return {name: counts[member_of(name)] for name in self.limits}

    def lose(self, name: str) -> None:
        del self.limits[name]
        gone = member_of(name)
        self.assignments = {
            key: assignment for key, assignment in self.assignments.items() if assignment.member != gone
        }

    def desired(self) -> Placement:
        problem = [(item.id, item.replicas) for item in self.items], self.effective
        if problem != self._solved:
            self._desired = solve(self.items, self.effective, self.sorted_assignments)
            self._solved = problem
        return self._desired

    def step(self) -> list[ItemSteps]:
        desired = self.desired()
        steps = next_steps(self.items, self.members, self.sorted_assignments, desired, self.effective)
        for change in steps:
            self._make(change)
        return steps

    def catch_up(self) -> None:
        for key, a in self.assignments.items():
            code = Code.PRIMARY if a.slot == 0 else Code.STANDBY
            self.assignments[key] = ShardAssignment(a.shard, a.zone, a.suffix, a.slot, code)

    def settle(self) -> int:
        """Repeat steps until none is left, with replicas catching up in between; return the steps."""
        for count in range(1000):
            steps = self.step()
            self.catch_up()
            if not steps:
                return count
        raise AssertionError(f"no end of steps:\n{self.show()}")

    def _make(self, change: ItemSteps) -> None:
        """Make one transaction, and check the invariants that it must not break."""
        before = [assignment for assignment in self.assignments.values() if assignment.shard == change.shard]
        loads = Counter(assignment.member for assignment in self.assignments.values())
        for added in change.add:
            assert (added.shard, added.member) not in self.assignments, "a second assignment to a member"
            assert loads[added.member] < self.effective[added.member], "more than the member's limit"
            assert added.slot not in {a.slot for a in before}, "a slot that is taken"
            self.assignments[added.shard, added.member] = added
            loads[added.member] += 1
            self.moves += 1
        for removed in change.remove:
            assert self.assignments.pop((removed.shard, removed.member)) == removed
        if change.item is not None and any(is_consistent(removed, before) for removed in change.remove):
            gone = {removed.member for removed in change.remove}
            left = sum(is_consistent(a, before) for a in before if a.member not in gone)
            assert left >= change.item.replicas, "too few replicas that can take over"
        for moved, slot in change.move:
            assert self.assignments[moved.shard, moved.member] == moved
            assert (
                slot
                not in {
                    a.slot for a in self.assignments.values() if a.shard == moved.shard and a is not moved
                }
                or slot > 0
            ), "a second primary"
            self.assignments[moved.shard, moved.member] = ShardAssignment(
                moved.shard, moved.zone, moved.suffix, slot, moved.code
            )
        primaries = [a for a in self.assignments.values() if a.shard == change.shard and a.slot == 0]
        assert len(primaries) <= 1, "two primaries"
