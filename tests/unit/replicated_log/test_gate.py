"""Tests with threads who may enter a gate, who may close it, and who goes first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep

import pytest

from gazette_spark.errors import AppendWaitError, CheckpointStateError
from gazette_spark.replicated_log._writer import Gate

SOON = 30.0
"""Maximum seconds until an expected event."""


class Started:
    """A call that runs in a thread."""

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
        return not self._ended.is_set()

    def join(self) -> None:
        assert self._ended.wait(SOON)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + SOON
    while not condition():
        assert monotonic() < deadline
        sleep(0.001)


@pytest.fixture
def gate() -> Gate:
    return Gate("a/log")


def in_thread(call: Callable[[], object]) -> None:
    Started(call).join()


def test_many_are_inside_at_a_time(gate: Gate) -> None:
    for _ in range(3):
        gate.enter(0)
    assert not gate.closed


def test_closing_waits_for_all_inside(gate: Gate) -> None:
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
    """New entries wait once a thread waits to close the gate."""
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
    gate.enter()
    with pytest.raises(AppendWaitError, match="1 entries are pending"):
        gate.close(0.01)
    gate.enter(0)
    assert not gate.closed


def test_one_closes_it_at_a_time(gate: Gate) -> None:
    in_thread(gate.close)
    second = Started(gate.close)
    wait_until(lambda: gate._closing == 1)
    assert second.running
    gate.open()
    second.join()
    assert gate.closed


def test_it_is_not_re_entrant(gate: Gate) -> None:
    gate.close()
    for wait in (gate.enter, gate.close):
        with pytest.raises(CheckpointStateError, match="would wait for itself"):
            wait()
    gate.open()
    gate.enter(0)


def test_opening_what_is_open(gate: Gate) -> None:
    with pytest.raises(CheckpointStateError, match="no checkpoint is prepared"):
        gate.open()


def test_nobody_is_inside_while_it_is_closed(gate: Gate) -> None:
    """Each thread also gets all its turns."""
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
