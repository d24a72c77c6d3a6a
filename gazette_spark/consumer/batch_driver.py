"""Runs the transactions of the host on Spark: plan, run, commit, acknowledge. This module does not use Spark.

The order makes each message count once:

1. Plan: read the write heads, and decide what to read from each shard's checkpoint on.
2. Run: tasks read and consume, publish uncommitted messages with producers that no other attempt has, and
   wait until these are appended.
3. Commit: state, checkpoints and intents are committed to the state table, unless another host has opened it.
4. Acknowledge: the intents are appended, and then progress moves.

========================================  ================================================================
a crash                                   what the next start finds
========================================  ================================================================
before the commit                         the checkpoints from which it reads on; messages that will never
                                          be acknowledged
after it, before all acknowledgements     the intents, in the newest checkpoints: they are appended first
========================================  ================================================================

A :class:`BatchEngine` does what needs Spark: it runs the tasks and writes the table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gazette_spark.client import Client
from gazette_spark.client._read.heads import SettledHead
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
from gazette_spark.errors import JournalNotFoundError, ShardFailedError
from gazette_spark.failpoints import failpoint
from gazette_spark.message.publisher import append_ack_intents
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import split_meta
from gazette_spark.protocol.labels import label_set

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """The contents of a state table when it was opened."""

    checkpoints: Mapping[str, pc.Checkpoint]
    newest: frozenset[str]
    """Shards of the newest transaction, whose intents may not be appended yet."""


@dataclass(frozen=True, slots=True)
class SourceJournals:
    """The existing journals that shards read."""

    heads: Mapping[str, int]
    """Write heads, by source."""
    doubts: Mapping[str, str]
    """Reason why no broker confirmed a head below a shard's offset, by source."""
    specs: JournalSpecs


class Results(Protocol):
    """Rows that the tasks of a micro-batch returned, from one attempt of each task."""

    def summary(self) -> Iterable[Result]:
        """Return all rows except those of state."""


R = TypeVar("R", bound=Results)


class BatchEngine(Protocol[R]):
    """Runs tasks, and writes the state table."""

    def open(self) -> Opened:
        """Fence off every other host that has opened the table, and return its contents."""

    def run(self, planned: Plan, specs: Mapping[str, pc.ShardSpec], sources: JournalSpecs) -> R:
        """Run the tasks of a micro-batch, for shards with these specs that read these journals."""

    def commit(self, results: R, checkpoints: Mapping[str, pc.Checkpoint]) -> None:
        """Commit checkpoints together with the changed state of their shards, or raise an error."""


