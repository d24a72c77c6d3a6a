"""Decides which members of a cluster run which shards, and which steps lead to that assignment. Pure.

The data and the rules are those of Gazette's allocator, because its members take turns with ours:

- A member has at most one assignment of a shard. Slot 0 is the primary's.
- A member has no more assignments than its limit. A member that exits gives up as many assignments as
  others have room for.
- Replicas of a shard are in at least two zones, if the members allow that.
- An assignment is removed only if as many *consistent* replicas remain as the shard should have.

Only the leader writes, which is the oldest member. When members or shards change, it computes the desired
placement (:func:`solve`). Then it makes the steps that the rules currently allow (:func:`next_steps`), until
no steps remain. Replicas catch up between two steps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TypeAlias

from gazette_spark.protocol import consumer_pb2 as pc

MemberId: TypeAlias = tuple[str, str]
"""Zone and suffix of a member."""

Placement: TypeAlias = dict[str, frozenset[MemberId]]
"""The members that should run each shard, by shard."""

_Code = pc.ReplicaStatus.Code


@dataclass(frozen=True, slots=True)
class ShardItem:
    """A shard to assign. Revisions are those of its key in Etcd."""

    id: str
    replicas: int
    """Number of members that should run it; 0 if it is disabled."""
    mod_revision: int = 0
    create_revision: int = 0
    spec: pc.ShardSpec = field(default_factory=pc.ShardSpec, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """A process that runs shards."""

    zone: str
    suffix: str
    limit: int
    """Maximum number of its assignments."""
    exiting: bool = False
    mod_revision: int = 0
    create_revision: int = 0
    lease: int = 0
    endpoint: str = ""

    @property
    def id(self) -> MemberId:
        """Zone and suffix."""
        return self.zone, self.suffix


@dataclass(frozen=True, slots=True)
class ShardAssignment:
    """An assignment of a shard to a member."""

    shard: str
    zone: str
    suffix: str
    slot: int
    code: int = _Code.IDLE
    mod_revision: int = 0
    create_revision: int = 0
    lease: int = 0
    value: bytes = b""
    """The stored status."""

    @property
    def member(self) -> MemberId:
        """Zone and suffix of the member."""
        return self.zone, self.suffix


@dataclass(slots=True)
class ItemSteps:
    """Changes of one shard's assignments that belong in one transaction."""

    shard: str
    item: ShardItem | None
    """The shard; None if it was deleted."""
    add: list[ShardAssignment] = field(default_factory=list)
    remove: list[ShardAssignment] = field(default_factory=list)
    move: list[tuple[ShardAssignment, int]] = field(default_factory=list)
    """Assignments, and the slots to which they move."""

    def __bool__(self) -> bool:
        return bool(self.add or self.remove or self.move)


def leader(members: Iterable[ClusterMember]) -> MemberId | None:
    """Return the member that writes, which is the oldest one; None without members."""
    first = min(members, key=lambda member: (member.create_revision, member.id), default=None)
    return first.id if first is not None else None


def is_consistent(assignment: ShardAssignment, of_shard: Iterable[ShardAssignment]) -> bool:
    """Return whether a replica could take over; ``of_shard`` are all assignments of its shard.

    If the primary has failed, a failed replica also counts as consistent, so that the shard can be moved.
    """
    if assignment.code == _Code.FAILED:
        # The shard itself may cause the failure of the primary, such as an application that raises an error
        # on each member. If failed replicas never counted, such a shard could not be moved from a member that
        # exits, and the member could not end.
        return any(other.slot == 0 and other.code == _Code.FAILED for other in of_shard)
    # IDLE and BACKFILL replicas are still playing the log: promoting one of them would stop the shard for
    # that time.
    return assignment.code in (_Code.STANDBY, _Code.PRIMARY)


