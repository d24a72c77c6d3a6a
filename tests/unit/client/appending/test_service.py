"""Tests that an append service appends in the background, in order and in batches, and reports failures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import grpc
import pytest

from gazette_spark.client import AppendService, AsyncAppend, Client
from gazette_spark.client._append.append import AppendOptions
from gazette_spark.client._append.futures import AsyncOperation, finished_operation
from gazette_spark.errors import (
    AppendWaitError,
    AuthError,
    BacklogError,
    ClosedError,
    DependencyError,
    NotAllowedError,
    OptionError,
    ProtocolError,
    RegisterMismatchError,
    SuspendedError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import sum_to_pb
from gazette_spark.protocol.labels import label_set
from gazette_spark.testing.stub_broker import Act, Fail, Hang, StubBroker
from tests.rig.interrupts import interrupted

JOURNAL = "a/journal"
OTHER = "an/other"
SOON = 20
"""Maximum seconds until an expected event."""


class Journals:
    """The journals of a scripted broker.

    It takes appends once ``gate`` is open and ``failures`` are used up.
    """

    def __init__(self) -> None:
        self.contents: dict[str, bytearray] = {}
        self.requests: list[tuple[str, bytes]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self.failures: dict[str, list[Act]] = {}

    def take(self, messages: list[pb.AppendRequest]) -> list[Act]:
        journal, content = messages[0].journal, b"".join(message.content for message in messages)
        self.requests.append((journal, content))
        self.arrived.release()
        assert self.gate.wait(SOON)
        if failures := self.failures.get(journal):
            return [failures.pop(0)]
        if messages[-1] != pb.AppendRequest():
            return [Fail(grpc.StatusCode.UNKNOWN, "append stream: unexpected EOF")]
        kept = self.contents.setdefault(journal, bytearray())
        begin = len(kept)
        kept += content
        commit = pb.Fragment(
            journal=journal, begin=begin, end=len(kept), sum=sum_to_pb(bytes(20)), compression_codec=pb.NONE
        )
        return [pb.AppendResponse(commit=commit, registers=pb.LabelSet())]

    def held(self, service: AppendService, journal: str = JOURNAL) -> AsyncAppend:
        """Append ``first;`` and wait until the broker has it, so that later appends form a batch."""
        self.gate.clear()
        first = service.append(journal, b"first;")
        assert self.arrived.acquire(timeout=SOON)
        return first


@pytest.fixture
def journals(stub: StubBroker) -> Iterator[Journals]:
    journals = Journals()
    stub.script("Append", journals.take)
    yield journals
    journals.gate.set()


def workers() -> set[threading.Thread]:
    """Return the threads of all append services, including those that other tests have closed."""
    return {thread for thread in threading.enumerate() if re.fullmatch(r"append-service-\d+", thread.name)}


@pytest.fixture
def service(client: Client) -> Iterator[AppendService]:
    """A service on the stub, which cancels unfinished appends at the end."""
    opened = AppendService(client)
    yield opened
    opened.close(abort=True)


def status(code: pb.Status) -> pb.AppendResponse:
    return pb.AppendResponse(status=code, registers=pb.LabelSet())


def test_appends_of_a_journal_are_gathered(service: AppendService, journals: Journals) -> None:
    first = journals.held(service)
    later = [service.append(JOURNAL, b"%d;" % each) for each in range(100)]
    journals.gate.set()
    assert [each.result(SOON).end for each in (first, later[0])] == [6, 6 + 290]
    assert {each.response.begin for each in later} == {6}
    assert len(journals.requests) == 2
    assert journals.contents[JOURNAL] == b"first;" + b"".join(b"%d;" % each for each in range(100))


def test_each_writer_knows_its_span(service: AppendService, journals: Journals) -> None:
    journals.held(service)
    content = [b"a" * 3, b"", b"b" * 5]
    later = [service.append(JOURNAL, each) for each in content]
    journals.gate.set()
    service.flush()
    assert [each.span for each in later] == [(6, 9), (9, 9), (9, 14)]
    assert {(each.response.begin, each.response.end) for each in later} == {(6, 14)}


def test_a_batch_of_aborted_writers_is_not_sent(service: AppendService, journals: Journals) -> None:
    service.start_append(JOURNAL).abort()
    service.flush()
    assert journals.requests == []
    assert service.pending_except("") == frozenset()


def test_registers_without_bytes_fail_their_writer_only(service: AppendService, journals: Journals) -> None:
    """Brokers reject such a request, so it must not fail the journal."""
    mine = label_set({"author": "me"})
    started = service.start_append(JOURNAL, union_registers=mine)
    with pytest.raises(ProtocolError, match="non-empty"):
        started.release()
    assert service.append(JOURNAL, b"x").result(SOON).end == 1


def test_unequal_requests_are_appends_of_their_own(service: AppendService, stub: StubBroker) -> None:
    """Only one writer can be at an explicit offset, so requests with one are never shared."""
    journals = Journals()
    stub.script("Append", journals.take)
    first = journals.held(service)
    mine = pb.LabelSelector(include=label_set({"author": "me"}))
    for _ in range(2):
        for keys in ({}, {"check_registers": mine}, {"check_registers": mine}, {"offset": 6}, {"offset": 6}):
            with service.start_append(JOURNAL, **keys) as started:
                started.write(b"x")
    assert started.request == pb.AppendRequest(journal=JOURNAL, offset=6)
    journals.gate.set()
    service.flush()
    assert first.done()
    sent = [content for _, content in journals.requests]
    assert sent == [b"first;", b"x", b"xx", b"x", b"x", b"x", b"xx", b"x", b"x"]


WHOLE = AppendOptions(
    JOURNAL,
    offset=7,
    check_registers=pb.LabelSelector(include=label_set({"author": "me"})),
    union_registers=label_set({"epoch": "2"}),
    subtract_registers=label_set({"epoch": "1"}),
    suspend=pb.AppendRequest.SUSPEND_NO_RESUME,
    min_etcd_revision=9,
    do_not_proxy=True,
)


def test_whole_options_are_sent(service: AppendService, journals: Journals, stub: StubBroker) -> None:
    no_resume = pb.AppendRequest.SUSPEND_NO_RESUME
    with service.start_append(WHOLE) as whole:
        whole.write(b"x")
    with service.start_append(WHOLE, min_etcd_revision=3) as replaced:
        replaced.write(b"x")
    replaced.result(SOON)
    with service.start_append(OTHER, suspend=no_resume, do_not_proxy=True) as by_keywords:
        by_keywords.write(b"x")
    by_keywords.result(SOON)
    changed = WHOLE.request()
    changed.min_etcd_revision = 3
    expected = [
        WHOLE.request(),
        changed,
        pb.AppendRequest(journal=OTHER, suspend=no_resume, do_not_proxy=True),
    ]
    assert [call[0] for call in stub.requests("Append")] == expected


def test_an_append_that_suspends_fails_alone(service: AppendService, journals: Journals) -> None:
    journals.failures[JOURNAL] = [status(pb.SUSPENDED)]
    with service.start_append(JOURNAL, suspend=pb.AppendRequest.SUSPEND_NOW) as suspending:
        pass
    later = service.append(JOURNAL, b"x")
    assert isinstance(suspending.exception(SOON), SuspendedError)
    assert later.result(SOON).end == 1
    service.close()


def test_a_failure_behind_an_append_that_suspends_is_told(client: Client, journals: Journals) -> None:
    """Reading the result of one append must not hide the failure of another."""
    service = AppendService(client)
    journals.failures[JOURNAL] = [status(pb.SUSPENDED), status(pb.NOT_ALLOWED)]
    journals.gate.clear()
    with service.start_append(JOURNAL, suspend=pb.AppendRequest.SUSPEND_NOW) as suspending:
        pass
    assert journals.arrived.acquire(timeout=SOON)
    service.append(JOURNAL, b"x")
    journals.gate.set()
    assert isinstance(suspending.exception(SOON), SuspendedError)
    with pytest.raises(NotAllowedError):
        service.close()


def test_bytes_that_do_not_resume_the_journal(service: AppendService, journals: Journals) -> None:
    """Later appends of the journal must fail, too, because these bytes would be missing before them."""
    journals.failures[JOURNAL] = [status(pb.SUSPENDED)]
    with service.start_append(JOURNAL, suspend=pb.AppendRequest.SUSPEND_NO_RESUME) as left_out:
        left_out.write(b"x")
    assert isinstance(left_out.exception(SOON), SuspendedError)
    assert isinstance(service.append(JOURNAL, b"later").exception(SOON), SuspendedError)


def test_bytes_that_no_broker_takes_fail_their_writer_only(
    service: AppendService, journals: Journals
) -> None:
    """A request that only changes the suspension must not have bytes."""
    started = service.start_append(JOURNAL, suspend=pb.AppendRequest.SUSPEND_IF_FLUSHED)
    started.write(b"x")
    with pytest.raises(ProtocolError, match="SUSPEND_IF_FLUSHED requires an empty Append"):
        started.release()
    assert service.append(JOURNAL, b"x").result(SOON).end == 1
    with pytest.raises(ProtocolError, match="MinEtcdRevision"):
        service.start_append(JOURNAL, min_etcd_revision=-1)


def test_a_dependency_is_waited_for(service: AppendService, journals: Journals) -> None:
    operation: AsyncOperation[None] = AsyncOperation()
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    with service.start_append(JOURNAL, dependencies=[operation, future, finished_operation()]) as waiting:
        waiting.write(b"late")
    assert service.append(OTHER, b"early").result(SOON)
    operation.resolve()
    assert service.append(OTHER, b"early").result(SOON)
    assert not waiting.done()
    future.set_result(None)
    waiting.result(SOON)
    assert [content for _, content in journals.requests] == [b"early", b"early", b"late"]


def test_a_barrier_waits_for_other_journals(service: AppendService, journals: Journals) -> None:
    first = journals.held(service, OTHER)
    names = [f"part/{each}" for each in range(20)]
    parts = [service.append(name, b"x") for name in names]
    pending = service.pending_except(JOURNAL)
    assert pending == {each.future for each in (first, *parts)}
    with service.start_append(JOURNAL, dependencies=pending) as barrier:
        barrier.write(b"checkpoint")
    assert barrier.future not in service.pending_except(JOURNAL)
    assert barrier.future in service.pending_except("")
    journals.gate.set()
    barrier.result(SOON)
    assert journals.requests[-1] == (JOURNAL, b"checkpoint")
    assert all(each.done() for each in (first, *parts))
    assert service.pending_except("") == frozenset()


def test_a_failed_dependency_fails_the_journal(service: AppendService, journals: Journals) -> None:
    """The failure also spreads to appends that depend on this one."""
    operation: AsyncOperation[None] = AsyncOperation()
    with service.start_append(JOURNAL, dependencies=[operation]) as failing:
        failing.write(b"x")
    operation.resolve(KeyError("gone"))
    for append in (failing, service.append(JOURNAL, b"later")):
        with pytest.raises(DependencyError, match="gone") as caught:
            append.result(SOON)
        assert isinstance(caught.value.__cause__, KeyError)
    assert service.append(OTHER, b"y").result(SOON)
    with service.start_append(OTHER, dependencies=service.pending_except(OTHER)) as spread:
        spread.write(b"z")
    assert isinstance(spread.exception(SOON), DependencyError)
    assert [content for _, content in journals.requests] == [b"y"]


PASSING: dict[str, Act] = {
    "broken connection": Fail(),
    "no primary": status(pb.NO_JOURNAL_PRIMARY_BROKER),
    "too slow": Fail(grpc.StatusCode.UNKNOWN, "client stream didn't sustain the minimum append data rate"),
}
"""One transient failure of each kind; ``test_queue`` covers them all."""


@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_is_tried_again(service: AppendService, journals: Journals, name: str) -> None:
    journals.failures[JOURNAL] = [PASSING[name]] * 2
    journals.held(service)
    service.append(JOURNAL, b"second;")
    journals.gate.set()
    service.flush()
    sent = [content for _, content in journals.requests]
    assert sent == [b"first;"] * 3 + [b"second;"]


TERMINAL: dict[str, tuple[Act, type[Exception]]] = {
    "mismatch": (status(pb.REGISTER_MISMATCH), RegisterMismatchError),
    "refused token": (Fail(grpc.StatusCode.UNAUTHENTICATED, "who"), AuthError),
    "a lie": (pb.AppendResponse(registers=pb.LabelSet()), ProtocolError),
}
"""One permanent failure of each kind, and its error; ``test_queue`` covers them all."""


@pytest.mark.parametrize("name", TERMINAL)
def test_what_stays_ends_the_journal(service: AppendService, journals: Journals, name: str) -> None:
    act, error = TERMINAL[name]
    journals.failures[JOURNAL] = [act]
    first = journals.held(service)
    behind = service.append(JOURNAL, b"behind")
    journals.gate.set()
    for append in (first, behind, service.append(JOURNAL, b"later")):
        with pytest.raises(error):
            append.result(SOON)
    assert service.append(OTHER, b"y").result(SOON)
    assert [journal for journal, _ in journals.requests] == [JOURNAL, OTHER]
    with pytest.raises(error):
        service.flush()


@pytest.mark.parametrize("act", [Fail(), Hang()], ids=["broken connection", "silence"])
def test_trying_ends_at_the_deadline(hasty: Client, stub: StubBroker, act: Act) -> None:
    stub.script("Append", [act])
    with AppendService(hasty, timeout_s=1.0) as service:
        with pytest.raises(UnavailableError):
            service.append(JOURNAL, b"x").result(SOON)
        assert isinstance(service.append(JOURNAL, b"y").exception(SOON), UnavailableError)


def test_an_outage_is_no_failure(stub: StubBroker, journals: Journals) -> None:
    """Appends survive an outage that is longer than the client's timeout."""
    journals.failures[JOURNAL] = [Fail()] * 5
    with Client(stub.endpoint, timeout_s=0.3) as client, AppendService(client) as service:
        appended = [service.append(JOURNAL, b"%d;" % each) for each in range(10)]
        assert appended[-1].result(SOON)
    assert journals.contents[JOURNAL] == b"".join(b"%d;" % each for each in range(10))


