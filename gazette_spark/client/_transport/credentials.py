"""Holds a client's credentials: a bearer token for each call, certificates for each connection.

A token is fixed, or comes from a file or a function, or is signed for each call with keys that the client
shares with the brokers. A signed token claims only the capabilities of its call. A read that outlives its
token ends cleanly and continues with the next one. The same is true for a file, if it gets a new token in
time. A fixed token cannot be renewed.

Certificates and keys are files, which are checked for changes at each connection, or their contents.

No text contains secrets: ``repr`` shows only that there is a token or key, errors name the option and the
file, and :meth:`Credentials.masked` masks tokens in texts from elsewhere.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self, TypeAlias

import grpc

from gazette_spark.client._transport import certificates
from gazette_spark.errors import OptionError
from gazette_spark.protocol.tokens import LIFETIME_S, Claims, KeySet

Metadata: TypeAlias = tuple[tuple[str, str], ...]
"""Metadata that gRPC sends with a request."""

log = logging.getLogger(__name__)

_TOKEN_FORM = "printable ASCII without blanks"  # noqa: S105 - a form, no secret
_TOKEN = re.compile(r"[!-~]+")
_TOKENS_IN_TEXT = re.compile(r"(?<=Bearer )[\w.~+/=-]{12,}|\beyJ[\w-]*\.[\w-]*(?:\.[\w-]*)?")
"""A token in any text, recognised by the text before it or by the prefix of every JWT."""


Stamp: TypeAlias = tuple[int, int, int] | None
"""A value that changes with a file's content; None for a file that cannot be examined."""


def _stamp(path: str) -> Stamp:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


class TokenFile:
    """A file that contains a token, read again when it changes. Thread-safe.

    While it cannot be read, or has no token, the last token stays in use, because the file may be about to be
    written.
    """

    def __init__(self, path: str, fallback: str | None = None) -> None:
        """Read the file.

        Args:
            path: Path of the file. Blanks and newlines around the token are ignored.
            fallback: Token to use until the file can be read. Without it, the file must be readable now.

        Raises:
            OptionError: there is no token, neither in the file nor as ``fallback``.
        """
        self.path = path
        self._lock = threading.Lock()
        self._stamp: Stamp = None
        self._token = fallback or ""
        try:
            self._read()
        except OptionError:
            if not fallback:
                raise

    def __repr__(self) -> str:
        return f"TokenFile({self.path!r})"

    def token(self) -> str:
        """Return the current token."""
        with self._lock:
            stamp = _stamp(self.path)
            # Check the file's status at each call, because a rotated token must be in use before the old one
            # expires.
            if stamp is not None and stamp != self._stamp:
                try:
                    self._read()
                except OptionError as error:
                    self._stamp = stamp  # So that each change causes only one warning.
                    log.warning("token file cannot be used, its last token stays in use: %s", error)
            return self._token

    def known(self) -> str:
        """Return the last token without reading the file."""
        return self._token

    def _read(self) -> None:
        stamp = _stamp(self.path)
        self._token = read_token(self.path)
        self._stamp = stamp


class TokenFunction:
    """A function that returns the current token. It is called for each request, by any thread."""

    def __init__(self, function: Callable[[], str]) -> None:
        self._function = function
        self._token = ""

    def __repr__(self) -> str:
        return "TokenFunction()"

    def token(self) -> str:
        """Return the current token.

        Raises:
            OptionError: the function returned something else. It is not shown.
        """
        token = self._function()
        if not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise OptionError("token", "a function whose result is not a token (not shown)", _TOKEN_FORM)
        self._token = token
        return token

    def known(self) -> str:
        """Return the last token without calling the function."""
        return self._token


