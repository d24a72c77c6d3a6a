"""Many enter the gate at a time or one closes it, who goes first; tried with threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep

import pytest

from gazette_spark.errors import AppendWaitError, CheckpointStateError
from gazette_spark.replicated_log._writer import Gate

SOON = 30.0
"""Seconds after which something that has to happen has not happened."""


class Started:
    """A call in a thread, and its end."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._ended = threading.Event()
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._call()
        self._ended.set()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.is_set()

    def join(self) -> None:
        """Wait for its end."""
        assert self._ended.wait(SOON)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    deadline = monotonic() + SOON
    while not condition():
        assert monotonic() < deadline
        sleep(0.001)


@pytest.fixture
def gate() -> Gate:
    """An open gate."""
    return Gate("a/log")


def in_thread(call: Callable[[], object]) -> None:
    """Call in another thread, to its end."""
    Started(call).join()


def test_many_are_inside_at_a_time(gate: Gate) -> None:
    """Entries do not wait for each other."""
    for _ in range(3):
        gate.enter(0)
    assert not gate.closed


def test_closing_waits_for_all_inside(gate: Gate) -> None:
    """It is closed when the last one has left, whichever thread leaves."""
    gate.enter()
    gate.enter()
    closing = Started(gate.close)
    gate.leave()
    wait_until(lambda: "closing=1" in repr(gate))
    assert closing.running
    gate.leave()
    closing.join()
    assert gate.closed


def test_who_closes_goes_first(gate: Gate) -> None:
    """Nobody enters any more once somebody waits to close it."""
    gate.enter()
    closing = Started(gate.close)
    wait_until(lambda: "closing=1" in repr(gate))
    with pytest.raises(AppendWaitError, match="a checkpoint is in progress"):
        gate.enter(0.01)
    entering = Started(gate.enter)
    gate.leave()
    closing.join()
    assert entering.running
    gate.open()
    entering.join()


def test_closing_in_vain_changes_nothing(gate: Gate) -> None:
    """One who gives up closing it lets the others in."""
    gate.enter()
    with pytest.raises(AppendWaitError, match="1 entries are pending"):
        gate.close(0.01)
    gate.enter(0)
    assert not gate.closed


def test_one_closes_it_at_a_time(gate: Gate) -> None:
    """A second one waits until it is open again."""
    in_thread(gate.close)
    second = Started(gate.close)
    wait_until(lambda: gate._closing == 1)
    assert second.running
    gate.open()
    second.join()
    assert gate.closed


def test_it_is_not_re_entrant(gate: Gate) -> None:
    """A thread that would wait for itself gets an error instead."""
    gate.close()
    for wait in (gate.enter, gate.close):
        with pytest.raises(CheckpointStateError, match="would wait for itself"):
            wait()
    gate.open()
    gate.enter(0)


def test_opening_what_is_open(gate: Gate) -> None:
    """Only what is closed is opened."""
    with pytest.raises(CheckpointStateError, match="no checkpoint is prepared"):
        gate.open()


def test_nobody_is_inside_while_it_is_closed(gate: Gate) -> None:
    """With many threads entering and two closing, the two never meet anybody; all get their turn."""
    inside, met, turns = [], [], []

    def enter() -> None:
        for _ in range(100):
            gate.enter(SOON)
            inside.append(1)
            inside.pop()
            gate.leave()

    def close() -> None:
        for _ in range(30):
            gate.close(SOON)
            met.append(len(inside))
            gate.open()
            turns.append(1)

    threads = [Started(each) for each in (enter, close, enter, close, enter, enter)]
    for thread in threads:
        thread.join()
    assert met == [0] * 60
    assert len(turns) == 60
