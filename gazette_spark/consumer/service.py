"""Serves ``consumer.Shard`` by gRPC: checks requests and claims, and calls the host.

==========  ===========  ==================================================================================
call        capability   of a caller whose claims do not cover a shard
==========  ===========  ==================================================================================
List        LIST         the shard is omitted
Stat        READ         SHARD_NOT_FOUND, as for a missing shard
GetHints    READ         SHARD_NOT_FOUND
Apply       APPLY        UNAUTHENTICATED, even if they cover the new spec; to delete a shard they must also
                         cover its id by itself
Unassign    APPLY        UNAUTHENTICATED; they must also cover the id by itself
==========  ===========  ==================================================================================

As in Gazette, a request is validated before claims are compared with its shards, and invalid requests are
answered with gRPC UNKNOWN and a bare text. If the primary of a shard is another member of a cluster, Stat is
passed on to that member, once and with the caller's token. Any member can answer all other calls.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Self

import grpc

from gazette_spark._server.authorizer import Authorizer, UnauthenticatedError
from gazette_spark._server.http_server import Exchange
from gazette_spark._server.serving import (
    CallPlaces,
    authorization_header,
    bind_server,
    new_server,
    stop_at_exit,
)
from gazette_spark._server.tls import ServerTls
from gazette_spark.client._transport.channel import Connection, cancel
from gazette_spark.client._transport.credentials import TlsOptions
from gazette_spark.client._transport.routes import IDLE_S
from gazette_spark.consumer.application import ResolveArgs, ShardHost
from gazette_spark.consumer.specs import (
    labels_with_id,
    validate_apply_request,
    validate_list_request,
    validate_unassign_request,
)
from gazette_spark.errors import ClosedError, GazetteError, UnavailableError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import consumer_pb2_grpc as pc_grpc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import ID, selector_matches
from gazette_spark.protocol.tokens import Capability, Claims, KeySet

THREADS = 256
"""Maximum number of concurrent calls."""

MAX_WAITING = 192
"""Maximum number of concurrent Stat calls, which may wait indefinitely. Other threads are left for other
calls."""

MAX_PATIENCE_S = 365 * 24 * 3600.0
"""Maximum seconds of a deadline. A later one counts as no deadline."""

PEER_CONNECT_S = 5.0
"""Seconds for connecting to another member."""

STOP_GRACE_S = 5.0
"""Seconds that calls in progress have to end when the server stops."""

_log = logging.getLogger(__name__)


class ShardService(pc_grpc.ShardServicer):
    """Serves ``consumer.Shard``. gRPC calls it from its pool's threads."""

    def __init__(self, host: ShardHost, authorizer: Authorizer, peer_tls: TlsOptions | None = None) -> None:
        self._host = host
        self._authorizer = authorizer
        self._peer_tls = peer_tls
        self._peers: dict[str, Connection] = {}
        """Connections to members that are primaries of other shards, by endpoint."""
        self._peers_lock = threading.Lock()
        self._calls = CallPlaces(THREADS, "calls")
        self._waiting = CallPlaces(MAX_WAITING, "Stat calls")

    def __repr__(self) -> str:
        return f"ShardService({self._host!r})"

    def Stat(self, request: pc.StatRequest, context: grpc.ServicerContext) -> pc.StatResponse:  # noqa: N802 - the wire's name
        """Wait until the offsets are read through, and return how far the shard has come."""
        with self._call(context, Capability.READ) as claims, self._waiting.hold(context):
            # Wait until the call's deadline or the end of its token. Without a deadline, gRPC returns a
            # number of seconds that is too large for any wait.
            limits_s = [context.time_remaining(), claims.expires_at - time.time()]
            remaining_s = min(limit_s for limit_s in limits_s if limit_s is not None)
            args = ResolveArgs(
                request.shard,
                may_see=lambda spec: _covers(claims, labels_with_id(spec)),
                # A member that has passed the request on sets a header, which happens only once; see the
                # module.
                may_proxy=not request.HasField("header"),
                proxy_header=request.header if request.HasField("header") else None,
                read_through=dict(request.read_through),
                timeout_s=None if remaining_s > MAX_PATIENCE_S else max(0.0, remaining_s),
                cancelled=_ended(context),
            )
            with self._host.resolve(args) as resolution:
                response = pc.StatResponse(status=resolution.status, header=resolution.header)
                if resolution.status == pc.OK and resolution.shard is None:
                    return self._stat_at_primary(request, resolution.header, args.timeout_s, context)
                if resolution.status == pc.OK and resolution.shard is not None:
                    progress = resolution.shard.progress()
                    response.read_through.update(progress.read_through)
                    response.publish_at.update(progress.publish_at)
                return response

    def _stat_at_primary(
        self,
        request: pc.StatRequest,
        header: pb.Header,
        timeout_s: float | None,
        context: grpc.ServicerContext,
    ) -> pc.StatResponse:
        """Pass a request on to the process that the header names, which is the primary in its route."""
        endpoint = header.route.endpoints[header.route.primary]
        with self._peers_lock:
            peer = self._peers.get(endpoint)
            # Keep connections to other members, because each one needs a handshake.
            if peer is None:
                tls = self._peer_tls if endpoint.startswith("https") else None
                peer = Connection(endpoint, connect_timeout_s=PEER_CONNECT_S, tls=tls, service="consumer")
                self._peers[endpoint] = peer
            others = [member for member in self._peers.values() if member is not peer]
        # No thread does this: members that have left are hung up when another is called.
        for member in others:
            member.hang_up(IDLE_S)
        passed_on = pc.StatRequest()
        passed_on.CopyFrom(request)
        # The header prevents that process from passing the request on again if it is no longer the primary.
        passed_on.header.CopyFrom(header)
        # Use the caller's own token: this member must not give its rights to a caller.
        token = authorization_header(context)
        metadata = () if token is None else (("authorization", token),)
        with peer.errors():
            call = peer.stub(pc_grpc.ShardStub).Stat.future(passed_on, timeout=timeout_s, metadata=metadata)
            # gRPC does not end this call with the caller's. If the offset never comes, both members would
            # keep a thread for a caller that has gone, and in the end accept no more Stat calls.
            if not context.add_callback(partial(cancel, call)):
                cancel(call)
            try:
                response: pc.StatResponse = call.result()
            except grpc.FutureCancelledError:
                raise UnavailableError(endpoint, "the caller has gone away") from None
        return response

    def close(self) -> None:
        """Close the connections to other members."""
        with self._peers_lock:
            for peer in self._peers.values():
                peer.close()

    def List(self, request: pc.ListRequest, context: grpc.ServicerContext) -> pc.ListResponse:  # noqa: N802 - the wire's name
        """Return the shards that the selector matches, ascending by id."""
        with self._call(context, Capability.LIST) as claims:
            validate_list_request(request)
            header, shards = self._host.list_shards()
            listed = [(item, labels_with_id(item.spec)) for item in shards]
            return pc.ListResponse(
                header=header,
                shards=[
                    shard
                    for shard, labels in listed
                    if selector_matches(request.selector, labels) and _covers(claims, labels)
                ],
            )

    def Apply(self, request: pc.ApplyRequest, context: grpc.ServicerContext) -> pc.ApplyResponse:  # noqa: N802 - the wire's name
        """Make all changes, or none."""
        with self._call(context, Capability.APPLY) as claims:
            validate_apply_request(request)
            present = self._labels()
            for change in request.changes:
                if change.HasField("upsert"):
                    # Gazette checks only the new labels, so a bearer could take any shard by giving it the
                    # labels of its claims.
                    _check_covered(claims, change.upsert.id, labels_with_id(change.upsert), present)
                else:
                    _check_covered(claims, change.delete, _id_alone(change.delete), present)
            return self._host.apply(request.changes)

    def GetHints(self, request: pc.GetHintsRequest, context: grpc.ServicerContext) -> pc.GetHintsResponse:  # noqa: N802 - the wire's name
        """Return the hints of a shard's recovery log."""
        with self._call(context, Capability.READ) as claims:
            header, shards = self._host.list_shards()
            specs = (shard.spec for shard in shards if shard.spec.id == request.shard)
            # Answer as for a missing shard, so that ids are not revealed.
            if not any(_covers(claims, labels_with_id(spec)) for spec in specs):
                return pc.GetHintsResponse(status=pc.SHARD_NOT_FOUND, header=header)
            return self._host.hints(request.shard)

    def Unassign(self, request: pc.UnassignRequest, context: grpc.ServicerContext) -> pc.UnassignResponse:  # noqa: N802 - the wire's name
        """End assignments of shards."""
        with self._call(context, Capability.APPLY) as claims:
            validate_unassign_request(request)
            present = self._labels()
            for shard_id in request.shards:
                _check_covered(claims, shard_id, _id_alone(shard_id), present)
            shard_ids = list(dict.fromkeys(request.shards))
            return self._host.unassign(shard_ids, only_failed=request.only_failed, dry_run=request.dry_run)

    def _labels(self) -> dict[str, pb.LabelSet]:
        """Return the labels of all shards, by id."""
        _, shards = self._host.list_shards()
        return {shard.spec.id: labels_with_id(shard.spec) for shard in shards}

    @contextmanager
    def _call(self, context: grpc.ServicerContext, needed: Capability) -> Iterator[Claims]:
        """Check the caller's token and share, and turn errors of the block into gRPC statuses."""
        try:
            claims = self._authorizer.authorize(authorization_header(context), needed)
            with self._calls.hold(context):
                yield claims
        except UnauthenticatedError as error:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except TimeoutError as error:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        except (ClosedError, UnavailableError) as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except (GazetteError, OSError) as error:
            _log.warning("call_failed error=%s", error)
            context.abort(grpc.StatusCode.UNKNOWN, str(error))


