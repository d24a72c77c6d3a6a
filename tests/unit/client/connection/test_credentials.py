"""Tokens claim what a call needs, certificates are checked when read, and no text shows a secret."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from gazette_spark.client import Client
from gazette_spark.client.connection.credentials import ANONYMOUS, Credentials, TlsOptions
from gazette_spark.errors import OptionError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.tokens import Capability, Claims, KeySet, journal_claims

KEYS = KeySet.parse("c2VjcmV0LWNhbmFyeQ==")
SECRET = "secret-canary"
CLAIMS = journal_claims(Capability.READ, "a/journal")
NOW = 1_700_000_000.0


def test_keys_sign_a_token_for_each_call() -> None:
    """A token claims what its call needs, and is valid for as long as the call asks."""
    credentials = Credentials(auth_keys=KEYS, clock=lambda: NOW)
    ((name, value),) = credentials.metadata(CLAIMS, 60)
    scheme, _, token = value.partition(" ")
    assert (name, scheme) == ("authorization", "Bearer")
    found = KEYS.verify(token, now=NOW)
    assert (found.capability, found.selector) == (CLAIMS.capability, CLAIMS.selector)
    assert found.expires_at == NOW + 60


def test_a_signed_token_is_fresh_each_time() -> None:
    """The clock is asked for each call."""
    times = iter([NOW, NOW + 5000])
    credentials = Credentials(auth_keys=KEYS, clock=lambda: next(times))
    tokens = [credentials.metadata(CLAIMS)[0][1].removeprefix("Bearer ") for _ in range(2)]
    ends = [
        KEYS.verify(token, now=at).expires_at for token, at in zip(tokens, (NOW, NOW + 5000), strict=True)
    ]
    assert ends == [NOW + 3600, NOW + 8600]


def test_a_token_is_sent_as_it_is() -> None:
    """A given token is sent unchanged, whatever the call claims."""
    assert Credentials("opaque").metadata(CLAIMS) == (("authorization", "Bearer opaque"),)


def test_neither_sends_no_header() -> None:
    """An anonymous call has no metadata."""
    assert ANONYMOUS.metadata(CLAIMS) == ()


def test_keys_win_over_a_token() -> None:
    """Keys win over a token, as in Gazette's tools."""
    ((_, value),) = Credentials("opaque", KEYS, clock=lambda: NOW).metadata(CLAIMS)
    assert KEYS.verify(value.removeprefix("Bearer "), now=NOW).capability == Capability.READ


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
    """A token that no header can carry is refused, and not shown."""
    with pytest.raises(OptionError, match="token") as caught:
        Credentials(token)
    assert SECRET not in str(caught.value)


def test_no_text_shows_a_secret() -> None:
    """Neither representations nor masked texts hold a token or key."""
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
    """A broker's text about tokens in general is kept."""
    text = "verifying Authorization: expected a Bearer token, got keyJar of 3"
    assert Credentials("opaque").masked(text) == text


class Files:
    """Certificates of one authority, as files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.authority = trustme.CA()
        self.ca_file = str(root / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca_file)
        self.cert_file, self.key_file = self.issue("client")

    def issue(self, name: str, not_after: datetime.datetime | None = None) -> tuple[str, str]:
        """Write a certificate and its key; return their paths."""
        issued = self.authority.issue_cert("localhost", not_after=not_after)
        cert_file, key_file = str(self.root / f"{name}.pem"), str(self.root / f"{name}.key")
        issued.private_key_pem.write_to_path(key_file)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(cert_file, append=True)
        return cert_file, key_file

    def encrypt(self, key_file: str) -> str:
        """Write the key under a password; return the path."""
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
    """An authority's certificate, a client's, and its key."""
    return Files(tmp_path)


def test_certificates_in_force(files: Files) -> None:
    """All three, or the authorities alone, make channel credentials."""
    for options in (
        TlsOptions(files.ca_file, files.cert_file, files.key_file),
        TlsOptions(files.ca_file),
        TlsOptions(cert_file=files.cert_file, key_file=files.key_file),
        TlsOptions(),
    ):
        assert isinstance(options.channel_credentials(), grpc.ChannelCredentials)
        assert "BEGIN" not in repr(options)


def test_a_certificate_without_its_key(files: Files) -> None:
    """Either alone is refused, by the other's name."""
    with pytest.raises(OptionError, match=r"tls\.key_file"):
        TlsOptions(cert_file=files.cert_file)
    with pytest.raises(OptionError, match=r"tls\.cert_file"):
        TlsOptions(key_file=files.key_file)


