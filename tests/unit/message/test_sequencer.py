"""Tests the reference sequencer with the scenarios of Gazette's own tests, and its errors."""

from __future__ import annotations

import logging
import pickle
import weakref
from collections.abc import Iterator

import pytest

from gazette_spark.errors import SequencerError
from gazette_spark.message import Clock, Envelope, ProducerState, Sequencer
from gazette_spark.message.sequencer import HORIZON_NS, Outcome, ReplayRange
from gazette_spark.message.uuids import MAX_CLOCK
from tests.rig.histories import Stamp, messages, producer_named, replayed, word_of

A, B = producer_named("A"), producer_named("B")


class Reader:
    """Feeds a sequencer with messages written as words, and records them."""

    def __init__(self, ring: int = 3, sequencer: Sequencer | None = None) -> None:
        self.sequencer = sequencer or Sequencer(ring_messages=ring)
        self.history: list[Envelope] = []
        self.replays: list[ReplayRange] = []

    def feed(self, text: str) -> list[Outcome]:
        """Queue messages and return their outcomes. Only the last message may deliver any."""
        ends = {each.journal: each.end for each in self.history}
        found = []
        for envelope in messages(text, ends):
            self.history.append(envelope)
            found.append(self.sequencer.queue(envelope))
            if found[-1] is Outcome.ACK_COMMIT_REPLAY:
                self.replays.append(self.sequencer.replay_range())
                self.sequencer.start_replay(replayed(self.history, self.sequencer))
        return found

    def drain(self) -> str:
        return " ".join(map(word_of, iter(self.sequencer.step, None)))

    def read(self, text: str) -> str:
        """Queue messages one by one, and return all that are delivered as words."""
        found = []
        for word in text.split():
            self.feed(word)
            found.append(self.drain())
        return " ".join(filter(None, found))


def test_scenarios() -> None:
    reader = Reader(ring=3)
    steps = [
        ("A1C A2C A1C A2C A3K", "A1C A2C A3K", 0),
        ("A4K", "A4K", 0),
        ("A5C A7C A6K", "A5C A6K", 0),
        ("A7C B1C A7C A8C B2C A6K", "", 0),
        ("B3K", "B1C B2C B3K", 1),
        ("B4C B1C B4C B5C B6C B2C B7C B8K", "B4C B5C B6C B7C B8K", 1),
        ("B9C B11C B12C B13C B10K", "B9C B10K", 1),
        ("B11C A7C A8C B12C A9K", "A7C A8C A9K", 1),
        ("B13K", "B11C B12C B13K", 1),
        ("B8K B9C B10K", "B9C B10K", 0),
    ]
    for text, delivered, replays in steps:
        before = len(reader.replays)
        assert (text, reader.read(text), len(reader.replays) - before) == (text, delivered, replays)
    assert not reader.sequencer.has_pending()
    assert reader.sequencer.offsets == {"a": 10 * len(reader.history)}


@pytest.mark.parametrize(
    ("text", "delivered"),
    [
        ("A1O A2O A1O A2O", "A1O A2O"),
        ("A3C A4C A5O", "A5O"),
        ("A3C A4C A5O A3C A4C A6K", "A5O A6K"),
        ("A0O A0O A0C A0K", "A0O A0O A0C A0K"),
        ("A1U A1U A2C A3U", "A1U A3U"),
        ("A1C A2C A3K A3K A4C A3K A5K", "A1C A2C A3K A5K"),
        ("A1C b/A1C A2K b/A2K b/A2C", "A1C A2K b/A1C b/A2K"),
        ("A5K A3K A4C A5K", "A5K A4C A5K"),
    ],
    ids=[
        "outside",
        "mixed",
        "mixed-again",
        "nil",
        "unknown",
        "ack-again",
        "journals",
        "ack-lower",
    ],
)
@pytest.mark.parametrize("ring", [1, 2, 100])
def test_flags(text: str, delivered: str, ring: int) -> None:
    """The size of the ring must not change the result."""
    assert Reader(ring).read(text) == delivered


def test_a_replay_repeats_what_opted_out() -> None:
    """As in Gazette, a replay repeats a message that has a producer but no clock."""
    assert Reader(ring=100).read("B1C B0O B2K") == "B0O B1C B2K"
    assert Reader(ring=1).read("B1C B0O B2K") == "B0O B1C B0O B2K"


