"""Tests that a watched list survives outages and bad streams, stops on permanent errors, and never spins."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from time import monotonic

import grpc
import pytest

from gazette_spark.client import Client
from gazette_spark.client._list.listing import Listing
from gazette_spark.client._list.watch import (
    LOGGED_ATTEMPT,
    WATCHLESS_STREAMS,
    Follower,
    PolledList,
    WatchedList,
    after_watch,
)
from gazette_spark.client._transport.retry import backoff_s
from gazette_spark.errors import (
    AuthError,
    BrokerError,
    ClosedError,
    GazetteError,
    OptionError,
    ProtocolError,
    UnavailableError,
    WatchUnsupportedError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.testing.stub_broker import Act, Fail, Hang, StubBroker
from tests.unit.client.listings import EMPTY, header, message, pages

WAIT_S = 20.0
"""Maximum seconds until an expected event."""


def next_update(watched: WatchedList | PolledList, after: Listing | None = None) -> Listing:
    listing = watched.wait_for_update(after, timeout_s=WAIT_S)
    assert listing is not None
    return listing


def wait_for_calls(stub: StubBroker, count: int) -> list[pb.ListRequest]:
    deadline = monotonic() + WAIT_S
    while len(stub.requests("List")) < count:
        assert monotonic() < deadline
        threading.Event().wait(0.02)
    return list(stub.requests("List"))


def test_listings_of_one_stream(stub: StubBroker, client: Client) -> None:
    go_on = threading.Event()

    def play(_: object) -> Iterator[Act]:
        yield from pages(5, ["a/one", "a/two", "a/three"])
        assert go_on.wait(WAIT_S)
        yield from pages(9, ["a/one"])
        yield Hang()

    stub.script("List", play)
    with WatchedList(client, "app=x") as watched:
        first = watched.list()
        assert (first.revision, first.names) == (5, ["a/one", "a/three", "a/two"])
        assert watched.wait_for_update(first, timeout_s=0.01) is None
        go_on.set()
        assert next_update(watched, first).names == ["a/one"]
        assert watched.list().revision == 9
    (request,) = stub.requests("List")
    assert request.watch
    assert not request.HasField("watch_resume")


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param([], id="clean end"),
        pytest.param([Fail()], id="broken"),
        pytest.param([message("a/two", revision=9)], id="clean end within a listing"),
        pytest.param([message("a/two", revision=9), Fail()], id="broken within a listing"),
        pytest.param([EMPTY], id="stray empty message"),
        pytest.param(pages(5, ["a/two"]), id="revision repeated"),
        pytest.param(pages(4, ["a/two"]), id="revision back"),
        pytest.param(
            [message("a/two", revision=9), *pages(10, ["a/two"])], id="a listing begins within another"
        ),
        pytest.param([Fail(grpc.StatusCode.UNKNOWN, "the broker stumbles")], id="unknown failure"),
    ],
)
def test_what_is_cut_is_resumed(stub: StubBroker, client: Client, cut: list[Act]) -> None:
    """Discard the incomplete listing, and resume from the header of the last complete one."""
    stub.script("List", [*pages(5, ["a/one"]), *cut], [*pages(12, ["a/three"]), Hang()])
    with WatchedList(client) as watched:
        listing = watched.list()
        if listing.revision == 5:
            listing = next_update(watched, listing)
        assert (listing.revision, listing.names) == (12, ["a/three"])
    first, second = stub.requests("List")[:2]
    assert not first.HasField("watch_resume")
    assert second.watch_resume == header(5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        pytest.param([Hang()], "no answer within the deadline|no complete listing", id="silence"),
        pytest.param([], "no complete listing", id="clean ends"),
        pytest.param([Fail(text="Socket closed")], "Socket closed", id="broken"),
        pytest.param([message(revision=5), Hang()], "no answer|no complete listing", id="half a listing"),
    ],
)
def test_the_first_listing_has_a_deadline(
    stub: StubBroker, hasty: Client, script: list[Act], problem: str
) -> None:
    """Starting raises the last cause at the client's timeout, with backoff between the attempts."""
    stub.script("List", script)
    watched = WatchedList(hasty)
    with pytest.raises(GazetteError, match=problem):
        watched.start()
    assert len(stub.requests("List")) < 20
    assert watched.wait_for_update(timeout_s=0) is None


