"""The monitor's server limits what any client can make it keep."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from gazette_spark.errors import ClosedError
from gazette_spark.lag import server
from gazette_spark.lag.api import Api
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.server import LagService
from tests.unit.lag.test_api import CONFIG, NOW_MS, empty_monitor
from tests.waiting import wait_until


@contextmanager
def served() -> Iterator[LagService]:
    logger = logging.getLogger("test_server")
    api = Api(empty_monitor(), lambda: NOW_MS, "a-host", CONFIG, logger=logger)
    with LagService(api, [], listen="127.0.0.1:0") as service:
        yield service


class WaitingFeed:
    """A feed whose poll waits for an answer."""

    groups = ()

    def __init__(self) -> None:
        self.is_polled, self.is_closed = threading.Event(), threading.Event()

    def poll(self, _monitor: Monitor, _now_ms: int) -> None:
        self.is_polled.set()
        self.is_closed.wait()
        raise ClosedError("client", "it is closed")


def test_a_poll_that_waits_does_not_delay_the_end(caplog: pytest.LogCaptureFixture) -> None:
    feed = WaitingFeed()
    api = Api(empty_monitor(), lambda: NOW_MS, "a-host", CONFIG)
    with LagService(api, [feed], listen="127.0.0.1:0", interrupt=feed.is_closed.set):
        assert feed.is_polled.wait(30)
    assert not [thread for thread in threading.enumerate() if thread.name == "lag-poll"]
    assert not [record for record in caplog.records if "cannot be read" in record.getMessage()]


def connection(service: LagService) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(service.address.rpartition(":")[2])), timeout=30)


def rest(connected: socket.socket) -> bytes:
    found = b""
    try:
        while part := connected.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(
    "begin", [b"GET /", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "], ids=["line", "header"]
)
def test_an_endless_head_is_refused(begin: bytes) -> None:
    """A line or header without an end is refused near its limit instead of buffered."""
    sent = 0
    with served() as service, connection(service) as connected:
        connected.sendall(begin)
        try:
            while sent < 100 * 2**20:
                sent += connected.send(b"x" * 65536)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 16 * 2**20  # Socket buffers accept some bytes that are never read.


def test_a_head_beyond_its_limit_is_a_400() -> None:
    with served() as service, connection(service) as connected:
        connected.sendall(b"GET /" + b"x" * server.MAX_HEAD_BYTES)
        assert rest(connected).startswith(b"HTTP/1.1 400 ")


def test_the_connections_of_a_client_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CLIENT_CONNECTIONS", 3)
    with served() as service, ExitStack() as held:
        first, *_ = [held.enter_context(connection(service)) for _ in range(3)]
        assert httpx.get(service.address).status_code == 200
        assert rest(first) == b""


def test_a_client_that_takes_no_answer_is_refused_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CLIENT_CONNECTIONS", 3)
    answers = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000  # More than socket buffers accept.
    with served() as service:
        with ExitStack() as held:

            def is_full() -> bool:
                # The server may replace a connection between two answers, so open more than the limit.
                connected = held.enter_context(connection(service))
                connected.setblocking(False)
                with suppress(ConnectionError):
                    connected.send(answers)
                return status_of(service) == 503

            wait_until("all are being answered", is_full)
        wait_until("they are gone", lambda: status_of(service) == 200)


def status_of(service: LagService) -> int:
    """Return the status of an answer; 0 if a reset came first, as it may where a connection is refused."""
    try:
        return httpx.get(service.address).status_code
    except httpx.TransportError:
        return 0


def test_a_request_in_an_odd_framing_is_a_400() -> None:
    """A request with two lengths or with chunks is answered and closed, so nothing can be smuggled in."""
    head = b"POST /v3/admin/loglevel HTTP/1.1\r\nHost: localhost\r\n"
    for framing in (b"Content-Length: 4\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked"):
        with served() as service, connection(service) as connected:
            connected.sendall(head + framing + b"\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = rest(connected)
            assert (answer[:13], answer.count(b"HTTP/1.1 ")) == (b"HTTP/1.1 400 ", 1)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: local", b""),
        (b"GET /burrow/admin HTTP/1.1\r\nHost: localhost\r\n\r\nGET /", b"GOOD"),
        (b"POST /v3/admin/loglevel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b"408"),
    ],
    ids=["nothing", "half a head", "half of a second one", "half a body"],
)
def test_a_request_that_does_not_come_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, answer: bytes
) -> None:
    """A client cannot keep a connection by sending nothing or half a request."""
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.5)
    with served() as service, connection(service) as connected:
        connected.sendall(sent)
        assert answer in rest(connected)


def test_a_page_of_another_site_changes_nothing() -> None:
    """Browsers send the origin of a request. Other clients send none and are accepted."""
    with served() as service:
        address, body = f"{service.address}/v3/admin/loglevel", b'{"level":"error"}'
        before = httpx.get(address).json()["level"]
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert httpx.post(address, content=body, headers=headers).status_code == 403
            assert httpx.get(address).json()["level"] == before != "error"
        assert httpx.post(address, content=body, headers={"Host": "evil.example"}).status_code == 421
        assert httpx.post(address, content=body, headers={"Origin": service.address}).status_code == 200
        assert httpx.get(address).json()["level"] == "error"


def test_the_socket_is_known_to_be_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """If asyncio does not recognize the socket as TCP, Nagle's algorithm delays every answer by 40 ms."""
    passed: list[socket.socket] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda _server, sockets: passed.extend(sockets))
    with served():
        wait_until("uvicorn has the socket", lambda: bool(passed))
    assert [listener.proto for listener in passed] == [socket.IPPROTO_TCP]


def test_the_groups_of_another_cluster_are_passed_on() -> None:
    with served() as other:
        others = {"west": other.address, "gone": "http://127.0.0.1:9"}
        api = Api(empty_monitor(), lambda: NOW_MS, "a-host", CONFIG, other_clusters=others)
        with LagService(api, [], listen="127.0.0.1:0") as service:
            base = f"{service.address}/gazette/v1"
            assert httpx.get(f"{base}/groups").json()["other_clusters"] == ["west", "gone"]
            assert httpx.get(f"{base}/clusters/west/groups").json()["request"]["url"] == "/gazette/v1/groups"
            unknown = httpx.get(f"{base}/clusters/west/groups/a%2Fb?limit=1")
            assert (unknown.status_code, unknown.json()["request"]["url"]) == (
                404,
                "/gazette/v1/groups/a%2Fb",
            )
            gone = httpx.get(f"{base}/clusters/gone/groups")
            assert (gone.status_code, "cluster gone does not answer" in gone.json()["message"]) == (502, True)
            assert httpx.get(f"{base}/groups").status_code == 200
