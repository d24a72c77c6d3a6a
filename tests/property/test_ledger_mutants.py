"""The state machine over the ledger finds a broken sink: each mutant here fails it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from gazette_spark._ledger import dead_letters, decision, history, iceberg_reader
from gazette_spark._ledger.dead_letters import Divert, Fence, with_letters
from gazette_spark._ledger.decision import Committed, Coverage, Decision, Refusal, Retry, Skip, Write
from gazette_spark._ledger.entry import (
    Batch,
    EntryDelta,
    LedgerEntry,
    LedgerState,
    SourcePosition,
    parse_entry,
)
from gazette_spark._ledger.history import HistoryRow
from gazette_spark._ledger.iceberg_reader import Ancestor
from gazette_spark.offsets import JournalOffsets
from tests.property import test_ledger
from tests.property.test_ledger import (
    MUTANT_SETTINGS,
    Batched,
    IcebergMachine,
    LedgerMachine,
    short_entries,
)
from tests.rig.ledger_model import Expected, IcebergSinkTable, Mark, Record, Row, SinkTable, Writer

pytestmark = pytest.mark.slow

__all__ = ["short_entries"]

Moves = Mapping[tuple[int, str], int]
Fault = Callable[[pytest.MonkeyPatch], None]
"""Patch that removes a rule from the sink."""


class TrustsItsWrite(LedgerMachine):
    """Treats a write that raised no error as committed."""

    def verify(self, writer: Writer, before: LedgerState, entry: LedgerEntry) -> Committed | Retry | Refusal:
        return Committed()


class ForgetsUndoneNumbers(LedgerMachine):
    """Continues from the newest visible entry, and does not check whether Delta skipped its write."""

    def verify(self, writer: Writer, before: LedgerState, entry: LedgerEntry) -> Committed | Retry | Refusal:
        return Committed()

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        visible = state.entry.txn_version if state.entry else -1
        return super().decide(writer, replace(state, txn_version=visible), attempt)


class IgnoresOffsets(LedgerMachine):
    """Writes whatever Spark says is the next batch."""

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        made = super().decide(writer, state, attempt)
        if isinstance(made, Refusal | Skip) and state.entry is not None:
            end = writer.batch().end
            return Write(replace(state.entry, attempt=attempt, txn_version=state.txn_version + 1, end=end))
        return made


class SkipsWhatItCannotPlace(LedgerMachine):
    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        made = super().decide(writer, state, attempt)
        return Skip() if isinstance(made, Refusal) and state.entry is not None else made


class TrimsNothing(LedgerMachine):
    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        made = super().decide(writer, state, attempt)
        return replace(made, new_ranges=()) if isinstance(made, Write) else made


class TrimsTooMuch(LedgerMachine):
    """Drops the first new byte."""

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        made = super().decide(writer, state, attempt)
        if not isinstance(made, Write):
            return made
        return replace(
            made, new_ranges=tuple(replace(each, since=each.since + 1) for each in made.new_ranges)
        )


class KeepsGapsToItself(LedgerMachine):
    """Skips gaps that it may skip, but does not record them."""

    def decide(self, writer: Writer, state: LedgerState, attempt: str) -> Decision:
        made = super().decide(writer, state, attempt)
        if not isinstance(made, Write):
            return made
        return replace(made, entry=replace(made.entry, accepted_gaps=()))


class NeverFences(LedgerMachine):
    """Splits a batch whatever state the dead letters are in."""

    def plan(self, dead: LedgerState, main: LedgerState, made: Write, table: str) -> Fence | Divert | None:
        if main.entry is not None:
            main = replace(main, entry=with_letters(main.entry, table, dead))
        return super().plan(dead, main, made, table)


class LooksTooEarly(LedgerMachine):
    """Leaves out only the dead letters from before its own commit."""

    def without_letters(
        self, writer: Writer, table: SinkTable, before: LedgerState, merged: LedgerState, batch: Batched
    ) -> tuple[Row, ...]:
        known = self.known(table, before.table_version)
        left = tuple(row for row in batch[0] if row.place not in known)
        return fitting(writer, left)


class FiltersTwice(LedgerMachine):
    """Drops rows that do not fit in the second pass, too."""

    def without_letters(
        self, writer: Writer, table: SinkTable, before: LedgerState, merged: LedgerState, batch: Batched
    ) -> tuple[Row, ...]:
        return fitting(writer, super().without_letters(writer, table, before, merged, batch))


class TrustsRules(LedgerMachine):
    """Selects the rows of both passes by the rules alone."""

    def without_letters(
        self, writer: Writer, table: SinkTable, before: LedgerState, merged: LedgerState, batch: Batched
    ) -> tuple[Row, ...]:
        misfits = writer.misfits(batch[0])
        return tuple(row for row in batch[0] if row not in misfits)

    def check_again(self, writer: Writer, rows: tuple[Row, ...]) -> None:
        """Accept any rows."""


class KeepsTheRow(LedgerMachine):
    def without_letters(
        self, writer: Writer, table: SinkTable, before: LedgerState, merged: LedgerState, batch: Batched
    ) -> tuple[Row, ...]:
        return batch[0]

    def check_again(self, writer: Writer, rows: tuple[Row, ...]) -> None:
        """Accept any rows."""


class MergesBlindly(LedgerMachine):
    """Writes existing dead letters again."""

    def known(self, table: SinkTable, version: int) -> set[Record]:
        return set()


class MergesWithoutComparing(LedgerMachine):
    """Commits dead letters even if another writer has committed some meanwhile."""

    def append_letters(self, table: SinkTable, entry: LedgerEntry, rows: tuple[Row, ...]) -> None:
        number = max(entry.txn_version, table.highest + 1)
        newest = table.standing()
        parent = newest[0].attempt if newest else None
        super().append_letters(table, replace(entry, txn_version=number, parent=parent), rows)

    def reconcile(
        self, before: LedgerState, after: LedgerState, entry: LedgerEntry, batch: Batch
    ) -> Committed | Retry | Refusal:
        return Committed()


class LeavesTheDoorOpen(LedgerMachine):
    """Continues without its dead letters, or with others, and does not close those that it leaves."""

    def leave(
        self, writer: Writer, table: SinkTable, main: LedgerEntry, made: Write
    ) -> Generator[None, None, bool]:
        yield
        return True


def fitting(writer: Writer, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    misfits = writer.misfits(rows, again=True)
    return tuple(row for row in rows if row not in misfits)


SLOW = (
    TrustsItsWrite,
    TrimsNothing,
    TrimsTooMuch,
    KeepsGapsToItself,
    NeverFences,
    LooksTooEarly,
    TrustsRules,
    MergesBlindly,
    MergesWithoutComparing,
)
"""Mutants whose search takes several seconds."""

MUTANTS = (
    TrustsItsWrite,
    ForgetsUndoneNumbers,
    IgnoresOffsets,
    SkipsWhatItCannotPlace,
    TrimsNothing,
    TrimsTooMuch,
    KeepsGapsToItself,
    NeverFences,
    LooksTooEarly,
    FiltersTwice,
    TrustsRules,
    KeepsTheRow,
    MergesBlindly,
    MergesWithoutComparing,
    LeavesTheDoorOpen,
)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=[pytest.mark.soak] if each in SLOW else []) for each in MUTANTS],
)
def test_the_model_catches_a_broken_sink(mutant: type[LedgerMachine]) -> None:
    """A machine that accepts these mutants would prove nothing about our sink."""
    with pytest.raises(AssertionError):
        run_state_machine_as_test(mutant, settings=MUTANT_SETTINGS)


class Unguided(LedgerMachine):
    """Checks the table's rows alone, not each decision."""

    def compare(self, made: Decision, expected: Expected, writer: Writer) -> None:
        """Accept any decision."""


