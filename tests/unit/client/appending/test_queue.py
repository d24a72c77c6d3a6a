"""Tests how appends are batched, retried and buffered, without a thread or a clock."""

from __future__ import annotations

import tempfile
from typing import BinaryIO, cast

import pytest

from gazette_spark.client._append.append import MAX_CONTENT_BYTES, AppendOptions, AppendResult
from gazette_spark.client._append.futures import AsyncOperation, OpFuture, finished_operation
from gazette_spark.client._append.queue import (
    AppendBatch,
    AppendQueue,
    Await,
    BatchOperation,
    BufferTarget,
    JournalQueue,
    Limits,
    Resolve,
    Send,
    attempt_timeout_s,
    is_terminal,
    may_join,
)
from gazette_spark.client._append.spool import AppendSpool
from gazette_spark.errors import (
    AppendWaitError,
    AuthError,
    BrokerError,
    ClosedError,
    FragmentStoreUnhealthyError,
    GazetteError,
    IndexHasGreaterOffsetError,
    InsufficientJournalBrokersError,
    JournalNotFoundError,
    NoJournalPrimaryBrokerError,
    NotAllowedError,
    NotJournalPrimaryBrokerError,
    ProtocolError,
    RegisterMismatchError,
    SuspendedError,
    UnavailableError,
    WrongAppendOffsetError,
    WrongRouteError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set

JOURNAL = "a/journal"
PLAIN = AppendOptions(JOURNAL)
AUTHOR = label_set({"author": "me"})
CHECKED = AppendOptions(JOURNAL, check_registers=pb.LabelSelector(include=AUTHOR))
ONE, OTHER = finished_operation(), finished_operation()
RESULT = AppendResult(0, 0, b"", pb.LabelSet())
LIMITS = Limits(pending_bytes=100, memory_bytes=50, batch_bytes=30, batch_memory_bytes=20, files=1)


def a_batch(
    options: AppendOptions = PLAIN, dependencies: frozenset[OpFuture] = frozenset(), size: int = 0
) -> AppendBatch:
    journal_queue = JournalQueue(AppendOptions(options.journal))
    return AppendBatch(journal_queue, options, dependencies, BatchOperation(journal_queue), size=size)


JOINS = {
    "plain": (a_batch(), PLAIN, frozenset(), True),
    "equal but not the same": (a_batch(), AppendOptions(JOURNAL), frozenset(), True),
    "equal registers": (
        a_batch(CHECKED),
        AppendOptions(JOURNAL, check_registers=pb.LabelSelector(include=label_set({"author": "me"}))),
        frozenset(),
        True,
    ),
    "other registers": (a_batch(CHECKED), PLAIN, frozenset(), False),
    "registers to set": (a_batch(), AppendOptions(JOURNAL, union_registers=AUTHOR), frozenset(), False),
    "an offset": (a_batch(AppendOptions(JOURNAL, 5)), AppendOptions(JOURNAL, 5), frozenset(), False),
    "fewer dependencies": (a_batch(dependencies=frozenset({ONE, OTHER})), PLAIN, frozenset({ONE}), True),
    "another dependency": (a_batch(dependencies=frozenset({ONE})), PLAIN, frozenset({OTHER}), False),
    "nearly full": (a_batch(size=29), PLAIN, frozenset(), True),
    "full": (a_batch(size=30), PLAIN, frozenset(), False),
}


@pytest.mark.parametrize("name", JOINS)
def test_who_joins(name: str) -> None:
    """A writer joins a batch with equal options that waits for the same dependencies or more."""
    batch, options, dependencies, expected = JOINS[name]
    assert may_join(batch, options, dependencies, LIMITS) is expected


def test_nobody_joins_what_is_on_its_way() -> None:
    batch = a_batch()
    batch.sealed = True
    assert not may_join(batch, PLAIN, frozenset(), LIMITS)


TERMINAL = (
    FragmentStoreUnhealthyError,
    IndexHasGreaterOffsetError,
    JournalNotFoundError,
    NotAllowedError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
PASSING = (
    InsufficientJournalBrokersError,
    NoJournalPrimaryBrokerError,
    NotJournalPrimaryBrokerError,
    SuspendedError,
    WrongRouteError,
)


@pytest.mark.parametrize("kind", TERMINAL + PASSING)
@pytest.mark.parametrize("options", [PLAIN, CHECKED], ids=["plain", "checked"])
def test_which_answers_stay(kind: type[GazetteError], options: AppendOptions) -> None:
    assert is_terminal(kind(JOURNAL), options) == (kind in TERMINAL)


@pytest.mark.parametrize("kind", pb.AppendRequest.Suspend.values())
def test_whether_a_suspension_stays(kind: pb.AppendRequest.Suspend) -> None:
    """The status is temporary only for an append that resumes the journal."""
    options = AppendOptions(JOURNAL, suspend=kind)
    assert is_terminal(SuspendedError(JOURNAL), options) == (kind != pb.AppendRequest.SUSPEND_RESUME)


@pytest.mark.parametrize(
    ("content", "error", "alone"),
    [
        pytest.param(b"", SuspendedError(JOURNAL), True, id="no bytes"),
        pytest.param(b"x", SuspendedError(JOURNAL), False, id="bytes"),
        pytest.param(b"", NotAllowedError(JOURNAL), False, id="another answer"),
    ],
)
def test_a_suspended_journal_fails_no_other_append(content: bytes, error: GazetteError, alone: bool) -> None:
    """If the refused append had no bytes, later appends of the journal leave no gap."""
    queue = AppendQueue(LIMITS, timeout_s=None, attempt_timeout_s=60.0)
    batch = queue.enter(AppendOptions(JOURNAL, suspend=pb.AppendRequest.SUSPEND_NO_RESUME), frozenset())
    assert batch is not None
    queue.place(batch, len(content))
    batch.spool.memory += content
    queue.leave(batch, keep=True)
    behind = written(queue)
    assert isinstance(queue.take(0.0), Send)
    assert queue.failed(batch, error, 0.0).ended == ([batch] if alone else [batch, behind])


FAILURES: dict[str, tuple[BaseException, bool]] = {
    "broken connection": (UnavailableError("http://b:1", "reset"), False),
    "too slow": (BrokerError("http://b:1", "UNKNOWN", "minimum append data rate"), False),
    "refused token": (AuthError("http://b:1", "who"), True),
    "bad request": (BrokerError("http://b:1", "INVALID_ARGUMENT", "no"), True),
    "a lie": (ProtocolError("AppendResponse", "no"), True),
    "closed": (ClosedError("client", "it is closed"), True),
    "broken disk": (OSError("disk"), True),
    "a mistake": (TypeError("oops"), True),
}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("options", [PLAIN, CHECKED], ids=["plain", "checked"])
def test_which_failures_stay(name: str, options: AppendOptions) -> None:
    error, expected = FAILURES[name]
    assert is_terminal(error, options) is expected


def open_file() -> BinaryIO:
    return cast(BinaryIO, tempfile.TemporaryFile(buffering=0))


def written(
    queue: AppendQueue, content: bytes = b"x", dependencies: frozenset[OpFuture] = frozenset()
) -> AppendBatch:
    batch = queue.enter(PLAIN, dependencies)
    assert batch is not None
    assert queue.place(batch, len(content)) is BufferTarget.MEMORY
    batch.spool.memory += content
    queue.leave(batch, keep=True)
    return batch


def test_tries_are_spaced_until_the_deadline() -> None:
    """The waits are Gazette's. After the deadline the last cause fails the journal queue."""
    queue = AppendQueue(LIMITS, timeout_s=8.0, attempt_timeout_s=60.0)
    batch = written(queue)
    now, waits = 100.0, []
    error = UnavailableError("http://b:1", "reset")
    work = queue.take(now)
    while isinstance(work, Send):
        assert work.timeout_s == pytest.approx(max(0.1, (108.0 - now) / 2), abs=0.001)
        outcome = queue.failed(batch, error, now)
        if outcome.ended:
            break
        assert queue.take(now) is None
        assert queue.next_due is not None
        waits.append(round(queue.next_due - now, 6))
        now = queue.next_due
        work = queue.take(now)
    assert waits == [0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0, 0.6]
    assert (outcome.ended, outcome.error) == ([batch], error)


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 30.0), (1 << 20, 46.0), (64 << 20, 1054.0)], ids=["small", "a MiB", "large"]
)
def test_a_try_leaves_time_for_another(size: int, expected: float) -> None:
    """A small batch gets half of the time; a large one gets time to be transferred."""
    assert attempt_timeout_s(60.0, size) == expected


