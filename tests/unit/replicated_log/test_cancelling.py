"""Tests which kinds of events can cancel a fetch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from gazette_spark.replicated_log._receiver import Cancellation, cancel_on

SOON = 30.0


class Lock:
    """A lock of a coordination service, which offers only ``wait``."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def wait(self) -> None:
        self.event.wait()


def events() -> dict[str, tuple[object, Callable[[], object]]]:
    """Return an event of each kind, with the call that triggers it."""
    event, lock, messages = threading.Event(), Lock(), queue.Queue[str]()
    future: Future[int] = Future()
    return {
        "event": (event, event.set),
        "future": (future, lambda: future.set_result(1)),
        "failed future": (failed := Future[int](), lambda: failed.set_exception(ValueError("x"))),
        "what can be waited for": (lock, lock.event.set),
        "queue of notifications": (messages.get, lambda: messages.put("you are primary")),
    }


@pytest.mark.parametrize("kind", list(events()))
def test_it_is_set_by_the_event(kind: str) -> None:
    event, happen = events()[kind]
    cancel = cancel_on(event)  # type: ignore[arg-type]  # Of all kinds it takes.
    assert not cancel.is_set()
    happen()
    assert _becomes_set(cancel)


def test_an_event_is_returned_as_it_is() -> None:
    """An event that can be queried needs no thread."""
    event = threading.Event()
    assert cancel_on(event) is event


def _becomes_set(cancel: Cancellation) -> bool:
    if isinstance(cancel, threading.Event):
        return cancel.wait(SOON)
    return cancel.is_set()