def effective_limits(items: Iterable[ShardItem], members: Sequence[ClusterMember]) -> dict[MemberId, int]:
    """Return how many assignments each member may have; exiting members get fewer.

    The oldest exiting member gives up its assignments first, but no more than the others have room for. At
    least as many members keep their limits as the largest number of replicas of a shard.
    """
    limits = {member.id: member.limit for member in members}
    replicas = [item.replicas for item in items]
    # Count the free places in the whole cluster. An exiting member gives up no more than this: replicas for
    # which there is no room stay where they are, and the member waits for new members.
    room = max(0, sum(limits.values()) - sum(replicas))
    # A shard needs as many different members as it has replicas. With three members and three replicas, no
    # member can give up its shards, however much room the others have.
    may_shed = max(0, len(members) - max(replicas, default=0))
    exiting = sorted(
        (member for member in members if member.exiting),
        key=lambda member: (member.create_revision, member.id),
    )
    for member in exiting[:may_shed]:
        # Take as much as possible from the oldest one: an empty member can end, whereas two half-empty
        # members both have to wait.
        shed = min(member.limit, room)
        limits[member.id] -= shed
        room -= shed
    return limits


def solve(
    items: Sequence[ShardItem], limits: Mapping[MemberId, int], current: Iterable[ShardAssignment]
) -> Placement:
    """Return the members that should run each shard.

    As many replicas as possible are placed. If no rule prevents it, the load of each member differs by less
    than one from its share, which is proportional to its limit. Current assignments stay where possible.

    Args:
        items: All shards.
        limits: Limits of all members, see :func:`effective_limits`.
        current: Current assignments.
    """
    # A member without a place is left out, so that its zone does not count as a second one.
    network = _Network(items, {member: limit for member, limit in limits.items() if limit > 0})

    # Begin with the current assignments, if they follow the rules, so that only necessary moves are
    # made. Lower slots come first, because moving a primary interrupts its shard.
    ordered = sorted(current, key=lambda assignment: (assignment.slot, assignment.shard, assignment.member))
    left_out = [placed for placed in ordered if not network.place(placed.shard, placed.member)]

    # Place missing replicas, if necessary by moving other shards. First require two zones.
    network.fill()

    # The remaining replicas fit only into one zone. All replicas in one zone are better than missing
    # replicas.
    if network.is_short():
        network.allow_one_zone()
        for placed in left_out:
            # Keep current assignments that violated the rule of two zones, because a replica that does not
            # move costs nothing.
            network.place(placed.shard, placed.member)
        network.fill()
        network.ask_for_two_zones()

    # Use places that become free in another zone for shards that are in only one zone.
    network.even_out()
    # Spread one shard at a time, because each move may free a place that the next one needs.
    while network.spread():
        network.even_out()
    return {shard: frozenset(members) for shard, members in network.held.items()}


_Node: TypeAlias = tuple[str, ...]
"""A node of the flow network: a shard, a shard within a zone, or a member."""


