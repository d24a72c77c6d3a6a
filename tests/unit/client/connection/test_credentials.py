"""Tests tokens, token files and certificates, and that no text shows a secret."""

from __future__ import annotations

import datetime
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from gazette_spark.client import Client
from gazette_spark.client._transport.credentials import ANONYMOUS, Credentials, TlsOptions, TokenFile
from gazette_spark.errors import OptionError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.tokens import Capability, Claims, KeySet, journal_claims

KEYS = KeySet.parse("c2VjcmV0LWNhbmFyeQ==")
SECRET = "secret-canary"
CLAIMS = journal_claims(Capability.READ, "a/journal")
NOW = 1_700_000_000.0


def test_keys_sign_a_token_for_each_call() -> None:
    credentials = Credentials(auth_keys=KEYS, clock=lambda: NOW)
    ((name, value),) = credentials.metadata(CLAIMS, 60)
    scheme, _, token = value.partition(" ")
    assert (name, scheme) == ("authorization", "Bearer")
    found = KEYS.verify(token, now=NOW)
    assert (found.capability, found.selector) == (CLAIMS.capability, CLAIMS.selector)
    assert found.expires_at == NOW + 60


def test_a_signed_token_is_fresh_each_time() -> None:
    times = iter([NOW, NOW + 5000])
    credentials = Credentials(auth_keys=KEYS, clock=lambda: next(times))
    tokens = [credentials.metadata(CLAIMS)[0][1].removeprefix("Bearer ") for _ in range(2)]
    ends = [
        KEYS.verify(token, now=at).expires_at for token, at in zip(tokens, (NOW, NOW + 5000), strict=True)
    ]
    assert ends == [NOW + 3600, NOW + 8600]


def test_a_token_is_sent_as_it_is() -> None:
    assert Credentials("opaque").metadata(CLAIMS) == (("authorization", "Bearer opaque"),)


def test_neither_sends_no_header() -> None:
    assert ANONYMOUS.metadata(CLAIMS) == ()


def test_keys_win_over_a_token() -> None:
    """As in Gazette's tools."""
    ((_, value),) = Credentials("opaque", KEYS, clock=lambda: NOW).metadata(CLAIMS)
    assert KEYS.verify(value.removeprefix("Bearer "), now=NOW).capability == Capability.READ


def put(path: Path, text: str) -> None:
    """Replace a file by a rename, as a careful writer does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    credentials = Credentials(token_source=TokenFile(str(path)))
    assert credentials.metadata(CLAIMS) == (("authorization", "Bearer first"),)
    put(path, " second ")
    assert credentials.metadata(CLAIMS) == (("authorization", "Bearer second"),)
    path.write_text("third, in place"[:5])
    assert credentials.metadata(CLAIMS) == (("authorization", "Bearer third"),)


def test_a_token_file_is_not_read_without_need(tmp_path: Path) -> None:
    """A client may make thousands of calls a second, so an unchanged file must not be opened."""
    path = tmp_path / "token"
    path.write_text("first")
    source = TokenFile(str(path))
    before = path.stat()
    path.write_text("other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.token() == "first"


@pytest.mark.parametrize("state", ["gone", "empty", "no token"])
def test_a_token_file_in_the_middle_of_a_change(
    tmp_path: Path, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Keep using the last valid token, and log one warning per change without the content."""
    path = tmp_path / "token"
    path.write_text("first")
    source = TokenFile(str(path))
    if state == "gone":
        path.unlink()
    else:
        put(path, "" if state == "empty" else f"{SECRET} and more")
    with caplog.at_level(logging.WARNING):
        assert [source.token(), source.token()] == ["first", "first"]
    assert len(caplog.records) == (0 if state == "gone" else 1)
    assert SECRET not in caplog.text
    put(path, "second")
    assert source.token() == "second"


def test_a_token_until_its_file_is_there(tmp_path: Path) -> None:
    """A task on a machine without the file uses the token that the driver read."""
    path = tmp_path / "token"
    source = TokenFile(str(path), "the-driver's")
    assert source.token() == "the-driver's"
    path.write_text("own")
    assert source.token() == "own"


@pytest.mark.parametrize("content", [None, "", f"{SECRET} two", f"{SECRET}\u00e9"])
def test_a_bad_token_file_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(OptionError, match=r"auth\.tokenFile.*token") as caught:
        Client("http://127.0.0.1:1", token_file=str(path))
    assert SECRET not in str(caught.value)


def test_keys_win_over_a_token_file(tmp_path: Path) -> None:
    Client("http://127.0.0.1:1", token_file=str(tmp_path / "none"), auth_keys="c2VjcmV0").close()