def read_token(path: str) -> str:
    """Return the token in a file, without the blanks around it.

    Raises:
        OptionError: the file cannot be read or has no token. The content is not shown.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError("auth.tokenFile", f"{path!r}: {error.strerror}", "a readable file") from None
    token = content.decode("ascii", errors="replace").strip()
    if not _TOKEN.fullmatch(token):
        got = f"{path!r}, which has no valid token (not shown)" if token else f"{path!r}, which is empty"
        raise OptionError("auth.tokenFile", got, f"a file with one token, {_TOKEN_FORM}")
    return token


@dataclass(frozen=True, slots=True)
class Credentials:
    """The identity of a client. Immutable. Without keys, file or token, no token is sent.

    Keys override a file or a function, and these override a token. ``lifetime_s`` is the maximum validity of
    a signed token, regardless of its call.
    """

    token: str | None = field(default=None, repr=False)
    auth_keys: KeySet | None = None
    lifetime_s: float = LIFETIME_S
    clock: Callable[[], float] = field(default=time.time, repr=False)
    token_source: TokenFile | TokenFunction | None = None
    """Returns the token of each call, in place of ``token``."""

    @classmethod
    def given(
        cls,
        token: str | Callable[[], str] | None,
        token_file: str | None,
        auth_keys: str | KeySet | None,
    ) -> Self:
        """Return the identity from a client's arguments of these names.

        Raises:
            OptionError: an argument is invalid. Its value is not shown.
        """
        keys = KeySet.parse(auth_keys, "auth_keys") if isinstance(auth_keys, str) else auth_keys
        if callable(token):
            if token_file:
                raise OptionError("token and token_file", "a function, and a file", "one of them")
            return cls(None, keys, token_source=TokenFunction(token) if keys is None else None)
        file = TokenFile(token_file, token) if token_file and keys is None else None
        return cls(token, keys, token_source=file)

    def __post_init__(self) -> None:
        # gRPC refuses any other value with a text that quotes it.
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise OptionError("token", "a value that is not a token (not shown)", _TOKEN_FORM)

    def __repr__(self) -> str:
        shown = self.auth_keys or self.token_source or ("***" if self.token else None)
        return f"Credentials({shown})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Credentials cannot be pickled: they contain secrets")

    def metadata(self, claims: Claims | Callable[[], Claims], lifetime_s: float = LIFETIME_S) -> Metadata:
        """Return the metadata of a call with these claims, valid for at most ``lifetime_s``.

        A function that returns the claims is called only if they are signed, which saves time for callers
        that make thousands of calls a second.
        """
        if self.auth_keys is not None:
            lifetime_s = min(lifetime_s, self.lifetime_s)
            signed = claims() if callable(claims) else claims
            token: str | None = self.auth_keys.sign(signed, now=self.clock(), lifetime_s=lifetime_s)
        else:
            token = self.token_source.token() if self.token_source is not None else self.token
        return (("authorization", f"Bearer {token}"),) if token else ()

    def masked(self, text: str) -> str:
        """Return a text with all tokens in it replaced by ``***``."""
        text = _TOKENS_IN_TEXT.sub("***", text)
        for token in (self.token, self.token_source and self.token_source.known()):
            text = text.replace(token, "***") if token else text
        return text


ANONYMOUS = Credentials()
"""Credentials without a token."""

PARTS = ("ca", "cert", "key")
"""The parts of :class:`TlsOptions`, each a file or its content."""

_OPTION_OF_FILE = {"ca": "tls.caFile", "cert": "tls.certFile", "key": "tls.keyFile"}
_OPTION_OF_CONTENT = {"ca": "tls.ca", "cert": "tls.cert", "key": "tls.keySecret"}


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Trusted authorities and client certificate of ``https`` connections.

    Files are read on creation, and again by :meth:`refreshed`. Contents are PEM, too.

    Args:
        ca_file: PEM certificates of the trusted authorities, instead of the public ones.
        cert_file: PEM certificate, and those between it and an authority, for brokers that require one.
        key_file: The certificate's private key, PEM, not encrypted.
        ca: Content instead of ``ca_file``.
        cert: Content instead of ``cert_file``.
        key: Content instead of ``key_file``.

    Raises:
        OptionError: a file is missing, is not PEM or has expired; a key is encrypted or does not belong to
            its certificate; one is set without the other; or a file is set together with its content.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    _read: dict[str, bytes] = field(init=False, repr=False, compare=False)
    _stamps: tuple[Stamp, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stamps", self._stamps_now())
        object.__setattr__(self, "_read", {})
        for part in PARTS:
            path, content = getattr(self, f"{part}_file"), getattr(self, part)
            if path and content:
                both = f"{_OPTION_OF_FILE[part]} and {_OPTION_OF_CONTENT[part]}"
                raise OptionError(both, "both", "one of them: a file or its content")
            if path:
                try:
                    content = Path(path).read_bytes()
                except OSError as error:
                    got = f"{path!r}: {error.strerror}"
                    raise OptionError(_OPTION_OF_FILE[part], got, "a PEM file that can be read") from None
            if content:
                certificates.check_pem(*self._named(part), content)
                self._read[part] = content
        for one, other in (("cert", "key"), ("key", "cert")):
            if one in self._read and other not in self._read:
                files = self.cert_file or self.key_file
                name = (_OPTION_OF_FILE if files else _OPTION_OF_CONTENT)[other]
                raise OptionError(name, f"nothing, but a {one}", "both or none")
        for part in ("ca", "cert"):
            if content := self._read.get(part):
                certificates.check_in_force(*self._named(part), content, bundle=part == "ca")
        if "key" in self._read:
            certificates.check_pair(*self._named("key"), self._read["cert"], self._read["key"])

    def __reduce__(self) -> tuple[type[TlsOptions], tuple[str | bytes | None, ...]]:
        """Pickle only the paths, without keys. The files are read again where the object is unpickled."""
        if self.key:
            raise TypeError("TlsOptions of a key's content cannot be pickled: they contain a secret")
        return TlsOptions, (self.ca_file, self.cert_file, self.key_file, self.ca, self.cert)

    @property
    def authorities(self) -> bytes | None:
        """Content of the trusted certificates; None for the public ones."""
        return self._read.get("ca")

    @property
    def pair(self) -> tuple[bytes, bytes] | None:
        """Content of the client's certificate and of its key."""
        return (self._read["cert"], self._read["key"]) if "key" in self._read else None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return gRPC's credentials for secure channels."""
        cert, key = self.pair or (None, None)
        return grpc.ssl_channel_credentials(self.authorities, key, cert)

    def refreshed(self) -> TlsOptions:
        """Return this object, or a new one if the files have changed and can be used."""
        if self._stamps_now() == self._stamps:
            return self
        try:
            return TlsOptions(self.ca_file, self.cert_file, self.key_file, self.ca, self.cert, self.key)
        except OptionError:
            return self  # A certificate may be replaced before its key: the next connection checks again.

    def _stamps_now(self) -> tuple[Stamp, ...]:
        return tuple(_stamp(path) for path in (self.ca_file, self.cert_file, self.key_file) if path)

    def _named(self, part: str) -> tuple[str, str]:
        """Return the option of a part, and its name in errors."""
        path = getattr(self, f"{part}_file")
        if path:
            return _OPTION_OF_FILE[part], repr(path)
        return _OPTION_OF_CONTENT[part], "content (not shown)"