class _Network:
    """The flow from shards through their zones to members. Each unit of flow is a replica.

    There are arcs from a shard to each of its zones, with as many units as replicas may be in one zone; from
    a zone of a shard to each member in it, with one unit; and from a member to the sink, up to its limit. A
    path along which one more unit can flow places one more replica. It may lead back over arcs with flow:
    there, a replica of another shard moves.
    """

    def __init__(self, items: Sequence[ShardItem], limits: Mapping[MemberId, int]) -> None:
        self._limits = limits
        # Members have one order everywhere, so that every leader finds the same solution of a problem, even
        # after a restart.
        self._zones: dict[str, list[MemberId]] = {}
        for member in sorted(limits):
            self._zones.setdefault(member[0], []).append(member)
        self._replicas = {item.id: item.replicas for item in items}
        # All replicas of a shard except one may be in one zone, so at least one replica remains after the
        # loss of a zone. Gazette's rule requires no more than two zones.
        spread = len(self._zones) > 1
        self._spread_limit = {
            item.id: item.replicas - 1 if spread and item.replicas > 1 else item.replicas for item in items
        }
        """Maximum number of replicas of each shard in one zone."""
        self._zone_limit = dict(self._spread_limit)
        self.held: dict[str, set[MemberId]] = {item.id: set() for item in items}
        self._in_zone: Counter[tuple[str, str]] = Counter()
        self._shards: dict[MemberId, set[str]] = {member: set() for member in limits}
        self._placed, self._places = 0, sum(limits.values())

    def place(self, shard: str, member: MemberId) -> bool:
        """Place a replica if no rule forbids it; return whether it is placed."""
        held = self.held.get(shard)
        if held is None or member not in self._limits:
            return False
        # A second place for a shard at the same member would not be a replica, so placing twice changes
        # nothing.
        if member not in held:
            if (
                len(held) >= self._replicas[shard]
                or len(self._shards[member]) >= self._limits[member]
                or self._in_zone[shard, member[0]] >= self._zone_limit[shard]
            ):
                return False
            self._change(shard, member, 1)
        return True

    def fill(self) -> None:
        """Place all missing replicas for which there is a path."""
        # Nodes without a path to a free place never get one again, so later searches do not visit them.
        dead: set[_Node] = set()
        for shard, held in self.held.items():
            # Each round places one more replica or ends the search for this shard. A path never takes a
            # replica from another shard without giving it another member, so placed replicas stay placed.
            while len(held) < self._replicas[shard]:
                if not (path := self._path((shard,), dead, None)):
                    break
                self._follow(path)

    def is_short(self) -> bool:
        """Return whether replicas are missing."""
        return any(len(held) < self._replicas[shard] for shard, held in self.held.items())

    def allow_one_zone(self) -> None:
        """Let all replicas of a shard be in one zone."""
        # This is only for the remaining replicas. Those that fit into two zones have already been placed, and
        # take no place from these, because paths may move them.
        self._zone_limit = dict(self._replicas)

    def ask_for_two_zones(self) -> None:
        """Keep shards that are in two zones in two zones."""
        for shard, limit in self._spread_limit.items():
            if all(self._in_zone[shard, zone] <= limit for zone in self._zones):
                self._zone_limit[shard] = limit

    def spread(self) -> bool:
        """Spread one shard from one zone to two; return whether that was possible for any."""
        for shard, limit in self._spread_limit.items():
            # The shard is already in two zones, or need not be.
            if self._zone_limit[shard] == limit:
                continue
            self._zone_limit[shard] = limit
            for member in sorted(self.held[shard]):
                self._change(shard, member, -1)
                # Without this replica and with the stricter limit, a path leads into another zone, if there
                # is any. Otherwise the replica returns to its place.
                if path := self._path((shard,), set(), None):
                    self._follow(path)
                    return True
                self._change(shard, member, 1)
            self._zone_limit[shard] = self._replicas[shard]
        return False

    def even_out(self) -> None:
        """Move replicas from members with much load to members with little load, until loads are even."""
        # Members for which no path was found since the last move. Any move may open a path again, so after it
        # all are tried again.
        stuck: set[MemberId] = set()
        while True:
            busy = [member for member in self._limits if self._shards[member] and member not in stuck]
            if not busy:
                return
            # Compare shares, not numbers: a member with twice the limit should have twice the load. Among
            # equal shares the id decides, so that the result does not depend on the order of a dictionary.
            fullest = max(busy, key=lambda member: (len(self._shards[member]) / self._limits[member], member))
            # Usually no member can take a replica, so there is nothing to search for.
            can_give = any(self._takes(member, fullest) for member in self._limits)
            if can_give and (path := self._path(("", *fullest), set(), fullest)):
                self._follow(path)
                stuck.clear()
            else:
                stuck.add(fullest)

    def _path(self, start: _Node, dead: set[_Node], giver: MemberId | None) -> list[_Node]:
        """Return the shortest path to a member with a free place, preferring the least loaded member.

        Args:
            start: Node of a shard that lacks a replica, or of the giver.
            dead: Nodes not to visit. If there is no path, all that were visited are added.
            giver: A member that should lose a replica to one with less load.
        """
        # This is a breadth-first search: the shortest path moves the fewest replicas, and every moved replica
        # has to play a log.
        came_from: dict[_Node, _Node] = {start: start}
        queue = deque([(start, 0)])
        best: tuple[float, _Node] | None = None
        best_distance = 0
        while queue:
            node, far = queue.popleft()
            # All members at this distance have been seen, so the least loaded one of them is known.
            if best is not None and far > best_distance:
                break
            if len(node) == 3 and node != start and self._takes(node[1:], giver):
                load = len(self._shards[node[1], node[2]]) / self._limits[node[1], node[2]]
                if best is None or (load, node) < best:
                    best, best_distance = (load, node), far
                continue
            for other in self._arcs(node):
                if other not in came_from and other not in dead:
                    came_from[other] = node
                    queue.append((other, far + 1))
        if best is None:
            # Without a path from here, no visited node leads to a free place. Later paths only use up places,
            # so this remains true for the whole fill.
            dead.update(came_from)
            return []
        path = [best[1]]
        while path[-1] != start:
            path.append(came_from[path[-1]])
        return path[::-1]

    def _takes(self, member: tuple[str, ...], giver: MemberId | None) -> bool:
        """Return whether a member has a free place that should be used."""
        zone, suffix = member
        load, limit = len(self._shards[zone, suffix]), self._limits[zone, suffix]
        # To place a replica, any free place suffices. A full member accepts none, not even from a fuller one.
        if giver is None or load >= limit:
            return load < limit
        # A move is for members that differ by at least one replica from their share. It has to reduce the sum
        # of load² / limit, so the search ends.
        giving, of = len(self._shards[giver]), self._limits[giver]
        placed, places = self._placed, self._places
        # Compute with whole numbers: a share is placed * limit / places, and rounding errors must not make a
        # move look useful in both directions.
        is_off = giving * places - placed * of >= places or placed * limit - load * places >= places
        return is_off and (2 * load + 1) * of < (2 * giving - 1) * limit

    def _arcs(self, node: _Node) -> Iterable[_Node]:
        """Yield the nodes to which another unit can flow."""
        match node:
            case (shard,):
                for zone in self._zones:
                    if self._in_zone[shard, zone] < self._zone_limit[shard]:
                        yield shard, zone
            case (shard, zone):
                # One unit can flow to each member of the zone that does not have the shard yet.
                yield from (("", *member) for member in self._zones[zone] if member not in self.held[shard])
                # A unit can flow back to the shard, which may have this replica in another zone instead.
                if self._in_zone[shard, zone]:
                    yield (shard,)
            case (_, zone, suffix):
                # A unit can flow back to each shard of a member, because one of them may leave it.
                yield from ((shard, zone) for shard in sorted(self._shards[zone, suffix]))

    def _follow(self, path: list[_Node]) -> None:
        """Let one unit flow along a path."""
        for one, other in pairwise(path):
            # Only arcs between a zone of a shard and a member are placements. The arcs from shards to zones
            # only count, and _change updates these counts.
            if len(one) == 2 and len(other) == 3:
                self._change(one[0], (other[1], other[2]), 1)
            elif len(one) == 3:
                self._change(other[0], (one[1], one[2]), -1)

    def _change(self, shard: str, member: MemberId, by: int) -> None:
        self._in_zone[shard, member[0]] += by
        self._placed += by
        if by > 0:
            self.held[shard].add(member)
            self._shards[member].add(shard)
        else:
            self.held[shard].remove(member)
            self._shards[member].remove(shard)