def test_a_missing_file(files: Files) -> None:
    """A missing file is named, with its option."""
    with pytest.raises(OptionError, match=r"tls\.ca_file.*nowhere\.pem.*No such file"):
        TlsOptions(str(files.root / "nowhere.pem"))


def test_what_is_not_pem(files: Files) -> None:
    """Binary, and PEM that holds no certificate."""
    binary = files.root / "cert.der"
    binary.write_bytes(b"\x30\x82")
    with pytest.raises(OptionError, match="not PEM"):
        TlsOptions(str(binary))
    with pytest.raises(OptionError, match="holds no certificate"):
        TlsOptions(files.key_file)
    broken = files.root / "broken.pem"
    broken.write_bytes(b"-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n")
    with pytest.raises(OptionError, match="holds no certificate"):
        TlsOptions(str(broken))


def test_an_expired_certificate(files: Files) -> None:
    """The error says when it ended."""
    ended = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    cert_file, key_file = files.issue("old", not_after=ended)
    with pytest.raises(OptionError, match=r"tls\.cert_file.*expired at 20200102030405Z"):
        TlsOptions(cert_file=cert_file, key_file=key_file)


def test_a_certificate_of_the_next_century(files: Files) -> None:
    """Years with four digits are read, too."""
    end = datetime.datetime(2150, 1, 1, tzinfo=datetime.UTC)
    cert_file, key_file = files.issue("long", not_after=end)
    assert TlsOptions(cert_file=cert_file, key_file=key_file).cert_file == cert_file


def test_a_key_of_another_certificate(files: Files) -> None:
    """Key and certificate have to belong together."""
    _, other = files.issue("other")
    with pytest.raises(OptionError, match=r"tls\.key_file.*KEY_VALUES_MISMATCH"):
        TlsOptions(cert_file=files.cert_file, key_file=other)


def test_an_encrypted_key(files: Files) -> None:
    """Nobody is asked for a password."""
    with pytest.raises(OptionError, match=r"tls\.key_file.*encrypted"):
        TlsOptions(cert_file=files.cert_file, key_file=files.encrypt(files.key_file))


def test_certificates_need_a_secure_address(files: Files) -> None:
    """Options that would be of no effect are refused."""
    with pytest.raises(OptionError, match="https://"):
        Client("http://127.0.0.1:1", tls=TlsOptions(files.ca_file))


def test_tls_options_are_pickled_without_keys(files: Files) -> None:
    """Files are read again where they arrive; key material does not travel."""
    options = TlsOptions(files.ca_file, files.cert_file, files.key_file)
    pickled = pickle.dumps(options)
    assert b"PRIVATE KEY" not in pickled
    assert pickle.loads(pickled) == options


def test_claims_of_any_selector() -> None:
    """A listing claims its own selector."""
    claims = Claims(Capability.LIST, pb.LabelSelector())
    ((_, value),) = Credentials(auth_keys=KEYS, clock=lambda: NOW).metadata(claims)
    assert KEYS.verify(value.removeprefix("Bearer "), now=NOW).selector == pb.LabelSelector()


def test_from_env(files: Files) -> None:
    """The variables of Gazette's tools are read; an empty one is as none."""
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
    """An error is about what the user has set, and shows no secret."""
    with pytest.raises(OptionError) as caught:
        Client.from_env({"BROKER_ADDRESS": "https://broker", variable: value})
    assert caught.value.option in (variable, "BROKER_CERT_KEY_FILE")
    assert SECRET not in str(caught.value)
