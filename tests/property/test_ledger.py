"""In any order of writes, crashes, copies, RESTOREs and clean-ups, each row is in the table once.

The model (:mod:`tests.rig.ledger_model`) is a table of either format, and queries of one to three sources:
journals, and others whose positions are texts that a new checkpoint repeats. Some keep state: they emit in
one batch what they read in the one before. Some have one of two tables of dead letters. Each look at a table
and each commit is a step, and the steps of all writers interleave freely. A writer crashes by being dropped.

Each decision is compared with an obvious one, which compares identities of rows: the table's and the batch's.
After each commit to either, each record is once in the main table or in one for dead letters.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import pytest
from hypothesis import Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gazette_spark import offsets
from gazette_spark._delta import trim
from gazette_spark._ledger import entry as entry_module
from gazette_spark._ledger.dead_letters import (
    APP_ID_SUFFIX,
    Divert,
    Fence,
    check_ledger,
    closing_entry,
    dead_batch,
    is_ahead,
    plan,
    reconcile,
    state_may_hold_letters,
    with_letters,
)
from gazette_spark._ledger.decision import (
    Allowed,
    Committed,
    Decision,
    Refusal,
    Retry,
    Skip,
    Write,
    decide,
    verify,
)
from gazette_spark._ledger.entry import (
    Batch,
    EntryDelta,
    LedgerEntry,
    LedgerState,
    Positions,
    SkippedGap,
    least_offsets,
    parse_entry,
)
from gazette_spark._ledger.iceberg_reader import PROPERTY_PREFIX
from gazette_spark.errors import (
    BadRowError,
    DeadLetterError,
    GapError,
    JournalRecreatedError,
    LedgerLostError,
    RestoredError,
    SinkError,
    TableRefusedError,
)
from gazette_spark.offsets import Fingerprint
from gazette_spark.sink import MAX_ATTEMPTS
from tests.rig.examples import examples
from tests.rig.ledger_model import (
    APP,
    FOREIGN,
    JOURNALS,
    REFUSED,
    Expected,
    IcebergSinkTable,
    Mark,
    Position,
    Record,
    Row,
    SinkTable,
    Source,
    Turn,
    Writer,
    committed_at,
    obvious_decision,
    ranges_of,
)

MUTANT_SETTINGS = settings(
    max_examples=10_000,
    stateful_step_count=100,
    deadline=None,
    phases=[Phase.generate],
    database=None,
    derandomize=True,
)
"""Settings of the search for a mutant's fault. Only finding the fault matters, so nothing is shrunk.
The search ends at the first fault, usually within a few hundred examples; 500 random examples once
found none. Every run makes the same search. Mutants whose search takes seconds run in soak only."""

SOURCES = st.lists(
    st.one_of(
        st.just(frozenset(JOURNALS)),
        st.sampled_from([frozenset({journal}) for journal in JOURNALS]),
        st.sampled_from(FOREIGN),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
"""The sources of a query in any order. Sources that share a journal are rare enough."""

Batched = tuple[tuple[Row, ...], set[Record]]
"""Rows of a batch for both tables, and the records of the batch."""

TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=5)
"""Pairs of a writer, counted from the newest, and its number of steps."""

STEPS = st.integers(0, 20)

RULES = st.integers(0, 2)
SECOND = st.sampled_from([None, None, None, 0, 1])

PERMISSIONS = st.builds(Allowed, trim=st.booleans(), restart=st.sampled_from([False, False, True]))


@pytest.fixture(autouse=True, scope="module")
def short_entries() -> Iterator[None]:
    """Store most entries as deltas, and some with all positions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_module, "FEW_JOURNALS", 0)
        patch.setattr(entry_module, "MAX_DELTAS", 3)
        patch.setattr(offsets, "FINGERPRINT_BYTES", 3)
        yield


class Over(Exception):  # noqa: N818 - it is not an error.
    """A batch is done, or its query has ended."""


class OtherJournalError(Exception):
    """The source of a query has found a different journal from the one it has read."""


