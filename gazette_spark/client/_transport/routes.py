"""Chooses a call's broker, from the routes in brokers' answers, and keeps connections to routes' members.

A journal has a primary, which accepts appends, and other members, which also serve reads. Any broker can be
called for any journal and proxies the call; a client that remembers routes saves that hop. Routes come with
every answer about a journal and with every listing, and are remembered for a time, the most recently used
ones first (:class:`RouteCache`). If a cached route is outdated, brokers answer with the current one.

==========================  ====================================================================
call                        goes to
==========================  ====================================================================
append                      the primary
read, listing of fragments  the member :func:`choose_member` chooses
list, apply, store health   the default broker
==========================  ====================================================================

Without a route, or if its broker has just failed, calls go to the default broker. If there are several
defaults, a call goes to the next one if one cannot be reached.

A route is not trusted completely: it never leads from ``https`` to an insecure connection, on which the
client's token could be read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gazette_spark.client._transport.channel import Connection, ConnectivityState, Endpoint
from gazette_spark.client._transport.credentials import ANONYMOUS, Credentials, TlsOptions
from gazette_spark.errors import CallError, OptionError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb

logger = logging.getLogger(__name__)

IDLE_S = 30.0
"""Seconds without use after which connections to a member are closed, when the next one is looked up."""

FAILED_S = 20.0
"""Seconds for which an unreachable member is avoided: the default lease of a broker in Etcd."""


class RouteCache:
    """The most recently used routes of journals, or of other named items, each for a time. Thread-safe."""

    def __init__(self, size: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Make an empty cache.

        Args:
            size: Maximum number of routes, at least 1.
            ttl_s: Seconds for which a route is valid after it was received.
            clock: Monotonic seconds.

        Raises:
            OptionError: a number is out of range.
        """
        if size < 1:
            raise OptionError("route_cache_size", repr(size), "1 or more routes")
        check_ttl(ttl_s)
        self._size = size
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._routes: OrderedDict[str, _CachedRoute] = OrderedDict()

    def __len__(self) -> int:
        return len(self._routes)

    def __repr__(self) -> str:
        return f"RouteCache({len(self._routes)} of {self._size} routes)"

    def route(self, item: str) -> pb.Route | None:
        """Return the item's route, or None if it is unknown or too old. The caller must not change it."""
        with self._lock:
            entry = self._routes.get(item)
            if entry is None:
                return None
            if self._clock() >= entry.expires_at:
                del self._routes[item]
                return None
            self._routes.move_to_end(item)
            return entry.route

    def update_route(self, item: str, route: pb.Route) -> None:
        """Remember a copy of a route. A route without members removes the item's route."""
        # Without endpoints, no member can be called. Calls for a journal without members go to the default
        # broker.
        usable = bool(route.members) and len(route.endpoints) == len(route.members)
        with self._lock:
            self._routes.pop(item, None)
            if not usable:
                return
            # The answer belongs to its caller, who may change it.
            copy = pb.Route()
            copy.CopyFrom(route)
            self._routes[item] = _CachedRoute(copy, self._clock() + self._ttl_s)
            if len(self._routes) > self._size:
                self._routes.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _CachedRoute:
    route: pb.Route
    expires_at: float


def check_ttl(ttl_s: float) -> None:
    """Raise an OptionError if the time is invalid."""
    if not ttl_s >= 0:
        raise OptionError("route_cache_ttl_s", repr(ttl_s), "a number of seconds, 0 or more")


def choose_member(
    route: pb.Route, zone: str, failed: Collection[str], connected: Collection[str]
) -> int | None:
    """Return the index of the member to read from; None if no member has an endpoint.

    Members are preferred in this order: those in the zone, those that have not failed, connected members, and
    the first one.

    Args:
        route: Members, and their endpoints, some of which may be empty.
        zone: The reader's zone; empty for no preference.
        failed: Endpoints that could not be reached recently.
        connected: Endpoints with an open connection.
    """

    def rank(index: int) -> tuple[bool, bool, bool, int]:
        endpoint = route.endpoints[index]
        elsewhere = route.members[index].zone != zone
        return elsewhere, endpoint in failed, endpoint not in connected, index

    members = min(len(route.members), len(route.endpoints))
    return min((index for index in range(members) if route.endpoints[index]), key=rank, default=None)


