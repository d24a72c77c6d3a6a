"""Attempts of one task overlap, and some continue after their batch was committed: each row counts once.

Spark starts speculative copies of a task on another host only, so no test with one host sees them. Here
attempts are driven directly, step by step, in any order: an attempt ends, fails, is killed, or is a zombie
that continues while later batches are written or read.
"""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partialmethod
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark._planning import committed as scan_committed
from gazette_spark._planning import states as states_module
from gazette_spark._planning.cutter import PieceScan
from gazette_spark._write import spark_writer
from gazette_spark._write.spark_writer import BATCH_ID, RUN_ID, StreamWriter, Written
from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.broker.settings import StorageSettings
from gazette_spark.client import Client
from gazette_spark.errors import GazetteError
from gazette_spark.failpoints import calling
from gazette_spark.message.uuids import ACK_TXN, CONTINUE_TXN, Clock, ProducerId, build_uuid
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.source import GazetteDataSource, PiecePartition
from gazette_spark.spark_versions import QUERY_ID
from tests.oracles.committed import Sent, committed
from tests.rig.examples import examples

pytestmark = pytest.mark.slow

LABELS = {"content-type": "application/x-ndjson"}
ROWS = StructType().add("journal", StringType()).add("value", BinaryType())
READ = StructType().add("journal", StringType()).add("offset", LongType()).add("_ack_offset", LongType())
STEP_TIMEOUT_S = 60
NUMBERS = iter(range(1 << 20))


class KillError(BaseException):
    """The process dies: no code catches this, and no cleanup runs."""


class TaskError(Exception):
    """A task fails, for example because of its input."""


class DriverError(GazetteError):
    """The driver dies."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), storage=StorageSettings(fsync=False)) as one:
        yield one


def source(broker: EmbeddedBroker, **options: str) -> GazetteDataSource:
    return GazetteDataSource(CaseInsensitiveDict({"brokerAddress": broker.endpoint} | options))


class WritingAttempt:
    """An attempt of a writing task, in a thread that runs one step at a time."""

    def __init__(
        self, writer: bytes, job: tuple[str, str, str], batches: list[pa.RecordBatch], end: str
    ) -> None:
        self._batches = batches
        self._end = end
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.written: Written | None = None
        self.ended = False
        context = object.__new__(TaskContext)
        context._partitionId = 0
        context._localProperties = dict(zip((QUERY_ID, RUN_ID, BATCH_ID), job, strict=True))
        TaskContext._setTaskContext(context)
        self._thread = threading.Thread(target=self._run, args=(pickle.loads(writer),))
        self._thread.start()
        self._wait()

    def step(self) -> None:
        self._go.release()
        self._wait()

    def kill(self) -> None:
        self._killed = True
        if not self.ended:
            self.step()
        self._thread.join()

    def _wait(self) -> None:
        assert self._stands.acquire(timeout=STEP_TIMEOUT_S)

    def _run(self, writer: StreamWriter) -> None:
        try:
            self.written = pickle.loads(pickle.dumps(writer.write(self._rows())))
        except (KillError, TaskError):
            pass
        finally:
            self.ended = True
            self._stands.release()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        for each in self._batches:
            self._stop()
            yield each
        self._stop()
        if self._end == "fails":
            raise TaskError
        if self._end == "is killed":
            raise KillError

    def _stop(self) -> None:
        self._stands.release()
        assert self._go.acquire(timeout=STEP_TIMEOUT_S)
        if self._killed:
            raise KillError


@dataclass(frozen=True)
class WrittenBatch:
    tasks: list[list[str]]
    """Endings of each task's attempts, which run concurrently with an attempt that succeeds."""
    order: list[int]
    """Attempt that takes each next step, until every task has an attempt that has succeeded."""
    crash: str
    """Failpoint at which the driver dies, if any; another driver then repeats the batch."""


attempts = st.lists(st.sampled_from(["fails", "is killed", "ends"]), max_size=2)
written_batches = st.builds(
    WrittenBatch,
    st.lists(attempts, min_size=1, max_size=2),
    st.lists(st.integers(0, 9), max_size=25),
    st.sampled_from(["", "", "transaction.read", "transaction.recorded", "transaction.done"]),
)


