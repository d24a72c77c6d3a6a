"""The options by which a query enters a secured cluster, the same for reading and for writing.

A query says who it is in one of three ways: a token, a file that holds one, or the keys that sign tokens.
Which authorities it trusts, and its client certificate, are files on the driver or their contents. Tasks need
none of the files: ``_planning.access`` reads them on the driver for each batch.

Spark masks the values of options whose names match its setting ``spark.redaction.regex``, by default those
with ``secret``, ``password``, ``token`` or ``access.key``. The names of secret values here do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gazette_spark._options.table import option, options_of
from gazette_spark._options.values import parse_file, parse_token
from gazette_spark.errors import OptionError
from gazette_spark.protocol.tokens import KeySet

CONTENTS = {"tls.caFile": "tls.ca", "tls.certFile": "tls.cert", "tls.keyFile": "tls.keySecret"}
"""Options that name files, and those that take the contents."""


def parse_keys(name: str, text: str) -> KeySet:
    """Parse signing keys; their text is never shown."""
    return KeySet.parse(text, name)


def parse_pem(name: str, text: str) -> bytes:
    """Parse the content of a PEM file, which is never shown."""
    if "-----BEGIN " not in text or not text.isascii():
        raise OptionError(name, "a text that is not PEM (not shown)", "PEM, with -----BEGIN … lines")
    return text.encode()


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """Says how brokers are entered. It can be pickled, secrets included, and shows none of them."""

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
        "File on the driver with the token to send, read again when it changes. A task reads the file, "
        "too, where it exists, else it has the token of its batch's planning.",
        name="auth.tokenFile",
        missing=None,
    )
    keys: KeySet | None = option(
        parse_keys,
        "Keys by which brokers verify tokens, as in BROKER_AUTH_KEYS. The first key signs a short-lived "
        "token for each request, which allows this request only.",
        name="auth.keysSecret",
        missing=None,
    )
    ca_file: str | None = option(
        parse_file,
        "PEM file on the driver with the certificates of the authorities to trust.",
        name="tls.caFile",
        shown_default="public authorities",
        missing=None,
    )
    cert_file: str | None = option(
        parse_file,
        "PEM file on the driver with the client's certificate, for brokers that ask for one. It needs a key.",
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

    def __repr__(self) -> str:
        set_fields = (field.name for field in fields(self) if getattr(self, field.name) is not None)
        return f"Security({', '.join(set_fields)})"


SECURITY_OPTIONS = options_of(Security)
"""The options, in the order in which they are checked and shown."""


OPEN = Security()
"""Neither token nor certificates."""


def take_security(values: dict[str, Any], texts: Mapping[str, str]) -> Security:
    """Take the options of this table out of all options' values.

    Args:
        values: by key, the broker's address among them.
        texts: texts of the options that were given, by name in lower case.

    Raises:
        OptionError: two options say the same, one lacks another, or they do not fit the address.
    """
    security = Security(*(values.pop(option.key) for option in SECURITY_OPTIONS))
    names = [option.name for option in SECURITY_OPTIONS if option.name.lower() in texts]
    identities = [name for name in names if name.startswith("auth.")]
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
    if encrypted and address.startswith("http://"):
        raise OptionError(encrypted[0], f"brokerAddress {address}", "to be used with https:// only")
    return security
