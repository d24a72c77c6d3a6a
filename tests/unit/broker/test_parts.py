"""Tests flow control, the fair lock, the message pump, the state directory and the registry."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from gazette_spark.broker.api.flow_control import MAX_BANK_S, MaxRate, MinRate, effective_max_rate
from gazette_spark.broker.api.message_pump import LOOK_AHEAD, MessagePump, NoMessage
from gazette_spark.broker.fair_lock import FairLock
from gazette_spark.broker.journal import JournalSettings
from gazette_spark.broker.registry import JournalRegistry
from gazette_spark.broker.storage.persister import retry_after
from gazette_spark.broker.storage.state import StateDirectory
from gazette_spark.errors import BrokerRootError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec

DEADLINE_S = 10.0


def test_a_silent_client_underflows_after_a_second() -> None:
    rate = MinRate.start(1000, 50.0)
    assert not rate.at_time(50.99).underflow
    assert rate.at_time(51.0).underflow


def test_credit_is_never_more_than_a_second() -> None:
    """A large chunk does not pay for a long silence."""
    rate = MinRate.start(1000, 50.0).at_time(50.5).delivered(1_000_000)
    assert rate.credit == 1000
    assert rate.at_time(51.5).underflow


def test_a_client_at_the_rate_goes_on() -> None:
    rate = MinRate.start(1000, 0.0)
    for tenth in range(1, 600):
        rate = rate.at_time(tenth / 10).delivered(101)
        assert not rate.underflow


def test_no_minimum_never_underflows() -> None:
    assert not MinRate.start(0, 0.0).at_time(1e9).underflow


def test_a_held_chunk_is_not_the_clients_fault() -> None:
    """While the broker holds back a chunk, the client's credit does not fall."""
    rate = MinRate.start(1000, 50.0).resumed(60.0)
    assert not rate.at_time(60.9).underflow


@pytest.mark.parametrize(
    ("of_journal", "of_broker", "effective"),
    [
        pytest.param(0, 0, 0, id="none"),
        pytest.param(0, 500, 0, id="broker-only-limits-nothing"),
        pytest.param(800, 0, 800, id="journal-only"),
        pytest.param(800, 500, 500, id="broker-lowers"),
        pytest.param(300, 500, 300, id="broker-never-raises"),
    ],
)
def test_maximum_rate_of_journal_and_broker(of_journal: int, of_broker: int, effective: int) -> None:
    """The broker's maximum can only lower a maximum that the journal's spec sets."""
    assert effective_max_rate(of_journal, of_broker) == effective


def test_chunks_over_the_maximum_are_held_until_paid() -> None:
    """Each chunk is worth half a second; the first second is free."""
    rate, now, held = MaxRate.start(0, 0.0), 100.0, []
    for _ in range(8):
        rate, seconds = rate.at_time(now, 200_000).take(100_000)
        now += seconds
        held.append(seconds)
    assert held == [0.0] * 2 + [0.5] * 6


def test_the_bank_is_ten_seconds() -> None:
    rate = MaxRate.start(1000, 0.0).at_time(1e6, 1000)
    assert rate.balance == 1000 * MAX_BANK_S
    rate, seconds = rate.take(25_000)
    assert seconds == 15.0
    assert rate.at_time(1e6 + seconds, 1000).balance == 0.0


def test_an_abandoned_hold_stays_a_debt() -> None:
    """If a client leaves before its chunk is paid for, the next client pays."""
    rate, seconds = MaxRate.start(1000, 0.0).take(3000)
    assert seconds == 2.0
    assert rate.at_time(1.0, 1000).balance == -1000


def test_no_maximum_holds_nothing() -> None:
    rate, seconds = MaxRate.start(0, 0.0).at_time(5.0, 0).take(1 << 40)
    assert seconds == 0.0
    assert rate.at_time(6.0, 1000) == MaxRate.start(1000, 6.0)


def test_turns_come_in_order() -> None:
    fair_lock, order = FairLock(), []

    def wait(number: int) -> None:
        with fair_lock.turn(lambda: True):
            order.append(number)

    with fair_lock.turn(lambda: True):
        threads = []
        for number in range(5):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            while f"waiting={number + 1}" not in repr(fair_lock):
                threads[-1].join(0.001)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert order == [0, 1, 2, 3, 4]


def test_a_waiter_can_give_up() -> None:
    fair_lock, wanted, given_up = FairLock(), threading.Event(), threading.Event()
    wanted.set()

    def wait() -> None:
        with fair_lock.turn(wanted.is_set) as granted:
            assert not granted
            given_up.set()

    with fair_lock.turn(lambda: True), fair_lock.turn_if_free() as second:
        assert not second
        waiter = threading.Thread(target=wait)
        waiter.start()
        wanted.clear()
        while waiter.is_alive():
            fair_lock.wake()
            waiter.join(0.001)
    assert given_up.is_set()
    with fair_lock.turn_if_free() as free:
        assert free


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_pump_moves_messages_then_tells_the_end(executor: ThreadPoolExecutor) -> None:
    pump = MessagePump(iter(range(100)), executor)
    assert [pump.take(DEADLINE_S) for _ in range(100)] == list(range(100))
    assert pump.take(DEADLINE_S) is NoMessage.END
    assert pump.take(0) is NoMessage.END


