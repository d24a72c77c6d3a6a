"""Makes, binds and ends gRPC servers with Gazette's limits, and shares their threads among calls."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from gazette_spark._server.tls import ServerTls
from gazette_spark.errors import OptionError
from gazette_spark.protocol.connection_shares import client_of_peer

MAX_REQUEST_BYTES = 4 << 20
"""Maximum size of a request, as in Gazette's broker."""

HANDSHAKE_TIMEOUT_MS = 10_000
"""Maximum milliseconds for a client's TLS and HTTP/2 handshakes, after which the connection is closed."""

KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS = 60_000, 20_000
"""Milliseconds of silence after which a client is pinged, and maximum milliseconds for its answer, after
which its calls end."""

MAX_STREAMS_PER_CONNECTION = 1024
"""Maximum number of open calls of a connection. gRPC's clients delay further calls."""

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # A port in use is refused, not shared.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
]


def new_server(
    pool: ThreadPoolExecutor, interceptors: Sequence[grpc.ServerInterceptor[Any, Any]] = ()
) -> grpc.Server:
    """Return a server that calls its handlers in the pool's threads."""
    return grpc.server(pool, options=_OPTIONS, interceptors=list(interceptors))


def bind_server(server: grpc.Server, host: str, port: int, tls: ServerTls | None) -> int:
    """Make a server listen, and return its port.

    Raises:
        OptionError: the address is in use, or is not an address of this machine.
    """
    address = f"{host}:{port}"
    try:
        if tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, tls.credentials()))
    except RuntimeError as error:
        expected = "a port nobody listens on, or 0 for any free one"
        raise OptionError("port", address, expected) from error


stop_at_exit: dict[object, Callable[[], object]] = {}
"""The function that stops each running server of this process, by server."""


def stop_servers() -> None:
    """Stop the servers that the program has not stopped."""
    while stop_at_exit:
        stop_at_exit.popitem()[1]()


# At its end, Python waits for the threads of all pools before functions of ``atexit`` run. A call that waits
# for an event keeps its thread, so a program that has not stopped its server would never end.
threading._register_atexit(stop_servers)  # type: ignore[attr-defined]  # There is no public function.
os.register_at_fork(after_in_child=stop_at_exit.clear)  # A child has none of the servers' threads.


class CallPlaces:
    """Limits the calls that occupy a thread, in total and for each client. Thread-safe.

    A client gets at most three quarters of the places, so a quarter is left for others if its calls stall.
    """

    def __init__(self, total: int, what: str) -> None:
        self._total = total
        self._per_client = max(1, total * 3 // 4)
        self._what = what
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"CallPlaces({self._held.total()} of {self._total} {self._what})"

    @contextmanager
    def hold(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Reserve a place for a call during the block. If none is free, the call ends with UNAVAILABLE."""
        client = client_of_peer(context.peer())
        with self._lock:
            # Checking and taking a place are one step, so that two calls never share the last one.
            is_free = self._held.total() < self._total and self._held[client] < self._per_client
            self._held[client] += is_free
        if not is_free:
            limits = (
                f"at most {self._total} {self._what} are served at a time, {self._per_client} of a client"
            )
            context.abort(grpc.StatusCode.UNAVAILABLE, f"{limits}; try again")
        try:
            yield
        finally:
            with self._lock:
                self._held[client] -= 1
                # Do not keep clients without calls, because their number grows without limit.
                if not self._held[client]:
                    del self._held[client]


def authorization_header(context: grpc.ServicerContext) -> str | None:
    """Return the value of a call's ``authorization`` header, if it has one."""
    for key, value in context.invocation_metadata():
        if key == "authorization":
            return value if isinstance(value, str) else value.decode(errors="replace")
    return None
