"""Proxies Read, Append and ListFragments to the broker that has the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from gazette_spark.broker.api.call import Resolved, ServedCall, ServiceContext
from gazette_spark.broker.api.flow_control import TICK_S
from gazette_spark.broker.api.message_pump import MessageSource, NoMessage
from gazette_spark.broker.replication.peers import PeerError
from gazette_spark.client._transport.channel import cancel, starting_call
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.tokens import Capability

_Request = TypeVar("_Request", pb.ReadRequest, pb.AppendRequest, pb.FragmentsRequest)


def proxy_read(
    context: ServiceContext, request: pb.ReadRequest, resolved: Resolved, call: ServedCall
) -> Iterator[pb.ReadResponse]:
    """Proxy a read and its answers. The read ends cleanly when this broker stops.

    Raises:
        PeerError: the other broker failed, or cannot be reached.
    """
    assert resolved.target is not None
    metadata = context.peers.metadata(Capability.READ, request.journal)
    stub = context.peers.stub(resolved.target)
    answers = stub.Read(_forwarded(request, resolved), metadata=metadata)
    # If the client leaves, the call to the other broker must end as well.
    call.wake_when_over(answers.cancel)
    try:
        yield from answers
    except grpc.RpcError as error:
        # Otherwise the failure is the cancellation above, and a stream that ends cleanly makes the client
        # continue elsewhere.
        if call.is_awaited() and not context.registry.stopped:
            raise PeerError.of(error) from None
    finally:
        cancel(answers)


def proxy_append(
    context: ServiceContext,
    request: pb.AppendRequest,
    resolved: Resolved,
    messages: MessageSource[pb.AppendRequest],
    call: ServedCall,
) -> pb.AppendResponse:
    """Proxy an append and its answer.

    Raises:
        PeerError: the primary failed, or cannot be reached.
    """
    assert resolved.target is not None
    metadata = context.peers.metadata(Capability.APPEND, request.journal)
    stub = context.peers.stub(resolved.target)
    # Messages are passed on as they arrive. This broker does not keep them, so it cannot retry; the client
    # does.
    forwarding = _Forwarding(_forwarded(request, resolved), messages)
    with starting_call():
        answer = stub.Append.future(forwarding.messages(), metadata=metadata)
    call.wake_when_over(answer.cancel)
    forwarding.cancel = answer.cancel
    try:
        response: pb.AppendResponse = _result(answer, "append")
    finally:
        # The primary may answer before the content has ended, for example with a refusal. Then no more
        # content is read.
        forwarding.is_over = True
    return response


def proxy_fragments(
    context: ServiceContext, request: pb.FragmentsRequest, resolved: Resolved, call: ServedCall
) -> pb.FragmentsResponse:
    """Proxy a listing of fragments.

    Raises:
        PeerError: the other broker failed, or cannot be reached.
    """
    assert resolved.target is not None
    metadata = context.peers.metadata(Capability.READ, request.journal)
    stub = context.peers.stub(resolved.target)
    with starting_call():
        answer = stub.ListFragments.future(_forwarded(request, resolved), metadata=metadata)
    call.wake_when_over(answer.cancel)
    response: pb.FragmentsResponse = _result(answer, "listing")
    return response


class _Forwarding:
    """The messages of an append, on their way from its client to the primary."""

    def __init__(self, first: pb.AppendRequest, messages: MessageSource[pb.AppendRequest]) -> None:
        self._first = first
        self._messages = messages
        self.is_over = False
        self.cancel: Callable[[], object] = lambda: None

    def messages(self) -> Iterator[pb.AppendRequest]:
        """Yield the messages, on gRPC's thread. A broken call must not look like a half-closed one."""
        yield self._first
        while not self.is_over:
            message = self._messages.take(TICK_S)
            if message is NoMessage.END:
                return
            if message is NoMessage.BROKEN:
                self.cancel()
                return
            if not isinstance(message, NoMessage):
                yield message


def _result(answer: Any, what: str) -> Any:  # noqa: ANN401 - a gRPC future, and the message it brings
    """Wait for another broker's answer."""
    try:
        return answer.result()
    except grpc.FutureCancelledError:
        raise PeerError(grpc.StatusCode.UNAVAILABLE, f"the {what} was cancelled") from None
    except grpc.RpcError as error:
        raise PeerError.of(error) from None


def _forwarded(request: _Request, resolved: Resolved) -> _Request:
    assert resolved.target is not None
    forwarded = type(request)()
    forwarded.CopyFrom(request)
    # The header names the route by which the other broker was chosen, and the process for which the call is
    # meant. That broker refuses a call for another process, and waits for the revision if it is behind.
    forwarded.header.CopyFrom(resolved.header)
    forwarded.header.process_id.CopyFrom(resolved.target.process_id)
    return forwarded
