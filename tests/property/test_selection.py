"""Whatever comes, goes and restarts: a loss that was seen is an error, one that was none never is."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.errors import GazetteError, JournalNotFoundError, JournalRecreatedError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.scan.admission import Limits
from gazette_spark.scan.planner import Planner
from tests.oracles.brokers import FakeClient, FakeJournal, lines, planner_of
from tests.rig.examples import examples

NAMES = ("log/a", "log/b", "log/c")

steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "half", "create", "delete", "look", "look", "restart"]),
        st.sampled_from(NAMES),
        st.integers(1, 4),
    ),
    max_size=40,
)


@dataclass
class World:
    """Journals, a query over them, and what somebody knows who saw all of it."""

    client: FakeClient
    planner: Planner
    position: JournalOffsets
    seen: dict[str, int] = field(default_factory=dict)
    """Write heads when this run of the query looked last."""
    remembered: dict[str, int] = field(default_factory=dict)
    """Write heads when the position was made."""

    def step(self, what: str, name: str, number: int) -> None:
        """Do one thing, if it can be done."""
        journals = self.client.journals
        if what == "create" and name not in journals:
            self.client.revision += 1
            journals[name] = FakeJournal(lines(number), create_revision=self.client.revision)
        if what == "delete" and name in journals:
            self.client.revision += 1
            del journals[name]
        if what in ("append", "half") and name in journals:
            journals[name].content += lines(number) if what == "append" else b"h"
        if what == "restart":
            self.restart()
        if what == "look":
            self.look(Limits(max_bytes=number * 10))

    def restart(self) -> None:
        """Start the query again, from what its checkpoint holds."""
        self.position = JournalOffsets.from_json(self.position.to_json())
        self.planner, client = planner_of(self.client.journals)
        client.revision, self.client = self.client.revision, client
        self.seen = {}

    def expected(self) -> type[GazetteError] | None:
        """Return what the next look has to fail with."""
        found: type[GazetteError] | None = None
        for name, reached in self.position.read_through.items():
            journal = self.client.journals.get(name)
            if journal is not None and journal.create_revision > self.position.revision:
                return JournalRecreatedError
            if journal is None and self.seen.get(name, self.remembered[name]) > reached:
                found = JournalNotFoundError
        return found

    def look(self, limits: Limits) -> None:
        """Plan a batch, and check it against what is known."""
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
        if end.to_json() != self.position.to_json():
            self.remembered = {name: heads.get(name, end.read_through[name]) for name in end.read_through}
        self.position = end


@settings(deadline=None, max_examples=examples(200))
@given(steps)
def test_losses_that_were_seen_are_errors_and_no_others(given_steps: list[tuple[str, str, int]]) -> None:
    """Only seen losses are errors, in any order of appends, deletions and looks; then all is read."""
    journals = {name: FakeJournal(lines(2)) for name in NAMES[:2]}
    planner, client = planner_of(journals, startingOffsets="earliest")
    world = World(client, planner, planner.next(planner.initial()))
    world.remembered = {name: journal.head for name, journal in journals.items()}
    for step in given_steps:
        world.step(*step)
    if world.expected() is None:
        # New journals are recorded in one batch and read in the next.
        for _ in range(4):
            world.look(Limits())
        for name, journal in world.client.journals.items():
            assert world.position.read_through[name] == journal.content.rfind(b"\n") + 1