def next_steps(
    items: Sequence[ShardItem],
    members: Iterable[ClusterMember],
    assignments: Sequence[ShardAssignment],
    desired: Placement,
    limits: Mapping[MemberId, int],
) -> list[ItemSteps]:
    """Return the changes towards a placement that the rules currently allow.

    The list is empty if there is nothing to do, or if a replica must catch up first.

    Args:
        items: All shards, ascending by id.
        members: All members.
        assignments: All assignments, ascending by shard.
        desired: The desired placement.
        limits: Limits of all members, see :func:`effective_limits`.
    """
    leases = {member.id: member for member in members}
    # Count assignments as they will be after the steps so far, so that the steps of a round together keep all
    # limits.
    total = Counter(assignment.member for assignment in assignments)
    primaries = Counter(assignment.member for assignment in assignments if assignment.slot == 0)
    by_shard = {
        shard: list(group) for shard, group in groupby(assignments, key=lambda assignment: assignment.shard)
    }

    def load(assignment: ShardAssignment, counts: Counter[MemberId]) -> float:
        # A member whose key is gone, or that gives up everything, is the first to lose replicas and the last
        # to get any.
        limit = limits.get(assignment.member, 0)
        return counts[assignment.member] / limit if limit > 0 else float("inf")

    steps: list[ItemSteps] = []
    for item in items:
        current = by_shard.pop(item.id, [])
        change = ItemSteps(item.id, item)
        targets = desired.get(item.id, frozenset())

        # Add replicas where the shard should be, if the member has room. They get the next free slots: an
        # added replica becomes primary only when it is promoted.
        slot = max((assignment.slot + 1 for assignment in current), default=0)
        for member in sorted(targets.difference(assignment.member for assignment in current)):
            # Since the placement was computed, a member may have gone, or it may still be full of replicas
            # that it should lose. Then the replica is added in a later round.
            if member in leases and total[member] < limits.get(member, 0):
                change.add.append(ShardAssignment(item.id, *member, slot, lease=leases[member].lease))
                total[member] += 1
                primaries[member] += slot == 0
                slot += 1

        # A member runs a shard once, in its lowest slot. A leader that missed the answer of a transaction may
        # have added it again in another slot, because Gazette's transactions do not exclude that.
        descending = sorted(current, key=attrgetter("slot"), reverse=True)
        lowest = {assignment.member: assignment for assignment in descending}
        change.remove += (assignment for assignment in current if lowest[assignment.member] is not assignment)
        total.subtract(assignment.member for assignment in change.remove)
        current = [assignment for assignment in current if lowest[assignment.member] is assignment]

        # Remove replicas from where the shard should not be, first from members with much load. Stop when one
        # more removal would leave fewer replicas that can take over than the shard should have. Replicas that
        # were just added do not count: they are IDLE and cannot take over.
        remaining = [assignment for assignment in current if assignment.member in targets]
        surplus = [assignment for assignment in current if assignment.member not in targets]
        surplus.sort(key=lambda assignment: load(assignment, total), reverse=True)
        # A replica that cannot take over protects nothing, so it may be removed at any time if enough others
        # can take over.
        consistent = sum(is_consistent(assignment, current) for assignment in current)
        while surplus and consistent >= item.replicas:
            counts = is_consistent(surplus[0], current)
            if counts and consistent == item.replicas:
                break
            consistent -= counts
            removed = surplus.pop(0)
            change.remove.append(removed)
            total[removed.member] -= 1
            primaries[removed.member] -= removed.slot == 0
        remaining = sorted([*remaining, *surplus], key=attrgetter("slot"))

        # If no primary remains, promote a replica that can take over, of the member with the fewest primaries
        # for its limit.
        if remaining and remaining[0].slot != 0:
            # A shard without a primary does nothing, so if there is no other, even an inconsistent replica is
            # promoted. It becomes primary when it has caught up.
            promoted = min(
                remaining,
                key=lambda assignment: (not is_consistent(assignment, current), load(assignment, primaries)),
            )
            change.move.append((promoted, 0))
            primaries[promoted.member] += 1
            remaining.remove(promoted)
            remaining.insert(0, promoted)

        # Close gaps between slots one at a time, when there is nothing else to do: a slot that is still taken
        # must not be given to another replica.
        if not (change.add or change.remove):
            for slot, assignment in enumerate(remaining):
                if slot > 0 and assignment.slot != slot:
                    change.move.append((assignment, slot))
                    break
        if change:
            steps.append(change)

    # Deleted shards leave assignments behind. Their members end these shards by themselves, because a deleted
    # spec runs nowhere. Only the keys have to be removed.
    steps.extend(ItemSteps(shard, None, remove=dead) for shard, dead in sorted(by_shard.items()))
    return steps