def test_a_broker_without_a_watch_is_found_out(stub: StubBroker, client: Client) -> None:
    """Brokers before Gazette 0.100 end the stream where a watch would continue."""
    stub.script("List", [message("a/one", revision=5)])
    with pytest.raises(WatchUnsupportedError, match="before a listing was complete"):
        WatchedList(client).start()
    assert len(stub.requests("List")) == WATCHLESS_STREAMS


@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        pytest.param(Fail(grpc.StatusCode.UNAUTHENTICATED, "no"), AuthError, id="token"),
        pytest.param(Fail(grpc.StatusCode.UNIMPLEMENTED, "no watch"), BrokerError, id="no such call"),
    ],
)
def test_what_will_not_heal_fails_at_once(
    stub: StubBroker, client: Client, fail: Fail, expected: type[GazetteError]
) -> None:
    stub.script("List", [fail])
    with pytest.raises(expected):
        WatchedList(client).start()
    assert len(stub.requests("List")) == 1
    stub.script("List", pages(5, ["a/one"]), [fail])
    watched = WatchedList(client)
    try:
        first = watched.start()
        with pytest.raises(expected):
            watched.wait_for_update(first, timeout_s=WAIT_S)
        with pytest.raises(expected):
            watched.list()
        assert "failed" in repr(watched)
    finally:
        watched.close()


@pytest.mark.parametrize("make", [WatchedList, partial(PolledList, interval_s=0.05)], ids=["watch", "poll"])
def test_a_function_for_tokens_that_fails_is_told(
    stub: StubBroker, make: Callable[[Client], WatchedList | PolledList]
) -> None:
    """Both the start and later waits raise the function's error."""
    fails = True

    def token() -> str:
        if fails:
            raise ZeroDivisionError("no token today")
        return "token"

    stub.script("List", pages(5, ["a/one"]) if make is WatchedList else [message("a/one", revision=5)])
    with Client(stub.endpoint, timeout_s=WAIT_S, token=token) as client:
        with pytest.raises(ZeroDivisionError):
            make(client).start()
        fails = False
        with make(client) as listed:
            first = listed.list()
            fails = True
            with pytest.raises(ZeroDivisionError):
                listed.wait_for_update(first, timeout_s=WAIT_S)
            with pytest.raises(ZeroDivisionError):
                listed.list()


