"""A TCP proxy that breaks connections on purpose: for tests of network failures.

Each direction of a connection has its :class:`Toxics`. They may be changed while bytes flow, and set for each
connection, so a test can cut each one at another byte::

    with TcpProxy(broker.endpoint) as proxy:
        proxy.to_client = Toxics(limit_bytes=1000, at_limit="reset")
        Client(proxy.endpoint)  # Its connections are reset after the 1000th byte from the broker.

==============  ==================================================================================
fault           how
==============  ==================================================================================
slow            ``latency_s``, ``bytes_per_s``
in slices       ``slice_bytes``: each goes out as a separate packet
half-open       ``silent``: nothing arrives any more, without an error
cut             ``limit_bytes``: then ``reset`` (RST), ``close`` (FIN), or ``silence``
nobody there    ``down()``: the port refuses, connections are reset; ``up()`` ends it
==============  ==================================================================================

One thread runs an event loop for all connections. Every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

READ_BYTES = 1 << 16
"""Maximum bytes per read from a socket."""

PIPE_PIECES = 64
"""Maximum number of pieces in transit in one direction; more wait in the sender's socket."""

TICK_S = 0.01
"""Seconds between checks whether a silent direction is still silent."""

START_TIMEOUT_S = 10.0
"""Maximum seconds until the thread has started or ended."""

DELIVER_TIMEOUT_S = 1.0
"""Maximum seconds that a reset waits for the receiver's kernel to accept the bytes before it."""

_SIOCOUTQNSD = 0x894B
"""Linux ioctl that returns the number of unsent bytes of a socket."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Toxics:
    """Faults in the bytes of one direction, none by default."""

    latency_s: float = 0.0
    """Seconds by which each byte is delayed; later bytes do not wait for earlier ones."""
    bytes_per_s: float = 0.0
    """Maximum bytes per second; 0: unlimited."""
    slice_bytes: int = 0
    """Maximum bytes per send; 0: as received."""
    silent: bool = False
    """Whether nothing is sent while the connection stays open, which looks half-open to the receiver."""
    limit_bytes: int | None = None
    """Exact number of bytes that a connection forwards before ``at_limit``."""
    at_limit: Literal["reset", "close", "silence"] = "reset"

    def __post_init__(self) -> None:
        if min(self.latency_s, self.bytes_per_s, self.slice_bytes, self.limit_bytes or 0) < 0:
            raise ValueError(f"no number of {self} may be negative")


CLEAN = Toxics()
"""Toxics without faults."""

Plan = Callable[[int], tuple[Toxics, Toxics] | None]
"""Function from a connection's number, from 0, to its toxics to the client and to the server, or None."""


End = Literal["eof", "reset", "close"]
"""End of a direction: the sender has finished, or the connection is over."""


@dataclass(eq=False, slots=True)
class _Connection:
    """One client's connection, and the matching connection to the server."""

    client: socket.socket
    server: socket.socket
    own: tuple[Toxics, Toxics] | None
    """Toxics from the plan, to the client and to the server."""
    end: End = "reset"
    """How the direction ends when it is cut."""

    def close(self) -> None:
        for each in (self.client, self.server):
            if self.end == "reset":
                # Without lingering, close() sends RST and drops unsent bytes.
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            each.close()


