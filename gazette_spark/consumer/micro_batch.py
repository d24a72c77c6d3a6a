"""Plans a micro-batch of the host on Spark, and settles what its results commit. Pure.

Only a shard's checkpoint decides where it continues, as everywhere in Gazette. So each micro-batch is
planned from the checkpoints, and a shard that failed, was added, or was given another source catches up by
the same reads as all others. Shards that are at the same place of a journal, with the same producers' states,
share one read of it.

Tasks hand in :class:`Result` rows. :func:`settle` makes of them the checkpoints to commit and the
acknowledgements to append after that, and leaves out the shards that failed.
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
"""Bytes of a journal that a micro-batch may read however slow the application is."""

STATE, DOCUMENT, SOURCE, INTENT, PACE, FAILED = "state", "document", "source", "intent", "pace", "failed"
"""Kinds of result rows: two of state, see ``stores.delta``; the others are for the driver."""

JournalSpecs = Mapping[str, pb.JournalSpec]
"""Specs of journals, by name."""

CHECKPOINT = "checkpoint"
"""Kind of the rows of the state table that hold checkpoints."""


@dataclass(frozen=True, slots=True)
class JournalRead:
    """A read of a journal for the shards that are at the same place in it."""

    journal: str
    begin: int
    until: int
    """The read ends before the first message that begins here or later."""
    head: int
    """Write head of the journal when the batch was planned: nothing past it is read."""
    source: bytes
    """Serialized ``Checkpoint.Source``: the producers' states."""
    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a micro-batch reads."""

    reads: tuple[JournalRead, ...] = ()
    failures: Mapping[str, ShardFailedError] = field(default_factory=dict)
    """Reasons why shards cannot continue; nothing is read for them."""

    @property
    def journals(self) -> dict[str, set[str]]:
        """The journals that are read, by shard. The others have nothing to read."""
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
    """The key of state; the journal of a source or an intent; the step of a failure."""
    value: str | None = None
    """The JSON of state; the cause of a failure; for a pace, the seconds that consuming took."""
    data: bytes | None = None
    """The serialized ``Checkpoint.Source`` of a source; the bytes of an intent."""
    deleted: bool = False
    """Whether to delete the state's row."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a micro-batch commits."""

    checkpoints: Mapping[str, pc.Checkpoint]
    """New checkpoints, by shard; each has the intents of this transaction."""
    failures: Mapping[str, ShardFailedError]
    """Errors of shards of which nothing is committed."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """Bytes of journals that a shard consumed in a second."""

    @property
    def intents(self) -> list[AckIntent]:
        """What is appended after the commit."""
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
        specs: Shards that are to run.
        checkpoints: The newest of each; a shard without one is new.
        heads: Write heads of the sources; a journal that is not in it does not exist.
        limits: Bytes of a journal after which a shard's reads end with the next message, by shard.
        doubts: Why no broker confirmed a head that is below a shard's offset, by source.
    """
    failures: dict[str, ShardFailedError] = {}
    places: dict[tuple[str, int, bytes], list[str]] = {}
    for spec in specs:
        checkpoint = checkpoints.get(spec.id, pc.Checkpoint())
        for spec_source in spec.sources:
            journal = spec_source.journal
            source = checkpoint.sources.get(journal, pc.Checkpoint.Source())
            begin, head = start_offset(checkpoint, spec_source), heads.get(journal)
            # A journal that is gone ends the shard and not the batch: the others go on.
            if head is None:
                problem = "it does not exist"
                failures[spec.id] = ShardFailedError(spec.id, f"reading journal {journal!r}", problem)
            # A spec's min_offset may be past the head of a journal that is still short. Only an offset that
            # was read before can be lost.
            elif begin > head and source.read_through > head:
                loss = SourceLossError(journal, source.read_through, head, doubts.get(journal, ""))
                failures[spec.id] = ShardFailedError(spec.id, "reading messages", str(loss))
            elif begin < head:
                # Deterministic, because equal states have to give equal keys: shards with the same key share
                # a read.
                text = source.SerializeToString(deterministic=True)
                places.setdefault((journal, begin, text), []).append(spec.id)
    reads = []
    for (journal, begin, text), shards in sorted(places.items()):
        if healthy := tuple(sorted(shard for shard in shards if shard not in failures)):
            # The slowest of the shards decides. The read ends early for the others, which continue in the
            # next batch.
            head, most = heads[journal], min(limits[shard] for shard in healthy)
            reads.append(JournalRead(journal, begin, min(head, begin + most), head, text, healthy))
    return Plan(tuple(reads), failures)


