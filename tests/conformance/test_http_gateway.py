"""The HTTP gateway of both brokers: reads, appends, JSON, and refusals."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from google.protobuf import text_format

from gazette_spark import EmbeddedBroker
from gazette_spark.broker import GatewaySettings
from gazette_spark.client import Capability, Claims, KeySet, parse_selector
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import Wire, spec, wait_for
from tests.rig.brokers import BrokerHandle

TIMEOUT_S = 20.0
CHUNKED = "Transfer-Encoding: chunked"
RANGE_END = "9223372036854775807/9223372036854775807"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    trailers: dict[str, str]


def exchange(endpoint: str, request: bytes) -> bytes:
    parts = urlsplit(endpoint)
    with socket.create_connection((parts.hostname, parts.port), TIMEOUT_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def ask(endpoint: str, method: str, target: str, body: bytes = b"", *headers: str) -> Answer:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return parse(exchange(endpoint, "\r\n".join([*lines, "", ""]).encode() + body))


def parse(answer: bytes) -> Answer:
    head, _, rest = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(_header(line) for line in lines)
    body, trailers = rest, b""
    if rest and headers.get("transfer-encoding") == "chunked":
        body, trailers = dechunk(rest)
    trailer_lines = trailers.decode().strip().split("\r\n") if trailers.strip() else []
    return Answer(int(status.split()[1]), headers, body, dict(_header(line) for line in trailer_lines))


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()


def dechunk(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size_text, _, data = data.partition(b"\r\n")
        size = int(size_text, 16)
        if not size:
            return body, data
        body, data = body + data[:size], data[size + 2 :]


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)],
)
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a gateway; ``GRPC`` has its broker's."""
    if request.param == "deployed":
        handle: BrokerHandle = request.getfixturevalue("deployed_broker")
        GRPC[handle.endpoint] = handle.endpoint
        yield handle.endpoint
        return
    with EmbeddedBroker(tmp_path_factory.mktemp("gateway"), gateway=GatewaySettings()) as broker:
        assert broker.gateway_endpoint is not None
        GRPC[broker.gateway_endpoint] = broker.endpoint
        yield broker.gateway_endpoint


GRPC: dict[str, str] = {}


@pytest.fixture
def wire(gateway: str) -> Iterator[Wire]:
    with Wire(GRPC[gateway]) as opened:
        yield opened


@pytest.fixture
def journal(wire: Wire, journal_name: str) -> str:
    wire.create(spec(journal_name))
    wire.append(journal_name, b"0123456789")
    return journal_name


def test_get_reads_to_the_head(gateway: str, journal: str) -> None:
    answer = ask(gateway, "GET", f"/{journal}?offset=4")
    assert (answer.status, answer.body) == (HTTPStatus.PARTIAL_CONTENT, b"456789")
    assert answer.headers["content-range"] == f"bytes 4-{RANGE_END}"
    assert answer.headers["x-write-head"] == "10"
    assert answer.headers["x-fragment-name"].startswith("0000000000000000-000000000000000a-")
    assert "x-fragment-location" not in answer.headers
    assert answer.headers["location"].endswith(f"/{journal}")
    assert answer.trailers["x-close-error"] == "OFFSET_NOT_YET_AVAILABLE"


def test_the_route_is_protobuf_text(gateway: str, journal: str) -> None:
    token = ask(gateway, "HEAD", f"/{journal}").headers["x-route-token"]
    route = text_format.Parse(token, pb.Route())
    assert (len(route.members), route.primary) == (1, 0)


def test_head_has_no_body(gateway: str, journal: str) -> None:
    answer = ask(gateway, "HEAD", f"/{journal}?offset=3&block=false")
    assert (answer.status, answer.body) == (HTTPStatus.PARTIAL_CONTENT, b"")
    assert answer.headers["content-range"] == f"bytes 3-{RANGE_END}"


