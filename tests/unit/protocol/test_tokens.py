"""Tests that tokens are verified as by Gazette: leeway, algorithms, keys and malformed claims."""

from __future__ import annotations

import base64

import jwt
import pytest

from gazette_spark.errors import OptionError, TokenError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set, parse_selector
from gazette_spark.protocol.tokens import Capability, Claims, KeySet, journal_claims

SECRET = KeySet.parse("c2VjcmV0")
NOW = 1_700_000_000.0
HI_THERE = Claims(10, pb.LabelSelector(include=label_set({"hi": "there"})))
PAYLOAD = (
    '{"cap":10,"sel":{"include":{"labels":[{"name":"hi","value":"there"}]},"exclude":{"labels":null}},'
    '"exp":1700003600,"iat":1700000000}'
)
GOLDEN = (
    ".".join(
        base64.urlsafe_b64encode(part.encode()).decode().rstrip("=")
        for part in ('{"alg":"HS256","typ":"JWT"}', PAYLOAD)
    )
    + ".4cGzCI6Yy9gvHY5qi2UUBf1MqdtKqG7YBO9dXO7NPJU"
)

LONG_KEY = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
LONG = KeySet((LONG_KEY,))
DEEP = base64.urlsafe_b64encode(b"[" * 30_000).decode() + ".e30.c2ln"


def signed(payload: object, algorithm: str = "HS256", key: bytes = LONG_KEY) -> str:
    return jwt.encode(payload, key, algorithm=algorithm)  # type: ignore[arg-type]  # Bad payloads are the point.


def test_signs_the_golden_token() -> None:
    """Gazette's library made the golden token from the same claims."""
    assert SECRET.sign(HI_THERE, now=NOW) == GOLDEN


def test_verifies_the_golden_token() -> None:
    claims = SECRET.verify(GOLDEN, now=NOW)
    assert claims == Claims(10, HI_THERE.selector, 1_700_003_600.0)
    assert claims.allows(Capability.READ)
    assert not claims.allows(Capability.READ | Capability.APPEND)


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        pytest.param(NOW - 4, "", id="issued-4s-ahead"),
        pytest.param(NOW - 7, "before issued", id="issued-7s-ahead"),
        pytest.param(NOW + 3604, "", id="expired-4s-ago"),
        pytest.param(NOW + 3606, "expired", id="expired-6s-ago"),
    ],
)
def test_clocks_may_differ_by_five_seconds(now: float, problem: str) -> None:
    if not problem:
        assert SECRET.verify(GOLDEN, now=now).capability == 10
        return
    with pytest.raises(TokenError, match=problem):
        SECRET.verify(GOLDEN, now=now)


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="empty"),
        pytest.param("a.b.c", id="not-base64"),
        pytest.param("x" * 100_000, id="100-KB"),
        pytest.param(DEEP, id="deep-header"),
        pytest.param(jwt.PyJWS().encode(b"[1]", LONG_KEY, algorithm="HS256"), id="no-object"),
        pytest.param(GOLDEN[:-4], id="truncated-signature"),
        pytest.param(GOLDEN.replace(".", ".e30", 1), id="swapped-payload"),
        pytest.param(signed({"cap": 2, "exp": NOW}, "HS512"), id="HS512"),
        pytest.param(jwt.encode({"cap": 2, "exp": NOW}, "", algorithm="none"), id="alg-none"),
        pytest.param(signed({"cap": 2, "exp": NOW}, key=LONG_KEY[::-1]), id="wrong-key"),
        pytest.param(signed({"cap": 2}), id="no-exp"),
        pytest.param(signed({"cap": 2, "exp": "soon"}), id="exp-text"),
        pytest.param(signed({"cap": "2", "exp": NOW}), id="cap-text"),
        pytest.param(signed({"cap": 8.5, "exp": NOW}), id="cap-fraction"),
        pytest.param(signed({"cap": -1, "exp": NOW}), id="cap-negative"),
        pytest.param(signed({"cap": 2**32, "exp": NOW}), id="cap-33-bits"),
        pytest.param(signed({"cap": 2, "exp": NOW, "nbf": NOW + 6}), id="not-before"),
        pytest.param(signed({"cap": 2, "exp": float("nan")}), id="exp-nan"),
        pytest.param(signed({"cap": 2, "exp": float("inf")}), id="exp-infinite"),
        pytest.param(signed({"cap": 2, "exp": 1e300}), id="exp-huge"),
        pytest.param(signed({"cap": 2, "exp": 10**350}), id="exp-integer-past-floats"),
        pytest.param(signed({"cap": 2, "exp": NOW, "nbf": float("nan")}), id="nbf-nan"),
        pytest.param(signed({"cap": 2, "exp": NOW, "sel": []}), id="selector-list"),
        pytest.param(
            signed({"cap": 2, "exp": NOW, "sel": {"include": {"labels": [{"name": "x"}]}}}), id="label"
        ),
    ],
)
def test_refuses(token: str) -> None:
    with pytest.raises(TokenError) as caught:
        KeySet((LONG_KEY, b"secret")).verify(token, now=NOW)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param({"cap": 2, "exp": NOW + 0.5}, id="fractional-exp"),
        pytest.param({"cap": 2, "exp": NOW, "sel": None}, id="selector-null"),
        pytest.param({"cap": 2, "exp": NOW, "sel": {"include": {"labels": None}}}, id="labels-null"),
        pytest.param({"cap": 2, "exp": NOW, "sub": 7, "mine": [1]}, id="unknown-claims"),
    ],
)
def test_takes_what_gazette_takes(payload: dict[str, object]) -> None:
    """A missing selector matches everything, and unknown claims are ignored."""
    claims = LONG.verify(signed(payload), now=NOW)
    assert claims.capability == 2
    assert claims.selector == pb.LabelSelector()