@dataclass
class WritingQuery:
    broker: EmbeddedBroker
    prefix: str
    runs: int = 0
    zombies: list[WritingAttempt] = field(default_factory=list)

    def options(self) -> dict[str, str]:
        return {"deliveryGuarantee": "exactly_once", "transactionJournal": f"{self.prefix}/transactions"}

    def rows(self, batch: int, task: int) -> list[pa.RecordBatch]:
        """Return a task's rows: two record batches over two journals."""
        values = [json.dumps({"batch": batch, "task": task, "row": row}).encode() for row in range(4)]
        journals = [f"{self.prefix}/{short}" for short in "abab"]
        schema = pa.schema([("journal", pa.string()), ("value", pa.binary())])
        whole = pa.RecordBatch.from_arrays([pa.array(journals), pa.array(values)], schema=schema)
        return [whole.slice(0, 2), whole.slice(2)]

    def write(self, number: int, drawn: WrittenBatch) -> None:
        """Run a batch until it is committed. Unfinished attempts continue later."""
        for crash in [drawn.crash, ""] if drawn.crash else [""]:
            self.runs += 1
            self._run(number, drawn, crash)

    def _run(self, number: int, drawn: WrittenBatch, crash: str) -> None:
        writer = source(self.broker, **self.options()).streamWriter(ROWS, overwrite=False)
        job = ("query", f"run-{self.runs}", str(number))
        sent = pickle.dumps(writer)
        tasks = [
            [WritingAttempt(sent, job, self.rows(number, task), end) for end in [*ends, "ends"]]
            for task, ends in enumerate(drawn.tasks)
        ]
        order = iter(drawn.order)
        while not all(any(each.written for each in attempts) for attempts in tasks):
            running = [each for each in chain(*tasks, self.zombies) if not each.ended]
            running[next(order, 0) % len(running)].step()
        self.zombies += chain(*tasks)
        done = [next(each.written for each in attempts if each.written) for attempts in tasks]

        def die() -> None:
            raise DriverError

        if crash:
            with calling(crash, die), pytest.raises(DriverError):
                writer.commit(done, number)
        else:
            writer.commit(done, number)

    def go_on(self, *, kill: bool) -> None:
        """Let all remaining attempts end, or kill them."""
        for each in self.zombies:
            while not each.ended and not kill:
                each.step()
            each.kill()

    def committed(self) -> Counter[tuple[int, int, int]]:
        options = {"journals": f"{self.prefix}/a,{self.prefix}/b", "isolationLevel": "read_committed"}
        reader = source(self.broker, **options).reader(StructType().add("value", BinaryType()))
        values = [
            json.loads(value)
            for part in reader.partitions()
            for record_batch in reader.read(part)
            for value in record_batch.column(0).to_pylist()
        ]
        return Counter((each["batch"], each["task"], each["row"]) for each in values)


@settings(max_examples=examples(10))
@given(st.lists(written_batches, min_size=1, max_size=3))
def test_attempts_write_each_row_once(broker: EmbeddedBroker, batches: list[WrittenBatch]) -> None:
    query = WritingQuery(broker, f"prop/written/{next(NUMBERS)}")
    wanted: Counter[tuple[int, int, int]] = Counter()
    with Client(broker.endpoint) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskContext, "_taskContext", None)
        patch.setattr(spark_writer, "ROLLBACK_TIMEOUT_S", 5.0)
        names = [f"{query.prefix}/{short}" for short in ("a", "b", "transactions")]
        client.create_journals(*(journal_spec(name, labels=LABELS) for name in names))
        try:
            for number, drawn in enumerate(batches):
                query.write(number, drawn)
                wanted.update((number, task, row) for task in range(len(drawn.tasks)) for row in range(4))
                assert query.committed() == wanted
            query.go_on(kill=False)
        finally:
            query.go_on(kill=True)
    assert query.committed() == wanted


@dataclass(frozen=True)
class ReadBatch:
    messages: list[tuple[int, bool, int]]
    """For each message: its journal, whether it commits, and its producer."""
    attempts: int
    order: list[int]
    """Attempt, of this batch or an earlier one, that takes each next step."""
    lose: bool
    """Whether state files are lost before the batch."""


read_batches = st.builds(
    ReadBatch,
    st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 2)), min_size=1, max_size=15),
    st.integers(1, 3),
    st.lists(st.integers(0, 9), max_size=30),
    st.sampled_from([False, False, True]),
)


