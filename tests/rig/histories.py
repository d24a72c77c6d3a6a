"""Histories of messages in journals, written as words or drawn at random, and sequencers that run them.

The word ``A3K`` is a message of producer A with clock 3: C is CONTINUE_TXN, K is ACK_TXN, O is OUTSIDE_TXN, U
means unknown flags. ``b/A3K`` is in journal ``b``. Each message has ten bytes.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gazette_spark.message import Clock, Envelope, Outcome, ProducerId, Sequencer, build_uuid, split_uuid

FLAGS = {"O": 0, "C": 1, "K": 2, "U": 3}
MESSAGE_BYTES = 10
DEFAULT_JOURNAL = "a"


def producer_named(name: str) -> ProducerId:
    return ProducerId(bytes([ord(name), 1, 2, 3, 4, 5]))


@dataclass(slots=True)
class Stamp:
    """A message that consists of its UUID."""

    stamp: uuid.UUID

    def get_uuid(self) -> uuid.UUID:
        return self.stamp

    def set_uuid(self, stamp: uuid.UUID) -> None:
        self.stamp = stamp

    def new_acknowledgement(self, journal: str) -> Stamp:
        return Stamp(uuid.UUID(int=0))

    def __bytes__(self) -> bytes:
        return self.stamp.bytes


_WORD = re.compile(r"(?:(\w+)/)?([A-Z])(\d+)([OCKU])")


def messages(text: str, begins: Mapping[str, int] | None = None) -> list[Envelope]:
    """Return the messages of words; ``begins`` has the first offset of each journal, 0 by default."""
    at = dict(begins or {})
    found = []
    for word in text.split():
        parts = _WORD.fullmatch(word)
        assert parts, word
        journal = parts[1] or DEFAULT_JOURNAL
        stamp = build_uuid(producer_named(parts[2]), Clock(int(parts[3])), FLAGS[parts[4]])
        begin = at.get(journal, 0)
        at[journal] = begin + MESSAGE_BYTES
        found.append(Envelope(journal, begin, at[journal], Stamp(stamp)))
    return found


def word_of(envelope: Envelope) -> str:
    producer, clock, flags = split_uuid(envelope.message.get_uuid())
    journal = "" if envelope.journal == DEFAULT_JOURNAL else f"{envelope.journal}/"
    kind = next((kind for kind, known in FLAGS.items() if known == flags), "U")
    return f"{journal}{chr(producer[0]) if producer[0] else '0'}{int(clock)}{kind}"


def replayed(history: Sequence[Envelope], sequencer: Sequencer) -> Iterator[Envelope]:
    """Return the messages in the range that a sequencer wants to replay."""
    journal, begin, end = sequencer.replay_range()
    return (each for each in history if each.journal == journal and begin <= each.begin and each.end <= end)


@dataclass(frozen=True)
class Stop:
    queued: int
    """Number of messages queued before the stop, including those that a restart repeats."""
    deliver: int
    """Maximum number of messages delivered before the checkpoint."""
    horizon_ns: int = 0
    ring: int = 0
    """Ring size of the sequencer that resumes from the checkpoint; 0: the same sequencer continues."""


@dataclass(frozen=True)
class Case:
    history: Sequence[Envelope]
    ring: int
    stops: Sequence[Stop] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ring": self.ring,
            "messages": [
                {"journal": e.journal, "begin": e.begin, "end": e.end, "uuid": str(e.message.get_uuid())}
                for e in self.history
            ],
            "stops": [
                {"queued": s.queued, "deliver": s.deliver, "horizonNs": s.horizon_ns, "ring": s.ring}
                for s in self.stops
            ],
        }


class Run:
    """A running case and its trace: each outcome, message, replay and checkpoint as a line of text."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.trace: list[str] = []
        self.delivered: list[Envelope] = []
        """Messages counted as delivered, in order."""
        self._sequencer = Sequencer(ring_messages=case.ring)

    def to_end(self) -> Run:
        stops = {stop.queued: stop for stop in self.case.stops}
        queued = at = 0
        while at < len(self.case.history):
            envelope = self.case.history[at]
            at += 1
            if envelope.begin < self._sequencer.offsets.get(envelope.journal, 0):
                continue  # Already read before a restart.
            queued += 1
            self._queue(envelope)
            if (stop := stops.get(queued)) is not None:
                done = self._deliver(stop.deliver)
                self._checkpoint(stop)
                if stop.ring:
                    if stop.deliver and not done:
                        self.delivered.pop()  # The sequencer took no step after it.
                    at = 0
                    continue
            self._deliver(-1)
        self._checkpoint(Stop(queued, 0))
        return self

    def _queue(self, envelope: Envelope) -> None:
        outcome = self._sequencer.queue(envelope)
        self.trace.append(f"queue {outcome.value}")
        if outcome is Outcome.ACK_COMMIT_REPLAY:
            journal, begin, end = self._sequencer.replay_range()
            self.trace.append(f"replay {journal} {begin} {end}")
            self._sequencer.start_replay(replayed(self.case.history, self._sequencer))

    def _deliver(self, most: int) -> bool:
        """Deliver at most a given number of messages; return whether all were delivered."""
        while most:
            if (found := self._sequencer.step()) is None:
                return True
            self.trace.append(f"message {found.journal} {found.begin} {found.end} {found.message.get_uuid()}")
            self.delivered.append(found)
            most -= 1
        return False

    def _checkpoint(self, stop: Stop) -> None:
        self.trace.append(f"pending {'yes' if self._sequencer.has_pending() else 'no'}")
        offsets, states = self._sequencer.checkpoint(stop.horizon_ns)
        self.trace += [f"offset {journal} {offset}" for journal, offset in sorted(offsets.items())]
        self.trace += [f"state {s.journal} {s.producer.hex()} {s.last_ack:d} {s.begin}" for s in states]
        if stop.ring:
            self._sequencer = Sequencer(offsets, states, stop.ring)


