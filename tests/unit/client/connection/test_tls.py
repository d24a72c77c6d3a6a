"""Tests that TLS works or fails soon with a reason, and never falls back to plain text."""

from __future__ import annotations

import datetime
import re
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest
import trustme

from gazette_spark.client import Client, ListedFragment, TlsOptions
from gazette_spark.errors import DirectReadError, TlsError, UnavailableError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.testing.stub_broker import StubBroker, chunk, metadata, not_yet

JOURNAL = "a/journal"


class Authority:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._ca = trustme.CA()
        root.mkdir()
        self.ca_file = str(root / "ca.pem")
        self._ca.cert_pem.write_to_path(self.ca_file)

    def issue(self, name: str, *, expired: bool = False) -> tuple[str, str]:
        ended = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) if expired else None
        issued = self._ca.issue_cert(name, not_after=ended)
        folder = Path(tempfile.mkdtemp(dir=self._root))
        cert_file, key_file = str(folder / "cert.pem"), str(folder / "key.pem")
        issued.private_key_pem.write_to_path(key_file)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(cert_file, append=True)
        return cert_file, key_file


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


@contextmanager
def secure_broker(
    authority: Authority,
    *,
    name: str = "127.0.0.1",
    expired: bool = False,
    clients: Authority | None = None,
    port: int = 0,
) -> Iterator[StubBroker]:
    """Run a broker with a certificate for ``name``.

    It requires a client certificate of ``clients``, if given.
    """
    cert_file, key_file = authority.issue(name, expired=expired)
    pair = (Path(key_file).read_bytes(), Path(cert_file).read_bytes())
    roots = Path(clients.ca_file).read_bytes() if clients else None
    with StubBroker(grpc.ssl_server_credentials([pair], roots, clients is not None), port=port) as stub:
        stub.script("List", [pb.ListResponse()])
        yield stub


class Store(BaseHTTPRequestHandler):
    """A store whose objects are all the same."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")


@contextmanager
def secure_store(authority: Authority) -> Iterator[str]:
    """Run a store with a certificate of an authority; the value is the URL of an object."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("127.0.0.1"))
    with HTTPServer(("127.0.0.1", 0), Store) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}/object"
        finally:
            server.shutdown()
            thread.join()


def test_a_trusted_broker(ours: Authority) -> None:
    """Reads use their own connections."""
    with secure_broker(ours) as stub, Client(stub.endpoint, tls=TlsOptions(ours.ca_file)) as client:
        stub.script("Read", [metadata(JOURNAL, 0, 5), chunk(0, b"hello"), not_yet(5)])
        assert client.list_journals() == []
        assert client.read(JOURNAL).read() == b"hello"


def test_mutual_trust(ours: Authority) -> None:
    tls = TlsOptions(ours.ca_file, *ours.issue("client"))
    with secure_broker(ours, clients=ours) as stub, Client(stub.endpoint, tls=tls) as client:
        assert client.list_journals() == []