def skip_when_nothing_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decision, "_may_have_rows", lambda batch, entry: entry is None)


def compare_texts_alone(patch: pytest.MonkeyPatch) -> None:
    """Treat equal texts as the same position, whichever query wrote them."""
    real = decision._fit_text

    def fits(begin: SourcePosition, end: str | None, recorded: str | None, *, again: bool) -> Coverage:
        return Coverage.UNCHANGED if recorded == end else real(begin, end, recorded, again=again)

    def as_the_same_query(entry: LedgerEntry, batch: Batch, moves: Moves) -> LedgerEntry:
        kinds = [[isinstance(each, JournalOffsets) for each in ends] for ends in (batch.end, entry.end)]
        same = kinds[0] == kinds[1]
        return arranged(replace(entry, query_id=batch.query_id) if same else entry, batch, moves)

    arranged = decision._align_sources
    patch.setattr(decision, "_fit_text", fits)
    patch.setattr(decision, "_align_sources", as_the_same_query)
    check = decision._checkpoint_conflict
    patch.setattr(
        decision,
        "_checkpoint_conflict",
        lambda batch, *known: check(batch, *known) if batch.stateful else None,
    )


def look_under_the_same_number(patch: pytest.MonkeyPatch) -> None:
    """Look up a journal under its own source's number only."""
    patch.setattr(decision, "_moves", lambda batch, entry: {})