def test_closing_in_an_outage_tells_its_cause(stub: StubBroker) -> None:
    stub.script("Append", [Fail()])
    with Client(stub.endpoint, timeout_s=0.3) as client:
        service = AppendService(client)
        appended = service.append(JOURNAL, b"x")
        problem = r"1 bytes have not been appended; .*scripted failure"
        with pytest.raises(AppendWaitError, match=problem):
            service.flush()
        with pytest.raises(TimeoutError, match=f"append to journal '{JOURNAL}': {problem}"):
            appended.result(0)
        with pytest.raises(AppendWaitError, match=problem):
            service.close()
        assert isinstance(appended.exception(0), ClosedError)


@pytest.mark.slow
def test_journals_that_hang_hold_no_other(client: Client, journals: Journals) -> None:
    before = workers()
    hung = [f"hung/{each}" for each in range(5)]
    journals.failures = {name: [Hang()] for name in hung}
    service = AppendService(client, max_concurrency=2)
    try:
        for name in hung:
            service.append(name, b"x")
        others = [service.append(f"part/{each}", b"x") for each in range(20)]
        assert {each.result(SOON).end for each in others} == {1}
        assert service.pending_bytes == len(hung)
    finally:
        service.close(abort=True)
    assert not workers() - before


def test_waiting_for_dependencies_ends_at_the_deadline(client: Client, journals: Journals) -> None:
    """The dependency may never end, or may wait for this append."""
    operation: AsyncOperation[None] = AsyncOperation()
    with AppendService(client, timeout_s=0.2) as service:
        with service.start_append(JOURNAL, dependencies=[operation]) as waiting:
            waiting.write(b"x")
        assert isinstance(waiting.exception(SOON), AppendWaitError)
        operation.resolve()
    assert journals.requests == []


