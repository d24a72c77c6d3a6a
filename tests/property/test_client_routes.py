"""The route cache and the choice of a member behave like their obvious versions."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.client._transport.routes import RouteCache, choose_member
from gazette_spark.protocol import protocol_pb2 as pb
from tests.rig.examples import examples

ZONES = ["a", "b"]
ENDPOINTS = [f"http://broker-{index}:1" for index in range(4)]


@st.composite
def routes(draw: st.DrawFn) -> pb.Route:
    members = draw(st.lists(st.tuples(st.sampled_from(ZONES), st.sampled_from(ENDPOINTS)), max_size=4))
    route = pb.Route(primary=draw(st.integers(-1, len(members) - 1)))
    for index, (zone, _) in enumerate(members):
        route.members.add(zone=zone, suffix=f"broker-{index}")
    if draw(st.booleans()):
        route.endpoints.extend(endpoint if draw(st.booleans()) else "" for _, endpoint in members)
    return route


endpoints = st.sets(st.sampled_from(ENDPOINTS))


@given(route=routes(), zone=st.sampled_from(["", *ZONES]), failed=endpoints, connected=endpoints)
def test_the_chosen_member_is_beaten_by_none(
    route: pb.Route, zone: str, failed: set[str], connected: set[str]
) -> None:
    """Zone counts before failure, failure before connection, and the first of equals wins."""
    chosen = choose_member(route, zone, failed, connected)
    candidates = [index for index, endpoint in enumerate(route.endpoints) if endpoint]
    if not candidates:
        assert chosen is None
        return
    wishes: list[Callable[[int], bool]] = [
        lambda index: route.members[index].zone == zone,
        lambda index: route.endpoints[index] not in failed,
        lambda index: route.endpoints[index] in connected,
    ]
    for wish in wishes:
        candidates = [index for index in candidates if wish(index)] or candidates
    assert chosen == candidates[0]


class Model:
    """A cache as a plain list, least recently used first."""

    def __init__(self, size: int, ttl_s: float) -> None:
        self.size = size
        self.ttl_s = ttl_s
        self.entries: list[tuple[str, pb.Route, float]] = []

    def route(self, item: str, now: float) -> pb.Route | None:
        for entry in self.entries:
            if entry[0] == item:
                self.entries.remove(entry)
                if now - entry[2] >= self.ttl_s:
                    return None
                self.entries.append(entry)
                return entry[1]
        return None

    def update(self, item: str, route: pb.Route, now: float) -> None:
        self.entries = [entry for entry in self.entries if entry[0] != item]
        if route.members and len(route.endpoints) == len(route.members):
            self.entries = [*self.entries, (item, route, now)][-self.size :]


steps = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | routes(), st.integers(0, 4)), min_size=1, max_size=40
)


@settings(max_examples=examples(100))
@given(steps=steps, size=st.integers(1, 4), ttl_s=st.integers(0, 8))
def test_the_cache_is_its_model(steps: list[tuple[str, pb.Route | None, int]], size: int, ttl_s: int) -> None:
    now = 0.0
    cache = RouteCache(size, ttl_s, clock=lambda: now)
    model = Model(size, ttl_s)
    for item, told, wait_s in steps:
        now += wait_s
        if told is None:
            assert cache.route(item) == model.route(item, now)
        else:
            cache.update_route(item, told)
            model.update(item, told, now)
        assert len(cache) == len(model.entries) <= size