def test_pump_times_out(executor: ThreadPoolExecutor) -> None:
    release = threading.Event()

    def silent() -> Iterator[int]:
        release.wait(DEADLINE_S)
        yield 1

    pump = MessagePump(silent(), executor)
    assert pump.take(0.01) is NoMessage.NOT_YET
    release.set()
    assert pump.take(DEADLINE_S) == 1


def test_pump_tells_a_broken_call(executor: ThreadPoolExecutor) -> None:
    """A cancelled call must not look like a half-close, which would commit the append."""

    def cancelled() -> Iterator[int]:
        yield 1
        raise grpc.RpcError

    pump = MessagePump(cancelled(), executor)
    assert pump.take(DEADLINE_S) == 1
    assert pump.take(DEADLINE_S) is NoMessage.BROKEN


def test_closed_pump_lets_its_thread_go(executor: ThreadPoolExecutor) -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            taken.append(len(taken))
            yield taken[-1]

    pump = MessagePump(endless(), executor)
    assert pump.take(DEADLINE_S) == 0
    pump.close()
    executor.shutdown(wait=True)
    assert len(taken) <= LOOK_AHEAD + 3


def test_one_broker_a_root(tmp_path: Path) -> None:
    """The error names the process that owns the root; closing that owner frees the root."""
    first = StateDirectory(tmp_path)
    with pytest.raises(BrokerRootError, match=r"process \d+"):
        StateDirectory(tmp_path)
    first.close()
    first.close()
    StateDirectory(tmp_path).close()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[JournalRegistry]:
    made = open_registry(tmp_path)
    yield made
    made.close()


def open_registry(root: Path) -> JournalRegistry:
    return JournalRegistry(root, JournalSettings(root=root, is_journal=lambda _: False))


def upsert(name: str, **fields: object) -> pb.ApplyRequest.Change:
    return pb.ApplyRequest.Change(upsert=journal_spec(name, **fields))  # type: ignore[arg-type]  # Fields by name, of mixed types.


def append(registry: JournalRegistry, name: str, content: bytes) -> None:
    journal = registry.get(name)
    assert journal is not None
    txn = journal.start_append(journal.plan(pb.AppendRequest(journal=name)))
    txn.write(content)
    txn.commit_append(txn.registers)


def test_all_or_nothing(registry: JournalRegistry) -> None:
    assert registry.apply([upsert("a/journal")]) == 2
    assert registry.apply([upsert("b/journal"), upsert("a/journal")]) is None
    assert registry.get("b/journal") is None
    assert registry.catalog.revision == 2


def test_catalog_survives(registry: JournalRegistry, tmp_path: Path) -> None:
    registry.apply([upsert("a/journal", codec="GZIP")])
    registry.apply([upsert("b/journal")])
    before = registry.catalog
    registry.close()
    again = open_registry(tmp_path)
    assert again.catalog == before
    again.close()


def test_recreated_journal_has_no_old_spool(registry: JournalRegistry, tmp_path: Path) -> None:
    registry.apply([upsert("a/journal")])
    append(registry, "a/journal", b"gone")
    registry.apply([pb.ApplyRequest.Change(expect_mod_revision=-1, delete="a/journal")])
    registry.apply([upsert("a/journal")])
    journal = registry.get("a/journal")
    assert journal is not None
    assert journal.head().spool_end == 0


def test_orphaned_spools_are_removed(registry: JournalRegistry, tmp_path: Path) -> None:
    orphan = tmp_path / ".gazette" / "spools" / "0123-7"
    orphan.mkdir(parents=True)
    registry.close()
    open_registry(tmp_path).close()
    assert not orphan.exists()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(upsert("a/journal", stores=("file:///../x/",)), id="store-outside"),
        pytest.param(upsert(".gazette/journal"), id="own-state"),
        pytest.param(upsert("a/journal", path_postfix_template="{{ .Spool.Begin }}"), id="template"),
        pytest.param(upsert("a/journal", path_postfix_template="a blank"), id="template-with-a-blank"),
        pytest.param(upsert("a/journal", stores=("file:///?find=a/&replace=../out/",)), id="replace-outside"),
        pytest.param(upsert("a/journal", stores=("file:///?find=a/&replace=.gazette/",)), id="replace-state"),
        pytest.param(
            upsert("a/journal", stores=("file:///?find=0000&replace=x",)), id="replace-in-file-names"
        ),
    ],
)
def test_what_this_broker_cannot_do_is_refused(
    registry: JournalRegistry, change: pb.ApplyRequest.Change
) -> None:
    """A spec that this broker cannot honour is refused when it is applied."""
    with pytest.raises(ProtocolError):
        registry.apply([change])
    assert registry.journals() == []


def test_failed_uploads_wait_longer_each_time() -> None:
    assert [retry_after(count) for count in (1, 2, 3, 6, 7, 1000)] == [1, 2, 4, 32, 60, 60]
