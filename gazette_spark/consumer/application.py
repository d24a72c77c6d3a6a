"""Defines the interfaces of the consumer framework: what an application implements, and what a host provides.

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

Transactions overlap: the next one consumes messages while ``commit`` is in progress, but does not start to
commit before the previous commit and its acknowledgements are done. The order makes each message count once:
messages that a transaction published are durable before its commit, state and checkpoint are committed
together, and published messages are acknowledged after the commit.

An exception of the application or its store ends the shard, whose status is then FAILED with the exception's
text. The host starts the shard again after a delay, unless the exception is a
:class:`~gazette_spark.errors.PermanentError`: then it stays FAILED until an operator unassigns it or applies
its spec. The other shards continue.
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
    """Raised by ``consume_message`` to end the transaction before the message, which the next one consumes.

    Raising it for the first message of a transaction is an error, because a transaction must not be empty.
    """


class Progress(NamedTuple):
    """How far a shard has come, as of the newest transaction that is committed and acknowledged."""

    read_through: dict[str, int]
    """Offset up to which the messages of each source journal are in the state; 0 if none are."""
    publish_at: dict[str, int]
    """End of the newest acknowledgement that this assignment of the shard has appended, by journal.

    Everything that the shard published because of messages within ``read_through`` is before this offset.
    Journals to which only an earlier assignment has published are left out.
    """


class Store(Protocol):
    """Stores a shard's state, and the checkpoint that produced the state.

    A store is used by one thread at a time, but its commit continues in the background while the application
    changes the state for the next transaction.
    """

    def restore_checkpoint(self) -> pc.Checkpoint:
        """Return the newest committed checkpoint, or an empty one.

        After that, no older store of the same shard can commit, in any process.
        """

    def start_commit(self, checkpoint: pc.Checkpoint, wait_for: Iterable[OpFuture]) -> Future[None]:
        """Begin to commit the current state together with the checkpoint.

        Nothing may be committed before all of ``wait_for`` have succeeded. If one of them fails, or if
        another store has restored the checkpoint since this one did, the commit must fail. The host does not
        call this again before the future has ended. A future that has already failed ends the shard
        immediately.

        Args:
            checkpoint: The checkpoint. The host may change it after the call has returned, so serialize it.
            wait_for: Appends on which the checkpoint relies.
        """

    def destroy(self) -> None:
        """Release files and connections. The store is not used after that. What was committed remains."""


StoreT = TypeVar("StoreT", bound=Store)
"""Type of an application's store."""


class JsonStore(Store, Protocol):
    """A store whose state is one document of JSON values; see :meth:`Shard.json_store`."""

    state: Any
    """The document, which the application changes in place. Its value after ``finalize_txn`` has returned is
    committed."""


class Shard(Protocol):
    """A shard that runs in this process. Any thread may read its properties."""

    @property
    def spec(self) -> pc.ShardSpec:
        """The current spec. The message object never changes: a new spec is another object."""

    @property
    def fqn(self) -> str:
        """Fully qualified name, the key of the spec, which no shard of another application has."""

    @property
    def client(self) -> Client:
        """Client of the brokers, for reads and lists."""

    @property
    def append_service(self) -> AsyncJournalClient:
        """Appends raw bytes at least once. The transaction that begins an append waits for it.

        Each shard has one, which its publisher and its recorder also use.
        """

    @property
    def recovered_hints(self) -> pc.GetHintsResponse | None:
        """Hints with which the recovery log was played; None if the shard's spec names no log."""

    @property
    def recorder(self) -> Recorder | None:
        """Recorder of the shard's recovery log, for a store; None if the spec names no log."""

    def json_store(self, initial: object = None) -> JsonStore:
        """Return a store for one JSON document, of the kind that the host supports.

        Args:
            initial: The document if none is stored yet. This object is not changed.
        """

    def progress(self) -> Progress:
        """Return how far the shard has come, as a copy."""

    @property
    def primary_loop(self) -> Future[None]:
        """Future that ends with the shard's transactions: with their error, or with None after a stop."""

    @property
    def stopping(self) -> threading.Event:
        """Set when the shard is to stop. Calls that block within the application should return then."""


class Application(ABC, Generic[StoreT]):
    """What shards do with their messages. One object serves all shards of a host, in their threads.

    Raise an error only if the shard cannot continue, and a :class:`~gazette_spark.errors.PermanentError` if
    it would fail again.
    """

    @abstractmethod
    def new_store(self, shard: Shard) -> StoreT:
        """Return the shard's store, such as ``shard.json_store(initial={})``; called once per assignment."""

    @abstractmethod
    def new_message(self, spec: pb.JournalSpec, record: bytes) -> Message:
        """Return the message of a record, or raise ValueError if its bytes are not a message.

        This is called by threads that read ahead.
        """

    @abstractmethod
    def consume_message(self, shard: Shard, store: StoreT, envelope: Envelope, publisher: Publisher) -> None:
        """Apply a committed message to the state.

        The application may publish uncommitted messages, which count when this transaction is committed. It
        may append raw bytes with ``shard.append_service``, and keep anything in memory until
        :meth:`finalize_txn`. Acknowledgements are also messages: if they contain nothing, skip them by the
        flags of their UUID.

        Raises:
            DeferToNextTransaction: the message should begin the next transaction.
        """

    @abstractmethod
    def finalize_txn(self, shard: Shard, store: StoreT, publisher: Publisher) -> None:
        """Move everything in memory into the store, and publish all remaining messages.

        Appends need not be finished when this returns.
        """