def test_without_a_deadline_tries_go_on() -> None:
    queue = AppendQueue(LIMITS, timeout_s=None, attempt_timeout_s=60.0)
    batch = written(queue)
    now = 0.0
    for _ in range(1000):
        work = queue.take(now)
        assert isinstance(work, Send)
        assert work.batch == batch
        assert work.timeout_s == pytest.approx(60.0, abs=0.001)
        assert not queue.failed(batch, UnavailableError("http://b:1", "reset"), now).ended
        assert queue.next_due is not None
        now = queue.next_due
    queue.take(now)
    assert queue.sent(batch, RESULT).ended == [batch]
    assert queue.journal_queues == {}


def test_dependencies_that_are_on_their_way_are_waited_for_longer() -> None:
    """Only a dependency that is being sent extends the wait beyond the append's own deadline."""
    queue = AppendQueue(LIMITS, timeout_s=10.0, attempt_timeout_s=60.0)
    first = queue.enter(AppendOptions("an/other"), frozenset())
    assert first is not None
    queue.leave(first, keep=True)
    assert queue.take(0.0) == Send(first, 5.0)
    waiting = written(queue, dependencies=frozenset({first.operation}))
    assert queue.take(0.0) == Await(waiting)
    assert queue.take(10.0) is None
    assert queue.next_due == 20.0
    assert not queue.failed(first, UnavailableError("http://b:1", "reset"), 5.0).ended
    again = queue.take(5.05)
    assert isinstance(again, Send)
    assert again.batch == first
    assert again.timeout_s == pytest.approx(2.475)
    queue.sent(first, RESULT)
    first.operation.resolve(result=RESULT)
    queue.dependency_done(waiting, None)
    assert isinstance(queue.take(12.0), Send)
    queue.sent(waiting, RESULT)

    stuck = written(queue, dependencies=frozenset({AsyncOperation[None]()}))
    assert queue.take(30.0) == Await(stuck)
    outcome = queue.take(40.0)
    assert isinstance(outcome, Resolve)
    assert outcome.ended == [stuck]
    assert isinstance(outcome.error, AppendWaitError)


