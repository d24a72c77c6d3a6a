"""Whatever dies, hangs or comes late, each row of each batch is committed once.

The decisions are the real ones, of :mod:`gazette_spark._write.transactions`; journals, drivers and Spark's
checkpoint are those of ``tests/oracles/transactions.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeAlias

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from gazette_spark._write import transactions
from gazette_spark._write.transactions import Attempt, TransactionPlan, TransactionRecord, TransactionRefusal
from tests.oracles import transactions as oracle
from tests.oracles.transactions import JOURNALS, TASKS, Checkpoint, Driver, Step, World, batch_write, stream
from tests.rig.examples import examples

pytestmark = pytest.mark.slow

Orders: TypeAlias = list[tuple[int, int, int]]

BATCHES = 4
DO, DO_TWICE, DIE_BEFORE, DIE_AFTER, DIE_AND_LAND_LATER, START, COPY, LAND, LOSE_REGISTERS = range(9)
DEATHS = [DIE_BEFORE, DIE_AFTER, DIE_AND_LAND_LATER]
FATES = [DO] * 9 + [DO_TWICE, *DEATHS, START, START, COPY, LAND, LOSE_REGISTERS]
ORDERS = st.lists(st.tuples(st.sampled_from(FATES), st.integers(0, 3), st.integers(1, 12)), max_size=40)


class Scheduler:
    def __init__(self, world: World) -> None:
        self.world = world
        self.drivers: list[tuple[Driver, Step]] = []
        self.late: list[Step] = []

    def start(self, driver: Driver) -> None:
        self._go_on(driver, None)

    def _go_on(self, driver: Driver, answer: Any) -> None:
        try:
            step = driver.send(answer)
        except StopIteration:
            return
        self.drivers.append((driver, step))

    def obey(self, fate: int, which: int) -> None:
        if fate == LOSE_REGISTERS:
            self.world.registers = {}
        elif fate == LAND:
            if self.late:
                self.late.pop(which % len(self.late))()
        elif self.drivers:
            driver, step = self.drivers.pop(which % len(self.drivers))
            if fate == DIE_AND_LAND_LATER:
                self.late.append(step)
            elif fate != DIE_BEFORE:
                answer = step()
                if fate == DO_TWICE:
                    answer = step()
                if fate != DIE_AFTER:
                    self._go_on(driver, answer)

    def run_to_end(self, driver: Driver) -> None:
        others, self.drivers = self.drivers, []
        self.start(driver)
        while self.drivers:
            self.obey(DO, 0)
        self.drivers = others


def rows(names: list[str]) -> Counter[tuple[str, int, str]]:
    return Counter((name, task, journal) for name in names for task in range(TASKS) for journal in JOURNALS)


def check_streams(orders: Orders) -> None:
    """Run the drivers of one query as ordered, then one to the end, and let all late appends arrive."""
    world = World()
    scheduler = Scheduler(world)
    checkpoints = [Checkpoint()]
    scheduler.start(stream(world, checkpoints[0], BATCHES))
    for fate, which, times in orders:
        if fate == COPY:
            checkpoints.append(checkpoints[which % len(checkpoints)].copied())
        if fate in (START, COPY):
            scheduler.start(stream(world, checkpoints[-1 - which % len(checkpoints)], BATCHES))
        for _ in range(times if fate == DO else 1):
            scheduler.obey(fate, which)
        assert all(count == 1 for count in world.rows().values())
    for checkpoint in checkpoints:
        scheduler.run_to_end(stream(world, checkpoint, BATCHES))
    while scheduler.late:
        scheduler.obey(LAND, 0)
    assert any(len(checkpoint.done) == BATCHES for checkpoint in checkpoints), "no run gets on"
    assert world.rows() == rows([str(batch) for batch in range(BATCHES)])
    authors = [name for name, _ in groupby(record.author for record in world.records)]
    assert len(authors) == len(set(authors)), "a run that was replaced went on"


def check_writes(orders: Orders) -> None:
    """Repeat batch writes under their ids until one try of each succeeds, next to other writes."""
    world = World()
    scheduler = Scheduler(world)
    finished: set[str] = set()
    for fate, which, times in orders:
        if fate == START:
            scheduler.start(batch_write(world, f"write-{which}", finished))
        for _ in range(times if fate == DO else 1):
            scheduler.obey(fate, which)
        assert all(count == 1 for count in world.rows().values())
    names = [f"write-{which}" for which in range(4)]
    for name in names:
        scheduler.run_to_end(batch_write(world, name, finished))
    while scheduler.late:
        scheduler.obey(LAND, 0)
    assert finished == set(names)
    assert world.rows() == rows(names)


@settings(max_examples=examples(300))
@given(ORDERS)
def test_a_stream_commits_each_row_once(orders: Orders) -> None:
    check_streams(orders)


@settings(max_examples=examples(150))
@given(ORDERS)
def test_batch_writes_commit_each_row_once(orders: Orders) -> None:
    check_writes(orders)


def _never_finished(
    attempt: Attempt, newest: TransactionRecord | None, registers: dict[str, str]
) -> TransactionPlan | TransactionRefusal:
    plan = transactions.decide(attempt, newest, registers)
    return plan if isinstance(plan, TransactionRefusal) else replace(plan, finish={})


def _written_again(attempt: Attempt, newest: TransactionRecord) -> TransactionPlan:
    return transactions._append(attempt, newest)


def _without_check(world: World, record: TransactionRecord, head: int, check: dict[str, str]) -> bool:
    world.lines.append(record)
    world.registers = record.registers
    return True


MUTANTS: list[Any] = [
    pytest.param(check_streams, transactions, "_replaced", lambda *_: {}, id="forget_who_was_replaced"),
    pytest.param(check_streams, transactions, "_repeat", _written_again, id="write_what_is_recorded_again"),
    pytest.param(check_streams, World, "append_record", _without_check, id="append_without_a_check"),
    pytest.param(check_writes, oracle, "decide", _never_finished, id="never_finish_the_one_before"),
    pytest.param(check_writes, transactions, "_earlier", lambda *_: (), id="forget_earlier_writes"),
]


@pytest.mark.parametrize(("check", "where", "name", "wrong"), MUTANTS)
def test_the_model_finds_a_wrong_decision(
    monkeypatch: pytest.MonkeyPatch, check: Callable[[Orders], None], where: Any, name: str, wrong: Any
) -> None:
    monkeypatch.setattr(where, name, wrong)

    @settings(max_examples=3000, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @seed(1)
    @given(ORDERS)
    def search(orders: Orders) -> None:
        check(orders)

    with pytest.raises(AssertionError):
        search()