def _covers(claims: Claims, labels: pb.LabelSet) -> bool:
    return selector_matches(claims.selector, labels)


def _id_alone(shard_id: str) -> pb.LabelSet:
    return pb.LabelSet(labels=[pb.Label(name=ID, value=shard_id)])


def _check_covered(
    claims: Claims, shard_id: str, labels: pb.LabelSet, present: Mapping[str, pb.LabelSet]
) -> None:
    """Refuse a change of a shard if the claims do not cover its new labels or its current labels."""
    if not (_covers(claims, labels) and _covers(claims, present.get(shard_id, labels))):
        raise UnauthenticatedError(f"not authorized to {shard_id}")


def _ended(context: grpc.ServicerContext) -> Future[None]:
    """Return a future that ends with the call."""
    ended: Future[None] = Future()
    if not context.add_callback(lambda: ended.set_result(None)):
        ended.set_result(None)
    return ended


class MetricsPage:
    """Answers HTTP requests for metrics. They need no token, because metrics contain no data of messages."""

    def __init__(self, metrics: Callable[[], str]) -> None:
        self._metrics = metrics

    def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        if exchange.method in ("GET", "HEAD") and exchange.path == "/metrics":
            headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            exchange.answer(HTTPStatus.OK, self._metrics().rstrip("\n"), headers)
        else:
            exchange.answer(HTTPStatus.NOT_FOUND, "only GET /metrics is served")


