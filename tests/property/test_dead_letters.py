"""Whatever happens between the two commits of a batch, each record is in one of two tables, once.

The model is that of ``test_ledger.py``, with a main table and two for dead letters. A record is one byte.
Which records a writer takes for dead depends on its rules, and those change, as do its dead letters: on,
off, elsewhere. Some rules are not deterministic: a writer's second pass over a batch goes by others than its
first. Writers are generators that stop before each look at a table and each commit; they are crashed by being
dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gazette_spark.errors import LedgerLostError, RestoredError, SinkError
from gazette_spark.ledger.dead_letters import (
    APP_ID_SUFFIX,
    Divert,
    Fence,
    check_ledger,
    closing_entry,
    dead_batch,
    is_ahead,
    plan,
    reconcile,
    with_letters,
)
from gazette_spark.ledger.decision import Again, Allowed, Landed, Refusal, Skip, Write, decide, verify
from gazette_spark.ledger.entry import Batch, LedgerEntry, LedgerState, Positions, least_offsets
from gazette_spark.ledger.history import REPLACING, read_state, visible_entries
from gazette_spark.offsets import JournalOffsets
from tests.property.test_ledger import APP, JOURNALS, MUTANT_SETTINGS, Interval, Table, bytes_of
from tests.rig.examples import examples

TRIES = 6
Byte = tuple[str, int]


@dataclass
class Side(Table):
    """A table of one app id."""

    name: str = "main"
    app_id: str = APP
    cleaned: int = 0
    """The first version that the history still shows."""

    def state(self) -> LedgerState:
        """What the package finds in the history."""
        shown = self.history[self.cleaned :][::-1]
        return read_state(lambda limit: shown[:limit], self.app_id, table=self.name)

    def broken(self) -> bool:
        """Whether the newest entry does not stand on the one it was decided on."""
        state = self.state()
        return state.entry is not None and state.previous != state.entry.parent

    def keep_what_was_restored(self) -> None:
        """Do as the error says: undo the commit that a RESTORE slipped in before."""
        self.restore(self.state().entry_version - 1)

    def standing(self) -> list[tuple[int, LedgerEntry]]:
        """Versions that a RESTORE may go back to, each with its entry, newest first."""
        found = visible_entries(self.history[self.cleaned :][::-1], self.app_id, table=self.name)
        return [(row.version, entry) for row, entry in found]

    def records(self, version: int | None = None) -> set[Byte]:
        """The records at a version, the newest if none is given; none is there twice."""
        at = len(self.rows) - 1 if version is None else version
        rows = self.rows[at] if at >= 0 else ()
        assert len(bytes_of(rows)) == len(rows)
        return bytes_of(rows)


def records(found: set[Byte]) -> tuple[Interval, ...]:
    """Each record as the interval of its byte."""
    return tuple((journal, at, at + 1) for journal, at in sorted(found))


@dataclass(eq=False)
class Writer:
    """A query: its checkpoint, how it was started, and where it is in its batch."""

    name: str
    ends: list[dict[str, int]]
    letters: str | None
    """Its table of dead letters."""
    rules: int
    allowed: Allowed
    second: int | None = None
    """Its rules in the second pass over a batch, if they are others."""
    commits: int = 0
    seen: str | None = None
    steps: Iterator[None] | None = None
    between: bool = False
    """It has committed dead letters and not the rest."""
    several: bool = False
    """It reads each journal by a source of its own, and so has no dead letters."""
    committed: bool = False
    """Records are messages, and lie where their acknowledgement does."""

    def forget(self) -> None:
        """What a process loses when it is killed."""
        self.seen, self.steps, self.between = None, None, False

    def batch(self) -> Batch:
        """The batch to be run: the last one planned."""
        number = len(self.ends) - 1
        begin = self.positions(self.ends[-2]) if number else ()
        starts = dict.fromkeys(self.ends[-1], 0) if self.committed else {}
        return Batch("main", APP, self.name, number, begin, self.positions(self.ends[-1]), starts=starts)

    def positions(self, end: dict[str, int]) -> Positions:
        """Return offsets by source."""
        each = [{journal: at} for journal, at in end.items()] if self.several else [end]
        return tuple(map(JournalOffsets, each))

    def new_records(self, decision: Write) -> set[Byte]:
        """The records of the batch that the main table lacks."""
        if decision.kept:
            return bytes_of((each.journal, each.since, each.end) for each in decision.kept)
        begins = self.ends[-2] if len(self.ends) > 1 else {}
        return bytes_of((j, begins.get(j, end), end) for j, end in self.ends[-1].items())

    def misfits(self, found: set[Byte], *, again: bool = False) -> set[Byte]:
        """Those that its rules have for dead, in the first pass over a batch or the second."""
        rules = self.second if again and self.second is not None else self.rules
        return {(journal, at) for journal, at in found if (at + rules) % 3 == 0}


class Over(Exception):  # noqa: N818 - it is no error.
    """A batch is done, or its query has ended."""


class TwoTables(RuleBasedStateMachine):
    """Journals that grow, a main table, two for dead letters, any number of writers."""

    def __init__(self) -> None:
        super().__init__()
        self.main = Side()
        self.letters = {name: Side(name=name, app_id=APP + APP_ID_SUFFIX) for name in ("d1", "d2")}
        self.heads = dict.fromkeys(JOURNALS, 6)
        self.names = itertools.count()
        self.committed = False
        self.writers: list[Writer] = []
        self.undone: dict[str, set[Byte]] = {name: set() for name in self.letters}
        """Dead letters that somebody's RESTORE took away."""
        self.seen: set[str] = set()

    @initialize(committed=st.booleans())
    def choose(self, committed: bool) -> None:
        """All queries of the tables are of one isolation level."""
        self.committed = committed

    def teardown(self) -> None:
        """Tell what happened."""
        for each in sorted(self.seen):
            event(each)

    @rule(journal=st.sampled_from(JOURNALS), size=st.integers(1, 6))
    def grow(self, journal: str, size: int) -> None:
        """A journal gets more records."""
        self.heads[journal] += size

    @rule(
        resume=st.booleans(),
        letters=st.sampled_from(["d1", "d1", "d2", None]),
        rules=st.integers(0, 2),
        second=st.sampled_from([None, None, None, 0, 1]),
        trim=st.booleans(),
        several=st.booleans(),
    )
    def start(  # noqa: PLR0917 - Hypothesis names them.
        self, resume: bool, letters: str | None, rules: int, second: int | None, trim: bool, several: bool
    ) -> None:
        """A query without a checkpoint. It may have a source for each journal, or dead letters of one."""
        entry = self.main.state().entry
        first = {**dict.fromkeys(JOURNALS, 0), **(entry.read_through if resume and entry else {})}
        if several and letters:
            first = {JOURNALS[0]: first[JOURNALS[0]]}
        name = f"query-{next(self.names)}"
        writer = Writer(name, [first], letters, rules, Allowed(trim), second)
        writer.several = several and letters is None
        writer.committed = self.committed
        self.writers.append(writer)

    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        """Another process on a copy of a query checkpoint."""
        if self.writers:
            one = data.draw(st.sampled_from(self.writers))
            ends = [dict(end) for end in one.ends]
            copied = Writer(one.name, ends, one.letters, one.rules, one.allowed, one.second, one.commits)
            copied.several, copied.committed = one.several, one.committed
            self.writers.append(copied)

    @rule(
        data=st.data(),
        letters=st.sampled_from(["d1", "d2", None, "same", "same"]),
        rules=st.integers(0, 2),
        second=st.sampled_from([None, None, 0, 1]),
    )
    def crash(self, data: st.DataObject, letters: str | None, rules: int, second: int | None) -> None:
        """A process dies wherever it is, and starts again from its checkpoint, maybe otherwise."""
        if self.writers:
            writer = data.draw(st.sampled_from(self.writers))
            writer.forget()
            writer.rules, writer.second = rules, second
            writer.letters = writer.letters if letters == "same" or writer.several else letters

    @rule(data=st.data(), what=st.sampled_from(["optimize", "restore", "restore"]))
    def touch_main(self, data: st.DataObject, what: str) -> None:
        """OPTIMIZE, or RESTORE to a version since which dead letters went to one table."""
        if not self.main.history:
            return
        if what == "optimize":
            self.main.commit("OPTIMIZE", self.main.visible(), self.main.missing())
            return
        standing = self.main.standing()
        same = list(itertools.takewhile(lambda e: e[1].dead_letters == standing[0][1].dead_letters, standing))
        if same and not self.main.broken():
            self.seen.add("the main table is restored")
            self.main.restore(data.draw(st.sampled_from([version for version, _ in same])))

    @rule(data=st.data(), name=st.sampled_from(["d1", "d2"]), what=st.sampled_from(["restore", "replace"]))
    def touch_letters(self, data: st.DataObject, name: str, what: str) -> None:
        """RESTORE or replace a table of dead letters, while no query is between its two commits."""
        table = self.letters[name]
        if not table.history or table.broken() or any(writer.between for writer in self.writers):
            return
        before = table.records()
        if what == "replace":
            table.commit(min(REPLACING), (), ())
        else:
            standing = table.standing()
            if not standing:
                return
            table.restore(data.draw(st.sampled_from([version for version, _ in standing])))
        self.seen.add(f"dead letters: {what}")
        self.undone[name] |= before - table.records()

    @rule(data=st.data(), name=st.sampled_from(["main", "d1", "d2"]), optimized=st.booleans())
    def clean_up(self, data: st.DataObject, name: str, optimized: bool) -> None:
        """Old lines of a table's history go: no write is under way since, and every writer has looked."""
        table = self.letters.get(name, self.main)
        if not table.history or table.broken() or any(writer.steps for writer in self.writers):
            return
        if optimized:
            table.commit("OPTIMIZE", table.visible(), table.missing())
        table.cleaned = data.draw(st.integers(table.cleaned, len(table.history) - 1))
        if table.state().entry is None:
            self.seen.add(f"a ledger is lost: {name}")

    @rule(data=st.data(), steps=st.integers(1, 40))
    def advance(self, data: st.DataObject, steps: int) -> None:
        """A writer takes some steps."""
        if not self.writers:
            return
        writer = data.draw(st.sampled_from(self.writers))
        for _ in range(steps):
            if writer.steps is None:
                if writer.commits == len(writer.ends) and not self.plan_batch(data, writer):
                    return
                writer.steps = self.run_batch(writer)
            try:
                next(writer.steps)
            except StopIteration:
                writer.steps = None

    def plan_batch(self, data: st.DataObject, writer: Writer) -> bool:
        """Write the next batch's end into the query checkpoint; return whether anything has moved."""
        known = writer.ends[-1]
        moved = {j: data.draw(st.integers(at, max(at, self.heads[j]))) for j, at in known.items()}
        if moved == known:
            return False
        writer.ends.append(moved)
        return True

    def run_batch(self, writer: Writer) -> Iterator[None]:
        """Bring a batch in, as ``DeltaSink`` and its router do; yield before each look and each commit."""
        seen, writer.seen = writer.seen, None
        with suppress(Over):
            for _ in range(TRIES):
                dead, main = yield from self.look(writer)
                decision = self.decide(writer, main, seen)
                if not (yield from self.leave_another(writer, main, decision)):
                    continue
                step = self.step(writer, dead, main, decision)
                found, entry = writer.new_records(decision), decision.entry
                if isinstance(step, Fence):
                    self.seen.add("a writer sets a fence")
                    entry, found = step.entry, set()
                elif isinstance(step, Divert):
                    table = self.letters[writer.letters or ""]
                    merged = yield from self.merge(writer, table, dead, step, found)
                    if not merged:
                        continue
                    entry = with_letters(entry, table.name, merged)
                    found = self.without_letters(writer, table, dead, merged, found)
                elif writer.letters:
                    entry = with_letters(entry, writer.letters, dead)
                if (yield from self.commit_main(writer, main, entry, found)):
                    seen = entry.attempt
                    if not isinstance(step, Fence):
                        self.done(writer, seen)
            self.stop(writer, None)

    def look(self, writer: Writer) -> Generator[None, None, tuple[LedgerState, LedgerState]]:
        """Read the two ledgers."""
        yield
        dead = self.letters[writer.letters].state() if writer.letters else LedgerState()
        yield
        return dead, self.main.state()

    def decide(self, writer: Writer, main: LedgerState, seen: str | None) -> Write:
        """Decide on the main table."""
        made = decide(main, writer.batch(), attempt=self.attempt(), seen=seen, allowed=writer.allowed)
        if isinstance(made, Refusal):
            self.stop(writer, made.error)
        if isinstance(made, Skip):
            assert main.entry is not None
            self.done(writer, main.entry.attempt)
        assert isinstance(made, Write)
        return made

    def step(
        self, writer: Writer, dead: LedgerState, main: LedgerState, decision: Write
    ) -> Fence | Divert | None:
        """Say how the batch is split, if it is."""
        if writer.letters is None:
            return None
        try:
            return self.plan(dead, main, decision, writer.letters)
        except (LedgerLostError, RestoredError) as error:
            return self.stop(writer, error)

    def leave_another(
        self, writer: Writer, main: LedgerState, decision: Write
    ) -> Generator[None, None, bool]:
        """Leave the table that dead letters went to, if it is another; return whether that is done."""
        name = main.entry.dead_letters if main.entry else None
        if main.entry is None or name in (None, writer.letters):
            return True
        return (yield from self.leave(writer, name or "", main.entry, decision))

    def leave(
        self, writer: Writer, name: str, main: LedgerEntry, decision: Write
    ) -> Generator[None, None, bool]:
        """Close another table of dead letters; return whether that landed."""
        table = self.letters[name]
        yield
        dead = table.state()
        about = dead_batch(decision.entry, name)
        try:
            entry = closing_entry(dead, main, decision.entry, self.attempt())
            check_ledger(dead, about)
        except (LedgerLostError, RestoredError) as error:
            self.stop(writer, error)
        if entry is None:
            return True
        if is_ahead(dead, main):
            self.seen.add("dead letters cannot be left")
            self.stop(writer, None)
        self.seen.add("dead letters are left")
        return bool((yield from self.commit_dead(writer, table, dead, entry, (about, set()))))

    def merge(
        self, writer: Writer, table: Side, dead: LedgerState, step: Divert, found: set[Byte]
    ) -> Generator[None, None, LedgerState | None]:
        """Commit the dead letters of the first pass that are not there; return the state that has them."""
        dying = writer.misfits(found)
        if step.may_have_some:
            self.seen.add("records of the batch may be dead letters")
            dying -= self.known(table, dead)
        return (yield from self.commit_dead(writer, table, dead, step.entry, (step.batch, dying)))

    def without_letters(
        self, writer: Writer, table: Side, before: LedgerState, merged: LedgerState, found: set[Byte]
    ) -> set[Byte]:
        """Return the records for the main table, by the second pass; one that does not fit ends the query."""
        left = found - table.records(merged.entry_version)
        if writer.misfits(left, again=True):
            self.seen.add("a record has changed its mind")
            self.stop(writer, None)
        return left

    def known(self, table: Side, dead: LedgerState) -> set[Byte]:
        """The records that are dead letters already."""
        return table.records(dead.table_version)

    def commit_dead(
        self,
        writer: Writer,
        table: Side,
        before: LedgerState,
        entry: LedgerEntry,
        about: tuple[Batch, set[Byte]],
    ) -> Generator[None, None, LedgerState | None]:
        """Commit to a table of dead letters; return its state if that landed."""
        yield
        writer.between = True
        batch, rows = about
        self.append_dead(table, entry, rows)
        yield
        after = table.state()
        outcome = self.reconcile(before, after, entry, batch)
        if isinstance(outcome, Refusal):
            self.stop(writer, outcome.error)
        return after if isinstance(outcome, Landed) else None

    def append_dead(self, table: Side, entry: LedgerEntry, rows: set[Byte]) -> None:
        """The commit to a table of dead letters; mutants have their own."""
        table.append(entry, records(rows))

    def reconcile(
        self, before: LedgerState, after: LedgerState, entry: LedgerEntry, batch: Batch
    ) -> Landed | Again | Refusal:
        """The package's outcome; mutants have their own."""
        return reconcile(before, after, entry, batch, conflict=False)

    def commit_main(
        self, writer: Writer, before: LedgerState, entry: LedgerEntry, rows: set[Byte]
    ) -> Generator[None, None, bool]:
        """Commit to the main table; return whether that landed."""
        yield
        self.main.append(entry, records(rows))
        yield
        writer.between = False
        outcome = verify(before, self.main.state(), entry, writer.batch(), conflict=False)
        if isinstance(outcome, Refusal):
            self.stop(writer, outcome.error)
        return isinstance(outcome, Landed)

    def plan(
        self, dead: LedgerState, main: LedgerState, decision: Write, table: str
    ) -> Fence | Divert | None:
        """The package's plan; mutants have their own."""
        return plan(dead, main, decision, table=table, attempt=self.attempt())

    def attempt(self) -> str:
        """A fresh name."""
        return f"attempt-{next(self.names)}"

    def done(self, writer: Writer, seen: str) -> NoReturn:
        """Spark writes ``commits/<n>``."""
        self.seen.add("a batch is done")
        writer.commits, writer.seen, writer.between = len(writer.ends), seen, False
        raise Over

    def stop(self, writer: Writer, error: SinkError | None) -> NoReturn:
        """The query ends, and may be started again. If a table has to be mended, somebody does."""
        self.seen.add(type(error).__name__)
        writer.seen, writer.between = None, False
        if isinstance(error, RestoredError):
            table = self.letters.get(error.table, self.main)
            if table.broken():
                table.keep_what_was_restored()
        raise Over

    @invariant()
    def every_record_is_in_one_table_once(self) -> None:
        """Of all bytes that the main table has passed; and no dead letter is one of its rows."""
        entry = self.main.state().entry
        if entry is None or self.main.broken() or any(table.broken() for table in self.letters.values()):
            return
        rows = self.main.records()
        dead = {name: table.records() for name, table in self.letters.items()}
        assert rows.isdisjoint(dead["d1"] | dead["d2"])
        assert dead["d1"].isdisjoint(dead["d2"])
        start = least_offsets(entry.start)
        passed = bytes_of((j, start[j], at) for j, at in entry.read_through.items())
        assert rows <= passed
        assert passed - rows - dead["d1"] - dead["d2"] <= self.undone["d1"] | self.undone["d2"]