def random_case(seed: int) -> Case:
    """Return a random history, well formed or not, and random stops in it."""
    draw = random.Random(seed)
    most = draw.choice([60] * 19 + [1_000])
    producers = [bytes([draw.randrange(256) for _ in range(6)]) for _ in range(draw.randint(1, 4))]
    journals = ["a/one", "b/two", "c/three"][: draw.choice([1, 1, 2, 3])]
    # Steps of 1, and steps of a publisher; small clocks wrap below the horizon.
    tick = draw.choice([1, 1, 16, 160])
    base = draw.choice([0, 0, 2227086848019753072, (1 << 64) - 60 * tick])
    ends = dict.fromkeys(journals, 0)
    history: list[Envelope] = []
    sent: list[uuid.UUID] = []
    clocks = dict.fromkeys(producers, base)
    for _ in range(draw.randint(1, most)):
        producer = draw.choice(producers)
        kind = draw.random()
        if kind < 0.12 and sent:
            stamp = draw.choice(sent)  # A retried append.
        elif kind < 0.15:
            stamp = draw.choice(
                [uuid.UUID(int=0), build_uuid(ProducerId(producer), Clock(0), draw.randrange(4))]
            )
        else:
            if draw.random() < 0.15:
                back = draw.randrange(6) * tick
                clocks[producer] = max(1, clocks[producer] - back)
            else:
                clocks[producer] += tick * draw.choice([1, 1, 1, 2])
            flags = draw.choice([1] * 12 + [2] * 5 + [0] * 2 + [3, 0x3FF])
            stamp = build_uuid(ProducerId(producer), Clock(min(clocks[producer], (1 << 64) - 1)), flags)
            if flags in (0, 2) and draw.random() < 0.1:
                clocks[producer] = max(1, clocks[producer] - 3 * tick)
        sent.append(stamp)
        journal = draw.choice(journals)
        begin = ends[journal] + draw.choice([0, 0, 0, 7])  # Blank lines, or lost bytes.
        ends[journal] = begin + draw.randint(1, 30)
        history.append(Envelope(journal, begin, ends[journal], Stamp(stamp)))
    stops = [
        Stop(
            queued,
            draw.randrange(4),
            draw.choice([0, 0, 1, 99, 100, 1_000, 20_000, 24 * 3600 * 10**9]),
            draw.choice([0, 1, 2, 3, 5, 8192]),
        )
        for queued in sorted(draw.sample(range(1, len(history) + 1), min(len(history), draw.randrange(4))))
    ]
    return Case(history, draw.choice([1, 1, 2, 2, 3, 4, 5, 8, 16, 64, 8192]), stops)
