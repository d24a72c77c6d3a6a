"""Tokens round trip: the claims that are signed are the ones that verify."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.protocol.labels import parse_selector
from gazette_spark.protocol.tokens import Capability, Claims, KeySet

KEYS = KeySet.parse("c2VjcmV0")
NOW = 1_700_000_000.0


@given(
    capability=st.integers(0, Capability.ALL),
    selector=st.sampled_from(["", "name=a/b/c", "name:prefix=a/,!test", "region in (eu,us),tier!=x"]),
    lifetime_s=st.integers(1, 10**6),
)
def test_what_is_signed_verifies(capability: int, selector: str, lifetime_s: int) -> None:
    claims = Claims(capability, parse_selector(selector))
    back = KEYS.verify(KEYS.sign(claims, now=NOW, lifetime_s=lifetime_s), now=NOW)
    assert (back.capability, back.selector) == (capability, claims.selector)
    assert back.expires_at == NOW + lifetime_s
