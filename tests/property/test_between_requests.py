"""Whatever happens between two requests of a query, its rows are every record, once.

A decision of the planner or the client may need several answers of brokers, such as a list of fragments and a
write head. Here, the world may move before each request of a query, on the driver and in its tasks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict

from gazette_spark import source
from gazette_spark._planning import plan, view
from gazette_spark._planning.listing import RequestedJournals, selector_of
from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.broker.settings import ServingSettings, StorageSettings
from gazette_spark.client import Client, Listing
from gazette_spark.client._read import heads
from gazette_spark.client._transport import retry
from gazette_spark.client._transport.channel import Connection
from gazette_spark.errors import GazetteError, JournalNotFoundError, OtherJournalsError, SuspendedError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.source import GazetteDataSource
from gazette_spark.testing.micro_batch import CRASH_POINTS, Crash, CrashPoint, MicroBatches
from tests.property.test_source_machine import SCHEMA
from tests.rig.examples import examples

Event = tuple[int, str, int]
"""Number of requests before it, its method, and the number of its journal."""

serial = itertools.count()


@dataclass
class Journal:
    name: str
    content: bytes = b""
    is_selected: bool = True
    stored: int = 0
    """Offset before which all bytes are in the store, or are on their way to it."""
    was_away: bool = False
    """Whether it was not selected for a time."""

    def records(self, begin: int) -> list[tuple[int, int, bytes]]:
        ends = [at + 1 for at, octet in enumerate(self.content) if octet == 10]
        spans = zip([0, *ends], ends, strict=False)
        return [(low, high, self.content[low : high - 1]) for low, high in spans if low >= begin]

    @property
    def boundary(self) -> int:
        return self.content.rfind(b"\n") + 1


class World:
    """The journals of one query, and what still happens to them."""

    def __init__(self, broker: EmbeddedBroker, client: Client, events: Sequence[Event]) -> None:
        self.broker, self.client = broker, client
        self.prefix = f"prop/between-{next(serial)}/"
        self.journals: list[Journal] = []
        self.deleted: dict[str, Journal] = {}
        self.old_lists = 0
        """Number of times that the query still gets its last list."""
        self.reached: dict[str, int] = {}
        """Offsets up to which the query has committed rows."""
        self.events = list(events)
        self.log: list[str] = []
        self._requests = 0
        self._is_moving = False

    def before_request(self) -> None:
        """Let the events happen whose turn it is."""
        while self.events and not self._is_moving:  # An event also makes requests.
            wait, what, number = self.events[0]
            if self._requests < wait:
                self._requests += 1
                return
            self._requests = 0
            del self.events[0]
            self.move(what, number)

    def move(self, what: str, number: int) -> None:
        if not self.journals:
            return
        self.log.append(f"{what} {number}")
        self._is_moving = True
        journal = self.journals[number % len(self.journals)]
        getattr(self, what)(journal)
        self.see_stored()
        self._is_moving = False

    def see_stored(self) -> None:
        for each in self.journals:
            live = self.broker.parts.registry.get(each.name)
            each.stored = max([each.stored, *(fragment.end for fragment in live.view.closed)]) if live else 0

    def create(self, _journal: Journal | None = None) -> None:
        name = f"{self.prefix}{len(self.journals) + len(self.deleted)}"
        labels = {"app.gazette.dev/read": "yes"}
        self.client.create_journals(journal_spec(name, labels=labels, codec="NONE", refresh_interval_s=3600))
        self.journals.append(Journal(name))

    def append(self, journal: Journal, content: bytes = b"one\n") -> None:
        self.client.append(journal.name, content)
        journal.content += content

    def append_many(self, journal: Journal) -> None:
        self.append(journal, b"some\n\nrecords and half of\n one")

    def suspend(self, journal: Journal) -> None:
        with suppress(SuspendedError):
            self.client.append(journal.name, b"", suspend=pb.AppendRequest.SUSPEND_NOW)

    def store(self, _journal: Journal) -> None:
        self.broker.flush()

    def prune(self, journal: Journal) -> None:
        """Delete stored fragments that the query has read."""
        if (live := self.broker.parts.registry.get(journal.name)) is not None:
            for fragment in live.view.closed:
                if fragment.mod_time and fragment.end <= self.reached.get(journal.name, 0):
                    Path(self.broker.root, fragment.content_path).unlink()
            live.refresh()

    def show_old_list(self, _journal: Journal) -> None:
        self.old_lists = 3

    def select(self, journal: Journal) -> None:
        """Select a journal by its label, or deselect it."""
        journal.is_selected, journal.was_away = not journal.is_selected, True
        spec = self.client.get_journal(journal.name).spec
        spec.labels.labels[0].value = "yes" if journal.is_selected else "no"
        self.client.apply([pb.ApplyRequest.Change(expect_mod_revision=-1, upsert=spec)])

    def delete(self, journal: Journal) -> None:
        self.client.apply([pb.ApplyRequest.Change(expect_mod_revision=-1, delete=journal.name)])
        self.journals.remove(journal)
        self.deleted[journal.name] = journal


world: World | None = None
"""The world of the current query."""


class OldLists(RequestedJournals):
    """A list that may be old, as that of a watch is for a moment. An unchanged one is the same object."""

    last: Listing | None = None

    def latest(self) -> Listing:
        if self.last is not None and world is not None and world.old_lists:
            world.old_lists -= 1
            return self.last
        return self.fresh()

    def fresh(self) -> Listing:
        listing = super().fresh()
        if self.last is None or self.last.revision != listing.revision:
            self.last = listing
        return self.last


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    metadata = Connection.metadata

    def before_each(connection: Connection, *claims: Any) -> Any:
        if world is not None:
            world.before_request()
        return metadata(connection, *claims)

    # The broker stores nothing by itself.
    storage = StorageSettings(fsync=False, pulse_interval_s=3600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "metadata", before_each)
        patch.setattr(plan, "follow", lambda client, options: OldLists(client, selector_of(options)))
        patch.setattr(plan, "IDLE_POLL_S", 0.0)
        # Requests one after the other, so that an example always does the same.
        patch.setattr(view, "THREADS", 1)
        patch.setattr(heads, "CALLS_IN_FLIGHT", 1)
        patch.setattr(retry, "BACKOFF_S", (0.001,) * 6)
        root = tmp_path_factory.mktemp("broker")
        with EmbeddedBroker(root, storage=storage, serving=ServingSettings(min_append_rate=0)) as opened:
            yield opened


STARTS = {
    "earliest": {"startingOffsets": "earliest"},
    "latest": {"startingOffsets": "latest"},
    "1970": {"startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "latest"},
    "3000": {"startingTimestamp": "32503680000000", "startingOffsetsByTimestampStrategy": "latest"},
}
HAPPENS = ["append", "append", "append_many", "create", "suspend", "store"]
numbers = st.integers(0, 3)
events = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.sampled_from([*HAPPENS, "prune", "show_old_list", "select", "delete"]),
        numbers,
    ),
    max_size=15,
)


@dataclass(frozen=True)
class Turn:
    """How the query runs for some batches."""

    batches: int = 99
    available_now: bool = False
    crash: CrashPoint | None = None
    options: dict[str, str] = field(default_factory=dict)


LAST = Turn()

turns = st.builds(
    Turn,
    st.integers(1, 4),
    st.booleans(),
    st.none() | st.sampled_from(CRASH_POINTS),
    st.fixed_dictionaries(
        {},
        optional={
            "maxBytesPerTrigger": st.sampled_from(["1", "30"]),
            "maxRecordsPerTrigger": st.sampled_from(["1", "3"]),
            "maxFragmentsPerTrigger": st.just("1"),
            "maxBytesPerPartition": st.just("10"),
        },
    ),
)


@pytest.mark.parametrize(
    ("before", "event", "turn"),
    [
        ([], "append", Turn(1)),
        ([("suspend", 0)], "append", Turn(1)),
        ([("create", 0)], "delete", Turn(available_now=True)),
    ],
)
def test_one_event_before_each_request(
    broker: EmbeddedBroker, before: list[tuple[str, int]], event: str, turn: Turn
) -> None:
    """A new journal gets its first bytes, a suspended one is resumed, or a listed one is deleted."""
    for wait in range(10):
        check(broker, before, [(wait, event, 0)], [turn])


@settings(max_examples=examples(40))
@given(
    before=st.lists(st.tuples(st.sampled_from(HAPPENS), numbers), max_size=6),
    events=events,
    where=st.sampled_from(sorted(STARTS)),
    turns=st.lists(turns, min_size=1, max_size=3),
    has_admission_control=st.booleans(),
)
def test_every_record_is_a_row(
    broker: EmbeddedBroker,
    *,
    before: list[tuple[str, int]],
    events: list[Event],
    where: str,
    turns: list[Turn],
    has_admission_control: bool,
) -> None:
    check(broker, before, events, turns, where=where, has_admission_control=has_admission_control)


def check(
    broker: EmbeddedBroker,
    before: list[tuple[str, int]],
    events: list[Event],
    turns: list[Turn],
    *,
    where: str = "earliest",
    has_admission_control: bool = True,
) -> None:
    global world  # noqa: PLW0603 - requests are made in many places
    with Client(broker.endpoint) as client:
        moving = World(broker, client, events)
        moving.create()
        for what, number in before:
            moving.move(what, number)
        world = moving
        try:
            run_query(moving, MicroBatches(admission_control=has_admission_control), where, turns)
        except BaseException as error:
            error.add_note("\n".join(moving.log))
            raise
        finally:
            world = None
            for journal in list(moving.journals):
                moving.delete(journal)


def run_query(world: World, query: MicroBatches, where: str, turns: list[Turn]) -> None:
    options = {"brokerAddress": world.broker.endpoint, "format": "raw"} | STARTS[where]
    options["selector"] = f"prefix={world.prefix},app.gazette.dev/read=yes"
    at_start = {journal.name: journal.boundary for journal in world.journals}
    begins: dict[str, int] = {}
    for turn in [*turns, LAST]:
        if turn is LAST:
            world.events.clear()
        world.log.append(str(turn))
        earlier = {each.name: each.boundary for each in world.journals if each.is_selected}
        try:
            is_done = run_turn(world, query, turn, options | turn.options)
        except GazetteError as error:
            # A journal may be gone with unread bytes, between two runs, or before the query has started.
            gone = world.deleted.get(error.journal) if isinstance(error, JournalNotFoundError) else None
            is_lost = gone is not None and len(gone.content) > world.reached.get(gone.name, 0)
            # Or its journals are deselected while new ones are selected: see `check_continued`.
            is_refused = isinstance(error, OtherJournalsError) and not all(
                each.is_selected for each in world.journals
            )
            if is_lost or is_refused or re.search("it is gone, |matches no journal", str(error)):
                return
            raise
        ends = offsets_of(query, max(query.offset_log, default=-1))
        if not begins and 0 in query.offset_log:
            begins = offsets_of(query, 0)
            check_start(world, where, begins, at_start)
        # A run with Trigger.AvailableNow reads what was there when it began.
        for each in world.journals if turn.available_now and is_done and query.admission_control else []:
            if each.is_selected and not each.was_away and each.name in ends:
                assert ends[each.name] >= earlier.get(each.name, 0)
    assert is_done, "the query goes on forever"
    for each in world.journals:
        rows = [row[1:] for row in query.rows() if row[0] == each.name]
        records = each.records(begins.get(each.name, 0))
        assert rows == (records if each.is_selected else records[: len(rows)])


def run_turn(world: World, query: MicroBatches, turn: Turn, options: dict[str, str]) -> bool:
    """Run some batches, and return whether there is nothing more to read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "ADMISSION_CONTROL", query.admission_control)
        made = GazetteDataSource(CaseInsensitiveDict(options)).streamReader(SCHEMA)
    try:
        run = query.start(lambda: made, available_now=turn.available_now)
        for number in range(99 if turn.available_now else turn.batches):
            if not run.batch(crash=None if number else turn.crash):
                return True
            world.reached = offsets_of(query, max(query.commit_log))
    except Crash:
        pass
    finally:
        made.stop()
    assert not turn.available_now or turn.crash, "a run with AvailableNow does not end"
    return False


def offsets_of(query: MicroBatches, batch_id: int) -> dict[str, int]:
    text = query.offset_log.get(batch_id)
    return dict(JournalOffsets.from_json(text).read_through) if text else {}


def check_start(world: World, where: str, begins: dict[str, int], at_start: dict[str, int]) -> None:
    world.see_stored()  # The planner's own appends of no bytes close fragments.
    for journal in (each for each in world.journals if each.name in begins):
        begin = begins[journal.name]
        match where:
            case "earliest" | "1970":
                assert begin == 0
            case "latest":
                assert begin in (0, *(end for _, end, _ in journal.records(0)))
                assert begin >= at_start.get(journal.name, 0)
            case "3000":  # Only bytes that were stored in time are left out.
                assert begin <= journal.stored