class ShardServer:
    """Serves a host's shards by gRPC. A context manager, which any thread may stop.

    The address is bound in the constructor, because the host needs it; calls wait until :meth:`start`. Stop
    the host first, so that calls that wait for its shards end.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        address: str = "127.0.0.1",
        auth_keys: str | KeySet | None = None,
        tls: ServerTls | None = None,
        peer_tls: TlsOptions | None = None,
    ) -> None:
        """Bind the address.

        Args:
            port: port to listen on; 0 for any free one.
            address: address to listen on.
            auth_keys: keys with which bearer tokens are verified, in the form of ``CONSUMER_AUTH_KEYS``; None
                allows everything to every call.
            tls: certificate of the server; None for plain text.
            peer_tls: certificates for calls to other members of a cluster that use TLS.

        Raises:
            OptionError: the port is taken, or ``auth_keys`` is invalid.
        """
        keys = KeySet.parse(auth_keys, "auth_keys") if isinstance(auth_keys, str) else auth_keys
        self._authorizer = Authorizer(keys)
        self._peer_tls = peer_tls
        self._service: ShardService | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gazette-shards")
        self._server = new_server(self._pool)
        try:
            self.port = bind_server(self._server, address, port, tls)
        except BaseException:
            self._server.stop(None)
            raise
        self.endpoint = f"{'http' if tls is None else 'https'}://{address}:{self.port}"
        """Address that clients call."""

    def __repr__(self) -> str:
        return f"ShardServer({self.endpoint})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self, host: ShardHost) -> None:
        """Begin to answer calls. Call this once."""
        self._service = ShardService(host, self._authorizer, self._peer_tls)
        pc_grpc.add_ShardServicer_to_server(self._service, self._server)
        self._server.start()
        stop_at_exit[self] = self.stop

    def stop(self) -> None:
        """End every call. A second call does nothing."""
        self._server.stop(STOP_GRACE_S).wait()
        if self._service is not None:
            self._service.close()
        self._pool.shutdown(wait=False)
        stop_at_exit.pop(self, None)
