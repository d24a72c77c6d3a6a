"""Builds a shard's checkpoint, and the sequencer that continues from it. Pure.

The message is Gazette's, so this package can read stores of Go consumers, and Go consumers can read its
stores.
"""

from __future__ import annotations

from collections.abc import Iterable

from gazette_spark.message.interfaces import ProducerState
from gazette_spark.message.publisher import AckIntent
from gazette_spark.message.sequencer import RING_MESSAGES, Sequencer, SequencerCheckpoint
from gazette_spark.message.uuids import Clock, ProducerId
from gazette_spark.protocol import consumer_pb2 as pc


def build_checkpoint(read: SequencerCheckpoint, intents: Iterable[AckIntent] = ()) -> pc.Checkpoint:
    """Return the checkpoint of what was read and of the acknowledgements that follow its commit."""
    built = pc.Checkpoint()
    for journal, offset in read.offsets.items():
        built.sources[journal].read_through = offset
    for state in read.states:
        entry = built.sources[state.journal].producers.add(id=state.producer)
        entry.state.last_ack, entry.state.begin = int(state.last_ack), state.begin
    for ack in intents:
        built.ack_intents[ack.journal] = ack.intent
    return built


def read_through(checkpoint: pc.Checkpoint) -> dict[str, int]:
    """Return the next byte to read of each journal."""
    return {journal: source.read_through for journal, source in checkpoint.sources.items()}


def producer_states(checkpoint: pc.Checkpoint) -> list[ProducerState]:
    """Return the states of all producers, by journal and producer."""
    return [
        ProducerState(journal, ProducerId(entry.id), Clock(entry.state.last_ack), entry.state.begin)
        for journal, source in sorted(checkpoint.sources.items())
        for entry in source.producers
    ]


def ack_intents(checkpoint: pc.Checkpoint) -> list[AckIntent]:
    """Return the acknowledgements to append before anything is read, possibly a second time."""
    return [AckIntent(journal, bytes(intent)) for journal, intent in sorted(checkpoint.ack_intents.items())]


def start_offset(checkpoint: pc.Checkpoint, source: pc.ShardSpec.Source) -> int:
    """Return where to begin to read a source: at its checkpoint, but not before the spec's minimum."""
    stored = checkpoint.sources.get(source.journal)
    return max(stored.read_through if stored is not None else 0, source.min_offset)


def sequencer_of(checkpoint: pc.Checkpoint, spec: pc.ShardSpec) -> Sequencer:
    """Return a sequencer that continues at a checkpoint. Each source is read from :func:`start_offset` on."""
    ring = spec.ring_buffer_size or RING_MESSAGES
    return Sequencer(read_through(checkpoint), producer_states(checkpoint), ring)