def test_a_stored_fragment_is_told(gateway: str, wire: Wire, journal: str) -> None:
    wire.append(journal, b"x")  # This closes the first fragment.
    wire.wait_persisted(journal, 1)
    answer = ask(gateway, "HEAD", f"/{journal}?offset=0")
    assert answer.headers["x-fragment-last-modified"].endswith("GMT")
    assert journal in answer.headers["x-fragment-location"]


def test_a_blocking_get_waits(gateway: str, wire: Wire, journal: str) -> None:
    parts = urlsplit(gateway)
    with socket.create_connection((parts.hostname, parts.port), TIMEOUT_S) as connection:
        connection.sendall(f"GET /{journal}?block=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        got = b""
        while b"0123456789" not in got:
            got += connection.recv(1 << 16)
        wire.append(journal, b"more")
        while b"more" not in got:
            got += connection.recv(1 << 16)


@pytest.mark.parametrize(
    ("offset", "status"),
    [pytest.param(10, 416, id="at-head"), pytest.param(-1, 416, id="head"), pytest.param(99, 416, id="past")],
)
def test_nothing_to_read_yet(gateway: str, journal: str, offset: int, status: int) -> None:
    answer = ask(gateway, "GET", f"/{journal}?offset={offset}")
    assert answer.status == status
    assert answer.headers["x-write-head"] == "10"
    assert b"OFFSET_NOT_YET_AVAILABLE" in answer.body


def test_an_unknown_journal(gateway: str, journal_name: str) -> None:
    answer = ask(gateway, "GET", f"/{journal_name}")
    assert (answer.status, answer.body.strip()) == (404, b"JOURNAL_NOT_FOUND")
    answer = ask(gateway, "PUT", f"/{journal_name}", b"x")
    assert (answer.status, answer.body.strip()) == (500, b"JOURNAL_NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "query"),
    [
        pytest.param("GET", "?offset=abc", id="offset-no-number"),
        pytest.param("GET", "?offset=-2", id="offset-below-the-head"),
        pytest.param("GET", "?block=perhaps", id="block-no-bool"),
        pytest.param("GET", "?other=1", id="unknown-argument"),
        pytest.param("DELETE", "", id="delete"),
        pytest.param("PUT", "?offset=1", id="append-with-argument"),
    ],
)
def test_bad_requests(gateway: str, journal: str, method: str, query: str) -> None:
    assert ask(gateway, method, f"/{journal}{query}").status == HTTPStatus.BAD_REQUEST


def test_put_appends(gateway: str, wire: Wire, journal: str) -> None:
    body = b"appended" * 100_000
    answer = ask(gateway, "PUT", f"/{journal}", body)
    assert (answer.status, answer.body) == (HTTPStatus.NO_CONTENT, b"")
    told = {name: answer.headers[f"x-{name}"] for name in ("commit-begin", "commit-end", "write-head")}
    end = str(10 + len(body))
    assert told == {"commit-begin": "10", "commit-end": end, "write-head": end}
    assert answer.headers["x-commit-sha1-sum"] == hashlib.sha1(body, usedforsecurity=False).hexdigest()
    assert answer.headers["location"].endswith(f"/{journal}")
    assert wire.content(journal, offset=10) == body


def test_put_takes_chunked_bodies(gateway: str, wire: Wire, journal: str) -> None:
    head = f"PUT /{journal} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{CHUNKED}\r\n\r\n"
    answer = parse(exchange(gateway, head.encode() + b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"))
    assert answer.status == HTTPStatus.NO_CONTENT
    assert wire.content(journal, offset=10) == b"abcdefg"


def test_put_waits_to_be_told_to_go_on(gateway: str, wire: Wire, journal: str) -> None:
    """A client that sends ``Expect: 100-continue`` gets its answer before it sends the body."""
    parts = urlsplit(gateway)
    with socket.create_connection((parts.hostname, parts.port), TIMEOUT_S) as connection:
        head = f"PUT /{journal} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        connection.sendall(f"{head}Expect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"body")
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert parse(answer).status == HTTPStatus.NO_CONTENT
    assert wire.content(journal, offset=10) == b"body"


MALFORMED = {
    "negative-size": (CHUNKED, b"-1\r\nlost\r\n0\r\n\r\n"),
    "blank-size": (CHUNKED, b"4\r\nlost\r\n\r\n\r\n"),
    "no-size": (CHUNKED, b"what\r\nlost\r\n0\r\n\r\n"),
    "chunk-longer-than-said": (CHUNKED, b"4\r\nlost and more\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_body_appends_nothing(gateway: str, wire: Wire, journal: str, name: str) -> None:
    framing, body = MALFORMED[name]
    head = f"PUT /{journal} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{framing}\r\n\r\n"
    assert parse(exchange(gateway, head.encode() + body)).status >= HTTPStatus.BAD_REQUEST
    assert wire.head(journal) == 10


def test_an_empty_put_is_a_barrier(gateway: str, journal: str) -> None:
    answer = ask(gateway, "PUT", f"/{journal}")
    assert answer.status == HTTPStatus.NO_CONTENT
    assert (answer.headers["x-commit-begin"], answer.headers["x-commit-end"]) == ("10", "10")


def test_a_cut_body_appends_nothing(gateway: str, wire: Wire, journal: str) -> None:
    parts = urlsplit(gateway)
    with socket.create_connection((parts.hostname, parts.port), TIMEOUT_S) as connection:
        connection.sendall(
            f"PUT /{journal} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\npart".encode()
        )
    assert wait_for(lambda: wire.append(journal, b"whole").commit.begin == 10, "the rolled back append")
    assert wire.content(journal, offset=10) == b"whole"


def test_json_list_and_read(gateway: str, journal: str) -> None:
    request = {"selector": {"include": {"labels": [{"name": "name", "value": journal}]}}}
    answer = ask(gateway, "POST", "/v1/journals/list", json.dumps(request).encode())
    assert answer.status == HTTPStatus.OK
    listed = [json.loads(line)["result"] for line in answer.body.splitlines()]
    assert listed[0]["status"] == "OK"
    assert [each["spec"]["name"] for each in listed[0]["journals"]] == [journal]
    assert listed[0]["journals"][0]["spec"]["fragment"]["compressionCodec"] == "SNAPPY"
    assert int(listed[0]["header"]["etcd"]["revision"]) > 0

    reading = {"journal": journal, "offset": "2"}
    answer = ask(gateway, "POST", "/v1/journals/read", json.dumps(reading).encode())
    results = [json.loads(line)["result"] for line in answer.body.splitlines()]
    assert results[0]["writeHead"] == "10"
    assert b"".join(base64.b64decode(each["content"] or "") for each in results) == b"23456789"
    assert results[-1]["status"] == "OFFSET_NOT_YET_AVAILABLE"


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        pytest.param("/v1/journals/list", b"{", 400, id="no-json"),
        pytest.param("/v1/journals/list", b'{"other": 1}', 200, id="unknown-field-is-ignored"),
        pytest.param("/v1/journals/append", b"{}", 501, id="unknown-call"),
        pytest.param("/v1/journals/read", b'{"journal": "a/b", "offset": "-5"}', 500, id="invalid-request"),
    ],
)
def test_bad_json(gateway: str, target: str, body: bytes, status: int) -> None:
    assert ask(gateway, "POST", target, body).status == status


# -- Promises of the embedded broker's gateway only.


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path, gateway=GatewaySettings(), auth_keys="c2VjcmV0 AA==") as broker:
        yield broker


def address(broker: EmbeddedBroker) -> str:
    assert broker.gateway_endpoint is not None
    return broker.gateway_endpoint


@pytest.fixture
def held(embedded: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(embedded.endpoint) as wire:
        wire.create(spec("gateway/journal"))
        wire.append("gateway/journal", b"0123456789")
        yield wire


PUT = "PUT /gateway/journal HTTP/1.1\r\nHost: localhost\r\n"


def test_a_body_is_no_request(embedded: EmbeddedBroker, held: Wire) -> None:
    hidden = f"{PUT}Content-Length: 6\r\n\r\nhidden".encode()
    read = f"GET /gateway/journal HTTP/1.1\r\nHost: localhost\r\n{CHUNKED}\r\n\r\n".encode()
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)
    after = b"GET /not/there HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = exchange(address(embedded), read + body + after)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"206", b"404"]
    assert held.head("gateway/journal") == 10


def test_requests_of_one_connection(embedded: EmbeddedBroker, held: Wire) -> None:
    requests = [
        f"{PUT}Content-Length: 3\r\n\r\nabc",
        "GET /not/there HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /gateway/journal?offset=10 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ]
    answer = exchange(address(embedded), "".join(requests).encode())
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"204", b"404", b"206"]
    assert b"abc" in answer.rpartition(b"HTTP/1.1 ")[2]


def test_a_refused_body_does_not_hide_the_answer(embedded: EmbeddedBroker) -> None:
    answer = ask(address(embedded), "PUT", "/not/there", bytes(8 << 20))
    assert (answer.status, answer.body.strip()) == (500, b"JOURNAL_NOT_FOUND")


@pytest.mark.parametrize("method", ["PUT /gateway/journal", "POST /v1/journals/list"])
def test_a_malformed_body_does_not_keep_the_broker(tmp_path: Path, method: str) -> None:
    with EmbeddedBroker(tmp_path, gateway=GatewaySettings()) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec("gateway/journal"))
        head = f"{method} HTTP/1.1\r\nHost: localhost\r\n{CHUNKED}\r\n\r\n"
        assert parse(exchange(address(broker), f"{head}-1\r\n{{}}".encode())).status == 400
        started = time.monotonic()
        broker.stop()
        assert time.monotonic() - started < TIMEOUT_S


