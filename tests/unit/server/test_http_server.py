"""Tests which bytes the HTTP server accepts as a request, and how it notices that a client has left."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._server import http_server as server
from gazette_spark._server.call_watch import CallWatch
from gazette_spark._server.http_server import Exchange, HttpPeer, is_connected, serve

DEADLINE_S = 10.0
HEAD = b"PUT /a HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked"


class Recorder:
    """A handler that answers each request with 200 and records the complete bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, exchange: Exchange) -> None:
        self.bodies.append(exchange.body(1 << 20))
        exchange.answer(HTTPStatus.OK)


@contextmanager
def served(recorder: Recorder) -> Iterator[socket.socket]:
    """Serve a connection until the client closes it; yield the client's end."""
    ours, theirs = socket.socketpair()

    def run() -> None:
        with ours:
            serve(ours, recorder)

    thread = threading.Thread(target=run)
    thread.start()
    with theirs:
        theirs.settimeout(DEADLINE_S)
        yield theirs
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def exchange_all(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    connection.shutdown(socket.SHUT_WR)
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize(
    ("framing", "sent", "body"),
    [
        pytest.param(b"Content-Length: 4", b"body", b"body", id="length"),
        pytest.param(b"Content-Length: 0", b"", b"", id="length-of-nothing"),
        pytest.param(b"X: y", b"", b"", id="no-body"),
        pytest.param(CHUNKED, b"2\r\nbo\r\n02\r\ndy\r\n0\r\n\r\n", b"body", id="chunks"),
        pytest.param(CHUNKED, b"4\r\nbody\r\n0\r\nA: b\r\n\r\n", b"body", id="trailers"),
    ],
)
def test_bodies_that_are_complete(framing: bytes, sent: bytes, body: bytes) -> None:
    recorder = Recorder()
    request = HEAD + framing + b"\r\n\r\n" + sent
    with served(recorder) as connection:
        assert exchange_all(connection, request * 2).count(b"HTTP/1.1 200 OK") == 2
    assert recorder.bodies == [body, body]


@pytest.mark.parametrize(
    ("framing", "sent"),
    [
        pytest.param(CHUNKED, b"-1\r\nlost\r\n0\r\n\r\n", id="negative-chunk"),
        pytest.param(CHUNKED, b"4\r\nlost\r\n\r\n\r\n", id="blank-size"),
        pytest.param(CHUNKED, b"4\r\nlost and more\r\n0\r\n\r\n", id="chunk-longer-than-said"),
        pytest.param(CHUNKED, b"4\r\nlost\r\n", id="no-last-chunk"),
        pytest.param(CHUNKED, b"4\r\nlost\r\n0\r\n", id="no-end-of-trailers"),
        pytest.param(CHUNKED, b"FFFFFFFFFFFFFFFF\r\nlost", id="part-of-a-chunk"),
        pytest.param(CHUNKED, b"4;" + b"x" * 90_000, id="endless-line"),
        pytest.param(b"Content-Length: 5", b"lost", id="a-byte-short"),
        pytest.param(b"Content-Length: 2000000", bytes(2_000_000), id="over-the-limit"),
        pytest.param(b"Content-Length: 4\r\nContent-Length: 5", b"lost!", id="two-lengths"),
        pytest.param(b"Content-Length: 4\r\n" + CHUNKED, b"4\r\nlost\r\n0\r\n\r\n", id="length-and-chunks"),
        pytest.param(b"Content-Length: -1", b"lost", id="negative-length"),
        pytest.param(b"Content-Length: " + b"9" * 5000, b"lost", id="length-of-5000-digits"),
        pytest.param(b"Transfer-Encoding: gzip, chunked", b"4\r\nlost\r\n0\r\n\r\n", id="another-coding"),
        pytest.param(b"No colon", b"", id="header-without-colon"),
        pytest.param(b"Host: other", b"", id="two-hosts"),
        pytest.param(b"X: " + b"x" * 90_000, b"", id="long-header"),
    ],
)
def test_bodies_that_are_not(framing: bytes, sent: bytes) -> None:
    recorder = Recorder()
    with served(recorder) as connection:
        answer = exchange_all(connection, HEAD + framing + b"\r\n\r\n" + sent)
    status = answer.split(b" ")[1]
    assert (answer.count(b"HTTP/1.1 "), status[:1] in (b"4", b"5")) == (1, True)
    assert recorder.bodies == []


def test_a_refused_head_request_has_no_body() -> None:
    with served(Recorder()) as connection:
        request = HEAD.replace(b"PUT", b"HEAD") + CHUNKED + b"\r\n\r\n-1\r\n"
        head, _, body = exchange_all(connection, request).partition(b"\r\n\r\n")
    assert (head.split(b" ")[1], body) == (b"400", b"")


PIECES = (
    HEAD,
    HEAD.replace(b"PUT", b"HEAD"),
    HEAD.replace(b"1.1", b"1.0"),
    HEAD.replace(b"1.1", b"1.9"),
    CHUNKED + b"\r\n",
    b"Content-Length: 4\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    b"\r\n",
    b"body",
    b"4\r\nbody\r\n",
    b"0\r\n\r\n",
    b"-1\r\n",
    b"\xff\x00",
)


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.booleans())
def test_no_request_is_more_than_the_server_can_refuse(pieces: list[bytes], reads: bool) -> None:
    handled = []

    def handle(exchange: Exchange) -> None:
        handled.append(exchange.body(1 << 20) if reads else b"")
        exchange.answer(HTTPStatus.OK, "text")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(pieces))
        theirs.shutdown(socket.SHUT_WR)
        serve(ours, handle)
        ours.shutdown(socket.SHUT_WR)
        answers = b"".join(iter(lambda: theirs.recv(1 << 16), b""))
    statuses = re.findall(rb"HTTP/1.1 ([2-5]\d\d) ", answers)
    assert statuses[: len(handled)] == [b"200"] * len(handled)
    assert len(statuses) - len(handled) in (0, 1)


def drip(connection: socket.socket) -> None:
    """Send a byte every 20 ms until the other side closes."""
    for _ in range(int(DEADLINE_S / 0.02)):
        connection.sendall(b"x")
        threading.Event().wait(0.02)


@pytest.mark.parametrize(
    "request_text", [HEAD, HEAD + b"Content-Length: 999\r\n\r\nbody"], ids=["head", "body"]
)
def test_a_request_that_drips_is_ended(monkeypatch: pytest.MonkeyPatch, request_text: bytes) -> None:
    """The deadlines cover the whole head and the whole body, not each byte."""
    monkeypatch.setattr(server, "IDLE_TIMEOUT_S", 0.2)
    recorder = Recorder()
    with served(recorder) as connection:
        connection.sendall(request_text)
        with pytest.raises(ConnectionError):
            drip(connection)
    assert recorder.bodies == []


def test_a_client_that_closes_is_gone() -> None:
    ours, theirs = socket.socketpair()
    assert is_connected(ours)
    theirs.close()
    assert not is_connected(ours)
    ours.close()
    assert not is_connected(ours)


def test_callbacks_when_a_client_leaves() -> None:
    ours, theirs = socket.socketpair()
    watch, left = CallWatch(tick_s=0.001), threading.Event()
    peer = HttpPeer(ours, watch)
    assert peer.is_active()
    assert peer.add_callback(left.set)
    theirs.close()
    assert left.wait(DEADLINE_S)
    assert not peer.is_active()
    left.clear()
    peer.end()
    assert left.is_set()
    watch.stop()
    ours.close()
