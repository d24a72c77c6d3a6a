"""The shared state of one broker's handlers, and the state of one gRPC call."""

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
from gazette_spark._server.topology import Member, Slots
from gazette_spark.broker.api.resolver import resolve_route
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
        """Return a header of now, with the route of a journal if one is meant."""
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
        """Have ``callback`` called when the call ends; False if it has ended."""


class Call:
    """One call, and its caller's claims."""

    def __init__(self, peer: Peer, claims: Claims, watch: CallWatch) -> None:
        self.claims = claims
        self._peer = peer
        self._watch = watch

    @property
    def is_expired(self) -> bool:
        """Whether the caller's token has ended, and the call with it."""
        return time.time() >= self.claims.expires_at

    def is_wanted(self) -> bool:
        """Whether the client still waits for an answer, and may have one."""
        return bool(self._peer.is_active()) and not self.is_expired

    def wake_when_over(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when the call ends, so that no wait outlives it."""
        if self.claims.expires_at < inf:
            self._when_ended(self._watch.watch(lambda: self.is_expired, wake))
        self._when_ended(wake)

    def _when_ended(self, callback: Callable[[], None]) -> None:
        if not self._peer.add_callback(callback):
            callback()


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
        """Whether the journal still has the members found, and this broker the replica."""
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
    """Find the broker that serves a call; the name may carry a ``;meta`` suffix.

    A journal the claims are not about is not found.

    Raises:
        JournalClosedError: this broker would, but it stops.
    """
    registry, bare = context.registry, bare_name(name)
    state = registry.keyspace.state
    entry = state.catalog.items.get(bare)
    spec = entry.spec if entry is not None and covers(claims, entry.spec) else None
    slots = state.slots.get(bare, ()) if spec is not None else ()
    local = registry.member
    found = resolve_route(spec, slots, local, need_primary=need_primary, may_proxy=may_proxy)
    header = context.identity.header(state.catalog.revision, found.route)
    if found.target is not None and found.target != local:
        return Resolved(found.status, header, slots, spec, target=found.target)
    journal = registry.get(bare) if found.target is not None else None
    if found.target is not None and journal is None:
        raise JournalClosedError
    return Resolved(found.status, header, slots, spec, journal)


def await_revision(context: ServiceContext, revision: int, call: Call) -> bool:
    """Wait until the broker knows the revision, as a request may ask; False if the client gave up."""
    registry = context.registry
    if registry.catalog.revision >= revision:
        return True
    call.wake_when_over(registry.wake)
    return registry.wait_for(lambda catalog: catalog.revision >= revision, call.is_wanted)


def await_request(context: ServiceContext, request: pb.ReadRequest | pb.AppendRequest, call: Call) -> bool:
    """Check a proxied request's header, and wait for the revision the request asks for.

    Raises:
        ProtocolError: another broker sent it here by mistake.
    """
    revision = request.min_etcd_revision
    if request.HasField("header"):
        context.identity.check_proxied(request.header)
        revision = max(revision, request.header.etcd.revision)
    return await_revision(context, revision, call)
