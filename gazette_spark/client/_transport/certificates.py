"""Checks whether PEM certificates are valid now, and whether a certificate and a key belong together.

The functions take bytes, which come from files or from a query's options. Errors name the option, and the
file if there is one. They never show a key.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO, NoReturn

from gazette_spark.errors import OptionError

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def check_pem(option: str, shown: str, content: bytes) -> None:
    """Raise an OptionError if the content is not PEM."""
    if b"-----BEGIN " not in content:
        raise OptionError(option, f"{shown}, which is not PEM", "PEM, with -----BEGIN … lines")


def check_in_force(option: str, shown: str, content: bytes, *, bundle: bool) -> None:
    """Raise an OptionError if a certificate has expired, or, in a bundle of authorities, all have."""
    blocks = _BLOCK.findall(content)
    try:
        # A bundle of authorities may contain some that have expired. One that is valid is enough.
        ends = [_expiry(ssl.PEM_cert_to_DER_cert(block.decode("ascii"))) for block in blocks]
    except (ValueError, IndexError):
        ends = []
    if not ends:
        raise OptionError(option, f"{shown}, which has no certificate", "a PEM certificate")
    # A file of a certificate begins with the certificate itself; those of its authorities follow.
    last = max(ends) if bundle else ends[0]
    if last < time.strftime("%Y%m%d%H%M%SZ", time.gmtime()):
        raise OptionError(option, f"{shown}, which expired at {last}", "a valid certificate")


def check_pair(option: str, shown: str, cert: bytes, key: bytes) -> None:
    """Raise an OptionError if the key is unusable or does not belong to the certificate.

    Args:
        option: Name of the key's option.
        shown: Name of the key in errors.
        cert: PEM certificate, and those between it and an authority.
        key: PEM private key.
    """

    def no_password() -> NoReturn:
        raise OptionError(option, f"{shown}, which is encrypted", "a key without a password")

    try:
        # gRPC would report a key that does not match only as a connection that failed.
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert, key, no_password)
    except ssl.SSLError as error:
        problem = f"{shown}: {error.reason or 'it cannot be read'}"
        raise OptionError(option, problem, "the PEM private key of the certificate") from None


def load_pair(
    context: ssl.SSLContext,
    cert: bytes,
    key: bytes,
    password: Callable[[], str] = lambda: "",  # Otherwise OpenSSL would prompt on the terminal.
) -> None:
    """Make a context present a certificate."""
    with ExitStack() as stack:
        # The standard library reads a key only from a file. A file in memory has no name that another process
        # could open. On systems without them, a temporary file is readable only by its owner.
        if hasattr(os, "memfd_create"):
            file: IO[bytes] = stack.enter_context(os.fdopen(os.memfd_create("pem"), "wb"))
            path = f"/proc/self/fd/{file.fileno()}"
        else:
            file = stack.enter_context(tempfile.NamedTemporaryFile())
            path = file.name
        file.write(cert.rstrip() + b"\n" + key)
        file.flush()
        context.load_cert_chain(path, password=password)


def _expiry(der: bytes) -> str:
    """Return when a certificate expires, as ``YYYYMMDDHHMMSSZ``.

    The standard library only has this for the certificate of a connection. A certificate is a sequence that
    begins with a sequence of: an optional version, serial number, algorithm, issuer, validity, ….
    """
    _, certificate, _ = _der_element(der)
    _, fields, _ = _der_element(certificate)
    tag, _, rest = _der_element(fields)
    # Only certificates of version 1 omit the version.
    fields = rest if tag == _DER_VERSION else fields
    for _ in range(3):
        _, _, fields = _der_element(fields)
    _, validity, _ = _der_element(fields)
    _, _, rest = _der_element(validity)
    _, end, _ = _der_element(rest)
    text = end.decode("ascii")
    if len(text) != _SHORT_TIME:
        return text
    # The rule of X.509 for years of two digits.
    return ("19" if text >= "50" else "20") + text


_DER_VERSION = 0xA0
_DER_LONG = 0x80
_SHORT_TIME = 13
"""Length of a time whose year has two digits."""


def _der_element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return an element's tag, its content, and the data after it."""
    tag, size, at = data[0], data[1], 2
    # In the long form the first byte is the number of bytes of the length.
    if size & _DER_LONG:
        at += size & ~_DER_LONG
        size = int.from_bytes(data[2:at], "big")
    return tag, data[at : at + size], data[at + size :]
