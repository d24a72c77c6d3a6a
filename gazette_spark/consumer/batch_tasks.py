"""Runs the tasks of a micro-batch, which read journals and call the application with their messages.

There are two steps, with a shuffle in between. :meth:`Job.read` turns reads into rows of messages, for each
shard in the order of each journal. Spark combines the rows of a shard with the rows of its state, and sorts
them: state first, then messages; messages of several journals are sorted by clock. :meth:`Job.run` processes
the rows in order and calls the application.

A task may run again, or twice at the same time. It publishes with a producer that only this attempt has, and
its messages count only if the driver commits its results: Spark uses those of one attempt. Reads return the
same rows each time, because the driver fixes where they begin and end.

Rows go through a task one by one, so a shard's messages need not fit into memory. Its state must fit or, if
the application declares keys, the state of one key.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from gazette_spark._options.write import WriteOptions
from gazette_spark._write.spark_writer import open_client
from gazette_spark.client import AppendService, Client
from gazette_spark.client._append.futures import finished_operation
from gazette_spark.consumer.application import (
    Application,
    KeyedApplication,
    Progress,
)
from gazette_spark.consumer.checkpoints import build_checkpoint, producer_states
from gazette_spark.consumer.micro_batch import (
    FAILED,
    INTENT,
    PACE,
    SOURCE,
    JournalRead,
    JournalSpecs,
    Result,
)
from gazette_spark.consumer.stores.delta import RowStore, check_key
from gazette_spark.consumer.transaction import ApplicationCalls, failed
from gazette_spark.errors import GazetteError, InputError, ShardFailedError
from gazette_spark.failpoints import failpoint
from gazette_spark.message.bulk_sequencer import REMEMBERED
from gazette_spark.message.interfaces import Envelope, Message
from gazette_spark.message.iterate import ReadCommitted, ReadUncommitted
from gazette_spark.message.publisher import Publisher
from gazette_spark.message.sequencer import HORIZON_NS, ReplayRange, Sequencer, SequencerCheckpoint
from gazette_spark.message.uuids import ACK_TXN, split_uuid
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import split_meta

# These are large enough that the cost of a batch is small, and small enough that a task needs little memory.
BATCH_ROWS = 4096
BATCH_BYTES = 4 << 20
"""Maximum number of rows, and of bytes of values, in a record batch."""

SHARDS_UNDER_WAY = 16
"""Maximum number of a task's shards that wait for their appends while the next one consumes."""

STEP_STATE, STEP_MESSAGE, STEP_OTHER = 0, 1, 2
"""Order of the rows of a shard or of a key. Results of the reads come last, and only pass through."""

INPUT_SCHEMA = (
    "shard STRING, `group` STRING, step INT, turn BIGINT, journal STRING, nth BIGINT, begin BIGINT, "
    "`end` BIGINT, kind STRING, `key` STRING, value STRING, data BINARY"
)
ORDER = ("shard", "group", "step", "turn", "journal", "nth")
"""Columns by which the rows for :meth:`Job.run` are sorted. ``group`` is the key, if there are keys."""

RESULT_SCHEMA = "shard STRING, kind STRING, `key` STRING, value STRING, data BINARY, deleted BOOLEAN"

_ARROW = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
}


def _arrow(ddl: str) -> pa.Schema:
    return pa.schema([(name.strip("`"), _ARROW[kind]) for name, kind in map(str.split, ddl.split(","))])


_INPUT, _RESULT = _arrow(INPUT_SCHEMA), _arrow(RESULT_SCHEMA)


class Row(NamedTuple):
    """A row between the two steps: state, a message, or a result of a read."""

    shard: str
    group: str = ""
    step: int = STEP_OTHER
    turn: int = 0
    """Largest clock of the journal's messages up to this one, as a signed number. So older messages of other
    journals come first, and the order within each journal is kept."""
    journal: str = ""
    nth: int = 0
    begin: int = 0
    end: int = 0
    kind: str = ""
    key: str = ""
    value: str | None = None
    data: bytes | None = None


class TaskShard:
    """A shard within a task. ``stopping`` is never set, because Spark stops a task by ending its process."""

    def __init__(self, job: Job, spec: pc.ShardSpec, client: Client, service: AppendService) -> None:
        self.spec = spec
        self.fqn = f"{job.name}/{spec.id}"
        self.client = client
        self.append_service = service
        self.recovered_hints: pc.GetHintsResponse | None = None
        self.recorder: None = None
        self.primary_loop: Future[None] = Future()
        self.stopping = threading.Event()
        self.rows: dict[tuple[str, str], str] = {}
        """Stored rows for the store that is made next."""
        self.only_key: str | None = None

    def __repr__(self) -> str:
        return f"TaskShard({self.fqn!r})"

    def json_store(self, initial: object = None) -> RowStore:
        """Return the store for the rows that the task got."""
        return RowStore(self.rows, initial, only_key=self.only_key)

    def progress(self) -> Progress:
        """Return no offsets, because only the driver has them."""
        return Progress({}, {})


