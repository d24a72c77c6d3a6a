"""Implements the HTTP server of the gateway and of the fragment URLs, with threads and limits.

h11 parses the requests, after a check that refuses ambiguous ones (``http_framing``). This module has the
sockets, the threads and the limits: for connections, in total and per client (``connection_shares``), for the
size and time of a request's head, and for the time that a client neither sends nor receives. Each connection
has a thread.

A body is read when a handler requests it, and the handler sees whether all of it has arrived. An answer
before that ends the connection, so that no byte of a body is mistaken for the next request.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any, BinaryIO

import h11

from gazette_spark._server.call_watch import CallWatch
from gazette_spark.errors import GazetteError, OptionError
from gazette_spark.protocol.connection_shares import ConnectionShares, client_of
from gazette_spark.protocol.http_framing import FramingError, RequestFraming

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
"""Maximum number of connections."""

MAX_CLIENT_CONNECTIONS = 64
"""Maximum number of connections of one client. If all of them are busy with requests, the next one gets
status 503; otherwise an idle one is closed for it."""

IDLE_TIMEOUT_S = 30.0
"""Maximum time for a request's head, or in which a client neither sends nor receives, in seconds."""

MAX_HEAD_BYTES = 16 << 10
"""Maximum size of a request line with its headers, and of a line of a chunked body."""

MAX_TARGET_CHARS = 8 << 10
"""Maximum length of a path with its query."""

BODY_CHUNK_BYTES = 1 << 18
"""Number of bytes of a body to send at a time."""

LINGER_S = 1.0
"""Time for which the rest of a refused body is discarded, so that its client sees the answer, in seconds."""

MAX_PROBLEM_CHARS = 200
"""Maximum length of the text about a malformed request."""

STOP_GRACE_S = 1.0
"""Time for answers in progress to end when the server stops, in seconds."""

_RECEIVE_BYTES = 1 << 16
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_PLAIN = "text/plain; charset=utf-8"


@dataclass(eq=False)
class RequestError(GazetteError):
    """A request is refused, and answered with ``status``. The error does not leave the broker."""

    status: HTTPStatus
    problem: str

    def __str__(self) -> str:
        return self.problem