def test_json_requests_have_a_limit(embedded: EmbeddedBroker) -> None:
    head = f"POST /v1/journals/list HTTP/1.1\r\nHost: localhost\r\n{CHUNKED}\r\n\r\n"
    body = b"200000\r\n" + bytes(2 << 20) + b"\r\n"
    assert parse(exchange(address(embedded), head.encode() + body)).status == 413


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("127.0.0.1", 204, id="address"),
        pytest.param("LocalHost:8080", 204, id="localhost"),
        pytest.param("[::1]:8080", 204, id="version-6"),
        pytest.param("broker.lan:8080", 204, id="named"),
        pytest.param("rebound.example:8080", 421, id="another-name"),
        pytest.param("localhost.rebound.example", 421, id="name-that-begins-well"),
        pytest.param("127.0.0.1.rebound.example", 421, id="name-like-an-address"),
        pytest.param("", 421, id="empty"),
    ],
)
def test_requests_for_other_hosts_are_refused(tmp_path: Path, host: str, status: int) -> None:
    """A request for a foreign host name may come from a web page by DNS rebinding."""
    broker = EmbeddedBroker(tmp_path, gateway=GatewaySettings(port=0, names=["Broker.lan"]))
    with broker, Wire(broker.endpoint) as wire:
        wire.create(spec("gateway/journal"))
        request = f"PUT /gateway/journal HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\n"
        answer = parse(exchange(address(broker), f"{request}Connection: close\r\n\r\nx".encode()))
        assert answer.status == status
        assert wire.head("gateway/journal") == (1 if status == 204 else 0)
        assert status == 204 or b"--gateway-name" in answer.body