def test_a_dependency_whose_writer_dawdles_is_given_up() -> None:
    """An append that its writer has not released is not being sent."""
    queue = AppendQueue(LIMITS, timeout_s=10.0, attempt_timeout_s=60.0)
    held = queue.enter(AppendOptions("an/other"), frozenset())
    assert held is not None
    waiting = written(queue, dependencies=frozenset({held.operation}))
    assert queue.take(0.0) == Await(waiting)
    outcome = queue.take(10.0)
    assert isinstance(outcome, Resolve)
    assert outcome.ended == [waiting]


def test_a_dependency_that_is_about_to_be_sent_is_waited_for() -> None:
    """A released append counts as being sent, even before a worker takes it."""
    queue = AppendQueue(LIMITS, timeout_s=10.0, attempt_timeout_s=60.0)
    dependency = queue.enter(AppendOptions("an/other"), frozenset())
    assert dependency is not None
    waiting = written(queue, dependencies=frozenset({dependency.operation}))
    assert queue.take(0.0) == Await(waiting)
    queue.leave(dependency, keep=True)
    assert queue.take(10.0) == Send(dependency, 5.0)
    assert queue.next_due == 20.0


def fill(queue: AppendQueue, journal: str, memory: int, disk: int) -> AppendBatch:
    """Write bytes to a journal's batch, first to disk, then to memory."""
    batch = queue.enter(AppendOptions(journal), frozenset())
    assert batch is not None
    if disk:
        assert queue.place(batch, disk) is BufferTarget.DISK
        batch.spool.spill(bytes(disk), open_file)
        queue.recount(batch)
    if memory:
        assert queue.place(batch, memory) is BufferTarget.MEMORY
        batch.spool.memory += bytes(memory)
    queue.leave(batch, keep=True)
    return batch


