"""Tests which fragment URLs a client opens, which hosts it refuses, and what it does if a URL fails."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from gazette_spark.client import Client, open_fragment_url
from gazette_spark.client._read.fragment_urls import FragmentOpener
from gazette_spark.errors import (
    ClosedError,
    CorruptFragmentError,
    DirectReadError,
    GazetteError,
    OptionError,
    ProtocolError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.testing.stub_broker import Act, StubBroker, chunk, not_yet

JOURNAL = "a/journal"
CONTENT = bytes(range(256)) * 40
HEAD = len(CONTENT)
FRAGMENT = Fragment(
    JOURNAL, 0, HEAD, hashlib.sha1(CONTENT, usedforsecurity=False).digest(), pb.GZIP, "s3://b/", 1_700_000_000
)

PUBLIC = "8.8.8.8"
PRIVATE = "10.1.2.3"


def never(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"asked {request.url}")


def answering(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, stream=httpx.ByteStream(gzip.compress(CONTENT)))


def opener(
    handler: Callable[[httpx.Request], httpx.Response], addresses: dict[str, str], **options: Any
) -> FragmentOpener:
    """Return an opener with a fake name service that resolves only the given hosts."""

    def resolve(host: str, _: int) -> list[str]:
        if host not in addresses:
            raise OSError("unknown host")
        return [addresses[host]]

    http = httpx.Client(transport=httpx.MockTransport(handler))
    return FragmentOpener(http=lambda: http, resolve=resolve, **options)


ADDRESSES = {
    "public.broker": PUBLIC,
    "private.broker": PRIVATE,
    "public.store": PUBLIC,
    "private.store": PRIVATE,
    "rebound.store": "127.0.0.1",
    "metadata.store": "169.254.169.254",
    PUBLIC: PUBLIC,
    PRIVATE: PRIVATE,
    "127.0.0.1": "127.0.0.1",
    "169.254.169.254": "169.254.169.254",
    "::1": "::1",
    "::ffff:10.0.0.1": "::ffff:10.0.0.1",
    "fe80::1": "fe80::1",
}

REFUSED = {
    "http at another host": ("private.broker", "http://public.store/f"),
    "another scheme": ("private.broker", "s3://bucket/f"),
    "a file without a root": ("private.broker", "file:///f"),
    "ftp": ("private.broker", "ftp://private.broker/f"),
    "link-local, by address": ("private.broker", "https://169.254.169.254/latest/meta-data"),
    "link-local, by name": ("private.broker", "https://metadata.store/f"),
    "link-local, version 6": ("private.broker", "https://[fe80::1]/f"),
    "private, by address, of a public broker": ("public.broker", f"https://{PRIVATE}/f"),
    "private, by name, of a public broker": ("public.broker", "https://private.store/f"),
    "loopback, by address, of a public broker": ("public.broker", "https://127.0.0.1/f"),
    "loopback, by name, of a public broker": ("public.broker", "https://rebound.store/f"),
    "loopback, version 6, of a public broker": ("public.broker", "https://[::1]/f"),
    "private, as version 6, of a public broker": ("public.broker", "https://[::ffff:10.0.0.1]/f"),
    "private, of a broker nobody knows": ("unknown.broker", "https://private.store/f"),
    "private, without a broker": ("", "https://private.store/f"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hosts_that_are_not_asked(name: str) -> None:
    broker, url = REFUSED[name]
    with pytest.raises(DirectReadError) as caught:
        opener(never, ADDRESSES, broker=broker).open(FRAGMENT, f"{url}?signature=SECRET")
    assert caught.value.refused
    assert "SECRET" not in f"{caught.value} {caught.value!r}"


ASKED = {
    "https at a public address": ("public.broker", "https://public.store/f", ()),
    "https at a private address of a private broker": ("private.broker", "https://private.store/f", ()),
    "https where only the HTTP client's proxy knows": ("public.broker", "https://unknown.store/f", ()),
    "http at the broker's own host": ("private.broker", "http://private.broker:9000/f", ()),
    "http at a listed host": ("public.broker", "http://private.store/f", ("private.store",)),
    "http at a listed port": ("public.broker", "http://private.store:81/f", ("Private.Store:81",)),
    "https at a listed private host": ("public.broker", "https://private.store/f", ("private.store:443",)),
}


@pytest.mark.parametrize("name", ASKED)
def test_hosts_that_are_asked(name: str) -> None:
    broker, url, hosts = ASKED[name]
    opened = opener(answering, ADDRESSES, broker=broker, hosts=frozenset(hosts))
    assert opened.can_open(url)
    with opened.open(FRAGMENT, url) as reader:
        assert reader.read() == CONTENT


def test_a_broker_whose_name_was_unknown_or_changes_is_looked_up_again() -> None:
    """A client may live for weeks. One failed look-up must not make it refuse private stores from then on."""
    addresses: dict[str, str] = {}
    opened = opener(answering, addresses, broker="private.broker")
    for address, allowed in ((None, False), (PRIVATE, True), (PUBLIC, False)):
        if address is not None:
            addresses["private.broker"] = address
        assert opened.can_open(f"https://{PRIVATE}/f") is allowed


LAST = b"the last connection"


class Listener:
    """A port that records the first bytes of each connection, and may answer with a text."""

    def __init__(self, answer: bytes = b"") -> None:
        self.heard: list[bytes] = []
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Connections are accepted in order, so all earlier ones have been recorded.
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(LAST)
            self._thread.join(10)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(10)
                if (heard := connection.recv(1 << 16)) == LAST:
                    return
                self.heard.append(heard)
                connection.sendall(self._answer)


@pytest.mark.parametrize("known", [{"localhost": PUBLIC}, {}], ids=["resolved again", "look-up failed"])
def test_the_address_that_is_connected_to_is_checked(known: dict[str, str]) -> None:
    """The name may resolve to a private address after the first lookup."""
    opened = opener(never, {"public.broker": PUBLIC, **known}, broker="public.broker")
    opened = replace(opened, http=None)
    with Listener() as listener, pytest.raises(DirectReadError) as caught:
        opened.open(FRAGMENT, f"https://localhost:{listener.port}/f?signature=SECRET")
    assert caught.value.refused
    assert "127.0.0.1 is a private address" in str(caught.value)
    assert listener.heard == [b""]


def test_a_proxy_may_have_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is configured by the user and resolves the host itself."""
    opened = opener(never, {"public.broker": PUBLIC}, broker="public.broker")
    with Listener(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "")
        with pytest.raises(DirectReadError) as caught:
            replace(opened, http=None).open(FRAGMENT, "https://unknown.store/f")
    assert not caught.value.refused
    assert [heard.split(b"\r\n")[0] for heard in proxy.heard] == [b"CONNECT unknown.store:443 HTTP/1.1"]


