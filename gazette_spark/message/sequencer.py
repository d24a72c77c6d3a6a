"""Decides message by message which are committed, as the reference, like Gazette's Sequencer.

A sequencer withholds the messages of open transactions and drops repeated messages. For each producer in a
journal it remembers ``min``, the clock of the newest message that was acknowledged and delivered; ``max``,
the largest clock of the open transaction; and ``begin``, the offset of that transaction in the journal. Flags
and clock decide the fate of a message:

========  ==========================  ==========================  ==========================================
flags     condition                   outcome                     effect
========  ==========================  ==========================  ==========================================
OUTSIDE   clock ≤ min                 OUTSIDE_ALREADY_ACKED       dropped
OUTSIDE   else                        OUTSIDE_COMMIT              delivered; an open transaction is discarded
CONTINUE  clock ≤ min                 CONTINUE_ALREADY_ACKED      dropped
CONTINUE  clock ≤ max                 CONTINUE_TXN_CLOCK_LARGER   dropped
CONTINUE  no open transaction         CONTINUE_BEGIN_SPAN         withheld, opens a transaction
CONTINUE  else                        CONTINUE_EXTEND_SPAN        withheld
ACK       clock ≤ min                 ACK_ROLLBACK                the transaction is discarded, min = clock
ACK       no open transaction         ACK_EMPTY                   the ACK alone is delivered
ACK       the ring has all of it      ACK_COMMIT_RING             the transaction and the ACK are delivered
ACK       else                        ACK_COMMIT_REPLAY           the same, after a replay
========  ==========================  ==========================  ==========================================

Unknown flags count as OUTSIDE. A message with clock 0, such as that of the nil UUID, is delivered and changes
no state.

Memory is bounded: a ring has the newest messages of all producers. If an ACK commits messages that have
left the ring, they are read from the journal again: ``replay_range`` returns the range, and ``start_replay``
takes its messages. Then ``step`` returns the committed messages one by one, the ACK last.

A checkpoint may be taken between any two messages. A sequencer that is made from it, and reads each journal
from the checkpoint's offset, delivers exactly the messages that this one had not processed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from gazette_spark.errors import SequencerError
from gazette_spark.message.interfaces import NO_OFFSET, Envelope, JournalProducer, ProducerState
from gazette_spark.message.uuids import ACK_TXN, CONTINUE_TXN, MAX_CLOCK, OUTSIDE_TXN, Clock, split_uuid

logger = logging.getLogger(__name__)

RING_MESSAGES = 8192
"""Default size of the ring, as in Gazette's consumers."""

HORIZON_NS = 24 * 3600 * 1_000_000_000
"""Time for which Gazette's consumers remember a producer: 24 hours behind the newest clock of its journal."""


class Outcome(Enum):
    """The decision about a queued message. The values are Gazette's."""

    OUTSIDE_ALREADY_ACKED = "outsideAlreadyAcked"
    OUTSIDE_COMMIT = "outsideCommit"
    CONTINUE_ALREADY_ACKED = "continueAlreadyAcked"
    CONTINUE_TXN_CLOCK_LARGER = "continueRingClockLarger"
    CONTINUE_BEGIN_SPAN = "continueBeginSpan"
    CONTINUE_EXTEND_SPAN = "continueExtendSpan"
    ACK_ROLLBACK = "ackRollback"
    ACK_EMPTY = "ackEmpty"
    ACK_COMMIT_RING = "ackCommitRing"
    ACK_COMMIT_REPLAY = "ackCommitReplay"


DROPPED = frozenset(
    {Outcome.OUTSIDE_ALREADY_ACKED, Outcome.CONTINUE_ALREADY_ACKED, Outcome.CONTINUE_TXN_CLOCK_LARGER}
)
HELD_BACK = frozenset({Outcome.CONTINUE_BEGIN_SPAN, Outcome.CONTINUE_EXTEND_SPAN})


class ReplayRange(NamedTuple):
    """Bytes ``[begin, end)`` of a journal that must be read again."""

    journal: str
    begin: int
    end: int