class Exchange:
    """One request, and the answer to it. Not thread-safe."""

    def __init__(
        self,
        connection: socket.socket,
        http: h11.Connection,
        framing: RequestFraming,
        request: h11.Request,
    ) -> None:
        target = request.target.decode("ascii")
        self.method = request.method.decode("ascii")
        self.path, _, self.query = target.partition("?")
        self.headers: Mapping[str, str] = {
            name.decode("ascii"): value.decode("latin-1") for name, value in request.headers
        }
        """Headers by lower-case name. If a name occurs several times, the last one counts."""
        self.connection = connection
        self._http = http
        self._framing = framing

    def __repr__(self) -> str:
        return f"Exchange({self.method} {self.path})"  # The query may contain a signature.

    def check(self) -> None:
        """Refuse requests that h11 accepts but this server does not.

        Raises:
            RequestError: the path is too long, or the version of HTTP is not supported.
        """
        target_chars, version = len(self.path) + len(self.query), self._http.their_http_version
        if target_chars > MAX_TARGET_CHARS:
            raise RequestError(HTTPStatus.REQUEST_URI_TOO_LONG, f"the path has {target_chars} characters")
        if version not in (b"1.0", b"1.1"):
            raise RequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.0 and HTTP/1.1 are served")

    # -- The body.

    def receive(self, timeout_s: float = IDLE_TIMEOUT_S) -> bytes | None:
        """Return more of the body; no bytes after its end, or None if none arrived in time.

        Raises:
            RequestError: the body is malformed, or ended early.
            OSError: the connection is broken.
        """
        # All of the body has arrived. In the state ERROR, the next event raises the reason.
        if self._http.their_state not in (h11.SEND_BODY, h11.ERROR):
            return b""
        event = _next_event(self.connection, self._http, self._framing, monotonic() + timeout_s)
        if isinstance(event, h11.Data):
            return bytes(event.data)
        return b"" if isinstance(event, h11.EndOfMessage) else None

    def body(self, limit: int) -> bytes:
        """Return the whole body.

        Raises:
            RequestError: the body is malformed, ended early, has more than ``limit`` bytes, or took too long.
            OSError: the connection is broken.
        """
        # The whole body has one deadline. Otherwise a client that occasionally sends a byte could occupy its
        # thread forever.
        deadline = monotonic() + IDLE_TIMEOUT_S
        body = b""
        while piece := self.receive(deadline - monotonic()):
            body += piece
            if len(body) > limit:
                status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                raise RequestError(status, f"the request has more than {limit} bytes")
        if piece is None:
            raise RequestError(HTTPStatus.REQUEST_TIMEOUT, f"no whole body in {IDLE_TIMEOUT_S:g} s")
        return body

    # -- The answer.

    def answer(self, status: HTTPStatus, text: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Send an answer of plain text."""
        body = f"{text}\n".encode() if text else b""
        plain = {} if status == HTTPStatus.NO_CONTENT else {"Content-Type": _PLAIN}
        length = {} if status == HTTPStatus.NO_CONTENT else {"Content-Length": str(len(body))}
        self.begin(status, {**plain, **(headers or {}), **length})
        if body and self.method != "HEAD":
            self.send(body)
        self.end()

    def begin(self, status: HTTPStatus, headers: Mapping[str, str]) -> None:
        """Send status and headers. Without Content-Length, the body may have any length."""
        # A browser must not interpret a journal's bytes as a page or a script.
        sent = [("X-Content-Type-Options", "nosniff"), *headers.items()]
        # To find out whether the complete body has arrived, discard the bytes that are available.
        if not self._http.they_are_waiting_for_100_continue:
            with contextlib.suppress(RequestError):
                while self.receive(timeout_s=0):
                    pass
        if self._http.their_state in (h11.SEND_BODY, h11.ERROR):
            sent.append(("Connection", "close"))
        # h11 takes only ASCII as text. The location of a fragment contains its journal's name, which may have
        # other letters. Gazette's gateway also sends them in UTF-8.
        encoded = [(name.encode(), value.encode()) for name, value in sent]
        self._send(h11.Response(status_code=status, reason=status.phrase, headers=encoded))

    def send(self, content: bytes) -> None:
        """Send a part of the body."""
        self._send(h11.Data(data=content))

    def send_file(self, file: BinaryIO, size: int) -> None:
        """Send the first ``size`` bytes of a file as the complete body."""
        if not size:
            return
        # h11 writes the framing around the body, and the kernel copies the file to the socket without Python.
        for part in self._http.send_with_data_passthrough(h11.Data(data=_Sized(size))) or []:  # type: ignore[arg-type]  # h11 only needs its length.
            if not isinstance(part, _Sized):
                self.connection.sendall(part)
            elif self.connection.sendfile(file, count=size) < size:
                raise ConnectionError("the file has become shorter")

    def end(self, trailers: Mapping[str, str] | None = None) -> None:
        """End the answer. A client of HTTP/1.0 gets no trailers."""
        # Trailers exist only in chunked bodies, and those only in HTTP/1.1.
        is_chunked = self._http.their_http_version == b"1.1" and self.method != "HEAD"
        self._send(h11.EndOfMessage(headers=list((trailers or {}).items()) if is_chunked else []))

    def _send(self, event: h11.Event) -> None:
        _send(self.connection, self._http, event)


class _Sized:
    """Represents bytes that are sent without h11."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def _send(connection: socket.socket, http: h11.Connection, event: h11.Event) -> None:
    connection.settimeout(IDLE_TIMEOUT_S)
    connection.sendall(http.send(event) or b"")


def _next_event(
    connection: socket.socket, http: h11.Connection, framing: RequestFraming, deadline: float
) -> Any:  # noqa: ANN401 - h11's events and its sentinels
    """Return h11's next event, or None at the deadline."""
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            if http.they_are_waiting_for_100_continue:
                _send(
                    connection, http, h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[])
                )
            left_s = deadline - monotonic()
            if left_s <= 0:
                return None
            connection.settimeout(left_s)
            try:
                received = connection.recv(_RECEIVE_BYTES)
            except TimeoutError:
                return None
            # Checked before h11, which accepts some requests that two parsers may interpret differently.
            framing.feed(received)
            http.receive_data(received)
    except FramingError as error:
        raise RequestError(HTTPStatus(error.status), str(error)) from None
    except h11.RemoteProtocolError as error:
        raise RequestError(HTTPStatus(error.error_status_hint), str(error)[:MAX_PROBLEM_CHARS]) from None
    return event


