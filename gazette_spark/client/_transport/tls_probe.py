"""Finds out why TLS fails, because gRPC reports a refused certificate only as a closed connection."""

from __future__ import annotations

import re
import socket
import ssl
from contextlib import suppress

from gazette_spark.client._transport.certificates import load_pair

PROBE_TIMEOUT_S = 2.0
"""Timeout of the probe's handshake, in seconds."""

_HANDSHAKE_FAILED = re.compile(
    r"SSL_ERROR_SSL: (?>.*?OPENSSL_internal:)([^:]+(?:: [a-z][^:]*)?)|Hostname Verif"
)
_CLOSED = re.compile(
    r"failed to connect.*(Socket closed|Connection reset|Broken pipe|Unwrap failed)", re.DOTALL
)
_HINTS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS, so the address must begin with http://",
    "CERTIFICATE_VERIFY_FAILED": "its certificate cannot be trusted",
}


def handshake_problem(details: str) -> str:
    """Return why a handshake cannot succeed, from a failed call's text; empty if the text has no reason."""
    failure = _HANDSHAKE_FAILED.search(details)
    if failure is None:
        return ""
    # The pattern's alternative without a group matched: the certificate is valid, but for another name.
    if failure[1] is None:
        return "its certificate is for another host name"
    reason, _, more = failure[1].partition(": ")
    return ": ".join(filter(None, [_HINTS.get(reason, reason), more]))


def is_closed_early(details: str) -> bool:
    """Return whether a connection was made and then closed before any data."""
    return _CLOSED.search(details) is not None


def refusal(target: str, context: ssl.SSLContext, *, secure: bool) -> str:
    """Return why a broker closes connections before it answers, if TLS is the reason; otherwise empty.

    This makes a connection and the handshake of a client with the certificate in ``context``.
    """
    host, _, port = target.rpartition(":")
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S) as connection,
            context.wrap_socket(connection) as secured,
        ):
            # A handshake succeeded on the port that the client addressed without TLS.
            if not secure:
                return "it speaks TLS: the address must begin with https://"
            # Only after the handshake does a broker refuse a certificate, or close the connection.
            if secured.recv(1):
                return ""
            reason = "it closes the connection after the handshake"
    except ssl.SSLError as error:
        reason = error.reason or ""
        # An alert is the broker's own refusal. Other errors of TLS are already named by gRPC.
        if not secure or "ALERT" not in reason:
            return ""
    except (OSError, ValueError):
        return ""
    return f"it accepts no client without a certificate that it trusts ({reason})"


def unverified_context(pair: tuple[bytes, bytes] | None) -> ssl.SSLContext:
    """Return a context for :func:`refusal`, which sends nothing and so need not verify the server.

    Args:
        pair: PEM of the client's certificate and key, if it has one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with suppress(NotImplementedError):
        # As gRPC's clients do, because a server may close a connection that does not offer HTTP/2.
        context.set_alpn_protocols(["h2"])
    if pair is not None:
        load_pair(context, *pair)
    return context
