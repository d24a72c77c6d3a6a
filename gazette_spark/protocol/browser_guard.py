"""Detects requests that a foreign web page made a browser send.

A developer's browser reaches servers on the loopback interface, such as the embedded broker's gateway or the
lag monitor. So does any page that the browser shows, in one of two ways. An attacker makes the page's host
name resolve to this server (DNS rebinding), and ``Host`` is that name instead of this server's. Or the page
sends a request to this server's address, and the browser adds ``Origin`` or ``Sec-Fetch-Site``. Clients other
than browsers send neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

_OWN_SITES = frozenset({"same-origin", "none"})
"""``none`` means that the user started the request, for example by typing an address."""


def is_own_host(host: str | None, names: Collection[str]) -> bool:
    """Whether a ``Host`` header is an address, localhost, or one of this server's ``names``.

    A page whose host name is an address cannot be made to resolve to this server, so every address is
    accepted. A request without the header (HTTP/1.0) does not come from a browser.
    """
    if host is None:
        return True
    try:
        # Removes the port, and the brackets of an IPv6 address.
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in {"localhost", *(host.lower() for host in names)} or is_address(name)


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin sent a request. The names of ``headers`` are in lower case."""
    # Browsers set this header themselves, and a page cannot change it. Older ones send only Origin.
    if (site := headers.get("sec-fetch-site")) is not None:
        return site not in _OWN_SITES
    origin = headers.get("origin")
    # "Origin: null", which a sandboxed frame sends, has no host and so equals no Host header.
    return origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower()


def is_address(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
