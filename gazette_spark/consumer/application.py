"""What an application implements, and what a host gives it: the interfaces of the consumer framework.

A **shard** is a unit of work: some source journals, one store, one transaction at a time. A **host** runs the
shards of an :class:`Application`. For each shard, in one thread at a time, it calls::

    store = app.new_store(shard)
    checkpoint = store.restore_checkpoint()         # fences off older stores of the shard
    each transaction:
        app.begin_txn(shard, store)                 # if the application has it
        app.consume_message(shard, store, envelope, publisher)      # once or more
        app.finalize_txn(shard, store, publisher)
        commit = store.start_commit(checkpoint, wait_for)
        app.finish_txn(shard, store, commit)        # if the application has it
    store.destroy()

Transactions overlap: the next one consumes messages while ``commit`` is under way, but does not start to
commit before that one and its acknowledgements are done. The order makes each message count once: what a
transaction published is durable before its commit, state and checkpoint commit together, and messages that
were published uncommitted are acknowledged after the commit.

An exception of the application or its store ends the shard: it is FAILED, with the text. The host starts it
again after a delay, unless the exception is a :class:`~gazette_spark.errors.PermanentError`: then it stays
FAILED until somebody unassigns it or applies its spec. The other shards continue.
"""

from __future__ import annotations

import json
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from gazette_spark.errors import MessageError
from gazette_spark.message.interfaces import NIL_UUID
from gazette_spark.message.uuids import ACK_TXN, split_uuid
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb

if TYPE_CHECKING:
    from gazette_spark.client._append.futures import OpFuture
    from gazette_spark.client._append.service import AsyncJournalClient
    from gazette_spark.client.client import Client
    from gazette_spark.consumer.recoverylog import Recorder
    from gazette_spark.message.interfaces import Envelope, Message
    from gazette_spark.message.publisher import Publisher


class DeferToNextTransaction(Exception):  # noqa: N818  # A decision, not an error.
    """Raised by ``consume_message``: end this transaction before the message, and consume it in the next.

    If it is raised for the first message of a transaction, that is an error, because no transaction is empty.
    """


class Progress(NamedTuple):
    """How far a shard has come, as of its newest transaction that is committed and acknowledged."""

    read_through: dict[str, int]
    """Offset up to which the messages of a journal are in the state, by source journal; 0: none are."""
    publish_at: dict[str, int]
    """End of the newest acknowledgement that this assignment of the shard has appended, by journal.

    Everything that the shard published because of messages within ``read_through`` is before it. Journals
    that only an earlier assignment published to are left out.
    """


class Store(Protocol):
    """Where a shard's state is kept, together with the checkpoint that produced it.

    A store is used by one thread at a time, but its commit continues in the background: while it does, the
    application changes the state for the next transaction.
    """

    def restore_checkpoint(self) -> pc.Checkpoint:
        """Return the newest committed checkpoint, or an empty one.

        Afterwards no older store of the same shard, in whatever process, can commit.
        """

    def start_commit(self, checkpoint: pc.Checkpoint, wait_for: Iterable[OpFuture]) -> Future[None]:
        """Begin to commit the state as it is now and the checkpoint, both or neither.

        Nothing may be committed before all of ``wait_for`` have ended well; one that fails fails the commit.
        So does another store that has restored the checkpoint since this one did. It is not called again
        before the future has ended. A future that has failed already ends the shard at once.

        Args:
            checkpoint: Belongs to the host, which may change it when the call has returned: serialize it.
            wait_for: Appends that the checkpoint relies on.
        """

    def destroy(self) -> None:
        """Release files and connections. The store is not used after that, and what was committed stays."""


StoreT = TypeVar("StoreT", bound=Store)
"""The store of an application."""


class JsonStore(Store, Protocol):
    """A store whose state is one document of JSON values, see :meth:`Shard.json_store`."""

    state: Any
    """Changed in place by the application. What it holds when ``finalize_txn`` has returned is committed."""


