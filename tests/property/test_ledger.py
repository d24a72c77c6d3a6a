"""Whatever writers, crashes, copies, RESTOREs and clean-ups do, in whatever order: each row is there once.

The model (:mod:`tests.rig.ledger_model`) is a table that behaves as Delta was measured to, and queries of one
to three sources: journals, and others whose positions are texts that a new checkpoint repeats. Some keep
state: they emit in one batch what they read in the one before. Writers act in three steps (decide, write,
verify) that interleave freely.

Each decision is held against an obvious one, which compares identities of rows: the table's and the batch's.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gazette_spark.errors import GapError, RestoredError
from gazette_spark.ledger import entry as entry_module
from gazette_spark.ledger.decision import Allowed, Decision, Landed, Refusal, Skip, Write, decide, verify
from gazette_spark.ledger.entry import LedgerEntry, LedgerState, Positions, SkippedGap, least_offsets
from gazette_spark.table import trim
from tests.rig.examples import examples
from tests.rig.ledger_model import (
    APP,
    FOREIGN,
    JOURNALS,
    REFUSED,
    Expected,
    Interval,
    Mark,
    Position,
    Record,
    Row,
    SinkTable,
    Source,
    Table,
    Writer,
    bytes_of,
    committed_at,
    obvious_decision,
)

__all__ = ["APP", "JOURNALS", "MUTANT_SETTINGS", "Interval", "Table", "bytes_of"]

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

SOURCES = st.lists(
    st.one_of(
        st.just(frozenset(JOURNALS)),
        st.sampled_from([frozenset({journal}) for journal in JOURNALS]),
        st.sampled_from(FOREIGN),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
"""The sources of a query in any order; one that reads a journal of another one, too, is rare enough."""

PERMISSIONS = st.builds(Allowed, trim=st.booleans(), restart=st.sampled_from([False, False, True]))


@pytest.fixture(autouse=True, scope="module")
def short_entries() -> Iterator[None]:
    """Have most entries stored as what moved, and some with all positions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_module, "FEW_JOURNALS", 0)
        patch.setattr(entry_module, "MAX_DELTAS", 3)
        yield


