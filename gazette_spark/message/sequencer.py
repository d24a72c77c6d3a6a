"""Which messages of journals are committed: the reference, message by message, as Gazette's Sequencer.

A sequencer holds back messages of open transactions and drops repeated ones. Of each producer in a journal it
knows ``min``, the clock of what was last acknowledged and delivered, ``max``, the largest clock of the open
transaction, and ``begin``, where that begins in the journal. A message is queued by its flags and clock:

========  ==========================  ==========================  ==========================================
flags     condition                   outcome                     effect
========  ==========================  ==========================  ==========================================
OUTSIDE   clock ≤ min                 OUTSIDE_ALREADY_ACKED       dropped
OUTSIDE   else                        OUTSIDE_COMMIT              delivered, what is open is discarded
CONTINUE  clock ≤ min                 CONTINUE_ALREADY_ACKED      dropped
CONTINUE  clock ≤ max                 CONTINUE_TXN_CLOCK_LARGER   dropped
CONTINUE  none is open                CONTINUE_BEGIN_SPAN         held back, opens a transaction
CONTINUE  else                        CONTINUE_EXTEND_SPAN        held back
ACK       clock ≤ min                 ACK_ROLLBACK                what is open is discarded, min = clock
ACK       none is open                ACK_EMPTY                   delivers the ACK alone
ACK       all of it is in the ring    ACK_COMMIT_RING             delivers it, and the ACK
ACK       else                        ACK_COMMIT_REPLAY           the same, after a replay
========  ==========================  ==========================  ==========================================

Unknown flags count as OUTSIDE. A message with clock 0, as the nil UUID's, is delivered and changes no state.

The newest messages are kept in a ring. What an ACK commits beyond them has to be read from the journal again:
``replay_range`` tells which bytes, ``start_replay`` takes their messages. Then ``step`` returns the committed
messages one by one; an acknowledgement comes as the last message of what it commits.

A checkpoint may be taken between any two messages. A sequencer made of it, that reads each journal from its
offset on, delivers what this one had not: a message counts as delivered with the step after it. Offsets pass
an ACK when all it commits is delivered; ``min`` and ``begin`` move with each message.
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
"""Default size of the ring, that of Gazette's consumers."""

HORIZON_NS = 24 * 3600 * 1_000_000_000
"""How long Gazette's consumers remember a producer: 24 hours behind the newest of its journal."""


class Outcome(Enum):
    """What was decided about a queued message; values are Gazette's."""

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
    """Bytes ``[begin, end)`` of a journal that have to be read again."""

    journal: str
    begin: int
    end: int


class SequencerCheckpoint(NamedTuple):
    """What a sequencer is made of again."""

    offsets: dict[str, int]
    """Next byte to read, by journal."""
    states: tuple[ProducerState, ...]
    """Sorted by journal and producer."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """What is known of a producer in a journal."""

    key: JournalProducer
    min: int
    """Exclusive: clock of what was last acknowledged and delivered."""
    max: int
    """Inclusive: largest clock of the open transaction, or the clock that committed it."""
    begin: int = NO_OFFSET
    entries: deque[_Entry] = field(default_factory=deque)
    """Its messages in the ring, oldest first."""

    def finish(self, clock: int) -> None:
        """Close the transaction, whatever is in it."""
        self.min = self.max = clock
        self.begin = NO_OFFSET
        self.entries.clear()


@dataclass(slots=True, eq=False)
class _Entry:
    """A place of the ring that is taken."""

    envelope: Envelope
    clock: int
    """As it was queued: the reader's program may change the message that was delivered to it."""
    sequence: _Sequence


