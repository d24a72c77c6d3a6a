"""Implements the gRPC service of the embedded broker: handlers, and the status of each error.

Gazette answers invalid requests and failures with gRPC UNKNOWN and a bare text, and so does this broker, so
that Go tools print the familiar messages.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import grpc

from gazette_spark._server.authorizer import UnauthenticatedError
from gazette_spark._server.serving import CallPlaces, authorization_header
from gazette_spark.broker.api.append import append
from gazette_spark.broker.api.call import ServedCall, ServiceContext
from gazette_spark.broker.api.fragments import list_fragments, store_health
from gazette_spark.broker.api.list_apply import apply_changes, list_journals
from gazette_spark.broker.api.message_pump import MessagePump
from gazette_spark.broker.api.read import read
from gazette_spark.broker.journal import JournalClosedError
from gazette_spark.broker.replication.peers import PeerError
from gazette_spark.broker.replication.pipeline import ReplicationError
from gazette_spark.broker.replication.replicate import replicate
from gazette_spark.errors import GazetteError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.tokens import Capability

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of problems that end when disk space is freed."""

_log = logging.getLogger(__name__)


class JournalService(pb_grpc.JournalServicer):
    """Serves ``protocol.Journal``. gRPC calls it from its pool's threads.

    Each call occupies a thread, and reads and watches may last indefinitely. At most ``max_streams`` of them
    run at a time. Others get an error that tells the client to retry later, so that threads are left for
    appends. Each client gets only a part of all threads and streams, so that others are also served.
    """

    def __init__(self, context: ServiceContext, threads: int, max_streams: int) -> None:
        self._service = context
        self._calls = CallPlaces(threads, "calls")
        self._streams = CallPlaces(max_streams, "reads and watches")

    def __repr__(self) -> str:
        return f"JournalService({self._service.identity.endpoint})"

    def List(self, request: pb.ListRequest, context: grpc.ServicerContext) -> Iterator[pb.ListResponse]:  # noqa: N802 - the wire's name
        """Serve List."""
        with self._call(context, Capability.LIST) as call, self._streams.hold(context):
            yield from list_journals(self._service, request, call)

    def Apply(self, request: pb.ApplyRequest, context: grpc.ServicerContext) -> pb.ApplyResponse:  # noqa: N802 - the wire's name
        """Serve Apply."""
        with self._call(context, Capability.APPLY) as call:
            return apply_changes(self._service, request, call)

    def Read(self, request: pb.ReadRequest, context: grpc.ServicerContext) -> Iterator[pb.ReadResponse]:  # noqa: N802 - the wire's name
        """Serve Read."""
        with self._call(context, Capability.READ) as call, self._streams.hold(context):
            yield from read(self._service, request, call)

    def Append(  # noqa: N802 - the wire's name
        self, request_iterator: Iterator[pb.AppendRequest], context: grpc.ServicerContext
    ) -> pb.AppendResponse:
        """Serve Append."""
        with self._call(context, Capability.APPEND) as call:
            return append(self._service, MessagePump(request_iterator, self._service.pumps), call)

    def Replicate(  # noqa: N802 - the wire's name
        self, request_iterator: Iterator[pb.ReplicateRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ReplicateResponse]:
        """Serve Replicate, which only a cluster's brokers call."""
        with self._call(context, Capability.REPLICATE) as call:
            if not self._service.has_peers:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "this broker has no peers")
            yield from replicate(self._service, request_iterator, call, context.cancel)

    def ListFragments(  # noqa: N802 - the wire's name
        self, request: pb.FragmentsRequest, context: grpc.ServicerContext
    ) -> pb.FragmentsResponse:
        """Serve ListFragments."""
        with self._call(context, Capability.READ) as call:
            return list_fragments(self._service, request, call)

    def FragmentStoreHealth(  # noqa: N802 - the wire's name
        self, request: pb.FragmentStoreHealthRequest, context: grpc.ServicerContext
    ) -> pb.FragmentStoreHealthResponse:
        """Serve FragmentStoreHealth."""
        with self._call(context, Capability.READ):
            return store_health(self._service, request, context)

    @contextmanager
    def _call(self, context: grpc.ServicerContext, needed: Capability) -> Iterator[ServedCall]:
        """Check the caller's token and share, and turn errors of the block into gRPC statuses."""
        try:
            claims = self._service.authorizer.authorize(authorization_header(context), needed)
            call = ServedCall(context, claims, self._service.watch)
            # Another broker replicates each journal by a long call, so it has no limit.
            place = nullcontext() if needed is Capability.REPLICATE else self._calls.hold(context)
            # The place is released when the answer has been sent, because a generator's block ends with its
            # last message.
            with place, _errors(context, call):
                yield call
        except UnauthenticatedError as error:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))


@contextmanager
def _errors(context: grpc.ServicerContext, call: ServedCall) -> Iterator[None]:
    """Turn errors into gRPC statuses."""
    try:
        yield
    except UnauthenticatedError:
        raise
    except GazetteError as error:
        # If the expiry ended a wait, the error is the same as at the end of the broker.
        if call.is_expired:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's token expired")
        if isinstance(error, PeerError):
            context.abort(error.code, error.details)
        # UNAVAILABLE makes clients retry, and means that the outcome is unknown.
        if isinstance(error, ReplicationError):
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        if isinstance(error, JournalClosedError):
            context.abort(grpc.StatusCode.UNAVAILABLE, "the broker is stopping")
        context.abort(grpc.StatusCode.UNKNOWN, str(error))
    except OSError as error:
        _log.warning("call_failed error=%s", error)
        if error.errno in FULL:
            text = f"broker storage is full: {error.strerror}; nothing was changed"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        context.abort(grpc.StatusCode.UNKNOWN, f"broker storage: {error}")
