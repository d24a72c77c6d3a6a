"""Whatever writers, brokers and dependencies do, each writer's bytes are appended once, in order."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.client._append.append import AppendOptions, AppendResult
from gazette_spark.client._append.futures import AsyncOperation, OpFuture, OpFutures, failure_of, unfinished
from gazette_spark.client._append.queue import (
    AppendBatch,
    AppendQueue,
    Await,
    BufferTarget,
    Limits,
    Resolve,
    Send,
)
from gazette_spark.errors import (
    DependencyError,
    NoJournalPrimaryBrokerError,
    NotAllowedError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set
from tests.rig.examples import examples

JOURNALS = ("a/one", "a/two", "a/three")
LIMITS = Limits(pending_bytes=400, memory_bytes=100, batch_bytes=60, batch_memory_bytes=40, files=3)
TIMEOUT_S = 30.0
CHECKED = pb.LabelSelector(include=label_set({"author": "me"}))
HOW = ["done"] * 5 + ["lost", "passing", "passing", "refused"]
RESULT = AppendResult(0, 0, b"", pb.LabelSet())


@dataclass(eq=False)
class Writer:
    content: bytes
    batch: AppendBatch
    dependencies: OpFutures
    begin: int
    kept: bool = False


@dataclass
class Journal:
    writers: list[Writer] = field(default_factory=list)
    commits: list[tuple[AppendBatch, bytes]] = field(default_factory=list)


def open_file() -> BinaryIO:
    return cast(BinaryIO, tempfile.TemporaryFile(buffering=0))


class World:
    """A queue, its writers, a broker and a clock. A number selects each move."""

    def __init__(self) -> None:
        self.queue = AppendQueue(LIMITS, timeout_s=TIMEOUT_S, attempt_timeout_s=10.0)
        self.now = 1000.0
        self.journals = {name: Journal() for name in JOURNALS}
        self.open: list[Writer] = []
        self.sending: dict[AppendBatch, bytes] = {}
        self.outside: list[AsyncOperation[None]] = []
        self.seen: list[AppendBatch] = []
        self.serial = 0

    def carry_out(self, outcome: Resolve) -> None:
        """Perform the action that the queue asks the I/O layer to do."""
        for spool in outcome.freed:
            spool.close()
        for batch in outcome.ended:
            batch.operation.resolve(outcome.error, outcome.result)

    def enter(self, journal: str, dependencies: OpFutures, *, checked: bool) -> Writer | None:
        options = AppendOptions(journal, check_registers=CHECKED if checked else None)
        batch = self.queue.enter(options, dependencies)
        if batch is None:
            assert any(each.batch.journal_queue.journal == journal for each in self.open)
            return None
        assert batch.ended or not any(each.batch is batch for each in self.open)
        writer = Writer(b"", batch, dependencies, len(batch.spool))
        self.seen.append(batch)
        if not batch.ended:
            self.journals[journal].writers.append(writer)
        self.open.append(writer)
        return writer

    def begin(self, number: int) -> None:
        journal = JOURNALS[number % 3]
        dependencies: list[OpFuture] = []
        match number // 3 % 10:
            case 0:
                self.outside.append(AsyncOperation())
                dependencies = [self.outside[-1]]
            case 1 | 2:
                dependencies = list(self.queue.pending_except(journal))
            case 3 | 4:
                dependencies = [each.operation for each in self.seen[-2:]]
        self.enter(journal, unfinished(dependencies), checked=number // 30 % 4 == 0)

    def write(self, number: int) -> None:
        if not self.open:
            return
        writer, size = self.open[number % len(self.open)], number % 50 + 1
        content = self.payload(size)
        place = self.queue.place(writer.batch, size)
        if place is BufferTarget.MEMORY:
            writer.batch.spool.memory += content
        elif place is BufferTarget.DISK:
            writer.batch.spool.spill(content, open_file)
            self.queue.recount(writer.batch)
        elif place is BufferTarget.NOWHERE:
            return
        writer.content += content

    def leave(self, number: int) -> None:
        if self.open:
            writer = self.open.pop(number % len(self.open))
            writer.kept = number // 8 % 4 != 0
            if not writer.kept:
                writer.batch.spool.truncate(writer.begin)
            self.carry_out(self.queue.leave(writer.batch, keep=writer.kept))

    def quick(self, number: int) -> None:
        journal, size = JOURNALS[number % 3], number % 30
        batch = self.queue.quick(journal, size)
        if batch is not None:
            content = self.payload(size)
            batch.spool.memory += content
            writer = Writer(content, batch, frozenset(), batch.size - size, kept=True)
            self.journals[journal].writers.append(writer)

    def payload(self, size: int) -> bytes:
        """Return ``size`` bytes, which are unique unless there are too few of them."""
        self.serial += 1
        return (f"{self.serial}," * size)[:size].encode()

    def take(self, _number: int = 0) -> None:
        match self.queue.take(self.now):
            case Send(batch, timeout_s):
                assert 0 < timeout_s < TIMEOUT_S + 0.001  # Differences of clock times are inexact.
                assert all(each.journal_queue is not batch.journal_queue for each in self.sending), (
                    "one at a time"
                )
                assert not batch.writing
                writers = self.kept(batch)
                assert writers, "nobody asked for it"
                for each in [each for writer in writers for each in writer.dependencies]:
                    assert each.done()
                    assert failure_of(each) is None
                self.sending[batch] = b"".join(batch.spool)
            case Await(batch):
                for each in batch.dependencies:
                    each.add_done_callback(partial(self.dependency_done, batch))
            case Resolve() as outcome:
                self.carry_out(outcome)

    def answer(self, number: int) -> None:
        """Answer an append: it succeeded, it failed, or it succeeded but the answer is lost."""
        if not self.sending:
            return
        batch = list(self.sending)[number % len(self.sending)]
        how = HOW[number // 4 % len(HOW)]
        self.sent(batch, commits=how in ("done", "lost"))
        if how == "done":
            self.carry_out(self.queue.sent(batch, RESULT))
            return
        error = {
            "lost": UnavailableError("http://b:1", "reset"),
            "passing": NoJournalPrimaryBrokerError(batch.journal_queue.journal),
            "refused": NotAllowedError(batch.journal_queue.journal),
        }[how]
        self.carry_out(self.queue.failed(batch, error, self.now))

    def resolve(self, number: int) -> None:
        waiting = [each for each in self.outside if not each.done()]
        if waiting:
            error = KeyError("gone") if number // 4 % 8 == 0 else None
            waiting[number % len(waiting)].resolve(error)

    def pass_time(self, number: int) -> None:
        self.now += (0.05, 0.1, 1.0, 20.0)[number % 4]

    def kept(self, batch: AppendBatch) -> list[Writer]:
        writers = self.journals[batch.journal_queue.journal].writers
        return [each for each in writers if each.batch is batch and each.kept]

    def sent(self, batch: AppendBatch, *, commits: bool) -> None:
        """Check that a batch's bytes did not change during the try, and store them if it commits."""
        content = self.sending.pop(batch)
        assert b"".join(batch.spool) == content
        if commits:
            self.journals[batch.journal_queue.journal].commits.append((batch, content))

    def dependency_done(self, batch: AppendBatch, dependency: OpFuture) -> None:
        self.carry_out(self.queue.dependency_done(batch, failure_of(dependency)))

    def counts_are_right(self) -> None:
        queue = self.queue
        batches = [
            batch for journal_queue in queue.journal_queues.values() for batch in journal_queue.batches
        ]
        held = batches + [batch for batch in dict.fromkeys(self.seen) if batch.ended and batch.counted[0]]
        assert queue.pending_bytes == sum(len(batch.spool) for batch in dict.fromkeys(held))
        assert queue.memory_bytes == sum(len(batch.spool.memory) for batch in dict.fromkeys(held))
        assert all(batch.size == len(batch.spool) for batch in batches)
        assert queue.pending_bytes <= LIMITS.pending_bytes
        assert queue.memory_bytes <= LIMITS.memory_bytes
        assert queue.files <= LIMITS.files

    def writers_are_whole_and_in_order(self) -> None:
        for journal in self.journals.values():
            order = list(dict.fromkeys(writer.batch for writer in journal.writers))
            for batch, content in journal.commits:
                assert content == b"".join(each.content for each in self.kept(batch))
            committed = [order.index(batch) for batch, _ in journal.commits]
            assert committed == sorted(committed), "batches overtook each other"
            ended = [failure_of(batch.operation) for batch in order if batch.operation.done()]
            assert all(error is not None for error in ended[first_failure(ended) :]), "after a failure"

    def end(self) -> None:
        """Finish everything: successful bytes are stored, requests answered, and resources released."""
        if self.serial % 4 == 0:
            self.carry_out(self.queue.fail_all(ZeroDivisionError()))
        for writer in list(self.open):
            self.open.remove(writer)
            writer.kept = True
            self.carry_out(self.queue.leave(writer.batch, keep=True))
        for each in self.outside:
            if not each.done():
                each.resolve()
        for _ in range(10_000):
            if not any(journal_queue.batches for journal_queue in self.queue.journal_queues.values()):
                break
            self.take()
            self.answer_all()
            self.now += 0.1
        for batch in self.seen:
            assert batch.operation.done()
        for journal in self.journals.values():
            committed = {batch for batch, _ in journal.commits}
            for writer in journal.writers:
                error = failure_of(writer.batch.operation)
                assert error is not None or not writer.kept or writer.batch in committed
                if isinstance(error, DependencyError):
                    assert error.__cause__ is not None
        self.answer_all()
        assert (self.queue.pending_bytes, self.queue.memory_bytes, self.queue.files) == (0, 0, 0)
        assert all(journal_queue.failure is not None for journal_queue in self.queue.journal_queues.values())

    def answer_all(self) -> None:
        for batch in list(self.sending):
            self.sent(batch, commits=True)
            self.carry_out(self.queue.sent(batch, RESULT))


def first_failure(ended: list[BaseException | None]) -> int:
    return next((at for at, error in enumerate(ended) if error is not None), len(ended))


MOVES = (
    *(World.begin, World.begin, World.write, World.write, World.leave, World.leave),
    *(World.quick, World.take, World.take, World.take, World.answer, World.answer),
    *(World.resolve, World.pass_time),
)
"""Possible next moves; frequent ones are repeated."""


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(MOVES) - 1), st.integers(0, 999)), min_size=100, max_size=300))
def test_any_course_of_events(moves: list[tuple[int, int]]) -> None:
    world = World()
    for move, number in moves:
        MOVES[move](world, number)
        world.counts_are_right()
        world.writers_are_whole_and_in_order()
    world.end()
