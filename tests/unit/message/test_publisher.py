"""Tests that a publisher appends messages in clock order and commits exactly its transactions."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import pytest

from gazette_spark.broker import EmbeddedBroker, Faults
from gazette_spark.broker.settings import StorageSettings
from gazette_spark.client import AppendService, Client
from gazette_spark.client._append.mappings import RandomMapping
from gazette_spark.errors import EmptyListingError, MessageError, NotAllowedError
from gazette_spark.message.interfaces import NIL_UUID, Message
from gazette_spark.message.publisher import AckIntent, Publisher, PublisherClock, write_ack_intents
from gazette_spark.message.uuids import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    TICK,
    Clock,
    build_uuid,
    split_uuid,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from gazette_spark.testing.stub_broker import Hang, StubBroker
from tests.rig.interrupts import interrupted
from tests.rig.messages import Document
from tests.waiting import wait_until

FAULTS = Faults()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a broker with scripted faults."""
    root = tmp_path_factory.mktemp("publisher")
    with (
        EmbeddedBroker(root, faults=FAULTS, storage=StorageSettings(fsync=False)) as broker,
        Client(broker.endpoint, timeout_s=30) as opened,
    ):
        yield opened


@pytest.fixture
def service(client: Client) -> Iterator[AppendService]:
    """An append service; an append failure that no test expects fails the test."""
    with AppendService(client, timeout_s=30) as opened:
        yield opened


def to(journal: str) -> Callable[[Message], tuple[str, str]]:
    return lambda _: (journal, CONTENT_TYPE_NDJSON)


def made(client: Client, prefix: str, *names: str) -> list[str]:
    journals = [prefix + name for name in names]
    client.create_journals(
        *(journal_spec(name, labels={"content-type": CONTENT_TYPE_NDJSON}) for name in journals)
    )
    return journals


def found(client: Client, journal: str) -> list[tuple[bytes, int, int, str | None]]:
    """Return producer, clock, flags and text of each document in a journal."""
    head = client.write_head(journal)
    with client.read(journal, end_offset=head) as reader:
        documents = [json.loads(line) for line in (reader.read() if head else b"").splitlines()]
    return [(*split_uuid(uuid.UUID(each["_meta"]["uuid"])), each.get("text")) for each in documents]


def text(words: str) -> Document:
    return Document({"text": words})


def test_committed_messages_count_at_once(client: Client, service: AppendService, fresh_prefix: str) -> None:
    (journal,) = made(client, fresh_prefix, "a")
    publisher = Publisher(service, PublisherClock())
    for words in ("hello", "world", "beer!"):
        publisher.publish_committed(to(journal), text(words)).result()
    me = publisher.producer_id
    assert found(client, journal) == [
        (me, 160, OUTSIDE_TXN, "hello"),
        (me, 320, OUTSIDE_TXN, "world"),
        (me, 480, OUTSIDE_TXN, "beer!"),
    ]
    assert publisher.build_ack_intents() == []


def test_a_transaction_has_an_intent_for_each_journal(
    client: Client, service: AppendService, fresh_prefix: str
) -> None:
    """Intents are in the order in which the transaction first wrote to the journals."""
    one, two, three = made(client, fresh_prefix, "1", "2", "3")
    publisher = Publisher(service, PublisherClock())
    for journal, words in ((two, "value one"), (one, "value two"), (two, "value three")):
        publisher.publish_uncommitted(to(journal), text(words)).result()
    intents = publisher.build_ack_intents()
    assert [each.journal for each in intents] == [two, one]
    assert write_ack_intents(client, intents) == []
    for journal, words in ((three, "value four"), (two, "value five")):
        publisher.publish_uncommitted(to(journal), text(words)).result()
    write_ack_intents(client, publisher.build_ack_intents())
    assert publisher.build_ack_intents() == []
    me = publisher.producer_id
    assert found(client, two) == [
        (me, 160, CONTINUE_TXN, "value one"),
        (me, 480, CONTINUE_TXN, "value three"),
        (me, 640, ACK_TXN, None),
        (me, 1120, CONTINUE_TXN, "value five"),
        (me, 1440, ACK_TXN, None),
    ]
    assert found(client, one) == [(me, 320, CONTINUE_TXN, "value two"), (me, 800, ACK_TXN, None)]
    assert found(client, three) == [(me, 960, CONTINUE_TXN, "value four"), (me, 1280, ACK_TXN, None)]


