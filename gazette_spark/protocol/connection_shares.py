"""Shares a server's connections, or calls, among its clients, so that no client locks out the others.

A client is an IPv4 address or a /64 network of IPv6, because a host can use any address of its /64 network.
Each client has a maximum number of connections. If it opens more, the server closes the client's oldest idle
connection, in which no request is being answered. If all connections are taken, the server closes the oldest
idle connection of the client that has the most. So a client that opens hundreds of connections and sends
nothing evicts only its own.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Generic, TypeVar
from urllib.parse import unquote

C = TypeVar("C", bound=Hashable)
"""A connection."""


def client_of(address: str) -> str:
    """Return the client that an IP address belongs to. Any other text is returned unchanged."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        # A server that listens on IPv6 sees IPv4 clients as mapped addresses. They count as IPv4 clients.
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        # A host may use any address of its /64 network, so a limit per address would have no effect. IPv6 has
        # only one loopback address.
        if not ip.is_loopback:
            return str(IPv6Network((ip, 64), strict=False))
    return str(ip)


def client_of_peer(peer: str) -> str:
    """Return the client of a gRPC call from its ``peer``.

    >>> client_of_peer("ipv4:127.0.0.1:40122"), client_of_peer("ipv6:%5B2001:db8::1%5D:40122")
    ('127.0.0.1', '2001:db8::/64')
    """
    address = re.fullmatch(r"ipv[46]:\[?([^\[\]]*)\]?:\d{1,9}", unquote(peer))
    return client_of(address[1]) if address else peer


@dataclass(frozen=True, slots=True)
class Admission(Generic[C]):
    """Decision about a new connection."""

    is_admitted: bool
    evicted: C | None = None
    """The connection to close, to make room for the new one."""


class ConnectionShares(Generic[C]):
    """The open connections of a server. Any thread may call anything."""

    def __init__(self, total: int, per_client: int) -> None:
        self._total = total
        self._per_client = per_client
        self._lock = threading.Lock()
        self._clients: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: dict[str, dict[C, None]] = {}
        """Connections in which no request is being answered, by client, the oldest first."""

    def __repr__(self) -> str:
        return f"ConnectionShares({len(self._clients)} of {self._total}, {len(self._counts)} clients)"

    def admit(self, connection: C, client: str) -> Admission[C]:
        """Decide about a new connection. If it is admitted, it waits for a request from now on."""
        with self._lock:
            evicted: C | None = None
            # A client at its limit gives up one of its own connections.
            if self._counts[client] >= self._per_client:
                evicted = self._oldest_waiting([client])
            elif len(self._clients) >= self._total:
                # Only clients with at least as many connections as this one give way to it.
                ranked = [one for one, count in self._counts.most_common() if count >= self._counts[client]]
                evicted = self._oldest_waiting(ranked)
            else:
                self._add(connection, client)
                return Admission(is_admitted=True)
            # All connections that could be closed have requests in progress. A client whose answer is cut off
            # would repeat its request.
            if evicted is None:
                return Admission(is_admitted=False)
            self._remove(evicted)
            self._add(connection, client)
            return Admission(is_admitted=True, evicted=evicted)

    def set_waiting(self, connection: C, *, is_waiting: bool) -> None:
        """Record whether the connection waits for a request, or has one in progress."""
        with self._lock:
            # None if the connection was evicted while its request arrived.
            client = self._clients.get(connection)
            if client is not None and is_waiting:
                self._waiting.setdefault(client, {}).setdefault(connection)
            elif client is not None:
                self._waiting.get(client, {}).pop(connection, None)

    def leave(self, connection: C) -> None:
        """Remove a connection. An evicted one has already been removed."""
        with self._lock:
            self._remove(connection)

    def _oldest_waiting(self, clients: list[str]) -> C | None:
        return next((one for client in clients for one in self._waiting.get(client, ())), None)

    def _add(self, connection: C, client: str) -> None:
        self._clients[connection] = client
        self._counts[client] += 1
        self._waiting.setdefault(client, {})[connection] = None

    def _remove(self, connection: C) -> None:
        client = self._clients.pop(connection, None)
        # An evicted connection is removed immediately; the transport reports its end later.
        if client is None:
            return
        self._waiting.get(client, {}).pop(connection, None)
        self._counts[client] -= 1
        # Without this, the server would remember every client that ever connected.
        if not self._counts[client]:
            del self._counts[client]
            self._waiting.pop(client, None)