Handler = Callable[[Exchange], None]
"""Function that answers one request. A RequestError that it raises becomes the answer."""


def serve(
    connection: socket.socket, handle: Handler, set_waiting: Callable[..., None] = lambda **_state: None
) -> None:
    """Serve the requests of one connection, one after the other, until either side ends it.

    Args:
        connection: Connection of the client.
        handle: Answers each request.
        set_waiting: Called with ``is_waiting=False`` when a request has arrived, and with True after its
            answer.

    Raises:
        OSError: the client left, or received nothing for too long.
    """
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    framing = RequestFraming(MAX_HEAD_BYTES)
    while True:
        try:
            request = _next_event(connection, http, framing, monotonic() + IDLE_TIMEOUT_S)
            if not isinstance(request, h11.Request):
                break  # The client left, or sent nothing.
            set_waiting(is_waiting=False)
            exchange = Exchange(connection, http, framing, request)
            exchange.check()
            handle(exchange)
        except RequestError as error:
            # The answer has begun, so an error cannot be sent. The end of the connection shows the client
            # that the body is incomplete.
            if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                break
            _refuse(connection, http, error, has_body=framing.method != b"HEAD")
        if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
            break
        set_waiting(is_waiting=True)
        http.start_next_cycle()
    if framing.is_refused or http.their_state in (h11.SEND_BODY, h11.ERROR):
        # Discard what the client still sends, because closing the connection now could discard the answer.
        deadline = monotonic() + LINGER_S
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            while (left_s := deadline - monotonic()) > 0:
                connection.settimeout(left_s)
                if not connection.recv(_RECEIVE_BYTES):
                    return


def _refuse(connection: socket.socket, http: h11.Connection, error: RequestError, *, has_body: bool) -> None:
    # If the framing is wrong, h11 has not seen the request and does not know that HEAD has no body.
    body = f"{error}\n".encode() if has_body else b""
    headers = [("Content-Type", _PLAIN), ("Content-Length", str(len(body))), ("Connection", "close")]
    _send(
        connection, http, h11.Response(status_code=error.status, reason=error.status.phrase, headers=headers)
    )
    if has_body:
        _send(connection, http, h11.Data(data=body))
    _send(connection, http, h11.EndOfMessage())