def test_hs384_verifies() -> None:
    assert LONG.verify(signed({"cap": 2, "exp": NOW}, "HS384"), now=NOW).capability == 2


def test_any_key_verifies_and_the_first_signs() -> None:
    """This allows rotating keys without a moment in which a token fails."""
    old, new = b"old key", b"new key"
    token = KeySet((old,)).sign(HI_THERE, now=NOW)
    assert KeySet((old, new)).sign(HI_THERE, now=NOW) == token
    assert KeySet((new, old)).verify(token, now=NOW).capability == 10
    with pytest.raises(TokenError, match="signature"):
        KeySet((new,)).verify(token, now=NOW)


@pytest.mark.parametrize(
    ("text", "count", "allow_missing"),
    [
        pytest.param("c2VjcmV0", 1, False, id="one"),
        pytest.param("c2VjcmV0,b3RoZXI= \tdGhpcmQ=", 3, False, id="commas-and-blanks"),
        pytest.param("c2VjcmV0,AA==", 1, True, id="allow-missing"),
    ],
)
def test_keys_parse(text: str, count: int, allow_missing: bool) -> None:
    """AA== is not a key, but allows missing tokens."""
    keys = KeySet.parse(text)
    assert (len(keys.keys), keys.allow_missing) == (count, allow_missing)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("AA==", id="only-allow-missing"),
        pytest.param("c2VjcmV0,not base64!", id="not-base64"),
        pytest.param("c2VjcmV", id="no-padding"),
    ],
)
def test_bad_keys_are_refused(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        KeySet.parse(text, "BROKER_AUTH_KEYS")
    assert "BROKER_AUTH_KEYS" in str(caught.value)
    assert "c2VjcmV" not in str(caught.value)


def test_repr_shows_no_key() -> None:
    assert "secret" not in repr(SECRET)
    assert "c2VjcmV0" not in repr(SECRET)


def test_claims_of_a_journal_leave_its_meta_suffix_out() -> None:
    """A token is for the journal, not for one reader's suffix."""
    claims = journal_claims(Capability.READ, "a/journal;meta")
    assert claims.selector == parse_selector("name=a/journal")
