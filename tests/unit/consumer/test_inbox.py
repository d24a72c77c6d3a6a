"""Tests that an inbox keeps the order of messages and never leaves a reader waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gazette_spark.consumer.sources import Inbox
from gazette_spark.errors import RecordError
from gazette_spark.message import Envelope
from tests.rig.histories import messages

ENVELOPES = messages("A1O A2O A3O")
WAIT_S = 30.0


def taken(inbox: Inbox) -> list[Envelope]:
    found = []
    while (envelope := inbox.take()) is not None:
        found.append(envelope)
    return found


def test_messages_keep_their_order() -> None:
    inbox = Inbox(10)
    inbox.put(ENVELOPES[0])
    inbox.put(ENVELOPES[1])
    assert inbox.take() is ENVELOPES[0]
    inbox.put(ENVELOPES[2])
    assert taken(inbox) == ENVELOPES[1:]


def test_an_error_comes_behind_the_messages() -> None:
    inbox = Inbox(10)
    inbox.put(ENVELOPES[0])
    inbox.fail(RecordError("a", 10, "first"))
    inbox.fail(RecordError("a", 20, "second"))
    assert inbox.take() is ENVELOPES[0]
    assert not inbox.put(ENVELOPES[1])
    for _ in range(2):
        with pytest.raises(RecordError, match="first"):
            inbox.take()


def test_readers_wait_for_room() -> None:
    inbox = Inbox(1)
    inbox.put(ENVELOPES[0])
    reader = threading.Thread(target=inbox.put, args=(ENVELOPES[1],))
    reader.start()
    assert inbox.take() is ENVELOPES[0]
    reader.join(WAIT_S)
    assert taken(inbox) == [ENVELOPES[1]]


@pytest.mark.parametrize("end", [Inbox.close, lambda inbox: inbox.fail(RecordError("a", 0, "broken"))])
def test_the_end_lets_readers_go(end: Callable[[Inbox], None]) -> None:
    inbox = Inbox(1)
    inbox.put(ENVELOPES[0])
    answers: list[bool] = []
    reader = threading.Thread(target=lambda: answers.append(inbox.put(ENVELOPES[1])), daemon=True)
    reader.start()
    end(inbox)
    reader.join(WAIT_S)
    assert answers == [False]


@pytest.mark.parametrize("event", ["message", "error", "wake", "close"])
def test_events_end_a_wait(event: str) -> None:
    inbox = Inbox(1)
    waiter = threading.Thread(target=inbox.wait, args=(WAIT_S,), kwargs={"for_messages": True})
    waiter.start()
    match event:
        case "message":
            inbox.put(ENVELOPES[0])
        case "error":
            inbox.fail(RecordError("a", 0, "broken"))
        case "wake":
            inbox.wake()
        case "close":
            inbox.close()
    waiter.join(WAIT_S / 2)
    assert not waiter.is_alive()


def test_messages_do_not_end_another_wait() -> None:
    """A wait for the predecessor must not end for each message."""
    inbox = Inbox(1)
    inbox.put(ENVELOPES[0])
    inbox.wake()
    inbox.wait(None, for_messages=False)
    waiter = threading.Thread(target=inbox.wait, args=(None,), kwargs={"for_messages": False}, daemon=True)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    inbox.wake()
    waiter.join(WAIT_S)
    assert not waiter.is_alive()
