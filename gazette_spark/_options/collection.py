"""The options of a query that reads a collection of Estuary Flow, instead of journals of a known cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from gazette_spark._options.security import CollectionAccess
from gazette_spark._options.selection import parse_path
from gazette_spark._options.values import check_journal, shown
from gazette_spark.errors import OptionError

REPLACED = (
    "brokerAddress",
    "fragmentStore",
    "path",
    "journals",
    "journalsPattern",
    "selector",
    "auth.keysSecret",
)
"""Options that a collection replaces."""


def parse_collection(name: str, text: str) -> str:
    """Parse a collection's name, such as ``acmeCo/orders``."""
    check_journal(name, text)
    if "/" not in text:
        raise OptionError(name, shown(text), "a tenant and a name, such as acmeCo/orders")
    return text


def parse_control_plane(name: str, text: str) -> str:
    """Parse the URL of a control plane."""
    expected = "https://host, or http://host:port in tests"
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise OptionError(name, shown(text), expected) from None
    is_plain = not (parts.query or parts.fragment or "@" in parts.netloc) and text.isascii()
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise OptionError(name, shown(text), expected)
    return text.rstrip("/")


def take_collection(values: dict[str, Any], texts: Mapping[str, str]) -> None:
    """Replace a cluster's access and selection by a collection's, among the options' values.

    No request is sent yet. The driver contacts the control plane when the query is planned.

    Args:
        values: Values by key, with the security options as ``security``.
        texts: Texts of the options that are set, by name in lower case.

    Raises:
        OptionError: an option contradicts the collection, or there is no token.
    """
    collection, control_plane = values.pop("collection"), values.pop("control_plane")
    if collection is None:
        if "controlplane" in texts:
            raise OptionError("controlPlane", "no collection", "to be used with collection only")
        return
    for name in REPLACED:
        if name.lower() in texts:
            expected = "one of them: the control plane says where the collection's journals are"
            raise OptionError(f"collection and {name}", "both", expected)
    security = values["security"]
    if security.token is None and security.token_file is None:
        expected = "the user's access token in auth.token, or a file with it in auth.tokenFile"
        raise OptionError("auth.token", "nothing, but collection", expected)
    values["broker_address"] = ""
    # The journals' names have one more part, the id of the publication that created the collection. The token
    # is limited to it, so a collection of a longer name, such as acmeCo/orders/eu, is not selected.
    values["path"] = parse_path("collection", f"{collection}/")
    values["security"] = replace(
        security,
        token=None,
        token_file=None,
        collection=CollectionAccess(
            collection,
            control_plane,
            security.token,
            security.token_file,
            values["request_timeout_ms"] / 1000,
        ),
    )
    if "isolationlevel" not in texts and not values["read_gaps"]:
        values["isolation_level"] = "read_committed"