class TcpProxy:
    """A proxy on a free port of the loopback device; a context manager.

    Args:
        upstream: server to connect to: ``host:port``, or a URL of them.
        plan: gives single connections separate toxics, in place of the proxy's.
    """

    def __init__(self, upstream: str, plan: Plan | None = None) -> None:
        parts = urlsplit(upstream if "//" in upstream else f"//{upstream}")
        if not parts.hostname or not parts.port:
            raise ValueError(f"expected host:port, such as 127.0.0.1:8080, got {upstream!r}")
        self._upstream = (parts.hostname, parts.port)
        self._scheme = parts.scheme or "http"
        self._plan = plan
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._open: dict[_Connection, asyncio.Task[None]] = {}
        self.to_client = CLEAN
        """Toxics of bytes from the server on connections without separate toxics; may be set at any time."""
        self.to_server = CLEAN
        """Toxics of bytes from the client on connections without separate toxics; may be set at any time."""
        self.port = 0
        self.connections = 0
        """Number of connections accepted so far."""
        self.bytes_to_client = 0
        """Bytes forwarded to clients so far, on all connections."""
        self.bytes_to_server = 0

    def __repr__(self) -> str:
        host, port = self._upstream
        return f"TcpProxy({self.port} -> {host}:{port}, open={len(self._open)})"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        """URL of the proxy, with the upstream's scheme."""
        return f"{self._scheme}://{self.address}"

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def __enter__(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_error: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()

    def down(self) -> None:
        """Refuse new connections and reset the open ones; return when that is complete."""
        self._run(self._stop())

    def up(self) -> None:
        """Listen again on the same port; does nothing if it is already listening."""
        self._run(self._start())

    def cut(self, *, reset: bool = True) -> int:
        """Close the open connections by RST or FIN; return how many there were."""
        return self._run(self._cut(reset=reset))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_TIMEOUT_S)

    async def _start(self) -> None:
        if self._listener is not None:
            return
        listener = socket.create_server(("127.0.0.1", self.port))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._listener = listener
        # sock_accept would not do: if it is cancelled, a connection it has just accepted stays open unseen.
        self._loop.add_reader(listener, self._accept, listener)

    async def _stop(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self._cut(reset=True)

    async def _cut(self, *, reset: bool) -> int:
        cut = dict(self._open)
        for connection in cut:
            connection.end = "reset" if reset else "close"
        await _ended(*cut.values())
        return len(cut)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # The client has disconnected.
            return
        server = socket.socket()
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, server, self._plan(self.connections) if self._plan else None)
        self.connections += 1
        task = self._open[connection] = self._loop.create_task(self._serve(connection))
        # The task cannot do this: if it is cancelled before it starts, it does nothing.
        task.add_done_callback(partial(self._close, connection))

    def _close(self, connection: _Connection, _served: asyncio.Task[None]) -> None:
        self._open.pop(connection, None)
        connection.close()

    async def _serve(self, connection: _Connection) -> None:
        """Forward bytes to a connection's end. On return, nothing waits on the sockets."""
        pumps: list[asyncio.Task[End]] = []
        try:
            await self._loop.sock_connect(connection.server, self._upstream)
            pumps += [self._loop.create_task(self._pump(connection, to_client=way)) for way in (True, False)]
            for next_end in asyncio.as_completed(pumps):
                connection.end = await next_end
                if connection.end != "eof":
                    return
        except OSError:
            connection.end = "reset"
        finally:
            await _ended(*pumps)

    def _toxics(self, connection: _Connection, *, to_client: bool) -> Toxics:
        if connection.own is not None:
            return connection.own[0 if to_client else 1]
        return self.to_client if to_client else self.to_server

    async def _pump(self, connection: _Connection, *, to_client: bool) -> End:
        """Forward one direction's bytes until it ends; return how it ended."""
        pipe: asyncio.Queue[_Piece] = asyncio.Queue(PIPE_PIECES)
        filling = self._loop.create_task(self._fill(pipe, connection, to_client=to_client))
        target = connection.client if to_client else connection.server
        try:
            end = await self._drain(pipe, target, connection, to_client=to_client)
            if end == "eof":
                target.shutdown(socket.SHUT_WR)
        except OSError:
            return "reset"
        finally:
            await _ended(filling)
        return end

    async def _fill(self, pipe: asyncio.Queue[_Piece], connection: _Connection, *, to_client: bool) -> None:
        """Put arriving bytes into the pipe, until the end."""
        source = connection.server if to_client else connection.client
        data: bytes | None = b"?"
        while data:
            try:
                data = await self._loop.sock_recv(source, READ_BYTES)
            except OSError:
                data = None
            due = self._loop.time() + self._toxics(connection, to_client=to_client).latency_s
            await pipe.put(_Piece(due, data))

    async def _drain(
        self, pipe: asyncio.Queue[_Piece], target: socket.socket, connection: _Connection, *, to_client: bool
    ) -> End:
        """Send the bytes in the pipe; return how the direction ended."""
        sent = 0
        rest = b""
        while True:
            toxics = self._toxics(connection, to_client=to_client)
            left = len(rest) if toxics.limit_bytes is None else toxics.limit_bytes - sent
            if left <= 0 and toxics.limit_bytes is not None:
                return await self._at_limit(toxics.at_limit, target)
            if toxics.silent:
                await asyncio.sleep(TICK_S)
            elif rest:
                size = min(len(rest), toxics.slice_bytes or len(rest), left)
                await self._loop.sock_sendall(target, rest[:size])
                rest = rest[size:]
                sent += size
                self._count(size, to_client=to_client)
                if toxics.bytes_per_s:
                    await asyncio.sleep(size / toxics.bytes_per_s)
            else:
                piece = await pipe.get()
                # Sleep even if the piece is due, so that the other pump gets its turn.
                await asyncio.sleep(max(piece.due - self._loop.time(), 0))
                if not piece.data:
                    return "reset" if piece.data is None else "eof"
                rest = piece.data

    async def _at_limit(self, how: Literal["reset", "close", "silence"], target: socket.socket) -> End:
        if how == "silence":
            await asyncio.Event().wait()
        # The kernel sends no event for this, so the proxy polls.
        deadline = self._loop.time() + DELIVER_TIMEOUT_S
        while how == "reset" and _undelivered(target) and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return "reset" if how == "reset" else "close"

    def _count(self, size: int, *, to_client: bool) -> None:
        if to_client:
            self.bytes_to_client += size
        else:
            self.bytes_to_server += size


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes in transit: ``b""`` is the sender's end, None a broken connection."""

    due: float
    data: bytes | None


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until none of them waits on a socket any more."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _undelivered(target: socket.socket) -> int:
    """Return how many bytes have not reached the other side's kernel; a reset would drop them."""
    try:
        answer = fcntl.ioctl(target, _SIOCOUTQNSD, bytes(4))
    except OSError:
        # On systems other than Linux, count those not acknowledged, which takes up to 40 ms longer.
        answer = fcntl.ioctl(target, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(answer, sys.byteorder)
