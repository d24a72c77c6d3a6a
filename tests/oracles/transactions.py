"""An in-memory model of journals, and of drivers that write batches to them exactly once, step by step.

A driver is a generator that yields its steps, each a call that changes or reads the model. The caller decides
what happens to a step: it succeeds; it succeeds, but the driver dies before it gets the answer; it runs long
after the driver has died; or it runs twice, because the first answer was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gazette_spark._write.transactions import Attempt, TransactionRecord, TransactionRefusal, decide

CONTINUE, ACK = 1, 2
JOURNALS = ("a", "b")
TASKS = 2

Step = Callable[[], Any]
Driver = Generator[Step, Any, None]


@dataclass(frozen=True)
class Message:
    """A message in a journal; an acknowledgement has no row."""

    producer: int
    clock: int
    flags: int
    row: tuple[str, int, str] | None = None
    """Batch or write, task and journal of the row."""


def committed(messages: list[Message]) -> Counter[tuple[str, int, str]]:
    """Return the rows that a committed reader of a journal delivers, by Gazette's rules."""
    least: dict[int, int] = {}
    most: dict[int, int] = {}
    pending: dict[int, list[Message]] = {}
    rows: Counter[tuple[str, int, str]] = Counter()
    for each in messages:
        who = each.producer
        least.setdefault(who, each.clock - 1)
        most.setdefault(who, each.clock - 1)
        waiting = pending.setdefault(who, [])
        if each.flags == CONTINUE:
            if each.clock > most[who]:
                most[who] = each.clock
                waiting.append(each)
            continue
        if each.clock > least[who]:
            rows.update(one.row for one in waiting if one.clock <= each.clock and one.row is not None)
        least[who] = most[who] = each.clock
        waiting.clear()
    return rows


@dataclass
class Checkpoint:
    """A query checkpoint, shared by the runs of a query."""

    planned: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)

    def copied(self) -> Checkpoint:
        """Return a copy, which Spark treats as its own checkpoint."""
        return Checkpoint(set(self.planned), set(self.done))

    def plan(self, batch: int) -> bool:
        """Record a batch's range; return False if another run already has."""
        fresh = batch not in self.planned
        self.planned.add(batch)
        return fresh

    def complete(self, batch: int) -> bool:
        """Record that a batch is complete; return False if another run already has."""
        fresh = batch not in self.done
        self.done.add(batch)
        return fresh


@dataclass
class World:
    journals: dict[str, list[Message]] = field(default_factory=lambda: {name: [] for name in JOURNALS})
    lines: list[TransactionRecord | None] = field(default_factory=list)
    """Lines of the transaction journal; None where it was opened."""
    registers: dict[str, str] = field(default_factory=dict)
    producers: int = 0
    authors: int = 0

    def append(self, journal: str, messages: list[Message]) -> None:
        self.journals[journal] += messages

    def acknowledge(self, journal: str, intent: bytes) -> None:
        """Append acknowledgements, each a producer and a clock as text."""
        pairs = (pair.split(":") for pair in intent.decode().split())
        self.append(journal, [Message(int(who), int(clock), ACK) for who, clock in pairs])

    def state(self) -> tuple[int, dict[str, str], TransactionRecord | None]:
        """Return the transaction journal's head, registers and newest record."""
        records = self.records
        return len(self.lines), dict(self.registers), records[-1] if records else None

    @property
    def records(self) -> list[TransactionRecord]:
        return [line for line in self.lines if line is not None]

    def open(self) -> None:
        """Append the record that opens the transaction journal."""
        self.lines.append(None)

    def append_record(self, record: TransactionRecord, head: int, check: Mapping[str, str]) -> bool:
        """Append a record as a broker does, checking registers and write head; 0 accepts any head."""
        if (self.registers and self.registers != check) or (head and head != len(self.lines)):
            return False
        self.lines.append(TransactionRecord.from_json(record.to_json()))
        self.registers = record.registers
        return True

    def rows(self) -> Counter[tuple[str, int, str]]:
        found: Counter[tuple[str, int, str]] = Counter()
        for messages in self.journals.values():
            found += committed(messages)
        return found


def stream(world: World, checkpoint: Checkpoint, batches: int) -> Driver:
    """Run a query for up to ``batches`` batches; it ends early if Spark or the journal stops it."""
    world.authors += 1
    author = f"run-{world.authors}"
    batch = max(checkpoint.planned, default=0)
    if batch in checkpoint.done:
        batch += 1
    if batch not in checkpoint.planned and not (yield partial(checkpoint.plan, batch)):
        return
    while batch < batches:
        attempt = Attempt("query", batch, author)
        if not (yield from _written(world, attempt, str(batch))):
            return
        if not (yield partial(checkpoint.complete, batch)):
            return
        batch += 1
        if batch < batches and not (yield partial(checkpoint.plan, batch)):
            return


def batch_write(world: World, name: str, finished: set[str]) -> Driver:
    """Attempt a batch write once."""
    world.authors += 1
    attempt = Attempt(name, None, f"try-{world.authors}")
    if (yield from _written(world, attempt, name)):
        finished.add(name)


def _written(world: World, attempt: Attempt, batch: str) -> Generator[Step, Any, bool]:
    intents: dict[str, bytes] = {}
    rollbacks: dict[str, bytes] = {}
    for task in range(TASKS):
        world.producers += 1
        who = world.producers
        for at, journal in enumerate(JOURNALS):
            rows = [Message(who, 10 * at + 5, CONTINUE, (batch, task, journal))]
            yield partial(world.append, journal, rows)
            intents[journal] = intents.get(journal, b"") + b"%d:%d " % (who, 99)
            rollbacks[journal] = rollbacks.get(journal, b"") + b"%d:%d " % (who, 10 * at + 4)
    return (yield from _committed(world, replace(attempt, intents=intents), rollbacks))


def _committed(world: World, attempt: Attempt, rollbacks: Mapping[str, bytes]) -> Generator[Step, Any, bool]:
    """Model ``commit_transaction``."""
    while True:
        head, registers, newest = yield world.state
        if head == 0:
            yield world.open
            continue
        plan = decide(attempt, newest, registers)
        if isinstance(plan, TransactionRefusal):
            return False
        yield from _acknowledged(world, plan.finish)
        if plan.record is not None:
            check = registers or (newest.registers if newest else plan.record.registers)
            record = plan.record
            if not (yield partial(world.append_record, record, head, check)):
                continue
        yield from _acknowledged(world, plan.commit)
        if plan.rolls_back:
            yield from _acknowledged(world, rollbacks)
        return True


def _acknowledged(world: World, intents: Mapping[str, bytes]) -> Generator[Step, Any, None]:
    for journal, intent in intents.items():
        yield partial(world.acknowledge, journal, intent)
