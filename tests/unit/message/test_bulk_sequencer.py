"""Compares the columnar engine with the reference sequencer on random histories, cut at random."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.message import bulk_sequencer
from gazette_spark.message.bulk_sequencer import (
    DROPPED,
    FORGET_AFTER,
    LOST,
    NO_TRANSACTION,
    PENDING,
    REMEMBERED,
    Closings,
    ProducerStates,
    Replay,
    sequence,
)
from gazette_spark.message.interfaces import Envelope, Message
from gazette_spark.message.sequencer import Sequencer
from gazette_spark.message.uuids import (
    MAX_CLOCK,
    Clock,
    UuidColumns,
    build_uuid,
    producer_number,
    producer_of,
)
from tests.oracles.committed import Sent, committed
from tests.rig.examples import examples

JOURNAL = "some/journal"


@dataclass
class Stamped:
    """A message that consists of its UUID."""

    stamp: uuid.UUID

    def get_uuid(self) -> uuid.UUID:
        return self.stamp

    def set_uuid(self, stamp: uuid.UUID) -> None:
        self.stamp = stamp

    def new_acknowledgement(self, journal: str) -> Message:
        raise AssertionError(journal)

    def __bytes__(self) -> bytes:
        return self.stamp.bytes


def columns_of(messages: Sequence[Sent]) -> tuple[UuidColumns, np.ndarray]:
    producers, clocks, flags, offsets = (
        np.array([each[at] for each in messages], kind)
        for at, kind in enumerate((np.int64, np.uint64, np.uint16, np.int64))
    )
    return UuidColumns(producers, clocks, flags, np.ones(len(messages), np.bool_)), offsets


def engine(
    messages: Sequence[Sent],
    cuts: Sequence[int],
    *,
    tidy: bool = False,
    states: ProducerStates | None = None,
) -> tuple[dict[int, int], ProducerStates]:
    """Sequence messages part by part, and reread those that earlier parts left pending.

    With ``tidy``, forget producers after each part, as at the end of a batch.
    """
    states = states or ProducerStates.none()
    found: dict[int, int] = {}
    closings, until = [Closings.of(())], [np.zeros(0, np.int64)]
    bounds = [0, *cuts, len(messages)]
    for low, high in pairwise(bounds):
        part = messages[low:high]
        uuids, offsets = columns_of(part)
        result = sequence(states, uuids, offsets)
        states = result.states.without_forgotten() if tidy else result.states
        found |= {
            each.offset: int(ack)
            for each, ack in zip(part, result.ack_offsets, strict=True)
            if ack not in (DROPPED, PENDING)
        }
        closings.append(result.closings)
        until.append(np.full(len(result.closings), part[0].offset if part else 0, np.int64))
    replay = Replay(Closings.joined(closings), np.concatenate(until))
    for low, high in pairwise(bounds):
        part = [each for each in messages[low:high] if any(a <= each.offset < b for a, b in replay.spans())]
        uuids, offsets = columns_of(part)
        for each, ack in zip(part, replay.sequence(uuids, offsets).tolist(), strict=True):
            assert ack == DROPPED or each.offset not in found
            found |= {} if ack == DROPPED else {each.offset: ack}
    return found, states


def reference(messages: Sequence[Sent]) -> tuple[set[int], dict[int, tuple[int, int]]]:
    """Return the sequencer's delivered offsets and states, as last acknowledged clock and begin."""
    sequencer = Sequencer(ring_messages=len(messages) + 1)
    delivered = set()
    for each in messages:
        stamp = build_uuid(producer_of(each.producer), Clock(each.clock), each.flags)
        sequencer.queue(Envelope(JOURNAL, each.offset, each.offset + 1, Stamped(stamp)))
        while (envelope := sequencer.step()) is not None:
            delivered.add(envelope.begin)
    _, states = sequencer.checkpoint(0)
    return delivered, {producer_number(each.producer): (each.last_ack, each.begin) for each in states}


messages_ = st.tuples(
    st.integers(0, 2),
    st.sampled_from([1, 1, 1, 1, 2, 2, 0, 7]),
    st.sampled_from([1, 1, 1, 1, 1, 2, 0, -1, -3]),
    st.integers(1, 5),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Sent], list[int]]:
    """Draw messages with mostly ascending clocks, and where to cut them."""
    clocks: dict[int, int] = {}
    messages: list[Sent] = []
    offset = draw(st.integers(0, 3))
    for producer, flags, step, size in draw(st.lists(messages_, min_size=1, max_size=25)):
        clock = max(0, clocks.get(producer, 1) + step)
        clocks[producer] = max(clock, clocks.get(producer, 1))
        messages.append(Sent(producer, clock, flags, offset))
        offset += size
    cuts = draw(st.lists(st.integers(0, len(messages)), max_size=4))
    return messages, sorted(cuts)


