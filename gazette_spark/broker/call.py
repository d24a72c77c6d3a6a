"""What the handlers of one broker share, and what each needs of its gRPC call."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from math import inf
from typing import Protocol

from gazette_spark.broker.authorizer import Authorizer, covers
from gazette_spark.broker.call_watch import CallWatch
from gazette_spark.broker.fragment_urls import UrlOf, file_url
from gazette_spark.broker.identity import BrokerIdentity
from gazette_spark.broker.journal import LiveJournal
from gazette_spark.broker.persister import Persister
from gazette_spark.broker.registry import JournalRegistry
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.tokens import Claims

_FULL = pb.JournalSpec.Suspend.FULL


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
    url_of: UrlOf = file_url
    """Makes the URLs of stored fragments."""

    def header(self, *, routed: bool = True) -> pb.Header:
        """Return a header of now."""
        return self.identity.header(self.registry.catalog.revision, routed=routed)


class Peer(Protocol):
    """The other end of a call. gRPC's servicer context is one."""

    def is_active(self) -> bool:
        """Whether it still waits for an answer."""

    def add_callback(self, callback: Callable[[], None], /) -> bool:
        """Have ``callback`` called when the call ends; False if it has ended."""


class Call:
    """One call, and what its caller may do."""

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
    """A journal by name, or the status that says why not."""

    status: int
    journal: LiveJournal | None


def resolve(context: ServiceContext, name: str, claims: Claims) -> Resolved:
    """Find a journal; its name may carry a ``;meta`` suffix. One the claims are not about is not found."""
    journal = context.registry.get(name.partition(";")[0])
    if journal is None or not covers(claims, journal.spec):
        return Resolved(pb.JOURNAL_NOT_FOUND, None)
    if journal.spec.suspend.level == _FULL:
        return Resolved(pb.SUSPENDED, journal)
    return Resolved(pb.OK, journal)


def await_revision(context: ServiceContext, revision: int, call: Call) -> bool:
    """Wait until the broker knows the revision, as a request may ask; False if the client gave up."""
    registry = context.registry
    if registry.catalog.revision >= revision:
        return True
    call.wake_when_over(registry.wake)
    return registry.wait_for(lambda catalog: catalog.revision >= revision, call.is_wanted)
