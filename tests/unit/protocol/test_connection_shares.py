"""Tests how connections are shared among clients: which are admitted, and which are evicted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.protocol.connection_shares import Admission, ConnectionShares, client_of, client_of_peer


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("127.0.0.2", "127.0.0.2"),
        ("::ffff:127.0.0.2", "127.0.0.2"),
        ("::1", "::1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_whose_address_it_is(address: str, client: str) -> None:
    """IPv6 hosts choose the last half of their address, so only the /64 network counts."""
    assert client_of(address) == client


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:127.0.0.1:40122", "127.0.0.1"),
        ("ipv6:%5B2001:db8::7%5D:40122", "2001:db8::/64"),
        ("ipv6:[::1]:40122", "::1"),
        ("unix:/run/broker.sock", "unix:/run/broker.sock"),
    ],
)
def test_whose_call_it_is(peer: str, client: str) -> None:
    assert client_of_peer(peer) == client


def test_the_oldest_waiting_one_gives_way() -> None:
    """Evict a waiting connection of the same client or of one with more connections, never one in use."""
    shares: ConnectionShares[str] = ConnectionShares(4, 3)
    for name in ("a1", "a2", "a3"):
        assert shares.admit(name, "a") == Admission(is_admitted=True)
    shares.set_waiting("a1", is_waiting=False)
    assert shares.admit("a4", "a") == Admission(is_admitted=True, evicted="a2")
    assert shares.admit("b1", "b") == Admission(is_admitted=True)
    assert shares.admit("c1", "c") == Admission(is_admitted=True, evicted="a3")
    for name in ("a1", "a4"):
        shares.set_waiting(name, is_waiting=False)
    assert shares.admit("a5", "a") == Admission(is_admitted=False)
    assert shares.admit("b2", "b") == Admission(is_admitted=True, evicted="b1")
    for name in ("b2", "c1"):
        shares.set_waiting(name, is_waiting=False)
    assert shares.admit("d1", "d") == Admission(is_admitted=False)
    shares.leave("c1")
    assert shares.admit("d1", "d") == Admission(is_admitted=True)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "answer", "wait", "leave"]), st.integers(0, 20), st.sampled_from("abc")
    )
)


@given(EVENTS)
def test_limits_hold_and_a_small_client_gets_in(events: list[tuple[str, int, str]]) -> None:
    shares: ConnectionShares[int] = ConnectionShares(6, 4)
    clients: dict[int, str] = {}
    answered: set[int] = set()
    for event, number, client in events:
        counts = Counter(clients.values())
        if event == "admit" and number not in clients:
            admission = shares.admit(number, client)
            if admission.evicted is not None:
                assert admission.evicted not in answered
                assert counts[clients.pop(admission.evicted)] >= counts[client]
            elif not admission.is_admitted:
                larger = [one for one in clients if counts[clients[one]] >= counts[client]]
                own = [one for one in clients if clients[one] == client]
                assert answered.issuperset(own if counts[client] == 4 else larger)
            if admission.is_admitted:
                clients[number] = client
        elif event == "leave":
            shares.leave(number)
            clients.pop(number, None)
            answered.discard(number)
        elif number in clients:
            shares.set_waiting(number, is_waiting=event == "wait")
            (answered.discard if event == "wait" else answered.add)(number)
        counts = Counter(clients.values())
        assert counts.total() <= 6
        assert max(counts.values(), default=0) <= 4