def test_waiting_for_a_writer_ends_at_the_deadline(client: Client, journals: Journals) -> None:
    """A thread that starts a second append before it releases the first would wait for itself."""
    with AppendService(client, timeout_s=0.2) as service, service.start_append(JOURNAL) as started:
        with pytest.raises(AppendWaitError, match="another writer"):
            service.append(JOURNAL, b"x")
        started.write(b"y")
    assert journals.contents[JOURNAL] == b"y"


def test_a_released_append_takes_no_more(service: AppendService, journals: Journals) -> None:
    started = service.start_append(JOURNAL)
    with pytest.raises(ClosedError, match="release it"):
        started.result(0)
    with pytest.raises(ClosedError, match="no response"):
        _ = started.response
    started.write(b"x")
    started.release()
    calls: list[Callable[[], object]] = [
        lambda: started.write(b"y"),
        lambda: started.require(None),
        started.release,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="released or aborted"):
            call()
    started.abort()
    assert started.result(SOON).end == 1


@pytest.mark.parametrize("content", [bytes, bytearray, memoryview], ids=["bytes", "bytearray", "view"])
def test_content_is_copied(service: AppendService, journals: Journals, content: type) -> None:
    """A caller may reuse its buffer after the call."""
    journals.held(service)
    buffer = bytearray(b"as it was")
    appended = service.append(JOURNAL, content(buffer))
    buffer[:] = b"something"
    journals.gate.set()
    appended.result(SOON)
    assert journals.contents[JOURNAL] == b"first;as it was"


