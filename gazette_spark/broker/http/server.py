"""The HTTP server under the gateway and the fragment URLs: small, threaded, and bounded.

It has limits for connections, for the wait for a silent client, and for the length of a request, which it
refuses unread. Each connection has a thread; blocked calls end when their client leaves.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from gazette_spark.broker.api.call_watch import CallWatch
from gazette_spark.errors import OptionError

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""Maximum connections at a time; the next one gets an error that says to retry later."""

IDLE_TIMEOUT_S = 30.0
"""A client that neither sends nor takes for this long is dropped."""

MAX_TARGET_CHARS = 8 << 10
"""Longest path with its query."""

BODY_CHUNK_BYTES = 1 << 18
"""Bytes of a body taken or sent at once."""

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class RequestHandler(BaseHTTPRequestHandler):
    """Base of the handlers: limits, plain answers, chunked bodies."""

    protocol_version = "HTTP/1.1"
    server_version = "gazette-spark"
    sys_version = ""
    timeout = IDLE_TIMEOUT_S
    unknown_method: ClassVar[HTTPStatus] = HTTPStatus.METHOD_NOT_ALLOWED
    """Answer to a method that nothing here serves."""

    def parse_request(self) -> bool:
        """Parse the request line and headers; refuse those that are too long."""
        if not super().parse_request():
            return False
        if self.request_version == "HTTP/0.9":
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        if len(self.path) > MAX_TARGET_CHARS:
            self.answer(HTTPStatus.REQUEST_URI_TOO_LONG, f"the path has {len(self.path)} characters")
            return False
        if self.command not in ("GET", "HEAD") or self.headers.get("Content-Length"):
            self.close_connection = True  # A body left unread must not be taken for the next request.
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that the standard library refuses."""
        if self.request_version == "HTTP/0.9":
            self.request_version = "HTTP/1.1"  # Else the answer would have no headers.
        status = self.unknown_method if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.answer(status, explain or message or status.phrase)

    def answer(self, status: HTTPStatus, text: str = "", headers: dict[str, str] | None = None) -> None:
        """Send an answer of plain text, and end the connection if it is an error."""
        body = f"{text}\n".encode() if text else b""
        if status >= HTTPStatus.BAD_REQUEST:
            self.close_connection = True
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if getattr(self, "command", None) != "HEAD" and status != HTTPStatus.NO_CONTENT:
            self.wfile.write(body)

    def begin_chunks(self) -> None:
        """End the headers of an answer whose length is not known."""
        if self.request_version == "HTTP/1.0":
            self.close_connection = True
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_chunk(self, content: bytes) -> None:
        """Send a part of the body; not empty."""
        if self.request_version == "HTTP/1.0":
            self.wfile.write(content)
        else:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def end_chunks(self, trailers: dict[str, str] | None = None) -> None:
        """End the body."""
        if self.request_version != "HTTP/1.0":
            lines = "".join(f"{name}: {value}\r\n" for name, value in (trailers or {}).items())
            self.wfile.write(f"0\r\n{lines}\r\n".encode("latin-1", "replace"))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the base's
        """Log nothing: a request line may hold a signature."""


def is_connected(connection: socket.socket) -> bool:
    """Whether the other side still listens."""
    poll = select.poll()
    try:
        poll.register(connection.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        return not poll.poll(0)
    except (OSError, ValueError):  # Closed on our side meanwhile.
        return False


class HttpPeer:
    """The client of an HTTP request, as a :class:`~gazette_spark.broker.api.call.Call` needs it."""

    def __init__(self, connection: socket.socket, watch: CallWatch) -> None:
        self._connection = connection
        self._watch = watch
        self._callbacks: list[Callable[[], None]] = []
        self._over = False

    def is_active(self) -> bool:
        """Whether the client is still there."""
        return not self._over and is_connected(self._connection)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have ``callback`` called when the client leaves, or the request is done."""
        self._callbacks += [self._watch.watch(lambda: not self.is_active(), callback), callback]
        return True

    def end(self) -> None:
        """The request is done."""
        self._over = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class HttpServer:
    """A running HTTP server. ``start`` and ``stop`` once each."""

    def __init__(
        self,
        handler: type[RequestHandler],
        host: str,
        port: int,
        *,
        option: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen, without serving yet.

        Raises:
            OptionError: the address is in use, or not this machine's; ``option`` is named.
        """
        try:
            self._server = _Server((host, port), handler, tls)
        except OSError as error:
            expected = "a port nobody listens on, or 0 for any free one"
            raise OptionError(option, f"{host}:{port} ({error.strerror})", expected) from error
        self.endpoint = f"{'https' if tls else 'http'}://{host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name=f"gazette-{option}", daemon=True
        )

    def __repr__(self) -> str:
        return f"HttpServer({self.endpoint})"

    def start(self) -> None:
        """Serve."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more connections, end those there are, and their threads."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.drop_all()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # They are joined by server_close.
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[RequestHandler], tls: ssl.SSLContext | None
    ) -> None:
        self._tls = tls
        self._places = threading.Semaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._dropping = False
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base's
        if not self._places.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(0)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        self._enter(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base's
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base's
        request.settimeout(IDLE_TIMEOUT_S)
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        with self._tls.wrap_socket(request, server_side=True) as secure:
            self._enter(secure)
            try:
                super().finish_request(secure, client_address)
            finally:
                self._leave(secure)

    def _enter(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
            if self._dropping:
                connection.close()

    def _leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - the base's
        # A client that left, spoke no HTTP, or no TLS.
        _log.debug("http_connection_failed client=%s", client_address, exc_info=True)

    def drop_all(self) -> None:
        with self._lock:
            self._dropping = True
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