TwoTables.TestCase.settings = settings(
    max_examples=examples(100),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTwoTables = TwoTables.TestCase


class NeverFences(TwoTables):
    """Splits a batch whatever state the dead letters are in."""

    def plan(
        self, dead: LedgerState, main: LedgerState, decision: Write, table: str
    ) -> Fence | Divert | None:
        if main.entry is not None:
            main = replace(main, entry=with_letters(main.entry, table, dead))
        return super().plan(dead, main, decision, table)


class LooksTooEarly(TwoTables):
    """Leaves out the dead letters of before its own."""

    def without_letters(
        self, writer: Writer, table: Side, before: LedgerState, merged: LedgerState, found: set[Byte]
    ) -> set[Byte]:
        left = found - table.records(before.table_version)
        return left - writer.misfits(left, again=True)


class FiltersTwice(TwoTables):
    """Drops what does not fit in the second pass, too."""

    def without_letters(
        self, writer: Writer, table: Side, before: LedgerState, merged: LedgerState, found: set[Byte]
    ) -> set[Byte]:
        left = found - table.records(merged.entry_version)
        return left - writer.misfits(left, again=True)


class TrustsRules(TwoTables):
    """Takes the rows of both passes by the rules alone."""

    def without_letters(
        self, writer: Writer, table: Side, before: LedgerState, merged: LedgerState, found: set[Byte]
    ) -> set[Byte]:
        return found - writer.misfits(found)


class KeepsTheRow(TwoTables):
    """Writes a dead letter, and the record to the main table, too."""

    def without_letters(
        self, writer: Writer, table: Side, before: LedgerState, merged: LedgerState, found: set[Byte]
    ) -> set[Byte]:
        return found


class MergesBlindly(TwoTables):
    """Writes dead letters again that are there."""

    def known(self, table: Side, dead: LedgerState) -> set[Byte]:
        return set()


class MergesWithoutComparing(TwoTables):
    """Commits dead letters whoever else has committed some."""

    def append_dead(self, table: Side, entry: LedgerEntry, rows: set[Byte]) -> None:
        number = max(entry.txn_version, table.highest + 1)
        table.append(replace(entry, txn_version=number, parent=newest(table)), records(rows))

    def reconcile(
        self, before: LedgerState, after: LedgerState, entry: LedgerEntry, batch: Batch
    ) -> Landed | Again | Refusal:
        return Landed()


def newest(table: Side) -> str | None:
    """Attempt of a table's newest entry."""
    entry = table.state().entry
    return entry.attempt if entry else None


class LeavesTheDoorOpen(TwoTables):
    """Goes on without its dead letters, or with others, and does not close what it leaves."""

    def leave(
        self, writer: Writer, name: str, main: LedgerEntry, decision: Write
    ) -> Generator[None, None, bool]:
        yield
        return True


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(LooksTooEarly, marks=pytest.mark.soak),
        FiltersTwice,
        KeepsTheRow,
        MergesBlindly,
        LeavesTheDoorOpen,
    ],
)
def test_the_model_catches_a_broken_sink(mutant: type[TwoTables]) -> None:
    """A machine that finds nothing wrong with these would prove nothing about ours."""
    with pytest.raises(AssertionError):
        run_state_machine_as_test(mutant, settings=MUTANT_SETTINGS)