class Dialer:
    """One :class:`Connection` for each called broker, and the choice among them. Thread-safe.

    It serves the items of one service: journals by name, or shards by id. Connections are made when they
    are first chosen, and closed with the dialer.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        connect: Callable[[Dialer, str], Connection],
        *,
        cache: RouteCache | None = None,
        zone: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a dialer.

        Args:
            endpoints: Endpoints of the default brokers, at least one; all or none must be secure.
            connect: Makes a connection to an endpoint, which passes routes to the dialer.
            cache: Cache of routes; without one, all calls go to the default broker.
            zone: Zone of the reader, in which members are preferred.
            clock: Monotonic seconds.
        """
        self._connect = connect
        self._cache = cache
        self._zone = zone
        self._clock = clock
        self._lock = threading.Lock()
        self._defaults = [connect(self, endpoint) for endpoint in endpoints]
        self._secure = self._defaults[0].endpoint.secure
        if any(default.endpoint.secure != self._secure for default in self._defaults):
            raise OptionError("brokerAddress", f"{','.join(endpoints)!r}", "all https:// or none")
        # The number of failures, which selects the default: each failure of the current one selects the next.
        self._at = 0
        self._members: dict[str, Connection] = {}
        self._failed: dict[str, float] = {}
        self._cluster_id = 0
        self._warned = False

    def __repr__(self) -> str:
        return f"Dialer({self.default.endpoint.text!r}, members={sorted(self._members)})"

    @property
    def default(self) -> Connection:
        """The connection for calls that any broker can answer."""
        return self._defaults[self._at % len(self._defaults)]

    @property
    def follows_routes(self) -> bool:
        """Whether routes are remembered."""
        return self._cache is not None

    def for_primary(self, item: str) -> Connection:
        """Return the connection for calls to an item's primary, such as appends."""
        route = self._route(item)
        if route is None or not 0 <= route.primary < len(route.endpoints):
            return self.default
        return self._dial_or_forget(item, route.endpoints[route.primary])

    def for_member(self, item: str) -> Connection:
        """Return the connection to the best member, for calls to any member, such as reads."""
        route = self._route(item)
        if route is None:
            return self.default
        failed = self._failed_now()
        connected = [endpoint for endpoint, member in list(self._members.items()) if member.is_open]
        chosen = choose_member(route, self._zone, failed, connected)
        if chosen is not None and route.endpoints[chosen] in failed:
            # A member in another zone is better than one that is down.
            chosen = choose_member(route, "", failed, connected)
        return self.default if chosen is None else self._dial_or_forget(item, route.endpoints[chosen])

    def to_member(self, route: pb.Route, index: int) -> Connection | None:
        """Return the connection to a member of a route; None if it cannot be called or has just failed."""
        endpoint = route.endpoints[index] if 0 <= index < len(route.endpoints) else ""
        return self._dial(endpoint) if endpoint and endpoint not in self._failed_now() else None

    def observe(self, item: str, source: pb.Header | pb.Route) -> None:
        """Learn from a header, or from a listed item's route.

        Raises:
            ProtocolError: the header is from another Etcd cluster than earlier ones.
        """
        if isinstance(source, pb.Header):
            cluster_id = source.etcd.cluster_id
            with self._lock:
                expected = self._cluster_id = self._cluster_id or cluster_id
            # An address that now belongs to another cluster would otherwise serve its journals under the same
            # names, and a reader would continue in them at an offset of the first.
            if cluster_id not in (0, expected):
                problem = (
                    f"ClusterId {cluster_id} of another Etcd; expected {expected}. Offsets of one cluster "
                    "mean nothing in another: make a new client if the cluster was replaced"
                )
                raise ProtocolError("Header.Etcd", problem)
        if self._cache is not None and item:
            self._cache.update_route(_bare(item), source.route if isinstance(source, pb.Header) else source)

    def failed(self, connection: Connection) -> None:
        """Avoid a broker that could not be reached: a member for a while, a default until its next turn."""
        with self._lock:
            self._failed[connection.endpoint.text] = self._clock() + FAILED_S
            # Several threads may report the same failure. It is still the default only for the first, so none
            # is skipped.
            if connection is self.default:
                self._at += 1

    def close(self) -> None:
        """Close all connections. Calls in progress fail."""
        with self._lock:
            connections = [*self._defaults, *self._members.values()]
        for connection in connections:
            connection.close()

    def _route(self, item: str) -> pb.Route | None:
        return self._cache.route(_bare(item)) if self._cache is not None else None

    def _failed_now(self) -> set[str]:
        now = self._clock()
        with self._lock:
            self._failed = {endpoint: until for endpoint, until in self._failed.items() if until > now}
            return set(self._failed)

    def _dial_or_forget(self, item: str, endpoint: str) -> Connection:
        """Return the connection to a member, or the default if that fails, and forget the route then."""
        # A route to a broker that has failed is older than the failure. Any broker knows the current route.
        connection = self._dial(endpoint) if endpoint and endpoint not in self._failed_now() else None
        if connection is None:
            assert self._cache is not None
            self._cache.update_route(_bare(item), pb.Route())
            return self.default
        return connection

    def _dial(self, text: str) -> Connection | None:
        try:
            endpoint = Endpoint.parse(text)
        except OptionError:
            return None
        # A default's connection is shared: it has channels, and a record of whether the cluster has answered.
        for default in self._defaults:
            if default.endpoint.target == endpoint.target and default.endpoint.secure == endpoint.secure:
                return default
        if self._secure and not endpoint.secure:
            # The client's token could be read on that connection.
            if not self._warned:
                self._warned = True
                logger.warning("insecure route is not followed default=%s route=%s", self.default, text)
            return None
        with self._lock:
            connection = self._members.get(text)
            if connection is None:
                connection = self._members[text] = self._connect(self, text)
            connection.touch()
            # No thread does this: idle connections are closed when another is looked up.
            other_members = [member for member in self._members.values() if member is not connection]
        for member in other_members:
            member.hang_up(IDLE_S)
        return connection


