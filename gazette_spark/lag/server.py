"""Runs a monitor: polls its feeds, answers HTTP requests, and sends notices.

One thread polls, judges and notifies; another one serves. :mod:`gazette_spark.lag.api` decides the HTTP
answers; the socket and the clock are here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, Self, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gazette_spark._ledger.positions import now_ms as clock
from gazette_spark.errors import OptionError
from gazette_spark.lag.api import MAX_BODY_BYTES, PLAIN, Api, HttpAnswer, HttpRequest
from gazette_spark.lag.feeds import Feed, poll_all
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.notifier import Notifier
from gazette_spark.protocol.browser_guard import is_cross_site, is_own_host
from gazette_spark.protocol.connection_shares import ConnectionShares, client_of
from gazette_spark.protocol.http_framing import FramingError, RequestFraming

log = logging.getLogger("gazette_spark.lag")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUEST_TIMEOUT_S = 30
"""Maximum number of seconds for a request's head to arrive, then for its body, and then for sending the
answer. An idle connection is kept for the same time."""

MAX_HEAD_BYTES = 16_384
"""Maximum total size of a request's line and headers."""

MAX_CONNECTIONS = 256
"""Maximum number of connections."""

MAX_CLIENT_CONNECTIONS = 64
"""Maximum number of connections of one client. If all of them are busy with requests, the next one gets
status 503; otherwise an idle one is closed for it."""

