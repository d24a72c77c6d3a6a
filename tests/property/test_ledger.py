"""Whatever writers, crashes, copies and RESTOREs do, and in whatever order, rows tile each journal.

The model is a table that behaves as Delta was measured to: a transaction number that is not above the
app id's highest is skipped in silence, a RESTORE keeps the numbers, and neither it nor other commits
conflict with an append. Writers act in three steps (decide, write, verify) that interleave freely.

Each decision is held against an obvious one: sets of bytes, those that the table has and those of the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gazette_spark.errors import GapError, RestoredError
from gazette_spark.ledger import entry as entry_module
from gazette_spark.ledger.decision import (
    Again,
    Allowed,
    Decision,
    KeptRange,
    Landed,
    Refusal,
    Skip,
    Write,
    decide,
    verify,
)
from gazette_spark.ledger.entry import Batch, LedgerEntry, LedgerState, SkippedGap, parse_entry
from gazette_spark.ledger.history import HistoryRow, read_state
from gazette_spark.offsets import JournalOffsets
from tests.rig.examples import examples

APP = "app"
JOURNALS = ("x/a", "x/b")
Interval = tuple[str, int, int]

MUTANT_SETTINGS = settings(
    max_examples=10_000,
    stateful_step_count=100,
    deadline=None,
    phases=[Phase.generate],
    database=None,
    derandomize=True,
)
"""Whether a fault is found counts, not its smallest form. The search ends with the first one, within a
few hundred examples mostly; 500 random ones once found none. It is the same search in every run; the
mutants whose search takes seconds are for soak."""


@pytest.fixture(autouse=True, scope="module")
def short_entries() -> Iterator[None]:
    """Have most entries stored as what moved, and some with all positions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_module, "FEW_JOURNALS", 0)
        patch.setattr(entry_module, "MAX_DELTAS", 3)
        yield


def bytes_of(intervals: Iterable[Interval]) -> set[tuple[str, int]]:
    """Journal and offset of each byte."""
    return {(journal, at) for journal, begin, end in intervals for at in range(begin, end)}


@dataclass
class Table:
    """Commits, the rows visible at each, and the highest transaction number ever."""

    history: list[HistoryRow] = field(default_factory=list)
    rows: list[tuple[Interval, ...]] = field(default_factory=list)
    holes: list[tuple[Interval, ...]] = field(default_factory=list)
    """What may be missing at each commit: the gaps that its entries say somebody accepted."""
    highest: int = -1
    decided: dict[str, LedgerEntry] = field(default_factory=dict)
    """Each entry by its attempt, as it was decided on, whatever its stored form."""

    def commit(
        self, operation: str, rows: tuple[Interval, ...], holes: tuple[Interval, ...], **parts: object
    ) -> None:
        """Add a version."""
        self.holes.append(holes)
        self.history.append(HistoryRow(len(self.history), operation, **parts))  # type: ignore[arg-type]
        self.rows.append(rows)

    def append(self, entry: LedgerEntry, added: tuple[Interval, ...]) -> None:
        """Append with a transaction number, or skip in silence."""
        if entry.txn_version > self.highest:
            self.highest = entry.txn_version
            self.decided[entry.attempt] = entry
            holes = self.missing() + tuple((gap.journal, gap.begin, gap.end) for gap in entry.accepted_gaps)
            self.commit("WRITE", self.visible() + added, holes, user_metadata=entry.to_json())

    def restore(self, version: int) -> None:
        """Go back to a version."""
        parameters = {"version": str(version), "timestamp": None}
        self.commit("RESTORE", self.rows[version], self.holes[version], parameters=parameters)

    def visible(self) -> tuple[Interval, ...]:
        """Rows of the newest version."""
        return self.rows[-1] if self.rows else ()

    def missing(self) -> tuple[Interval, ...]:
        """What the newest version lacks on somebody's word."""
        return self.holes[-1] if self.holes else ()

    def done(self) -> set[tuple[str, int]]:
        """Journal and offset of each byte that is in the newest version, or may be missing."""
        return bytes_of(self.visible() + self.missing())

    def state(self) -> LedgerState:
        """What the package finds in the history."""
        return read_state(lambda limit: self.history[::-1][:limit], APP, table="t")

    def obvious_entry(self) -> LedgerEntry | None:
        """The newest visible entry, found by replaying the history from its beginning."""
        at: list[LedgerEntry | None] = []
        for row in self.history:
            if row.operation == "RESTORE":
                at.append(at[int(row.parameters["version"] or 0)])
            else:
                stored = parse_entry(row.user_metadata, APP)
                at.append(self.decided[stored.attempt] if stored else at[-1] if at else None)
        return at[-1] if at else None


