"""Assigns journals to the members of a cluster, with values and pure functions.

A journal's *slots* name the members that replicate it; slot 0 is the primary's. :func:`assign` fills them. It
is deterministic and sticky: a member keeps its slots as long as it lives, because only its spool has the
journal's latest bytes. Free slots go to a zone that the journal is not in yet, and to the member with the
fewest slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gazette_spark.protocol import protocol_pb2 as pb

NO_PRIMARY = -1
"""Value for a route without a primary. The default, 0, would name the first member."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One broker of a cluster. Members are ordered as in routes."""

    zone: str
    suffix: str
    endpoint: str = ""

    @property
    def process_id(self) -> pb.ProcessSpec.ID:
        """The broker's process id."""
        return pb.ProcessSpec.ID(zone=self.zone, suffix=self.suffix)


Slots = tuple[Member | None, ...]
"""Members of a journal by slot; slot 0 is None while there is no primary."""


def assign(
    replica_counts: Mapping[str, int],
    members: frozenset[Member],
    current: Mapping[str, Slots],
    *,
    fill: bool = True,
    others: Iterable[Slots] = (),
) -> dict[str, Slots]:
    """Assign to every journal its number of live members, or all of them if there are fewer.

    Args:
        replica_counts: number of replicas of each journal. Other journals lose their slots.
        members: the live members.
        current: current slots. Live members stay, in their order: the next one becomes primary if the
            primary is gone.
        others: slots of further journals, which do not change and count as load.
        fill: False only removes dead members, as in Gazette before the allocator runs.
    """
    if not fill:
        # A dead member leaves its slots when its lease expires, and the allocator fills them later. In
        # between, a journal has too few members or no primary, which clients must tolerate.
        remaining: dict[str, Slots] = {}
        for name in replica_counts:
            first, *replicas = current.get(name, ()) or (None,)
            # A dead primary leaves its slot empty.
            primary = first if first in members else None
            alive = tuple(member for member in replicas if member is not None and member in members)
            remaining[name] = (primary, *alive) if primary or alive else ()
        return remaining
    live = {
        name: tuple(m for m in current.get(name, ()) if m is not None and m in members)[:count]
        for name, count in replica_counts.items()
    }
    if all(len(live[name]) >= min(count, len(members)) for name, count in replica_counts.items()):
        return dict(
            live
        )  # This is the usual case: most changes move no journal, and counting the load takes time.
    loaded = [*live.values(), *others] if len(members) > 1 else []
    load = Counter(member for slots in loaded for member in slots if member is not None)
    primaries = Counter(slots[0] for slots in loaded if slots and slots[0] is not None)
    assigned: dict[str, Slots] = {}
    for name in sorted(replica_counts):
        slots = list(live[name])
        while len(slots) < min(replica_counts[name], len(members)):
            free = members.difference(slots)
            if slots:
                # A zone may fail as a whole, so using another zone is more important than an even load.
                zones = {member.zone for member in slots}
                chosen = min(free, key=lambda member: (member.zone in zones, load[member], member))
            else:
                # The primary serves all appends, so primaries are spread before replicas are.
                chosen = min(free, key=lambda member: (primaries[member], load[member], member))
                primaries[chosen] += 1
            load[chosen] += 1
            slots.append(chosen)
        assigned[name] = tuple(slots)
    return assigned


def promote(slots: Slots, member: Member) -> Slots:
    """Move a member to slot 0; the others keep their order."""
    return (member, *(other for other in slots if other not in (None, member)))


def make_route(slots: Slots) -> pb.Route:
    """Return the route of a journal: its members in order, each with its endpoint, and the primary."""
    members = sorted(member for member in slots if member is not None)
    primary = members.index(slots[0]) if slots and slots[0] is not None else NO_PRIMARY
    return pb.Route(
        members=[member.process_id for member in members],
        primary=primary,
        endpoints=[member.endpoint for member in members],
    )


def same_route(one: pb.Route, other: pb.Route) -> bool:
    """Whether two routes have the same members and primary; endpoints do not matter."""
    return one.primary == other.primary and list(one.members) == list(other.members)
