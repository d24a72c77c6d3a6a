"""Serves the Replicate RPC: a replica applies its primary's messages while the route is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from gazette_spark._server.topology import same_route
from gazette_spark.broker.api.call import Resolved, ServedCall, ServiceContext, await_revision, resolve
from gazette_spark.broker.journal import LiveJournal
from gazette_spark.broker.replication.rules import apply_request
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.requests import validate_replicate_request


def replicate(  # noqa: C901, PLR0912 - one stream, told in order
    context: ServiceContext,
    requests: Iterator[pb.ReplicateRequest],
    call: ServedCall,
    cancel: Callable[[], object],
) -> Iterator[pb.ReplicateResponse]:
    """Serve one primary's stream. ``cancel`` ends the call when the journal's route changes.

    Bytes that are staged but not committed when the stream ends, for any reason, are rolled back.

    Raises:
        ProtocolError: a message breaks a rule.
        JournalClosedError: the broker stops.
        OSError: the disk failed.
    """
    try:
        # The first message names the journal of the stream, the route, and the primary's position.
        request = first = next(requests, None)
        if first is None:
            return
        validate_replicate_request(first)
        if not first.HasField("header"):
            raise ProtocolError("ReplicateRequest", "expected first ReplicateRequest to have Header")
        if not first.HasField("proposal"):
            raise ProtocolError("ReplicateRequest", "expected first ReplicateRequest to have Proposal")
        context.identity.check_proxied(first.header)

        # The primary may have received the assignment before this broker.
        if not await_revision(context, first.header.etcd.revision, call):
            return
        # Like an append, the stream holds the journal's turn. Meanwhile neither another primary's stream, nor
        # an append from the time when this broker was the primary, may change the spool.
        while call.is_awaited():
            resolved = resolve(context, first.proposal.journal, call.claims)
            status, journal = resolved.status, resolved.journal
            # A primary under another route may have other replicas than the journal. Its commits must not be
            # acknowledged. The header shows it which route is newer.
            if status == pb.OK and not same_route(resolved.header.route, first.header.route):
                status = pb.WRONG_ROUTE
            if status != pb.OK or journal is None:
                yield pb.ReplicateResponse(status=pb.Status.Name(status), header=resolved.header)
                return
            # The stream of an earlier primary holds the turn until it ends. A change of the route cancels it,
            # so the wait is short.
            with _turn(context, resolved, journal, call, cancel) as granted:
                if not granted:
                    continue  # The route changed while the stream waited for its turn.
                is_greeted = False
                try:
                    while request is not None:
                        answer = apply_request(journal, request)
                        if request.acknowledge:
                            if not is_greeted:
                                answer.header.CopyFrom(resolved.header)
                                is_greeted = True
                            yield answer
                        elif answer.status != pb.OK:
                            # The primary does not read an answer to this message, so only the end of the
                            # stream can report the problem.
                            status_name = pb.Status.Name(answer.status)
                            text = f"no ack requested but status is {status_name}"
                            raise ProtocolError("ReplicateRequest", text)
                        # A primary keeps the stream open between appends, so the replica often waits here for
                        # long.
                        request = next(requests, None)
                        if request is not None:
                            validate_replicate_request(request)
                finally:
                    # The primary has gone, or now uses another stream. It will not commit the bytes that it
                    # staged on this one.
                    journal.roll_back()
                return
    except grpc.RpcError:
        return  # The primary has gone, or the route changed and the stream was cut.


@contextmanager
def _turn(
    context: ServiceContext,
    resolved: Resolved,
    journal: LiveJournal,
    call: ServedCall,
    cancel: Callable[[], object],
) -> Iterator[bool]:
    """Wait for the journal's turn and hold it; yield False if the route or the client has gone by then."""

    def is_valid() -> bool:
        return call.is_awaited() and resolved.is_current(context)

    call.wake_when_over(journal.wake)
    with journal.fair_lock.turn(is_valid) as granted, journal.watch_route(cancel):
        # Check again now that the route is watched: an earlier change has cancelled nothing.
        yield granted and is_valid()