class LedgerMachine(RuleBasedStateMachine):
    """Growing sources, one table, two tables of dead letters, and any number of writers."""

    table_type: type[SinkTable] = SinkTable

    def __init__(self) -> None:
        super().__init__()
        self.table = self.table_type()
        self.letters = {name: SinkTable(name, APP + APP_ID_SUFFIX) for name in ("d1", "d2")}
        self.loose: set[str] = set()
        """Dead-letter tables that somebody changed, or whose main table somebody restored, and that the main
        table does not name. A writer that does not use them does not check whether they are ahead."""
        self.stray: dict[str, set[Record]] = {name: set() for name in self.letters}
        """Dead letters by table whose records the main table has not passed, or had not passed then."""
        self.gone: set[Record] = set()
        """Dead letters that a user has lost."""
        self.both: set[Record] = set()
        """Records whose rows or dead letters a user has brought back."""
        self.heads = dict.fromkeys(JOURNALS, 9) | dict.fromkeys(FOREIGN, 2)
        self.content = dict.fromkeys(JOURNALS, bytes([1]) * 9)
        """Bytes of each journal; each byte is the revision of the creation that appended it."""
        self.created = dict.fromkeys(JOURNALS, 1)
        self.revision = 1
        self.names = itertools.count(1)
        self.writers: list[Writer] = []
        self.add((frozenset(JOURNALS),), ({},))
        self.checked = 0
        """Number of table versions that were checked and found correct."""
        self.seen: set[str] = set()
        """Events for Hypothesis' statistics."""
        self.committed = False
        """Whether most queries read committed messages."""
        self.turned_down: set[str] = set()
        """Attempts whose write of the main table was rejected."""

    def teardown(self) -> None:
        for each in sorted(self.seen):
            event(each)

    # The world.

    @initialize(committed=st.sampled_from([False, False, True]), letters=st.sampled_from(["d1", None]))
    def read_committed(self, committed: bool, letters: str | None = None) -> None:
        """Choose the isolation of most queries, and of the first one, which has not read yet."""
        self.committed = committed
        for writer in self.writers:
            writer.committed, writer.letters = committed, letters
            self.restrict(writer)

    def restrict(self, writer: Writer) -> None:
        """Remove from a writer what the table format does not support; mutants have no other format."""

    @rule(source=st.sampled_from([*JOURNALS, *JOURNALS, *FOREIGN]), size=st.integers(1, 9))
    def grow(self, source: str, size: int) -> None:
        self.heads[source] += size
        if source in JOURNALS:
            self.content[source] += bytes([self.created[source]]) * size

    @rule(
        data=st.data(),
        journal=st.sampled_from(JOURNALS),
        stored=st.sampled_from(["all", "all", "some", "nothing"]),
        size=st.integers(0, 9),
        happens=st.sampled_from([True, False, False, False]),
    )
    def create_again(self, data: st.DataObject, journal: str, stored: str, size: int, happens: bool) -> None:
        """Delete a journal, create it again over its stored fragments, and append more records."""
        if happens and self.revision < 255:
            self.revision += 1
            self.created[journal] = self.revision
            length = {"all": self.heads[journal], "nothing": 0}.get(stored)
            kept = data.draw(st.integers(0, self.heads[journal])) if length is None else length
            self.content[journal] = self.content[journal][:kept] + bytes([self.revision]) * size
            self.heads[journal] = len(self.content[journal])
            self.seen.add(f"a journal is created again over {stored}")

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
        letters=st.sampled_from(["d1", "d1", "d2", None]),
        rules=RULES,
        second=SECOND,
        steps=STEPS,
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
        letters: str | None,
        rules: int,
        second: int | None,
        steps: int,
    ) -> None:
        """Start a query without a checkpoint, which may be allowed to continue the table.

        Its isolation may differ from most, and it may know the states of the query before it. It has dead
        letters only where the sink accepts them.
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
        ledger = entry.fingerprints if entry and start == "resume" else {}
        writer = self.add(sources, tuple(ends), data=data, ledger=ledger)
        writer.resumes = start == "resume"
        writer.committed = self.committed != other
        if knows and start == "resume" and entry:
            writer.known = least_offsets(entry.start)
        writer.stateful, writer.mode = stateful, "upsert" if upsert else "append"
        writer.allowed, writer.obeys = allowed, obeys
        writer.letters, writer.rules, writer.second = letters if writer.splits else None, rules, second
        self.restrict(writer)
        self.take_steps(data, writer, steps)

    def undone(self) -> Positions:
        try:
            return self.table.state().undone
        except RestoredError:
            return ()

    def add(
        self,
        sources: tuple[Source, ...],
        begin: tuple[Position, ...],
        data: st.DataObject | None = None,
        ledger: Mapping[str, Fingerprint] | None = None,
    ) -> Writer:
        """Plan the first batch of a query: it pins its journals, and may read its other sources."""
        name = f"query-{next(self.names)}"
        full = tuple(
            dict.fromkeys(sorted(source), 0) if isinstance(source, frozenset) and not begun else begun
            for source, begun in zip(sources, begin, strict=True)
        )
        writer = Writer(name, sources, [], [], [], memory=dict(ledger or {}))
        try:
            self.plan_from(writer, full, data)
        except OtherJournalError:
            self.seen.add("a query that resumes a table finds another journal")
            writer.alive = False
        else:
            self.writers.append(writer)
        return writer

    @rule(data=st.data(), stale=st.booleans(), steps=STEPS)
    def copy(self, data: st.DataObject, stale: bool, steps: int) -> None:
        """Start another process on a copy of a query checkpoint, with its query id, current or older."""
        if self.writers:
            original = data.draw(st.sampled_from(self.writers))
            batches = len(original.ends)
            self.writers.append(original.copied(data.draw(st.integers(1, batches)) if stale else batches))
            self.begin(self.writers[-1])
            self.take_steps(data, self.writers[-1], steps)

    @rule(
        data=st.data(),
        allowed=PERMISSIONS,
        obeys=st.booleans(),
        swap=st.sampled_from([False, False, True]),
        letters=st.sampled_from(["d1", "d2", None, "same", "same", "same"]),
        rules=RULES,
        second=SECOND,
        steps=STEPS,
    )
    def crash(  # noqa: PLR0917 - Hypothesis names them.
        self,
        data: st.DataObject,
        allowed: Allowed,
        obeys: bool,
        swap: bool,
        letters: str | None,
        rules: int,
        second: int | None,
        steps: int,
    ) -> None:
        """Kill a process anywhere, and start it again from its checkpoint, perhaps with other options.

        Its Gazette sources may be swapped: each then finds the position of the other one.
        """
        if self.writers:
            writer = data.draw(st.sampled_from(self.writers))
            writer.forget()
            writer.alive, writer.allowed, writer.obeys = True, allowed, obeys
            self.begin(writer)
            writer.rules, writer.second = rules, second
            if letters != "same" and writer.splits:
                writer.letters = letters
            self.restrict(writer)
            if swap:
                gazette = [n for n, source in enumerate(writer.sources) if isinstance(source, frozenset)]
                swapped = dict(zip(gazette, reversed(gazette), strict=True))
                writer.sources = tuple(
                    writer.sources[swapped.get(n, n)] for n, _ in enumerate(writer.sources)
                )
            self.take_steps(data, writer, steps)

    @rule(
        data=st.data(),
        what=st.sampled_from(["optimize", "restore", "restore", "restore by time", "clean up"]),
    )
    def other_commit(self, data: st.DataObject, what: str) -> None:
        """Run OPTIMIZE, RESTORE to any version in the history, or a clean-up of the history."""
        if self.table.history:
            self.commit_another(data, self.table, what)

    @rule(
        data=st.data(),
        name=st.sampled_from(["d1", "d1", "d2"]),
        what=st.sampled_from(
            ["another stream", "restore", "restore", "restore by time", "clean up", "replace", "delete"]
        ),
    )
    def change_letters(self, data: st.DataObject, name: str, what: str) -> None:
        """Do the same to dead letters, while no query is between its commits. Other streams write them."""
        table, known = self.letters[name], self.letters[name].mark
        if what == "another stream":
            table.optimize()
        elif table.history and not table.broken() and not any(writer.between for writer in self.writers):
            if what == "replace":
                table.replace()
                self.touched(table, known)
            elif what != "delete":
                self.commit_another(data, table, what)
            elif not any(writer.steps for writer in self.writers):
                table.delete()
                self.touched(table, known)
            self.seen.add(f"dead letters: {what}")

    def commit_another(self, data: st.DataObject, table: SinkTable, what: str) -> None:
        """Run OPTIMIZE, RESTORE or a clean-up.

        A clean-up removes what is weeks old: by then no write is under way, and every writer saw the table.
        """
        newest = len(table.history) - 1
        if what == "optimize":
            table.optimize()
        elif what == "clean up":
            if not any(writer.steps for writer in self.writers) and not table.broken():
                table.cleaned = data.draw(st.integers(table.cleaned, newest))
        else:
            version = data.draw(st.integers(table.cleaned, newest))
            self.restore(table, version, by_time=what == "restore by time")

    # A writer's steps.

    @rule(data=st.data(), turns=TURNS)
    def advance(self, data: st.DataObject, turns: list[tuple[int, int]]) -> None:
        for number, steps in turns:
            if alive := [writer for writer in self.writers if writer.alive]:
                self.take_steps(data, alive[-1 - number % len(alive)], steps)

    def take_steps(self, data: st.DataObject, writer: Writer, steps: int) -> None:
        for _ in range(steps):
            if not writer.alive:
                break
            if writer.steps is None:
                try:
                    if writer.commits == len(writer.ends) and not self.plan_batch(data, writer):
                        break
                except OtherJournalError:
                    self.seen.add("the source finds another journal")
                    writer.alive = False
                    break
                writer.steps = self.run_batch(writer)
            self.step(writer)

    def step(self, writer: Writer) -> None:
        assert writer.steps
        if next(writer.steps, "over") == "over":
            writer.steps = None

    def begin(self, writer: Writer) -> None:
        """Start a process of a query with a checkpoint; it compares the bytes of a batch that runs again."""
        standing = self.table.standing()
        writer.start(standing[0].fingerprints if standing else {})
        batch = len(writer.ends) - 1
        if writer.commits < len(writer.ends) and not writer.first:
            found = self.content
            planned = writer.content.get(batch, {})
            if any(found[name][: len(each)] != each for name, each in planned.items()):
                writer.alive = False

    def plan_batch(self, data: st.DataObject, writer: Writer) -> bool:
        """Plan the next batch; return whether there is one. A query with state may have one without data."""
        before = writer.ends[-1]
        self.plan_from(writer, before, data)
        renewed = any(name in writer.prints[len(writer.ends) - 1] for name in JOURNALS)
        if (
            writer.ends[-1] != before
            or renewed
            or (writer.stateful and (writer.read[-2] or data.draw(st.booleans())))
        ):
            return True
        for log in (writer.ends, writer.read, writer.planned):
            log.pop()
        return False

    def compared(self, writer: Writer, before: tuple[Position, ...], *, pins: bool) -> dict[str, Fingerprint]:
        """Compare as the source does; return the fingerprints of journals that the batch does not read.

        A query that starts compares all journals that it knows; later, those that were created again.
        """
        reached: dict[str, int] = {}
        for position in before:
            if isinstance(position, Mapping):
                reached |= {name: max(at, reached.get(name, 0)) for name, at in position.items()}
        listed = writer.revisions.get(len(writer.ends) - 1, 0)
        found: dict[str, Fingerprint] = {}
        for journal, at in reached.items():
            known = writer.memory.get(journal)
            if pins:
                known = known or Fingerprint(at, at, create_revision=self.created[journal])
            elif self.created[journal] <= listed or at == 0:
                continue
            if known is None:
                raise OtherJournalError
            content, created = self.content[journal], self.created[journal]
            if known.begin < known.end and not known.is_of(content[known.begin : known.end]):
                raise OtherJournalError
            if known.create_revision != created and at > 0 and (known.begin == known.end or known.end < at):
                raise OtherJournalError
            found[journal] = replace(known, create_revision=created)
        return found

    def plan_from(self, writer: Writer, before: tuple[Position, ...], data: st.DataObject | None) -> None:
        """Write a batch into the query checkpoint: each source reads on, and may find new journals."""
        pins = not writer.ends
        prints = self.compared(writer, before, pins=pins)
        held = frozenset(prints)
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
                end = {
                    name: known[name] if name in held and name in known else at for name, at in end.items()
                }
                for name in end.keys() - held:
                    created = self.created[name]
                    if name not in known:
                        prints[name] = Fingerprint(end[name], end[name], create_revision=created)
                    elif end[name] > known[name]:
                        prints[name] = Fingerprint.of(self.content[name][: end[name]], end[name], created)
                ends.append(end)
                rows += writer.rows_between(number, known, end)
        writer.ends.append(tuple(ends))
        writer.read.append(tuple(rows))
        writer.planned.append(next(self.names))
        batch = len(writer.ends) - 1
        writer.memory |= prints
        writer.prints[batch], writer.revisions[batch] = prints, self.revision
        journals = {name: at for end in ends if isinstance(end, Mapping) for name, at in end.items()}
        writer.content[batch] = {name: self.content[name][:at] for name, at in journals.items()}

    def read_journals(
        self, known: Mapping[str, int], selected: frozenset[str], data: st.DataObject | None
    ) -> dict[str, int]:
        """Return where a source has read to. Occasionally it finds a new journal."""
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
        """Return some of what another source has and its checkpoint has not read, or all of it."""
        done = {row.record for rows in writer.read for row in rows if row.number == number}
        new = [each for at in range(self.heads[source]) if (each := Record(source, at)) not in done]
        if data is None or not new:
            return []
        return data.draw(st.sampled_from([[], new, new[:1]]))

    # A batch, as ``DeltaSink`` and its router write it. Each look at a table and each commit is a step.

    def run_batch(self, writer: Writer) -> Iterator[None]:
        with suppress(Over):
            for _ in range(MAX_ATTEMPTS):
                dead = LedgerState()
                if writer.letters:
                    dead = self.state_of(writer, self.letters[writer.letters])
                    yield
                before = self.state_of(writer, self.table)
                made = self.decided(writer, before)
                if not (yield from self.leave_another(writer, before, made)):
                    continue
                split = yield from self.split(writer, dead, before, made)
                if split is None:
                    continue
                entry, after = split
                yield
                self.write(writer, before, entry, after)
                yield
                writer.between = False
                if self.landed(writer, before, entry):
                    writer.seen = entry.attempt
                    if after.fence is None:
                        self.done(writer, entry.attempt)
            self.stop(writer, TableRefusedError(self.table.name, "it was turned down"))

    def state_of(self, writer: Writer, table: SinkTable) -> LedgerState:
        try:
            return table.state()
        except RestoredError as restored:
            self.stop(writer, restored)

    def decided(self, writer: Writer, before: LedgerState) -> Write:
        made = self.decide(writer, before, self.attempt())
        mark = self.mark_of(before)
        is_replay = mark.planned == writer.planned[-1]
        if before.entry is not None and not isinstance(made, Refusal) and not is_replay:
            assert not writer.is_of_another_journal(mark)
        if isinstance(made, Refusal):
            self.stop(writer, made.error)
        if isinstance(made, Skip):
            assert before.entry is not None
            self.done(writer, before.entry.attempt)
        if made.new_ranges:
            self.seen.add("a batch is trimmed")
        if made.entry.accepted_gaps:
            self.seen.add("a gap is accepted")
        if writer.stateful and writer.emitted():
            self.seen.add("state emits rows")
        return made

    def write(self, writer: Writer, before: LedgerState, entry: LedgerEntry, after: Mark) -> None:
        """Append to the current state of the table, even if it has changed since the decision."""
        decided_on, now = self.mark_of(before), self.table.mark
        if now != decided_on:
            added, dead = after.rows[len(decided_on.rows) :], after.dead - decided_on.dead
            after = replace(now, rows=now.rows + added, dead=now.dead | dead, planned=after.planned)
        if not self.table.write(entry, after, on=before.table_version):
            self.turned_down.add(entry.attempt)
            return
        if entry.dead_letters in self.letters:  # The next writer sees all of these letters.
            self.loose.discard(entry.dead_letters)
            table, passed = self.letters[entry.dead_letters], now.passed()
            self.stray[table.name] &= {row.place for row in table.mark.rows if row.record in passed}
        self.check_letters()

    def mark_of(self, before: LedgerState) -> Mark:
        at = before.table_version
        return self.table.marks[at] if at >= 0 else Mark()

    def landed(self, writer: Writer, before: LedgerState, entry: LedgerEntry) -> bool:
        try:
            outcome = self.verify(writer, before, entry)
        except RestoredError as restored:
            outcome = Refusal(restored)
        if isinstance(outcome, Refusal):
            self.stop(writer, outcome.error)
        return isinstance(outcome, Committed)

    # Its dead letters.

    def leave_another(self, writer: Writer, before: LedgerState, made: Write) -> Generator[None, None, bool]:
        """Close the other dead letters, if the table names some; return whether that succeeded."""
        entry = before.entry
        if entry is None or entry.dead_letters in {None, writer.letters}:
            return True
        assert entry.dead_letters
        return (yield from self.leave(writer, self.letters[entry.dead_letters], entry, made))

    def leave(
        self, writer: Writer, table: SinkTable, main: LedgerEntry, made: Write
    ) -> Generator[None, None, bool]:
        """Close a table of dead letters; return whether the commit succeeded."""
        yield
        dead = self.state_of(writer, table)
        about = dead_batch(made.entry, table.name)
        entry = closing_entry(dead, main, made.entry, self.attempt())
        if entry is None:
            self.seen.add("dead letters that are gone are left")
            return True
        try:
            check_ledger(dead, about)
        except (LedgerLostError, RestoredError) as error:
            self.stop(writer, error)
        if is_ahead(dead, main):
            self.stop(writer, DeadLetterError(self.table.name, APP, f"those in {table.name} are ahead"))
        self.seen.add("dead letters are left")
        return bool((yield from self.commit_letters(writer, table, dead, entry, (about, ()))))

    def split(
        self, writer: Writer, dead: LedgerState, before: LedgerState, made: Write
    ) -> Generator[None, None, tuple[LedgerEntry, Mark] | None]:
        """Commit the misfits of a batch; return the main table's entry, and its required state then."""
        rows, entry = writer.emits(made.new_ranges), made.entry
        decided_on = self.mark_of(before)
        if writer.letters is None:
            return entry, writer.mark_after(decided_on, entry, rows)
        table = self.letters[writer.letters]
        try:
            step = self.plan(dead, before, made, table.name)
        except (DeadLetterError, LedgerLostError, RestoredError) as error:
            self.stop(writer, error)
        if isinstance(step, Fence):
            self.seen.add("a writer sets a fence")
            return step.entry, replace(
                decided_on, fence=Turn(writer.name, step.entry.batch_id, writer.stateful)
            )
        merged, left = dead, rows
        if isinstance(step, Divert):
            if state_may_hold_letters(step, dead, made):
                self.stop(writer, DeadLetterError(self.table.name, APP, "state may hold them"))
            ranges = ranges_of(made, step.batch)
            landed = yield from self.merge(writer, table, dead, step, (rows, ranges))
            if landed is None:
                return None
            merged = landed
            left = self.without_letters(writer, table, dead, merged, (rows, ranges))
        self.check_again(writer, left)
        letters = {*rows} - {*left}
        if letters:
            self.seen.add("a batch has dead letters")
        return with_letters(entry, table.name, merged), writer.mark_after(decided_on, entry, left, letters)

    def plan(self, dead: LedgerState, main: LedgerState, made: Write, table: str) -> Fence | Divert | None:
        """Return the package's plan; mutants override this."""
        return plan(dead, main, made, table=table, attempt=self.attempt())

    def merge(
        self, writer: Writer, table: SinkTable, dead: LedgerState, step: Divert, batch: Batched
    ) -> Generator[None, None, LedgerState | None]:
        """Commit the missing dead letters of the first pass; return the state that contains them."""
        rows, ranges = batch
        dying = writer.misfits(rows)
        if any(row.record not in ranges for row in dying):
            self.stop(writer, BadRowError(self.table.name, APP, step.batch.batch_id, "no row of the batch"))
        if step.may_have_some:
            self.seen.add("records of the batch may be dead letters")
            known = self.known(table, dead.table_version)
            dying = tuple(row for row in dying if row.place not in known)
        return (yield from self.commit_letters(writer, table, dead, step.entry, (step.batch, dying)))

    def known(self, table: SinkTable, version: int) -> set[Record]:
        """Return where the dead letters at a version of their table begin; mutants override this."""
        return table.marks[version].places() if version >= 0 else set()

    def without_letters(
        self, writer: Writer, table: SinkTable, before: LedgerState, merged: LedgerState, batch: Batched
    ) -> tuple[Row, ...]:
        """Return the rows that are not dead letters after the merge; mutants override this."""
        rows, ranges = batch
        found = table.marks[merged.entry_version].rows
        letters = {row.place for row in found if row.record in ranges}
        return tuple(row for row in rows if row.place not in letters)

    def check_again(self, writer: Writer, rows: tuple[Row, ...]) -> None:
        """End the query at a row that no longer fits in the second pass; mutants override this."""
        if writer.misfits(rows, again=True):
            number = writer.batch().batch_id
            self.stop(writer, BadRowError(self.table.name, APP, number, "a row has changed its mind"))

    def commit_letters(
        self,
        writer: Writer,
        table: SinkTable,
        before: LedgerState,
        entry: LedgerEntry,
        about: tuple[Batch, tuple[Row, ...]],
    ) -> Generator[None, None, LedgerState | None]:
        """Commit to a table of dead letters; return its state if the commit succeeded."""
        yield
        writer.between = True
        batch, rows = about
        self.append_letters(table, entry, rows)
        self.check_letters()
        yield
        after = self.state_of(writer, table)
        outcome = self.reconcile(before, after, entry, batch)
        if isinstance(outcome, Refusal):
            self.stop(writer, outcome.error)
        return after if isinstance(outcome, Committed) else None

    def append_letters(self, table: SinkTable, entry: LedgerEntry, rows: tuple[Row, ...]) -> None:
        """Commit to a table of dead letters; mutants override this."""
        table.write(entry, replace(table.mark, rows=table.mark.rows + rows), on=len(table.history) - 1)

    def reconcile(
        self, before: LedgerState, after: LedgerState, entry: LedgerEntry, batch: Batch
    ) -> Committed | Retry | Refusal:
        """Return the package's outcome; mutants override this."""
        return reconcile(before, after, entry, batch, conflict=False)

    # The package's decisions, and the end of a query.

    def attempt(self) -> str:
        return f"attempt-{next(self.names)}"

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        """Return the package's decision, which must be the obvious one; mutants override this."""
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
        if isinstance(made, Refusal) and isinstance(made.error, JournalRecreatedError):
            self.check_recreated(made.error, writer)
            return
        if isinstance(made, Refusal):
            assert expected.rows is None or expected.may_be_refused
            return
        assert expected.rows is not None
        if expected.anything:
            return
        if expected.entry:
            assert isinstance(made, Write)
        rows = writer.emits(made.new_ranges) if isinstance(made, Write) else ()
        assert frozenset(rows) == expected.rows

    def check_recreated(self, error: JournalRecreatedError, writer: Writer) -> None:
        """Check that a journal was created again, or that the query could not compare it with the table."""
        batch, known = writer.batch(), self.table.standing()[0].fingerprints[error.journal]
        # A journal behind a gap is in the fingerprints of the batch before.
        found = batch.fingerprints.get(error.journal) or batch.earlier_fingerprints[error.journal]
        assert found.create_revision != known.create_revision
        assert not (found.has_range_of(known) and found.digest == known.digest)

    def verify(self, writer: Writer, before: LedgerState, entry: LedgerEntry) -> Committed | Retry | Refusal:
        """Return the package's verdict on a write; mutants override this."""
        return verify(before, self.table.state(), entry, writer.batch(), conflict=False)

    def done(self, writer: Writer, seen: str) -> NoReturn:
        """Check, when Spark writes ``commits/<n>``, that the table has the whole batch, unless undone."""
        self.seen.add("a batch is done")
        writer.commits, writer.seen, writer.between = len(writer.ends), seen, False
        assert {row.record for row in writer.emitted()} <= self.table.mark.passed()
        raise Over

    def stop(self, writer: Writer, error: SinkError | JournalRecreatedError) -> NoReturn:
        """End the query. If the error says how to repair the table or to continue, the operator does so."""
        self.seen.add(type(error).__name__)
        writer.forget()
        writer.alive = False
        if isinstance(error, GapError) and writer.obeys and error.missing:
            gaps = (SkippedGap(name, *each) for name, named in error.missing.items() for each in named)
            writer.allowed, writer.alive = replace(writer.allowed, gaps=frozenset(gaps)), True
        if isinstance(error, DeadLetterError) and writer.obeys and writer.splits:
            entry = self.table.standing()[0]
            writer.letters, writer.alive = entry.dead_letters, True
        if isinstance(error, RestoredError):
            self.mend(error, keep=writer.obeys)
        raise Over

    def mend(self, error: RestoredError, *, keep: bool) -> None:
        """Do as an error says. The operator may keep dead letters as they were restored."""
        table = self.letters.get(error.table, self.table)
        if by_time := re.search(r"version (\d+) restored the table to a point in time", str(error)):
            version = table.restored[int(by_time[1])]
        elif keep and table is not self.table:
            version = int(error.advice.split("restore version ")[1].split(".")[0])
        else:
            version = int(error.advice.split(" AS OF ")[1].split()[0])
        if version >= table.cleaned:
            self.restore(table, version)
            assert by_time or not table.broken()

    # What other users of the tables do.

    def restore(self, table: SinkTable, version: int, *, by_time: bool = False) -> None:
        """RESTORE a table; record the rows that this loses, duplicates or makes unsafe."""
        known = table.mark
        table.restore(version, by_time=by_time)
        self.touched(table, known)

    def touched(self, table: SinkTable, known: Mark) -> None:
        """Record the rows that a user has lost, duplicated or made unsafe by changing a table.

        A row or dead letter that comes back may meanwhile be in the other table, too.
        """
        brought = table.mark.places() - known.places()
        self.both |= brought
        if table is self.table:
            self.gone |= self.dead_places() - self.all_letters()
            self.loose |= self.letters.keys()
        else:
            self.gone |= (known.places() - table.mark.places()) & self.dead_places()
            self.loose.add(table.name)
        newest = self.table.standing()
        self.loose -= {newest[0].dead_letters} if newest else set()
        self.check_letters()

    def all_letters(self) -> set[Record]:
        return set[Record]().union(*(table.mark.places() for table in self.letters.values()))

    def dead_places(self) -> set[Record]:
        """Return where the rows begin that the main table was written without."""
        return {row.place for row in self.table.mark.dead}

    def broken(self) -> bool:
        """Return whether the newest entry's parent differs from the entry that it was decided on."""
        return self.table.broken()

    @invariant()
    def the_search_agrees_with_the_obvious_one(self) -> None:
        """The newest visible entry is the one that a replay of the history finds, or it is cleaned up."""
        for table in (self.table, *self.letters.values()):
            if table.searched != table.changes:
                table.searched = table.changes
                self.check_search(table)

    def check_search(self, table: SinkTable) -> None:
        standing = table.standing()
        try:
            state = table.state()
        except RestoredError:
            assert any(row.parameters.get("timestamp") for row in table.history)
            return
        if state.entry is None and standing:
            assert table.cleaned
            assert state.truncated
            return
        assert state.entry == (standing[0] if standing else None)
        if not table.cleaned and self.table_type is SinkTable:
            assert state.txn_version == table.highest

    @invariant()
    def each_row_is_there_once(self) -> None:
        """Rows are in order from start to end of each journal. Gaps or state explain missing ones."""
        standing = self.table.standing()
        if self.table.changes == self.checked or self.broken():
            return  # The next writer refuses, and its error names the remedy; see stop().
        self.checked = self.table.changes
        mark = self.table.mark
        if not standing:
            assert mark.rows == ()
            return
        entry = standing[0]
        assert max(Counter(mark.rows).values(), default=1) == 1 or mark.restarted
        for journal, start in mark.starts.items():
            rows = [row for row in mark.rows if row.record.source == journal]
            left_out = [each.at for each in mark.left_out() if each.source == journal]
            dead = [row.offset for row in mark.dead if row.record.source == journal]
            if journal in mark.twice:
                continue  # Each of its sources has its own ledger position, so no source writes a row twice.
            places, passed = [row.record.at for row in rows], range(start, entry.read_through[journal])
            assert places == sorted(places)
            if mark.committed:
                messages = [row.offset for row in rows] + dead
                self.messages_are_whole({*passed} - {*left_out}, messages, passed)
            else:
                assert sorted(places + left_out + dead) == list(passed)
        foreign = [row.record for row in mark.rows if row.record.source in FOREIGN]
        assert mark.restarted or self.read_by_two(mark) or len(set(foreign)) == len(foreign)

    def check_letters(self) -> None:
        """Check that each record is in exactly one table, except where a user's RESTORE explains it.

        Only the table of dead letters that the main table names may have letters for bytes to come.
        """
        if self.broken():
            return
        mark, standing = self.table.mark, self.table.standing()
        rows, passed = mark.places(), mark.passed()
        counted: Counter[Record] = Counter()
        for name, table in self.letters.items():
            letters = table.mark.places()
            assert len(letters) == len(table.mark.rows)
            ahead = {row.place for row in table.mark.rows if row.record not in passed}
            if name in self.loose:
                self.stray[name] |= ahead
            self.stray[name] &= letters
            counted.update(letters - self.stray[name])
            assert ahead <= self.stray[name] or name == standing[0].dead_letters
        double = {record for record, count in counted.items() if count + (record in rows) > 1}
        assert all(record.source in mark.twice for record in double - self.both)
        assert self.dead_places() - self.all_letters() <= self.gone

    def messages_are_whole(self, committing: set[int], messages: list[int], passed: range) -> None:
        """Check that the table has each committed message of a journal once, and no other message.

        Messages from before the table's begin may be missing: not every query knows them.
        """
        wanted = {at for at in range(max(0, passed.start - 4), passed.stop) if committed_at(at) in committing}
        assert len({*messages}) == len(messages)
        assert {at for at in wanted if at >= passed.start} <= {*messages} <= wanted
        if wanted:
            self.seen.add("committed messages are whole")

    def read_by_two(self, mark: Mark) -> bool:
        """Return whether two sources of one query have read the same other source."""
        pairs = {(row.query, row.number, row.record.source) for row in mark.rows}
        counted = Counter((query, source) for query, _, source in pairs if source in FOREIGN)
        return max(counted.values(), default=0) > 1


LedgerMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=50, deadline=None)
TestLedger = LedgerMachine.TestCase


class IcebergMachine(LedgerMachine):
    """The same queries with an Iceberg table, which only appends rows and has no dead letters."""

    table_type = IcebergSinkTable
    table: IcebergSinkTable

    def restrict(self, writer: Writer) -> None:
        writer.letters, writer.mode = None, "append"
        writer.allowed = replace(writer.allowed, trim=False)

    def change_letters(self, *_: object) -> None:
        """There are no dead letters."""

    def commit_another(self, data: st.DataObject, table: SinkTable, what: str) -> None:
        """Compact, roll back to any existing snapshot, or expire some, at any moment."""
        assert isinstance(table, IcebergSinkTable)
        if what == "optimize":
            table.optimize()
        elif what == "clean up":
            # Earlier metadata is the only record of a rollback; see the guide on keeping it.
            if table.standing() and table.state().entry == table.standing()[0] == self.newest_written():
                table.clean_metadata(data.draw(st.integers(0, len(table.earlier))))
            if old := sorted(table.ancestors.keys() - {table.current}):
                numbers = data.draw(st.one_of(st.just(set(old)), st.sets(st.sampled_from(old))))
                table.expire(numbers, names_parents=data.draw(st.booleans()))
                self.seen.add("snapshots expire")
        else:
            self.restore(table, data.draw(st.sampled_from(sorted(table.ancestors))))
            self.seen.add("the table is rolled back")

    def newest_written(self) -> LedgerEntry | None:
        """Return the entry that was written last, even if it was undone."""
        text = self.table.properties.get(PROPERTY_PREFIX + APP)
        entry = parse_entry(text, APP)
        assert not isinstance(entry, EntryDelta)
        return entry

    def verify(self, writer: Writer, before: LedgerState, entry: LedgerEntry) -> Committed | Retry | Refusal:
        """Return the package's verdict; a catalog may raise an error although it has made the commit."""
        conflict = entry.attempt in self.turned_down or entry.txn_version % 3 == 0
        return verify(before, self.table.state(), entry, writer.batch(), conflict=conflict)

    @invariant()
    def each_entry_stands_on_the_one_it_was_decided_on(self) -> None:
        """A commit based on a snapshot cannot miss another commit or a rollback in between."""
        assert not self.broken()


