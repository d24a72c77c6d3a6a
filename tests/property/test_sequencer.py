"""Which messages are committed depends on the publishers alone, not on rings, checkpoints and restarts."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.message import Clock, Envelope, build_uuid
from gazette_spark.message.uuids import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN
from tests.rig.histories import MESSAGE_BYTES, Case, Run, Stamp, Stop, producer_named

JOURNALS = ("a", "b")


@dataclass
class World:
    history: list[Envelope] = field(default_factory=list)
    committed: list[Envelope] = field(default_factory=list)
    ends: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    publishers: int = 0

    def append(self, journal: str, stamps: list[uuid.UUID]) -> list[Envelope]:
        begin = self.ends[journal]
        added = []
        for stamp in stamps:
            added.append(Envelope(journal, begin, begin + MESSAGE_BYTES, Stamp(stamp)))
            begin += MESSAGE_BYTES
        self.ends[journal] = begin
        self.history += added
        return added


class Publisher:
    """A publisher of transactions or single messages; it may repeat each append until its next one."""

    def __init__(self, world: World, *, outside: bool) -> None:
        self._world = world
        self._outside = outside
        self._begin()

    def _begin(self) -> None:
        self._producer = producer_named(chr(ord("A") + self._world.publishers))
        self._world.publishers += 1
        self._clock = Clock(1_000 * self._world.publishers)
        self._last: dict[str, list[uuid.UUID]] = {}
        self._open: dict[str, list[Envelope]] = {}
        """Messages of the open transaction by journal."""
        self._intents: dict[str, uuid.UUID] = {}
        """Acknowledgements of the previous transaction by journal."""
        self._unacknowledged: dict[str, list[Envelope]] = {}
        """Messages of the previous transaction in journals without its acknowledgement."""

    def _stamp(self, flags: int) -> uuid.UUID:
        self._clock = self._clock.ticked()
        return build_uuid(self._producer, self._clock, flags)

    def publish(self, journal: str, count: int) -> None:
        stamps = [self._stamp(OUTSIDE_TXN if self._outside else CONTINUE_TXN) for _ in range(count)]
        added = self._world.append(journal, stamps)
        self._last[journal] = stamps
        if self._outside:
            self._world.committed += added
        else:
            self._open.setdefault(journal, []).extend(added)

    def retry(self, journal: str) -> None:
        if journal in self._last:
            self._world.append(journal, self._last[journal])

    def acknowledge(self, appended: int) -> None:
        """End the transaction. After appending fewer intents than there are journals, it must crash next."""
        self._intents = {journal: self._stamp(ACK_TXN) for journal in self._open}
        self._unacknowledged, self._open = self._open, {}
        for journal in list(self._intents)[:appended]:
            self._append_intent(journal)

    def _append_intent(self, journal: str) -> None:
        self._last[journal] = [self._intents[journal]]
        added = self._world.append(journal, self._last[journal])
        if journal in self._unacknowledged:
            self._world.committed += [*self._unacknowledged.pop(journal), *added]

    def crash(self) -> None:
        """Append the last transaction's intents and continue as another producer. Open messages are lost."""
        for journal in self._intents:
            self._append_intent(journal)
        self._begin()


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World()
    publishers = [Publisher(world, outside=draw(st.booleans())) for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 20))):
        publisher = draw(st.sampled_from(publishers))
        match draw(st.sampled_from(["publish", "publish", "publish", "retry", "acknowledge", "crash"])):
            case "publish":
                publisher.publish(draw(st.sampled_from(JOURNALS)), draw(st.integers(1, 3)))
            case "retry":
                publisher.retry(draw(st.sampled_from(JOURNALS)))
            case "acknowledge":
                appended = draw(st.sampled_from([2, 2, 1, 0]))
                publisher.acknowledge(appended)
                if appended < 2:
                    publisher.crash()
            case "crash":
                publisher.crash()
    return world


STOPS = st.lists(
    st.builds(Stop, st.integers(1, 120), st.integers(0, 4), st.just(0), st.sampled_from([1, 2, 5, 1_000])),
    unique_by=lambda stop: stop.queued,
    max_size=20,
)


@given(worlds(), st.integers(2, 6), STOPS)
def test_what_is_committed_is_delivered_once(world: World, ring: int, stops: list[Stop]) -> None:
    """Any ring and any restarts deliver each committed message once, in order of acknowledgement."""
    assert Run(Case(world.history, 10_000)).to_end().delivered == world.committed
    assert Run(Case(world.history, 1)).to_end().delivered == world.committed
    assert Run(Case(world.history, ring, stops)).to_end().delivered == world.committed


@given(worlds(), st.sampled_from([1, 2, 1_000]), st.integers(0, 3))
def test_a_restart_at_every_message(world: World, ring: int, deliver: int) -> None:
    # After each restart, an ACK is read again until all its messages are delivered.
    stops = [Stop(queued, deliver, 0, ring) for queued in range(1, 3 * len(world.history) + 1)]
    assert Run(Case(world.history, ring, stops)).to_end().delivered == world.committed