STOP_TIMEOUT_S = 10

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class LagService:
    """Serves a monitor until it is closed. Use it as a context manager in one thread.

    Args:
        api: Answers requests.
        feeds: Feeds in the order of polling: write heads first, because a commit counts only if the head is
            known.
        listen: ``host:port``, with port 0 for any free port; see :attr:`address`.
        interval_s: Seconds between two rounds of polls.
        notifier: Gets each group's verdict after each round.
        interrupt: Ends a poll that waits for an answer when the service is closed, for example by closing the
            feeds' clients.

    Raises:
        OptionError: ``listen`` is malformed, or the address cannot be used.
    """

    def __init__(
        self,
        api: Api,
        feeds: Sequence[Feed],
        *,
        listen: str = "127.0.0.1:8000",
        interval_s: float = 10.0,
        notifier: Notifier | None = None,
        interrupt: Callable[[], None] | None = None,
    ) -> None:
        self._api = api
        self._feeds = feeds
        self._interval_s = interval_s
        self._notifier = notifier
        self._interrupt = interrupt
        host, port = parse_listen(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Bound here instead of by uvicorn, so that a port in use raises an error here, and port 0 is already
        # replaced by its number. The protocol is named because otherwise asyncio does not recognise TCP and
        # leaves Nagle's algorithm on, which costs 40 ms per answer.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            # From here on, clients that connect wait for an answer instead of being refused.
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise OptionError(
                "listen", repr(listen), f"an address that is free here ({error.strerror})"
            ) from error
        host, port = self._socket.getsockname()[:2]
        self.address = f"http://{host}:{port}" if ":" not in host else f"http://[{host}]:{port}"
        config = uvicorn.Config(
            # A server on a loopback address trusts all its clients. A web page may reach it if the page's
            # host name resolves to 127.0.0.1. The header Host then has that name.
            _application(api, only_local=ipaddress.ip_address(host).is_loopback),
            http=cast(
                "type[asyncio.Protocol]",
                partial(_BoundedHttp, ConnectionShares(MAX_CONNECTIONS, MAX_CLIENT_CONNECTIONS)),
            ),
            # WebSocket is not used, so its parser is not loaded.
            ws="none",
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=REQUEST_TIMEOUT_S,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
        self._server = uvicorn.Server(config)
        self._ended = threading.Event()
        self._failures: tuple[str, ...] = ()
        self._threads = (
            threading.Thread(target=self._server.run, args=([self._socket],), name="lag-http", daemon=True),
            threading.Thread(target=self._poll, name="lag-poll", daemon=True),
        )

    def __repr__(self) -> str:
        return f"LagService({self.address}, {self._api.monitor!r})"

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        # uvicorn checks this flag, and finishes the requests in progress.
        self._server.should_exit = True
        if self._interrupt is not None:
            self._interrupt()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)
        self._socket.close()

    def round(self) -> None:
        """Poll every feed once, and notify."""
        # One time for the whole round, so that the ages of all groups are measured at the same time.
        now_ms = clock()
        monitor: Monitor = self._api.monitor
        failures = tuple(poll_all(self._feeds, monitor, now_ms))
        if self._ended.is_set():
            return  # Polls that were interrupted say nothing about their feeds.
        for failure in failures:
            # A failure is logged when it begins, not in every round.
            if failure not in self._failures:
                log.warning("feed cannot be read, its last values are kept: %s", failure)
        self._failures = failures
        if self._notifier is not None:
            for group in monitor.groups():
                lag = monitor.lag(group, now_ms)
                self._notifier.observe(lag.verdict, now_ms, monitor.alarms.raised(lag))

    def _poll(self) -> None:
        while not self._ended.is_set():
            started = time.monotonic()
            try:
                self.round()
            except Exception:
                # Otherwise the thread would end unnoticed, and all verdicts would stay unchanged.
                log.exception("a round failed; the next one follows")
            # From start to start, so that slow polls do not lengthen the interval.
            self._ended.wait(max(0.0, started + self._interval_s - time.monotonic()))


class _BoundedHttp(H11Protocol):
    """uvicorn's HTTP protocol with limits on a client's connections, a request's time, and ambiguous framing.

    uvicorn only limits the connections of all clients together, so one client could take them all, and it
    waits forever for the rest of a request.
    """

    def __init__(self, shares: ConnectionShares[_BoundedHttp], *arguments: Any, **settings: Any) -> None:  # noqa: ANN401 - uvicorn's arguments
        super().__init__(*arguments, **settings)
        self._shares = shares
        self._framing = RequestFraming(MAX_HEAD_BYTES, allows_chunks=False)
        self._timer: asyncio.TimerHandle | None = None
        self._timed_cycle: object = self
        """The request of the current timer; None if it has not arrived."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Accept a connection if its client may have one more."""
        super().connection_made(transport)
        admission = self._shares.admit(self, client_of(self.client[0] if self.client else ""))
        if admission.evicted is not None:
            # Close the idle connection that makes room for the new one.
            admission.evicted.transport.abort()
        if admission.is_admitted:
            self._follow()
        else:
            transport.write(_BUSY)
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Pass on bytes if their request is well framed."""
        # These bytes were in transit when the connection was closed.
        if self.transport.is_closing():
            return
        try:
            self._framing.feed(data)
        except FramingError as error:
            if self._is_answering():
                self.transport.abort()  # The client would read a second answer as part of the first.
            else:
                self.send_400_response(str(error))
            return
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._shares.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _follow(self) -> None:
        """Update the client's share and the time limit for the current request."""
        answering = self._is_answering()
        self._shares.set_waiting(self, is_waiting=not answering or self.cycle.more_body)
        cycle = self.cycle if answering else None
        if cycle is self._timed_cycle:
            return  # Slowly arriving bytes do not restart the timer.
        if self._timer is not None:
            self._timer.cancel()
        # While an answer is due, the application answers 408 if the body takes too long.
        limit_s = REQUEST_TIMEOUT_S if cycle is None else 2 * REQUEST_TIMEOUT_S
        self._timed_cycle, self._timer = cycle, self.loop.call_later(limit_s, self.transport.abort)


def _application(api: Api, *, only_local: bool) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method = scope["method"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if only_local and not is_own_host(headers.get("host"), ()):
            await _send(send, HttpAnswer(421, PLAIN, b"this server answers to localhost only\n"))
            return
        # A form on another site can post without the user's knowledge. Reading is harmless, because browsers
        # hide the answer from that site.
        if method not in ("GET", "HEAD") and is_cross_site(headers):
            await _send(send, HttpAnswer(403, PLAIN, b"pages of other sites cannot change this server\n"))
            return
        body = b""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                while (message := await receive())["type"] == "http.request":
                    body += message.get("body", b"")
                    # Checked for each part, so that an endless body is not collected.
                    if len(body) > MAX_BODY_BYTES or not message.get("more_body"):
                        break
        except TimeoutError:
            await _send(send, HttpAnswer(408, PLAIN, b"the body did not arrive in time\n"))
            return
        if len(body) > MAX_BODY_BYTES:
            await _send(send, HttpAnswer(413, PLAIN, b"body too large\n"))
            return
        path = scope["raw_path"].decode("latin-1")
        request = HttpRequest(method, path, body, scope["query_string"].decode("latin-1"))
        # Another monitor may take seconds to answer, and other requests must not wait for it.
        is_slow = path.startswith("/gazette/v1/clusters/")
        await _send(send, await asyncio.to_thread(api.answer, request) if is_slow else api.answer(request))

    return application


async def _send(send: Send, answer: HttpAnswer) -> None:
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        *((name.encode(), value.encode()) for name, value in answer.headers),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def parse_listen(listen: str) -> tuple[str, int]:
    """Return the host and the port of an address such as ``127.0.0.1:8000``.

    Raises:
        OptionError: it has another form.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise OptionError("listen", repr(listen), "host:port such as 127.0.0.1:8000")
    return host.strip("[]"), int(port)