@settings(max_examples=examples(400))
@given(histories())
def test_columns_commit_what_the_sequencer_delivers(history: tuple[list[Sent], list[int]]) -> None:
    messages, cuts = history
    found, states = engine(messages, cuts)
    delivered, expected = reference(messages)
    assert found == committed(messages)
    # The sequencer treats an acknowledgement with the same clock as a message as a duplicate.
    acks = {each.offset for each in messages if each.flags == 2}
    assert found.keys() - acks == delivered - acks
    assert delivered <= found.keys()
    got = zip(states.producers.tolist(), states.last_acks.tolist(), states.begins.tolist(), strict=True)
    assert {producer: (last, begin) for producer, last, begin in got} == expected


DAYS_AHEAD = {"two days": (1 << 62) + 2 * FORGET_AFTER, "the largest": MAX_CLOCK}


@pytest.mark.parametrize("ahead", DAYS_AHEAD.values(), ids=DAYS_AHEAD)
def test_one_clock_ages_nobody(ahead: int) -> None:
    """A single message from the future must not make the engine forget the other producers."""
    now = 1 << 62
    first = [Sent(1, now, 0, 0), Sent(2, now, 1, 1), Sent(2, now + 1, 2, 2), Sent(3, ahead, 0, 3)]
    # It remains one producer, regardless of the number of its messages.
    first += [Sent(3, ahead, 0, offset) for offset in range(4, 4 + REMEMBERED)]
    repeated = [Sent(1, now, 0, 2000), Sent(2, now, 1, 2001), Sent(2, now + 1, 2, 2002)]
    for cut in (0, 1, 2, 3, 500, len(first), len(first) + 1):
        found, states = engine([*first, *repeated], [cut], tidy=True)
        assert found == {0: 0, 1: 2, 2: 2, 3: 3}
        found, _ = engine(
            [Sent(1, now, 0, 3000), Sent(1, now + 1, 0, 3001)], [], states=states.without_forgotten()
        )
        assert found == {3001: 3001}


@settings(max_examples=examples(800))
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 8), st.sampled_from([0, 0, 0, 1, 2])),
        min_size=4,
        max_size=25,
    ),
    st.lists(st.integers(0, 25), max_size=4),
)
def test_forgetting_does_not_depend_on_cuts(sent: list[tuple[int, int, int]], cuts: list[int]) -> None:
    messages = [Sent(*each, offset) for offset, each in enumerate(sent)]
    at = sorted(min(cut, len(messages)) for cut in cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_sequencer, "FORGET_AFTER", 2)
        patch.setattr(bulk_sequencer, "REMEMBERED", 2)
        assert engine(messages, at, tidy=True)[0] == engine(messages, [])[0]


def test_a_producer_of_yesterday_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer with an open transaction is kept at any age."""
    monkeypatch.setattr(bulk_sequencer, "REMEMBERED", 2)
    early, late = 1 << 62, (1 << 62) + FORGET_AFTER + 1
    messages = [Sent(1, early, 0, 0), Sent(2, early, 1, 1), Sent(3, late, 0, 2), Sent(3, late + 1, 0, 3)]
    found, states = engine(messages, [2])
    assert found == {0: 0, 2: 2, 3: 3}
    assert states.without_forgotten().producers.tolist() == [2, 3]
    again = [*messages, Sent(1, early, 0, 4), Sent(2, early, 2, 5)]
    for kept in (states, states.without_forgotten()):
        result = sequence(kept, *columns_of(again[4:]))
        assert result.ack_offsets.tolist() == [4, 5], "the repeated message comes again"
        assert result.closings.begins.tolist() == [1]


def test_a_lost_transaction_is_not_delivered_in_part() -> None:
    """If bytes of a transaction are lost, drop its other messages, but deliver the next transaction."""
    states = engine([Sent(1, 5, 1, 10), Sent(2, 5, 1, 30)], [])[1].lost_since(20)
    assert states.begins.tolist() == [LOST, 30]
    messages = [Sent(1, 6, 1, 40), Sent(1, 7, 2, 41), Sent(1, 8, 1, 42), Sent(1, 9, 2, 43), Sent(2, 6, 2, 44)]
    for cut in range(len(messages)):
        first = sequence(states, *columns_of(messages[:cut]))
        rest = sequence(first.states, *columns_of(messages[cut:]))
        fates = np.concatenate([first.ack_offsets, rest.ack_offsets])
        assert fates[0] == DROPPED
        assert {41, 43, 44} <= set(fates.tolist())
        closings = Closings.joined([first.closings, rest.closings])
        kept = closings.take(closings.ack_clocks != 0)
        assert (kept.producers[kept.begins < 40].tolist(), rest.states.begins.tolist()) == (
            [2],
            [NO_TRANSACTION] * 2,
        )