def test_a_signature_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """The library httpx logs the URL of each request."""
    caplog.set_level(logging.DEBUG)
    opened = opener(answering, ADDRESSES, broker="private.broker")
    with opened.open(FRAGMENT, "https://public.store/f?signature=SECRET") as reader:
        assert reader.read() == CONTENT
    assert "https://public.store/f" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_listed_port_is_no_other() -> None:
    opened = opener(never, ADDRESSES, broker="public.broker", hosts=frozenset(["private.store:81"]))
    with pytest.raises(DirectReadError):
        opened.open(FRAGMENT, "http://private.store:82/f")


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("", id="empty"),
        pytest.param("https://public.store/" + "x" * 9_000, id="too long"),
        pytest.param("https://public.store/a\r\nHost: b", id="CRLF"),
        pytest.param("https://public.store/a\0", id="NUL"),
        pytest.param("https://user:SECRET@public.store/a", id="user"),
        pytest.param("https:///a", id="no host"),
        pytest.param("https://public.store:70000/a", id="port out of range"),
        pytest.param("https://[::1/a", id="half an address"),
        pytest.param("file:///a\nb", id="line break in a path"),
    ],
)
def test_what_is_no_url_of_a_fragment(tmp_path: Path, url: str) -> None:
    """An invalid URL is a protocol error, even if all hosts are allowed."""
    opened = opener(never, ADDRESSES, broker="public.broker", root=str(tmp_path))
    with pytest.raises(ProtocolError, match="FragmentUrl") as caught:
        opened.open(FRAGMENT, url)
    assert "SECRET" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("host", ["a..b", "a" * 70], ids=["empty label", "long label"])