class Shard(Protocol):
    """A shard that runs here. Its properties may be read by any thread."""

    @property
    def spec(self) -> pc.ShardSpec:
        """The current spec. The message itself never changes: a new spec is another message."""

    @property
    def fqn(self) -> str:
        """Fully qualified name, which no shard of another application has: the key of its spec."""

    @property
    def client(self) -> Client:
        """Client of the brokers, for reads and lists."""

    @property
    def append_service(self) -> AsyncJournalClient:
        """Appends raw bytes, at least once: the transaction that begins an append waits for it.

        Each shard has one, which its publisher and its recorder use too.
        """

    @property
    def recovered_hints(self) -> pc.GetHintsResponse | None:
        """Hints from which the recovery log was played; None if the shard's spec names no log."""

    @property
    def recorder(self) -> Recorder | None:
        """Recorder of the shard's recovery log, to make a store with; None if the spec names no log."""

    def json_store(self, initial: object = None) -> JsonStore:
        """Return a store for one JSON document, the kind that fits the host.

        Args:
            initial: The document, if none is stored yet; it is not changed.
        """

    def progress(self) -> Progress:
        """Return how far the shard has come; the caller's own copy."""

    @property
    def primary_loop(self) -> Future[None]:
        """Ends with the shard's transactions: with their error, or None if the shard was told to stop."""

    @property
    def stopping(self) -> threading.Event:
        """Set when the shard is to stop: what blocks within the application should return then."""


class Application(ABC, Generic[StoreT]):
    """What a shard does with its messages. One object serves all shards of a host, in their threads.

    Raise only errors after which a shard cannot continue, and a
    :class:`~gazette_spark.errors.PermanentError` if it would fail again.
    """

    @abstractmethod
    def new_store(self, shard: Shard) -> StoreT:
        """Return the shard's store, e.g. ``shard.json_store(initial={})``; called once per assignment."""

    @abstractmethod
    def new_message(self, spec: pb.JournalSpec, record: bytes) -> Message:
        """Return the message of a record; raise ValueError if its bytes hold no message.

        Called by threads that read ahead.
        """

    @abstractmethod
    def consume_message(self, shard: Shard, store: StoreT, envelope: Envelope, publisher: Publisher) -> None:
        """Take a committed message into the state.

        The application may publish messages, uncommitted, which count when this transaction does; append raw
        bytes by ``shard.append_service``; and keep anything in memory until :meth:`finalize_txn`.
        Acknowledgements are messages too: skip them by their UUID's flags if they hold nothing.

        Raises:
            DeferToNextTransaction: the message is to begin the next transaction.
        """

    @abstractmethod
    def finalize_txn(self, shard: Shard, store: StoreT, publisher: Publisher) -> None:
        """Move what is in memory into the store, and publish all remaining messages.

        Appends only need to have begun.
        """


@runtime_checkable
class BeginFinisher(Protocol):
    """Methods an application may have, both or none. Each ``begin_txn`` is followed by one ``finish_txn``."""

    def begin_txn(self, shard: Shard, store: Any) -> None:  # noqa: ANN401  # The application's.
        """Prepare a transaction, whose first message comes next. May block, e.g. to let few run at a time."""

    def finish_txn(self, shard: Shard, store: Any, commit: Future[None]) -> None:  # noqa: ANN401
        """Release what ``begin_txn`` took: the transaction starts to commit, or has failed.

        Args:
            shard: The transaction's.
            store: Its store.
            commit: May be waited for by another thread, or be given a callback. Where the transaction failed
                before its commit it has ended with that error. On Spark the commit is the driver's, and comes
                later: there the future has always ended, with the result of the task's part.
        """


@runtime_checkable
class KeyedApplication(Protocol):
    """A method an application may have, if a message changes the state of one key and of no other.

    Its store is ``shard.json_store(initial={})``, whose document has an entry for each key. On Spark a
    shard's keys are spread over tasks then. A task gets the entry of one key at a time, as a document of that
    entry alone; it calls ``finalize_txn`` for each key, and leaves out acknowledgements. The local host does
    not call it.
    """

    def key_of(self, envelope: Envelope) -> str:
        """Return the key whose entry the message may change."""


@dataclass(slots=True)
class ResolveArgs:
    """A request for a shard, and what has to be true before it is answered."""

    shard_id: str
    may_see: Callable[[pc.ShardSpec], bool] = lambda _: True
    """Whether the caller's claims cover the shard; if not, it does not exist for the caller."""
    may_proxy: bool = True
    """False if another process has passed the request on already."""
    proxy_header: pb.Header | None = None
    """Header of that process, whose revision has to be reached first."""
    read_through: Mapping[str, int] = field(default_factory=dict)
    """Offsets that have to be read through. Offset 0, and journals that the shard does not read, are
    ignored.
    """
    timeout_s: float | None = None
    """Seconds to wait; None: no limit."""
    cancelled: Future[None] | None = None
    """Ends when the caller has gone away."""