IcebergMachine.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=50, deadline=None)
TestIcebergLedger = IcebergMachine.TestCase


@pytest.mark.parametrize("machine_type", [LedgerMachine, IcebergMachine])
def test_a_lone_writer_reaches_the_end(machine_type: type[LedgerMachine]) -> None:
    """This shows that the model's writer does not simply always refuse."""
    machine = machine_type()
    [writer] = machine.writers
    run_to(machine, writer, 7, 12)
    assert writer.commits == 3
    assert len(machine.table.mark.rows) == 24
    machine.each_row_is_there_once()


def run_to(machine: LedgerMachine, writer: Writer, *heads: int) -> None:
    """Run the pinned batch of a writer, then a batch to each of these offsets in all journals."""
    for head in (None, *heads):
        if head is not None:
            plan_to(machine, writer, dict.fromkeys(JOURNALS, head))
        list(machine.run_batch(writer))


def plan_to(machine: LedgerMachine, writer: Writer, heads: Mapping[str, int]) -> None:
    (known,) = writer.ends[-1]
    assert isinstance(known, Mapping)
    end = {journal: heads[journal] for journal in known}
    writer.read.append(tuple(writer.rows_between(0, known, end)))
    writer.ends.append((end,))
    writer.planned.append(next(machine.names))


