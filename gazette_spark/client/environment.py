"""Reads the environment variables with which Gazette's own tools find and access a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gazette_spark.client._transport.credentials import TlsOptions
from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.protocol.durations import parse_duration

DEFAULT_ADDRESS = "http://localhost:8080"
DEFAULT_CACHE_TTL = "1m"
DEFAULT_ZONE = "local"

_VARIABLES = {
    "brokerAddress": "_ADDRESS",
    "token": "_AUTH_TOKEN",
    "auth.tokenFile": "_AUTH_TOKEN_FILE",
    "auth_keys": "_AUTH_KEYS",
    "tls.caFile": "_TRUSTED_CA_FILE",
    "tls.certFile": "_CERT_FILE",
    "tls.keyFile": "_CERT_KEY_FILE",
    "route_cache_size": "_CACHE_SIZE",
    "route_cache_ttl_s": "_CACHE_TTL",
}
"""Suffix of the environment variable of each option; the prefix is the name of the service."""

BROKER = "BROKER"
"""Prefix of the variables for brokers."""


def _variable(option: str, prefix: str) -> str:
    return "ZONE" if option == "zone" else f"{prefix}{_VARIABLES[option]}" if option in _VARIABLES else option


def arguments(env: Mapping[str, str], prefix: str = BROKER) -> dict[str, Any]:
    """Return the arguments of a client from the variables in ``env``. An empty variable counts as missing.

    Args:
        env: The environment.
        prefix: Prefix of the service's variables.

    Raises:
        OptionError: a value is invalid. The error names the option.
    """
    values = {option: env.get(_variable(option, prefix)) or None for option in (*_VARIABLES, "zone")}
    files = (values["tls.caFile"], values["tls.certFile"], values["tls.keyFile"])
    cache_size = values["route_cache_size"] or "0"
    if not cache_size.isdecimal():
        expected = "a number of routes, such as 1000, or 0 for none"
        raise OptionError("route_cache_size", repr(cache_size), expected)
    cache_ttl = values["route_cache_ttl_s"] or DEFAULT_CACHE_TTL
    try:
        cache_ttl_s = parse_duration(cache_ttl).ToNanoseconds() / 1e9
    except ProtocolError:
        raise OptionError("route_cache_ttl_s", repr(cache_ttl), "a time such as 1m or 90s") from None
    return {
        "endpoint": values["brokerAddress"] or DEFAULT_ADDRESS,
        "token": values["token"],
        "token_file": values["auth.tokenFile"],
        "auth_keys": values["auth_keys"],
        "tls": TlsOptions(*files) if any(files) else None,
        "route_cache_size": int(cache_size),
        "route_cache_ttl_s": cache_ttl_s,
        "zone": values["zone"] or DEFAULT_ZONE,
    }


@contextmanager
def errors(prefix: str = BROKER) -> Iterator[None]:
    """Convert errors about an option to errors about its variable."""
    try:
        yield
    except OptionError as error:
        raise OptionError(_variable(error.option, prefix), error.got, error.expected) from None
