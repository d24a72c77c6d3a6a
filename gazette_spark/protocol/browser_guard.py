"""Tells requests that a foreign web page made a browser send.

A developer's browser reaches a server on the loopback interface, such as the embedded broker's gateway or the
lag monitor, so each page that it shows could, too.
There are two ways. A page's own host name is made to resolve to this server (DNS rebinding): then ``Host`` is
that name, not this server's. Or a page sends a request to this server's address: then the browser adds
``Origin`` or ``Sec-Fetch-Site``. Clients other than browsers send neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

_OWN_SITES = frozenset({"same-origin", "none"})
"""``none`` means that the user started the request, for example by typing an address."""


def is_own_host(host: str | None, names: Collection[str]) -> bool:
    """Whether a ``Host`` header means this server, by an address, as localhost, or by one of ``names``.

    A page whose host name is an address cannot be made to resolve to this server, so every address is
    accepted. A request without the header (HTTP/1.0) does not come from a browser.
    """
    if host is None:
        return True
    try:
        # Without the port, and without the brackets of an IPv6 address.
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in {"localhost", *(host.lower() for host in names)} or is_address(name)


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin sent a request; ``headers`` are by lower-case name."""
    # Browsers set this header themselves, and a page cannot change it. Older ones send only Origin.
    if (site := headers.get("sec-fetch-site")) is not None:
        return site not in _OWN_SITES
    origin = headers.get("origin")
    # "Origin: null", as of a sandboxed frame, has no host and equals none.
    return origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower()


def is_address(host: str) -> bool:
    """Whether a host is named by its address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