def two_writers(machine: TwoTables) -> tuple[Writer, Writer]:
    """Return a writer with a batch to write and one with other rules on a copy of its checkpoint."""
    slow = Writer("query-0", [dict.fromkeys(JOURNALS, 0)], "d1", 0, Allowed())
    list(machine.run_batch(slow))
    slow.ends.append(dict(machine.heads))
    fast = Writer("query-0", [dict(end) for end in slow.ends], "d1", 1, Allowed(), None, slow.commits)
    machine.writers += [slow, fast]
    return slow, fast


def run_until_merged(machine: TwoTables, writer: Writer) -> Iterator[None]:
    """Run a batch until its dead letters are committed, and return its other steps."""
    steps, before = machine.run_batch(writer), machine.letters["d1"].records()
    while machine.letters["d1"].records() == before:
        next(steps)
    return steps


def overtaken(machine: TwoTables) -> None:
    """Let a writer with other rules come between the two commits of one, which then goes on."""
    slow, fast = two_writers(machine)
    steps = run_until_merged(machine, slow)
    rest = run_until_merged(machine, fast)
    list(steps)
    list(rest)
    machine.every_record_is_in_one_table_once()
    assert slow.commits + fast.commits == 3


def at_once(machine: TwoTables) -> None:
    """Let two writers with different rules merge what both decided on the same entries."""
    slow, fast = two_writers(machine)
    both = [machine.run_batch(slow), machine.run_batch(fast)]
    while not slow.between:
        for steps in both:
            next(steps, None)
    for steps in both:
        list(steps)
    machine.every_record_is_in_one_table_once()
    assert slow.commits == fast.commits == 2