class BatchDriver:
    """Runs transactions, one at a time, in one thread."""

    def __init__(self, shards: SparkShards, client: Client, max_batch_bytes: int) -> None:
        self._shards = shards
        self._client = client
        self._max_batch_bytes = max_batch_bytes
        self._paces: dict[str, float] = {}
        """Bytes per second, by shard."""

    def open(self, engine: BatchEngine[R]) -> None:
        """Open the state table, and finish its newest transaction."""
        opened = engine.open()
        failpoint("micro_batch.opened")
        # Append only the intents of the newest transaction: each earlier one appended its intents before the
        # next was planned.
        append_ack_intents(self._client, intents_of(opened.checkpoints[shard] for shard in opened.newest))
        self._shards.opened(opened.checkpoints)

    def drain(self, engine: BatchEngine[R]) -> None:
        """Run transactions until everything that exists now has been read."""
        journals = self._journals(
            [shard.spec for shard in self._shards.running()], self._shards.checkpoints()
        )
        while self.transaction(engine, journals):
            pass

    def transaction(self, engine: BatchEngine[R], journals: SourceJournals | None = None) -> bool:
        """Run one transaction up to the given or current write heads; return whether a shard advanced."""
        # Plan. Everything that decides what is read is fixed here, on the driver, so a task that runs again
        # reads the same messages.
        shards, before = self._shards.running(), self._shards.checkpoints()
        specs = [shard.spec for shard in shards]
        journals = journals or self._journals(specs, before)
        limits = {
            spec.id: batch_bytes(spec, self._paces.get(spec.id), self._max_batch_bytes) for spec in specs
        }
        planned = plan(specs, before, journals.heads, limits, journals.doubts)
        if not planned.reads:
            _fail(shards, planned.failures)
            return False
        failpoint("micro_batch.planned")

        # Run. When the tasks are done, everything that they published is durable but not acknowledged. A
        # crash here leaves messages that readers never deliver, and the next host reads the same input again.
        began_s, planned_shards = time.monotonic(), planned.journals
        names = {split_meta(read.journal)[0] for read in planned.reads}
        results = engine.run(
            planned,
            {spec.id: spec for spec in specs if spec.id in planned_shards},
            {name: journals.specs[name] for name in names},
        )
        settled = settle(planned, before, results.summary())
        ran_s = time.monotonic() - began_s
        failpoint("micro_batch.run")

        if settled.checkpoints:
            # Commit state, checkpoints and intents together. After this, the messages count, and the next
            # host that opens the table appends the intents before it reads. A fenced host fails here.
            engine.commit(results, settled.checkpoints)
            failpoint("micro_batch.committed")
            # Acknowledge what the tasks published. After a crash during these appends, the next host appends
            # all of them again, byte for byte, and readers drop the copies.
            ends = append_ack_intents(self._client, settled.intents)
            failpoint("micro_batch.acknowledged")
            # Move progress last, because a caller that waits for it may then read what the shards have
            # published.
            self._shards.committed(settled.checkpoints, ends)
            self._paces.update(settled.paces)
        log.info(
            "consumer.transaction shards=%d failed=%d reads=%d intents=%d run_s=%.3f commit_s=%.3f",
            *(len(settled.checkpoints), len(settled.failures), len(planned.reads), len(settled.intents)),
            *(ran_s, time.monotonic() - began_s - ran_s),
        )
        _fail(shards, settled.failures)
        return bool(settled.checkpoints)

    def _journals(
        self, specs: Sequence[pc.ShardSpec], checkpoints: Mapping[str, pc.Checkpoint]
    ) -> SourceJournals:
        """Return specs and write heads of the shards' existing sources."""
        sources = sorted({source.journal for spec in specs for source in spec.sources})
        names = sorted({split_meta(source)[0] for source in sources})
        if not names:
            return SourceJournals({}, {}, {})
        listing = self._client.list_journals(pb.LabelSelector(include=label_set({"name": names})))
        journal_specs = {listed.spec.name: listed.spec for listed in listing}
        # A head below what a shard has read means lost bytes or a broker that is behind. The client checks
        # again before reporting it.
        offsets = {source: 0 for source in sources if split_meta(source)[0] in journal_specs}
        for spec in specs:
            for journal, offset in read_through(checkpoints.get(spec.id, pc.Checkpoint())).items():
                if journal in offsets:
                    offsets[journal] = max(offsets[journal], offset)
        heads: dict[str, SettledHead] | None = None
        while heads is None:
            try:
                heads = self._client.settled_heads(offsets)
            except JournalNotFoundError as error:  # It was deleted after the listing.
                gone = split_meta(error.journal)[0]
                offsets = {source: at for source, at in offsets.items() if split_meta(source)[0] != gone}
        return SourceJournals(
            {name: head.write_head for name, head in heads.items()},
            {name: head.doubt for name, head in heads.items()},
            journal_specs,
        )


def _fail(shards: Iterable[SparkShard], failures: Mapping[str, ShardFailedError]) -> None:
    """End the assignments for which a micro-batch was planned; later assignments begin again."""
    for shard in shards:
        if shard.spec.id in failures:
            error = failures[shard.spec.id]
            log.error("consumer.shard_failed error=%s", error)
            shard.fail(error)
