"""A batch is committed once, at whatever step its driver dies, as Go's committed reader sees it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest

from gazette_spark import Client
from gazette_spark._formats.framing import RowRefusal
from gazette_spark._write.producer import TaskProducer
from gazette_spark._write.transaction_journal import TAIL_BYTES, commit_transaction, read_state
from gazette_spark._write.transactions import OPENING, Attempt, TransactionRecord
from gazette_spark.errors import GazetteError, NotAllowedError, TransactionError
from gazette_spark.failpoints import calling
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.conformance.goclient import end_of, run_go
from tests.conformance.wire import labels, spec
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")

QUERY = "5f0c"


class CrashError(GazetteError):
    """The driver dies."""


@dataclass
class Topic:
    """Two journals of rows, and a transaction journal."""

    broker: BrokerHandle
    client: Client
    prefix: str

    @property
    def transactions(self) -> str:
        return f"{self.prefix}transactions"

    @property
    def journals(self) -> list[str]:
        return [f"{self.prefix}rows-{short}" for short in "ab"]

    def publish(self, batch: int, author: str) -> tuple[Attempt, dict[str, bytes]]:
        """Publish two rows to each journal, as a task does; return the attempt and its rollbacks."""
        producer = TaskProducer(None, 1_700_000_000_000_000_000 + batch)
        for journal in self.journals:
            rows = [f'{{"batch":{batch},"row":{row}}}'.encode() for row in range(2)]
            stamped = producer.stamped(pa.array(rows, pa.binary()), journal, "lines")
            assert not isinstance(stamped, RowRefusal)
            self.client.append(journal, b"".join(row + b"\n" for row in stamped.to_pylist()))
        intents = producer.intents()
        attempt = Attempt(QUERY, batch, author, {each.journal: each.commit for each in intents}, rows=4)
        return attempt, {each.journal: each.rollback for each in intents}

    def commit(self, batch: int, author: str) -> TransactionRecord | None:
        return commit_transaction(self.client, self.transactions, *self.publish(batch, author))

    def committed(self) -> Counter[tuple[int, int]]:
        """Return the rows that Go's committed reader delivers; no transaction may be open."""
        rows: Counter[tuple[int, int]] = Counter()
        for journal in self.journals:
            events = run_go(self.broker.endpoint, "read-committed", f"--journal={journal}")
            assert end_of(events)["open"] == 0
            values = [json.loads(each["value"]) for each in events if each["event"] == "message"]
            rows.update((value["batch"], value["row"]) for value in values if "row" in value)
        return rows


@pytest.fixture
def topic(broker: BrokerHandle, client: Client, fresh_prefix: str) -> Topic:
    made = Topic(broker, client, fresh_prefix)
    documents = labels(("content-type", CONTENT_TYPE_NDJSON))
    for name in (*made.journals, made.transactions):
        client.create_journals(spec(name, labels=documents))
    return made


def each_twice(batches: int) -> Counter[tuple[int, int]]:
    """Return the rows of batches, each twice, because both journals have it."""
    return Counter({(batch, row): 2 for batch in range(batches) for row in range(2)})


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        pytest.param("transaction.read", 1, id="before_the_record"),
        pytest.param("transaction.recorded", 1, id="before_the_intents"),
        pytest.param("transaction.acknowledged", 2, id="before_the_end"),
        pytest.param("transaction.done", 1, id="before_spark_knows"),
    ],
)
def test_a_batch_is_committed_once_whatever_step_its_driver_dies_at(
    topic: Topic, point: str, nth: int
) -> None:
    topic.commit(0, "run-a")

    def crash() -> None:
        raise CrashError

    attempt, rollbacks = topic.publish(1, "run-a")
    with calling(point, crash, nth), pytest.raises(CrashError):
        commit_transaction(topic.client, topic.transactions, attempt, rollbacks)
    repeated = topic.commit(1, "run-b")
    assert repeated is not None
    assert repeated.intents == attempt.intents or point == "transaction.read"
    topic.commit(2, "run-b")
    if point == "transaction.read":
        # No record refers to these rows, so they stay open until their producer is forgotten.
        for journal, rollback in rollbacks.items():
            topic.client.append(journal, rollback)
    assert topic.committed() == each_twice(3)
    state = read_state(topic.client, topic.transactions)
    assert state.newest is not None
    assert state.registers == state.newest.registers == {"query": QUERY, "batch": "2", "author": "run-b"}


def test_of_two_drivers_one_commits(topic: Topic) -> None:
    """The second to append finds that the journal has changed since, and commits the first one's batch."""
    slow = topic.publish(0, "run-a")

    def commit_first() -> None:
        topic.commit(0, "run-b")

    with calling("transaction.read", commit_first):
        record = commit_transaction(topic.client, topic.transactions, *slow)
    assert record is not None
    assert (record.author, record.replaced) == ("run-a", {"run-b": 0})
    assert record.intents != slow[0].intents
    with pytest.raises(TransactionError, match="run run-b of query 5f0c was replaced by run run-a"):
        commit_transaction(topic.client, topic.transactions, Attempt(QUERY, 1, "run-b"), {})
    assert topic.committed() == each_twice(1)