class LedgerMachine(RuleBasedStateMachine):
    """Journals and other sources that grow, one table, any number of writers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SinkTable()
        self.heads = dict.fromkeys(JOURNALS, 9) | dict.fromkeys(FOREIGN, 2)
        self.names = itertools.count(1)
        self.writers: list[Writer] = []
        self.add((frozenset(JOURNALS),), ({},))
        self.checked = self.searched = 0
        """Versions of the table that were found right."""
        self.seen: set[str] = set()
        """For Hypothesis' statistics."""
        self.committed = False
        """Most queries read committed messages."""

    def teardown(self) -> None:
        """Tell what happened."""
        for each in sorted(self.seen):
            event(each)

    # The world.

    @initialize(committed=st.booleans())
    def read_committed(self, committed: bool) -> None:
        """Choose what most queries read, the first one too, which has not read yet."""
        self.committed = committed
        for writer in self.writers:
            writer.committed = committed

    @rule(source=st.sampled_from([*JOURNALS, *JOURNALS, *FOREIGN]), size=st.integers(1, 9))
    def grow(self, source: str, size: int) -> None:
        """A source gets more records."""
        self.heads[source] += size

    @rule(
        data=st.data(),
        sources=st.one_of(st.just((frozenset(JOURNALS),)), SOURCES, SOURCES),
        start=st.sampled_from(["resume", "resume", "resume", "earliest", "latest", "anywhere"]),
        stateful=st.sampled_from([False, False, True]),
        upsert=st.sampled_from([False, False, False, True]),
        allowed=PERMISSIONS,
        obeys=st.booleans(),
        other=st.sampled_from([False, False, False, False, True]),
        knows=st.sampled_from([True, True, False]),
    )
    def start(  # noqa: PLR0917 - Hypothesis names them.
        self,
        data: st.DataObject,
        sources: tuple[Source, ...],
        start: str,
        stateful: bool,
        upsert: bool,
        allowed: Allowed,
        obeys: bool,
        other: bool,
        knows: bool,
    ) -> None:
        """A query without a checkpoint, told to continue the table or not.

        It may be of another isolation than most, and know the states of the query before it.
        """
        if all(isinstance(source, str) for source in sources):
            sources = (*sources, frozenset(JOURNALS))
        standing = self.table.standing()
        entry = standing[0] if standing else None
        known = entry.read_through if entry else least_offsets(self.undone())
        ends: list[Position] = []
        for source in sources:
            if isinstance(source, str):
                ends.append(None)
                continue
            first = dict.fromkeys(sorted(source), 0)
            if start == "latest":
                first = {journal: self.heads[journal] for journal in first}
            if start == "anywhere":
                first = {journal: data.draw(st.integers(0, self.heads[journal])) for journal in first}
            if start == "resume":
                first = {journal: known.get(journal, 0) for journal in first}
            ends.append(first)
        writer = self.add(sources, tuple(ends), data=data)
        writer.committed = self.committed != other
        if knows and start == "resume" and entry:
            writer.known = least_offsets(entry.start)
        writer.stateful, writer.mode = stateful, "upsert" if upsert else "append"
        writer.allowed, writer.obeys = allowed, obeys

    def undone(self) -> Positions:
        """Where the rows began of a table that was restored to before its first entry."""
        try:
            return self.table.state().undone
        except RestoredError:
            return ()

    def add(
        self, sources: tuple[Source, ...], begin: tuple[Position, ...], data: st.DataObject | None = None
    ) -> Writer:
        """Plan the first batch of a query: it pins its journals, and may read its other sources."""
        name = f"query-{next(self.names)}"
        full = tuple(
            dict.fromkeys(sorted(source), 0) if isinstance(source, frozenset) and not begun else begun
            for source, begun in zip(sources, begin, strict=True)
        )
        writer = Writer(name, sources, [], [], [])
        self.plan_from(writer, full, data)
        self.writers.append(writer)
        return writer

    @rule(data=st.data(), stale=st.booleans())
    def copy(self, data: st.DataObject, stale: bool) -> None:
        """Another process on a copy of a query checkpoint, query id and all, of now or of some time ago."""
        if self.writers:
            original = data.draw(st.sampled_from(self.writers))
            batches = len(original.ends)
            self.writers.append(original.copied(data.draw(st.integers(1, batches)) if stale else batches))

    @rule(
        data=st.data(), allowed=PERMISSIONS, obeys=st.booleans(), swap=st.sampled_from([False, False, True])
    )
    def crash(self, data: st.DataObject, allowed: Allowed, obeys: bool, swap: bool) -> None:
        """A process dies wherever it is, and starts again from its checkpoint, maybe changed.

        Its Gazette sources may be swapped: each finds the position of the other one.
        """
        if self.writers:
            writer = data.draw(st.sampled_from(self.writers))
            writer.forget()
            writer.alive, writer.allowed, writer.obeys = True, allowed, obeys
            if swap:
                gazette = [n for n, source in enumerate(writer.sources) if isinstance(source, frozenset)]
                swapped = dict(zip(gazette, reversed(gazette), strict=True))
                writer.sources = tuple(
                    writer.sources[swapped.get(n, n)] for n, _ in enumerate(writer.sources)
                )

    @rule(
        data=st.data(),
        what=st.sampled_from(["optimize", "restore", "restore", "restore by time", "clean up"]),
    )
    def other_commit(self, data: st.DataObject, what: str) -> None:
        """OPTIMIZE, RESTORE to any version that the history shows, or a clean-up of the history.

        A clean-up takes what is weeks old: no write is under way since, and every writer has looked.
        """
        newest = len(self.table.history) - 1
        if newest < 0:
            return
        if what == "optimize":
            self.table.optimize()
        elif what == "clean up":
            if not any(writer.pending for writer in self.writers) and not self.table.broken():
                self.table.cleaned = data.draw(st.integers(self.table.cleaned, newest))
        else:
            version = data.draw(st.integers(self.table.cleaned, newest))
            self.table.restore_mark(version, by_time=what == "restore by time")

    # A writer's steps.

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
                if writer.commits < len(writer.ends) or self.plan(data, writer):
                    self.look_and_decide(writer)
            elif not writer.written:
                self.write(writer)
            else:
                self.look(writer)

    def plan(self, data: st.DataObject, writer: Writer) -> bool:
        """Plan the next batch; return whether there is one. A query with state has some without data."""
        before = writer.ends[-1]
        self.plan_from(writer, before, data)
        if writer.ends[-1] != before or (writer.stateful and (writer.read[-2] or data.draw(st.booleans()))):
            return True
        for log in (writer.ends, writer.read, writer.planned):
            log.pop()
        return False

    def plan_from(self, writer: Writer, before: tuple[Position, ...], data: st.DataObject | None) -> None:
        """Write a batch into the query checkpoint: each source reads on, and finds journals that are new."""
        pins = not writer.ends
        ends: list[Position] = []
        rows: list[Row] = []
        for number, (source, at) in enumerate(zip(writer.sources, before, strict=True)):
            if isinstance(source, str):
                taken = self.read_foreign(writer, number, source, data)
                count = -1 if not isinstance(at, str) else int(at)
                ends.append(str(count + 1) if taken else at)
                rows += [Row(record, writer.name, number, record.at) for record in taken]
            else:
                known = at if isinstance(at, Mapping) else {}
                end = known if pins else self.read_journals(known, source, data)
                ends.append(end)
                rows += writer.rows_between(number, known, end)
        writer.ends.append(tuple(ends))
        writer.read.append(tuple(rows))
        writer.planned.append(next(self.names))

    def read_journals(
        self, known: Mapping[str, int], selected: frozenset[str], data: st.DataObject | None
    ) -> dict[str, int]:
        """Return where a source has read to. Now and then it sees a journal that is new to it."""
        assert data is not None
        moved = {
            journal: data.draw(st.integers(at, max(at, self.heads[journal])))
            for journal, at in known.items()
            if journal in selected
        }
        new = sorted(selected - moved.keys())
        if new and (not moved or data.draw(st.booleans())):
            moved[data.draw(st.sampled_from(new))] = 0
        return moved

    def read_foreign(
        self, writer: Writer, number: int, source: str, data: st.DataObject | None
    ) -> list[Record]:
        """Return what a source that is not Gazette's has that its checkpoint did not read, or some of it."""
        done = {row.record for rows in writer.read for row in rows if row.number == number}
        new = [each for at in range(self.heads[source]) if (each := Record(source, at)) not in done]
        if data is None or not new:
            return []
        return data.draw(st.sampled_from([[], new, new[:1]]))

    def look_and_decide(self, writer: Writer) -> None:
        """Read the table and decide on the batch."""
        try:
            writer.before = self.table.state()
        except RestoredError as restored:
            self.stop(writer, restored)
            return
        attempt = f"attempt-{next(self.names)}"
        match self.decide(writer, writer.before, attempt):
            case Write(entry, kept):
                writer.pending, writer.written = entry, False
                writer.after = writer.mark_after(self.table.mark, entry, kept)
                if kept:
                    self.seen.add("a batch is trimmed")
                if entry.accepted_gaps:
                    self.seen.add("a gap is accepted")
                if writer.stateful and writer.emitted():
                    self.seen.add("state emits rows")
            case Skip():
                assert writer.before.entry is not None
                self.done(writer, writer.before.entry.attempt)
            case Refusal(error):
                self.stop(writer, error)

    def write(self, writer: Writer) -> None:
        """Append, on whatever the table has become since."""
        assert writer.pending is not None
        assert writer.after is not None
        assert writer.before is not None
        added = writer.after.rows[len(self.decided_on(writer).rows) :]
        now = self.table.mark
        undone = replace(now, rows=now.rows + added, planned=writer.planned[-1])
        mark = writer.after if now == self.decided_on(writer) else undone
        self.table.write(writer.pending, mark)
        writer.written = True

    def decided_on(self, writer: Writer) -> Mark:
        """The table that a write was decided on."""
        assert writer.before is not None
        at = writer.before.table_version
        return self.table.marks[at] if at >= 0 else Mark()

    def look(self, writer: Writer) -> None:
        """Read back what became of the write."""
        assert writer.pending is not None
        entry, writer.pending = writer.pending, None
        try:
            outcome = self.verify(writer, entry)
        except RestoredError as restored:
            outcome = Refusal(restored)
        match outcome:
            case Landed():
                self.done(writer, entry.attempt)
            case Refusal(error):
                self.stop(writer, error)

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        """The package's decision, which is the obvious one; mutants have their own."""
        made = decide(state, writer.batch(), attempt=attempt, seen=writer.seen, allowed=writer.allowed)
        standing = self.table.standing()
        if standing and state.entry is None:
            self.seen.add("the ledger is lost")
            assert isinstance(made, Refusal) or (
                isinstance(made, Write) and made.entry.txn_version <= self.table.highest
            )
            return made
        newest = standing[0].attempt if standing else None
        expected = REFUSED if self.broken() else obvious_decision(self.table.mark, newest, writer)
        self.compare(made, expected, writer)
        return made

    def compare(self, made: Decision, expected: Expected, writer: Writer) -> None:
        """Hold a decision against the obvious one."""
        if isinstance(made, Refusal):
            assert expected.rows is None or expected.may_be_refused
            return
        assert expected.rows is not None
        if expected.anything:
            return
        if expected.entry:
            assert isinstance(made, Write)
        rows = writer.emits(made.kept) if isinstance(made, Write) else ()
        assert frozenset(rows) == expected.rows

    def verify(self, writer: Writer, entry: LedgerEntry) -> object:
        """The package's verdict on a write; mutants have their own."""
        assert writer.before is not None
        return verify(writer.before, self.table.state(), entry, writer.batch(), conflict=False)

    def done(self, writer: Writer, seen: str) -> None:
        """Spark writes ``commits/<n>``: the whole batch must be in the table, unless it was undone since."""
        self.seen.add("a batch is done")
        writer.commits, writer.seen = len(writer.ends), seen
        assert {row.record for row in writer.emitted()} <= self.table.mark.passed()

    def stop(self, writer: Writer, error: Exception) -> None:
        """The query ends. If the error says how to mend the table, somebody does."""
        self.seen.add(type(error).__name__)
        writer.forget()
        writer.alive = False
        if isinstance(error, GapError) and writer.obeys and error.missing:
            gaps = (SkippedGap(name, *each) for name, named in error.missing.items() for each in named)
            writer.allowed, writer.alive = replace(writer.allowed, gaps=frozenset(gaps)), True
        if not isinstance(error, RestoredError):
            return
        if by_time := re.search(r"version (\d+) restored the table to a point in time", str(error)):
            version = self.table.restored[int(by_time[1])]
            if version >= self.table.cleaned:
                self.table.restore_mark(version)
            return
        version = int(error.advice.split(" AS OF ")[1].split()[0])
        if version >= self.table.cleaned:
            self.table.restore_mark(version)
            assert not self.broken()

    def broken(self) -> bool:
        """Whether the newest entry does not stand on the one it was decided on."""
        return self.table.broken()

    @invariant()
    def the_search_agrees_with_the_obvious_one(self) -> None:
        """The newest visible entry is the one a replay of the whole history finds, or it is cleaned up."""
        if len(self.table.marks) == self.searched:
            return
        self.searched = len(self.table.marks)
        standing = self.table.standing()
        try:
            state = self.table.state()
        except RestoredError:
            assert any(row.parameters.get("timestamp") for row in self.table.history)
            return
        if state.entry is None and standing:
            assert self.table.cleaned
            assert state.truncated
            return
        assert state.entry == (standing[0] if standing else None)
        if not self.table.cleaned:
            assert state.txn_version == self.table.highest

    @invariant()
    def each_row_is_there_once(self) -> None:
        """From start to end of each journal, in order; what is missing is in an entry's gaps or in state."""
        standing = self.table.standing()
        if len(self.table.marks) == self.checked or self.broken():
            return  # The next to write refuses and says what mends it; see stop().
        self.checked = len(self.table.marks)
        mark = self.table.mark
        if not standing:
            assert mark.rows == ()
            return
        entry = standing[0]
        assert max(Counter(mark.rows).values(), default=1) == 1 or mark.restarted
        for journal, start in mark.starts.items():
            rows = [row for row in mark.rows if row.record.source == journal]
            left_out = [each.at for each in mark.left_out() if each.source == journal]
            if journal in mark.twice:
                continue  # Each of its sources has a place of its own: no source brings a row twice.
            places, passed = [row.record.at for row in rows], range(start, entry.read_through[journal])
            assert places == sorted(places)
            if mark.committed:
                self.messages_are_whole({*passed} - {*left_out}, [row.offset for row in rows], passed)
            else:
                assert sorted(places + left_out) == list(passed)
        foreign = [row.record for row in mark.rows if row.record.source in FOREIGN]
        assert mark.restarted or self.read_by_two(mark) or len(set(foreign)) == len(foreign)

    def messages_are_whole(self, committing: set[int], messages: list[int], passed: range) -> None:
        """Each message of a journal that some records commit is there once, and no other.

        Those from before the table's begin may be missing: not each query knows them.
        """
        wanted = {at for at in range(max(0, passed.start - 4), passed.stop) if committed_at(at) in committing}
        assert len({*messages}) == len(messages)
        assert {at for at in wanted if at >= passed.start} <= {*messages} <= wanted
        if wanted:
            self.seen.add("committed messages are whole")

    def read_by_two(self, mark: Mark) -> bool:
        """Whether two sources of one query have read the same other source."""
        pairs = {(row.query, row.number, row.record.source) for row in mark.rows}
        counted = Counter((query, source) for query, _, source in pairs if source in FOREIGN)
        return max(counted.values(), default=0) > 1


LedgerMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=50, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_a_lone_writer_reaches_the_end() -> None:
    """The machine's writer is not one that always refuses: undisturbed it brings everything in."""
    machine = LedgerMachine()
    [writer] = machine.writers
    run_to(machine, writer, 7, 12)
    assert writer.commits == 3
    assert len(machine.table.mark.rows) == 24
    machine.each_row_is_there_once()


def run_to(machine: LedgerMachine, writer: Writer, *heads: int) -> None:
    """Run the pinned batch of a writer, and one to each of some offsets in all journals."""
    for head in (None, *heads):
        if head is not None:
            (known,) = writer.ends[-1]
            assert isinstance(known, Mapping)
            end = dict.fromkeys(known, head)
            writer.read.append(tuple(writer.rows_between(0, known, end)))
            writer.ends.append((end,))
            writer.planned.append(next(machine.names))
        machine.look_and_decide(writer)
        if writer.pending:
            machine.write(writer)
            machine.look(writer)


def test_messages_are_trimmed_by_what_commits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a transaction that was open where the table ends are new, wherever they begin."""

    def trims() -> None:
        machine = LedgerMachine()
        machine.read_committed(committed=True)
        run_to(machine, machine.writers[0], 7)
        behind = machine.add((frozenset(JOURNALS),), ({},))
        behind.committed, behind.allowed = True, Allowed(trim=True)
        run_to(machine, behind, 3, 12)
        assert behind.commits == 3
        assert len(machine.table.mark.rows) == 2 * len([0, 1, 2, 3, 5, 6, 7, 8, 11])
        machine.each_row_is_there_once()

    trims()
    monkeypatch.setattr(trim, "range_origin", lambda schema, isolation: trim.origin_columns(schema))
    with pytest.raises(AssertionError):
        trims()