def is_connected(connection: socket.socket) -> bool:
    """Return whether the other side is still connected."""
    poll = select.poll()
    try:
        poll.register(connection.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        return not poll.poll(0)
    except (OSError, ValueError):  # It was closed on this side in the meantime.
        return False


class HttpPeer:
    """The client of an HTTP request, as a :class:`~gazette_spark.broker.api.call.ServedCall` needs it."""

    def __init__(self, connection: socket.socket, watch: CallWatch) -> None:
        self._connection = connection
        self._watch = watch
        self._callbacks: list[Callable[[], None]] = []
        self._over = False

    def is_active(self) -> bool:
        """Return whether the client still waits for the answer."""
        return not self._over and is_connected(self._connection)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` when the client leaves, or at the end of the request."""
        self._callbacks += [self._watch.watch(lambda: not self.is_active(), callback), callback]
        return True

    def end(self) -> None:
        """End the request, and call the callbacks."""
        self._over = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class HttpServer:
    """A running HTTP server. Call ``start`` and ``stop`` once each."""

    def __init__(
        self,
        handler: Handler,
        host: str,
        port: int,
        *,
        option: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen, without serving yet.

        Raises:
            OptionError: the address is in use, or is not of this machine. The error names ``option``.
        """
        try:
            self._server = _Server((host, port), handler, tls)
        except OSError as error:
            expected = "a port nobody listens on, or 0 for any free one"
            raise OptionError(option, f"{host}:{port} ({error.strerror})", expected) from error
        bound_port = self._server.server_address[1]
        self.endpoint = f"{'https' if tls else 'http'}://{host}:{bound_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name=f"gazette-{option}", daemon=True
        )

    def __repr__(self) -> str:
        return f"HttpServer({self.endpoint})"

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self) -> None:
        """Refuse new connections, and end the open ones with their threads."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        # This ends the threads, each of which waits for its socket. `server_close` then joins them.
        self._server.drop_all()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = False  # They are joined by server_close.
    request_queue_size = 512  # A burst of connections is accepted, and then refused or evicted.

    def __init__(self, address: tuple[str, int], handler: Handler, tls: ssl.SSLContext | None) -> None:
        self._handler = handler
        self._tls = tls
        self._shares: ConnectionShares[socket.socket]
        self._shares = ConnectionShares(MAX_CONNECTIONS, MAX_CLIENT_CONNECTIONS)
        self._changed = threading.Condition()
        self._open: dict[socket.socket, socket.socket] = {}
        """The current socket of each accepted connection, which is a different one with TLS."""
        self._dropping = False
        super().__init__(address, socketserver.BaseRequestHandler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base's
        # This runs in the accepting thread, before the connection has a thread, so a flood of connections
        # uses no threads.
        admission = self._shares.admit(request, client_of(client_address[0]))
        if not admission.is_admitted:
            with contextlib.suppress(OSError):
                request.settimeout(0)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        try:
            with self._changed:
                self._open[request] = request
                if admission.evicted is not None and admission.evicted in self._open:
                    _shut_down(self._open[admission.evicted], socket.SHUT_RDWR)  # This ends its thread.
            super().process_request(request, client_address)
        except BaseException:  # No thread could be started.
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base's
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - the base's
        set_waiting = partial(self._shares.set_waiting, request)
        request.settimeout(IDLE_TIMEOUT_S)
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            self._enter(request, request)
            serve(request, self._handler, set_waiting)
            return
        # The connection is registered before the handshake, so that a client that does not complete the
        # handshake can also be evicted.
        with self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secure:
            self._enter(request, secure)
            secure.do_handshake()
            serve(secure, self._handler, set_waiting)

    def _enter(self, request: socket.socket, connection: socket.socket) -> None:
        with self._changed:
            # The connection was accepted while the server stopped, after the others were dropped.
            if self._dropping:
                raise ConnectionError("the server is stopping")
            self._open[request] = connection

    def _leave(self, request: socket.socket) -> None:
        self._shares.leave(request)
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - the base's
        # The client left, or did not use HTTP or TLS.
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.WARNING
        _log.log(level, "http_connection_failed client=%s", client_address, exc_info=True)

    def drop_all(self) -> None:
        """End connections: first idle ones and incomplete requests, then also those that still respond."""
        with self._changed:
            self._dropping = True
            # Shutting down only one direction ends waits for requests and bodies, but lets an answer that is
            # being sent finish.
            self._shut_down_all(socket.SHUT_RD)
            self._changed.wait_for(lambda: not self._open, STOP_GRACE_S)
            self._shut_down_all(socket.SHUT_RDWR)

    def _shut_down_all(self, how: int) -> None:
        for connection in self._open.values():
            _shut_down(connection, how)


def _shut_down(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, how)  # TLS's own method continues in plain text after SHUT_RD.