def batch_bytes(spec: pc.ShardSpec, pace: float | None, max_bytes: int) -> int:
    """Return how many bytes of each of its journals a shard reads in a micro-batch at most.

    Args:
        spec: Spec of the shard. Its ``max_txn_duration`` is the time that consuming may take.
        pace: Bytes of its journals that it consumed in a second; None: not known.
        max_bytes: Upper limit.
    """
    allowed = 0.0 if pace is None else pace * spec.max_txn_duration.ToMilliseconds() / 1000
    # A quotient, because all sources of a shard are consumed one after the other within the time.
    return min(max_bytes, max(LEAST_BATCH_BYTES, round(allowed / max(1, len(spec.sources)))))


def settle(planned: Plan, before: Mapping[str, pc.Checkpoint], results: Iterable[Result]) -> Settled:  # noqa: C901, PLR0912 - told in order
    """Decide what a micro-batch commits.

    Nothing is committed for a shard that failed, or whose reads did not advance.

    Args:
        planned: What it was to read.
        before: The checkpoints that it was planned on.
        results: The rows of its tasks, those of state left out.
    """
    failures = dict(planned.failures)
    sources: dict[str, dict[str, bytes]] = {}
    intents: dict[str, dict[str, bytes]] = {}
    seconds: dict[str, float] = {}
    for row in results:
        if row.kind == FAILED:
            # The first error of a shard. Tasks of one shard fail independently, each with its own.
            failures.setdefault(row.shard, ShardFailedError(row.shard, row.key, str(row.value)))
        elif row.kind == SOURCE:
            sources.setdefault(row.shard, {})[row.key] = bytes(row.data or b"")
        elif row.kind == INTENT:
            of_shard = intents.setdefault(row.shard, {})
            # With keys, several tasks publish for one shard, each under a producer of its own, so a journal
            # gets an intent of each.
            of_shard[row.key] = of_shard.get(row.key, b"") + bytes(row.data or b"")
        elif row.kind == PACE:
            # Tasks of a shard run side by side, so the longest is the time that it took.
            seconds[row.shard] = max(seconds.get(row.shard, 0.0), float(row.value or 0))
    checkpoints, paces = {}, {}
    for shard, journals in planned.journals.items():
        read_sources = sources.get(shard, {})
        # Rows that are missing must not pass for a journal without news: the checkpoint would stand still
        # while the state has moved.
        if missing := sorted(journals - read_sources.keys()):
            step, problem = f"reading journal {missing[0]!r}", "no task has reported how far it came"
            failures.setdefault(shard, ShardFailedError(shard, step, problem))
        if shard in failures:
            continue
        # The next checkpoint: the sources that were read, and those of the last one that were not.
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
        # A head may lie within the next message, which is then left to a later batch: nothing has moved.
        if is_further:
            checkpoints[shard] = checkpoint
            if seconds.get(shard):
                paces[shard] = read_bytes / seconds[shard]
    return Settled(checkpoints, failures, paces)


def intents_of(checkpoints: Iterable[pc.Checkpoint]) -> list[AckIntent]:
    """Return the acknowledgements that checkpoints hold."""
    return [intent for checkpoint in checkpoints for intent in ack_intents(checkpoint)]