def test_a_name_that_is_no_host(host: str) -> None:
    with pytest.raises(ProtocolError, match="FragmentUrl"):
        open_fragment_url(FRAGMENT, f"https://{host}/f")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        pytest.param({"root": "/"}, "fragmentRoot", id="the root of all"),
        pytest.param({"root": ""}, "fragmentRoot", id="no root"),
        pytest.param({"root": "/etc/passwd"}, "fragmentRoot", id="a file"),
        pytest.param({"root": "a\0b"}, "fragmentRoot", id="NUL"),
        pytest.param({"hosts": frozenset(["https://store"])}, "fragmentHosts", id="a URL"),
        pytest.param({"hosts": frozenset([""])}, "fragmentHosts", id="no host"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        FragmentOpener(**options)
    assert caught.value.option == option


def test_a_root_that_is_missing_is_told_when_it_is_asked_for(tmp_path: Path) -> None:
    """A root that the caller names explicitly has to exist."""
    with pytest.raises(OptionError, match="folder"):
        open_fragment_url(FRAGMENT, "file:///a", fragment_root=str(tmp_path / "missing"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_no_fragment(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    with pytest.raises(DirectReadError, match="regular"):
        open_fragment_url(FRAGMENT, "file:///zero", fragment_root=str(tmp_path))


@pytest.mark.parametrize("up", ["%2e%2e/secret", "..%2fsecret", "%2e%2e%2fsecret"])
def test_encoded_dots_are_no_dots(tmp_path: Path, up: str) -> None:
    """File URLs are not unescaped, so the path is an ordinary name."""
    (tmp_path / "secret").write_bytes(gzip.compress(CONTENT))
    (tmp_path / "root").mkdir()
    with pytest.raises(DirectReadError, match="No such file"):
        open_fragment_url(FRAGMENT, f"file:///{up}", fragment_root=str(tmp_path / "root"))


class Store:
    """An HTTP store of one fragment, whose next answers are scripted: a status, or one of these words.

    ``cut``: half of the body. ``drip`` and ``drip head``: a byte of body or headers now and then, for ever.
    """

    def __init__(self) -> None:
        self.next: list[int | str] = []
        self.asked: list[str] = []
        self.dripped = threading.Event()
        """Event set once a byte of an endless body has been sent."""
        self._stopped = threading.Event()
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                store.asked.append(self.path)
                answer = store.next.pop(0) if store.next else 200
                if answer in ("drip", "drip head"):
                    self.drip(b"" if answer == "drip" else b"X-Slow: ")
                    return
                body = gzip.compress(CONTENT) if answer in (200, "cut") else b"no"
                self.send_response(200 if answer == "cut" else int(answer))
                if answer in (301, 302, 307):
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if answer == "cut" else body)
                self.close_connection = True

            def drip(self, head: bytes) -> None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n" + (head or b"\r\n"))
                with suppress(OSError):
                    while not store._stopped.wait(0.02):
                        self.wfile.write(b"\x1f")
                        store.dripped.set()
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        yield opened


def answer_from(store: Store, signed: list[int]) -> Callable[[pb.ReadRequest], list[Act]]:
    def answer(request: pb.ReadRequest) -> list[Act]:
        if request.offset == HEAD:
            return [not_yet(HEAD)]
        signed.append(request.offset)
        told = pb.ReadResponse(
            offset=request.offset,
            write_head=HEAD,
            fragment=FRAGMENT.to_pb(),
            fragment_url=f"{store.endpoint}/f?signature=SECRET{len(signed)}",
        )
        return [told] if request.do_not_proxy else [told, chunk(request.offset, CONTENT[request.offset :])]

    return answer


SCRIPTS: dict[str, tuple[list[int | str], int]] = {
    "it serves": ([], 1),
    "a signature that expired, once": ([403], 2),
    "a signature that is refused for good": ([403] * 9, 2),
    "not authorized": ([401] * 9, 2),
    "the fragment is gone": ([404], 1),
    "a range is asked for": ([416], 1),
    "part of it": ([206], 1),
    "a redirect": ([302], 1),
    "busy, twice": ([503, 503], 3),
    "busy for good": ([503] * 9, 3),
    "too many requests": ([429], 2),
    "cut in the middle": (["cut"], 2),
    "cut again and again": (["cut"] * 9, 3),
}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("do_not_proxy", [False, True])
def test_a_store_that_fails(stub: StubBroker, store: Store, name: str, do_not_proxy: bool) -> None:
    """The content comes from a new URL or a retry, or in the end through the broker."""
    store.next, asked = list(SCRIPTS[name][0]), SCRIPTS[name][1]
    signed: list[int] = []
    stub.script("Read", answer_from(store, signed))
    with Client(stub.endpoint, timeout_s=20) as client:
        reader = client.read(JOURNAL, offset=5, do_not_proxy=do_not_proxy)
        assert reader.read() == CONTENT[5:]
    assert len(store.asked) == asked
    assert len(set(store.asked)) == asked, "each with a URL of its own"


SLOW = ["drip", "drip head"]


@pytest.mark.slow
@pytest.mark.parametrize("answer", SLOW)
def test_a_store_that_drips_leaves_time_for_the_broker(stub: StubBroker, store: Store, answer: str) -> None:
    """Each attempt at the store may use only half of the remaining time."""
    store.next = [answer] * 9
    stub.script("Read", answer_from(store, []))
    begun = time.monotonic()
    with Client(stub.endpoint, timeout_s=4) as client:
        assert client.read(JOURNAL, do_not_proxy=True).read() == CONTENT
    assert len(store.asked) == 3
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("answer", SLOW)
def test_a_time_limit_holds_while_a_store_drips(stub: StubBroker, store: Store, answer: str) -> None:
    """Readers without retries and directly opened fragments raise at their time limit."""
    store.next = [answer] * 2
    stub.script("Read", answer_from(store, []))
    page = pb.FragmentsResponse()
    page.fragments.add(spec=FRAGMENT.to_pb(), signed_url=f"{store.endpoint}/f?s=SECRET")
    stub.script("ListFragments", [page])
    begun = time.monotonic()
    with Client(stub.endpoint, timeout_s=0.5) as client:
        (listed,) = client.list_fragments(JOURNAL, signature_ttl_s=60)
        with (
            client.reader(JOURNAL, do_not_proxy=True) as reader,
            pytest.raises(DirectReadError, match="no bytes within the time limit"),
        ):
            reader.read()
        with pytest.raises(DirectReadError, match="no bytes within the time limit"):
            client.open_fragment(listed).read()
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("kind", ["read", "reader"])
def test_a_read_of_a_store_that_drips_is_cancelled(stub: StubBroker, store: Store, kind: str) -> None:
    store.next = ["drip"]
    stub.script("Read", answer_from(store, []))
    with Client(stub.endpoint, timeout_s=60) as client:
        reader = getattr(client, kind)(JOURNAL, do_not_proxy=True)

        def cancel() -> None:
            assert store.dripped.wait(30)
            reader.cancel()

        other = threading.Thread(target=cancel)
        begun = time.monotonic()
        other.start()
        with pytest.raises(ClosedError):
            reader.read()
        other.join(30)
        assert time.monotonic() - begun < 20


def test_a_store_that_lies_is_an_error(stub: StubBroker, store: Store) -> None:
    other = Fragment(JOURNAL, 0, HEAD, bytes(20), pb.GZIP, "s3://b/", 1_700_000_000)
    url = f"{store.endpoint}/f?signature=SECRET"
    stub.script("Read", [pb.ReadResponse(write_head=HEAD, fragment=other.to_pb(), fragment_url=url)])
    with Client(stub.endpoint, timeout_s=20) as client, pytest.raises(CorruptFragmentError) as caught:
        client.read(JOURNAL).read()
    assert caught.value.source == f"{store.endpoint}/f"
    assert "SECRET" not in repr(caught.value)


def test_a_host_that_is_refused_costs_one_look(stub: StubBroker, store: Store) -> None:
    """A retrying reader falls back to the broker; a reader of one call raises."""
    signed: list[int] = []
    answer = answer_from(store, signed)

    def elsewhere(request: pb.ReadRequest) -> list[Act]:
        told = answer(request)
        for each in told:
            if isinstance(each, pb.ReadResponse) and each.fragment_url:
                each.fragment_url = "https://169.254.169.254/f"
        return told

    stub.script("Read", elsewhere)
    with Client(stub.endpoint, timeout_s=20) as client:
        assert client.read(JOURNAL, do_not_proxy=True).read() == CONTENT
        with client.reader(JOURNAL, do_not_proxy=True) as reader, pytest.raises(DirectReadError) as caught:
            reader.read()
    assert caught.value.refused
    assert store.asked == []


def test_a_listed_fragment_is_opened_by_its_client(stub: StubBroker, store: Store) -> None:
    page = pb.FragmentsResponse()
    page.fragments.add(spec=FRAGMENT.to_pb(), signed_url=f"{store.endpoint}/f?s=SECRET")
    page.fragments.add(spec=FRAGMENT.to_pb())
    stub.script("ListFragments", [page])
    with Client(stub.endpoint, timeout_s=20) as client:
        signed, bare = client.list_fragments(JOURNAL, signature_ttl_s=60)
        with client.open_fragment(signed, 100) as reader:
            assert (reader.offset, reader.read(5)) == (100, CONTENT[100:105])
            assert reader.seek(HEAD - 5) == HEAD - 5
            assert reader.read() == CONTENT[-5:]
        with pytest.raises(ProtocolError, match="FragmentUrl"):
            client.open_fragment(bare)


@pytest.mark.parametrize("kind", [GazetteError])
def test_a_url_opened_by_itself_closes_what_it_opened(store: Store, kind: type[GazetteError]) -> None:
    hosts = ["127.0.0.1"]
    with open_fragment_url(FRAGMENT, f"{store.endpoint}/f", fragment_hosts=hosts) as reader:
        assert reader.read(3) == CONTENT[:3]
    with pytest.raises(kind):
        reader.read(3)
    store.next = [404]
    with pytest.raises(kind, match="404"):
        open_fragment_url(FRAGMENT, f"{store.endpoint}/f", fragment_hosts=hosts)


def test_public_authorities_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task has its own client, and loading them takes longer than a small task."""
    from gazette_spark.client._read import fragment_http

    fragment_http.public_authorities()
    monkeypatch.setattr(httpx, "create_ssl_context", None)
    fragment_http.new_http(1.0).close()
