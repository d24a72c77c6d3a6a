"""The members of a cluster, and the assignment of journals to them. Plain values and decisions.

A journal's *slots* name the members that replicate it; slot 0 is the primary's. :func:`assign` fills
them. It is small, deterministic and sticky: a member keeps its slots for as long as it lives, because only
its spool has the journal's latest bytes. Free slots go to the member with the fewest, and to a zone the
journal is not in yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gazette_spark.protocol import protocol_pb2 as pb

NO_PRIMARY = -1
"""A route without a primary has to say so: the default, 0, would name its first member."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One broker of a cluster. Ordered as routes order their members."""

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
    wanted: Mapping[str, int],
    members: frozenset[Member],
    held: Mapping[str, Slots],
    *,
    fill: bool = True,
    others: Iterable[Slots] = (),
) -> dict[str, Slots]:
    """Give every journal the live members it wants, or all live members if there are fewer.

    Args:
        wanted: replicas of each journal. Other journals lose their slots.
        members: the live members.
        held: slots so far. Live members stay, in their order: the next one becomes primary if the
            primary is gone.
        others: slots of further journals, which stay as they are and count as load.
        fill: False only removes dead members, as in Gazette before the allocator's turn.
    """
    if not fill:
        return {name: _without_dead(held.get(name, ()), members) for name in wanted}
    kept = {name: _kept(held.get(name, ()), members, count) for name, count in wanted.items()}
    if all(len(kept[name]) >= min(count, len(members)) for name, count in wanted.items()):
        return dict(kept)
    taken = [*kept.values(), *others] if len(members) > 1 else []
    load = Counter(member for slots in taken for member in slots if member is not None)
    primaries = Counter(slots[0] for slots in taken if slots and slots[0] is not None)
    made: dict[str, Slots] = {}
    for name in sorted(wanted):
        slots = list(kept[name])
        while len(slots) < min(wanted[name], len(members)):
            free = members.difference(slots)
            if slots:
                zones = {member.zone for member in slots}
                chosen = min(free, key=lambda one: (one.zone in zones, load[one], one))
            else:
                chosen = min(free, key=lambda one: (primaries[one], load[one], one))
                primaries[chosen] += 1
            load[chosen] += 1
            slots.append(chosen)
        made[name] = tuple(slots)
    return made


def _kept(slots: Slots, members: frozenset[Member], count: int) -> tuple[Member, ...]:
    return tuple(one for one in slots if one is not None and one in members)[:count]


def _without_dead(slots: Slots, members: frozenset[Member]) -> Slots:
    primary = slots[0] if slots and slots[0] in members else None
    others = tuple(one for one in slots[1:] if one is not None and one in members)
    return (primary, *others) if primary or others else ()


def promote(slots: Slots, member: Member) -> Slots:
    """Move a member to slot 0; the others keep their order."""
    return (member, *(one for one in slots if one not in (None, member)))


def make_route(slots: Slots) -> pb.Route:
    """Return the route of a journal: its members in order, each with its endpoint, and the primary."""
    members = sorted(one for one in slots if one is not None)
    primary = members.index(slots[0]) if slots and slots[0] is not None else NO_PRIMARY
    return pb.Route(
        members=[one.process_id for one in members],
        primary=primary,
        endpoints=[one.endpoint for one in members],
    )


def same_route(one: pb.Route, other: pb.Route) -> bool:
    """Whether two routes have the same members and primary; endpoints do not matter."""
    return one.primary == other.primary and list(one.members) == list(other.members)
