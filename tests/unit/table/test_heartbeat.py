"""An idle query's newest entry is written again as a heartbeat, and stays the same batch's entry."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from unittest.mock import MagicMock

import pytest

from gazette_spark import DeltaSink
from gazette_spark._delta import heartbeat
from gazette_spark._delta.delta_table import TableSnapshot
from gazette_spark._delta.heartbeat import Heartbeat
from gazette_spark._ledger.decision import Skip, Write, decide
from gazette_spark._ledger.entry import (
    Batch,
    LedgerEntry,
    LedgerState,
    SkippedGap,
    entry_without_rows,
    parse_entry,
)
from gazette_spark.offsets import JournalOffsets

BEGIN, END = (JournalOffsets({"x/a": 3}),), (JournalOffsets({"x/a": 7}),)
ENTRY = LedgerEntry("app", 4, "q", 2, BEGIN, BEGIN, END, "first", "older", planned_ms=99, stateful=True)
STATE = LedgerState(ENTRY, "older", 6, 10, 9)


def test_the_same_batch_is_a_replay_of_the_entry_that_was_written_again() -> None:
    gap = (SkippedGap("x/a", 4, 5),)
    written = replace(
        ENTRY, gaps=gap, accepted_gaps=gap, trimmed_bytes=1, audit=(), adopted=True, recreated={"x/a": 900}
    )
    again = entry_without_rows(replace(STATE, entry=written), "second")
    assert again == replace(ENTRY, txn_version=7, attempt="second", parent="first", begin=END)
    assert parse_entry(again.to_json(), "app") == again
    state = LedgerState(again, "first", 7, 11, 11)
    moved = Batch("t", "app", "q", 2, BEGIN, END, planned_ms=99, stateful=True)
    assert decide(state, moved, attempt="mine") == Skip()
    unmoved = replace(moved, begin=END)
    assert decide(state, unmoved, attempt="mine") == Skip()
    following = replace(unmoved, batch_id=3, planned_ms=100)
    assert isinstance(decide(state, following, attempt="mine"), Write)


def test_it_beats_until_it_is_told_not_to() -> None:
    """An error does not end the heartbeat, because the next batch decides. The result False ends it."""
    beats: list[int] = []
    done = threading.Event()

    def beat() -> bool:
        beats.append(1)
        if len(beats) == 1:
            raise ValueError("the table cannot be reached")
        if len(beats) == 3:
            done.set()
            return False
        return True

    heart = Heartbeat(0.01)
    heart.arm(beat, lambda: True)
    assert done.wait(30)
    heart.disarm()
    assert len(beats) == 3


@pytest.mark.parametrize(
    ("newest", "again"), [(ENTRY, True), (replace(ENTRY, attempt="another"), False)], ids=["ALTER", "writer"]
)
def test_only_another_writer_ends_it(
    monkeypatch: pytest.MonkeyPatch, newest: LedgerEntry, again: bool
) -> None:
    """A commit of another kind, such as an ALTER, may be faster as well."""
    sink = DeltaSink("app", path="/t")
    sink._last_table = TableSnapshot(STATE)
    tables = iter([TableSnapshot(STATE), TableSnapshot(replace(STATE, entry=newest))])
    monkeypatch.setattr(sink._target, "snapshot", lambda *_: next(tables))
    monkeypatch.setattr(sink, "_writer", MagicMock())
    assert sink._beat(MagicMock(), lambda: True) is again
    assert sink._seen == "first"


def test_its_thread_ends_with_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may run a query every minute, and each thread refers to the rows of a batch."""
    monkeypatch.setattr(heartbeat, "CHECK_S", 0.01)
    ended = threading.Event()
    before = {*threading.enumerate()}
    Heartbeat(3600).arm(lambda: True, lambda: not ended.is_set())
    (thread,) = {*threading.enumerate()} - before
    ended.set()
    thread.join(30)
    assert not thread.is_alive()


def test_a_thread_stays_in_its_process() -> None:
    """Spark Connect pickles the sink, and a query copies it when it starts."""
    heart = Heartbeat(3600)
    heart.arm(lambda: True, lambda: True)
    try:
        assert repr(pickle.loads(pickle.dumps(heart))) == "Heartbeat(3600 s, armed=False)"
    finally:
        heart.disarm()
    assert repr(heart) == "Heartbeat(3600 s, armed=False)"