@runtime_checkable
class BeginFinisher(Protocol):
    """Optional methods of an application, both or none. One ``finish_txn`` follows each ``begin_txn``."""

    def begin_txn(self, shard: Shard, store: Any) -> None:  # noqa: ANN401  # The application's.
        """Prepare a transaction, whose first message comes next. It may block, to limit concurrency."""

    def finish_txn(self, shard: Shard, store: Any, commit: Future[None]) -> None:  # noqa: ANN401
        """Release what ``begin_txn`` has taken: the transaction starts to commit, or has failed.

        Args:
            shard: The transaction's shard.
            store: The shard's store.
            commit: The commit. Another thread may wait for it, or it may get a callback. If the transaction
                failed before its commit, this future has ended with that error. On Spark, the driver commits
                later: there the future has always ended, with the result of the task's part.
        """


@runtime_checkable
class KeyedApplication(Protocol):
    """Optional method of an application in which each message changes the state of one key only.

    The store is ``shard.json_store(initial={})``, whose document has an entry for each key. On Spark, a
    shard's keys are then distributed among tasks. A task gets the entry of one key at a time, as a document
    with that entry alone. It calls ``finalize_txn`` for each key, and leaves out acknowledgements. The local
    host does not call this method.
    """

    def key_of(self, envelope: Envelope) -> str:
        """Return the key whose entry the message may change."""


@dataclass(slots=True)
class ResolveArgs:
    """A request for a shard, and the conditions for answering it."""

    shard_id: str
    may_see: Callable[[pc.ShardSpec], bool] = lambda _: True
    """Whether the caller's claims cover the shard. If not, the shard does not exist to the caller."""
    may_proxy: bool = True
    """False if another process has already passed the request on."""
    proxy_header: pb.Header | None = None
    """Header of that process, whose revision has to be reached first."""
    read_through: Mapping[str, int] = field(default_factory=dict)
    """Offsets up to which the shard must have read, by journal. Offset 0, and journals that the shard does
    not read, are ignored.
    """
    timeout_s: float | None = None
    """Seconds to wait; None for no limit."""
    cancelled: Future[None] | None = None
    """Future that ends when the caller has gone away."""


@dataclass(slots=True)
class Resolution:
    """Where a shard is served. As a context manager, it keeps the shard's store open."""

    status: pc.Status
    """OK, SHARD_NOT_FOUND, NO_SHARD_PRIMARY, NOT_SHARD_PRIMARY or SHARD_STOPPED."""
    header: pb.Header
    """Names the primary if the status is OK, otherwise the process that answers."""
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
    """Interface of a host for the service ``consumer.Shard``. Thread-safe.

    The service validates requests and checks the caller's claims before it calls these methods.
    """

    def list_shards(self) -> ShardListing:
        """Return all shards, from which the caller selects."""

    def apply(self, changes: Sequence[pc.ApplyRequest.Change]) -> pc.ApplyResponse:
        """Make all changes; or none, with status ETCD_TRANSACTION_FAILED, if a revision is not as expected.

        A shard that is FAILED starts again when its spec is put. ``primary_hints`` are stored with the spec.
        """

    def resolve(self, args: ResolveArgs) -> Resolution:
        """Return where a shard is served, after its store is open and it has read through the offsets.

        Raises:
            TimeoutError: this took too long, or the caller has gone away.
            ProtocolError: ``proxy_header`` names another cluster or another process.
        """

    def hints(self, shard_id: str) -> pc.GetHintsResponse:
        """Return the hints of a shard's recovery log; status SHARD_NOT_FOUND if there is no such shard."""

    def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> pc.UnassignResponse:
        """End the assignments of primaries and of FAILED replicas, so that the shards start again.

        Args:
            shard_ids: Ids of the shards. Unknown ones are left out of the response.
            only_failed: Whether to leave alone primaries that have not failed.
            dry_run: Whether to change nothing and only return the shards.
        """


@dataclass(slots=True)
class JsonMessage:
    """A JSON object with its UUID at ``/_meta/uuid``. An acknowledgement contains nothing else."""

    fields: dict[str, Any] = field(default_factory=dict)
    """All members except ``_meta``."""
    stamp: uuid.UUID = NIL_UUID

    @classmethod
    def parse(cls, spec: pb.JournalSpec, record: bytes) -> JsonMessage:
        """Return the message of a record; use it as an application's ``new_message``.

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
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        # A record may escape half of a surrogate pair, which UTF-8 cannot represent. It is escaped again.
        return text.encode(errors="backslashreplace")
