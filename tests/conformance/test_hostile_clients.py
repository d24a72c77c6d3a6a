"""Four servers continue to serve others while one client keeps 200 connections stalled.

The client is at 127.0.0.2. Others are at 127.0.0.3, and at 127.0.0.1 where gRPC's client chooses the address.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gazette_spark import EmbeddedBroker
from gazette_spark.broker import GatewaySettings, ServerTls
from gazette_spark.consumer import ShardServer, shard_spec
from gazette_spark.consumer.client import ShardClient
from gazette_spark.lag.api import Api
from gazette_spark.lag.server import LagService
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import Wire, spec
from tests.rig.certificates import Certificates
from tests.rig.still_host import StillHost
from tests.unit.lag.test_api import CONFIG, NOW_MS, empty_monitor

HOSTILE, OTHER = "127.0.0.2", "127.0.0.3"
CONNECTIONS = 200
SOON_S = 8.0
"""Seconds below every time limit of the servers: a faster answer has not waited for a limit."""

JOURNAL, LARGE, SHARD = "hostile/journal", "hostile/large", "hostile-shard"


@dataclass(frozen=True)
class Server:
    address: tuple[str, int]
    serves: Callable[[], bool]
    """Check that the server still answers another client."""


@contextmanager
def gateway(root: Path) -> Iterator[Server]:
    with EmbeddedBroker(root, gateway=GatewaySettings()) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(JOURNAL))
        wire.append(JOURNAL, b"content")
        wire.create(spec(LARGE))
        for _ in range(8):
            wire.append(LARGE, bytes(3 << 20))  # More than the buffers of a connection's sockets.
        address = _address(broker.gateway_endpoint or "")
        yield Server(address, lambda: b"content" in _get(address, f"/{JOURNAL}", OTHER))


@contextmanager
def secure_gateway(root: Path) -> Iterator[Server]:
    made = Certificates(root / "certificates")
    tls = ServerTls(made.server.cert, made.server.key)
    with EmbeddedBroker(root / "broker", gateway=GatewaySettings(), tls=tls) as broker:
        address = _address(broker.gateway_endpoint or "")
        trusted = ssl.create_default_context(cafile=str(made.ca))
        yield Server(address, lambda: b"404 Not Found" in _get(address, "/no/such", OTHER, trusted))


@contextmanager
def lag(_root: Path) -> Iterator[Server]:
    logger = logging.getLogger("test_hostile_clients")
    api = Api(empty_monitor(), lambda: NOW_MS, "a-host", CONFIG, logger=logger)
    with LagService(api, [], listen="127.0.0.1:0") as service:
        address = _address(service.address)
        yield Server(address, lambda: b"GOOD" in _get(address, "/burrow/admin", OTHER))


@contextmanager
def broker(root: Path) -> Iterator[Server]:
    with EmbeddedBroker(root) as embedded, Wire(embedded.endpoint) as wire:
        wire.create(spec(JOURNAL))
        yield Server(_address(embedded.endpoint), lambda: wire.append(JOURNAL, b"x").status == pb.OK)


@contextmanager
def consumer(_root: Path) -> Iterator[Server]:
    with ShardServer() as served:
        served.start(StillHost(served.endpoint))
        with closing(ShardClient(served.endpoint, timeout_s=SOON_S)) as client:
            client.apply([pc.ApplyRequest.Change(upsert=shard_spec(SHARD, [JOURNAL]))])
            yield Server(_address(served.endpoint), lambda: JOURNAL in client.stat(SHARD).read_through)


def _address(endpoint: str) -> tuple[str, int]:
    parts = urlsplit(endpoint)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def _get(address: tuple[str, int], target: str, source: str, trusted: ssl.SSLContext | None = None) -> bytes:
    request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    with ExitStack() as closed:
        connection = closed.enter_context(socket.create_connection(address, SOON_S, (source, 0)))
        if trusted is not None:
            connection = closed.enter_context(trusted.wrap_socket(connection, server_hostname=address[0]))
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _call(path: bytes, message: bytes | None) -> bytes:
    """Return the bytes of a gRPC client's call, which half-closes only if there is a message."""

    def field(name: bytes, value: bytes) -> bytes:  # Literal, not indexed, without Huffman codes: RFC 7541.
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    # :method POST and :scheme http are in the static table.
    headers = b"\x83\x86" + field(b":path", path) + field(b":authority", b"localhost")
    headers += field(b"te", b"trailers") + field(b"content-type", b"application/grpc")
    data = b"" if message is None else _frame(0, 1, 1, b"\0" + len(message).to_bytes(4) + message)
    return PREFACE + _frame(4, 0, 0, b"") + _frame(1, 4, 1, headers) + data


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = b"HTTP/1.1\r\nHost: localhost\r\n"
STALLED = {
    "idle": b"",
    "half a line": b"GET /",
    "half a head": b"GET / " + HEAD + b"X: ",
    "half a body": b"POST /v3/admin/loglevel " + HEAD + b"Content-Length: 9\r\n\r\n{",
    "half a chunk": f"PUT /{JOURNAL} ".encode() + HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{",
    "answers not taken": (b"GET / " + HEAD + b"\r\n") * 50,
    "a long answer not taken": f"GET /{LARGE} ".encode() + HEAD + b"\r\n",
    "an answer that waits": f"GET /{JOURNAL}?offset=7&block=true ".encode() + HEAD + b"\r\n",
    "half a handshake": b"\x16\x03\x01\x02\x00\x01",
    "half a preface": PREFACE[:9],
    "no settings": PREFACE,
    "no headers": PREFACE + _frame(4, 0, 0, b""),
    "half of the headers": PREFACE + _frame(4, 0, 0, b"") + _frame(1, 0, 1, b"\x83"),
    "an append without a message": _call(b"/protocol.Journal/Append", None),
    "a read that waits": _call(
        b"/protocol.Journal/Read", pb.ReadRequest(journal=JOURNAL, block=True).SerializeToString()
    ),
    "a Stat without a message": _call(b"/consumer.Shard/Stat", None),
    "a Stat that waits": _call(
        b"/consumer.Shard/Stat", pc.StatRequest(shard=SHARD, read_through={JOURNAL: 9}).SerializeToString()
    ),
}
HTTP = ("idle", "half a line", "half a head", "half a body", "half a chunk")
GRPC = ("idle", "half a line", "half a preface", "no settings", "no headers", "half of the headers")


@pytest.mark.parametrize(
    ("serve", "behaviours"),
    [
        pytest.param(gateway, (*HTTP, "a long answer not taken", "an answer that waits"), id="gateway"),
        pytest.param(secure_gateway, ("idle", "half a handshake"), id="secure-gateway"),
        pytest.param(lag, (*HTTP, "answers not taken"), id="lag"),
        pytest.param(broker, (*GRPC, "an append without a message", "a read that waits"), id="broker"),
        pytest.param(consumer, (*GRPC, "a Stat without a message", "a Stat that waits"), id="consumer"),
    ],
)
def test_others_are_served(
    tmp_path: Path, serve: Callable[[Path], AbstractContextManager[Server]], behaviours: tuple[str, ...]
) -> None:
    with serve(tmp_path) as server:
        for behaviour in behaviours:
            with ExitStack() as held:
                for _ in range(CONNECTIONS):
                    _send_some(held.enter_context(_connected(server)), STALLED[behaviour])
                begun = time.monotonic()
                assert server.serves(), behaviour
                assert time.monotonic() - begun < SOON_S, behaviour


def _connected(server: Server) -> socket.socket:
    """Return a connection of the hostile client, with a small receive buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(SOON_S)
    connection.bind((HOSTILE, 0))
    connection.connect(server.address)
    return connection


def _send_some(connection: socket.socket, sent: bytes) -> None:
    """Send what the connection accepts; the server may have closed it already."""
    with suppress(ConnectionError):
        connection.send(sent)


@pytest.mark.parametrize("serve", [gateway, lag])
@pytest.mark.parametrize("behaviour", ["idle", "half a head"])
def test_the_client_itself_is_served(
    tmp_path: Path, serve: Callable[[Path], AbstractContextManager[Server]], behaviour: str
) -> None:
    """A connection without a request in progress gives way to a new one, also of the same client."""
    with serve(tmp_path) as server, ExitStack() as held:
        for _ in range(CONNECTIONS):
            _send_some(held.enter_context(_connected(server)), STALLED[behaviour])
        assert _get(server.address, "/", HOSTILE).startswith(b"HTTP/1.1 ")