@pytest.mark.parametrize("content", ["text", 5, None], ids=["text", "number", "nothing"])
def test_what_is_not_bytes_is_refused(service: AppendService, journals: Journals, content: object) -> None:
    with pytest.raises(TypeError):
        service.append(JOURNAL, content)  # type: ignore[arg-type]  # Not bytes, on purpose.
    service.append(JOURNAL, b"x").result(SOON)
    assert journals.contents[JOURNAL] == b"x"


@pytest.mark.parametrize("journal", ["", "../x", "a//b"], ids=["empty", "goes up", "empty part"])
def test_bad_names_are_refused(service: AppendService, journal: str) -> None:
    with pytest.raises(ProtocolError):
        service.append(journal, b"x")
    assert service.pending_except("") == frozenset()


def test_many_bytes_go_to_disk(service: AppendService, journals: Journals) -> None:
    piece = bytes(range(251)) * 1000
    with service.start_append(JOURNAL) as started:
        for _ in range(80):
            started.write(piece)
        assert started._batch.spool.on_disk
        assert len(started._batch.spool.memory) <= 4 << 20
    service.append(JOURNAL, b"next")
    service.flush()
    assert journals.contents[JOURNAL] == piece * 80 + b"next"
    assert service.pending_bytes == 0


def test_an_abort_takes_bytes_back_from_disk(service: AppendService, journals: Journals) -> None:
    journals.held(service)
    large = bytes(5 << 20)
    service.append(JOURNAL, b"before;" + large)
    with service.start_append(JOURNAL) as aborted:
        aborted.write(b"taken back" + large)
        aborted.write(b"taken back too")
        aborted.abort()
    service.append(JOURNAL, b"after;")
    journals.gate.set()
    service.flush()
    assert journals.contents[JOURNAL] == b"first;before;" + large + b"after;"


