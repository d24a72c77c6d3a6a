"""Makes the Etcd calls that members of a cluster need: ranges, transactions, watches and leases.

Calls go to one of several endpoints, and after a failure to the next one. A call that may be repeated is
tried at all endpoints within its time limit. A transaction is repeated only if it could not be sent: if its
answer is lost, it is unknown whether the transaction was made. Etcd loses proposals without an answer when
its leader changes.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import grpc

from gazette_spark.client._transport.channel import Connection
from gazette_spark.client._transport.credentials import TlsOptions
from gazette_spark.closing import Closing
from gazette_spark.errors import AuthError, BrokerError, GazetteError, OptionError, UnavailableError
from gazette_spark.protocol import etcd_pb2 as pe

# This is a quarter of the default lease, so several renewals fit into its time.
CALL_S = 5.0
"""Seconds that a call may take.

A watch without events checks after this time whether Etcd still serves it, and fails after twice the time.
"""

# One call for all keys of a large application would exceed the limit of a message, which is 16 MiB.
RANGE_KEYS = 2000
"""Maximum number of keys in one answer. If the answer is too large for a message, fewer are requested."""

# gRPC has no code for this: UNAVAILABLE also means that the connection broke after the request was sent.
_NOT_SENT = "failed to connect to all addresses"
"""Beginning of gRPC's text for a call without a connection."""

_STALE_TOKEN = ("invalid auth token", "revision of auth store is old")
"""Etcd's texts about a token that has expired, and about a JWT from before a change of users or roles."""

T = TypeVar("T")


class Lease(NamedTuple):
    """A lease that Etcd has granted."""

    id: int
    ttl_s: float


