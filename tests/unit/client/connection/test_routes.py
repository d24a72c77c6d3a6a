"""Tests the route cache, the choice of a broker, and that no route leaves TLS."""

from __future__ import annotations

import logging
import threading

import pytest

from gazette_spark.client import Client
from gazette_spark.client._transport.channel import Connection
from gazette_spark.client._transport.routes import FAILED_S, IDLE_S, Dialer, RouteCache
from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc

JOURNAL = "a/journal"
DEFAULT = "http://default:1"
NEAR, FAR = "http://near:1", "http://far:1"


class Clock:
    """A clock that moves only when a test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def route(*members: tuple[str, str], primary: int = 0) -> pb.Route:
    """Return a route of members, given as pairs of zone and endpoint."""
    made = pb.Route(primary=primary, endpoints=[endpoint for _, endpoint in members])
    for index, (zone, _) in enumerate(members):
        made.members.add(zone=zone, suffix=f"broker-{index}")
    return made


def header(of: pb.Route, cluster_id: int = 7) -> pb.Header:
    return pb.Header(
        route=of, etcd=pb.Header.Etcd(cluster_id=cluster_id, member_id=1, revision=1, raft_term=1)
    )


def dialer(clock: Clock, *defaults: str, zone: str = "near", size: int = 10) -> Dialer:
    """Return a dialer whose connections reach no broker."""

    def connect(of: Dialer, endpoint: str) -> Connection:
        return Connection(endpoint, connect_timeout_s=1, listener=of, clock=clock)

    cache = RouteCache(size, 60, clock) if size else None
    return Dialer(defaults or (DEFAULT,), connect, cache=cache, zone=zone, clock=clock)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(("size", "ttl_s"), [(0, 60), (-1, 60), (1, -1), (1, float("nan"))])
def test_a_cache_of_no_use(size: int, ttl_s: float) -> None:
    with pytest.raises(OptionError, match="route_cache"):
        RouteCache(size, ttl_s)


@pytest.mark.parametrize("keys", [{"route_cache_size": -1}, {"route_cache_ttl_s": -1}])
def test_a_client_with_bad_numbers(keys: dict[str, int]) -> None:
    """A size of 0 disables the cache and is valid."""
    with pytest.raises(OptionError, match=next(iter(keys))):
        Client("http://127.0.0.1:1", **keys)  # type: ignore[arg-type]  # Fields by name, of mixed types.
    Client("http://127.0.0.1:1", route_cache_size=0).close()


def test_a_remembered_route_is_a_copy() -> None:
    """Changing the message later must not change the cache."""
    told = route(("near", NEAR))
    cache = RouteCache(1, 60)
    cache.update_route(JOURNAL, told)
    told.endpoints[0] = FAR
    remembered = cache.route(JOURNAL)
    assert remembered is not None
    assert list(remembered.endpoints) == [NEAR]
    assert NEAR not in repr(cache)


def test_many_threads_share_a_cache() -> None:
    cache = RouteCache(8, 60)
    errors: list[BaseException] = []

    def use(seed: int) -> None:
        try:
            for index in range(500):
                item = f"journal/{(seed * 31 + index) % 20}"
                cache.update_route(item, route(("near", NEAR)) if index % 3 else pb.Route())
                cache.route(item)
                assert len(cache) <= 9
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert len(cache) <= 8


def test_without_a_cache(clock: Clock) -> None:
    dial = dialer(clock, size=0)
    dial.observe(JOURNAL, header(route(("near", NEAR))))
    assert dial.for_primary(JOURNAL) is dial.default
    assert not dial.follows_routes


def test_appends_go_to_the_primary_and_reads_nearby(clock: Clock) -> None:
    dial = dialer(clock)
    dial.observe(JOURNAL, header(route(("far", FAR), ("near", NEAR))))
    assert dial.for_primary(JOURNAL).endpoint.text == FAR
    assert dial.for_member(f"{JOURNAL};meta").endpoint.text == NEAR
    assert dial.for_member(JOURNAL) is dial.for_member(JOURNAL)
    dial.close()


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(route(("near", NEAR), primary=-1), id="no primary"),
        pytest.param(route(("near", NEAR), primary=5), id="primary out of range"),
        pytest.param(route(("near", "")), id="endpoint unknown"),
        pytest.param(
            pb.Route(members=[pb.ProcessSpec.ID(zone="near", suffix="broker-0")]), id="no endpoints"
        ),
        pytest.param(pb.Route(primary=-1), id="no members"),
        pytest.param(route(("near", "ftp://elsewhere")), id="no endpoint at all"),
    ],
)
def test_a_route_that_leads_nowhere(clock: Clock, told: pb.Route) -> None:
    dial = dialer(clock)
    dial.observe(JOURNAL, route(("near", NEAR)))
    dial.observe(JOURNAL, told)
    assert dial.for_primary(JOURNAL) is dial.default


def test_a_member_that_is_the_default(clock: Clock) -> None:
    """The same address may be written with or without its default port."""
    dial = dialer(clock, "http://near:80/")
    dial.observe(JOURNAL, route(("near", "http://near")))
    assert dial.for_primary(JOURNAL) is dial.default


def test_a_member_that_cannot_be_reached(clock: Clock) -> None:
    """Skip a failed member for ``FAILED_S``; reads use another member, appends the default broker."""
    dial = dialer(clock)
    told = route(("near", NEAR), ("far", FAR))
    dial.observe(JOURNAL, told)
    dial.failed(dial.for_primary(JOURNAL))
    assert dial.for_member(JOURNAL).endpoint.text == FAR
    assert dial.for_primary(JOURNAL) is dial.default
    assert dial.for_member(JOURNAL) is dial.default, "the route was forgotten"
    dial.observe(JOURNAL, told)
    dial.failed(dial.for_member(JOURNAL))
    assert dial.for_member(JOURNAL) is dial.default
    clock.now += FAILED_S
    dial.observe(JOURNAL, told)
    assert dial.for_member(JOURNAL).endpoint.text == NEAR


def test_idle_members_are_hung_up(clock: Clock) -> None:
    """Idle channels are closed when the next member is looked up."""
    dial = dialer(clock)
    dial.observe(JOURNAL, route(("near", NEAR)))
    dial.observe("another/journal", route(("far", FAR)))
    near = dial.for_member(JOURNAL)
    near.stub(pb_grpc.JournalStub)
    states = [near.is_open]
    clock.now += IDLE_S - 1
    dial.for_member("another/journal")
    states.append(near.is_open)
    clock.now += 1
    dial.for_member("another/journal")
    states.append(near.is_open)
    assert states == [True, True, False]
    channel = near.lease()
    clock.now += IDLE_S
    dial.for_member("another/journal")
    assert near.is_open, "a reader is on it"
    near.give_back(channel)
    dial.close()


def test_several_defaults_stand_in_for_each_other(clock: Clock) -> None:
    """Many callers may see the same failure, which must move on by one broker only."""
    dial = dialer(clock, "http://one:1", "http://two:1", "http://three:1")
    first = dial.default
    dial.failed(first)
    dial.failed(first)
    assert dial.default.endpoint.text == "http://two:1"
    dial.failed(dial.default)
    dial.failed(dial.default)
    assert dial.default is first


@pytest.mark.parametrize("endpoints", ["http://one:1,https://two:1", "http://one:1,two", "http://one:1,"])
def test_bad_lists_of_brokers(endpoints: str) -> None:
    with pytest.raises(OptionError, match="brokerAddress"):
        Client(endpoints)


@pytest.mark.parametrize("member", ["http://near:1", "unix://localhost/near"])
def test_no_way_leads_out_of_tls(clock: Clock, member: str, caplog: pytest.LogCaptureFixture) -> None:
    """A client with TLS ignores routes to brokers without it, and logs that once."""
    dial = dialer(clock, "https://default:1")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            dial.observe(JOURNAL, route(("near", member)))
            assert dial.for_primary(JOURNAL) is dial.default
            dial.observe(JOURNAL, route(("near", member)))
            assert dial.for_member(JOURNAL) is dial.default
    assert caplog.text.count("insecure route") == 1
    dial.observe(JOURNAL, route(("near", "https://near:1")))
    assert dial.for_member(JOURNAL).endpoint.text == "https://near:1"


def test_another_cluster(clock: Clock) -> None:
    """Offsets and routes of another Etcd cluster are unrelated. A header without a cluster is accepted."""
    dial = dialer(clock)
    dial.observe(JOURNAL, pb.Header())
    dial.observe(JOURNAL, header(route(("near", NEAR))))
    dial.observe(JOURNAL, header(route(("near", NEAR))))
    with pytest.raises(ProtocolError, match=r"ClusterId 8.*expected 7"):
        dial.observe(JOURNAL, header(route(("far", FAR)), cluster_id=8))
    assert dial.for_member(JOURNAL).endpoint.text == NEAR