def test_writers_wait_for_room(client: Client, journals: Journals) -> None:
    with AppendService(client, max_pending_bytes=10) as service, ThreadPoolExecutor() as pool:
        journals.held(service)
        service.append(JOURNAL, b"4567")
        waiting = pool.submit(service.append, JOURNAL, b"89;")
        assert concurrent.futures.wait([waiting], timeout=0.05).not_done
        assert service.pending_bytes == 10
        journals.gate.set()
        waiting.result(SOON).result(SOON)
    assert journals.contents[JOURNAL] == b"first;456789;"


def test_waiting_for_room_ends_at_the_deadline(client: Client, journals: Journals) -> None:
    with AppendService(client, timeout_s=1, max_pending_bytes=10) as service:
        with service.start_append(JOURNAL) as started:
            started.write(b"12345678")
            with pytest.raises(BacklogError, match="no room for 3 bytes"):
                service.append(OTHER, b"123")
            started.write(b"9")
        started.result(SOON)
    assert journals.contents == {JOURNAL: b"123456789"}


def test_more_than_there_ever_is_room_for_is_refused_at_once(
    service: AppendService, client: Client, journals: Journals
) -> None:
    with AppendService(client, timeout_s=None, max_pending_bytes=10) as small:
        with small.start_append(JOURNAL) as started:
            started.write(b"12345678")
            with pytest.raises(BacklogError):
                started.write(b"123")
            with pytest.raises(BacklogError):
                started.release()
        assert small.pending_bytes == 0
        small.append(JOURNAL, b"fits").result(SOON)
    assert journals.contents[JOURNAL] == b"fits"


