"""The transactions of the host on Spark: plan, run, commit, acknowledge. No Spark in here.

The order makes each message count once:

1. Plan: read the write heads; from each shard's checkpoint on, there is so much to read.
2. Run: tasks read and consume, publish uncommitted under producers that no other attempt has, and wait until
   that is appended.
3. Commit: the state table takes state, checkpoints and intents, unless another host has opened it.
4. Acknowledge: the intents are appended, then progress moves.

========================================  ================================================================
a crash                                   what the next start finds
========================================  ================================================================
before the commit                         the checkpoints it reads on from; messages that nobody will ever
                                          acknowledge
after it, before all acknowledgements     the intents, in the newest checkpoints: they are appended first
========================================  ================================================================

An :class:`Engine` does what takes Spark: it runs the tasks, and keeps the table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gazette_spark.client import Client
from gazette_spark.consumer.checkpoints import read_through
from gazette_spark.consumer.micro_batch import (
    JournalSpecs,
    Plan,
    Result,
    batch_bytes,
    intents_of,
    plan,
    settle,
)
from gazette_spark.consumer.spark_shards import SparkShard, SparkShards
from gazette_spark.errors import ShardFailedError
from gazette_spark.failpoints import failpoint
from gazette_spark.message.publisher import append_ack_intents
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import split_meta
from gazette_spark.protocol.labels import label_set

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """What an opened state table holds of the shards."""

    checkpoints: Mapping[str, pc.Checkpoint]
    newest: frozenset[str]
    """Shards of the newest transaction: their intents may not be appended yet."""


@dataclass(frozen=True, slots=True)
class Journals:
    """What is known of the journals that shards read; none but those that exist."""

    heads: Mapping[str, int]
    """Write heads, by source."""
    doubts: Mapping[str, str]
    """Why no broker confirmed a head below a shard's offset, by source."""
    specs: JournalSpecs


class Results(Protocol):
    """Rows that the tasks of a micro-batch returned, those of one attempt of each task."""

    def summary(self) -> Iterable[Result]:
        """Return all rows but those of state."""


R = TypeVar("R", bound=Results)


class Engine(Protocol[R]):
    """Runs tasks, and keeps the state table."""

    def open(self) -> Opened:
        """Fence off every host that has opened the table, and return what it holds."""

    def run(self, planned: Plan, specs: Mapping[str, pc.ShardSpec], sources: JournalSpecs) -> R:
        """Run the tasks of a micro-batch, for shards of these specs that read these journals."""

    def commit(self, results: R, checkpoints: Mapping[str, pc.Checkpoint]) -> None:
        """Commit checkpoints, and the changed state of their shards, or fail."""


class BatchDriver:
    """Runs transactions, one at a time, in one thread."""

    def __init__(self, shards: SparkShards, client: Client, max_batch_bytes: int) -> None:
        self._shards = shards
        self._client = client
        self._max_batch_bytes = max_batch_bytes
        self._paces: dict[str, float] = {}
        """Bytes a second, by shard."""

    def open(self, engine: Engine[R]) -> None:
        """Open the state table, and finish the transaction that it holds."""
        opened = engine.open()
        failpoint("micro_batch.opened")
        append_ack_intents(self._client, intents_of(opened.checkpoints[shard] for shard in opened.newest))
        self._shards.opened(opened.checkpoints)

    def drain(self, engine: Engine[R]) -> None:
        """Run transactions until all is read that there is now."""
        journals = self._journals(
            [shard.spec for shard in self._shards.running()], self._shards.checkpoints()
        )
        while self.transaction(engine, journals):
            pass

    def transaction(self, engine: Engine[R], journals: Journals | None = None) -> bool:
        """Run one transaction, up to the given or the present write heads; say whether it got any further."""
        shards, before = self._shards.running(), self._shards.checkpoints()
        specs = [shard.spec for shard in shards]
        journals = journals or self._journals(specs, before)
        limits = {s.id: batch_bytes(s, self._paces.get(s.id), self._max_batch_bytes) for s in specs}
        planned = plan(specs, before, journals.heads, limits, journals.doubts)
        if not planned.reads:
            _fail(shards, planned.failures)
            return False
        failpoint("micro_batch.planned")
        began, wanted = time.monotonic(), planned.journals
        names = {split_meta(read.journal)[0] for read in planned.reads}
        sources = {name: journals.specs[name] for name in names}
        results = engine.run(planned, {spec.id: spec for spec in specs if spec.id in wanted}, sources)
        settled = settle(planned, before, results.summary())
        ran_s = time.monotonic() - began
        failpoint("micro_batch.run")
        if settled.checkpoints:
            engine.commit(results, settled.checkpoints)
            failpoint("micro_batch.committed")
            ends = append_ack_intents(self._client, settled.intents)
            failpoint("micro_batch.acknowledged")
            self._shards.committed(settled.checkpoints, ends)
            self._paces.update(settled.paces)
        log.info(
            "consumer.transaction shards=%d failed=%d reads=%d intents=%d run_s=%.3f commit_s=%.3f",
            *(len(settled.checkpoints), len(settled.failures), len(planned.reads), len(settled.intents)),
            *(ran_s, time.monotonic() - began - ran_s),
        )
        _fail(shards, settled.failures)
        return bool(settled.checkpoints)

    def _journals(self, specs: Sequence[pc.ShardSpec], checkpoints: Mapping[str, pc.Checkpoint]) -> Journals:
        """Look at the shards' sources."""
        sources = sorted({source.journal for spec in specs for source in spec.sources})
        names = sorted({split_meta(source)[0] for source in sources})
        if not names:
            return Journals({}, {}, {})
        listed = self._client.list_journals(pb.LabelSelector(include=label_set({"name": names})))
        found = {each.spec.name: each.spec for each in listed}
        reached = {source: 0 for source in sources if split_meta(source)[0] in found}
        for spec in specs:
            for journal, offset in read_through(checkpoints.get(spec.id, pc.Checkpoint())).items():
                if journal in reached:
                    reached[journal] = max(reached[journal], offset)
        settled = self._client.settled_heads(reached)
        heads = {name: each.write_head for name, each in settled.items()}
        return Journals(heads, {name: each.doubt for name, each in settled.items()}, found)


def _fail(shards: Iterable[SparkShard], failures: Mapping[str, ShardFailedError]) -> None:
    """End the assignments that a micro-batch was planned for; later ones begin again."""
    for shard in shards:
        if shard.spec.id in failures:
            error = failures[shard.spec.id]
            log.error("consumer.shard_failed error=%s", error)
            shard.fail(error)
