"""What the handlers of one broker share, and what each needs of its gRPC call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import grpc

from gazette_spark.broker.identity import BrokerIdentity
from gazette_spark.broker.journal import LiveJournal
from gazette_spark.broker.persister import Persister
from gazette_spark.broker.registry import JournalRegistry
from gazette_spark.protocol import protocol_pb2 as pb

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
    chunk_bytes: int

    def header(self, *, routed: bool = True) -> pb.Header:
        """Return a header of now."""
        return self.identity.header(self.registry.catalog.revision, routed=routed)


class Call:
    """One gRPC call."""

    def __init__(self, grpc_context: grpc.ServicerContext) -> None:
        self._context = grpc_context

    def is_wanted(self) -> bool:
        """Whether the client still waits for an answer."""
        return bool(self._context.is_active())

    def wake_when_over(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when the call ends, so that no wait outlives it."""
        if not self._context.add_callback(wake):
            wake()


@dataclass(frozen=True, slots=True)
class Resolved:
    """A journal by name, or the status that says why not."""

    status: int
    journal: LiveJournal | None


def resolve(context: ServiceContext, name: str) -> Resolved:
    """Find a journal; its name may carry a ``;meta`` suffix."""
    journal = context.registry.get(name.partition(";")[0])
    if journal is None:
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