@pytest.mark.slow
def test_an_outage_keeps_the_last_listing_and_is_logged_once(
    stub: StubBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    fails = [[Fail(text="Socket closed")]] * LOGGED_ATTEMPT
    stub.script("List", pages(5, ["a/one"]), *fails, [*pages(7, ["a/two"]), Hang()])
    with caplog.at_level(logging.WARNING), WatchedList(client) as watched:
        first = watched.list()
        assert first.names == ["a/one"]
        assert next_update(watched, first).names == ["a/two"]
    (record,) = caplog.records
    assert "watch is retried" in record.getMessage()
    assert "Socket closed" in record.getMessage()


def test_the_whole_listing_is_asked_for_again(stub: StubBroker, client: Client) -> None:
    """The stream is renewed because a silent one may be dead. The same revision is not an update."""
    updates: list[Listing] = []

    def play(request: pb.ListRequest) -> list[Act]:
        return [Hang()] if request.HasField("watch_resume") else [*pages(5, ["a/one"]), Hang()]

    stub.script("List", play)
    with WatchedList(client, renew_s=0.2, on_update=updates.append):
        requests = wait_for_calls(stub, 5)
    assert [each.HasField("watch_resume") for each in requests[:5]] == [False, True, False, True, False]
    assert [each.revision for each in updates] == [5]


def test_updates_iterates_until_closed(stub: StubBroker, client: Client) -> None:
    stub.script("List", [*pages(5, ["a/one"]), Hang()])
    with WatchedList(client) as watched:
        for listing in watched.updates():
            assert listing.revision == 5
            watched.close()
    assert list(watched.updates()) == []


def test_closing_ends_a_waiting_thread(stub: StubBroker, client: Client) -> None:
    stub.script("List", [*pages(5, ["a/one"]), Hang()])
    watched = WatchedList(client)
    first = watched.start()
    got: list[Listing | None] = []
    waiting = threading.Thread(target=lambda: got.append(watched.wait_for_update(first, timeout_s=WAIT_S)))
    waiting.start()
    watched.close()
    watched.close()
    waiting.join(WAIT_S)
    assert got == [None]
    assert "closed" in repr(watched)


def test_a_callback_that_fails_is_logged(
    stub: StubBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    stub.script("List", [*pages(5, ["a/one"]), *pages(6, ["a/two"]), Hang()])

    def fail(listing: Listing) -> None:
        raise ZeroDivisionError(str(listing.revision))

    with WatchedList(client, on_update=fail) as watched:
        last = watched.list()
        while last.revision != 6:
            last = next_update(watched, last)
    assert sum("on_update failed" in record.getMessage() for record in caplog.records) >= 1


def test_a_list_stays_in_its_process(
    stub: StubBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.script("List", [*pages(5, ["a/one"]), Hang()])
    with WatchedList(client) as watched:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(watched)
        own = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(ClosedError, match="make one in each process"):
            watched.list()
        monkeypatch.undo()


@pytest.mark.parametrize("selector", ["a in", "prefix=no/slash"])
def test_a_bad_selector_is_refused(client: Client, selector: str) -> None:
    with pytest.raises(ProtocolError):
        WatchedList(client, selector)


def test_a_list_that_was_not_started(client: Client) -> None:
    with pytest.raises(ClosedError, match="start it"):
        WatchedList(client).list()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")], ids=["none", "less", "not a number"])
def test_bad_intervals(client: Client, seconds: float) -> None:
    with pytest.raises(OptionError, match="renew_s"):
        WatchedList(client, renew_s=seconds)
    with pytest.raises(OptionError, match="interval_s"):
        PolledList(client, interval_s=seconds)


def test_the_back_off_of_a_watch() -> None:
    for cause in (None, ProtocolError("x", "y"), UnavailableError("x", "y")):
        waits = [after_watch(cause, attempt) for attempt in range(10)]
        assert waits == [backoff_s(attempt) for attempt in range(10)]
        assert waits[0]
    assert after_watch(AuthError("x", "y"), 0) is None
    unknown = [after_watch(BrokerError("x", "UNKNOWN", "y"), attempt) is None for attempt in range(8)]
    assert unknown == [False] * 5 + [True] * 3


def test_a_follower_never_spins() -> None:
    """Backoff also applies to streams that end at once without an error."""

    class Ended:
        def messages(self) -> Iterator[pb.ListResponse]:
            return iter(())

        def close(self) -> None:
            return None

    published: list[Listing] = []
    follower = Follower(pb.LabelSelector(), lambda *_: Ended(), published.append, answer_s=1.0)
    waits = [follower.step() for _ in range(8)]
    assert waits == [backoff_s(attempt) for attempt in range(8)]
    assert all(a <= b for a, b in pairwise(waits))


def test_polling(stub: StubBroker, client: Client) -> None:
    """The answer of a broker that is behind Etcd takes no journal back."""
    updates: list[Listing] = []
    stub.script(
        "List",
        [message("a/one", revision=5)],
        [message("a/one", revision=5)],
        [message("a/old", revision=4)],
        [message("a/two", revision=6)],
    )
    with PolledList(client, interval_s=0.05, on_update=updates.append) as polled:
        first = polled.list()
        assert first.names == ["a/one"]
        assert next_update(polled, first).names == ["a/two"]
        wait_for_calls(stub, 5)
    assert [each.revision for each in updates] == [5, 6]
    assert not any(request.watch for request in stub.requests("List"))


def test_polling_raises_the_first_failure(stub: StubBroker, hasty: Client) -> None:
    stub.script("List", [Fail(grpc.StatusCode.UNAUTHENTICATED, "no")])
    with pytest.raises(AuthError):
        PolledList(hasty).start()


def test_polling_logs_an_outage_once(
    stub: StubBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Each outage is one line, regardless of the number of failed polls."""
    fail: list[Act] = [Fail(grpc.StatusCode.UNAUTHENTICATED, "no")]
    stub.script(
        "List",
        [message("a/one", revision=5)],
        *[fail] * 3,
        [message("a/two", revision=6)],
        *[fail] * 3,
        [message("a/three", revision=7)],
    )
    with caplog.at_level(logging.WARNING), PolledList(client, interval_s=0.05) as polled:
        second = next_update(polled, polled.list())
        assert next_update(polled, second).names == ["a/three"]
    assert sum("listing is out of date" in record.getMessage() for record in caplog.records) == 2
