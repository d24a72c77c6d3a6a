"""Tests that a checkpoint has all that a sequencer and an append need."""

from __future__ import annotations

from gazette_spark.consumer.checkpoints import (
    ack_intents,
    build_checkpoint,
    producer_states,
    read_through,
    sequencer_of,
    start_offset,
)
from gazette_spark.message import AckIntent, Clock, ProducerId, ProducerState
from gazette_spark.message.sequencer import SequencerCheckpoint
from gazette_spark.protocol import consumer_pb2 as pc

STATES = (
    ProducerState("a/one", ProducerId(b"\1\0\0\0\0\1"), Clock(1 << 63), 120),
    ProducerState("a/one", ProducerId(b"\1\0\0\0\0\2"), Clock(7)),
    ProducerState("a/two", ProducerId(b"\1\0\0\0\0\1"), Clock(0), 0),
)
READ = SequencerCheckpoint({"a/one": 200, "a/two": 10, "a/three": 0}, STATES)
INTENTS = [AckIntent("b/x", b"\0ack"), AckIntent("b/y", b"ack\n")]


def test_a_checkpoint_comes_back() -> None:
    stored = pc.Checkpoint.FromString(build_checkpoint(READ, INTENTS).SerializeToString())
    assert read_through(stored) == READ.offsets
    assert producer_states(stored) == list(STATES)
    assert ack_intents(stored) == INTENTS


def test_a_sequencer_goes_on_there() -> None:
    made = sequencer_of(build_checkpoint(READ), pc.ShardSpec(ring_buffer_size=3))
    assert made.checkpoint() == READ


def test_a_source_is_read_from_its_offset_or_minimum() -> None:
    stored = build_checkpoint(READ)
    offsets = [
        start_offset(stored, pc.ShardSpec.Source(journal=journal, min_offset=at))
        for journal, at in (("a/one", 0), ("a/one", 300), ("a/new", 0), ("a/new", 5))
    ]
    assert offsets == [200, 300, 0, 5]
    assert "a/new" not in stored.sources
