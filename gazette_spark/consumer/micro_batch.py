"""Plans a micro-batch of the host on Spark, and decides what its results commit. Pure.

As everywhere in Gazette, only a shard's checkpoint decides where the shard continues. So each micro-batch is
planned from the checkpoints, and a shard that failed, was added, or got another source catches up by the same
reads as all others. Shards at the same offset of a journal, with the same states of producers, share one read
of it.

Tasks return :class:`Result` rows. From them, :func:`settle` computes the checkpoints to commit and the
acknowledgements to append after that. It leaves out the shards that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from gazette_spark.consumer.checkpoints import ack_intents, start_offset
from gazette_spark.errors import ShardFailedError, SourceLossError
from gazette_spark.message.publisher import AckIntent
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb

LEAST_BATCH_BYTES = 1 << 20
"""Number of bytes of a journal that a micro-batch may read, however slow the application is."""

STATE, DOCUMENT, SOURCE, INTENT, PACE, FAILED = "state", "document", "source", "intent", "pace", "failed"
"""Kinds of result rows: two of state, see ``stores.delta``; the others are for the driver."""

JournalSpecs = Mapping[str, pb.JournalSpec]
"""Specs of journals, by name."""

CHECKPOINT = "checkpoint"
"""Kind of the rows in the state table that contain checkpoints."""


@dataclass(frozen=True, slots=True)
class JournalRead:
    """A read of a journal for the shards that are at the same offset in it."""

    journal: str
    begin: int
    until: int
    """Offset at which, or after which, the first message that is not read begins."""
    head: int
    """Write head of the journal when the batch was planned. No later bytes are read."""
    source: bytes
    """Serialized ``Checkpoint.Source`` with the states of producers."""
    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a micro-batch reads."""

    reads: tuple[JournalRead, ...] = ()
    failures: Mapping[str, ShardFailedError] = field(default_factory=dict)
    """Errors of shards that cannot continue. Nothing is read for them."""

    @property
    def journals(self) -> dict[str, set[str]]:
        """The journals that are read, by shard. Other shards have nothing to read."""
        journals: dict[str, set[str]] = {}
        for read in self.reads:
            for shard in read.shards:
                journals.setdefault(shard, set()).add(read.journal)
        return journals


class Result(NamedTuple):
    """A row that a task returns."""

    shard: str
    kind: str
    key: str
    """The key of state, the journal of a source or an intent, or the step of a failure."""
    value: str | None = None
    """JSON of state, the cause of a failure, or for a pace, the seconds of consuming."""
    data: bytes | None = None
    """The serialized ``Checkpoint.Source`` of a source, or the bytes of an intent."""
    deleted: bool = False
    """Whether to delete the state's row."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a micro-batch commits."""

    checkpoints: Mapping[str, pc.Checkpoint]
    """New checkpoints, by shard. Each contains the intents of this transaction."""
    failures: Mapping[str, ShardFailedError]
    """Errors of shards for which nothing is committed."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """Bytes of journals per second that a shard consumed, by shard."""

    @property
    def intents(self) -> list[AckIntent]:
        """The acknowledgements to append after the commit."""
        return intents_of(self.checkpoints.values())


def plan(
    specs: Iterable[pc.ShardSpec],
    checkpoints: Mapping[str, pc.Checkpoint],
    heads: Mapping[str, int],
    limits: Mapping[str, int],
    doubts: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Decide what a micro-batch reads.

    Args:
        specs: Specs of the shards to run.
        checkpoints: The newest checkpoint of each shard. A shard without one is new.
        heads: Write heads of the sources. A journal that is missing does not exist.
        limits: Number of bytes of a journal after which a shard's reads end with the next message, by shard.
        doubts: Reason why no broker confirmed a head below a shard's offset, by source.
    """
    failures: dict[str, ShardFailedError] = {}
    places: dict[tuple[str, int, bytes], list[str]] = {}
    for spec in specs:
        checkpoint = checkpoints.get(spec.id, pc.Checkpoint())
        for spec_source in spec.sources:
            journal = spec_source.journal
            source = checkpoint.sources.get(journal, pc.Checkpoint.Source())
            begin, head = start_offset(checkpoint, spec_source), heads.get(journal)
            # A missing journal ends the shard but not the batch, so the other shards continue.
            if head is None:
                problem = "it does not exist"
                failures[spec.id] = ShardFailedError(spec.id, f"reading journal {journal!r}", problem)
            # A spec's min_offset may be past the head of a short journal. Only an offset that was already
            # read can be lost.
            elif begin > head and source.read_through > head:
                loss = SourceLossError(journal, source.read_through, head, doubts.get(journal, ""))
                failures[spec.id] = ShardFailedError(spec.id, "reading messages", str(loss))
            elif begin < head:
                # Serialize deterministically, because equal states must have equal keys: shards with the same
                # key share a read.
                text = source.SerializeToString(deterministic=True)
                places.setdefault((journal, begin, text), []).append(spec.id)
    reads = []
    for (journal, begin, text), shards in sorted(places.items()):
        if healthy := tuple(sorted(shard for shard in shards if shard not in failures)):
            # The slowest shard decides. For the others the read ends early, and they continue in the next
            # batch.
            head, most = heads[journal], min(limits[shard] for shard in healthy)
            reads.append(JournalRead(journal, begin, min(head, begin + most), head, text, healthy))
    return Plan(tuple(reads), failures)