def test_messages_are_trimmed_by_what_commits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of a transaction that was open at the table's end are new, wherever they begin."""

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


def two_writers(machine: LedgerMachine, *, letters: str | None = "d1") -> tuple[Writer, Writer]:
    """Return a writer with a batch to write, and one with other rules on a copy of its checkpoint."""
    [slow] = machine.writers
    slow.letters = "d1"
    run_to(machine, slow)
    plan_to(machine, slow, dict.fromkeys(JOURNALS, 6))
    fast = slow.copied(len(slow.ends))
    fast.letters, fast.rules = letters, 1
    return slow, fast


def run_until_merged(machine: LedgerMachine, writer: Writer) -> Iterator[None]:
    """Run a batch until its dead letters are committed, and return the remaining steps."""
    steps, before = machine.run_batch(writer), len(machine.letters["d1"].history)
    while len(machine.letters["d1"].history) == before:
        next(steps)
    return steps


def overtaken(machine: LedgerMachine) -> None:
    """Let a writer with other rules commit between the two commits of a writer that then continues."""
    slow, fast = two_writers(machine)
    steps = run_until_merged(machine, slow)
    rest = run_until_merged(machine, fast)
    list(steps)
    list(rest)
    assert slow.commits + fast.commits == 3


def at_once(machine: LedgerMachine) -> None:
    """Let two writers with different rules merge what both decided on the same entries."""
    slow, fast = two_writers(machine)
    both = [machine.run_batch(slow), machine.run_batch(fast)]
    while not slow.between:
        for steps in both:
            next(steps, None)
    for steps in both:
        list(steps)
    assert slow.commits == fast.commits == 2