@dataclass(slots=True)
class Resolution:
    """Where a shard is served. As a context manager it holds the shard's store open until the end."""

    status: pc.Status
    """OK, SHARD_NOT_FOUND, NO_SHARD_PRIMARY, NOT_SHARD_PRIMARY or SHARD_STOPPED."""
    header: pb.Header
    """Names the primary if the status is OK, else the process that answers."""
    spec: pc.ShardSpec | None = None
    shard: Shard | None = None
    """None unless this process is the shard's primary."""
    store: Any = None
    """None unless this process is the primary, or if a host has no store to show."""
    release: Callable[[], None] = lambda: None
    """Ends the use of the store; called once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


class ShardListing(NamedTuple):
    """All shards of a host at one revision."""

    header: pb.Header
    """Without a route: names the answering process, and the revision."""
    shards: list[pc.ListResponse.Shard]
    """Ascending by id: spec, revisions, route, and one status for each member of the route."""


class ShardHost(Protocol):
    """Interface of a host that the service ``consumer.Shard`` uses. Thread-safe.

    The service validates requests, and checks what a caller may do, before it calls these.
    """

    def list_shards(self) -> ShardListing:
        """Return all shards; the caller selects."""

    def apply(self, changes: Sequence[pc.ApplyRequest.Change]) -> pc.ApplyResponse:
        """Make all changes or, with status ETCD_TRANSACTION_FAILED, none: a revision is not as expected.

        A shard that is FAILED starts again when its spec is put. ``primary_hints`` are stored with it.
        """

    def resolve(self, args: ResolveArgs) -> Resolution:
        """Return where a shard is served, when its store is open and the offsets are read through.

        Raises:
            TimeoutError: it took too long, or the caller has gone away.
            ProtocolError: ``proxy_header`` is of another cluster, or was meant for another process.
        """

    def hints(self, shard_id: str) -> pc.GetHintsResponse:
        """Return the hints of a shard's recovery log; status SHARD_NOT_FOUND if there is no such shard."""

    def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> pc.UnassignResponse:
        """End assignments, so that the shards start again: those that FAILED, and primaries.

        Args:
            shard_ids: Unknown ones are left out of the response.
            only_failed: Leave primaries that have not failed.
            dry_run: Change nothing, only return the shards.
        """


@dataclass(slots=True)
class JsonMessage:
    """A JSON object; its UUID is at ``/_meta/uuid``, and an acknowledgement holds nothing else."""

    fields: dict[str, Any] = field(default_factory=dict)
    """All members except ``_meta``."""
    stamp: uuid.UUID = NIL_UUID

    @classmethod
    def parse(cls, spec: pb.JournalSpec, record: bytes) -> JsonMessage:
        """Return the message of a record: an application's ``new_message``.

        Raises:
            MessageError: the record is not a JSON object, or its UUID is invalid.
        """
        try:
            fields = json.loads(record)
            meta = fields.pop("_meta", None) or {}
            return cls(fields, uuid.UUID(meta["uuid"]) if meta.get("uuid") else NIL_UUID)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            problem = f"{record[:80]!r} is not a JSON object with a UUID at /_meta/uuid: {error}"
            raise MessageError(f"journal {spec.name!r}: {problem}") from error

    @property
    def is_acknowledgement(self) -> bool:
        """Whether the message only commits others."""
        return split_uuid(self.stamp)[2] == ACK_TXN

    def get_uuid(self) -> uuid.UUID:
        """Return the UUID."""
        return self.stamp

    def set_uuid(self, stamp: uuid.UUID) -> None:
        """Change the UUID."""
        self.stamp = stamp

    def new_acknowledgement(self, journal: str) -> JsonMessage:  # noqa: ARG002  # The same in every journal.
        """Return a message that has only a UUID."""
        return JsonMessage()

    def __bytes__(self) -> bytes:
        document = {"_meta": {"uuid": str(self.stamp)}, **self.fields}
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