def test_certificates_are_renewed_under_a_client(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    """The client rereads its files once the broker rejects the old certificate."""
    cert_file, key_file, ca_file = (str(tmp_path / name) for name in ("cert", "key", "ca"))

    def put(authority: Authority) -> None:
        for new, path in zip(
            (*authority.issue("client"), authority.ca_file), (cert_file, key_file, ca_file), strict=True
        ):
            Path(shutil.copy(new, f"{path}.new")).rename(path)

    put(ours)
    tls = TlsOptions(ca_file, cert_file, key_file)
    port = 0
    with secure_broker(ours, clients=ours) as first:
        port = first.port
        client = Client(first.endpoint, tls=tls, timeout_s=20)
        assert client.list_journals() == []
    fragment = Fragment(JOURNAL, 0, 5, sha1(b"hello", usedforsecurity=False).digest(), pb.NONE)
    with secure_store(ours) as at_ours, secure_store(theirs) as at_theirs, client:
        with client.open_fragment(ListedFragment(fragment, at_ours)) as reader:
            assert reader.read() == b"hello"
        put(theirs)
        with client.open_fragment(ListedFragment(fragment, at_theirs)) as reader:
            assert reader.read() == b"hello"
        with pytest.raises(DirectReadError, match="ConnectError"):
            client.open_fragment(ListedFragment(fragment, at_ours))
        with secure_broker(theirs, clients=theirs, port=port) as second:
            assert second.port == port
            assert client.list_journals() == []


def fails(endpoint: str, tls: TlsOptions | None, problem: str) -> None:
    """Check that a call fails on the first attempt, because retries would take ten minutes."""
    with (
        Client(endpoint, tls=tls, timeout_s=600, connect_timeout_s=600) as client,
        pytest.raises(TlsError, match=problem),
    ):
        client.list_journals()
    with (
        Client(endpoint, tls=tls, timeout_s=600, connect_timeout_s=600) as client,
        pytest.raises(TlsError, match=problem),
    ):
        client.read(JOURNAL).read()


def test_each_call_of_a_client_fails_with_the_reason(ours: Authority, theirs: Authority) -> None:
    """A failed handshake must not count as an answer, or the next call would retry."""
    with (
        secure_broker(theirs) as stub,
        Client(stub.endpoint, tls=TlsOptions(ours.ca_file), timeout_s=3) as client,
    ):
        for _ in range(2):
            with pytest.raises(TlsError, match="cannot be trusted"):
                client.list_journals()


def test_a_broker_of_another_authority(ours: Authority, theirs: Authority) -> None:
    with secure_broker(theirs) as stub:
        fails(stub.endpoint, TlsOptions(ours.ca_file), "cannot be trusted")
        fails(stub.endpoint, None, "cannot be trusted")
        assert stub.requests("List") == []


def test_a_broker_whose_certificate_has_expired(ours: Authority) -> None:
    with secure_broker(ours, expired=True) as stub:
        fails(stub.endpoint, TlsOptions(ours.ca_file), "expired")


def test_a_broker_of_another_name(ours: Authority) -> None:
    with secure_broker(ours, name="elsewhere.example") as stub:
        fails(stub.endpoint, TlsOptions(ours.ca_file), "another host name")


@pytest.mark.parametrize("shows", ["no certificate", "one of another authority"])
def test_a_broker_that_asks_for_a_certificate(ours: Authority, theirs: Authority, shows: str) -> None:
    pair = theirs.issue("client") if shows == "one of another authority" else ()
    with secure_broker(ours, clients=ours) as stub:
        fails(stub.endpoint, TlsOptions(ours.ca_file, *pair), "without a certificate that it trusts")
        assert stub.requests("List") == []


def test_tls_to_a_plain_broker(ours: Authority) -> None:
    with StubBroker() as stub:
        stub.script("List", [pb.ListResponse()])
        secure = stub.endpoint.replace("http://", "https://")
        fails(secure, TlsOptions(ours.ca_file), "does not speak TLS")
        assert stub.requests("List") == []


def test_plain_text_to_a_tls_broker(ours: Authority) -> None:
    with secure_broker(ours) as stub:
        fails(stub.endpoint.replace("https://", "http://"), None, "https://")


def test_a_broker_that_never_shakes_hands(ours: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with (
            Client(endpoint, tls=TlsOptions(ours.ca_file), timeout_s=600, connect_timeout_s=0.5) as client,
            pytest.raises(UnavailableError),
        ):
            client.list_journals()


def test_a_broker_that_hangs_up(ours: Authority) -> None:
    """The broker may be restarting, so the client must not report a TLS problem."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        port = listener.getsockname()[1]
        for scheme, tls in (("http", None), ("https", TlsOptions(ours.ca_file))):
            endpoint = f"{scheme}://127.0.0.1:{port}"
            with (
                Client(endpoint, tls=tls, connect_timeout_s=0.5) as client,
                pytest.raises(UnavailableError, match=re.escape(endpoint)),
            ):
                client.list_journals()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