@dataclass
class Writer:
    """A query: its checkpoint, and where it is in its batch."""

    name: str
    ends: list[dict[str, int]]
    """``offsets/<n>``. The last batch is done if there are as many ``commits``."""
    planned: list[int] = field(default_factory=lambda: [0])
    """When each batch was planned."""
    commits: int = 0
    seen: str | None = None
    before: LedgerState | None = None
    pending: LedgerEntry | None = None
    written: bool = False
    alive: bool = True
    allowed: Allowed = Allowed()  # noqa: RUF009 - immutable
    kept: tuple[KeptRange, ...] = ()
    obeys: bool = False
    """Whether somebody names a gap that it stopped for, and starts it again."""

    def forget(self) -> None:
        """What a process loses when it is killed."""
        self.seen, self.before, self.pending, self.written = None, None, None, False

    def batch(self) -> Batch:
        """The batch to be run: the last one planned."""
        number = len(self.ends) - 1
        begin = (JournalOffsets(self.ends[-2]),) if number else ()
        end, planned_ms = JournalOffsets(self.ends[-1]), self.planned[-1]
        return Batch("t", APP, self.name, number, begin, (end,), planned_ms=planned_ms)

    def intervals(self) -> tuple[Interval, ...]:
        """The rows of that batch: journals without a begin are being pinned and have none."""
        begins = self.ends[-2] if len(self.ends) > 1 else {}
        return tuple((j, begins[j], end) for j, end in self.ends[-1].items() if begins.get(j, end) < end)

    def new_intervals(self) -> tuple[Interval, ...]:
        """The rows of that batch that the decision keeps."""
        kept = tuple((each.journal, each.since, each.end) for each in self.kept if each.since < each.end)
        return kept if self.kept else self.intervals()


def obvious_decision(table: Table, writer: Writer) -> set[tuple[str, int]] | None:
    """Return the bytes that a batch has to bring into a table, None if it is to be refused.

    Of a table whose newest entry stands on the one it was decided on.
    """
    entry = table.obvious_entry()
    ends = writer.ends[-1]
    begins = {**ends, **(writer.ends[-2] if len(writer.ends) > 1 else {})}
    first = len(writer.ends) == 1
    if entry is None:
        return set() if first else None
    starts, recorded = entry.start[0], entry.end[0]
    assert isinstance(starts, JournalOffsets)
    assert isinstance(recorded, JournalOffsets)
    behind = moved = False
    for journal, until in ends.items():
        since, at = begins[journal], recorded.read_through.get(journal)
        if at is None:
            if since < until:
                return None
            moved = True
            continue
        if since > at and SkippedGap(journal, at, since) not in writer.allowed.gaps:
            return None
        if since < starts.read_through[journal] or (first and since < at and not writer.allowed.trim):
            return None
        behind, moved = behind or since < at, moved or until > at
    if writer.seen not in (None, entry.attempt) or (behind and moved and not writer.allowed.trim):
        return None
    return bytes_of(writer.intervals()) - table.done()