@pytest.mark.parametrize(
    ("method", "header", "status"),
    [
        pytest.param("PUT", "Origin: http://localhost", 204, id="own-origin"),
        pytest.param("PUT", "Sec-Fetch-Site: none", 204, id="typed"),
        pytest.param("PUT", "Sec-Fetch-Site: same-origin", 204, id="own-site"),
        pytest.param("PUT", "Origin: http://localhost:3000", 403, id="another-port"),
        pytest.param("PUT", "Origin: https://evil.example", 403, id="another-site"),
        pytest.param("PUT", "Origin: null", 403, id="hidden-origin"),
        pytest.param("PUT", "Sec-Fetch-Site: cross-site", 403, id="cross-site"),
        pytest.param("PUT", "Sec-Fetch-Site: same-site", 403, id="same-site"),
        pytest.param("GET", "Sec-Fetch-Site: cross-site", 206, id="read"),
    ],
)
def test_pages_of_other_origins_do_not_append(
    embedded: EmbeddedBroker, held: Wire, method: str, header: str, status: int
) -> None:
    """Another site's page must not append through a visitor's browser, nor read the answer of a read."""
    answer = ask(address(embedded), method, "/gateway/journal", b"x" if method == "PUT" else b"", header)
    assert answer.status == status
    assert held.head("gateway/journal") == (11 if status == 204 else 10)
    assert status == 403 or answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        pytest.param("GET /" + "x" * 9000 + " HTTP/1.1", 414, id="long-path"),
        pytest.param("GET /" + "x" * 70_000 + " HTTP/1.1", 431, id="very-long-path"),
        pytest.param("GET /a/../../b HTTP/1.1", 400, id="traversal"),
        pytest.param("GET /%2e%2e/state.json HTTP/1.1", 400, id="encoded-traversal"),
        pytest.param("GET /%00 HTTP/1.1", 400, id="null"),
        pytest.param("BREW /a HTTP/1.1", 400, id="unknown-method"),
        pytest.param("GET /a HTTP/9.9", 505, id="version"),
        pytest.param("nonsense", 400, id="no-http"),
    ],
)
def test_hostile_requests_are_refused(embedded: EmbeddedBroker, request_line: str, status: int) -> None:
    answer = exchange(
        address(embedded), f"{request_line}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    )
    assert parse(answer).status == status
    assert ask(address(embedded), "GET", "/not/there").status == 404


def test_more_connections_than_served_are_told(embedded: EmbeddedBroker) -> None:
    """A client at its limit of pending answers gets 503 until one of them has ended."""
    parts = urlsplit(address(embedded))
    with Wire(embedded.endpoint) as wire:
        wire.create(spec("gateway/tailed"))
        wire.append("gateway/tailed", b"content")
    tails = [socket.create_connection((parts.hostname, parts.port), TIMEOUT_S) for _ in range(64)]
    for tail in tails:
        tail.sendall(b"GET /gateway/tailed?block=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b"content\r\n" not in received:  # From here on its answer is in progress.
            received += tail.recv(1 << 16)
    wait_for(lambda: ask_status(embedded) == 503, "a refusal that is not lost to a reset")
    for tail in tails:
        tail.close()
    wait_for(lambda: ask_status(embedded) == 404, "a free place")


def ask_status(broker: EmbeddedBroker) -> int:
    """Return the status of a read of a missing journal, or 0 if the connection was reset."""
    try:
        return ask(address(broker), "GET", "/not/there").status
    except ConnectionError:
        return 0


def test_keys_and_the_gateway(tmp_path: Path) -> None:
    keys = KeySet.parse("c2VjcmV0")

    def bearer(capability: Capability, selector: str = "") -> str:
        claims = Claims(capability, parse_selector(selector))
        return f"Authorization: Bearer {keys.sign(claims, now=time.time())}"

    with EmbeddedBroker(tmp_path, gateway=GatewaySettings(), auth_keys=keys) as broker:
        with Wire(broker.endpoint) as wire:
            change = pb.ApplyRequest.Change(upsert=spec("gateway/journal"))
            everything = (("authorization", bearer(Capability.ALL).removeprefix("Authorization: ")),)
            wire.stub.Apply(pb.ApplyRequest(changes=[change]), metadata=everything, timeout=TIMEOUT_S)
        put, get = ("PUT", "/gateway/journal", b"x"), ("GET", "/gateway/journal", b"")
        head, post = ("HEAD", "/gateway/journal", b""), ("POST", "/v1/journals/list", b"{}")
        for request, needed, status in (
            (put, Capability.APPEND, 204),
            (get, Capability.READ, 206),
            (head, Capability.READ, 206),
            (post, Capability.LIST, 200),
        ):
            answer = ask(address(broker), *request)
            assert (answer.status, "token" in answer.body.decode()) == (401, request[0] != "HEAD")
            others = Capability(Capability.ALL & ~needed)
            assert ask(address(broker), *request, bearer(others)).status == 401
            assert ask(address(broker), *request, "Authorization: Bearer x.y.z").status == 401
            assert ask(address(broker), *request, bearer(needed)).status == status
        elsewhere = bearer(Capability.ALL, "name=gateway/other")
        assert ask(address(broker), *get, elsewhere).status == 404
        assert ask(address(broker), *put, elsewhere).status == 500


def test_a_gateway_that_serves_without_token(tmp_path: Path) -> None:
    """By option GET and PUT need no token, as in Gazette; the JSON gateway always needs one."""
    gateway = GatewaySettings(serves_without_token=True)
    with EmbeddedBroker(tmp_path, gateway=gateway, auth_keys="c2VjcmV0 AA==") as broker:
        with Wire(broker.endpoint) as wire:
            wire.create(spec("gateway/journal"))
        bad = "Authorization: Bearer x.y.z"
        assert ask(address(broker), "PUT", "/gateway/journal", b"x", bad).status == 204
        assert ask(address(broker), "GET", "/gateway/journal", b"", bad).status == 206
        answer = ask(address(broker), "POST", "/v1/journals/list", b"{}", bad)
        assert (answer.status, json.loads(answer.body)["code"]) == (401, 16)


def test_a_reader_that_left_is_noticed(tmp_path: Path) -> None:
    """Otherwise reads of clients that have left would occupy the server's places for ever."""
    with EmbeddedBroker(tmp_path, gateway=GatewaySettings()) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec("gateway/journal"))
        wire.append("gateway/journal", b"x")
        parts = urlsplit(address(broker))
        for _ in range(64):
            connection = socket.create_connection((parts.hostname, parts.port), TIMEOUT_S)
            connection.sendall(
                b"GET /gateway/journal?offset=1&block=true HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            connection.close()
        wait_for(lambda: ask_status(broker) == 404, "a free place")


def test_http_1_0_gets_a_plain_body(embedded: EmbeddedBroker) -> None:
    with Wire(embedded.endpoint) as wire:
        wire.create(spec("gateway/journal"))
        wire.append("gateway/journal", b"content")
    answer = exchange(address(embedded), b"GET /gateway/journal HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\ncontent")


def test_stop_ends_blocked_reads(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, gateway=GatewaySettings()) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec("gateway/journal"))
        wire.append("gateway/journal", b"x")
        parts = urlsplit(address(broker))
        with socket.create_connection((parts.hostname, parts.port), TIMEOUT_S) as connection:
            connection.sendall(b"GET /gateway/journal?block=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
            got = b""
            while not got.endswith(b"x\r\n"):
                got += connection.recv(1 << 16)
            broker.stop()
            got += b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert parse(got).trailers.get("x-close-error") == "broker terminated RPC"


def test_a_stored_journal_whose_name_is_not_ascii(gateway: str, wire: Wire, journal_name: str) -> None:
    """The location of a stored fragment contains the journal's name."""
    journal = f"{journal_name}-größe"
    wire.create(spec(journal))
    wire.append(journal, b"0123456789")
    wire.append(journal, b"x")  # This closes the first fragment.
    wire.wait_persisted(journal, 1)
    answer = ask(gateway, "GET", f"/{quote(journal)}?offset=0")
    assert (answer.status, answer.body) == (HTTPStatus.PARTIAL_CONTENT, b"0123456789x")