class SequencerCheckpoint(NamedTuple):
    """The state from which another sequencer continues."""

    offsets: dict[str, int]
    """Offset of the next byte by journal."""
    states: tuple[ProducerState, ...]
    """Sorted by journal and producer."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """The state of one producer in one journal."""

    key: JournalProducer
    min: int
    """Clock of the newest acknowledged and delivered message; messages of the transaction are above it."""
    max: int
    """Largest clock of the open transaction, or the clock that committed it. Never below ``min``."""
    begin: int = NO_OFFSET
    entries: deque[_RingEntry] = field(default_factory=deque)
    """Its messages in the ring, oldest first."""

    def close(self, clock: int) -> None:
        """End the transaction, whether it was delivered or discarded."""
        self.min = self.max = clock
        self.begin = NO_OFFSET
        self.entries.clear()


@dataclass(slots=True, eq=False)
class _RingEntry:
    """An occupied slot of the ring."""

    envelope: Envelope
    clock: int
    """The UUID at the time of queuing, because an application may change a delivered message."""
    sequence: _Sequence
    slot: int


class Sequencer:
    """Selects the committed messages of any number of journals. Pure, and for one thread.

    Call :meth:`queue` with each message in the journals' order, and after each call :meth:`step` until it
    returns None.
    """

    def __init__(
        self,
        offsets: Mapping[str, int] | None = None,
        states: Iterable[ProducerState] = (),
        ring_messages: int = RING_MESSAGES,
    ) -> None:
        self._offsets = dict(offsets or {})
        # A checkpoint has no `max`. So repeated messages of an open transaction are withheld twice, and the
        # replay, which is then needed, drops the repetition.
        self._sequences = {
            state.key: _Sequence(state.key, state.last_ack, state.last_ack, state.begin) for state in states
        }
        """Sequences in the order of the producers' last messages: a checkpoint forgets from the front."""
        self._pending: set[_Sequence] = set()
        # It grows as messages come, because a shard's spec may ask for billions of slots.
        self._ring: list[_RingEntry | None] = [None]
        self._ring_messages = max(1, ring_messages)
        self._ring_head = 0
        self._emit: _Sequence | None = None
        """The sequence that is being delivered."""
        self._emit_end = 0
        """End of the message that committed the sequence."""
        self._delivered: int | None = None
        """Clock of the message of this sequence that :meth:`step` returned last."""
        self._must_replay = False
        self._replay: Iterator[Envelope] | None = None

    def __repr__(self) -> str:
        state = "idle" if self._emit is None else f"delivering {self._emit.key}"
        return f"Sequencer({len(self._sequences)} producers, {len(self._pending)} pending, {state})"

    @property
    def offsets(self) -> Mapping[str, int]:
        """Offset of each journal's next byte. It passes an ACK when all its messages are delivered."""
        return dict(self._offsets)

    def queue(self, envelope: Envelope) -> Outcome:  # noqa: C901, PLR0912, PLR0915 - told in order
        """Take the next message of a journal, and decide its fate.

        Raises:
            SequencerError: :meth:`step` has not returned None yet.
        """
        if self._emit is not None:
            # Messages of two transactions would mix, and a checkpoint could not express the progress of each.
            raise SequencerError(envelope.journal, envelope.begin, "step() still has committed messages")

        # The ring bounds memory regardless of the length of transactions, so its oldest message is dropped.
        # Its sequence remembers `begin`, so that the message can be read again if an ACK commits it. As in
        # Gazette, this also happens for messages that are then dropped, so that both need the same replays.
        oldest = self._ring[self._ring_head]
        if oldest is not None and oldest.sequence.entries and oldest.sequence.entries[0] is oldest:
            oldest.sequence.entries.popleft()
        self._ring[self._ring_head] = None

        producer, stamp, flags = split_uuid(envelope.message.get_uuid())
        clock, key = int(stamp), JournalProducer(envelope.journal, producer)
        sequence = self._sequences.get(key)
        if sequence is not None:
            # The producer moves to the end: a checkpoint forgets those that have not written for longest.
            self._sequences[key] = self._sequences.pop(key)
        if clock == 0:
            # The message has opted out of sequencing. A temporary sequence delivers it and is then forgotten,
            # so that it neither changes nor depends on the state of any producer.
            sequence, clock, flags = _Sequence(key, 0, 0), 1, OUTSIDE_TXN
        elif sequence is None:
            # This is a new producer. All clocks below its first message count as acknowledged, because a
            # reader that begins in the middle of a journal does not know the earlier ones.
            sequence = self._sequences[key] = _Sequence(key, clock - 1, clock - 1)

        if flags == CONTINUE_TXN:
            # The clocks of a producer ascend in each journal. A message whose clock does not is a copy. A
            # retried append leaves one if its first answer was lost.
            if clock <= sequence.max:
                self._offsets[envelope.journal] = envelope.end
                is_acknowledged = clock <= sequence.min
                return (
                    Outcome.CONTINUE_ALREADY_ACKED if is_acknowledged else Outcome.CONTINUE_TXN_CLOCK_LARGER
                )
            # Withhold the message. The journal's offset may still pass it, because a checkpoint has the
            # transaction's begin, and the ACK makes the next reader replay from there.
            is_first = sequence.begin == NO_OFFSET
            if is_first:
                sequence.begin = envelope.begin
                self._pending.add(sequence)
            self._add_to_ring(envelope, sequence, clock)
            sequence.max = clock
            self._offsets[envelope.journal] = envelope.end
            return Outcome.CONTINUE_BEGIN_SPAN if is_first else Outcome.CONTINUE_EXTEND_SPAN

        if flags == ACK_TXN and clock <= sequence.min:
            # The ACK does not exceed the last one, so it commits none of the open messages. This is how
            # transactions are rolled back: a process that recovers from a crash appends the ACKs of its last
            # checkpoint again, in the name of the producer that crashed, so that nothing that this producer
            # wrote later counts. A zombie, a process that was replaced without noticing, may still write
            # messages after that. They open another transaction, but its commit is fenced, so no ACK follows.
            # If the ACK is lower than the last one, an older checkpoint was recovered, and the producer's
            # next messages may be new ones that reuse clocks. So `min` goes back as well: delivering such
            # messages may repeat some, but dropping them would lose some.
            if clock < sequence.min:
                _warn(
                    "ACK_TXN is less than the last one: messages may be delivered again", envelope, sequence
                )
            sequence.close(clock)
            self._pending.discard(sequence)
            self._offsets[envelope.journal] = envelope.end
            return Outcome.ACK_ROLLBACK

        if flags == ACK_TXN and sequence.begin != NO_OFFSET:
            # The ring drops the oldest messages first, so it has the whole transaction if it has the first
            # message.
            has_first = bool(sequence.entries) and sequence.entries[0].envelope.begin == sequence.begin
            outcome = Outcome.ACK_COMMIT_RING if has_first else Outcome.ACK_COMMIT_REPLAY
        elif flags == ACK_TXN:
            # The producer's messages in this journal were dropped as copies, or rolled back.
            outcome = Outcome.ACK_EMPTY
            sequence.begin = envelope.begin
        else:
            if flags != OUTSIDE_TXN:
                _warn(f"unknown flags {flags:#x} of a UUID, treated as OUTSIDE_TXN", envelope, sequence)
            if clock <= sequence.min:
                self._offsets[envelope.journal] = envelope.end
                return Outcome.OUTSIDE_ALREADY_ACKED
            if sequence.begin != NO_OFFSET:
                # The producer mixes both kinds of publishing in one journal. This message moves `min` past
                # its open messages, so no later ACK could commit them.
                _warn("OUTSIDE_TXN discards the producer's open transaction", envelope, sequence)
            outcome = Outcome.OUTSIDE_COMMIT
            sequence.entries.clear()
            sequence.begin = envelope.begin

        # The message commits its sequence up to and including its own clock, and `step` delivers these
        # messages. `max` may decrease here: messages above the ACK's clock will never be committed. The
        # journal's offset stays before the ACK until all messages are delivered, so that a reader that
        # crashes meanwhile sees the ACK again.
        self._add_to_ring(envelope, sequence, clock)
        sequence.max = clock
        self._emit, self._emit_end = sequence, envelope.end
        self._must_replay = outcome is Outcome.ACK_COMMIT_REPLAY
        return outcome

    def step(self) -> Envelope | None:
        """Return the next committed message, or None if there is none until more are queued.

        The next call counts the message as processed.

        Raises:
            SequencerError: a replay must be started first, or it had a message from outside its range.
        """
        sequence = self._emit
        if sequence is None:
            return None
        if self._delivered is not None:
            # The caller has processed the previous message when it calls again. A checkpoint that is taken
            # while the caller works on a message, or after it failed, must not count that message.
            sequence.min = self._delivered

        while True:
            if self._must_replay:
                # Messages that have left the ring come first. The iterator is removed while it runs: if it
                # raises, the range was not read to its end, and only another replay may continue.
                journal, begin, end = self.replay_range()
                replay, self._replay = self._replay, None
                if replay is None:
                    problem = f"start_replay() with the messages up to {end} must come first"
                    raise SequencerError(journal, begin, problem)
                envelope = next(replay, None)
                if envelope is None:
                    # The ring has the rest, at least the message that committed the sequence.
                    self._must_replay = False
                    continue
                if envelope.journal != journal or envelope.begin < begin or envelope.end > end:
                    problem = f"a replay of [{begin}, {end}) returned [{envelope.begin}, {envelope.end})"
                    raise SequencerError(journal, begin, f"{problem} of {envelope.journal!r}")
                self._replay = replay
                producer, stamp, _ = split_uuid(envelope.message.get_uuid())
                if producer != sequence.key.producer:
                    continue
                clock = int(stamp)
            elif sequence.entries:
                entry = sequence.entries.popleft()
                envelope, clock = entry.envelope, entry.clock
                # Release the message, as Gazette does: the slot may be overwritten only hours later, and a
                # ring of delivered messages of 1 MB would take 8 GB.
                self._ring[entry.slot] = None
            else:
                break

            # A replay includes the copies that `queue` has dropped, and, after a restart, messages that have
            # already been delivered. The ACK does not commit messages above `max`. As in Gazette, a message
            # that opted out is delivered again by the replay of its producer's transaction.
            is_copy = clock != 0 and clock <= sequence.min
            if is_copy or clock > sequence.max:
                continue
            # The reader of a checkpoint that is taken now replays from this message on.
            sequence.begin = envelope.begin
            self._delivered = clock
            return envelope

        # All messages are delivered and processed. Only now may a checkpoint pass the committing message.
        self._offsets[sequence.key.journal] = self._emit_end
        sequence.close(sequence.min)
        self._pending.discard(sequence)
        self._emit = self._delivered = None
        return None

    @property
    def needs_replay(self) -> bool:
        """Whether :meth:`start_replay` must be called before the next step."""
        return self._must_replay and self._replay is None

    def replay_range(self) -> ReplayRange:
        """Return the range to replay before the current sequence can continue.

        Raises:
            SequencerError: no replay is needed.
        """
        if self._emit is None or not self._must_replay:
            raise SequencerError("", NO_OFFSET, "no replay is needed")
        # The message that committed the sequence is always in the ring.
        return ReplayRange(self._emit.key.journal, self._emit.begin, self._emit.entries[0].envelope.begin)

    def start_replay(self, messages: Iterable[Envelope]) -> None:
        """Continue with these messages, which are those of all producers in :meth:`replay_range`.

        If the iterator raises, so does :meth:`step`. Another replay, of the range at that time, continues.

        Raises:
            SequencerError: no replay is needed.
        """
        self.replay_range()
        self._replay = iter(messages)

    def has_pending(self) -> bool:
        """Return whether a transaction that was opened since the last checkpoint is still open."""
        return bool(self._pending)

    def checkpoint(self, horizon_ns: int = 0, remembered: int = 0) -> SequencerCheckpoint:
        """Return the offsets and the producers' states, and forget producers that have been silent for long.

        Args:
            horizon_ns: A producer is forgotten if it is this far behind the newest acknowledgement of its
                journal. 0 forgets none.
            remembered: Number of producers of each journal that are remembered regardless of age, those that
                wrote last. Gazette has no such number, so a single clock that is ahead makes it forget all
                others.
        """
        least_clocks: dict[str, int] = {}
        if horizon_ns > 0:
            newest: dict[str, int] = {}
            for key, sequence in self._sequences.items():
                newest[key.journal] = max(newest.get(key.journal, 0), sequence.min)
            # Unsigned, as in Gazette: clocks smaller than the horizon wrap around, except 0.
            horizon = (horizon_ns // 100) << 4
            least_clocks = {
                journal: (clock - horizon) & MAX_CLOCK for journal, clock in newest.items() if clock
            }
        later_writers = Counter[str]()
        # From the producer that wrote most recently to the one that has not written for longest.
        for key, sequence in reversed(list(self._sequences.items())):
            is_old = sequence.max < least_clocks.get(key.journal, 0)
            if is_old and later_writers[key.journal] >= remembered:
                del self._sequences[key]
            later_writers[key.journal] += 1
        # A transaction that stays open past this checkpoint must not delay the next one as well: see
        # `has_pending`.
        self._pending.clear()
        states = tuple(
            ProducerState(key.journal, key.producer, Clock(sequence.min), sequence.begin)
            for key, sequence in sorted(self._sequences.items())
        )
        return SequencerCheckpoint(dict(self._offsets), states)

    def _add_to_ring(self, envelope: Envelope, sequence: _Sequence, clock: int) -> None:
        entry = _RingEntry(envelope, clock, sequence, self._ring_head)
        # `queue` has emptied this slot.
        self._ring[self._ring_head] = entry
        sequence.entries.append(entry)
        self._ring_head = (self._ring_head + 1) % self._ring_messages
        if self._ring_head == len(self._ring):
            self._ring.append(None)


def _warn(problem: str, envelope: Envelope, sequence: _Sequence) -> None:
    logger.warning(
        "%s journal=%s begin=%d uuid=%s min=%d max=%d open_from=%d",
        problem,
        envelope.journal,
        envelope.begin,
        envelope.message.get_uuid(),
        sequence.min,
        sequence.max,
        sequence.begin,
    )
