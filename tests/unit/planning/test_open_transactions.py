"""How a stream's progress reports open transactions: a few journals at a time, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gazette_spark._planning import states as states_module
from gazette_spark._planning.states import SHOWN, OpenJson, OpenTransactions, StateFiles, open_at
from gazette_spark.message.bulk_sequencer import FORGET_AFTER, LOST, NO_TRANSACTION, ProducerStates
from gazette_spark.message.uuids import Clock
from gazette_spark.offsets import JournalOffsets

A, B, C = "log/a", "log/b", "log/c"


def states(*begins: int) -> ProducerStates:
    """Return states of producers whose transactions begin at the given offsets; first messages are at 1 s."""
    clocks = np.array([Clock.at((at + 1) * 1_000_000_000) for at in range(len(begins))], np.uint64)
    last_offsets = np.arange(len(begins))
    return ProducerStates(last_offsets + 1, clocks, clocks, np.array(begins, np.int64), last_offsets)


def one_by_one(ask: Callable[[str], OpenJson | None], journals: Iterable[str]) -> dict[str, OpenJson | None]:
    return {journal: ask(journal) for journal in journals}


def position(**reached: int) -> JournalOffsets:
    offsets = {f"log/{short}": offset for short, offset in reached.items()}
    return JournalOffsets(offsets, starts=dict.fromkeys(offsets, 0))


def test_the_oldest_are_shown() -> None:
    assert open_at(states(NO_TRANSACTION, LOST), 100) is None
    found = open_at(states(70, LOST, 5, NO_TRANSACTION), 100)
    assert found == {
        "at": 100,
        "count": 2,
        "oldest": {
            "5": {"producer": "000000000003", "newest_ms": 3000},
            "70": {"producer": "000000000001", "newest_ms": 1000},
        },
    }
    day = FORGET_AFTER // int(Clock.at(1_000_000_000) - Clock.at(0))
    late = replace(states(70, 5), newest=int(Clock.at((day + 2) * 1_000_000_000)))
    left = open_at(late, 100)
    assert left is not None
    assert list(left["oldest"]) == ["5"], "the other one has been silent for more than a day"
    many = open_at(states(*range(50, 0, -1)), 100)
    assert many is not None
    assert (many["count"], list(many["oldest"])) == (50, [str(begin) for begin in range(1, SHOWN + 1)])


def test_journals_that_moved_are_looked_at(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    files.save(A, 10, 0, states(4))
    files.save(B, 20, 0, states(NO_TRANSACTION))
    opened = OpenTransactions(files)
    opened.refresh(position(a=0, b=0), one_by_one)
    assert opened.to_dict() == {}
    opened.refresh(position(a=10, b=20), one_by_one)
    assert opened.to_dict().keys() == {A}
    files.save(B, 30, 0, states(25, 26))
    opened.refresh(position(a=11, b=30), one_by_one)
    assert opened.to_dict() == {B: open_at(states(25, 26), 30)}
    opened.refresh(position(a=11), one_by_one)
    assert opened.to_dict() == {}


def test_a_file_that_is_not_there_yet_is_looked_for_again(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    opened = OpenTransactions(files)
    of_any_query = JournalOffsets({A: 10, B: 0})
    opened.refresh(of_any_query, one_by_one)
    assert (opened.journals, opened.to_dict()) == ({B}, {})
    files.save(A, 10, 7, states(8))
    opened.refresh(of_any_query, one_by_one)
    assert (opened.journals, set(opened.to_dict())) == ({A, B}, {A})
    opened.refresh(JournalOffsets({A: 20}, starts={A: 20}), one_by_one)
    assert (opened.journals, opened.to_dict()) == ({A}, {})


def test_many_journals_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_module, "REFRESHED_JOURNALS", 2)
    files = StateFiles(str(tmp_path))
    for journal in (A, B, C):
        for offset in (1, 2, 3):
            files.save(journal, offset, 0, ProducerStates.none())
    opened = OpenTransactions(files)
    looked: list[list[str]] = []

    def each(ask: Callable[[str], OpenJson | None], journals: Iterable[str]) -> dict[str, OpenJson | None]:
        looked.append(list(journals))
        return one_by_one(ask, looked[-1])

    for offset in (1, 2, 3):
        opened.refresh(position(a=offset, b=offset, c=offset), each)
    opened.refresh(position(a=3, b=3, c=3), each)
    opened.refresh(position(a=3, b=3, c=3), each)
    assert looked == [[A, B], [C, A], [B, C], [A], []]