def test_outcomes_are_told() -> None:
    reader = Reader(ring=2)
    assert reader.feed("A1C A2C A2C A3K") == [
        Outcome.CONTINUE_BEGIN_SPAN,
        Outcome.CONTINUE_EXTEND_SPAN,
        Outcome.CONTINUE_TXN_CLOCK_LARGER,
        # In a full ring, even a dropped message replaces the oldest one.
        Outcome.ACK_COMMIT_REPLAY,
    ]
    assert reader.drain() == "A1C A2C A3K"
    assert reader.feed("A3C A3K A2O") == [
        Outcome.CONTINUE_ALREADY_ACKED,
        Outcome.ACK_ROLLBACK,
        Outcome.OUTSIDE_ALREADY_ACKED,
    ]
    assert reader.feed("A4K") == [Outcome.ACK_EMPTY]
    assert reader.drain() == "A4K"
    assert reader.feed("A5O") == [Outcome.OUTSIDE_COMMIT]
    assert reader.drain() == "A5O"
    assert reader.feed("A6C A7K") == [Outcome.CONTINUE_BEGIN_SPAN, Outcome.ACK_COMMIT_RING]
    assert reader.drain() == "A6C A7K"


def test_a_transaction_open_at_a_checkpoint_is_replayed() -> None:
    """After a restart the transaction is read again from its begin, and duplicates are dropped."""
    reader = Reader(ring=100)
    assert reader.read("A1C A2C A3C") == ""
    offsets, states = reader.sequencer.checkpoint()
    assert (offsets, states) == ({"a": 30}, (ProducerState("a", A, Clock(0), 0),))
    reader.sequencer = Sequencer(offsets, states, 100)
    # The checkpoint does not contain the largest clock, so the repeated messages are pending again.
    assert reader.feed("A1C A2C A3C") == [Outcome.CONTINUE_EXTEND_SPAN] * 3
    assert reader.read("A4K") == "A1C A2C A3C A4K"
    assert reader.replays == [ReplayRange("a", 0, 30)]


def test_a_crash_while_messages_are_delivered() -> None:
    reader = Reader(ring=100)
    reader.feed("A1C A2C A3K")
    assert reader.sequencer.step() is reader.history[0]
    # The message was delivered, but it may not have been processed.
    crashed = reader.sequencer.checkpoint()
    assert crashed == ({"a": 20}, (ProducerState("a", A, Clock(0), 0),))
    assert reader.sequencer.step() is reader.history[1]
    offsets, states = reader.sequencer.checkpoint()
    assert (offsets, states) == ({"a": 20}, (ProducerState("a", A, Clock(1), 10),))
    sequencer = Sequencer(offsets, states)
    assert sequencer.queue(reader.history[2]) is Outcome.ACK_COMMIT_REPLAY
    assert sequencer.replay_range() == ReplayRange("a", 10, 20)
    sequencer.start_replay([reader.history[1]])
    assert Reader(sequencer=sequencer).drain() == "A2C A3K"
    assert sequencer.offsets == {"a": 30}


def test_pending_is_what_was_opened_since_the_checkpoint() -> None:
    reader = Reader(ring=100)
    reader.read("A1C B1C")
    assert reader.sequencer.has_pending()
    reader.read("A2K")
    assert reader.sequencer.has_pending()
    reader.sequencer.checkpoint()
    assert not reader.sequencer.has_pending()
    reader.read("B2C")
    assert not reader.sequencer.has_pending()
    reader.read("A5C")
    assert reader.sequencer.has_pending()
    reader.read("A2K")
    assert not reader.sequencer.has_pending()


