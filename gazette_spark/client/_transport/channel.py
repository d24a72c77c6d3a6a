"""Makes connections to one broker, and calls on them, and converts the errors of failed calls.

Each read leases a separate channel, and so a connection: the streams of an HTTP/2 connection share one
flow-control window, so a slow reader would starve all others. All other calls share one channel. Channels are
created at first use, never at import, because gRPC does not survive a fork and Spark forks its Python
workers.

Every call has a deadline. There is no HTTP/2 keep-alive, because Gazette's server disconnects clients that
ping more often than every five minutes. So the call's deadline detects a hung connection.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

import grpc
from grpc.experimental import ChannelOptions

from gazette_spark.client._transport.credentials import ANONYMOUS, Credentials, Metadata, TlsOptions
from gazette_spark.client._transport.tls_probe import (
    handshake_problem,
    is_closed_early,
    refusal,
    unverified_context,
)
from gazette_spark.errors import (
    AuthError,
    BrokerError,
    CallError,
    ClosedError,
    FlowControlError,
    GazetteError,
    OptionError,
    StatusError,
    TlsError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.tokens import LIFETIME_S, Claims

if TYPE_CHECKING:
    import httpx

MAX_RECEIVE_BYTES = 16 << 20
"""Maximum size of a broker's message, as in Gazette's own client."""

IDLE_CHANNELS = 4
"""Number of closed readers' channels that are kept for new readers. A new connection takes about 2 ms."""

DEFAULT_PORTS = {"http": 80, "https": 443}

NO_ANSWER = "no answer within the deadline"
"""Problem of a call that reached its deadline."""

CANCELLED = "the call was cancelled"
"""Prefix of the problem of a call that was cancelled, by the client or by a stopping broker."""

UNDERFLOW = "minimum append data rate"
"""Part of a broker's error about an append that is too slow."""

_NO_DETAILS = "no details"

S = TypeVar("S")
"""The stub class of a service."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a broker."""

    text: str
    """The URL as the caller wrote it: ``http://host:port``, ``https://host:port`` or ``unix://host/path``."""
    target: str
    """The target for gRPC."""
    secure: bool

    @property
    def host(self) -> str:
        """The broker's host without its port; this host for a socket file."""
        return urlsplit(self.text).hostname or "" if not self.target.startswith("unix:") else "localhost"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint of a URL.

        Raises:
            OptionError: the text is not such a URL.
        """
        try:
            url = urlsplit(text)
            port = url.port
        except ValueError:
            raise _bad_endpoint(text) from None
        # A URL with a password or a token in it would appear in logs and errors, as endpoints do.
        if url.username is not None or url.query or url.fragment or re.search(r"\s", text):
            raise _bad_endpoint(text)
        if url.scheme == "unix" and url.path:
            return cls(text, f"unix://{url.path}", secure=False)
        if url.scheme not in DEFAULT_PORTS or not url.hostname or url.path not in ("", "/"):
            raise _bad_endpoint(text)
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        return cls(text, f"{host}:{port or DEFAULT_PORTS[url.scheme]}", secure=url.scheme == "https")


def _bad_endpoint(text: str) -> OptionError:
    shown = re.sub(r"//[^/]*@", "//***@", text)
    return OptionError("brokerAddress", repr(shown), "a URL such as http://localhost:8080")


def rpc_error(
    endpoint: str, error: grpc.RpcError, masked: Callable[[str], str]
) -> AuthError | BrokerError | TlsError | UnavailableError:
    """Return the package's error for a failed call, with the text masked by ``masked``."""
    code: grpc.StatusCode = error.code()
    details = masked(error.details() or _NO_DETAILS)
    match code:
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return AuthError(endpoint, details)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnavailableError(endpoint, NO_ANSWER)
        case grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(endpoint, details)
        case grpc.StatusCode.CANCELLED:
            return UnavailableError(endpoint, f"{CANCELLED}: {details}")
        # Only the text distinguishes this failure from others. It has a separate error because a retry would
        # be just as slow.
        case grpc.StatusCode.UNKNOWN if UNDERFLOW in details:
            return FlowControlError(endpoint, code.name, details)
    return BrokerError(endpoint, code.name, details)


def is_no_answer(error: GazetteError | None) -> bool:
    """Return whether the call reached its deadline."""
    return isinstance(error, UnavailableError) and error.problem == NO_ANSWER


class Listener(Protocol):
    """Receives routes from the responses to calls on a connection."""

    def observe(self, item: str, source: pb.Header | pb.Route) -> None:
        """Record a header about an item (or about none if the name is empty), or a listed route."""

    def failed(self, connection: Connection) -> None:
        """Record that the broker could not be reached."""