def test_clocks_follow_the_time(client: Client, service: AppendService, fresh_prefix: str) -> None:
    """The clock must not go back when the time does."""
    (journal,) = made(client, fresh_prefix, "a")
    times = iter([1_000, 3_000_000, 2_000_000])
    publisher = Publisher(service, now_ns=lambda: next(times))
    for _ in range(3):
        publisher.publish_committed(to(journal), text("x")).result()
    clocks = [clock for _, clock, _, _ in found(client, journal)]
    later = Clock.at(3_000_000) + TICK
    assert clocks == [Clock.at(1_000) + TICK, later, later + TICK]


def test_publishers_may_share_a_clock(client: Client, service: AppendService, fresh_prefix: str) -> None:
    (journal,) = made(client, fresh_prefix, "a")
    clock = PublisherClock(Clock(1_600))
    pair = Publisher(service, clock), Publisher(service, clock)
    for publisher in (*pair, pair[0]):
        publisher.publish_committed(to(journal), text("x")).result()
    clock.update(0)
    assert [clock for _, clock, _, _ in found(client, journal)] == [1_760, 1_920, 2_080]
    assert pair[0].producer_id != pair[1].producer_id
    assert repr(clock) == f"PublisherClock({int(Clock.at(0))})"


def test_clocks_ascend_in_each_journal_whatever_threads_publish(
    client: Client, service: AppendService, fresh_prefix: str
) -> None:
    journals = made(client, fresh_prefix, "a", "b")
    publisher = Publisher(service)
    threads, each_thread = 8, 150
    begin = threading.Barrier(threads)

    def publish(thread: int) -> None:
        begin.wait(30)
        for number in range(each_thread):
            publisher.publish_committed(to(journals[number % 2]), text(f"{thread}-{number}"))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(publish, range(threads)))
    service.flush()
    there = [found(client, journal) for journal in journals]
    for each in there:
        clocks = [clock for _, clock, _, _ in each]
        assert clocks == sorted(set(clocks))
    texts = sorted(words or "" for each in there for *_, words in each)
    assert texts == sorted(f"{n}-{m}" for n in range(threads) for m in range(each_thread))


@dataclass
class Checked(Document):
    problem: str = ""

    def validate(self) -> None:
        if self.problem:
            raise ValueError(self.problem)


def test_an_interrupt_does_not_block_the_journal() -> None:
    """Whoever presses Ctrl-C in a notebook goes on with the same publisher."""
    with StubBroker() as stub, Client(stub.endpoint, timeout_s=0.5) as client:
        stub.script("Append", [Hang()])
        service = AppendService(client)
        service.append("a/journal", b"in flight\n")
        wait_until("it is in flight", lambda: bool(stub.requests("Append")), 30)
        service.append("a/journal", b"next\n")
        publisher, mapping = Publisher(service), to("a/journal")
        for moment in count(1):
            if not interrupted(lambda: publisher.publish_committed(mapping, Document()), moment):
                break
            publisher.publish_committed(mapping, Document())
        service.close(abort=True)
    assert moment > 10


def test_messages_are_checked_and_mapped_without_a_uuid(
    client: Client, service: AppendService, fresh_prefix: str
) -> None:
    (journal,) = made(client, fresh_prefix, "a")
    publisher = Publisher(service, PublisherClock())
    seen: list[uuid.UUID] = []

    def mapping(message: Checked) -> tuple[str, str]:
        seen.append(message.get_uuid())
        return journal, CONTENT_TYPE_NDJSON

    with pytest.raises(ValueError, match="whoops"):
        publisher.publish_committed(mapping, Checked(problem="whoops"))
    assert seen == []
    valid = Checked()
    publisher.publish_committed(mapping, valid).result()
    assert seen == [NIL_UUID]
    assert valid.get_uuid() == build_uuid(publisher.producer_id, Clock(160), OUTSIDE_TXN)


class Broken(Document):
    """A document whose bytes are two lines. It has a broken acknowledgement, or none if it has fields."""

    def new_acknowledgement(self, _journal: str) -> Message:
        if self.fields:
            raise KeyError("no acknowledgement")
        return Broken()

    def __bytes__(self) -> bytes:
        return b"two\nlines"


