"""A host whose shards do no work: a test sets their progress and their failures."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, cast

from gazette_spark._server.identity import BrokerIdentity
from gazette_spark._server.topology import Member
from gazette_spark.consumer import Progress
from gazette_spark.consumer.assignments import Lifecycle
from gazette_spark.consumer.resolver import RunningShard, ShardTable
from gazette_spark.consumer.transaction import TransactionCounts
from gazette_spark.protocol import consumer_pb2 as pc


class StillShard:
    """One assignment, which is PRIMARY from the start."""

    def __init__(self, spec: pc.ShardSpec) -> None:
        self.spec = spec
        self.store_ready: Future[Any] = Future()
        self.store_ready.set_result(None)
        self.primary_loop: Future[None] = Future()
        self.progress_changed: Future[None] = Future()
        self.counts = TransactionCounts()
        self.fqn = f"/still/{spec.id}"
        self._lifecycle = Lifecycle()
        for code in (pc.ReplicaStatus.STANDBY, pc.ReplicaStatus.PRIMARY):
            self._lifecycle.become(code)
        self._lock = threading.Lock()
        self._progress = Progress({each.journal: 0 for each in spec.sources}, {})

    @property
    def status(self) -> pc.ReplicaStatus:
        return self._lifecycle.status

    def progress(self) -> Progress:
        with self._lock:
            return Progress(dict(self._progress.read_through), dict(self._progress.publish_at))

    def move(self, read_through: Mapping[str, int], publish_at: Mapping[str, int]) -> None:
        with self._lock:
            self._progress.read_through.update(read_through)
            self._progress.publish_at.update(publish_at)
            changed, self.progress_changed = self.progress_changed, Future()
        changed.set_result(None)

    def fail(self, error: Exception) -> None:
        self._lifecycle.fail(error)
        self.stop()

    def put_spec(self, spec: pc.ShardSpec) -> None:
        self.spec = spec

    def hold(self) -> bool:
        """Permit access to the store, which nothing destroys."""
        return True

    def release(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        if not self.primary_loop.done():
            self.primary_loop.set_result(None)


class StillHost(ShardTable):
    def __init__(self, endpoint: str) -> None:
        identity = BrokerIdentity(17, Member("local", "consumer", endpoint))
        self.shards: dict[str, StillShard] = {}
        """Newest assignment of each shard."""
        super().__init__(identity, self._start_still, {})

    def _start_still(self, spec: pc.ShardSpec, _after: RunningShard | None) -> RunningShard:
        self.shards[spec.id] = StillShard(spec)
        return cast(RunningShard, self.shards[spec.id])

    def move(
        self, shard_id: str, read_through: Mapping[str, int], publish_at: Mapping[str, int] | None = None
    ) -> None:
        self.shards[shard_id].move(read_through, publish_at or {})

    def fail(self, shard_id: str, error: str) -> None:
        self.shards[shard_id].fail(ValueError(error))
