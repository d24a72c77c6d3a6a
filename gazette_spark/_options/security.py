"""The options with which a query accesses a secured cluster, the same for reading and writing.

A query identifies itself with a token, with a file that contains a token, or with the keys that sign tokens.
Its trusted authorities and its client certificate are files on the driver, or the contents of files. Tasks do
not need the files: ``_planning.access`` reads them on the driver for each batch.

Spark masks the values of options whose names match its setting ``spark.redaction.regex``, by default those
with ``secret``, ``password``, ``token`` or ``access.key``. The names of all secret options here match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gazette_spark._options.table import option, options_of
from gazette_spark._options.values import parse_file, parse_token
from gazette_spark.errors import OptionError
from gazette_spark.protocol.tokens import KeySet

CONTENTS = {"tls.caFile": "tls.ca", "tls.certFile": "tls.cert", "tls.keyFile": "tls.keySecret"}
"""Options that name files, and the corresponding options for the contents."""


def parse_keys(name: str, text: str) -> KeySet:
    """Parse signing keys. Errors never show the text."""
    return KeySet.parse(text, name)


def parse_pem(name: str, text: str) -> bytes:
    """Parse the content of a PEM file. Errors never show it."""
    if "-----BEGIN " not in text or not text.isascii():
        raise OptionError(name, "a text that is not PEM (not shown)", "PEM, with -----BEGIN … lines")
    return text.encode()


@dataclass(frozen=True, slots=True)
class CollectionAccess:
    """A collection of Estuary Flow, and the user who asks its control plane for access."""

    collection: str
    """Name of the collection, such as "acmeCo/orders"."""
    control_plane: str
    """URL of the control plane."""
    token: str | None = field(repr=False)
    """The user's access token; None if it is in a file."""
    token_file: str | None
    timeout_s: float
    """Seconds after which to give up, while the control plane asks to wait, is busy or does not answer."""


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """Credentials for brokers. They can be pickled with the secrets, but ``repr`` shows no secret."""

    token: str | None = option(
        parse_token,
        "Token sent with each request. It is never renewed: once it has expired, brokers refuse requests "
        "and the query fails.",
        section="Security",
        name="auth.token",
        missing=None,
    )
    token_file: str | None = option(
        parse_file,
        "File on the driver with the token to send, read again when it changes. A task reads the file as "
        "well if it exists there; otherwise it sends the token from the planning of its batch.",
        name="auth.tokenFile",
        missing=None,
    )
    keys: KeySet | None = option(
        parse_keys,
        "Keys with which brokers verify tokens, as in BROKER_AUTH_KEYS. The first key signs a short-lived "
        "token for each request, which allows only this request.",
        name="auth.keysSecret",
        missing=None,
    )
    ca_file: str | None = option(
        parse_file,
        "PEM file on the driver with the certificates of trusted authorities.",
        name="tls.caFile",
        shown_default="public authorities",
        missing=None,
    )
    cert_file: str | None = option(
        parse_file,
        "PEM file on the driver with the client's certificate, for brokers that require one. It needs a key.",
        name="tls.certFile",
        missing=None,
    )
    key_file: str | None = option(
        parse_file,
        "PEM file on the driver with the certificate's private key, without a password.",
        name="tls.keyFile",
        missing=None,
    )
    ca: bytes | None = option(
        parse_pem,
        "The file's content, instead of `tls.caFile`.",
        name="tls.ca",
        missing=None,
    )
    cert: bytes | None = option(
        parse_pem,
        "The file's content, instead of `tls.certFile`.",
        name="tls.cert",
        missing=None,
    )
    key: bytes | None = option(
        parse_pem,
        "The file's content, instead of `tls.keyFile`.",
        name="tls.keySecret",
        missing=None,
    )
    collection: CollectionAccess | None = None
    """Where the token for brokers comes from, on the driver; None without a collection of Estuary Flow."""
    broker_address: str | None = None
    """The collection's brokers, in a task."""

    def __repr__(self) -> str:
        set_fields = (one.name for one in fields(self) if getattr(self, one.name) is not None)
        return f"Security({', '.join(set_fields)})"


SECURITY_OPTIONS = options_of(Security)
"""The options, in the order in which they are checked and shown."""


OPEN = Security()
"""Neither token nor certificates."""


def take_security(values: dict[str, Any], texts: Mapping[str, str]) -> Security:
    """Remove the options of this table from all options' values, and return them.

    Args:
        values: Values by key, including the broker's address.
        texts: Texts of the options that are set, by name in lower case.

    Raises:
        OptionError: two options conflict, one requires another, or they do not fit the address.
    """
    # The options become one field, whose `repr` shows no secret.
    security = Security(*(values.pop(option.key) for option in SECURITY_OPTIONS))
    names = [option.name for option in SECURITY_OPTIONS if option.name.lower() in texts]
    identities = [name for name in names if name.startswith("auth.")]
    # Brokers see one identity per request, so the user must choose one.
    if len(identities) > 1:
        raise OptionError(" and ".join(identities), "more than one", "one of them")
    for file, content in CONTENTS.items():
        if file in names and content in names:
            raise OptionError(f"{file} and {content}", "both", "one of them: a file or its content")
    certs, keys = ("tls.certFile", "tls.cert"), ("tls.keyFile", "tls.keySecret")
    for present, absent in ((certs, keys), (keys, certs)):
        if not set(present).isdisjoint(names) and set(absent).isdisjoint(names):
            one = next(name for name in present if name in names)
            other = absent[present.index(one)]
            raise OptionError(other, f"nothing, but {one}", f"{' or '.join(absent)}: both or none")
    address: str = values["broker_address"] or ""
    encrypted = [name for name in names if name.startswith("tls.")]
    # A certificate for a connection in plain text shows that the user expects encryption.
    if encrypted and address.startswith("http://"):
        raise OptionError(encrypted[0], f"brokerAddress {address}", "to be used with https:// only")
    return security