class Sequencer:
    """Orders the messages of any number of journals into committed ones. Pure, and for one thread.

    Call :meth:`queue` with each message in the journals' order, and after each of them :meth:`step` until it
    returns None.
    """

    def __init__(
        self,
        offsets: Mapping[str, int] | None = None,
        states: Iterable[ProducerState] = (),
        ring_messages: int = RING_MESSAGES,
    ) -> None:
        self._offsets = dict(offsets or {})
        self._sequences = {
            state.key: _Sequence(state.key, state.last_ack, state.last_ack, state.begin) for state in states
        }
        self._pending: set[_Sequence] = set()
        self._ring: list[_Entry | None] = [None] * max(1, ring_messages)
        self._head = 0
        self._emit: _Sequence | None = None
        """The sequence that is being delivered."""
        self._emit_end = 0
        """End of the message that committed it."""
        self._delivered: int | None = None
        """Clock of the message that :meth:`step` returned last, of this sequence."""
        self._must_replay = False
        self._replay: Iterator[Envelope] | None = None

    def __repr__(self) -> str:
        state = "idle" if self._emit is None else f"delivering {self._emit.key}"
        return f"Sequencer({len(self._sequences)} producers, {len(self._pending)} pending, {state})"

    @property
    def offsets(self) -> Mapping[str, int]:
        """Next byte to read in each journal. An ACK is passed when all it commits is delivered."""
        return dict(self._offsets)

    def queue(self, envelope: Envelope) -> Outcome:
        """Take the next message of a journal, and decide about it.

        Raises:
            SequencerError: :meth:`step` has not returned None yet.
        """
        if self._emit is not None:
            raise SequencerError(envelope.journal, envelope.begin, "step() has committed messages left")
        self._evict()
        producer, stamp, flags = split_uuid(envelope.message.get_uuid())
        clock = int(stamp)
        key = JournalProducer(envelope.journal, producer)
        sequence = self._sequences.get(key)
        if sequence is not None:
            # In the order in which they wrote last: a checkpoint forgets from the front.
            self._sequences[key] = self._sequences.pop(key)
        if clock == 0:
            # Clock 0 opts out: it is delivered by a sequence that nobody sees again.
            sequence, clock, flags = _Sequence(key, 0, 0), 1, OUTSIDE_TXN
        elif sequence is None:
            sequence = self._sequences[key] = _Sequence(key, clock - 1, clock - 1)
        outcome = self._decide(envelope, sequence, clock, flags)
        if outcome in DROPPED:
            self._offsets[envelope.journal] = envelope.end
        elif outcome in HELD_BACK:
            self._hold_back(envelope, sequence, clock)
        elif outcome is Outcome.ACK_ROLLBACK:
            sequence.finish(clock)
            self._pending.discard(sequence)
            self._offsets[envelope.journal] = envelope.end
        else:
            self._commit(envelope, sequence, clock, outcome)
        return outcome

    def _decide(self, envelope: Envelope, sequence: _Sequence, clock: int, flags: int) -> Outcome:
        """Return the outcome; changes nothing."""
        if flags == CONTINUE_TXN:
            if clock <= sequence.min:
                return Outcome.CONTINUE_ALREADY_ACKED
            if clock <= sequence.max:
                return Outcome.CONTINUE_TXN_CLOCK_LARGER
            is_first = sequence.begin == NO_OFFSET
            return Outcome.CONTINUE_BEGIN_SPAN if is_first else Outcome.CONTINUE_EXTEND_SPAN
        if flags == ACK_TXN:
            return self._decide_ack(envelope, sequence, clock)
        if flags != OUTSIDE_TXN:
            _warn(f"unknown flags {flags:#x} of a UUID, taken for OUTSIDE_TXN", envelope, sequence)
        if clock <= sequence.min:
            return Outcome.OUTSIDE_ALREADY_ACKED
        if sequence.begin != NO_OFFSET:
            # A producer that mixes both kinds of publishing in one journal.
            _warn("OUTSIDE_TXN discards the producer's open transaction", envelope, sequence)
        return Outcome.OUTSIDE_COMMIT

    def _decide_ack(self, envelope: Envelope, sequence: _Sequence, clock: int) -> Outcome:
        if clock < sequence.min:
            # The producer took up an older state than its last one; its next messages may be new ones with
            # clocks that were used before. To deliver them may repeat messages, to drop them would lose some.
            _warn("ACK_TXN is less than the last one: messages may be delivered again", envelope, sequence)
        if clock <= sequence.min:
            return Outcome.ACK_ROLLBACK
        if sequence.begin == NO_OFFSET:
            return Outcome.ACK_EMPTY
        if not sequence.entries or sequence.entries[0].envelope.begin != sequence.begin:
            return Outcome.ACK_COMMIT_REPLAY
        return Outcome.ACK_COMMIT_RING

    def _hold_back(self, envelope: Envelope, sequence: _Sequence, clock: int) -> None:
        if sequence.begin == NO_OFFSET:
            sequence.begin = envelope.begin
            self._pending.add(sequence)
        self._add(envelope, sequence, clock)
        sequence.max = clock
        self._offsets[envelope.journal] = envelope.end

    def _commit(self, envelope: Envelope, sequence: _Sequence, clock: int, outcome: Outcome) -> None:
        if outcome in (Outcome.OUTSIDE_COMMIT, Outcome.ACK_EMPTY):
            sequence.entries.clear()
            sequence.begin = envelope.begin
        self._add(envelope, sequence, clock)
        # May be less than it was: messages of larger clocks are not committed, and never will be.
        sequence.max = clock
        self._emit, self._emit_end = sequence, envelope.end
        self._must_replay = outcome is Outcome.ACK_COMMIT_REPLAY

    def step(self) -> Envelope | None:
        """Return the next committed message, None if there is none until more are queued.

        With the next call the message counts as processed.

        Raises:
            SequencerError: a replay has to be started first, or brought a message that is not of its range.
        """
        sequence = self._emit
        if sequence is None:
            return None
        if self._delivered is not None:
            sequence.min = self._delivered
        while (found := self._next(sequence)) is not None:
            envelope, clock = found
            # In a replay, Gazette does not take messages that opted out for repeated ones.
            is_repeated = clock != 0 and clock <= sequence.min
            if is_repeated or clock > sequence.max:
                continue
            sequence.begin = envelope.begin
            self._delivered = clock
            return envelope
        self._offsets[sequence.key.journal] = self._emit_end
        sequence.finish(sequence.min)
        self._pending.discard(sequence)
        self._emit = self._delivered = None
        return None

    def _next(self, sequence: _Sequence) -> tuple[Envelope, int] | None:
        """Return the next message of a sequence and its clock, from the replay or the ring."""
        if self._must_replay:
            if (replayed := self._next_replayed(sequence)) is not None:
                return replayed
            self._must_replay, self._replay = False, None
        if not sequence.entries:
            return None
        entry = sequence.entries.popleft()
        return entry.envelope, entry.clock

    def _next_replayed(self, sequence: _Sequence) -> tuple[Envelope, int] | None:
        replay, self._replay = self._replay, None
        if replay is None:
            journal, begin, end = self.replay_range()
            problem = f"start_replay() with the messages up to {end} has to come first"
            raise SequencerError(journal, begin, problem)
        # A replay that fails is not gone on with: its iterator may be at an end that is none.
        for envelope in replay:
            journal, begin, end = self.replay_range()
            if envelope.journal != journal or envelope.begin < begin or envelope.end > end:
                problem = f"a replay of [{begin}, {end}) brought [{envelope.begin}, {envelope.end})"
                raise SequencerError(journal, begin, f"{problem} of {envelope.journal!r}")
            producer, clock, _ = split_uuid(envelope.message.get_uuid())
            if producer == sequence.key.producer:
                self._replay = replay
                return envelope, int(clock)
        return None

    @property
    def needs_replay(self) -> bool:
        """Whether :meth:`start_replay` has to come before the next step."""
        return self._must_replay and self._replay is None

    def replay_range(self) -> ReplayRange:
        """Return what has to be replayed before the sequence that is being delivered can go on.

        Raises:
            SequencerError: nothing is.
        """
        if self._emit is None or not self._must_replay:
            raise SequencerError("", NO_OFFSET, "no replay is needed")
        # The message that committed the sequence is always in the ring.
        return ReplayRange(self._emit.key.journal, self._emit.begin, self._emit.entries[0].envelope.begin)

    def start_replay(self, messages: Iterable[Envelope]) -> None:
        """Go on with these messages, those of all producers in :meth:`replay_range`.

        If their iterator raises, :meth:`step` does; another replay, of the range as it is then, goes on.

        Raises:
            SequencerError: no replay is needed.
        """
        self.replay_range()
        self._replay = iter(messages)

    def has_pending(self) -> bool:
        """Tell whether a transaction that was opened since the last checkpoint is still open."""
        return bool(self._pending)

    def checkpoint(self, horizon_ns: int = 0, remembered: int = 0) -> SequencerCheckpoint:
        """Return offsets and producers' states, and forget producers that were not seen for long.

        Args:
            horizon_ns: A producer is forgotten this long before the newest acknowledgement of its journal; 0:
                none is.
            remembered: Producers of each journal that are kept at any age, those that wrote last. Gazette
                keeps none, so one clock that is ahead makes it forget all others.
        """
        least: dict[str, int] = {}
        if horizon_ns > 0:
            newest: dict[str, int] = {}
            for key, sequence in self._sequences.items():
                newest[key.journal] = max(newest.get(key.journal, 0), sequence.min)
            # Unsigned as in Gazette: clocks smaller than the horizon wrap around, but for 0.
            reach = (horizon_ns // 100) << 4
            least = {journal: (clock - reach) & MAX_CLOCK for journal, clock in newest.items() if clock}
        wrote_later = Counter[str]()
        for key, sequence in reversed(list(self._sequences.items())):
            if sequence.max < least.get(key.journal, 0) and wrote_later[key.journal] >= remembered:
                del self._sequences[key]
            wrote_later[key.journal] += 1
        self._pending.clear()
        states = tuple(
            ProducerState(key.journal, key.producer, Clock(sequence.min), sequence.begin)
            for key, sequence in sorted(self._sequences.items())
        )
        return SequencerCheckpoint(dict(self._offsets), states)

    def _evict(self) -> None:
        """Make the next place of the ring free; ``begin`` still tells where the sequence begins."""
        entry = self._ring[self._head]
        if entry is not None and entry.sequence.entries and entry.sequence.entries[0] is entry:
            entry.sequence.entries.popleft()
        self._ring[self._head] = None

    def _add(self, envelope: Envelope, sequence: _Sequence, clock: int) -> None:
        entry = _Entry(envelope, clock, sequence)
        self._ring[self._head] = entry
        sequence.entries.append(entry)
        self._head = (self._head + 1) % len(self._ring)


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
