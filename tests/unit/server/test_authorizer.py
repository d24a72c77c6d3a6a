"""Tests the order in which a call's token is checked, and that waits end with their call."""

from __future__ import annotations

import threading

import pytest

from gazette_spark._server.authorizer import Authorizer, UnauthenticatedError, covers
from gazette_spark._server.call_watch import CallWatch
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import parse_selector
from gazette_spark.protocol.tokens import Capability, Claims, KeySet

KEYS = KeySet.parse("c2VjcmV0")
NOW = 1_700_000_000.0
DEADLINE_S = 10.0


def authorizer(keys: KeySet | None = KEYS) -> Authorizer:
    return Authorizer(keys, lambda: NOW)


def test_without_keys_everything_is_allowed() -> None:
    claims = authorizer(None).authorize("nonsense", Capability.APPEND)
    assert claims.allows(Capability.APPEND)
    assert claims.expires_at > 1e18
    assert covers(claims, pb.JournalSpec(name="any/journal"))


def test_claims_are_those_of_the_token() -> None:
    told = Claims(Capability.READ, parse_selector("name=a/b"))
    claims = authorizer().authorize("Bearer " + KEYS.sign(told, now=NOW, lifetime_s=60), Capability.READ)
    assert (claims.capability, claims.expires_at) == (Capability.READ, NOW + 60)
    assert covers(claims, pb.JournalSpec(name="a/b"))
    assert not covers(claims, pb.JournalSpec(name="a/c"))


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        pytest.param(None, "missing", id="no-header"),
        pytest.param("", "missing", id="empty"),
        pytest.param("Basic x", "expected 'Bearer '", id="not-bearer"),
        pytest.param("Bearer x.y.z", "verifying", id="unverified"),
        pytest.param(
            "Bearer " + KEYS.sign(Claims(Capability.LIST, pb.LabelSelector()), now=NOW),
            "lacks the required READ capability",
            id="capability",
        ),
    ],
)
def test_each_check_has_its_text(header: str | None, problem: str) -> None:
    with pytest.raises(UnauthenticatedError, match=problem):
        authorizer().authorize(header, Capability.READ)


def test_a_missing_token_passes_only_if_the_keys_say_so() -> None:
    """The key AA== allows a missing token, but an invalid one is still refused."""
    lenient = authorizer(KeySet.parse("c2VjcmV0,AA=="))
    assert lenient.authorize(None, Capability.APPEND).expires_at == NOW + 3600
    with pytest.raises(UnauthenticatedError):
        lenient.authorize("Bearer x.y.z", Capability.APPEND)


def test_a_wait_is_woken_when_its_call_is_over() -> None:
    over, woken, other = threading.Event(), threading.Event(), threading.Event()
    watch = CallWatch(tick_s=0.001)
    watch.watch(over.is_set, woken.set)
    watch.watch(over.is_set, other.set)()
    assert not woken.wait(0.02)
    over.set()
    assert woken.wait(DEADLINE_S)
    watch.stop()
    assert not other.is_set()
    assert "0 calls" in repr(watch)


def test_a_wait_that_cannot_be_woken_keeps_no_other_asleep() -> None:
    """One thread watches all calls, so an error of one callback must not stop it."""

    def fail() -> None:
        raise ValueError("Cannot invoke RPC on closed channel!")

    woken = threading.Event()
    watch = CallWatch(tick_s=0.001)
    watch.watch(lambda: True, fail)
    watch.watch(lambda: "1 calls" in repr(watch), woken.set)
    assert woken.wait(DEADLINE_S)
    watch.stop()
