"""The broker that serves a call about a journal, or the reason why none does. A plain decision."""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark._server.topology import Member, Slots, make_route
from gazette_spark.protocol import protocol_pb2 as pb

_FULL = pb.JournalSpec.Suspend.FULL


@dataclass(frozen=True, slots=True)
class Resolution:
    """The broker that serves a call."""

    status: int
    route: pb.Route
    target: Member | None
    """The member that serves it: this broker, or the one to proxy to; None if the status is not OK."""


def resolve_route(
    spec: pb.JournalSpec | None, slots: Slots, local: Member, *, need_primary: bool, may_proxy: bool
) -> Resolution:
    """Find the broker that serves a call, with Gazette's order of refusals.

    Args:
        spec: the journal's; None if there is no such journal, or the caller may not know of it.
        slots: the journal's members.
        local: this broker.
        need_primary: whether only the primary can serve it.
        may_proxy: whether this broker may ask another one on the caller's behalf.
    """
    if spec is None:
        return Resolution(pb.JOURNAL_NOT_FOUND, make_route(()), None)
    route = make_route(slots)
    primary = slots[0] if slots else None
    members = [member for member in slots if member is not None]
    if spec.suspend.level == _FULL:
        return Resolution(pb.SUSPENDED, route, None)
    if need_primary and primary is None:
        return Resolution(pb.NO_JOURNAL_PRIMARY_BROKER, route, None)
    if not members:
        return Resolution(pb.INSUFFICIENT_JOURNAL_BROKERS, route, None)
    target = primary if need_primary else _nearest(members, local)
    if target != local and not may_proxy:
        status = pb.NOT_JOURNAL_PRIMARY_BROKER if need_primary else pb.NOT_JOURNAL_BROKER
        return Resolution(status, route, None)
    return Resolution(pb.OK, route, target)


def _nearest(members: list[Member], local: Member) -> Member:
    """Prefer this broker, then one of its zone; members of high slots are spared the least."""
    return min(reversed(members), key=lambda one: (one != local, one.zone != local.zone))