@dataclass(frozen=True, slots=True)
class Job:
    """The input of a micro-batch's tasks, which get it pickled."""

    name: str
    """Prefix of the shards' full names."""
    app: Application[Any]
    options: WriteOptions
    reads: tuple[JournalRead, ...]
    specs: Mapping[str, pc.ShardSpec]
    sources: JournalSpecs
    """Specs of the source journals, listed by the driver: a listing for each shard would take longer than its
    messages."""

    @property
    def has_keys(self) -> bool:
        """Whether the application declares keys."""
        return isinstance(self.app, KeyedApplication)

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn the numbers of reads into rows. This is the function for Spark's ``mapInArrow``."""
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        # A task may get no rows at all. Then a client is not needed.
        if not numbers:
            return
        with open_client(self.options) as client:
            rows = (row for number in numbers for row in self._rows_of(client, self.reads[number]))
            yield from _batches(rows, _INPUT)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn sorted rows into results. This is the function for Spark's ``mapInArrow``."""
        yield from _batches(self._results(batches), _RESULT)

    def _rows_of(self, client: Client, read: JournalRead) -> Iterator[Row]:
        """Yield the rows of one read, for each of its shards."""
        try:
            for row in self._messages(client, read):
                for shard in read.shards:
                    yield row._replace(shard=shard)
        except Exception as error:  # noqa: BLE001 - any error of the application.
            for shard in read.shards:
                failure = _failure(shard, f"reading journal {read.journal!r}", error)
                yield Row(shard, kind=FAILED, key=failure.key, value=failure.value)

    def _messages(self, client: Client, read: JournalRead) -> Iterator[Row]:
        journal = read.journal
        spec = self.sources[split_meta(journal)[0]]
        checkpoint = pc.Checkpoint(sources={journal: pc.Checkpoint.Source.FromString(read.source)})
        sequencer = Sequencer({journal: read.begin}, producer_states(checkpoint))

        def new_message(of: pb.JournalSpec, record: bytes) -> Message:
            return _Raw(record, self.app.new_message(of, record))

        def replay(missing: ReplayRange) -> ReadUncommitted:
            reader = client.read(journal, offset=missing.begin, end_offset=missing.end)
            return ReadUncommitted(reader, spec, new_message)

        reader = client.read(journal, offset=read.begin, end_offset=read.head)
        key_of = self.app.key_of if isinstance(self.app, KeyedApplication) else None
        turn = 0
        # A write head may be within a message, which the next read then delivers.
        messages = ReadUncommitted(reader, spec, new_message, until=read.until)
        with ReadCommitted(messages, sequencer, replay) as committed:
            for nth, envelope in enumerate(committed):
                raw = envelope.message
                assert isinstance(raw, _Raw)
                _, clock, flags = split_uuid(raw.get_uuid())
                # It never goes back, because the order within a journal must be kept, and clocks of several
                # producers are not in the order of the journal.
                turn = max(turn, clock)
                group = ""
                if key_of is not None:
                    # An acknowledgement belongs to no key.
                    if flags == ACK_TXN and clock:
                        continue
                    group = key_of(Envelope(journal, envelope.begin, envelope.end, raw.message))
                    if not isinstance(group, str):
                        raise InputError(f"key_of returned {group!r}, but a key must be a string")
                    check_key(group)
                yield Row(
                    "",
                    group,
                    STEP_MESSAGE,
                    # Clocks are unsigned, but Spark's BIGINT is signed. After the shift, they sort in the
                    # same order.
                    turn - (1 << 63),
                    journal,
                    nth,
                    envelope.begin,
                    envelope.end,
                    data=raw.record,
                )
            # The offset and the states belong together: both are those after the last delivered message.
            at = committed.messages.offset
        states = sequencer.checkpoint(HORIZON_NS, REMEMBERED).states
        source = build_checkpoint(SequencerCheckpoint({journal: at}, states)).sources[journal]
        yield Row("", journal=journal, kind=SOURCE, key=journal, data=source.SerializeToString())

    def _results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Result]:
        rows = (
            Row(*values)
            for batch in batches
            for values in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)
        )
        client: Client | None = None
        runs: deque[_ShardRun] = deque()
        try:
            for shard, of_shard in groupby(rows, attrgetter("shard")):
                if client is None:
                    client = open_client(self.options)
                runs.append(_ShardRun(self, self.specs[shard], client))
                yield from runs[-1].results(of_shard)
                # The oldest shard waits for its appends while later ones consume, so their flushes overlap.
                if len(runs) == SHARDS_UNDER_WAY:
                    yield from runs.popleft().published()
            while runs:
                yield from runs.popleft().published()
        finally:
            for run in runs:
                run.close()
            if client is not None:
                client.close()