def accept_older_copies(patch: pytest.MonkeyPatch) -> None:
    """Accept any batch of the query that wrote last."""
    check = decision._checkpoint_conflict
    patch.setattr(
        decision,
        "_checkpoint_conflict",
        lambda batch, entry, allowed: (
            None if batch.query_id == entry.query_id else check(batch, entry, allowed)
        ),
    )


def leave_journals_under_other_sources(patch: pytest.MonkeyPatch) -> None:
    """Keep a journal's number in the ledger, even if it now belongs to another source."""
    arranged = decision._align_sources

    def in_place(entry: LedgerEntry, batch: Batch, moves: Moves) -> LedgerEntry:
        fits = not moves and len(entry.end) <= len(batch.end)
        return entry if fits else arranged(entry, batch, moves)

    patch.setattr(decision, "_align_sources", in_place)


def stand_on_the_entry_before(patch: pytest.MonkeyPatch) -> None:
    """Apply a delta to the entry that was written before it, even if that was undone."""

    def whole(rows: Sequence[HistoryRow], app_id: str) -> dict[int, LedgerEntry | EntryDelta]:
        found: dict[int, LedgerEntry | EntryDelta] = {}
        last: LedgerEntry | None = None
        for row in reversed(rows):
            entry = parse_entry(row.user_metadata, app_id)
            if isinstance(entry, EntryDelta) and last is not None:
                entry = entry.on(replace(last, attempt=entry.entry.parent or "")) or entry
            last = entry if isinstance(entry, LedgerEntry) else last
            if entry:
                found[row.version] = entry
        return dict(reversed(found.items()))

    patch.setattr(history, "entries_by_version", whole)


def take_rows_of_another_isolation(patch: pytest.MonkeyPatch) -> None:
    """Let committed messages continue where all records ended, and the other way round."""
    check = decision._other_rows
    patch.setattr(
        decision,
        "_other_rows",
        lambda batch, entry: check(batch, replace(entry, isolation=batch.isolation)),
    )


def forget_open_transactions(patch: pytest.MonkeyPatch) -> None:
    check = decision._other_rows
    patch.setattr(
        decision,
        "_other_rows",
        lambda batch, entry: (
            check(replace(batch, starts=dict.fromkeys(batch.starts, 0)), entry)
            if batch.starts
            else check(batch, entry)
        ),
    )


def leave_the_first_letters_open(patch: pytest.MonkeyPatch) -> None:
    """Do not close dead letters that have no entry."""
    closing = dead_letters.closing_entry
    patch.setattr(
        test_ledger, "closing_entry", lambda dead, *others: closing(dead, *others) if dead.entry else None
    )


def trust_letters_whose_log_is_cut(patch: pytest.MonkeyPatch) -> None:
    """Treat dead letters whose entries were cleaned up as if there were none."""
    patch.setattr(dead_letters, "is_cut_off", lambda state: False)


def leave_letters_that_are_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(test_ledger, "is_ahead", lambda dead, main: False)


def be_in_step_by_the_table(patch: pytest.MonkeyPatch) -> None:
    """Treat an entry as in step with the dead letters if it names their table."""
    patch.setattr(dead_letters, "in_step", lambda dead, main, table: main.dead_letters == table)


def look_for_letters_only_of_a_crash(patch: pytest.MonkeyPatch) -> None:
    """Look for records of a batch among the dead letters only if these end exactly with the batch."""
    real = dead_letters.plan

    def planned(dead: LedgerState, main: LedgerState, made: Write, **names: str) -> Fence | Divert | None:
        step = real(dead, main, made, **names)
        crashed = isinstance(step, Divert) and dead.entry is not None and dead.entry.end == step.batch.end
        return replace(step, may_have_some=crashed) if isinstance(step, Divert) else step

    patch.setattr(test_ledger, "plan", planned)