@pytest.mark.parametrize(
    ("batch", "others", "longest"),
    [
        pytest.param((5, 0), [], 15, id="a batch has at most 20 in memory"),
        pytest.param((0, 29), [], 20, id="a batch of 29 is not full"),
        pytest.param((0, 30), [], None, id="a batch of 30 is full"),
        pytest.param((5, 0), [(20, 0), (15, 0)], 10, id="all batches have at most 50 in memory"),
        pytest.param((4, 0), [(0, 85)], 11, id="at most 100 wait"),
    ],
)
def test_a_quick_write_has_the_limits_of_any_other(
    batch: tuple[int, int], others: list[tuple[int, int]], longest: int | None
) -> None:
    """``longest`` is the size of the largest content that fits into memory."""
    queue = AppendQueue(LIMITS, timeout_s=None, attempt_timeout_s=60.0)
    batches = [fill(queue, f"part/{number}", *sizes) for number, sizes in enumerate(others)]
    open_batch = fill(queue, JOURNAL, *batch)
    assert queue.quick(JOURNAL, 1 if longest is None else longest + 1) is None
    if longest is not None:
        sums = (queue.pending_bytes, queue.memory_bytes, open_batch.size)
        assert queue.quick(JOURNAL, longest) is open_batch
        assert (queue.pending_bytes, queue.memory_bytes, open_batch.size) == tuple(
            at + longest for at in sums
        )
        open_batch.spool.memory += bytes(longest)
        assert queue.quick(JOURNAL, 1) is None
    for written_batch in (*batches, open_batch):
        written_batch.spool.close()


def test_a_quick_write_joins_only_a_batch_that_it_may_join() -> None:
    queue = AppendQueue(LIMITS, timeout_s=None, attempt_timeout_s=60.0)
    assert queue.quick(JOURNAL, 1) is None, "there is no batch"
    batch = queue.enter(CHECKED, frozenset())
    assert batch is not None
    assert queue.quick(JOURNAL, 1) is None, "a writer has it open"
    queue.leave(batch, keep=True)
    assert queue.quick(JOURNAL, 1) is None, "it checks registers"
    plain = written(queue)
    assert queue.quick(JOURNAL, 1) is plain
    assert queue.take(0.0) == Send(batch, 60.0)
    queue.sent(batch, RESULT)
    assert isinstance(queue.take(0.0), Send)
    assert queue.quick(JOURNAL, 1) is None, "it is on its way"


def test_bytes_go_to_memory_then_to_disk_then_nowhere() -> None:
    queue = AppendQueue(LIMITS, timeout_s=None, attempt_timeout_s=60.0)
    one, two, three = (queue.enter(AppendOptions(f"part/{each}"), frozenset()) for each in range(3))
    assert one is not None
    assert two is not None
    assert three is not None
    assert queue.place(one, 20) is BufferTarget.MEMORY
    assert queue.place(two, 20) is BufferTarget.MEMORY
    assert queue.place(three, 11) is BufferTarget.DISK, "all together would be too many"
    assert queue.place(one, 1) is BufferTarget.NOWHERE, "there is one file already"
    assert queue.place(three, 50) is BufferTarget.NOWHERE, "100 may wait"
    assert queue.place(three, 49) is BufferTarget.DISK
    assert queue.pending_bytes == 100
    queue.leave(two, keep=True)
    assert queue.pending_bytes == 80
    one.ended = True
    assert queue.place(one, 1000) is BufferTarget.DROPPED


def test_a_spool_is_its_bytes_wherever_they_are() -> None:
    spool = AppendSpool()
    spool.memory += b"first"
    spool.spill(memoryview(bytes(2 * MAX_CONTENT_BYTES)), open_file)
    spool.memory += b"last" * MAX_CONTENT_BYTES
    expected = b"first" + bytes(2 * MAX_CONTENT_BYTES) + b"last" * MAX_CONTENT_BYTES
    for _ in range(2):
        pieces = list(spool)
        assert b"".join(pieces) == expected
        assert max(map(len, pieces)) == MAX_CONTENT_BYTES
    assert len(spool) == len(expected)
    spool.close()
    assert list(spool) == []


@pytest.mark.parametrize("size", [0, 3, 5, 7, 9], ids=["all", "within disk", "disk", "within memory", "none"])
def test_a_spool_forgets_its_end(size: int) -> None:
    spool = AppendSpool()
    spool.spill(b"12345", open_file)
    spool.memory += b"6789"
    spool.truncate(size)
    assert len(spool) == size
    spool.memory += b"ab"
    spool.spill(b"cd", open_file)
    assert b"".join(spool) == b"123456789"[:size] + b"abcd"
    spool.close()


def test_a_spool_survives_a_full_disk() -> None:
    spool = AppendSpool()
    spool.spill(b"12345", open_file)
    spool.memory += b"678"

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.pwrite", fail)
        with pytest.raises(OSError, match="No space"):
            spool.spill(b"9", open_file)
    assert b"".join(spool) == b"12345678"
    spool.close()
