"""Tests which failures are retried, how often and after how long, without a clock."""

from __future__ import annotations

import pytest

from gazette_spark import errors
from gazette_spark.client._transport import retry
from gazette_spark.errors import GazetteError

UNAVAILABLE = errors.UnavailableError("http://b:1", "connection reset")
NOT_CONNECTED = errors.UnavailableError("http://b:1", "failed to connect to all addresses")
NOT_YET = errors.OffsetNotYetAvailableError("a/j", "", 5, 5)
NOT_FOUND = errors.JournalNotFoundError("a/j")
NO_PRIMARY = errors.NoJournalPrimaryBrokerError("a/j")
STALE = errors.BrokerError("http://b:1", "UNKNOWN", "proxied request ProcessId doesn't match our own")
UNKNOWN = errors.BrokerError("http://b:1", "UNKNOWN", "something else")
HEALS_NEVER = [
    errors.AuthError("http://b:1", "no token"),
    errors.ProtocolError("ReadResponse", "a lie"),
    errors.CorruptFragmentError("a/j", 0, 1, "short"),
    errors.SuspendedError("a/j"),
    errors.NotAllowedError("a/j"),
    errors.BrokerError("http://b:1", "RESOURCE_EXHAUSTED", "message of 17 MiB"),
    errors.BrokerError("http://b:1", "UNIMPLEMENTED", "no such method"),
    errors.TlsError("https://b:1", "its certificate cannot be trusted"),
]
REFUSALS = {
    "offset": "invalid Offset (-2; expected -1 <= Offset <= MaxInt64)",
    "leading slash": "Journal: cannot begin with '/' (/a/journal)",
    "blank": "Journal: not a valid token (a/ journal)",
    "cluster": "request Etcd ClusterId doesn't match our own (99 vs 118)",
    "header": "Header.Route: invalid Primary (0; expected -1 <= Primary < 0)",
    "content first": "unexpected Content",
    "no content": "append stream: expected Content chunk",
    "after commit": "append stream: expected EOF after empty Content chunk",
    "registers alone": "append stream: register modification requires non-empty Append",
    "label": "UnionRegisters.Labels[0].Name: invalid length (1; expected 2 <= length <= 64)",
    "suspend": "Suspend: invalid Suspend variant (99)",
    "prefix": "Selector.Include.Labels[\"prefix\"]: expected trailing '/' (x)",
    "no change": "Changes[0]: neither Upsert nor Delete are set (expected exactly one)",
    "page limit": "invalid PageLimit (-1; must be >= 0 and <= 10000)",
    "store": "FragmentStore: not absolute (nope)",
    "embedded broker": "ReadRequest.Offset: must be at least -1, got -2",
}
"""Messages with which the real broker rejects invalid requests; the last is the embedded broker's."""
MAY_PASS = {
    "anything": "something else",
    "cut append": "append stream: unexpected EOF",
    "broken connection": "RequestError: send request failed caused by: connection reset",
    "busy store": "opening fragment: unexpected status 503",
    "nothing": "EOF",
}
"""Messages of failures that may be over by the next try."""
ROUTING = [
    NO_PRIMARY,
    errors.InsufficientJournalBrokersError("a/j"),
    errors.NotJournalPrimaryBrokerError("a/j"),
    errors.NotJournalBrokerError("a/j"),
]


def kind(value: object) -> str:
    return f"{type(value).__name__} {getattr(value, 'code', '')}".strip()


def tries(cause: GazetteError | None, *, waits: bool = False) -> list[float]:
    """Return the first twenty waits, in seconds, of a read that keeps failing."""
    waited: list[float] = []
    while len(waited) < 20 and (wait_s := retry.after_read(cause, len(waited), waits=waits)) is not None:
        waited.append(wait_s)
    return waited


def test_back_off_grows_as_gazettes() -> None:
    assert [retry.backoff_s(attempt) for attempt in range(9)] == [0.05, 0.05, 0.1, 0.1, 1, 1, 5, 5, 5]


@pytest.mark.parametrize("cause", HEALS_NEVER, ids=kind)
def test_what_does_not_heal_fails_at_once(cause: GazetteError) -> None:
    assert retry.after_read(cause, 0, waits=True) is None
    assert retry.after_call(cause, 0) is None
    assert retry.after_create(cause, 0) is None
    assert retry.after_apply(cause, 0) is None