class Messages:
    def __init__(self, client: Client, prefix: str) -> None:
        self.names = [f"{prefix}/{short}" for short in "ab"]
        self._client = client
        self._clock = 1 << 62
        self._sent: list[list[Sent]] = [[], []]
        self._heads = [0, 0]
        client.create_journals(*(journal_spec(name, labels=LABELS) for name in self.names))

    def write(self, messages: list[tuple[int, bool, int]]) -> None:
        content = [b"", b""]
        for at, commits, producer in messages:
            self._clock += 16
            flags = ACK_TXN if commits else CONTINUE_TXN
            uuid = build_uuid(ProducerId(bytes([1, 0, 0, 0, 0, producer])), Clock(self._clock), flags)
            self._sent[at].append(Sent(producer, self._clock, flags, self._heads[at] + len(content[at])))
            content[at] += json.dumps({"_meta": {"uuid": str(uuid)}}).encode() + b"\n"
        for at, name in enumerate(self.names):
            self._heads[at] += len(content[at])
            if content[at]:
                self._client.append(name, content[at])

    def opened(self, journal: str, until: int) -> list[int]:
        """Return where the transactions begin that are open at an offset of a journal."""
        begins: dict[int, int] = {}
        for each in self._sent[self.names.index(journal)]:
            if each.offset < until and each.flags == ACK_TXN:
                begins.pop(each.producer, None)
            elif each.offset < until:
                begins.setdefault(each.producer, each.offset)
        return sorted(begins.values())

    def committed(self) -> list[tuple[str, int, int]]:
        """Return journal and offset of each committed message, and what committed it."""
        return sorted(
            (name, each.offset, found[each.offset])
            for name, sent in zip(self.names, self._sent, strict=True)
            for found in [committed(sent)]
            for each in sent
            if each.offset in found and each.flags != ACK_TXN
        )


class ReadingAttempt:
    def __init__(self, reader: bytes, partition: bytes) -> None:
        self._batches = pickle.loads(reader).read(pickle.loads(partition))
        self.rows: list[tuple[str, int, int]] = []
        self.ended = False

    def step(self) -> None:
        found = next(self._batches, None)
        if found is None:
            self.ended = True
        else:
            self.rows += zip(*(column.to_pylist() for column in found.columns), strict=True)


@settings(max_examples=examples(15))
@given(
    batches=st.lists(read_batches, min_size=1, max_size=6),
    memory=st.tuples(st.sampled_from([0, 300, 1 << 20]), st.sampled_from([100, 1 << 20])),
)
def test_attempts_read_each_message_once(
    broker: EmbeddedBroker, batches: list[ReadBatch], memory: tuple[int, int]
) -> None:
    states = Path(tempfile.mkdtemp(prefix="states-"))
    zombies: list[ReadingAttempt] = []
    rows: list[tuple[str, int, int]] = []
    with_states: set[str] = set()
    """Journals with a state file for the end of the last batch."""
    with Client(broker.endpoint) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_committed, "WINDOW_BYTES", memory[0])
        patch.setattr(states_module, "KEPT_FILES", 2)
        patch.setattr(PieceScan, "__init__", partialmethod(PieceScan.__init__, block_bytes=memory[1]))
        messages = Messages(client, f"prop/read/{next(NUMBERS)}")
        options = {
            "journals": ",".join(messages.names),
            "isolationLevel": "read_committed",
            "startingOffsets": "earliest",
            "stateLocation": str(states),
        }
        reader = source(broker, **options).streamReader(READ)
        sent = pickle.dumps(reader)
        limit = reader.getDefaultReadLimit()
        start = reader.latestOffset(reader.initialOffset(), limit)  # The first batch reads nothing.
        for drawn in batches:
            messages.write(drawn.messages)
            if drawn.lose:
                shutil.rmtree(states, ignore_errors=True)
                with_states.clear()
            end = reader.latestOffset(start, limit)
            told = (reader.reportLatestOffset() or {}).get("transactions", {})
            for name in with_states | told.keys():
                found = list(map(int, told.get(name, {}).get("oldest", ())))
                assert found == messages.opened(name, start["journals"][name])
            planned = reader.partitions(start, end)
            with_states |= {
                piece.journal for each in planned if isinstance(each, PiecePartition) for piece in each.pieces
            }
            partitions = [pickle.dumps(each) for each in planned]
            tasks = [[ReadingAttempt(sent, each) for _ in range(drawn.attempts)] for each in partitions]
            order = iter(drawn.order)
            while not all(any(each.ended for each in attempts) for attempts in tasks):
                running = [each for each in chain(*tasks, zombies) if not each.ended]
                running[next(order, 0) % len(running)].step()
            for attempts in tasks:
                first, *others = (sorted(each.rows) for each in attempts if each.ended)
                assert others == [first] * len(others)
                rows += first
            zombies += chain(*tasks)
            assert sorted(rows) == messages.committed()
            start = end
        reader.stop()
    shutil.rmtree(states, ignore_errors=True)
