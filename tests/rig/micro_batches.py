"""Applications for tests of the consumer framework, and their expected results from a simple model."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from gazette_spark._options.write import WriteOptions
from gazette_spark.consumer import Application, JsonStore, Shard
from gazette_spark.consumer.batch_driver import Opened
from gazette_spark.consumer.batch_tasks import Job, Row
from gazette_spark.consumer.micro_batch import DOCUMENT, STATE, JournalSpecs, Plan, Result
from gazette_spark.errors import GazetteError
from gazette_spark.message import ACK_TXN, Envelope, Message, Publisher, split_uuid
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.messages import Document


def read_document(record: bytes) -> Document:
    fields = json.loads(record)
    stamp = uuid.UUID(fields.pop("_meta")["uuid"])
    return Document(fields, stamp=stamp)


class WordCount(Application[JsonStore]):
    """Counts words, and publishes each new total of a word at the end of a transaction."""

    def __init__(self, output: str, *, echoes: bool = False) -> None:
        """Publish totals to a journal, and with ``echoes`` also the position of each message."""
        self.output = output
        self.echoes = echoes
        self.changed: set[tuple[str, str]] = set()
        """Shard and word of each change in the transaction."""

    def new_store(self, shard: Shard) -> JsonStore:
        return shard.json_store(initial={})

    def new_message(self, _spec: pb.JournalSpec, record: bytes) -> Message:
        return read_document(record)

    def consume_message(
        self, shard: Shard, store: JsonStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        if split_uuid(envelope.message.get_uuid())[2] == ACK_TXN:
            return
        assert isinstance(envelope.message, Document)
        if self.echoes:
            place = {"shard": shard.spec.id, "journal": envelope.journal, "begin": envelope.begin}
            publisher.publish_uncommitted(self._to_output, Document(place))
        for word in str(envelope.message.fields["text"]).split():
            if self.refuses(word):
                raise ValueError("a word that nobody may count")
            store.state[word] = store.state.get(word, 0) + 1
            self.changed.add((shard.spec.id, word))

    def refuses(self, word: str) -> bool:
        return word == "poison"

    def finalize_txn(self, shard: Shard, store: JsonStore, publisher: Publisher) -> None:
        for shard_id, word in sorted(self.changed):
            if shard_id == shard.spec.id:
                total = Document({"shard": shard_id, "word": word, "total": store.state[word]})
                publisher.publish_uncommitted(self._to_output, total)
                self.changed.discard((shard_id, word))

    def _to_output(self, _message: Any) -> tuple[str, str]:
        return self.output, CONTENT_TYPE_NDJSON


class KeyedWordCount(WordCount):
    """The same for documents of one word, which is the key."""

    def key_of(self, envelope: Envelope) -> str:
        assert isinstance(envelope.message, Document)
        return str(envelope.message.fields["text"])


class Waiting(KeyedWordCount):
    """Waits at a word until a file exists."""

    def __init__(self, output: str, word: str, go: str) -> None:
        super().__init__(output)
        self.word, self.go = word, go

    def refuses(self, word: str) -> bool:
        deadline = time.monotonic() + 100
        while word == self.word and not Path(self.go).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return super().refuses(word)


class Refusing(WordCount):
    """Refuses the word ``poison`` only while a file exists."""

    def __init__(self, output: str, refusal: str) -> None:
        super().__init__(output)
        self.refusal = refusal

    def refuses(self, word: str) -> bool:
        return super().refuses(word) and Path(self.refusal).exists()


def counted(texts: Iterable[str]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for text in texts:
        for word in text.split():
            totals[word] = totals.get(word, 0) + 1
    return totals


class FencedOffError(GazetteError):
    """Another engine has opened the table."""


@dataclass
class MemoryTable:
    """An in-memory state table. Engines that share one fence each other off."""

    opened: int = 0
    state: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    """Rows of each shard, by kind and key."""
    checkpoints: dict[str, bytes] = field(default_factory=dict)
    newest: frozenset[str] = frozenset()


@dataclass
class MemoryResults:
    rows: list[Result]

    def summary(self) -> Iterator[Result]:
        return (row for row in self.rows if row.kind not in (STATE, DOCUMENT))


@dataclass
class MemoryEngine:
    """Runs the tasks of a host in this process, one after the other."""

    table: MemoryTable
    app: Application[Any]
    options: WriteOptions
    attempts: int = 1
    """Number of times that each task runs; the last attempt counts."""
    turn: int = 0

    def open(self) -> Opened:
        self.table.opened += 1
        self.turn = self.table.opened
        found = {shard: pc.Checkpoint.FromString(data) for shard, data in self.table.checkpoints.items()}
        return Opened(found, self.table.newest)

    def run(self, planned: Plan, specs: Mapping[str, pc.ShardSpec], sources: JournalSpecs) -> MemoryResults:
        """Run the tasks: one for each read, and one for all shards, or for each key."""
        job = Job("tests", self.app, self.options, planned.reads, specs, sources)
        rows = [
            Row(shard, key if job.has_keys else "", 0, kind=kind, key=key, value=text)
            for shard in specs
            for (kind, key), text in self.table.state.get(shard, {}).items()
        ]
        for number in range(len(planned.reads)):
            rows += self._attempted(lambda n=number: _rows(job.read(_numbers(n)), Row))
        rows.sort(key=lambda row: row[:6])
        results = []
        for group in sorted({row.group for row in rows}):
            mine = [row for row in rows if row.group == group]
            results += self._attempted(lambda of=mine: _rows(job.run(_record_batches(of)), Result))
        return MemoryResults(results)

    def commit(self, results: MemoryResults, checkpoints: Mapping[str, pc.Checkpoint]) -> None:
        """Commit a transaction.

        Raises:
            FencedOffError: another engine has opened the table.
        """
        if self.turn != self.table.opened:
            raise FencedOffError
        for row in results.rows:
            if row.shard in checkpoints and row.kind in (STATE, DOCUMENT):
                rows = self.table.state.setdefault(row.shard, {})
                if row.deleted:
                    del rows[row.kind, row.key]
                else:
                    rows[row.kind, row.key] = str(row.value)
        for shard, checkpoint in checkpoints.items():
            self.table.checkpoints[shard] = checkpoint.SerializeToString()
        self.table.newest = frozenset(checkpoints)

    def _attempted(self, task: Any) -> list[Any]:
        for _ in range(self.attempts - 1):
            task()
        found: list[Any] = task()
        return found


def _numbers(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"id": list(numbers)})]


def _record_batches(rows: list[Row]) -> list[pa.RecordBatch]:
    columns = zip(*rows, strict=True)
    return [pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=Row._fields)]


def _rows(batches: Iterable[pa.RecordBatch], kind: Any) -> list[Any]:
    columns = ([column.to_pylist() for column in batch.columns] for batch in batches)
    return [kind(*values) for each in columns for values in zip(*each, strict=True)]