def crashed(machine: LedgerMachine) -> None:
    """Let a writer crash between its commits, and another with other rules continue."""
    slow, fast = two_writers(machine)
    run_until_merged(machine, slow)
    slow.forget()
    list(machine.run_batch(fast))
    assert fast.commits == 2


def left_first(machine: LedgerMachine) -> None:
    """Let a writer without dead letters overtake one that is about to commit the first ones."""
    slow, fast = two_writers(machine, letters=None)
    steps = machine.run_batch(slow)
    for _ in range(2):  # Now it has read both tables.
        next(steps)
    list(machine.run_batch(fast))
    list(steps)
    assert fast.commits == 2


def held(machine: LedgerMachine) -> None:
    """Let a query with state take over after a crash between two commits, then drop its dead letters."""
    slow, _ = two_writers(machine)
    run_until_merged(machine, slow)
    other = machine.add((frozenset(JOURNALS),), ({**dict.fromkeys(JOURNALS, 0)},))
    other.stateful, other.letters, other.rules = True, "d1", 1
    run_to(machine, other, 6)
    other.letters = None
    run_to(machine, other, 6)
    assert not other.alive


def several(machine: LedgerMachine) -> None:
    """Let a query of one journal continue a table of two, whose other position stays in the entries."""
    [first] = machine.writers
    first.sources, first.ends = (
        tuple(frozenset({each}) for each in JOURNALS),
        [({JOURNALS[0]: 0}, {JOURNALS[1]: 0})],
    )
    run_to(machine, first)
    second = machine.add((frozenset(JOURNALS[:1]),), ({JOURNALS[0]: 0},))
    second.letters = "d1"
    run_to(machine, second, 6)
    assert second.commits == 2
    assert machine.letters["d1"].mark.places() == {Record(JOURNALS[0], 0), Record(JOURNALS[0], 3)}


SCHEDULES = (overtaken, at_once, crashed, left_first, held, several)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_no_record_is_in_both_tables(schedule: Callable[[LedgerMachine], None]) -> None:
    """Each schedule once led to a duplicate, or does so without one particular rule."""
    machine = LedgerMachine()
    schedule(machine)
    machine.check_letters()
    machine.each_row_is_there_once()