def test_a_token_of_a_file_is_masked(tmp_path: Path) -> None:
    """A broker may repeat the token in its error text."""
    path = tmp_path / "token"
    path.write_text(SECRET)
    credentials = Credentials(token_source=TokenFile(str(path)))
    assert credentials.masked(f"no: {SECRET}") == "no: ***"
    assert SECRET not in repr(credentials)


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="empty"),
        pytest.param(f"{SECRET}\r\nx: y", id="header injection"),
        pytest.param(f"{SECRET} two", id="blank"),
        pytest.param(f"{SECRET}é", id="not ASCII"),
    ],
)
def test_bad_tokens(token: str) -> None:
    with pytest.raises(OptionError, match="token") as caught:
        Credentials(token)
    assert SECRET not in str(caught.value)


def test_no_text_shows_a_secret() -> None:
    signed = KEYS.sign(CLAIMS, now=NOW)
    opaque = Credentials(f"opaque-{SECRET}")
    masked = opaque.masked(f"no: opaque-{SECRET}, Bearer {signed[:40]}, {signed!r} or {signed[:-30]}")
    shown = [repr(opaque), repr(Credentials(auth_keys=KEYS)), repr(KEYS), masked]
    with Client("http://127.0.0.1:1", token=f"opaque-{SECRET}") as client:
        shown.append(repr(client))
    with Client("http://127.0.0.1:1", auth_keys="c2VjcmV0LWNhbmFyeQ==") as client:
        shown += [repr(client), repr(vars(client))]
    for text in shown:
        assert SECRET not in text
        assert "c2VjcmV0" not in text
        assert signed[:20] not in text
    assert masked == "no: ***, Bearer ***, '***' or ***"


def test_texts_without_a_token_stay() -> None:
    text = "verifying Authorization: expected a Bearer token, got keyJar of 3"
    assert Credentials("opaque").masked(text) == text


