"""The environment variables by which Gazette's own tools find and enter a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gazette_spark.client.credentials import TlsOptions
from gazette_spark.errors import OptionError

DEFAULT_ADDRESS = "http://localhost:8080"

_VARIABLES = {
    "brokerAddress": "BROKER_ADDRESS",
    "token": "BROKER_AUTH_TOKEN",
    "auth_keys": "BROKER_AUTH_KEYS",
    "tls.ca_file": "BROKER_TRUSTED_CA_FILE",
    "tls.cert_file": "BROKER_CERT_FILE",
    "tls.key_file": "BROKER_CERT_KEY_FILE",
}
"""Which variable each option comes from."""


def arguments(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a client that the variables of ``env`` stand for; an empty one is as none.

    Raises:
        OptionError: a value is not as it should be; names the option.
    """
    values = {option: env.get(variable) or None for option, variable in _VARIABLES.items()}
    files = {
        name.removeprefix("tls."): values[name] for name in ("tls.ca_file", "tls.cert_file", "tls.key_file")
    }
    return {
        "endpoint": values["brokerAddress"] or DEFAULT_ADDRESS,
        "token": values["token"],
        "auth_keys": values["auth_keys"],
        "tls": TlsOptions(**files) if any(files.values()) else None,
    }


@contextmanager
def errors() -> Iterator[None]:
    """Raise errors about an option as errors about its variable."""
    try:
        yield
    except OptionError as error:
        raise OptionError(_VARIABLES.get(error.option, error.option), error.got, error.expected) from None