def test_a_full_disk_fails_one_writer(client: Client, journals: Journals) -> None:
    with AppendService(client, spool_dir="/nonexistent") as service:
        with pytest.raises(OSError, match="nonexistent"), service.start_append(JOURNAL) as started:
            started.write(bytes(5 << 20))
        service.append(JOURNAL, b"small").result(SOON)
        assert service.pending_bytes == 0
    assert journals.contents[JOURNAL] == b"small"


def test_closing_flushes(client: Client, journals: Journals) -> None:
    with AppendService(client) as service:
        journals.held(service)
        for each in range(100):
            service.append(f"part/{each % 30}", b"x")
        journals.gate.set()
    assert sum(map(len, journals.contents.values())) == 106
    assert "journals=0, pending_bytes=0" in repr(service)
    with pytest.raises(ClosedError, match="closed"):
        service.append(JOURNAL, b"x")
    with pytest.raises(ClosedError, match="closed"):
        service.start_append(OTHER)
    service.close()


def test_closing_tells_of_a_failure_nobody_asked_for(client: Client, journals: Journals) -> None:
    """A caller that never reads results must still learn about lost bytes."""
    journals.failures[JOURNAL] = [status(pb.NOT_ALLOWED)]
    with pytest.raises(NotAllowedError), AppendService(client) as service:
        service.append(JOURNAL, b"x")
    journals.failures[JOURNAL] = [status(pb.NOT_ALLOWED)]
    with AppendService(client) as service:
        assert isinstance(service.append(JOURNAL, b"x").exception(SOON), NotAllowedError)


def test_closing_ends_at_its_deadline(client: Client, journals: Journals) -> None:
    service = AppendService(client)
    first = journals.held(service)
    second = service.append(JOURNAL, b"second")
    with pytest.raises(AppendWaitError, match="have not been appended"):
        service.close(timeout_s=0.1)
    assert isinstance(first.exception(0), ClosedError)
    assert isinstance(second.exception(0), ClosedError)