def open_dialer(
    endpoint: str,
    *,
    connect_timeout_s: float,
    credentials: Credentials = ANONYMOUS,
    tls: TlsOptions | None = None,
    cache: RouteCache | None = None,
    zone: str = "",
    service: str = CallError.service,
) -> Dialer:
    """Return a dialer whose connections use the same credentials, without making a connection.

    Args:
        endpoint: Endpoint of the default broker; several are separated by commas.
        connect_timeout_s: Seconds to reach a cluster for the first time.
        credentials: Credentials to send with each call.
        tls: Certificates for ``https://`` endpoints.
        cache: Cache of routes; without one, all calls go to the default broker.
        zone: Zone of the reader, in which members are preferred.
        service: Name of the service for errors.

    Raises:
        OptionError: an endpoint is invalid, or only some endpoints are secure.
    """
    connectivity = ConnectivityState()

    def connect(dialer: Dialer, endpoint: str) -> Connection:
        return Connection(
            endpoint,
            connect_timeout_s=connect_timeout_s,
            credentials=credentials,
            tls=tls,
            connectivity=connectivity,
            listener=dialer,
            service=service,
        )

    return Dialer(endpoint.split(","), connect, cache=cache, zone=zone)


def _bare(item: str) -> str:
    """Return the key of an item's route: the name of a journal without a ``;meta`` suffix."""
    return item.partition(";")[0]