class _ShardRun:
    """One shard's part of a task: its messages, or those of some of its keys.

    The driver commits what the task returns, and appends the intents after that; see ``batch_driver``.
    """

    def __init__(self, job: Job, spec: pc.ShardSpec, client: Client) -> None:
        self._job = job
        self._id = spec.id
        # `published` waits for published messages, up to the client's timeout.
        self._service = AppendService(client, timeout_s=client.timeout_s)
        self._shard = TaskShard(job, spec, client, self._service)
        # Only this attempt has this producer: if Spark runs the task again, the messages of this attempt are
        # never acknowledged.
        self._publisher = Publisher(self._service)
        self._calls: ApplicationCalls | None = None
        """The calls for the open store."""
        self._began_s: float | None = None
        """Monotonic time at which the first message was consumed."""
        self._closed = False

    def results(self, rows: Iterable[Row]) -> Iterator[Result]:
        """Yield the results of a shard's rows, or an error if the shard fails.

        The results count if :meth:`published` adds no error.
        """
        try:
            for group, of_group in groupby(rows, attrgetter("group")):
                yield from self._group(group, of_group)
            if self._began_s is not None:
                for intent in self._publisher.build_ack_intents():
                    yield Result(self._id, INTENT, intent.journal, data=intent.intent)
                yield Result(self._id, PACE, "", str(time.monotonic() - self._began_s))
        except Exception as error:  # noqa: BLE001 - any error of the application.
            if self._calls is not None:
                self._calls.abort(error)
            self.close()
            yield _failure(self._id, "publishing", error)

    def _group(self, group: str, rows: Iterable[Row]) -> Iterator[Result]:
        """Yield the changed state of one key or of the whole shard, and the rows that only pass through."""
        stored: dict[tuple[str, str], str] = {}
        store: RowStore | None = None
        self._calls = None
        for row in rows:
            # Rows are sorted: the stored state comes first, then messages, then rows that only pass through.
            if row.step == STEP_STATE:
                stored[row.kind, row.key] = str(row.value)
                continue
            if row.step == STEP_OTHER:
                yield Result(row.shard, row.kind, row.key, row.value, row.data)
                continue
            if self._calls is None:
                self._began_s = time.monotonic() if self._began_s is None else self._began_s
                self._shard.rows, self._shard.only_key = stored, group if self._job.has_keys else None
                new_store = self._job.app.new_store(self._shard)
                if not isinstance(new_store, RowStore):
                    problem = f"new_store returned {new_store!r}"
                    raise InputError(f"{problem}: on Spark a shard's store is that of shard.json_store()")
                store = new_store
                self._calls = ApplicationCalls(self._job.app, self._shard, store, self._publisher)
                self._calls.begin()
            spec = self._job.sources[split_meta(row.journal)[0]]
            message = self._job.app.new_message(spec, row.data or b"")
            envelope = Envelope(row.journal, row.begin, row.end, message)
            if not self._calls.consume(envelope):
                # To the application, the message begins another transaction. The driver commits both
                # together, because a micro-batch ends where it was planned to end.
                self._calls.finalize()
                self._calls.finish(finished_operation())
                self._calls.begin()
                self._calls.consume(envelope)
        if self._calls is not None and store is not None:
            self._calls.finalize()
            self._calls.finish(finished_operation())
            for (kind, key), text in sorted(store.changes().items()):
                yield Result(self._id, kind, key, text, deleted=text is None)

    def published(self) -> Iterator[Result]:
        """Wait until everything that the shard has published is appended, and yield an error if that fails.

        The driver may commit only after that, because an acknowledgement must not commit messages that are
        lost.
        """
        try:
            if self._began_s is not None and not self._closed:
                self._service.flush()
        except Exception as error:  # noqa: BLE001 - including errors of the application's dependencies.
            yield _failure(self._id, "publishing", error)
        finally:
            self.close()
        failpoint("micro_batch.published")

    def close(self) -> None:
        """End appends in progress. This may be called again."""
        if not self._closed:
            self._closed = True
            self._service.close(abort=True)


class _Raw:
    """A message that keeps the bytes of its record."""

    def __init__(self, record: bytes, message: Message) -> None:
        self.record = record
        self.message = message
        self.get_uuid = message.get_uuid
        self.set_uuid = message.set_uuid
        self.new_acknowledgement = message.new_acknowledgement

    def __bytes__(self) -> bytes:
        return self.record


def _failure(shard: str, step: str, error: Exception) -> Result:
    """Return the result of a shard that failed.

    An error that may be temporary is raised instead, so that Spark runs the task again.
    """
    cause = error.__cause__ if isinstance(error, ShardFailedError) else error
    if isinstance(cause, GazetteError) and cause.retryable:
        raise cause
    failure = failed(shard, step, error)
    # An error may quote a record, and a record may have half of a surrogate pair, which Arrow refuses.
    text = failure.cause.encode("utf-8", "backslashreplace").decode()
    return Result(shard, FAILED, failure.step, text)


def _batches(rows: Iterable[Row] | Iterable[Result], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches of bounded size."""
    held: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += len(row.data or b"") + len(row.value or "")
        if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(held, schema)
            held, size = [], 0
    if held:
        yield _batch(held, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