def trust_restored_letters(patch: pytest.MonkeyPatch) -> None:
    """Do not check for a RESTORE of the dead letters just before a commit to them."""
    patch.setattr(dead_letters, "check_parent", lambda dead, batch: None)
    patch.setattr(
        dead_letters,
        "verify",
        lambda before, after, entry, batch, conflict: decision.verify(
            before, replace(after, previous=entry.parent), entry, batch, conflict=conflict
        ),
    )


def emit_what_is_a_letter(patch: pytest.MonkeyPatch) -> None:
    """Let a query with state read bytes that have dead letters."""
    patch.setattr(test_ledger, "state_may_hold_letters", lambda step, dead, write: False)


def take_another_journal(patch: pytest.MonkeyPatch) -> None:
    """Identify a journal by its name alone."""
    patch.setattr(decision, "_recreated", lambda batch, entry: None)


def begin_where_the_log_is_cut(patch: pytest.MonkeyPatch) -> None:
    """Treat a log whose entries cannot all be read as one without entries."""
    patch.setattr(decision, "is_cut_off", lambda state: False)


FAULTS = (
    skip_when_nothing_moved,
    compare_texts_alone,
    look_under_the_same_number,
    accept_older_copies,
    leave_journals_under_other_sources,
    stand_on_the_entry_before,
    begin_where_the_log_is_cut,
    take_rows_of_another_isolation,
    forget_open_transactions,
    leave_the_first_letters_open,
    trust_letters_whose_log_is_cut,
    leave_letters_that_are_ahead,
    be_in_step_by_the_table,
    look_for_letters_only_of_a_crash,
    trust_restored_letters,
    emit_what_is_a_letter,
    take_another_journal,
)


QUICK = (forget_open_transactions,)
"""Faults that the search finds within seconds. The search for ``take_another_journal`` takes a minute;
``tests/unit/ledger/test_fingerprints.py`` and ``tests/spark/test_recreated.py`` test its rule in each run."""


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=[] if each in QUICK else [pytest.mark.soak]) for each in FAULTS]
)
def test_the_model_catches_a_faulty_rule(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine fails if the sink lacks any one rule."""
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(LedgerMachine, settings=MUTANT_SETTINGS)


def trust_the_property(patch: pytest.MonkeyPatch) -> None:
    """Trust the newest entry although its snapshot was rolled back."""
    patch.setattr(iceberg_reader, "is_visible", lambda *_args, **_rest: True)


def look_at_no_earlier_metadata(patch: pytest.MonkeyPatch) -> None:
    """Trust the newest entry if snapshots have expired."""
    real = iceberg_reader.is_visible

    def visible(entry: Any, chain: Sequence[Ancestor], *, complete: bool, earlier: Any) -> bool:
        return real(entry, chain, complete=complete, earlier=lambda: ())

    patch.setattr(iceberg_reader, "is_visible", visible)


def commit_on_any_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Repeat a rejected commit on top of other commits, as pyiceberg does."""
    real = IcebergSinkTable.write

    def rebased(table: IcebergSinkTable, entry: LedgerEntry, mark: Mark, *, on: int) -> bool:
        return real(table, entry, mark, on=table.current)

    patch.setattr(IcebergSinkTable, "write", rebased)


@pytest.mark.parametrize(
    "fault",
    [
        commit_on_any_snapshot,
        pytest.param(trust_the_property, marks=pytest.mark.soak),
        pytest.param(look_at_no_earlier_metadata, marks=pytest.mark.soak),
    ],
)
def test_the_model_catches_a_faulty_rule_of_iceberg_tables(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(IcebergMachine, settings=MUTANT_SETTINGS)


@pytest.mark.soak
@pytest.mark.parametrize("fault", [each for each in FAULTS if each is not begin_where_the_log_is_cut])
def test_a_faulty_rule_shows_in_the_rows(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are wrong even if the test does not check the decisions."""
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Unguided, settings=MUTANT_SETTINGS)


@pytest.mark.parametrize(
    ("schedule", "mutant"),
    [
        (test_ledger.overtaken, NeverFences),
        (test_ledger.at_once, MergesWithoutComparing),
        (test_ledger.crashed, TrustsRules),
        (test_ledger.left_first, LeavesTheDoorOpen),
    ],
    ids=lambda each: each.__name__,
)
def test_a_schedule_shows_what_its_rule_is_for(
    schedule: Callable[[LedgerMachine], None], mutant: type[LedgerMachine]
) -> None:
    with pytest.raises(AssertionError):
        schedule(mutant())
