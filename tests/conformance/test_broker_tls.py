"""The embedded broker serves TLS, and only clients with a valid certificate if it requires one."""

from __future__ import annotations

import datetime
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.broker import GatewaySettings, ServerTls, StorageSettings
from gazette_spark.client import TlsOptions, journal_spec
from gazette_spark.client._read.heads import MANY
from gazette_spark.errors import OptionError, TlsError, UnavailableError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc

CONNECT_S = 5.0
"""Maximum seconds until a connection that cannot work fails."""

AUTHORITY = trustme.CA()
OTHER_AUTHORITY = trustme.CA()


def write(directory: Path, cert: trustme.LeafCert, name: str = "server") -> tuple[Path, Path]:
    cert_file, key_file = directory / f"{name}.pem", directory / f"{name}.key"
    cert_file.write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
    key_file.write_bytes(cert.private_key_pem.bytes())
    return cert_file, key_file


def server_tls(directory: Path, *, mutual: bool = False) -> ServerTls:
    cert_file, key_file = write(directory, AUTHORITY.issue_cert("127.0.0.1", "localhost"))
    if not mutual:
        return ServerTls(cert_file, key_file)
    authority = directory / "authority.pem"
    authority.write_bytes(AUTHORITY.cert_pem.bytes())
    return ServerTls(cert_file, key_file, authority)


def secure_channel(
    broker: EmbeddedBroker, authority: trustme.CA = AUTHORITY, client: trustme.LeafCert | None = None
) -> grpc.Channel:
    chain = b"".join(blob.bytes() for blob in client.cert_chain_pems) if client else None
    key = client.private_key_pem.bytes() if client else None
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), key, chain)
    return grpc.secure_channel(broker.endpoint.removeprefix("https://"), credentials)


def list_journals(channel: grpc.Channel) -> list[pb.ListResponse]:
    with channel:
        return list(pb_grpc.JournalStub(channel).List(pb.ListRequest(), timeout=CONNECT_S))


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    code: grpc.StatusCode = caught.value.code()
    return code


def test_serves_who_trusts_its_authority(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "root", tls=server_tls(tmp_path)) as broker:
        assert broker.endpoint == f"https://127.0.0.1:{broker.port}"
        header = list_journals(secure_channel(broker))[0].header
        assert header.process_id.suffix
        assert code_of(lambda: list_journals(secure_channel(broker, OTHER_AUTHORITY))) == (
            grpc.StatusCode.UNAVAILABLE
        )


def test_a_plain_client_gets_no_answer_and_no_hang(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "root", tls=server_tls(tmp_path)) as broker:
        channel = grpc.insecure_channel(broker.endpoint.removeprefix("https://"))
        assert code_of(lambda: list_journals(channel)) == grpc.StatusCode.UNAVAILABLE
    with EmbeddedBroker(tmp_path / "plain") as plain:
        credentials = grpc.ssl_channel_credentials(AUTHORITY.cert_pem.bytes())
        channel = grpc.secure_channel(plain.endpoint.removeprefix("http://"), credentials)
        assert code_of(lambda: list_journals(channel)) == grpc.StatusCode.UNAVAILABLE


def test_client_certificates(tmp_path: Path) -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = AUTHORITY.issue_cert("client", not_before=past - datetime.timedelta(days=1), not_after=past)
    with EmbeddedBroker(tmp_path / "root", tls=server_tls(tmp_path, mutual=True)) as broker:
        assert list_journals(secure_channel(broker, client=AUTHORITY.issue_cert("client")))
        for client in (None, OTHER_AUTHORITY.issue_cert("client"), expired):
            assert code_of(lambda client=client: list_journals(secure_channel(broker, client=client))) == (  # type: ignore[misc]  # mypy does not infer the default.
                grpc.StatusCode.UNAVAILABLE
            )


@pytest.mark.parametrize("kind", ["missing", "no-pem", "another-key", "password", "no-authority"])
def test_bad_files_are_refused_when_given(tmp_path: Path, kind: str) -> None:
    cert = AUTHORITY.issue_cert("127.0.0.1")
    cert_file, key_file = write(tmp_path, cert)
    authority: Path | None = None
    if kind == "missing":
        key_file.unlink()
    elif kind == "no-pem":
        cert_file.write_text("not a certificate")
    elif kind == "another-key":
        key_file.write_bytes(AUTHORITY.issue_cert("127.0.0.1").private_key_pem.bytes())
    elif kind == "password":
        key = load_pem_private_key(key_file.read_bytes(), None)
        encryption = BestAvailableEncryption(b"password")
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    else:
        authority = tmp_path / "not-there.pem"
    with pytest.raises(OptionError, match="tls") as caught:
        ServerTls(cert_file, key_file, authority)
    assert str(tmp_path) in str(caught.value)
    assert "PRIVATE" not in str(caught.value)


def test_old_protocols_are_refused(tmp_path: Path) -> None:
    assert server_tls(tmp_path).ssl_context().minimum_version == ssl.TLSVersion.TLSv1_2


def test_our_client_by_mutual_tls(tmp_path: Path) -> None:
    authority = tmp_path / "trusted.pem"
    authority.write_bytes(AUTHORITY.cert_pem.bytes())
    cert_file, key_file = write(tmp_path, AUTHORITY.issue_cert("client"), "client")
    known = TlsOptions(str(authority), str(cert_file), str(key_file))
    many = [f"tls/many-{number:02}" for number in range(MANY)]
    with EmbeddedBroker(tmp_path / "root", tls=server_tls(tmp_path, mutual=True)) as broker:
        with Client(broker.endpoint, tls=known, timeout_s=20) as client:
            client.create_journals(journal_spec("tls/journal"), *map(journal_spec, many))
            client.append("tls/journal", b"content")
            assert client.write_heads(many) == dict.fromkeys(many, 0)
            assert client.read("tls/journal", end_offset=7).read() == b"content"
        unknown = Client(broker.endpoint, tls=TlsOptions(str(authority)), timeout_s=CONNECT_S)
        with unknown, pytest.raises((TlsError, UnavailableError)):
            unknown.list_journals()


def test_http_ports_serve_tls_too(tmp_path: Path) -> None:
    trusted = ssl.create_default_context(cadata=AUTHORITY.cert_pem.bytes().decode())
    embedded = EmbeddedBroker(
        tmp_path / "root",
        storage=StorageSettings(fragment_urls="http"),
        gateway=GatewaySettings(),
        tls=server_tls(tmp_path),
    )
    with embedded as broker:
        authority = tmp_path / "trusted.pem"
        authority.write_bytes(AUTHORITY.cert_pem.bytes())
        with Client(broker.endpoint, tls=TlsOptions(str(authority)), timeout_s=20) as client:
            client.create_journals(journal_spec("tls/journal"))
            client.append("tls/journal", b"content")
            broker.flush()
            assert client.read("tls/journal", end_offset=7).read() == b"content"
            listed = client.list_fragments("tls/journal", signature_ttl_s=60)[0]
            with client.open_fragment(listed) as reader:
                assert reader.read() == b"content"
            url = listed.signed_url
        assert broker.gateway_endpoint is not None
        for each in (url, f"{broker.gateway_endpoint}/tls/journal"):
            assert each.startswith("https://127.0.0.1:")
            with urllib.request.urlopen(each, timeout=20, context=trusted) as response:
                assert response.read()
