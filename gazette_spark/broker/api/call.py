"""Provides what the handlers of all RPCs share: the broker's parts, a call, and the broker that serves it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from math import inf
from typing import Protocol

from gazette_spark._server.authorizer import Authorizer, covers
from gazette_spark._server.call_watch import CallWatch
from gazette_spark._server.identity import BrokerIdentity
from gazette_spark._server.topology import Member, Slots, make_route
from gazette_spark.broker.http.signed_urls import UrlOf, file_url
from gazette_spark.broker.journal import JournalClosedError, LiveJournal
from gazette_spark.broker.registry import JournalRegistry
from gazette_spark.broker.replication.peers import Peers
from gazette_spark.broker.replication.replicator import Replicator
from gazette_spark.broker.storage.persister import Persister
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.tokens import Claims


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The parts of a running broker."""

    registry: JournalRegistry
    persister: Persister
    identity: BrokerIdentity
    pumps: Executor
    """Threads that take appends' messages off the wire."""
    min_append_rate: int
    max_append_rate: int
    chunk_bytes: int
    authorizer: Authorizer
    watch: CallWatch
    peers: Peers
    replicator: Replicator
    url_of: UrlOf = file_url
    """Makes the URLs of stored fragments."""

    @property
    def has_peers(self) -> bool:
        """Whether this broker is one of a cluster."""
        return not self.registry.is_alone

    def header(self, journal: str | None = None) -> pb.Header:
        """Return a header at the current revision, with the route of the journal if there is one."""
        state = self.registry.keyspace.state
        route = None if journal is None else state.route(bare_name(journal))
        return self.identity.header(state.catalog.revision, route)


def bare_name(name: str) -> str:
    """Return a journal's name without its ``;meta`` suffix."""
    return name.partition(";")[0]


class Peer(Protocol):
    """The other end of a call. gRPC's servicer context is one."""

    def is_active(self) -> bool:
        """Whether it still waits for an answer."""

    def add_callback(self, callback: Callable[[], None], /) -> bool:
        """Call ``callback`` when the call ends; return False if it has already ended."""