@dataclass(slots=True)
class ConnectivityState:
    """Whether a cluster has ever answered, shared by all connections to it."""

    made: bool = False


class Connection:
    """Channels to one broker, and the state that all calls on them share. Thread-safe.

    Any service may be called: :meth:`stub` takes its generated stub, and :meth:`metadata` the claims of a
    call.

    ``contacted`` shows whether the cluster has ever answered. Until then a failure to connect is more likely
    a wrong address than a restart, and is retried only for ``connect_timeout_s``.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        connect_timeout_s: float,
        credentials: Credentials = ANONYMOUS,
        tls: TlsOptions | None = None,
        connectivity: ConnectivityState | None = None,
        listener: Listener | None = None,
        service: str = CallError.service,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = Endpoint.parse(endpoint)
        self._service = service
        if tls is not None and not self.endpoint.secure:
            raise OptionError("brokerAddress", f"{endpoint!r}, with certificates", "https://host:port")
        self.connect_timeout_s = connect_timeout_s
        self._connectivity = connectivity or ConnectivityState()
        self._listener = listener
        self._clock = clock
        self._calls = 0
        self._used_at = clock()
        self._credentials = credentials
        self._tls = tls
        self._refusal: str | None = None
        """Why the broker refuses connections, if TLS is the reason; None before the probe."""
        self._tried_at: float | None = None
        self.problem = ""
        """Why the last call could not reach the broker."""
        # The garbage collector may close a dropped reader in any thread, even in one that has the lock.
        self._lock = threading.RLock()
        # Channels wait here for the next reader, because making a connection costs more than a short read.
        self._idle: list[grpc.Channel] = []
        self._leased: dict[grpc.Channel, Callable[[], object] | None] = {}
        """Leased channels, and what cancels their calls. The references also keep the garbage collector from
        closing the channel of a collected reader."""
        self._shared: grpc.Channel | None = None
        self._stubs: dict[Callable[[grpc.Channel], Any], Any] = {}
        """Stubs of the shared channel by class. Creating one costs as much as a call."""
        self._http: httpx.Client | None = None
        self._closed = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"Connection({self.endpoint.text!r})"

    @property
    def contacted(self) -> bool:
        """Whether the broker, or another of its cluster, has ever answered."""
        return self._connectivity.made

    @contacted.setter
    def contacted(self, made: bool) -> None:
        self._connectivity.made = made

    @property
    def is_open(self) -> bool:
        """Whether there is a channel, regardless of whether the broker can be reached."""
        return self._shared is not None or bool(self._idle) or self._calls > 0

    def observe(self, item: str, source: pb.Header | pb.Route) -> None:
        """Pass a response's header or route about an item to the listener; an empty name means no item."""
        if self._listener is not None:
            self._listener.observe(item, source)

    def report(self, error: GazetteError, *, waits: bool = False) -> None:
        """Pass a call's failure to the listener if it means that the broker cannot be reached.

        A call that ``waits`` for an event may get no answer from a healthy broker.
        """
        if self._listener is None or not isinstance(error, UnavailableError):
            return
        if not (error.problem.startswith(CANCELLED) or (waits and error.problem == NO_ANSWER)):
            self._listener.failed(self)

    def metadata(self, claims: Claims | Callable[[], Claims], lifetime_s: float = LIFETIME_S) -> Metadata:
        """Return the metadata of one call with these claims. It is never reused for another call."""
        return self._credentials.metadata(claims, lifetime_s)

    def rpc_error(self, error: grpc.RpcError) -> GazetteError:
        """Return the package's error for a failed call, with tokens masked in its text."""
        # gRPC's texts may quote metadata, and with it a token.
        translated = rpc_error(self.endpoint.text, error, self._credentials.masked)
        # A broker that has answered before has valid certificates. Later failures are outages and are
        # retried.
        if isinstance(translated, UnavailableError) and not self.contacted:
            self.problem = translated.problem
            problem = handshake_problem(translated.problem)
            # A broker that closes connections refuses certificates, or requires TLS. The probe finds out
            # which. It makes another connection and may take seconds, so its result also counts for later
            # calls, until one of them succeeds.
            is_unix = self.endpoint.target.startswith("unix:")
            if not problem and is_closed_early(translated.problem) and not is_unix:
                if self._refusal is None:
                    context = unverified_context(self._tls.pair if self._tls else None)
                    self._refusal = refusal(self.endpoint.target, context, secure=self.endpoint.secure)
                problem = self._refusal
            translated = TlsError(self.endpoint.text, problem) if problem else translated
        translated.service = self._service
        return translated

    def patience_s(self, timeout_s: float) -> float:
        """Return the seconds for which to retry within ``timeout_s``."""
        return timeout_s if self.contacted else min(timeout_s, self.connect_timeout_s)

    @property
    def waits_s(self) -> float | None:
        """Return the seconds since the first call, 0 before it; None after an answer or after closing."""
        if self.contacted or self._closed:
            return None
        return 0.0 if self._tried_at is None else self._clock() - self._tried_at

    def touch(self) -> None:
        """Record that the connection is about to be used."""
        self._used_at = self._clock()

    def hold(self) -> None:
        """Keep channels open for a call, until :meth:`release`."""
        with self._lock:
            self._begin_call()

    def _begin_call(self) -> None:
        self._calls += 1
        if self._tried_at is None:
            self._tried_at = self._clock()

    def release(self) -> None:
        """End what :meth:`hold` began."""
        with self._lock:
            self._calls -= 1
            self.touch()

    def hang_up(self, idle_s: float) -> None:
        """Close the channels if no call has used them for ``idle_s``. The next call creates new ones."""
        with self._lock:
            # A stream in progress uses its channel however long it is silent.
            if self._calls or self._clock() - self._used_at < idle_s:
                return
            channels = self._take_channels()
        for channel in channels:
            channel.close()

    def stub(self, service: Callable[[grpc.Channel], S]) -> S:
        """Return a service's stub on the shared channel.

        Args:
            service: The stub's generated class, such as ``JournalStub``.
        """
        with self._lock:
            self._check_usable()
            self.touch()
            self._refresh_tls()
            if self._shared is None:
                self._shared = self._new_channel()
            stub: S | None = self._stubs.get(service)
            if stub is None:
                stub = self._stubs[service] = service(self._shared)
            return stub

    def lease(self) -> grpc.Channel:
        """Return a channel for this caller only. :meth:`give_back` returns it."""
        with self._lock:
            self._check_usable()
            self._refresh_tls()
            channel = self._idle.pop() if self._idle else self._new_channel()
            self._leased[channel] = None
            self._begin_call()
            return channel

    def cancel_on_close(self, channel: grpc.Channel, cancel: Callable[[], object]) -> None:
        """Call ``cancel``, which ends a leased channel's call, when this connection is closed."""
        with self._lock:
            self._leased[channel] = cancel
            is_closed = self._closed
        if is_closed:
            cancel()

    def give_back(self, channel: grpc.Channel, *, silent: bool = False) -> None:
        """Take back a leased channel without a call. If it is ``silent``, it got no answer and is closed."""
        self.release()
        with self._lock:
            self._leased.pop(channel, None)
            if not (silent or self._closed) and len(self._idle) < IDLE_CHANNELS:
                self._idle.append(channel)
                return
        # The lock is not held, because closing waits for gRPC's threads.
        channel.close()

    def distrust(self) -> None:
        """Make new calls use new channels: a call got no answer, and its connection may be half-open.

        Nothing else detects that: gRPC uses such a connection for as long as the kernel does. Calls in
        progress continue.
        """
        with self._lock:
            self._forget_channels()

    def _forget_channels(self) -> None:
        idle, self._idle = self._idle, []
        # The shared channel closes itself after its last call.
        self._shared, self._stubs = None, {}
        for channel in idle:
            channel.close()

    def _refresh_tls(self) -> None:
        """Make new calls use new channels if the files of certificates have changed."""
        if self._tls is not None and (fresh := self._tls.refreshed()) is not self._tls:
            if fresh.authorities != self._tls.authorities:
                # Responses in progress keep the old HTTP client, and with it the old authorities.
                self._http = None
            self._tls = fresh
            self._forget_channels()

    def http(self) -> httpx.Client:
        """Return the HTTP client that fetches fragments."""
        with self._lock:
            self._check_usable()
            self._refresh_tls()
            if self._http is None:
                # Imported here because most clients fetch nothing over HTTP, and Spark starts many workers.
                from gazette_spark.client._read.fragment_http import new_http

                self._http = new_http(self.connect_timeout_s, self._tls.authorities if self._tls else None)
            return self._http

    def close(self) -> None:
        """Close all channels. Calls in progress fail."""
        with self._lock:
            self._closed = True
            channels = self._take_channels()
            http, self._http = self._http, None
            # Copy it, because a cancelled call may give its channel back.
            leased = self._leased.copy()
        # Leased channels are closed when they are given back: closing them now would wait for their readers,
        # which may not be reading.
        for cancel_call in leased.values():
            if cancel_call is not None:
                cancel_call()
        for channel in channels:
            channel.close()
        if http is not None:
            http.close()

    def _take_channels(self) -> list[grpc.Channel]:
        channels = [*self._idle, *([self._shared] if self._shared else [])]
        self._idle, self._shared, self._stubs = [], None, {}
        return channels

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise gRPC's errors as the package's, and record whether the broker answered."""
        self.hold()
        try:
            with starting_call():
                yield
        except grpc.RpcError as error:
            translated = self.rpc_error(error)
            self.report(translated)
            if is_no_answer(translated):
                # The connection may be half-open, so the next call makes a new one.
                self.distrust()
            # A broker sent any other status of gRPC. A handshake that failed is not an answer: later calls
            # must also name its reason, instead of retrying until their deadline.
            if not isinstance(translated, UnavailableError | TlsError):
                self.contacted = True
            raise translated from None
        # The broker has answered, if only with a refusal.
        except StatusError:
            self.contacted = True
            raise
        else:
            self.contacted = True
        finally:
            self.release()

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError(f"client of {self.endpoint.text}", "it is closed")
        # gRPC does not survive a fork: a call on an inherited channel may never end.
        if os.getpid() != self._pid:
            problem = f"it belongs to process {self._pid}; make one in each process"
            raise ClosedError(f"client of {self.endpoint.text}", problem)

    def new_async_channel(self) -> grpc.aio.Channel:
        """Return a channel for the caller's event loop. The caller closes it."""
        with self._lock:
            self._check_usable()
            self.touch()
            self._refresh_tls()
        options, credentials = _channel_options(self.connect_timeout_s), self._channel_credentials()
        if credentials is not None:
            return grpc.aio.secure_channel(self.endpoint.target, credentials, options)
        return grpc.aio.insecure_channel(self.endpoint.target, options)

    def _new_channel(self) -> grpc.Channel:
        options, credentials = _channel_options(self.connect_timeout_s), self._channel_credentials()
        if credentials is not None:
            return grpc.secure_channel(self.endpoint.target, credentials, options)
        return grpc.insecure_channel(self.endpoint.target, options)

    def _channel_credentials(self) -> grpc.ChannelCredentials | None:
        return (self._tls or TlsOptions()).channel_credentials() if self.endpoint.secure else None