class Files:
    """The certificates of one authority, as files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.authority = trustme.CA()
        self.ca_file = str(root / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca_file)
        self.cert_file, self.key_file = self.issue("client")

    def issue(self, name: str, not_after: datetime.datetime | None = None) -> tuple[str, str]:
        issued = self.authority.issue_cert("localhost", not_after=not_after)
        cert_file, key_file = str(self.root / f"{name}.pem"), str(self.root / f"{name}.key")
        issued.private_key_pem.write_to_path(key_file)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(cert_file, append=True)
        return cert_file, key_file

    def encrypt(self, key_file: str) -> str:
        key = serialization.load_pem_private_key(Path(key_file).read_bytes(), None)
        path = self.root / "encrypted.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(SECRET.encode()),
            )
        )
        return str(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_certificates_in_force(files: Files) -> None:
    for options in (
        TlsOptions(files.ca_file, files.cert_file, files.key_file),
        TlsOptions(files.ca_file),
        TlsOptions(cert_file=files.cert_file, key_file=files.key_file),
        TlsOptions(),
    ):
        assert isinstance(options.channel_credentials(), grpc.ChannelCredentials)
        assert "BEGIN" not in repr(options)


def test_a_certificate_without_its_key(files: Files) -> None:
    with pytest.raises(OptionError, match=r"tls\.keyFile"):
        TlsOptions(cert_file=files.cert_file)
    with pytest.raises(OptionError, match=r"tls\.certFile"):
        TlsOptions(key_file=files.key_file)


def test_a_missing_file(files: Files) -> None:
    with pytest.raises(OptionError, match=r"tls\.caFile.*nowhere\.pem.*No such file"):
        TlsOptions(str(files.root / "nowhere.pem"))


def test_what_is_not_pem(files: Files) -> None:
    binary = files.root / "cert.der"
    binary.write_bytes(b"\x30\x82")
    with pytest.raises(OptionError, match="not PEM"):
        TlsOptions(str(binary))
    with pytest.raises(OptionError, match="has no certificate"):
        TlsOptions(files.key_file)
    broken = files.root / "broken.pem"
    broken.write_bytes(b"-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n")
    with pytest.raises(OptionError, match="has no certificate"):
        TlsOptions(str(broken))


def test_an_expired_certificate(files: Files) -> None:
    ended = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    cert_file, key_file = files.issue("old", not_after=ended)
    with pytest.raises(OptionError, match=r"tls\.certFile.*expired at 20200102030405Z"):
        TlsOptions(cert_file=cert_file, key_file=key_file)


def test_a_certificate_of_the_next_century(files: Files) -> None:
    """X.509 writes years after 2049 with four digits."""
    end = datetime.datetime(2150, 1, 1, tzinfo=datetime.UTC)
    cert_file, key_file = files.issue("long", not_after=end)
    assert TlsOptions(cert_file=cert_file, key_file=key_file).cert_file == cert_file


def test_a_key_of_another_certificate(files: Files) -> None:
    _, other = files.issue("other")
    with pytest.raises(OptionError, match=r"tls\.keyFile.*KEY_VALUES_MISMATCH"):
        TlsOptions(cert_file=files.cert_file, key_file=other)


def test_an_encrypted_key(files: Files) -> None:
    """The client must not prompt for a password."""
    with pytest.raises(OptionError, match=r"tls\.keyFile.*encrypted"):
        TlsOptions(cert_file=files.cert_file, key_file=files.encrypt(files.key_file))


def test_certificates_need_a_secure_address(files: Files) -> None:
    """TLS options without TLS would have no effect."""
    with pytest.raises(OptionError, match="https://"):
        Client("http://127.0.0.1:1", tls=TlsOptions(files.ca_file))


def test_tls_options_are_pickled_without_keys(files: Files) -> None:
    """The receiver reads the files again."""
    options = TlsOptions(files.ca_file, files.cert_file, files.key_file)
    pickled = pickle.dumps(options)
    assert b"PRIVATE KEY" not in pickled
    assert pickle.loads(pickled) == options


def contents(files: Files) -> dict[str, Any]:
    names = {"ca": files.ca_file, "cert": files.cert_file, "key": files.key_file}
    return {name: Path(path).read_bytes() for name, path in names.items()}


def test_contents_in_place_of_files(files: Files) -> None:
    options = TlsOptions(**contents(files))
    by_file = TlsOptions(files.ca_file, files.cert_file, files.key_file)
    assert (options.authorities, options.pair) == (by_file.authorities, by_file.pair)
    assert "BEGIN" not in repr(options)
    with pytest.raises(TypeError, match="contain a secret"):
        pickle.dumps(options)


def test_bad_contents_are_named_by_their_option(files: Files) -> None:
    """Contents have other option names than files do."""
    good = contents(files)
    _, other = files.issue("other")
    encrypted = Path(files.encrypt(files.key_file)).read_bytes()
    for changed, match in (
        ({"ca": b"no pem"}, r"'tls\.ca'.*not shown.*not PEM"),
        ({"cert": good["key"]}, r"'tls\.cert'.*no certificate"),
        ({"key": Path(other).read_bytes()}, r"'tls\.keySecret'.*KEY_VALUES_MISMATCH"),
        ({"key": encrypted}, r"'tls\.keySecret'.*encrypted"),
        ({"key": None}, r"'tls\.keySecret'.*both or none"),
        ({"ca_file": files.ca_file}, r"tls\.caFile and tls\.ca.*one of them"),
    ):
        with pytest.raises(OptionError, match=match) as caught:
            TlsOptions(**{**good, **changed})
        assert "BEGIN" not in str(caught.value).replace("-----BEGIN …", "")


def test_changed_files_are_taken_when_they_fit(files: Files) -> None:
    """A new certificate is used only once its key is there, too."""
    options = TlsOptions(files.ca_file, files.cert_file, files.key_file)
    assert options.refreshed() is options
    cert_file, key_file = files.issue("fresh")
    Path(cert_file).rename(files.cert_file)
    assert options.refreshed() is options
    Path(key_file).rename(files.key_file)
    fresh = options.refreshed()
    assert fresh.pair == (Path(files.cert_file).read_bytes(), Path(files.key_file).read_bytes())
    assert fresh.refreshed() is fresh


def test_claims_of_any_selector() -> None:
    claims = Claims(Capability.LIST, pb.LabelSelector())
    ((_, value),) = Credentials(auth_keys=KEYS, clock=lambda: NOW).metadata(claims)
    assert KEYS.verify(value.removeprefix("Bearer "), now=NOW).selector == pb.LabelSelector()


def test_from_env(files: Files) -> None:
    """Read the variables of Gazette's tools; an empty variable counts as missing."""
    env = {
        "BROKER_ADDRESS": "https://broker:9",
        "BROKER_AUTH_KEYS": "c2VjcmV0LWNhbmFyeQ==",
        "BROKER_AUTH_TOKEN": "",
        "BROKER_TRUSTED_CA_FILE": files.ca_file,
        "BROKER_CERT_FILE": files.cert_file,
        "BROKER_CERT_KEY_FILE": files.key_file,
    }
    with Client.from_env(env) as client:
        assert client.endpoint == "https://broker:9"
    with Client.from_env({}) as client:
        assert client.endpoint == "http://localhost:8080"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BROKER_ADDRESS", "localhost:8080"),
        ("BROKER_AUTH_KEYS", f"{SECRET}!"),
        ("BROKER_AUTH_TOKEN", f"{SECRET}\n"),
        ("BROKER_TRUSTED_CA_FILE", "/nowhere/ca.pem"),
        ("BROKER_CERT_FILE", "/nowhere/cert.pem"),
    ],
)
def test_from_env_names_the_variable(variable: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        Client.from_env({"BROKER_ADDRESS": "https://broker", variable: value})
    assert caught.value.option in (variable, "BROKER_CERT_KEY_FILE")
    assert SECRET not in str(caught.value)