class ServedCall:
    """One call, and its caller's claims."""

    def __init__(self, peer: Peer, claims: Claims, watch: CallWatch) -> None:
        self.claims = claims
        self._peer = peer
        self._watch = watch

    @property
    def is_expired(self) -> bool:
        """Whether the caller's token has expired, which ends the call."""
        return time.time() >= self.claims.expires_at

    def is_awaited(self) -> bool:
        """Whether the client still waits for an answer, and its token is still valid."""
        return bool(self._peer.is_active()) and not self.is_expired

    def wake_when_over(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when the call ends, so that no wait outlives it."""
        # gRPC reports that a client has left, but not that a token has expired, so this has to be checked
        # regularly.
        if self.claims.expires_at < inf:
            self._when_ended(self._watch.watch(lambda: self.is_expired, wake))
        self._when_ended(wake)

    def _when_ended(self, callback: Callable[[], None]) -> None:
        # The call ended before the callback was added, so gRPC will not call it.
        if not self._peer.add_callback(callback):
            callback()


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The broker that serves a call, or the status of a refusal."""

    status: int
    route: pb.Route
    target: Member | None
    """The member that serves it: this broker, or the one to proxy to; None if the status is not OK."""


def resolve_route(
    spec: pb.JournalSpec | None, slots: Slots, local: Member, *, need_primary: bool, may_proxy: bool
) -> RouteDecision:
    """Find the broker that serves a call, with Gazette's order of refusals.

    Args:
        spec: the journal's; None if there is no such journal, or the caller may not see it.
        slots: the journal's members.
        local: this broker.
        need_primary: whether only the primary can serve it.
        may_proxy: whether this broker may call another one for the caller.
    """
    if spec is None:
        return RouteDecision(pb.JOURNAL_NOT_FOUND, make_route(()), None)
    route = make_route(slots)
    primary = slots[0] if slots else None
    members = [member for member in slots if member is not None]
    # The order of the refusals is Gazette's, and clients rely on it: SUSPENDED needs an append, the others
    # need time.
    if spec.suspend.level == pb.JournalSpec.Suspend.FULL:
        return RouteDecision(pb.SUSPENDED, route, None)
    if need_primary and primary is None:
        return RouteDecision(pb.NO_JOURNAL_PRIMARY_BROKER, route, None)
    if not members:
        return RouteDecision(pb.INSUFFICIENT_JOURNAL_BROKERS, route, None)
    target = primary
    if not need_primary:
        # Prefer this broker, then one of its zone. Among equals take the last slot, because slot 0 has to
        # serve the appends.
        target = min(reversed(members), key=lambda member: (member != local, member.zone != local.zone))
    if target != local and not may_proxy:
        status = pb.NOT_JOURNAL_PRIMARY_BROKER if need_primary else pb.NOT_JOURNAL_BROKER
        return RouteDecision(status, route, None)
    return RouteDecision(pb.OK, route, target)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The broker that serves a call about a journal, or the status of a refusal."""

    status: int
    header: pb.Header
    """Names this broker, and the journal's route."""
    slots: Slots = ()
    spec: pb.JournalSpec | None = None
    """None if there is no such journal."""
    journal: LiveJournal | None = None
    """This broker's replica, if it serves the call."""
    target: Member | None = None
    """The broker to proxy to, if another one does."""

    def is_current(self, context: ServiceContext) -> bool:
        """Return whether the journal still has these members, and this broker still has this replica."""
        if self.spec is None:
            return False
        name = self.spec.name
        is_same = context.registry.keyspace.state.slots.get(name, ()) == self.slots
        return is_same and (self.journal is None or context.registry.get(name) is self.journal)


def resolve(
    context: ServiceContext,
    name: str,
    claims: Claims,
    *,
    need_primary: bool = False,
    may_proxy: bool = False,
) -> Resolved:
    """Find the broker that serves a call; the name may have a ``;meta`` suffix.

    A journal that the claims do not cover is answered as if it did not exist.

    Raises:
        JournalClosedError: this broker should serve the call, but is stopping.
    """
    registry, bare = context.registry, bare_name(name)
    # Use one state for the whole decision, because spec, members and revision belong together.
    state = registry.keyspace.state
    entry = state.catalog.items.get(bare)
    spec = entry.spec if entry is not None and covers(claims, entry.spec) else None
    slots = state.slots.get(bare, ()) if spec is not None else ()
    local = registry.member
    decision = resolve_route(spec, slots, local, need_primary=need_primary, may_proxy=may_proxy)
    header = context.identity.header(state.catalog.revision, decision.route)
    if decision.target is not None and decision.target != local:
        return Resolved(decision.status, header, slots, spec, target=decision.target)
    journal = registry.get(bare) if decision.target is not None else None
    # The members name this broker, but it has given the journal up, because it is stopping.
    if decision.target is not None and journal is None:
        raise JournalClosedError
    return Resolved(decision.status, header, slots, spec, journal)


def await_revision(context: ServiceContext, revision: int, call: ServedCall) -> bool:
    """Wait until the broker has reached a revision; return False if the client gave up first."""
    registry = context.registry
    if registry.catalog.revision >= revision:
        return True
    call.wake_when_over(registry.wake)
    return registry.wait_for(lambda catalog: catalog.revision >= revision, call.is_awaited)


def await_request(
    context: ServiceContext, request: pb.ReadRequest | pb.AppendRequest, call: ServedCall
) -> bool:
    """Check a proxied request's header, and wait for the revision that the request requires.

    Raises:
        ProtocolError: another broker sent the request to this one by mistake.
    """
    revision = request.min_etcd_revision
    if request.HasField("header"):
        context.identity.check_proxied(request.header)
        # The other broker has routed by this revision. An older revision may have another primary.
        revision = max(revision, request.header.etcd.revision)
    return await_revision(context, revision, call)
