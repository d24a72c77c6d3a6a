"""Routes are remembered for a time, lead to the right connection, and never to one that is not safe."""

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
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def route(*members: tuple[str, str], primary: int = 0) -> pb.Route:
    """Return a route of members, each a zone and an endpoint."""
    made = pb.Route(primary=primary, endpoints=[endpoint for _, endpoint in members])
    for index, (zone, _) in enumerate(members):
        made.members.add(zone=zone, suffix=f"broker-{index}")
    return made


def header(of: pb.Route, cluster_id: int = 7) -> pb.Header:
    """Return a response's header."""
    return pb.Header(
        route=of, etcd=pb.Header.Etcd(cluster_id=cluster_id, member_id=1, revision=1, raft_term=1)
    )


def dialer(clock: Clock, *defaults: str, zone: str = "near", size: int = 10) -> Dialer:
    """Return a dialer whose connections reach nothing."""

    def connect(of: Dialer, endpoint: str) -> Connection:
        return Connection(endpoint, connect_timeout_s=1, listener=of, clock=clock)

    cache = RouteCache(size, 60, clock) if size else None
    return Dialer(defaults or (DEFAULT,), connect, cache=cache, zone=zone, clock=clock)


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.mark.parametrize(("size", "ttl_s"), [(0, 60), (-1, 60), (1, -1), (1, float("nan"))])
def test_a_cache_of_no_use(size: int, ttl_s: float) -> None:
    """A cache has room for a route, and a time that does not run backwards."""
    with pytest.raises(OptionError, match="route_cache"):
        RouteCache(size, ttl_s)


@pytest.mark.parametrize("keys", [{"route_cache_size": -1}, {"route_cache_ttl_s": -1}])
def test_a_client_with_bad_numbers(keys: dict[str, int]) -> None:
    """A size of 0 is no cache; less is refused, as is a negative time even without a cache."""
    with pytest.raises(OptionError, match=next(iter(keys))):
        Client("http://127.0.0.1:1", **keys)  # type: ignore[arg-type]  # Fields by name, of mixed types.
    Client("http://127.0.0.1:1", route_cache_size=0).close()


def test_a_remembered_route_is_a_copy() -> None:
    """A message that changes later leaves the cache as it was."""
    told = route(("near", NEAR))
    cache = RouteCache(1, 60)
    cache.update_route(JOURNAL, told)
    told.endpoints[0] = FAR
    remembered = cache.route(JOURNAL)
    assert remembered is not None
    assert list(remembered.endpoints) == [NEAR]
    assert NEAR not in repr(cache)


def test_many_threads_share_a_cache() -> None:
    """Many threads keep a cache within its size, and none of them fails."""
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
    """No route is followed, whatever is told."""
    dial = dialer(clock, size=0)
    dial.observe(JOURNAL, header(route(("near", NEAR))))
    assert dial.for_primary(JOURNAL) is dial.default
    assert not dial.follows_routes


def test_appends_go_to_the_primary_and_reads_nearby(clock: Clock) -> None:
    """Each member has one connection, made when it is first needed."""
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
    """Appends go to the default broker."""
    dial = dialer(clock)
    dial.observe(JOURNAL, route(("near", NEAR)))
    dial.observe(JOURNAL, told)
    assert dial.for_primary(JOURNAL) is dial.default


def test_a_member_that_is_the_default(clock: Clock) -> None:
    """The default needs no second connection, however its address is written."""
    dial = dialer(clock, "http://near:80/")
    dial.observe(JOURNAL, route(("near", "http://near")))
    assert dial.for_primary(JOURNAL) is dial.default


def test_a_member_that_cannot_be_reached(clock: Clock) -> None:
    """A member is passed over for a lease's time; reads go to another, appends to the default."""
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
    """Channels nobody used for a while are closed when another is looked up; those in use are kept."""
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
    """The next is asked once one cannot be reached; a failure seen by many moves on one step only."""
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
    """One that is no address, or less secure than another, spoils the list."""
    with pytest.raises(OptionError, match="brokerAddress"):
        Client(endpoints)


@pytest.mark.parametrize("member", ["http://near:1", "unix://localhost/near"])
def test_no_way_leads_out_of_tls(clock: Clock, member: str, caplog: pytest.LogCaptureFixture) -> None:
    """A route to a broker without TLS is not followed where the default has it; once, that is logged."""
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
    """A header of another Etcd than the one before is refused; one without a cluster says nothing."""
    dial = dialer(clock)
    dial.observe(JOURNAL, pb.Header())
    dial.observe(JOURNAL, header(route(("near", NEAR))))
    dial.observe(JOURNAL, header(route(("near", NEAR))))
    with pytest.raises(ProtocolError, match=r"ClusterId 8.*expected 7"):
        dial.observe(JOURNAL, header(route(("far", FAR)), cluster_id=8))
    assert dial.for_member(JOURNAL).endpoint.text == NEAR