def test_closing_continues_after_an_interrupt(client: Client, journals: Journals) -> None:
    """Otherwise the threads would go on appending."""
    before = workers()
    for moment in count(1):
        service = AppendService(client)
        service.append(JOURNAL, b"x")
        if not interrupted(service.close, moment):
            break
        service.close(abort=True)
        assert not workers() - before
    assert moment > 10


def test_closing_can_cancel(client: Client, stub: StubBroker) -> None:
    before = workers()
    stub.script("Append", [Hang()])
    service = AppendService(client)
    with ThreadPoolExecutor() as pool:
        sent = service.append(JOURNAL, b"x")
        started = service.start_append(OTHER)
        started.write(b"y")
        waiting = pool.submit(service.append, OTHER, b"z")
        service.close(abort=True)
        with pytest.raises(ClosedError):
            waiting.result(SOON)
    started.write(b"more")
    started.release()
    for append in (sent, started):
        assert isinstance(append.exception(SOON), ClosedError)
    assert not workers() - before
    assert service.pending_bytes == 0


def test_a_broken_service_lets_nobody_wait(service: AppendService, journals: Journals) -> None:
    """A bug in the service's own thread fails all appends with that error."""
    journals.held(service)
    service.append(JOURNAL, b"behind")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(service._queue, "sent", lambda *_: 1 / 0)
        journals.gate.set()
        for operation in service.pending_except(""):
            assert isinstance(operation.exception(SOON), ZeroDivisionError)
    with pytest.raises(ClosedError):
        service.append(OTHER, b"x")


@pytest.mark.parametrize("started", [0, 1])
def test_a_machine_that_starts_no_more_threads(
    service: AppendService, journals: Journals, monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    """One thread is enough for all journals; without any, an append fails cleanly."""
    starts, start = iter(range(started)), threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if thread.name.startswith("append-service") and next(starts, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", start_some)
        if started:
            appended = [service.append(journal, b"x") for journal in (JOURNAL, OTHER)]
            assert [each.result(SOON).end for each in appended] == [1, 1]
        else:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                service.append(JOURNAL, b"x")
    assert service.append(JOURNAL, b"y").result(SOON).end == started + 1
    service.close()


def test_a_service_stays_in_its_process(service: AppendService) -> None:
    with pytest.raises(TypeError, match="one in each process"):
        pickle.dumps(service)
    child = os.fork()
    if child == 0:
        try:
            service.append(JOURNAL, b"x")
        except ClosedError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_appends_are_futures(service: AppendService, journals: Journals) -> None:
    journals.held(service)
    appended = service.append(JOURNAL, b"x")
    called: list[AsyncAppend] = []
    done = threading.Event()
    appended.add_done_callback(called.append)
    appended.add_done_callback(lambda _: done.set())
    with pytest.raises(TimeoutError):
        appended.result(0)
    journals.gate.set()
    concurrent.futures.wait([appended.future], timeout=SOON)
    assert done.wait(SOON)
    assert called == [appended]

    async def wait() -> int:
        return (await asyncio.wrap_future(service.append(JOURNAL, b"y").future)).end

    assert asyncio.run(wait()) == 8


@pytest.mark.slow
def test_few_threads_serve_many_journals(client: Client, journals: Journals) -> None:
    before = workers()
    with AppendService(client, max_concurrency=3, clock=lambda: 0.0) as service:
        journals.gate.clear()
        for each in range(1000):
            service.append(f"part/{each}", b"x")
        assert len(workers() - before) <= 3
        journals.gate.set()
    assert len(journals.contents) == 1000


@pytest.mark.parametrize(
    "keys",
    [
        {"timeout_s": 0},
        {"timeout_s": -1.0},
        {"max_pending_bytes": 0},
        {"max_memory_bytes": 0},
        {"max_concurrency": 0},
    ],
    ids=["no time", "negative time", "no room", "no memory", "no threads"],
)
def test_bad_options_are_refused(client: Client, keys: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(keys))):
        AppendService(client, **keys)  # type: ignore[arg-type]  # Fields by name, of mixed types.