def _channel_options(connect_timeout_s: float) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
        ("grpc.max_send_message_length", MAX_RECEIVE_BYTES),
        # Streams are consumed on the calling thread, which reads a third more bytes per second than gRPC's
        # own thread. Windows and frames keep their defaults, because they adapt to the link.
        (ChannelOptions.SingleThreadedUnaryStream, 1),
        # Otherwise all channels of a process to one address would share a connection.
        ("grpc.use_local_subchannel_pool", 1),
        # As in Gazette's client, brokers are dialled directly, regardless of http_proxy.
        ("grpc.enable_http_proxy", 0),
        # This package decides about the back-off. A connection attempt ends at the connect deadline.
        ("grpc.min_reconnect_backoff_ms", max(1, int(connect_timeout_s * 1000))),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


@contextmanager
def starting_call() -> Iterator[None]:
    """Start a stream or a future, and end it if the machine starts no more threads.

    One thread of gRPC serves all such calls of a channel, and another one sends the messages of a stream. If
    the latter is missing, the call stays open until its deadline. If the former is missing, gRPC has counted
    the call and takes the thread for a running one: later calls, and the closing of the channel, would wait
    for it forever, regardless of deadlines. So this thread serves the call until it has ended.

    This uses private names of gRPC. A release without them would behave as described.
    """
    try:
        yield
    except RuntimeError as error:
        names: dict[str, Any] = {}
        for frame, _ in walk_tb(error.__traceback__):
            if frame.f_globals.get("__name__") == "grpc._channel":
                names |= frame.f_locals
        if (call := names.get("call")) is not None:
            call.cancel(grpc.StatusCode.CANCELLED.value[0], "no thread")
        if (serve := names.get("channel_spin")) is not None:
            serve()
        raise


def cancel(call: grpc.Call | None) -> None:
    """Cancel a call in any state."""
    if call is not None:
        # The channel may have been closed meanwhile.
        with suppress(ValueError, grpc.RpcError):
            call.cancel()  # type: ignore[no-untyped-call]  # grpc's stubs leave it out


def settle(call: grpc.Call | None) -> None:
    """End a call whose messages are no longer needed. For the thread that consumes them.

    gRPC keeps the connection of a cancelled stream until all its events have been consumed, even if the
    channel is closed. That is the task of the iterating thread, but iteration is not possible after a cancel.
    So this reads gRPC's own state through private names. A gRPC without these keeps the connection longer.
    """
    cancel(call)
    state, consume = getattr(call, "_state", None), getattr(call, "_consume_next_event", None)
    if consume is not None:
        while getattr(state, "due", None):
            consume()