def batch_bytes(spec: pc.ShardSpec, pace: float | None, max_bytes: int) -> int:
    """Return the maximum number of bytes that a shard reads from each of its journals in a micro-batch.

    Args:
        spec: Spec of the shard. Its ``max_txn_duration`` is the maximum time for consuming.
        pace: Bytes of its journals per second that the shard consumed; None if it is unknown.
        max_bytes: Upper limit.
    """
    allowed = 0.0 if pace is None else pace * spec.max_txn_duration.ToMilliseconds() / 1000
    # Divide by the number of sources, because all sources of a shard are consumed one after the other within
    # the time.
    return min(max_bytes, max(LEAST_BATCH_BYTES, round(allowed / max(1, len(spec.sources)))))


def settle(planned: Plan, before: Mapping[str, pc.Checkpoint], results: Iterable[Result]) -> Settled:  # noqa: C901, PLR0912 - told in order
    """Decide what a micro-batch commits.

    Nothing is committed for a shard that failed, or whose reads did not advance.

    Args:
        planned: The plan of the micro-batch.
        before: The checkpoints on which the plan is based.
        results: The rows of the tasks, without those of state.
    """
    failures = dict(planned.failures)
    sources: dict[str, dict[str, bytes]] = {}
    intents: dict[str, dict[str, bytes]] = {}
    seconds: dict[str, float] = {}
    for row in results:
        if row.kind == FAILED:
            # Keep the first error of a shard. Its tasks may fail independently, with different errors.
            failures.setdefault(row.shard, ShardFailedError(row.shard, row.key, str(row.value)))
        elif row.kind == SOURCE:
            sources.setdefault(row.shard, {})[row.key] = bytes(row.data or b"")
        elif row.kind == INTENT:
            of_shard = intents.setdefault(row.shard, {})
            # With keys, several tasks publish for one shard, each with a separate producer, so a journal gets
            # an intent from each.
            of_shard[row.key] = of_shard.get(row.key, b"") + bytes(row.data or b"")
        elif row.kind == PACE:
            # Tasks of a shard run concurrently, so the longest one determines the time.
            seconds[row.shard] = max(seconds.get(row.shard, 0.0), float(row.value or 0))
    checkpoints, paces = {}, {}
    for shard, journals in planned.journals.items():
        read_sources = sources.get(shard, {})
        # Missing rows must not be mistaken for a journal without new messages: the checkpoint would stay
        # while the state has moved.
        if missing := sorted(journals - read_sources.keys()):
            step, problem = f"reading journal {missing[0]!r}", "no task has reported its progress"
            failures.setdefault(shard, ShardFailedError(shard, step, problem))
        if shard in failures:
            continue
        # Build the next checkpoint from the sources that were read, and from the last checkpoint for all
        # others.
        checkpoint = pc.Checkpoint(ack_intents=intents.get(shard, {}))
        if shard in before:
            for journal, source in before[shard].sources.items():
                checkpoint.sources[journal].CopyFrom(source)
        is_further, read_bytes = False, 0
        for journal, data in read_sources.items():
            advanced = pc.Checkpoint.Source.FromString(data)
            old_offset = checkpoint.sources[journal].read_through
            is_further |= advanced.read_through > old_offset
            read_bytes += advanced.read_through - old_offset
            checkpoint.sources[journal].CopyFrom(advanced)
        # A head may be within the next message, which is then left to a later batch. Then nothing has moved.
        if is_further:
            checkpoints[shard] = checkpoint
            if seconds.get(shard):
                paces[shard] = read_bytes / seconds[shard]
    return Settled(checkpoints, failures, paces)


def intents_of(checkpoints: Iterable[pc.Checkpoint]) -> list[AckIntent]:
    """Return the acknowledgements in checkpoints."""
    return [intent for checkpoint in checkpoints for intent in ack_intents(checkpoint)]
