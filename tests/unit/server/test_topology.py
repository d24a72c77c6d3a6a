"""Tests how journals are assigned to brokers, and which broker serves a call."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._server.topology import Member, Slots, assign, make_route, promote, same_route
from gazette_spark.broker.api.call import resolve_route
from gazette_spark.broker.registry import replica_count
from gazette_spark.protocol import protocol_pb2 as pb

ONE, TWO, THREE = (Member(zone, f"broker-{n}", f"http://b{n}:80") for n, zone in enumerate("abc", 1))
ALL = frozenset((ONE, TWO, THREE))
SPEC = pb.JournalSpec(name="a/journal", replication=2)

sets_of_members = st.frozensets(st.sampled_from([Member(z, f"broker-{n}") for z in "ab" for n in range(3)]))


@given(
    wanted=st.dictionaries(st.sampled_from([f"journal/{n}" for n in range(8)]), st.integers(0, 4)),
    before=sets_of_members,
    after=sets_of_members,
)
def test_assignment(wanted: dict[str, int], before: frozenset[Member], after: frozenset[Member]) -> None:
    held = assign(wanted, before, {})
    slots = assign(wanted, after, held)
    assert slots.keys() == wanted.keys()
    for name, count in wanted.items():
        assert len(slots[name]) == len(set(slots[name])) == min(count, len(after))
        kept = [member for member in held[name] if member in after]
        assert list(slots[name][: len(kept)]) == kept
        assert after.issuperset(slots[name])


@given(journals=st.integers(1, 40), replicas=st.integers(1, 3))
def test_assignment_is_even(journals: int, replicas: int) -> None:
    """The brokers are in different zones, so zones do not restrict the assignment."""
    slots = assign({f"journal/{n:02d}": replicas for n in range(journals)}, ALL, {})
    for counted in (
        Counter(member for each in slots.values() for member in each),
        Counter(each[0] for each in slots.values()),
    ):
        assert max(counted.values()) - min(counted[member] for member in ALL) <= 1


def test_replicas_are_in_different_zones() -> None:
    """The zone matters more than the broker's load."""
    near, far = Member("a", "broker-2"), Member("b", "broker-3")
    members = frozenset((ONE, near, far))
    slots = assign({"journal/1": 2, "journal/2": 2}, members, {"journal/1": (ONE, far)})
    assert {member.zone for member in slots["journal/2"] if member} == {"a", "b"}


def test_held_back_assignment_only_takes_away() -> None:
    """With ``fill=False`` a dead primary's slot stays empty and a new journal gets no member."""
    held: dict[str, Slots] = {"journal/1": (ONE, TWO), "journal/2": (TWO,)}
    slots = assign({"journal/1": 2, "journal/2": 1, "journal/3": 1}, frozenset((TWO,)), held, fill=False)
    assert slots == {"journal/1": (None, TWO), "journal/2": (TWO,), "journal/3": ()}
    assert make_route(slots["journal/1"]).primary == -1


def test_route_is_in_order() -> None:
    route = make_route((THREE, ONE))
    assert [member.suffix for member in route.members] == ["broker-1", "broker-3"]
    assert list(route.endpoints) == [ONE.endpoint, THREE.endpoint]
    assert route.primary == 1
    assert not same_route(route, make_route(promote((THREE, ONE), ONE)))


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        pytest.param(pb.JournalSpec.Suspend.NONE, 2, id="none"),
        pytest.param(pb.JournalSpec.Suspend.PARTIAL, 1, id="partial"),
        pytest.param(pb.JournalSpec.Suspend.FULL, 0, id="full"),
    ],
)
def test_suspended_journals_want_fewer_replicas(level: pb.JournalSpec.Suspend.Level, wanted: int) -> None:
    spec = pb.JournalSpec(replication=2, suspend=pb.JournalSpec.Suspend(level=level))
    assert replica_count(spec) == wanted


FULL = pb.JournalSpec(name="a/journal", suspend=pb.JournalSpec.Suspend(level=pb.JournalSpec.Suspend.FULL))


@pytest.mark.parametrize(
    ("spec", "slots", "need_primary", "may_proxy", "status"),
    [
        pytest.param(None, (ONE,), True, True, pb.JOURNAL_NOT_FOUND, id="no-journal"),
        pytest.param(FULL, (), True, True, pb.SUSPENDED, id="suspended-before-no-primary"),
        pytest.param(SPEC, (), True, True, pb.NO_JOURNAL_PRIMARY_BROKER, id="no-primary-before-too-few"),
        pytest.param(SPEC, (None, TWO), True, True, pb.NO_JOURNAL_PRIMARY_BROKER, id="no-primary"),
        pytest.param(SPEC, (), False, False, pb.INSUFFICIENT_JOURNAL_BROKERS, id="too-few-before-not-mine"),
        pytest.param(SPEC, (TWO, ONE), True, False, pb.NOT_JOURNAL_PRIMARY_BROKER, id="not-the-primary"),
        pytest.param(SPEC, (TWO, THREE), False, False, pb.NOT_JOURNAL_BROKER, id="not-a-member"),
        pytest.param(SPEC, (TWO, ONE), False, False, pb.OK, id="member"),
        pytest.param(SPEC, (None, ONE), False, False, pb.OK, id="member-without-a-primary"),
        pytest.param(SPEC, (TWO, THREE), False, True, pb.OK, id="proxy"),
    ],
)
def test_order_of_statuses(
    spec: pb.JournalSpec | None, slots: Slots, need_primary: bool, may_proxy: bool, status: int
) -> None:
    """The first applicable status wins, in Gazette's order."""
    found = resolve_route(spec, slots, ONE, need_primary=need_primary, may_proxy=may_proxy)
    assert found.status == status
    assert (found.target is not None) == (status == pb.OK)


def test_who_serves() -> None:
    near = Member("a", "broker-9")
    appending = resolve_route(SPEC, (TWO, ONE), ONE, need_primary=True, may_proxy=True)
    assert appending.target == TWO
    for slots, target in (((TWO, ONE), ONE), ((TWO, near), near), ((TWO, THREE), THREE)):
        assert resolve_route(SPEC, slots, ONE, need_primary=False, may_proxy=True).target == target