def test_what_cannot_be_published_leaves_nothing(
    client: Client, service: AppendService, fresh_prefix: str
) -> None:
    (journal,) = made(client, fresh_prefix, "a")
    publisher = Publisher(service, PublisherClock())
    none: RandomMapping = RandomMapping(())
    with pytest.raises(EmptyListingError):
        publisher.publish_uncommitted(none, text("x"))
    with pytest.raises(MessageError, match=r"two.*not exactly one record"):
        publisher.publish_uncommitted(to(journal), Broken())
    with pytest.raises(MessageError, match=f"{journal}.*text/plain"):
        publisher.publish_uncommitted(lambda _: (journal, "text/plain"), text("x"))
    with pytest.raises(KeyError, match="no acknowledgement"):
        publisher.publish_uncommitted(to(journal), Broken({"no": "acknowledgement"}))
    assert publisher.build_ack_intents() == []
    assert client.write_head(journal) == 0
    publisher.publish_uncommitted(to(journal), text("y")).result()
    assert [words for *_, words in found(client, journal)] == ["y"]


class BrokenAck(Document):
    def new_acknowledgement(self, _journal: str) -> Message:
        return Broken()


def test_intents_that_cannot_be_built_are_not_forgotten(
    client: Client, service: AppendService, fresh_prefix: str
) -> None:
    """The transaction must stay open in all its journals, or it would be committed in part."""
    one, two = made(client, fresh_prefix, "1", "2")
    publisher = Publisher(service, PublisherClock())
    publisher.publish_uncommitted(to(one), text("x"))
    publisher.publish_uncommitted(to(two), BrokenAck())
    for _ in range(2):
        with pytest.raises(MessageError, match="not exactly one record"):
            publisher.build_ack_intents()
    assert repr(publisher) == f"Publisher({publisher.producer_id.hex()}, open_journals=2)"


def test_a_committed_message_does_not_discard_a_transaction(
    client: Client, service: AppendService, fresh_prefix: str
) -> None:
    """Readers would drop the uncommitted messages of the same publisher in that journal."""
    one, two = made(client, fresh_prefix, "1", "2")
    publisher = Publisher(service, PublisherClock())
    publisher.publish_uncommitted(to(one), text("x"))
    with pytest.raises(MessageError, match=f"{one}.*would discard.*another publisher"):
        publisher.publish_committed(to(one), text("y"))
    publisher.publish_committed(to(two), text("y"))
    service.flush()
    write_ack_intents(client, publisher.build_ack_intents())
    publisher.publish_committed(to(one), text("z"))
    service.flush()
    assert [words for *_, words in found(client, one)] == ["x", None, "z"]


def test_intents_are_written_again_byte_for_byte(client: Client, fresh_prefix: str) -> None:
    """All intents of one journal are written by one append."""
    one, two = made(client, fresh_prefix, "1", "2")
    gone = fresh_prefix + "gone"
    intents = [
        AckIntent(one, b"a\n"),
        AckIntent(gone, b"b\n"),
        AckIntent(two, b"c\n"),
        AckIntent(one, b"d\n"),
    ]
    for _ in range(2):
        assert write_ack_intents(client, intents) == [gone]
    with client.read(one, end_offset=8) as reader:
        assert reader.read() == b"a\nd\na\nd\n"
    assert client.write_head(two) == 4


def test_intents_are_written_to_a_journal_that_a_broker_does_not_know_yet(
    client: Client, fresh_prefix: str
) -> None:
    """Its messages would never count if the broker were believed at once."""
    one, two = made(client, fresh_prefix, "1", "2")
    FAULTS.answer("JOURNAL_NOT_FOUND", rpc="Append", journal=one, times=2)
    assert write_ack_intents(client, [AckIntent(one, b"a\n"), AckIntent(two, b"b\n")]) == []
    assert [client.write_head(journal) for journal in (one, two)] == [2, 2]


def test_an_intent_that_fails_holds_no_other(client: Client, fresh_prefix: str) -> None:
    (one,) = made(client, fresh_prefix, "1")
    closed = journal_spec(fresh_prefix + "closed")
    closed.flags = pb.JournalSpec.O_RDONLY
    client.apply([pb.ApplyRequest.Change(upsert=closed)])
    intents = [AckIntent(closed.name, b"a\n"), AckIntent(one, b"b\n")]
    with pytest.raises(NotAllowedError, match="closed"):
        write_ack_intents(client, intents)
    assert client.write_head(one) == 2


def test_an_append_that_is_made_again_repeats_its_uuids(
    client: Client, service: AppendService, fresh_prefix: str
) -> None:
    """Readers need the same UUIDs to drop the duplicates."""
    (journal,) = made(client, fresh_prefix, "a")
    publisher = Publisher(service, PublisherClock())
    FAULTS.lose_answer(journal=journal)
    publisher.publish_committed(to(journal), text("x")).result()
    me = publisher.producer_id
    assert found(client, journal) == [(me, 160, OUTSIDE_TXN, "x")] * 2
