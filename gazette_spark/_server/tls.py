"""Configures TLS of the embedded broker: its certificate, and the authorities of client certificates."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from gazette_spark.errors import OptionError


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files with which a broker serves TLS. They are read here, and again when the broker starts.

    Raises:
        OptionError: a file cannot be read, is not PEM or needs a password, or the key belongs to another
            certificate. The error names the file, but does not show its content.
    """

    cert_file: Path | str
    """The broker's certificate, followed by the intermediate certificates."""
    key_file: Path | str
    """Private key of the certificate, without a password."""
    client_ca_file: Path | str | None = None
    """Authorities of client certificates. If set, a client needs a certificate from one of them."""

    def __post_init__(self) -> None:
        # Report an unusable certificate when the settings are made, not when the broker starts.
        self.ssl_context()

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context of the HTTP ports."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (OSError, ValueError) as error:
            files = f"{self.cert_file}, {self.key_file} ({_reason(error)})"
            raise OptionError("tls", files, "a PEM certificate and its private key, no password") from None
        if self.client_ca_file is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_ca_file)
            except (OSError, ValueError) as error:
                value = f"{self.client_ca_file} ({_reason(error)})"
                raise OptionError("tls", value, "PEM certificates of authorities") from None
        return context

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of the gRPC port."""
        authorities = None if self.client_ca_file is None else Path(self.client_ca_file).read_bytes()
        return grpc.ssl_server_credentials(
            # gRPC has its own TLS library and needs the contents instead of Python's context.
            [(Path(self.key_file).read_bytes(), Path(self.cert_file).read_bytes())],
            root_certificates=authorities,
            require_client_auth=authorities is not None,
        )


def _no_password() -> str:
    # Otherwise OpenSSL would prompt for it on the terminal.
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").lower().replace("_", " ")
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
