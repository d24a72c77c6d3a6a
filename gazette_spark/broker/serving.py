"""gRPC servers as Gazette's: their limits, the address they listen on, the token of a call."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from gazette_spark.broker.tls import ServerTls
from gazette_spark.errors import OptionError

MAX_REQUEST_BYTES = 4 << 20
"""Gazette's own limit of a request's size."""

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # A port in use is refused, not shared.
]


def new_server(
    pool: ThreadPoolExecutor, interceptors: Sequence[grpc.ServerInterceptor[Any, Any]] = ()
) -> grpc.Server:
    """Return a server that calls its handlers in the pool's threads."""
    return grpc.server(pool, options=_OPTIONS, interceptors=list(interceptors))


def bind_server(server: grpc.Server, host: str, port: int, tls: ServerTls | None) -> int:
    """Have a server listen, and return the port.

    Raises:
        OptionError: somebody else listens there.
    """
    address = f"{host}:{port}"
    try:
        if tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, tls.credentials()))
    except RuntimeError as error:
        expected = "a port nobody listens on, or 0 for any free one"
        raise OptionError("port", address, expected) from error


@contextmanager
def placed(places: threading.Semaphore, context: grpc.ServicerContext, refusal: str) -> Iterator[None]:
    """Hold one of some places for calls; a call for which none is left has to try again."""
    if not places.acquire(blocking=False):
        context.abort(grpc.StatusCode.UNAVAILABLE, f"{refusal}; try again")
    try:
        yield
    finally:
        places.release()


def authorization_header(context: grpc.ServicerContext) -> str | None:
    """Return the value of a call's ``authorization`` header, if it has one."""
    for key, value in context.invocation_metadata():
        if key == "authorization":
            return value if isinstance(value, str) else value.decode(errors="replace")
    return None