class _EtcdStub:
    """Etcd's calls on a channel, like those of a generated stub."""

    def __init__(self, channel: grpc.Channel) -> None:
        def method(make: Callable[..., Any], path: str, request: Any, response: Any) -> Any:  # noqa: ANN401
            return make(
                f"/etcdserverpb.{path}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )

        # This is written by hand, because a generated stub would have the package of our .proto in its paths.
        # That package differs from Etcd's: protobuf accepts each name only once in a process, and other Etcd
        # clients also register theirs (decision 0043).
        unary, both = channel.unary_unary, channel.stream_stream
        self.authenticate = method(
            unary, "Auth/Authenticate", pe.AuthenticateRequest, pe.AuthenticateResponse
        )
        self.range = method(unary, "KV/Range", pe.RangeRequest, pe.RangeResponse)
        self.txn = method(unary, "KV/Txn", pe.TxnRequest, pe.TxnResponse)
        self.grant = method(unary, "Lease/LeaseGrant", pe.LeaseGrantRequest, pe.LeaseGrantResponse)
        self.revoke = method(unary, "Lease/LeaseRevoke", pe.LeaseRevokeRequest, pe.LeaseRevokeResponse)
        self.keep_alive = method(
            both, "Lease/LeaseKeepAlive", pe.LeaseKeepAliveRequest, pe.LeaseKeepAliveResponse
        )
        self.watch = method(both, "Watch/Watch", pe.WatchRequest, pe.WatchResponse)


class EtcdClient(Closing):
    """Calls Etcd. Thread-safe."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        user: str = "",
        password: str = "",
        tls: TlsOptions | None = None,
        call_s: float = CALL_S,
    ) -> None:
        """Make a client without connecting.

        Args:
            endpoints: URLs of Etcd's members, such as ``http://127.0.0.1:2379``.
            user: Name of the user, if Etcd requires authentication.
            password: Password of the user.
            tls: Certificates of ``https`` endpoints.
            call_s: Seconds that a call may take.

        Raises:
            OptionError: there is no endpoint, or one is not a URL.
        """
        if not endpoints:
            raise OptionError("--etcd", "no address", "a URL such as http://localhost:2379")
        try:
            # Make one connection for each endpoint instead of one channel with several addresses: gRPC would
            # choose among these itself, and would stay with an endpoint that accepts connections but does not
            # answer.
            self._connections = [
                Connection(endpoint, connect_timeout_s=call_s, tls=tls, service="etcd")
                for endpoint in endpoints
            ]
        except OptionError as error:
            raise OptionError("--etcd", error.got, "a URL such as http://localhost:2379") from None
        self._user, self._password = user, password
        self._call_s = call_s
        self._lock = threading.Lock()
        # All calls share the choice of the endpoint, so one call that fails there also moves the others.
        self._at = 0
        """Index of the endpoint that is called."""
        self._token = ""
        # Threads without a token authenticate only once at an endpoint. One that hangs must not stop calls
        # to the others.
        self._authenticating = {connection: threading.Lock() for connection in self._connections}

    def __repr__(self) -> str:
        return f"EtcdClient({[connection.endpoint.text for connection in self._connections]})"

    def close(self) -> None:
        """Close all connections. Calls in progress fail."""
        for connection in self._connections:
            connection.close()

    def range(self, prefix: str) -> tuple[pe.ResponseHeader, list[pe.KeyValue]]:
        """Return all keys with a prefix, ascending, at the revision of the header."""
        # Read all pages at the revision of the first answer, so that the result is one state from which a
        # watch can continue.
        key, end = prefix.encode(), _end_of(prefix)
        header: pe.ResponseHeader | None = None
        kvs: list[pe.KeyValue] = []
        limit = RANGE_KEYS
        while True:
            revision = 0 if header is None else header.revision
            request = pe.RangeRequest(key=key, range_end=end, limit=limit, revision=revision)
            try:
                response = self._call(lambda stub: stub.range, request)
            except BrokerError as error:
                # A value may be as large as a request to Etcd, by default 1.5 MiB.
                if error.code != "RESOURCE_EXHAUSTED" or limit == 1:
                    raise
                limit = -(-limit // 8)
                continue
            header = header or response.header
            kvs += response.kvs
            if not response.more:
                return header, kvs
            # The next page begins at the smallest key after the last one.
            key = kvs[-1].key + b"\0"

    def get(self, *keys: str) -> list[pe.KeyValue | None]:
        """Return keys at one revision; None for keys that do not exist."""
        # Use a transaction, because all its reads are at one revision.
        operations = [pe.RequestOp(request_range=pe.RangeRequest(key=key.encode())) for key in keys]
        response = self._call(lambda stub: stub.txn, pe.TxnRequest(success=operations))
        ranges = [answer.response_range.kvs for answer in response.responses]
        return [kvs[0] if kvs else None for kvs in ranges]

    def txn(
        self,
        compare: Iterable[pe.Compare],
        success: Iterable[pe.RequestOp],
        failure: Iterable[pe.RequestOp] = (),
    ) -> pe.TxnResponse:
        """Make a transaction: ``success`` if all comparisons are true, otherwise ``failure``.

        Raises:
            UnavailableError: there was no answer. The transaction may have been made.
        """
        request = pe.TxnRequest(compare=compare, success=success, failure=failure)
        # If a transaction were made a second time, its own conditions would fail, and the caller would
        # mistake that for another client's change.
        response: pe.TxnResponse = self._call(lambda stub: stub.txn, request, repeats=False)
        return response

    def grant(self, ttl_s: int) -> Lease:
        """Return a new lease."""
        # This may be repeated: a lease whose answer was lost has no keys and ends by itself.
        response = self._call(lambda stub: stub.grant, pe.LeaseGrantRequest(TTL=ttl_s))
        return Lease(response.ID, float(response.TTL))

    def keep_alive(self, lease: int) -> float:
        """Renew a lease; return its remaining seconds, or 0 if it has expired."""

        def call(stub: _EtcdStub) -> Callable[..., list[pe.LeaseKeepAliveResponse]]:
            # Use a stream for each call, which ends at its deadline even if the connection is half-open.
            return lambda request, **options: list(stub.keep_alive(iter([request]), **options))

        responses = self._call(call, pe.LeaseKeepAliveRequest(ID=lease))
        # An endpoint that is stopping may end the stream without an answer, which does not mean that the
        # lease has ended.
        if not responses:
            raise _unavailable(repr(self), "it ended the renewal of a lease without an answer")
        return float(responses[0].TTL)

    def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys, unless it has ended."""
        try:
            self._call(lambda stub: stub.revoke, pe.LeaseRevokeRequest(ID=lease))
        except BrokerError as error:
            # This is also the answer to a repetition, if the first answer was lost.
            if error.code != "NOT_FOUND":
                raise

    def watch(self, prefix: str, revision: int, cancelled: threading.Event) -> Iterator[pe.WatchResponse]:
        """Yield the changes of keys with a prefix from a revision on, until ``cancelled`` is set.

        Responses without events show how far the watch has come.

        Raises:
            UnavailableError: Etcd no longer serves the watch, or has deleted changes after the revision. Read
                the keys again, and watch from there.
        """
        # Use one connection for the whole watch. A watch cannot move to another endpoint; the caller begins
        # another watch there, after the last revision.
        connection = self._connections[self._at]
        requests: queue.SimpleQueue[pe.WatchRequest | None] = queue.SimpleQueue()
        create = pe.WatchCreateRequest(
            key=prefix.encode(), range_end=_end_of(prefix), start_revision=revision, progress_notify=True
        )
        requests.put(pe.WatchRequest(create_request=create))
        # This thread writes it, and the thread of ping reads it.
        heard_s, ended = [time.monotonic()], threading.Event()

        def ping() -> None:
            # A half-open connection raises no error. So ping regularly, and end the watch if there is no
            # response or if another call has already found that this endpoint does not serve.
            while not (cancelled.wait(self._call_s) or ended.is_set()):
                if time.monotonic() - heard_s[0] > 2 * self._call_s:
                    break
                if self._connections[self._at] is not connection:
                    break
                requests.put(pe.WatchRequest(progress_request=pe.WatchProgressRequest()))
            call.cancel()

        try:
            metadata = self._metadata(connection, self._call_s)
            with connection.errors():
                call = connection.stub(_EtcdStub).watch(iter(requests.get, None), metadata=metadata)
                # Use a thread, because the loop below blocks in gRPC until an event comes, and a deadline
                # would end a healthy watch.
                threading.Thread(target=ping, name="etcd watch", daemon=True).start()
                for response in call:
                    heard_s[0] = time.monotonic()
                    # Etcd cancels a watch when its token becomes invalid; the next watch authenticates again.
                    # Etcd also cancels it if the revision is compacted, because the watch would miss changes.
                    if response.canceled:
                        self._forget_token(response.cancel_reason)
                        raise _unavailable(connection.endpoint.text, response.cancel_reason)
                    yield response
        except GazetteError as error:
            # Then ping has cancelled the call, whose error says nothing about the endpoint.
            if cancelled.is_set():
                return
            self._failed(connection)
            # Then ping has cancelled the call, too.
            if (silent_s := time.monotonic() - heard_s[0]) > 2 * self._call_s:
                problem = f"it has not answered for {silent_s:.0f} s, or this process was suspended"
                raise _unavailable(connection.endpoint.text, problem) from None
            # Servers that stop, and members without a leader, end watches without a specific code.
            if isinstance(error, BrokerError):
                raise _unavailable(error.endpoint, error.problem) from error
            raise
        finally:
            ended.set()
            # This ends the iterator of requests, and with it gRPC's thread that sends them.
            requests.put(None)

    def _call(
        self, method: Callable[[_EtcdStub], Callable[..., T]], request: object, *, repeats: bool = True
    ) -> Any:  # noqa: ANN401 - the response of the method
        """Make a call; if it ``repeats`` or was not sent, at one endpoint after the other within its time."""
        # The time limit is for the whole call, at any number of endpoints: a renewal has to end before the
        # lease does.
        until_s = time.monotonic() + self._call_s
        for attempt in itertools.count(1):
            connection = self._connections[self._at]
            # An endpoint that hangs must leave time for the others.
            began_s = time.monotonic()
            share_s = (until_s - began_s) / max(1, len(self._connections) + 1 - attempt)
            authenticated = False
            try:
                metadata = self._metadata(connection, share_s)
                authenticated = True
                timeout_s = max(0.1, began_s + share_s - time.monotonic())
                with connection.errors():
                    return method(connection.stub(_EtcdStub))(request, timeout=timeout_s, metadata=metadata)
            except UnavailableError as error:
                self._failed(connection)
                # All other calls may be made twice: reads change nothing, a renewal only lengthens a lease,
                # and a revoked lease stays revoked.
                may_repeat = repeats or not authenticated or error.problem.startswith(_NOT_SENT)
                if not may_repeat or attempt >= len(self._connections) or time.monotonic() >= until_s:
                    raise
            except (AuthError, BrokerError) as error:
                # Etcd refuses a call with a stale token before doing anything, so even a transaction may be
                # repeated. Repeat it only once: a new token that is refused is not stale.
                if self._forget_token(error.problem) and attempt == 1:
                    continue
                if isinstance(error, AuthError):
                    # This error text is about tokens of brokers; here, the user lacks a role.
                    problem = f"{error.problem}. Grant the user {self._user!r} these keys"
                    raise _refusal(error.endpoint, problem) from None
                raise
        raise AssertionError("unreachable")

    def _metadata(self, connection: Connection, timeout_s: float) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call; authenticate in the given time if there is no token."""
        # With this metadata, a member that has lost the others refuses calls that need a leader instead of
        # letting them wait.
        base = (("hasleader", "true"),)
        if not self._user:
            return base
        until_s = time.monotonic() + timeout_s
        authenticating = self._authenticating[connection]
        if not authenticating.acquire(timeout=max(0.1, timeout_s)):
            raise _unavailable(connection.endpoint.text, "no answer to another call that authenticates")
        try:
            token = self._token
            if not token:
                request = pe.AuthenticateRequest(name=self._user, password=self._password)
                left_s = max(0.1, until_s - time.monotonic())
                try:
                    with connection.errors():
                        stub = connection.stub(_EtcdStub)
                        token = stub.authenticate(request, timeout=left_s, metadata=base).token
                except (AuthError, BrokerError) as error:
                    expected = f"a user and a password that Etcd accepts: {error.problem}"
                    raise OptionError("--etcd-user", repr(self._user), expected) from None
                with self._lock:
                    self._token = token
            return *base, ("token", token)
        finally:
            authenticating.release()

    def _forget_token(self, problem: str) -> bool:
        """Forget the token if it was the problem, so that the next call authenticates again."""
        # Tokens expire after some minutes, and when users or roles change. The code alone does not
        # distinguish a stale token from a user without rights, so the text decides.
        if not self._user or not any(text in problem for text in _STALE_TOKEN):
            return False
        with self._lock:
            self._token = ""
        return True

    def _failed(self, connection: Connection) -> None:
        """Call another endpoint for all later calls."""
        with self._lock:
            # If several calls fail at one endpoint at the same time, only the first one moves on. Otherwise
            # two failures would lead back to the same endpoint.
            if self._connections[self._at] is connection:
                self._at = (self._at + 1) % len(self._connections)
                # Only the member that issued a simple token accepts it.
                self._token = ""


def _refusal(endpoint: str, problem: str) -> BrokerError:
    error = BrokerError(endpoint, "PERMISSION_DENIED", problem)
    # Then the message says "etcd" instead of "broker".
    error.service = "etcd"
    return error


def _unavailable(endpoint: str, problem: str) -> UnavailableError:
    error = UnavailableError(endpoint, problem)
    error.service = "etcd"
    return error


def _end_of(prefix: str) -> bytes:
    """Return the end of the range of all keys with a prefix, which does not end in the byte 255."""
    key = prefix.encode()
    return key[:-1] + bytes([key[-1] + 1])


def unchanged(key: str, mod_revision: int) -> pe.Compare:
    """Return the condition that a key was last changed at a revision; 0 if it must not exist."""
    return pe.Compare(target=pe.Compare.MOD, key=key.encode(), mod_revision=mod_revision)


def created_at(key: str, create_revision: int) -> pe.Compare:
    """Return the condition that a key was created at a revision; 0 if it must not exist."""
    return pe.Compare(target=pe.Compare.CREATE, key=key.encode(), create_revision=create_revision)


def none_created_after(prefix: str, revision: int) -> pe.Compare:
    """Return the condition that no key with a prefix was created after a revision."""
    return pe.Compare(
        result=pe.Compare.LESS,
        target=pe.Compare.CREATE,
        key=prefix.encode(),
        range_end=_end_of(prefix),
        create_revision=revision + 1,
    )


def put(key: str, value: bytes, lease: int = 0) -> pe.RequestOp:
    """Return the operation that writes a key. With a lease, the key ends with it."""
    return pe.RequestOp(request_put=pe.PutRequest(key=key.encode(), value=value, lease=lease))


def put_under_its_lease(key: str, value: bytes) -> pe.RequestOp:
    """Return the operation that writes an existing key and keeps its lease."""
    return pe.RequestOp(request_put=pe.PutRequest(key=key.encode(), value=value, ignore_lease=True))


def delete(key: str) -> pe.RequestOp:
    """Return the operation that deletes a key."""
    return pe.RequestOp(request_delete_range=pe.DeleteRangeRequest(key=key.encode()))
