"""An application that records every step, its store in a database that fences, and the journals it needs."""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from gazette_spark import Client
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.client._append.futures import AsyncOperation, OpFuture, failure_of
from gazette_spark.consumer import Application, DeferToNextTransaction, ResolveArgs, Shard, ShardHost
from gazette_spark.errors import GazetteError
from gazette_spark.failpoints import failpoint
from gazette_spark.message import ACK_TXN, Envelope, Message, Publisher, Sequencer, read_committed, split_uuid
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from tests.rig.messages import Document

NDJSON = {"content-type": "application/x-ndjson"}


@dataclass
class FencedError(GazetteError):
    """Another store has restored the checkpoint since."""

    fqn: str

    def __str__(self) -> str:
        return f"{self.fqn}: another store has restored the checkpoint"


@dataclass
class Row:
    fence: int = 0
    checkpoint: bytes = b""
    state: str = "{}"
    commits: int = 0


class Database:
    """A transactional system outside the process: it outlives hosts."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.lock = threading.Lock()
        self.before_commit: Callable[[str], None] = lambda _: None
        """Function called in the committing thread, for a test to delay or break a commit."""

    def state(self) -> dict[str, dict[str, int]]:
        with self.lock:
            return {fqn.rpartition("items/")[2]: json.loads(row.state) for fqn, row in self.rows.items()}


class RemoteStore:
    def __init__(self, database: Database, fqn: str) -> None:
        self._database = database
        self._fqn = fqn
        self._fence = 0
        self._committing = False
        self.state: dict[str, int] = {}
        self.consumed = 0
        """Number of messages in the current transaction."""
        self.destroyed = False

    def restore_checkpoint(self) -> pc.Checkpoint:
        with self._database.lock:
            row = self._database.rows.setdefault(self._fqn, Row())
            row.fence += 1
            self._fence = row.fence
            self.state = json.loads(row.state)
            return pc.Checkpoint.FromString(row.checkpoint)

    def start_commit(self, checkpoint: pc.Checkpoint, wait_for: Iterable[OpFuture]) -> Future[None]:
        """Commit in the thread in which the last dependency ends."""
        assert not self._committing, "two commits at a time"
        assert not self.destroyed
        self._committing = True
        done: AsyncOperation[None] = AsyncOperation()
        content, state = checkpoint.SerializeToString(), json.dumps(self.state)
        left = list(wait_for)

        def go_on(ended: OpFuture | None = None) -> None:
            problem = None if ended is None else failure_of(ended)
            while left and problem is None:
                if not left[-1].done():
                    left.pop().add_done_callback(go_on)
                    return
                problem = failure_of(left.pop())
            if problem is None:
                self._commit(content, state, done)
                return
            self._committing = False
            done.resolve(problem)

        go_on()
        return done

    def _commit(self, checkpoint: bytes, state: str, done: AsyncOperation[None]) -> None:
        problem: BaseException | None = None
        try:
            failpoint("store.committing")
            self._database.before_commit(self._fqn)
            with self._database.lock:
                row = self._database.rows[self._fqn]
                if row.fence != self._fence:
                    raise FencedError(self._fqn)
                row.checkpoint, row.state, row.commits = checkpoint, state, row.commits + 1
            failpoint("store.committed")
        except BaseException as error:  # noqa: BLE001  # The shard hears of it.
            problem = error
        self._committing = False
        done.resolve(problem)

    def destroy(self) -> None:
        self.destroyed = True


@dataclass
class Totals(Application[RemoteStore]):
    """Adds numbers by key, and publishes each new total.

    A message is ``{"key": …, "n": …}``. The journal of a total is chosen by its key. Messages of key "defer"
    are deferred unless they are their transaction's first; those of key "defer first" always are.
    """

    database: Database
    outputs: Sequence[str] = ()
    steps: list[str] = field(default_factory=list)
    stores: list[RemoteStore] = field(default_factory=list)
    refuses: str = ""
    """Key of the messages that raise an error."""
    refuses_by: Callable[[str], Exception] = ValueError
    """Function that creates the error."""
    on_finish: Callable[[Future[None]], object] = lambda _: None

    def new_store(self, shard: Shard) -> RemoteStore:
        self.stores.append(RemoteStore(self.database, shard.fqn))
        return self.stores[-1]

    def new_message(self, spec: pb.JournalSpec, record: bytes) -> Message:
        fields = json.loads(record)
        return Document(fields, stamp=uuid.UUID(fields.pop("_meta")["uuid"]))

    def begin_txn(self, shard: Shard, store: RemoteStore) -> None:
        self.steps.append("begin")
        store.consumed = 0

    def consume_message(
        self, shard: Shard, store: RemoteStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        document = envelope.message
        assert isinstance(document, Document)
        if "key" not in document.fields:
            return
        key, number = document.fields["key"], document.fields["n"]
        if key == "defer first" or (key == "defer" and store.consumed > 0):
            raise DeferToNextTransaction
        if key == self.refuses:
            raise self.refuses_by(f"{key} is refused")
        self.steps.append(f"consume {key}")
        store.consumed += 1
        store.state[key] = store.state.get(key, 0) + number
        failpoint("app.consumed")
        if self.outputs:
            output = self.outputs[len(key) % len(self.outputs)]
            total = Document({"shard": shard.spec.id, "key": key, "total": store.state[key]})
            publisher.publish_uncommitted(lambda _: (output, NDJSON["content-type"]), total)

    def finalize_txn(self, shard: Shard, store: RemoteStore, publisher: Publisher) -> None:
        self.steps.append("finalize")

    def finish_txn(self, shard: Shard, store: RemoteStore, commit: Future[None]) -> None:
        self.steps.append("finish")
        self.on_finish(commit)


def number(key: str, n: int = 1) -> Document:
    return Document({"key": key, "n": n})


def publish_number(client: Client, journal: str, key: str) -> int:
    """Publish a committed message of a key, and return the journal's write head after it."""
    with AppendService(client, timeout_s=60) as service:
        publisher = Publisher(service)
        publisher.publish_committed(lambda _: (journal, NDJSON["content-type"]), number(key))
        service.flush()
    return client.write_head(journal)


def create_journals(client: Client, *names: str) -> None:
    client.create_journals(*(journal_spec(name, labels=NDJSON) for name in names))


def committed_documents(client: Client, journal: str) -> list[dict[str, object]]:
    found = []
    app = Totals(Database())
    with read_committed(client, journal, app.new_message, sequencer=Sequencer()) as messages:
        for envelope in messages:
            document = envelope.message
            assert isinstance(document, Document)
            if split_uuid(document.stamp)[2] != ACK_TXN:
                found.append(document.fields)
    return found


def published_totals(client: Client, outputs: Sequence[str]) -> Counter[tuple[object, object, object]]:
    return Counter(
        (each["shard"], each["key"], each["total"])
        for output in outputs
        for each in committed_documents(client, output)
    )


def wait_through(host: ShardHost, client: Client, shard: str, *journals: str, timeout_s: float = 30) -> None:
    """Wait until a shard has read its journals to the end, as a caller of Stat does."""
    heads = {journal: client.write_head(journal) for journal in journals}
    with host.resolve(ResolveArgs(shard, read_through=heads, timeout_s=timeout_s)) as found:
        assert found.status == pc.OK, pc.Status.Name(found.status)
