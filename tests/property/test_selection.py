"""Journals come and go, brokers answer late, queries restart: only a real loss is an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.plan import Planner
from gazette_spark.client._transport import retry
from gazette_spark.errors import (
    GazetteError,
    JournalNotFoundError,
    JournalRecreatedError,
    OtherJournalsError,
)
from gazette_spark.offsets import JournalOffsets
from tests.oracles.brokers import FakeClient, FakeJournal, lines, planner_of
from tests.rig.examples import examples

NAMES = ("log/a", "log/b", "log/c")

steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "half", "create", "create same", "delete", "look", "look", "restart"]),
        st.sampled_from(NAMES),
        st.integers(1, 4),
    ),
    max_size=40,
)


@dataclass
class World:
    client: FakeClient
    planner: Planner
    position: JournalOffsets
    seen: dict[str, int] = field(default_factory=dict)
    """Write heads by journal when this run of the query last looked."""
    gone: set[str] = field(default_factory=set)
    """Journals that the last look found missing."""
    deleted: dict[str, bytes] = field(default_factory=dict)
    """Content of deleted journals."""
    read: dict[str, bytes] = field(default_factory=dict)
    """Content read from each journal, as far as this run or its position has recorded it."""

    def step(self, what: str, name: str, number: int) -> None:
        journals = self.client.journals
        if what == "create" and name not in journals:
            self.client.revision += 1
            content = b"%09d\n" % self.client.revision * number
            journals[name] = FakeJournal(content, create_revision=self.client.revision)
        if what == "create same" and name in self.deleted and name not in journals:
            self.client.revision += 1
            journals[name] = FakeJournal(self.deleted[name], create_revision=self.client.revision)
        if what == "delete" and name in journals:
            self.client.revision += 1
            self.deleted[name] = journals.pop(name).content
        if what in ("append", "half") and name in journals:
            journals[name].content += lines(number) if what == "append" else b"h"
        if what == "restart":
            self.restart()
        if what == "look":
            self.look(ReadLimits(max_bytes=number * 10))

    def restart(self) -> None:
        self.position = JournalOffsets.from_json(self.position.to_json())
        self.planner, client = planner_of(self.client.journals)
        client.revision, self.client = self.client.revision, client
        self.seen = {}
        self.read = {name: each for name, each in self.read.items() if name in self.position.fingerprints}

    def expected(self) -> type[GazetteError] | None:
        found: type[GazetteError] | None = None
        for name, reached in self.position.read_through.items():
            journal = self.client.journals.get(name)
            if journal is not None and journal.create_revision > self.position.revision and reached > 0:
                read = self.read.get(name, b"nothing")
                if journal.content[: len(read)] != read:
                    return JournalRecreatedError
            if journal is None and name not in self.gone and self.seen.get(name, reached + 1) > reached:
                found = JournalNotFoundError
        return found

    def look(self, limits: ReadLimits) -> None:
        expected = self.expected()
        try:
            end = self.planner.next(self.position, limits)
        except GazetteError as error:
            assert type(error) is expected, (error, expected)  # noqa: PT017 - none may be expected
            return
        assert expected is None, (expected, self.position)
        heads = {name: journal.head for name, journal in self.client.journals.items()}
        known = {name: head for name, head in heads.items() if name in self.position.read_through}
        self.seen |= known
        self.gone = self.position.read_through.keys() - heads.keys()
        assert set(end.gone) == self.gone
        for name, reached in end.read_through.items():
            if reached > self.position.read_through.get(name, 0):
                self.read[name] = self.client.journals[name].content[:reached]
        self.position = end


@settings(deadline=None, max_examples=examples(200))
@given(steps)
def test_losses_that_were_seen_are_errors_and_no_others(given_steps: list[tuple[str, str, int]]) -> None:
    journals = {name: FakeJournal(lines(2)) for name in NAMES[:2]}
    planner, client = planner_of(journals, startingOffsets="earliest")
    world = World(client, planner, planner.next(planner.initial()))
    for step in given_steps:
        world.step(*step)
    if world.expected() is None:
        # New journals are recorded in one batch and read in the next.
        for _ in range(4):
            world.look(ReadLimits())
        for name, journal in world.client.journals.items():
            assert world.position.read_through[name] == journal.content.rfind(b"\n") + 1


@pytest.fixture(scope="module", autouse=True)
def _no_pause() -> Iterator[None]:
    """Remove the pause before an outdated broker is queried again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "BACKOFF_S", (0.0,) * 50)
        yield


lagging_steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "create", "delete", "look", "look", "look", "restart"]),
        st.integers(0, 5),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    max_size=30,
)


@settings(max_examples=examples(200))
@given(lagging_steps)
def test_a_broker_that_is_behind_leaves_no_mistake(given_steps: list[tuple[str, int, list[int]]]) -> None:
    """Each answer may have another revision; the position's revision never goes back, and errors pass."""
    planner, client = planner_of({}, failOnDataLoss="false")
    client.timeout_s = 30.0
    client.change("log/0", FakeJournal(lines(1)))
    position = planner.next(JournalOffsets({"log/0": 0}))
    made = 1

    def look(lags: list[int]) -> JournalOffsets:
        client.lags[:] = lags
        try:
            end = planner.next(position)
        except JournalNotFoundError as error:
            # An older listing still had it.
            assert error.journal not in client.journals  # noqa: PT017 - it need not be raised
            assert lags
            return position
        assert end.revision >= position.revision
        return end

    for what, number, lags in given_steps:
        there = sorted(client.journals)
        match what:
            case "append" if there:
                client.journals[there[number % len(there)]].content += lines(1)
            case "create":  # Every name is new, so no journal is created again.
                client.change(f"log/{made}", FakeJournal(lines(2)))
                made += 1
            case "delete" if there:
                client.change(there[number % len(there)], None)
            case "look":
                position = look(lags)
            case "restart":
                position = JournalOffsets.from_json(position.to_json())
                planner = Planner(client, planner._view.options)  # type: ignore[arg-type]  # A fake client's.
    for _ in range(3):
        position = look([])
    for name, journal in client.journals.items():
        assert position.read_through[name] == journal.head


sets = st.frozensets(st.sampled_from(["log/a", "log/b", "other/c", "other/d"]))


@settings(max_examples=examples(200))
@given(sets.filter(bool), sets, sets)
def test_a_position_of_another_source_is_refused(
    position: frozenset[str], deleted: frozenset[str], selected: frozenset[str]
) -> None:
    """Sharing no journal with the selection means another source, unless all its journals were deleted."""
    planner, client = planner_of({name: FakeJournal(lines(2)) for name in sorted(position | selected)})
    start = planner_of(client.journals, journals=",".join(sorted(position)))[0].initial()
    for name in deleted & position:
        client.change(name, None)
    selected -= deleted & position
    options = {"selector": ",".join(f"name={name}" for name in sorted(selected)) or "name=log/none"}
    planner = planner_of(client.journals, failOnDataLoss="false", **options)[0]
    another = bool(selected) and not position & selected and bool(position - deleted)
    for call in (lambda: planner.next(start.at("")), lambda: planner.pieces(start.at(""), start.at(""))):
        try:
            call()
        except OtherJournalsError as error:
            assert another
            assert set(error.previous) == position - deleted  # noqa: PT017
            assert set(error.selected) == selected  # noqa: PT017
        else:
            assert not another