@pytest.mark.parametrize("cause", [UNAVAILABLE, STALE, *ROUTING], ids=kind)
def test_transport_and_routing_back_off_for_ever(cause: GazetteError) -> None:
    assert tries(cause)[:8] == [0.05, 0.05, 0.1, 0.1, 1, 1, 5, 5]
    assert len(tries(cause)) == 20
    assert retry.after_call(cause, 0) == 0.05


def test_a_clean_end_is_followed_at_once() -> None:
    """Reopen at once after the first end of a stream, and after 50 ms if the next one brings no bytes."""
    assert tries(None)[:4] == [0.0, 0.05, 0.05, 0.05]


def test_content_that_is_not_there_yet() -> None:
    """Only a reader that waits for content retries."""
    assert tries(NOT_YET, waits=False) == []
    assert tries(NOT_YET, waits=True)[:5] == [0.05, 0.05, 0.1, 0.1, 1]
    assert retry.after_call(NOT_YET, 0) is None


def test_a_journal_not_found_is_asked_for_four_times() -> None:
    """A new spec needs a moment to reach all brokers. An append is not retried."""
    assert tries(NOT_FOUND) == [0.05, 0.05, 0.1, 0.1]
    assert retry.after_call(NOT_FOUND, 0) is None
    assert retry.after_create(NOT_FOUND, 50) == 0.1


def test_other_unknown_failures_are_tried_a_few_times() -> None:
    """Only reads are repeated; repeating an append could write its bytes twice."""
    assert tries(UNKNOWN) == [0.05, 0.05, 0.1, 0.1, 1]
    assert retry.after_call(UNKNOWN, 0) is None


@pytest.mark.parametrize("text", REFUSALS.values(), ids=REFUSALS)
def test_requests_that_break_a_rule_are_not_repeated(text: str) -> None:
    cause = errors.BrokerError("http://b:1", "UNKNOWN", text)
    assert retry.is_refusal(cause)
    assert tries(cause) == []
    assert retry.after_call(cause, 0) is None


@pytest.mark.parametrize("text", MAY_PASS.values(), ids=MAY_PASS)
def test_texts_that_say_nothing_lasting(text: str) -> None:
    cause = errors.BrokerError("http://b:1", "UNKNOWN", text)
    assert not retry.is_refusal(cause)
    assert len(tries(cause)) == retry.UNKNOWN_TRIES - 1


def test_apply_is_sent_once() -> None:
    """Retry an apply only if it was never sent, because its outcome would be unknown."""
    assert retry.after_apply(NOT_CONNECTED, 0) == 0.05
    assert retry.after_apply(UNAVAILABLE, 0) is None
    assert retry.after_apply(NO_PRIMARY, 0) is None


@pytest.mark.parametrize(
    ("wait_s", "left_s", "expected"),
    [(1.0, 5.0, 1.0), (5.0, 5.0, 4.9), (5.0, 0.5, 0.4), (1.0, 0.2, None), (0.0, 0.1, 0.0), (0.0, -1.0, None)],
)
def test_a_last_try_fits_before_the_deadline(wait_s: float, left_s: float, expected: float | None) -> None:
    """A wait is shortened so that one more attempt fits, or there is no further attempt."""
    assert retry.within(wait_s, left_s) == expected


class Clock:
    """A clock that moves only when code sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_retrying_returns_the_first_success() -> None:
    clock = Clock()
    outcomes: list[GazetteError | None] = [UNAVAILABLE, NO_PRIMARY, None]

    def call(left_s: float) -> str:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return "done"

    got = retry.retrying(
        call, retry.after_call, timeout_s=10, patience_s=lambda: 10, clock=clock, sleep=clock.sleep
    )
    assert got == "done"
    assert clock.slept == [0.05, 0.05]


@pytest.mark.parametrize("patience_s", [3.0, 60.0])
def test_retrying_ends_at_patience(patience_s: float) -> None:
    clock = Clock()
    lefts: list[float] = []

    def call(left_s: float) -> str:
        lefts.append(left_s)
        raise UNAVAILABLE

    with pytest.raises(errors.UnavailableError, match="connection reset"):
        retry.retrying(
            call,
            retry.after_call,
            timeout_s=60,
            patience_s=lambda: patience_s,
            clock=clock,
            sleep=clock.sleep,
        )
    assert patience_s - 0.3 <= clock.now - 100 <= patience_s
    assert lefts[0] == 60
    assert lefts == sorted(lefts, reverse=True)
