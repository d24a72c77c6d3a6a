"""The Replicate RPC: a replica applies its primary's messages, for as long as the route is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from gazette_spark._server.topology import same_route
from gazette_spark.broker.api.call import Call, Resolved, ServiceContext, await_revision, resolve
from gazette_spark.broker.journal import LiveJournal
from gazette_spark.broker.replication.rules import apply_request
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.requests import validate_replicate_request


def replicate(
    context: ServiceContext,
    requests: Iterator[pb.ReplicateRequest],
    call: Call,
    cancel: Callable[[], object],
) -> Iterator[pb.ReplicateResponse]:
    """Serve one primary's stream. ``cancel`` ends the call when the journal's route changes.

    Bytes that are staged and not committed when the stream ends, for whatever reason, are rolled back.

    Raises:
        ProtocolError: a message breaks a rule.
        JournalClosedError: the broker stops.
        OSError: the disk failed.
    """
    try:
        first = next(requests, None)
        if first is None:
            return
        _check_first(context, first)
        name = first.proposal.journal
        if not await_revision(context, first.header.etcd.revision, call):
            return
        while call.is_wanted():
            resolved = resolve(context, name, call.claims)
            status = resolved.status
            if status == pb.OK and not same_route(resolved.header.route, first.header.route):
                status = pb.WRONG_ROUTE
            if status != pb.OK or resolved.journal is None:
                yield pb.ReplicateResponse(status=pb.Status.Name(status), header=resolved.header)
                return
            with _turn(context, resolved, resolved.journal, call, cancel) as granted:
                if granted:
                    yield from _serve(resolved.journal, first, requests, resolved.header)
                    return
    except grpc.RpcError:
        return  # The primary is gone, or the route is: the stream was cut.


@contextmanager
def _turn(
    context: ServiceContext,
    resolved: Resolved,
    journal: LiveJournal,
    call: Call,
    cancel: Callable[[], object],
) -> Iterator[bool]:
    """Wait for the journal's turn and hold it; yield False if it is not this stream's any more."""

    def is_wanted() -> bool:
        return call.is_wanted() and resolved.is_current(context)

    call.wake_when_over(journal.wake)
    with journal.fair_lock.turn(is_wanted) as granted, journal.watch_route(cancel):
        yield granted and is_wanted()


def _check_first(context: ServiceContext, first: pb.ReplicateRequest) -> None:
    validate_replicate_request(first)
    if not first.HasField("header"):
        raise ProtocolError("ReplicateRequest", "expected first ReplicateRequest to have Header")
    if not first.HasField("proposal"):
        raise ProtocolError("ReplicateRequest", "expected first ReplicateRequest to have Proposal")
    context.identity.check_proxied(first.header)


def _serve(
    journal: LiveJournal,
    first: pb.ReplicateRequest,
    requests: Iterator[pb.ReplicateRequest],
    header: pb.Header,
) -> Iterator[pb.ReplicateResponse]:
    request: pb.ReplicateRequest | None = first
    is_greeted = False
    try:
        while request is not None:
            answer = apply_request(journal, request)
            if request.acknowledge:
                if not is_greeted:
                    answer.header.CopyFrom(header)
                    is_greeted = True
                yield answer
            elif answer.status != pb.OK:
                status = pb.Status.Name(answer.status)
                raise ProtocolError("ReplicateRequest", f"no ack requested but status is {status}")
            request = next(requests, None)
            if request is not None:
                validate_replicate_request(request)
    finally:
        journal.roll_back()
