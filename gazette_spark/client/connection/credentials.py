"""A client's credentials: a bearer token with each call, certificates on each connection.

Tokens come ready-made, or are signed call by call from keys the client shares with the brokers. A signed
token claims just the capabilities of its call, and is new each time: a read that outlives its token ends
cleanly, and goes on with the next one. A ready-made one cannot be renewed.

Secrets stay out of every text: ``repr`` shows that there is a token or key and not which, errors name
the option and the file, and :meth:`Credentials.masked` masks tokens in foreign texts.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias

import grpc

from gazette_spark.errors import OptionError
from gazette_spark.protocol.tokens import LIFETIME_S, Claims, KeySet

Metadata: TypeAlias = tuple[tuple[str, str], ...]
"""Metadata that gRPC sends beside a request."""

_TOKEN_FORM = "printable ASCII without blanks"  # noqa: S105 - a form, no secret
_TOKEN = re.compile(r"[!-~]+")
_TOKENS_IN_TEXT = re.compile(r"(?<=Bearer )[\w.~+/=-]{12,}|\beyJ[\w-]*\.[\w-]*\.?[\w-]*")
"""A token in a foreign text, found by the text before it or by the start of every JWT."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Identity of a client. Immutable, for any thread; keys win over a token; without both, no token is sent.

    ``lifetime_s`` is the most that a signed token is valid, whatever its call asks for.
    """

    token: str | None = field(default=None, repr=False)
    auth_keys: KeySet | None = None
    lifetime_s: float = LIFETIME_S
    clock: Callable[[], float] = field(default=time.time, repr=False)

    def __post_init__(self) -> None:
        # Anything else gRPC refuses in a text that quotes it.
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise OptionError("token", "a value that is no token (not shown)", _TOKEN_FORM)

    def __repr__(self) -> str:
        shown = self.auth_keys or ("***" if self.token else None)
        return f"Credentials({shown})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Credentials cannot be pickled: they hold secrets")

    def metadata(self, claims: Claims | Callable[[], Claims], lifetime_s: float = LIFETIME_S) -> Metadata:
        """Return what a call sends that has to claim ``claims`` for ``lifetime_s`` at most.

        A function that makes the claims is called only if they are signed. It is for callers that make
        thousands of calls a second: a ready-made token claims what it claims.
        """
        token = self.token
        if self.auth_keys is not None:
            lifetime_s = min(lifetime_s, self.lifetime_s)
            signed = claims() if callable(claims) else claims
            token = self.auth_keys.sign(signed, now=self.clock(), lifetime_s=lifetime_s)
        return (("authorization", f"Bearer {token}"),) if token else ()

    def masked(self, text: str) -> str:
        """Return a text with all tokens in it replaced by ``***``."""
        text = _TOKENS_IN_TEXT.sub("***", text)
        return text.replace(self.token, "***") if self.token else text


ANONYMOUS = Credentials()
"""Sends no token."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Trusted authorities and client certificate of ``https`` connections. Files are read when this is made.

    Args:
        ca_file: PEM certificates of the authorities to trust, instead of the public ones.
        cert_file: PEM certificate, and those between it and an authority, for brokers that ask for one.
        key_file: its private key, PEM, not encrypted.

    Raises:
        OptionError: a file is missing, is not PEM or has expired, a key is encrypted or does not belong to
            its certificate, or one is given without the other.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    _ca: bytes | None = field(init=False, repr=False, default=None)
    _cert: bytes | None = field(init=False, repr=False, default=None)
    _key: bytes | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
            if getattr(self, one) and not getattr(self, other):
                raise OptionError(f"tls.{other}", f"nothing, but a tls.{one}", "both or none")
        for name in ("ca", "cert", "key"):
            if path := getattr(self, f"{name}_file"):
                object.__setattr__(self, f"_{name}", _read_pem(f"tls.{name}_file", path))
        self._check_certificates()
        if self.cert_file and self.key_file:
            _check_pair(self.cert_file, self.key_file)

    def __reduce__(self) -> tuple[type[TlsOptions], tuple[str | None, ...]]:
        """Pickle the paths: a key does not travel, the files are read where they arrive."""
        return TlsOptions, (self.ca_file, self.cert_file, self.key_file)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return gRPC's credentials for secure channels."""
        return grpc.ssl_channel_credentials(self._ca, self._key, self._cert)

    def _check_certificates(self) -> None:
        now = time.strftime("%Y%m%d%H%M%SZ", time.gmtime())
        for name, content in (("ca_file", self._ca), ("cert_file", self._cert)):
            path = getattr(self, name)
            if content is None:
                continue
            ends = [end for _, end in _validity_of_all(f"tls.{name}", path, content)]
            # Of a bundle of authorities, one that still holds is enough.
            last = max(ends) if name == "ca_file" else ends[0]
            if last < now:
                raise OptionError(
                    f"tls.{name}", f"{path!r}, which expired at {last}", "a certificate in force"
                )


def _read_pem(option: str, path: str) -> bytes:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(option, f"{path!r}: {error.strerror}", "a PEM file that can be read") from None
    if b"-----BEGIN " not in content:
        raise OptionError(option, f"{path!r}, which is not PEM", "a file with -----BEGIN … lines")
    return content


def _validity_of_all(option: str, path: str, content: bytes) -> list[tuple[str, str]]:
    blocks = re.findall(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", content, re.DOTALL)
    try:
        found = [_validity(ssl.PEM_cert_to_DER_cert(block.decode("ascii"))) for block in blocks]
    except (ValueError, IndexError):
        found = []
    if not found:
        raise OptionError(option, f"{path!r}, which holds no certificate", "a PEM certificate")
    return found


def _check_pair(cert_file: str, key_file: str) -> None:
    """Raise unless the key can be used and is the certificate's."""

    def no_password() -> NoReturn:
        raise OptionError("tls.key_file", f"{key_file!r}, which is encrypted", "a key without a password")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_cert_chain(cert_file, key_file, password=no_password)
    except ssl.SSLError as error:
        problem = f"{key_file!r}: {error.reason or 'it cannot be read'}"
        raise OptionError("tls.key_file", problem, f"the PEM private key of {cert_file!r}") from None


def _validity(der: bytes) -> tuple[str, str]:
    """Return begin and end of a certificate's validity, as ``YYYYMMDDHHMMSSZ``.

    The standard library has this for a connection's certificate only. A certificate is a sequence that
    begins with a sequence of: an optional version, serial number, algorithm, issuer, validity, ….
    """
    _, certificate, _ = _der_element(der)
    _, fields, _ = _der_element(certificate)
    tag, _, rest = _der_element(fields)
    fields = rest if tag == _DER_VERSION else fields
    for _ in range(3):
        _, _, fields = _der_element(fields)
    _, validity, _ = _der_element(fields)
    _, begin, rest = _der_element(validity)
    _, end, _ = _der_element(rest)
    return _full_year(begin), _full_year(end)


_DER_VERSION = 0xA0
_DER_LONG = 0x80
_SHORT_TIME = 13
"""Characters of a time whose year has two digits."""


def _der_element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return an element's tag, its content, and the data after it."""
    tag, size, at = data[0], data[1], 2
    if size & _DER_LONG:
        at += size & ~_DER_LONG
        size = int.from_bytes(data[2:at], "big")
    return tag, data[at : at + size], data[at + size :]


def _full_year(value: bytes) -> str:
    text = value.decode("ascii")
    if len(text) != _SHORT_TIME:
        return text
    return ("19" if text >= "50" else "20") + text
