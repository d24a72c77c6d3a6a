"""Go's client uses brokers that require keys or certificates, and only with the right ones."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.broker import ServerTls
from gazette_spark.client import TlsOptions
from tests.conformance.goclient import end_of, run_go
from tests.conformance.wire import spec
from tests.rig.brokers import BrokerHandle, DeployedBroker

KEY, STRANGE = (base64.b64encode(text * 16).decode() for text in (b"key!", b"odd!"))


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)]
)
def keyed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    directory = tmp_path_factory.mktemp("keyed")
    if request.param == "embedded":
        with EmbeddedBroker(directory, auth_keys=KEY) as embedded:
            yield BrokerHandle(embedded.endpoint, directory)
        return
    with DeployedBroker(directory, auth_keys=KEY) as deployed:
        yield deployed


def test_go_signs_as_python_does(keyed: BrokerHandle, journal_name: str) -> None:
    flags = [f"--journal={journal_name}", f"--auth-keys={KEY}"]
    with Client(keyed.endpoint, auth_keys=KEY, timeout_s=30) as client:
        client.create_journals(spec(journal_name))
        client.append(journal_name, b"ours ")
        end_of(run_go(keyed.endpoint, "append", *flags, content=b"theirs"))
        assert end_of(run_go(keyed.endpoint, "reader", *flags))["bytes"] == len(b"ours theirs")
        with client.read(journal_name) as reader:
            assert reader.read() == b"ours theirs"
    for refused in ([f"--auth-keys={STRANGE}"], []):
        end = run_go(keyed.endpoint, "append", f"--journal={journal_name}", *refused, content=b"x")[-1]
        assert "Unauthenticated" in end["error"]


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    authority = trustme.CA()
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    for name, host in (("server", "127.0.0.1"), ("client", "client")):
        issued = authority.issue_cert(host)
        (tmp_path / f"{name}.pem").write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
        (tmp_path / f"{name}.key").write_bytes(issued.private_key_pem.bytes())
    return tmp_path


def test_go_shows_its_certificate(certificates: Path, journal_name: str) -> None:
    server, key, ca = (certificates / name for name in ("server.pem", "server.key", "ca.pem"))
    cert_file, key_file = certificates / "client.pem", certificates / "client.key"
    with EmbeddedBroker(certificates / "root", tls=ServerTls(server, key, ca)) as broker:
        tls = TlsOptions(ca_file=str(ca), cert_file=str(cert_file), key_file=str(key_file))
        trust = [f"--journal={journal_name}", f"--ca-file={ca}"]
        shown = [f"--cert-file={cert_file}", f"--key-file={key_file}", "--cache-size=4"]
        with Client(broker.endpoint, tls=tls, timeout_s=30) as client:
            client.create_journals(spec(journal_name))
            client.append(journal_name, b"ours ")
            for content in (b"theirs ", b"again"):
                end_of(run_go(broker.endpoint, "append", *trust, *shown, content=content))
            with client.read(journal_name) as reader:
                assert reader.read() == b"ours theirs again"
        assert end_of(run_go(broker.endpoint, "retry-reader", *trust, *shown))["bytes"] == 17
