"""The proxy passes bytes unchanged, and disturbs a connection exactly as configured."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics

DEADLINE_S = 10.0
TEXT = bytes(range(256)) * 400


class Echo:
    """A server that sends back what it receives, and closes when its client does."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._answer, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(DEADLINE_S)


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with closing(Echo()) as echo, TcpProxy(echo.address) as opened:
        yield opened


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE_S)


def receive(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes, fewer only at the end."""
    parts = []
    while size and (part := connection.recv(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def until_reset(proxy: TcpProxy, data: bytes) -> bytes:
    """Connect and send; return the bytes before the connection is reset. A clean end is a failure."""
    got = b""
    try:
        with connect(proxy) as connection:
            connection.sendall(data)
            while part := connection.recv(1 << 16):
                got += part
    except ConnectionResetError:
        return got
    raise AssertionError(f"a clean end after {len(got)} bytes")


def echoed(connection: socket.socket, data: bytes) -> bytes:
    """Send bytes from another thread; return what comes back until the end."""

    def send() -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    got = receive(connection, 1 << 30)
    sender.join(DEADLINE_S)
    return got


@pytest.mark.parametrize(
    "toxics",
    [
        pytest.param(CLEAN, id="clean"),
        pytest.param(Toxics(slice_bytes=701), id="in slices"),
        pytest.param(Toxics(latency_s=0.05), id="late"),
        pytest.param(Toxics(bytes_per_s=4e6), id="slow"),
    ],
)
@pytest.mark.parametrize("both", [False, True], ids=["to the client", "both ways"])
def test_bytes_pass_as_they_came(proxy: TcpProxy, toxics: Toxics, both: bool) -> None:
    proxy.to_client = toxics
    proxy.to_server = toxics if both else CLEAN
    with connect(proxy) as connection:
        assert echoed(connection, TEXT) == TEXT
    assert (proxy.bytes_to_client, proxy.bytes_to_server) == (len(TEXT), len(TEXT))


def test_latency_and_rate_take_their_time(proxy: TcpProxy) -> None:
    """Bytes never arrive early. Latency delays a transfer once instead of each slice."""
    proxy.to_client = Toxics(latency_s=0.1, slice_bytes=5_000, bytes_per_s=500_000)
    started = time.monotonic()
    with connect(proxy) as connection:
        assert echoed(connection, TEXT) == TEXT
    # The pause for the last slice comes after it.
    assert time.monotonic() - started > 0.1 + (len(TEXT) - 5_000) / 500_000


@pytest.mark.parametrize("limit", [0, 1, 1000, 65_537])
def test_a_reset_comes_after_exactly_so_many_bytes(proxy: TcpProxy, limit: int) -> None:
    """The bytes before the limit arrive, and the next event is ECONNRESET."""
    proxy.to_client = Toxics(limit_bytes=limit)
    assert until_reset(proxy, TEXT[: limit + 100] if limit else b"") == TEXT[:limit]


def test_a_reset_of_what_the_client_sends(proxy: TcpProxy) -> None:
    proxy.to_server = Toxics(limit_bytes=10)
    until_reset(proxy, TEXT[:20])
    assert proxy.bytes_to_server == 10


def test_a_close_is_no_reset(proxy: TcpProxy) -> None:
    proxy.to_client = Toxics(limit_bytes=5, at_limit="close")
    with connect(proxy) as connection:
        connection.sendall(b"0123456789")
        assert receive(connection, 100) == b"01234"


def test_silence_is_neither(proxy: TcpProxy) -> None:
    """A half-open connection delivers nothing and no end. Bytes sent meanwhile arrive afterwards."""
    proxy.to_client = Toxics(silent=True)
    with connect(proxy) as connection:
        connection.sendall(b"0123456789")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.to_client = CLEAN
        connection.settimeout(DEADLINE_S)
        assert receive(connection, 10) == b"0123456789"


def test_silence_at_a_limit(proxy: TcpProxy) -> None:
    proxy.to_client = Toxics(limit_bytes=5, at_limit="silence")
    with connect(proxy) as connection:
        connection.sendall(b"0123456789")
        assert receive(connection, 5) == b"01234"
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)


@pytest.mark.parametrize("reset", [True, False])
def test_open_connections_can_be_cut(proxy: TcpProxy, reset: bool) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        for each in (first, second):
            each.sendall(b"x")
            assert receive(each, 1) == b"x"
        assert proxy.open_connections == 2
        assert proxy.cut(reset=reset) == 2
        assert proxy.open_connections == 0
        for each in (first, second):
            if reset:
                with pytest.raises(ConnectionResetError):
                    each.recv(1)
            else:
                assert each.recv(1) == b""
    with connect(proxy) as third:
        assert echoed(third, TEXT) == TEXT


def test_a_connection_that_is_cut_before_it_is_served_is_closed() -> None:
    """Both sockets must be closed even if the connection's task was created but has not begun."""
    cut: list[socket.socket] = []
    closed = threading.Event()

    def cut_at_once() -> None:
        for connection, task in cutting._open.items():
            cut.extend((connection.client, connection.server))
            task.cancel()
            task.add_done_callback(lambda _: closed.set())

    def plan(_number: int) -> tuple[Toxics, Toxics]:
        # This runs just before the task is created, so the scheduled callback runs before the task.
        cutting._loop.call_soon(cut_at_once)
        return CLEAN, CLEAN

    with TcpProxy("127.0.0.1:9", plan) as cutting, socket.create_connection(("127.0.0.1", cutting.port)):
        assert closed.wait(DEADLINE_S)
        assert [each.fileno() for each in cut] == [-1, -1]


def test_down_and_up(proxy: TcpProxy) -> None:
    port = proxy.port
    with connect(proxy) as connection:
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"
        for _ in range(2):
            proxy.down()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    for _ in range(2):
        proxy.up()
    assert proxy.port == port
    with connect(proxy) as connection:
        assert echoed(connection, TEXT) == TEXT


def test_a_plan_gives_each_connection_its_own() -> None:
    limits = {0: 3, 2: 5}

    def plan(number: int) -> tuple[Toxics, Toxics] | None:
        return (Toxics(limit_bytes=limits[number], at_limit="close"), CLEAN) if number in limits else None

    with closing(Echo()) as echo, TcpProxy(f"http://{echo.address}", plan) as proxy:
        assert proxy.endpoint == f"http://127.0.0.1:{proxy.port}"
        got = []
        for _ in range(3):
            with connect(proxy) as connection:
                connection.sendall(b"0123456789")
                connection.shutdown(socket.SHUT_WR)
                got.append(receive(connection, 100))
        assert got == [b"012", b"0123456789", b"01234"]
        assert proxy.connections == 3


def test_nobody_upstream() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with TcpProxy(address) as proxy:
        assert until_reset(proxy, b"") == b""


@pytest.mark.parametrize("upstream", ["", "localhost", "127.0.0.1", "http://host"])
def test_an_upstream_without_a_port_is_refused(upstream: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        TcpProxy(upstream)


def test_negative_toxics_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Toxics(limit_bytes=-1)