def test_old_producers_are_forgotten() -> None:
    now = int(Clock.at(1_700_000_000_000_000_000))
    old = now - (HORIZON_NS // 100 << 4)
    reader = Reader(ring=100)
    reader.read(f"A{old - 1}O B{now}O C{old}O D{old - 3}C D{old - 2}C D{old - 1}C b/A{old - 1}O")
    kept = reader.sequencer.checkpoint(HORIZON_NS).states
    assert [(state.journal, state.producer[:1]) for state in kept] == [("a", b"B"), ("a", b"C"), ("b", b"A")]
    assert reader.read(f"A{old - 1}O C{old}O") == f"A{old - 1}O"
    assert len(reader.sequencer.checkpoint().states) == 4


@pytest.mark.parametrize("ahead", [1_700_172_800_000_000_000, None], ids=["two days", "the largest"])
def test_one_clock_ages_nobody(ahead: int | None) -> None:
    """A clock from the future must not make the sequencer forget the producers that wrote last."""
    now, then = int(Clock.at(1_700_000_000_000_000_000)), MAX_CLOCK if ahead is None else int(Clock.at(ahead))
    history = f"A{now}O B{now}O C{now}O A{now}O b/A{now}O D{then}O"
    names = {}
    for remembered in (0, 3):
        reader = Reader(ring=100)
        reader.read(history)
        kept = reader.sequencer.checkpoint(HORIZON_NS, remembered).states
        names[remembered] = [(state.journal, state.producer[:1]) for state in kept]
        assert reader.read(f"A{now}O") == ("" if remembered else f"A{now}O")
    assert names[0] == [("a", b"D"), ("b", b"A")]
    assert names[3] == [("a", b"A"), ("a", b"C"), ("a", b"D"), ("b", b"A")]


def test_a_horizon_wraps() -> None:
    """As in Gazette, clocks smaller than the horizon are forgotten at once."""
    reader = Reader()
    reader.read("A5O B7O")
    reader.read("b/A1C")
    (left,) = reader.sequencer.checkpoint(HORIZON_NS).states
    assert (left.journal, left.last_ack) == ("b", 0)


def test_a_program_may_change_what_it_got() -> None:
    """Publishing a delivered message again sets another UUID on the same object."""
    reader = Reader(ring=2)
    reader.feed("A1C A2K")
    for _ in range(2):
        found = reader.sequencer.step()
        assert found is not None
        found.message.set_uuid(messages("B9O")[0].message.get_uuid())
    assert reader.sequencer.step() is None
    assert reader.read("A2C A1C A3C A4K") == "A3C A4K"


def test_a_ring_takes_as_much_memory_as_its_messages() -> None:
    """A spec may ask for any ring size, and must not end a process that other shards share."""
    assert Reader(ring=1 << 60).read("A1C B1O A2C A3K") == "B1O A1C A2C A3K"


def test_delivered_messages_are_released() -> None:
    class Kept(Stamp):
        """One that can be referred to weakly."""

    sequencer, delivered = Sequencer(), []
    for envelope in messages("A1O A2C A3K B1C"):
        message = Kept(envelope.message.get_uuid())
        sequencer.queue(Envelope(envelope.journal, envelope.begin, envelope.end, message))
        delivered.append(weakref.ref(message))
        del message
        while sequencer.step() is not None:
            pass
    assert [message() is None for message in delivered] == [True, True, True, False]


def test_a_replay_that_fails_is_started_again() -> None:
    def failing(found: list[Envelope]) -> Iterator[Envelope]:
        yield from found
        raise OSError("the broker is gone")

    reader = Reader(ring=1)
    for envelope in (history := messages("A1C B1C A2C A3C A4K")):
        reader.sequencer.queue(envelope)
    sequencer = reader.sequencer
    sequencer.start_replay(failing(history[:3]))
    assert [sequencer.step(), sequencer.step()] == [history[0], history[2]]
    with pytest.raises(OSError, match="the broker is gone"):
        sequencer.step()
    with pytest.raises(SequencerError, match=r"offset 20: start_replay\(\) with the messages up to 40"):
        sequencer.step()
    sequencer.start_replay(history[2:4])
    assert reader.drain() == "A3C A4K"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Envelope("b", 0, 10, messages("A1C")[0].message), "returned \\[0, 10\\) of 'b'"),
        (messages("A1C", {"a": -10})[0], r"a replay of \[0, 20\) returned \[-10, 0\) of 'a'"),
        (messages("A1C", {"a": 11})[0], r"returned \[11, 21\)"),
    ],
    ids=["journal", "before", "after"],
)
def test_a_replay_of_other_bytes_is_refused(wrong: Envelope, says: str) -> None:
    sequencer = Sequencer(ring_messages=1)
    for envelope in messages("A1C A2C A3K"):
        sequencer.queue(envelope)
    sequencer.start_replay([wrong])
    with pytest.raises(SequencerError, match=says) as caught:
        sequencer.step()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_is_out_of_order_is_refused() -> None:
    sequencer = Sequencer(ring_messages=1)
    with pytest.raises(SequencerError, match="no replay is needed"):
        sequencer.replay_range()
    with pytest.raises(SequencerError, match="no replay is needed"):
        sequencer.start_replay([])
    history = messages("A1C A2K A3C")
    assert sequencer.step() is None
    sequencer.queue(history[0])
    sequencer.queue(history[1])
    with pytest.raises(SequencerError, match=r"'a', offset 20: step\(\) still has committed messages"):
        sequencer.queue(history[2])
    with pytest.raises(SequencerError, match="start_replay"):
        sequencer.step()
    assert "delivering" in repr(sequencer)
    sequencer.start_replay(history[:1])
    assert Reader(sequencer=sequencer).drain() == "A1C A2K"
    assert "1 producers, 0 pending, idle" in repr(sequencer)


def test_oddities_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Reader().read("A5K A4K B1C B2O B3U")
    assert [record.getMessage().split(" journal=")[0] for record in caplog.records] == [
        "ACK_TXN is less than the last one: messages may be delivered again",
        "OUTSIDE_TXN discards the producer's open transaction",
        "unknown flags 0x3 of a UUID, treated as OUTSIDE_TXN",
    ]
    assert str(messages("A4K")[0].message.get_uuid()) in caplog.text


def test_a_message_without_a_producer_has_no_state() -> None:
    """Messages with a nil UUID are never deduplicated."""
    sequencer = Sequencer()
    for envelope in (
        Envelope("a", at, at + 1, Stamp(messages("A0C")[0].message.get_uuid())) for at in range(3)
    ):
        assert sequencer.queue(envelope) is Outcome.OUTSIDE_COMMIT
        assert sequencer.step() is envelope
        assert sequencer.step() is None
    assert sequencer.checkpoint() == ({"a": 3}, ())