class LedgerMachine(RuleBasedStateMachine):
    """Journals that grow, one table, any number of writers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.heads = dict.fromkeys(JOURNALS, 9)
        self.names = itertools.count()
        self.writers = [Writer(f"query-{next(self.names)}", [dict.fromkeys(JOURNALS, 0)])]
        self.seen: set[str] = set()
        """For Hypothesis' statistics."""

    def teardown(self) -> None:
        """Tell what happened."""
        for each in sorted(self.seen):
            event(each)

    @rule(journal=st.sampled_from(JOURNALS), size=st.integers(1, 9))
    def grow(self, journal: str, size: int) -> None:
        """A journal gets more bytes."""
        self.heads[journal] += size

    @rule(
        data=st.data(),
        start=st.sampled_from(["resume", "resume", "earliest", "latest", "anywhere"]),
        trim=st.booleans(),
        obeys=st.booleans(),
    )
    def start(self, data: st.DataObject, start: str, trim: bool, obeys: bool) -> None:
        """A query without a checkpoint, told to continue the table or not, on some of the journals."""
        journals = data.draw(st.sets(st.sampled_from(JOURNALS), min_size=1))
        first = dict.fromkeys(sorted(journals), 0)
        if start == "latest":
            first = {journal: self.heads[journal] for journal in first}
        if start == "anywhere":
            first = {journal: data.draw(st.integers(0, self.heads[journal])) for journal in first}
        entry = self.table.obvious_entry()
        if start == "resume" and entry is not None:
            first = {**dict.fromkeys(JOURNALS, 0), **entry.read_through}
        self.writers.append(Writer(f"query-{next(self.names)}", [first], allowed=Allowed(trim), obeys=obeys))

    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        """Another process on a copy of a query checkpoint, query id and all."""
        if self.writers:
            original = data.draw(st.sampled_from(self.writers))
            ends = [dict(end) for end in original.ends]
            planned = list(original.planned)
            copied = Writer(original.name, ends, planned, original.commits, allowed=original.allowed)
            self.writers.append(copied)

    @rule(data=st.data(), trim=st.booleans(), obeys=st.booleans())
    def crash(self, data: st.DataObject, trim: bool, obeys: bool) -> None:
        """A process dies wherever it is, and starts again from its checkpoint, allowed more or less."""
        if self.writers:
            writer = data.draw(st.sampled_from(self.writers))
            writer.forget()
            writer.alive = True
            writer.allowed, writer.obeys = Allowed(trim), obeys

    @rule(data=st.data(), restored=st.booleans())
    def other_commit(self, data: st.DataObject, restored: bool) -> None:
        """OPTIMIZE, or RESTORE to any version."""
        if self.table.history and restored:
            self.table.restore(data.draw(st.integers(0, len(self.table.history) - 1)))
        elif self.table.history:
            self.table.commit("OPTIMIZE", self.table.visible(), self.table.missing())

    @rule(data=st.data(), steps=st.integers(3, 20))
    def advance(self, data: st.DataObject, steps: int) -> None:
        """A writer takes some steps."""
        alive = [writer for writer in self.writers if writer.alive]
        if not alive:
            return
        writer = data.draw(st.sampled_from(alive))
        for _ in range(steps):
            if not writer.alive:
                break
            if writer.pending is None:
                self.plan(data, writer)
            elif not writer.written:
                self.table.append(writer.pending, writer.new_intervals())
                writer.written = True
            else:
                self.look(writer)

    def plan(self, data: st.DataObject, writer: Writer) -> None:
        """Plan the next batch unless one is under way, and decide on it."""
        if writer.commits == len(writer.ends):
            known = writer.ends[-1]
            moved = {
                journal: data.draw(st.integers(offset, max(offset, self.heads[journal])))
                for journal, offset in known.items()
            }
            added = data.draw(st.sampled_from([*JOURNALS, None]))
            if added and added not in known:
                moved[added] = 0
            if moved == known:
                return
            writer.ends.append(moved)
            writer.planned.append(next(self.names))
        writer.before = self.table.state()
        attempt = f"attempt-{next(self.names)}"
        match self.decide(writer, writer.before, attempt):
            case Write(entry, kept):
                writer.pending, writer.written, writer.kept = entry, False, kept
                if writer.new_intervals() != writer.intervals():
                    self.seen.add("a batch is trimmed")
                if entry.accepted_gaps:
                    self.seen.add("a gap is accepted")
            case Skip():
                assert writer.before.entry is not None
                self.done(writer, writer.before.entry.attempt)
            case Refusal(error):
                self.stop(writer, error)

    def look(self, writer: Writer) -> None:
        """Read back what became of the write."""
        assert writer.pending is not None
        entry, writer.pending = writer.pending, None
        match self.verify(writer, entry):
            case Landed():
                self.done(writer, entry.attempt)
            case Refusal(error):
                self.stop(writer, error)

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        """The package's decision, which is the obvious one; mutants have their own."""
        made = decide(state, writer.batch(), attempt=attempt, seen=writer.seen, allowed=writer.allowed)
        expected = None if self.broken() else obvious_decision(self.table, writer)
        assert isinstance(made, Refusal) == (expected is None)
        if isinstance(made, Skip):
            assert not expected
        if isinstance(made, Write):
            writer.kept = made.kept
            assert bytes_of(writer.new_intervals()) == expected
        return made

    def verify(self, writer: Writer, entry: LedgerEntry) -> Landed | Again | Refusal:
        """The package's verdict on a write; mutants have their own."""
        assert writer.before is not None
        return verify(writer.before, self.table.state(), entry, writer.batch(), conflict=False)

    def done(self, writer: Writer, seen: str) -> None:
        """Spark writes ``commits/<n>``: the whole batch must be in the table, unless it was undone since."""
        self.seen.add("a batch is done")
        writer.commits, writer.seen = len(writer.ends), seen
        assert bytes_of(writer.intervals()) <= self.table.done()

    def stop(self, writer: Writer, error: Exception) -> None:
        """The query ends. If the error says how to mend the table, somebody does."""
        self.seen.add(type(error).__name__)
        writer.forget()
        writer.alive = False
        if isinstance(error, GapError) and writer.obeys and error.missing:
            gaps = (SkippedGap(name, *each) for name, named in error.missing.items() for each in named)
            writer.allowed, writer.alive = replace(writer.allowed, gaps=frozenset(gaps)), True
        if isinstance(error, RestoredError):
            self.table.restore(int(error.advice.split(" AS OF ")[1].split()[0]))
            assert not self.broken()

    def broken(self) -> bool:
        """Whether the newest entry does not stand on the one it was decided on."""
        state = self.table.state()
        return state.entry is not None and state.previous != state.entry.parent

    @invariant()
    def the_search_agrees_with_the_obvious_one(self) -> None:
        """The newest visible entry is the one a replay from the beginning finds."""
        state = self.table.state()
        assert state.entry == self.table.obvious_entry()
        assert state.txn_version == self.table.highest

    @invariant()
    def rows_tile_what_the_entry_says(self) -> None:
        """From start to end of each journal, every byte is visible once; a hole is in an entry's gaps."""
        entry = self.table.obvious_entry()
        if entry is None:
            assert self.table.visible() == ()
            return
        if self.broken():
            return  # The next to write refuses and says what mends it; see stop().
        starts, ends = entry.start[0], entry.end[0]
        assert isinstance(starts, JournalOffsets)
        assert isinstance(ends, JournalOffsets)
        at = dict(starts.read_through)
        for journal, begin, end in sorted(self.table.visible() + self.table.missing()):
            assert at[journal] == begin
            at[journal] = end
        assert at == dict(ends.read_through)


LedgerMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=50, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_a_lone_writer_reaches_the_end() -> None:
    """The machine's writer is not one that always refuses: undisturbed it brings everything in."""
    machine = LedgerMachine()
    machine.heads = {"x/a": 7, "x/b": 3}
    [writer] = machine.writers
    for _ in range(9):
        if writer.pending is None:
            if writer.commits == len(writer.ends):
                writer.ends.append(dict(machine.heads))
                writer.planned.append(len(writer.ends))
                machine.heads = {journal: head + 5 for journal, head in machine.heads.items()}
            writer.before = machine.table.state()
            decision = decide(writer.before, writer.batch(), attempt=f"a{len(writer.ends)}", seen=writer.seen)
            assert isinstance(decision, Write)
            writer.pending, writer.written = decision.entry, False
        elif not writer.written:
            machine.table.append(writer.pending, writer.intervals())
            writer.written = True
        else:
            machine.look(writer)
    assert writer.commits == 3
    assert machine.table.visible() == (("x/a", 0, 7), ("x/b", 0, 3), ("x/a", 7, 12), ("x/b", 3, 8))


class TrustsItsWrite(LedgerMachine):
    """Takes a write that raised nothing for one that landed."""

    def verify(self, writer: Writer, entry: LedgerEntry) -> Landed | Again | Refusal:
        return Landed()


class ForgetsUndoneNumbers(LedgerMachine):
    """Counts on from the newest visible entry, and does not look whether its write was skipped."""

    def verify(self, writer: Writer, entry: LedgerEntry) -> Landed | Again | Refusal:
        return Landed()

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        visible = state.entry.txn_version if state.entry else -1
        return super().decide(writer, replace(state, txn_version=visible), attempt)


class IgnoresOffsets(LedgerMachine):
    """Writes whatever Spark says is the next batch."""

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        decision = super().decide(writer, state, attempt)
        if isinstance(decision, Refusal | Skip) and state.entry is not None:
            end = writer.batch().end
            return Write(replace(state.entry, attempt=attempt, txn_version=state.txn_version + 1, end=end))
        return decision


class SkipsWhatItCannotPlace(LedgerMachine):
    """Takes a batch that does not fit for a replay."""

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        decision = super().decide(writer, state, attempt)
        return Skip() if isinstance(decision, Refusal) and state.entry is not None else decision


class TrimsNothing(LedgerMachine):
    """Writes a batch that is partly in the table as a whole."""

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        decision = super().decide(writer, state, attempt)
        return replace(decision, kept=()) if isinstance(decision, Write) else decision


class TrimsTooMuch(LedgerMachine):
    """Drops the first new byte."""

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        decision = super().decide(writer, state, attempt)
        if not isinstance(decision, Write):
            return decision
        return replace(decision, kept=tuple(replace(each, since=each.since + 1) for each in decision.kept))


class KeepsGapsToItself(LedgerMachine):
    """Leaves out what it may, and does not say so."""

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        decision = super().decide(writer, state, attempt)
        if not isinstance(decision, Write):
            return decision
        return replace(decision, entry=replace(decision.entry, accepted_gaps=()))


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(TrustsItsWrite, marks=pytest.mark.soak),
        ForgetsUndoneNumbers,
        IgnoresOffsets,
        SkipsWhatItCannotPlace,
        TrimsNothing,
        TrimsTooMuch,
        KeepsGapsToItself,
    ],
)
def test_the_model_catches_a_broken_sink(mutant: type[LedgerMachine]) -> None:
    """A machine that finds nothing wrong with these would prove nothing about ours."""
    with pytest.raises(AssertionError):
        run_state_machine_as_test(mutant, settings=MUTANT_SETTINGS)
