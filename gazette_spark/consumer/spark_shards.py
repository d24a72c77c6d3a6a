"""Keeps the shards of the host on Spark, as its driver sees them: specs, statuses, progress.

This module does not use Spark. The query gets the shards of a micro-batch from :meth:`SparkShards.running`
and reports the results. :attr:`SparkShards.table` serves all other requests, from any thread. The driver is
the member of every shard, because Spark may run a shard's tasks on another executor in each batch.

Specs that are applied last as long as the query. The next query begins with its own arguments.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn

from gazette_spark._server.identity import BrokerIdentity
from gazette_spark._server.topology import Member
from gazette_spark.client.client import Client
from gazette_spark.consumer.application import Progress
from gazette_spark.consumer.assignments import Lifecycle
from gazette_spark.consumer.checkpoints import read_through
from gazette_spark.consumer.resolver import RunningShard, ShardTable
from gazette_spark.consumer.specs import validate_shard_spec
from gazette_spark.consumer.transaction import TransactionCounts
from gazette_spark.errors import ClosedError, OptionError, ShardFailedError
from gazette_spark.protocol import consumer_pb2 as pc

ELSEWHERE = "on Spark, its store and its appends are in tasks, and the driver has only its progress"


class SparkShard:
    """An assignment of a shard to the driver; a :class:`~gazette_spark.consumer.resolver.RunningShard`."""

    def __init__(self, spec: pc.ShardSpec, fqn: str, client: Client) -> None:
        self.spec = spec
        self.fqn = fqn
        self.client = client
        self.recovered_hints: pc.GetHintsResponse | None = None
        self.recorder: None = None
        self.stopping = threading.Event()
        self.primary_loop: Future[None] = Future()
        self.store_ready: Future[Any] = Future()
        """Future that ends with None, because callers get no store."""
        self.progress_changed: Future[None] = Future()
        self._lifecycle = Lifecycle()
        self._progress = Progress({source.journal: 0 for source in spec.sources}, {})
        self.counts = TransactionCounts()
        """Nothing is counted, because this host serves no metrics."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"SparkShard({self.fqn!r}, {self._lifecycle})"

    @property
    def status(self) -> pc.ReplicaStatus:
        """Status of the assignment."""
        return self._lifecycle.status

    @property
    def runs(self) -> bool:
        """Whether the shard takes part in the next micro-batch."""
        return self.store_ready.done() and not self.primary_loop.done()

    @property
    def append_service(self) -> NoReturn:
        """Not supported here, because appends are made in tasks.

        Raises:
            ClosedError: always.
        """
        raise ClosedError(f"shard {self.fqn!r}", ELSEWHERE)

    def json_store(self, initial: object = None) -> NoReturn:  # noqa: ARG002 - a shard's.
        """Not supported here, because stores are made in tasks.

        Raises:
            ClosedError: always.
        """
        raise ClosedError(f"shard {self.fqn!r}", ELSEWHERE)

    def progress(self) -> Progress:
        """Return how far the shard has come."""
        with self._lock:
            return Progress(dict(self._progress.read_through), dict(self._progress.publish_at))

    def open(self, checkpoint: pc.Checkpoint) -> None:
        """Continue from a checkpoint."""
        if self.primary_loop.done():
            return
        # There is no log to play and no store to open, so it becomes primary immediately. The lifecycle
        # requires the states in between.
        self._lifecycle.become(pc.ReplicaStatus.STANDBY)
        self._lifecycle.become(pc.ReplicaStatus.PRIMARY)
        self.advance(checkpoint, {})
        self.store_ready.set_result(None)

    def advance(self, checkpoint: pc.Checkpoint, ends: Mapping[str, int | None]) -> None:
        """Report that a checkpoint is committed, and acknowledged up to ``ends``, by journal."""
        with self._lock:
            self._progress.read_through.update(read_through(checkpoint))
            # Use only journals to which this shard published: the ends are those of all shards in the batch.
            appended = ((journal, ends.get(journal)) for journal in checkpoint.ack_intents)
            self._progress.publish_at.update({name: end for name, end in appended if end is not None})
            changed, self.progress_changed = self.progress_changed, Future()
        # Do this outside the lock, because callbacks may read the progress.
        changed.set_result(None)

    def fail(self, error: ShardFailedError) -> None:
        """End with an error."""
        self._lifecycle.fail(error)
        self._end(error)

    def put_spec(self, spec: pc.ShardSpec) -> None:
        """Use another spec from the next micro-batch on."""
        self.spec = spec

    def hold(self) -> bool:
        """There is no store to keep."""
        return True

    def release(self) -> None:
        """There is no store to keep."""

    def drain(self) -> None:
        """End. What was consumed is already committed."""
        self.stop()

    def stop(self) -> None:
        """End. A running micro-batch may still commit what it consumed for the shard."""
        self._end(None)

    def join(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002 - a shard's.
        """Return whether the assignment has ended. It does nothing in the background."""
        return self.primary_loop.done()

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            if self.primary_loop.done():
                return
            self.stopping.set()
            if error is None:
                self.primary_loop.set_result(None)
            else:
                self.primary_loop.set_exception(error)


class SparkShards:
    """The shards of one host. Thread-safe."""

    def __init__(self, name: str, specs: Iterable[pc.ShardSpec], client: Client) -> None:
        """Begin with these shards.

        Args:
            name: Prefix of the shards' full names.
            specs: Specs of the shards.
            client: Client of the brokers, for callers that resolve a shard.

        Raises:
            ProtocolError: a spec breaks a rule.
            OptionError: two specs have the same id.
        """
        specs = list(specs)
        for spec in specs:
            validate_shard_spec(spec)
        ids = sorted(spec.id for spec in specs)
        if len(set(ids)) < len(ids):
            raise OptionError("shards", repr(ids), "specs with different ids")
        self.name = name
        self._client = client
        self._checkpoints: dict[str, pc.Checkpoint] = {}
        self._is_open = False
        member = Member("spark", f"driver-{secrets.token_hex(4)}")
        identity = BrokerIdentity(secrets.randbits(63) | 1, member)
        self.table = ShardTable(identity, self._start, {})
        """Table that lists, applies, resolves and unassigns the shards. It is a ``ShardHost``."""
        for spec in specs:
            self.table.apply([pc.ApplyRequest.Change(upsert=spec)])

    def __repr__(self) -> str:
        return f"SparkShards({self.table!r})"

    def opened(self, checkpoints: Mapping[str, pc.Checkpoint]) -> None:
        """Set the checkpoints of the state table. After this, shards run."""
        self._checkpoints = dict(checkpoints)
        self._is_open = True
        for shard in self.table.running():
            self._open(shard)

    def running(self) -> list[SparkShard]:
        """Return the shards that take part in the next micro-batch, by id."""
        return [shard for shard in self.table.running() if isinstance(shard, SparkShard) and shard.runs]

    def checkpoints(self) -> dict[str, pc.Checkpoint]:
        """Return the newest checkpoint of each shard that has one."""
        return dict(self._checkpoints)

    def committed(self, checkpoints: Mapping[str, pc.Checkpoint], ends: Mapping[str, int | None]) -> None:
        """Report a transaction that is committed and acknowledged.

        Args:
            checkpoints: New checkpoints, by shard.
            ends: End of the acknowledgements that were appended, by journal; None if the journal no longer
                exists.
        """
        self._checkpoints.update(checkpoints)
        for shard in self.running():
            if shard.spec.id in checkpoints:
                shard.advance(checkpoints[shard.spec.id], ends)

    def _start(self, spec: pc.ShardSpec, _after: RunningShard | None) -> SparkShard:
        shard = SparkShard(spec, f"{self.name}/{spec.id}", self._client)
        if self._is_open:
            self._open(shard)
        return shard

    def _open(self, shard: RunningShard) -> None:
        assert isinstance(shard, SparkShard)
        if not shard.store_ready.done():
            shard.open(self._checkpoints.get(shard.spec.id, pc.Checkpoint()))