def test_of_two_first_records_one_is_appended(topic: Topic) -> None:
    """The second run decides on an empty journal, and finds no registers of the first one when it appends."""
    slow, (attempt, _) = topic.publish(0, "run-a"), topic.publish(0, "run-b")
    recorded = TransactionRecord(QUERY, 0, "run-b", attempt.intents, attempt.rows)

    def record_without_registers() -> None:
        topic.client.append(topic.transactions, recorded.to_json())

    with calling("transaction.read", record_without_registers):
        record = commit_transaction(topic.client, topic.transactions, *slow)
    assert record is not None
    assert (record.author, record.intents) == ("run-a", attempt.intents)
    assert topic.committed() == each_twice(1)


def test_a_journal_that_is_opened_late_keeps_its_newest_record(topic: Topic) -> None:
    """The lines that open a journal are not records, wherever they are."""
    topic.client.append(topic.transactions, OPENING)
    assert read_state(topic.client, topic.transactions).newest is None
    done = topic.commit(0, "run-a")
    topic.client.append(topic.transactions, OPENING * (1 + TAIL_BYTES // len(OPENING)))
    assert read_state(topic.client, topic.transactions).newest == done
    topic.commit(1, "run-a")
    assert topic.committed() == each_twice(2)


def test_a_driver_that_comes_back_is_refused(topic: Topic) -> None:
    topic.commit(0, "run-a")
    zombie = topic.publish(1, "run-a")
    topic.commit(1, "run-b")
    topic.commit(2, "run-b")
    with pytest.raises(TransactionError, match="batch 1 of query 5f0c comes after batch 2 was committed"):
        commit_transaction(topic.client, topic.transactions, *zombie)
    for journal, rollback in zombie[1].items():
        topic.client.append(journal, rollback)
    assert topic.committed() == each_twice(3)


def test_intents_that_fail_are_appended_by_the_next_run(topic: Topic) -> None:
    attempt = topic.publish(0, "run-a")
    listed = topic.client.get_journal(topic.journals[0])

    def change(flags: int, revision: int) -> None:
        changed = pb.JournalSpec()
        changed.CopyFrom(listed.spec)
        changed.flags = flags
        change = pb.ApplyRequest.Change(expect_mod_revision=revision, upsert=changed)
        topic.client.apply([change])

    change(pb.JournalSpec.O_RDONLY, listed.mod_revision)
    with pytest.raises(NotAllowedError):
        commit_transaction(topic.client, topic.transactions, *attempt)
    change(pb.JournalSpec.O_RDWR, topic.client.get_journal(topic.journals[0]).mod_revision)
    topic.commit(0, "run-b")
    assert topic.committed() == each_twice(1)


def test_a_journal_that_is_gone_needs_no_intent(topic: Topic) -> None:
    attempt = topic.publish(0, "run-a")
    gone = topic.client.get_journal(topic.journals[1])
    deletion = pb.ApplyRequest.Change(expect_mod_revision=gone.mod_revision, delete=gone.spec.name)
    topic.client.apply([deletion])
    assert commit_transaction(topic.client, topic.transactions, *attempt) is not None


def test_a_record_counts_without_registers(topic: Topic) -> None:
    """If all replicas and with them the registers are lost, the newest stored record decides."""
    record = TransactionRecord(QUERY, 5, "run-a")
    topic.client.append(topic.transactions, record.to_json())
    assert read_state(topic.client, topic.transactions).registers == {}
    with pytest.raises(TransactionError, match="batch 3 of query 5f0c comes after batch 5"):
        commit_transaction(topic.client, topic.transactions, Attempt(QUERY, 3, "run-b"), {})
    done = commit_transaction(topic.client, topic.transactions, Attempt(QUERY, 6, "run-b"), {})
    assert done is not None
    assert read_state(topic.client, topic.transactions).newest == done


def test_the_newest_record_is_found_whatever_its_length(topic: Topic) -> None:
    """A record that is longer than the first read is read whole, behind others and alone."""
    long = {"log/a": bytes(TAIL_BYTES)}
    for batch, intents in enumerate([long, {}, long]):
        done = TransactionRecord(QUERY, batch, "run-a", intents)
        topic.client.append(topic.transactions, done.to_json())
        assert read_state(topic.client, topic.transactions).newest == done


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"rubbish\n", "cannot be read: b'rubbish", id="another_line"),
        pytest.param(b"half", "ends within a line", id="half_a_line"),
    ],
)
def test_what_others_append_is_refused(topic: Topic, content: bytes, problem: str) -> None:
    topic.client.append(topic.transactions, TransactionRecord(QUERY, 0, "run-a").to_json() + content)
    with pytest.raises(TransactionError, match=rf"{topic.transactions}.*{problem}"):
        commit_transaction(topic.client, topic.transactions, Attempt(QUERY, 1, "run-a"), {})