def crashed(machine: TwoTables) -> None:
    """Let a writer crash between its commits, and another with other rules go on."""
    slow, fast = two_writers(machine)
    run_until_merged(machine, slow)
    slow.forget()
    list(machine.run_batch(fast))
    machine.every_record_is_in_one_table_once()
    assert fast.commits == 2


def left_first(machine: TwoTables) -> None:
    """Let a writer without dead letters overtake one that is about to commit the first ones."""
    slow, fast = two_writers(machine)
    fast.letters = None
    steps = machine.run_batch(slow)
    for _ in range(3):
        next(steps)
    list(machine.run_batch(fast))
    list(steps)
    machine.every_record_is_in_one_table_once()
    assert fast.commits == 2


@pytest.mark.parametrize(
    ("schedule", "mutant"),
    [
        (overtaken, NeverFences),
        (at_once, MergesWithoutComparing),
        (crashed, TrustsRules),
        (left_first, LeavesTheDoorOpen),
    ],
    ids=["overtaken", "at once", "crashed", "left first"],
)
def test_writers_with_different_rules_double_nothing(
    schedule: Callable[[TwoTables], None], mutant: type[TwoTables]
) -> None:
    """Each schedule doubles records without the one rule that is for it."""
    schedule(TwoTables())
    with pytest.raises(AssertionError):
        schedule(mutant())


def test_a_table_of_several_sources_takes_dead_letters() -> None:
    """A query of one journal goes on where another read two, whose other place stays in the entries."""
    machine = TwoTables()
    first = Writer("query-0", [dict.fromkeys(JOURNALS, 0)], None, 0, Allowed(), several=True)
    second = Writer("query-1", [{JOURNALS[0]: 2}], "d1", 0, Allowed())
    for writer, end in ((first, 2), (second, 6)):
        list(machine.run_batch(writer))
        writer.ends.append(dict.fromkeys(writer.ends[0], end))
        list(machine.run_batch(writer))
        assert writer.commits == 2
    machine.every_record_is_in_one_table_once()
    assert machine.letters["d1"].records() == {(JOURNALS[0], 3)}
