"""How a batch is split between a table and its dead letters, by the ledgers of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._ledger.dead_letters import (
    DeadLetters,
    Divert,
    Fence,
    check_ledger,
    closing_entry,
    dead_batch,
    fence_entry,
    is_ahead,
    plan,
    reconcile,
    state_may_hold_letters,
    with_letters,
)
from gazette_spark._ledger.decision import Committed, Refusal, Retry, Write
from gazette_spark._ledger.entry import LedgerEntry, LedgerState, Positions
from gazette_spark.errors import DeadLetterError, LedgerLostError, OptionError, RestoredError
from gazette_spark.offsets import JournalOffsets

TABLE = "dead"


def state(
    end: int | None, attempt: str = "d1", *, letters: str | None = TABLE, dead: str | None = None
) -> LedgerState:
    """Return the state of a table that is filled up to an offset of journal ``x/a``; None means no entry."""
    if end is None:
        return LedgerState()
    at = (JournalOffsets({"x/a": end}),)
    start = (JournalOffsets({"x/a": 0}),)
    entry = LedgerEntry("app", 5, "query-1", 3, start, at, at, attempt, "older", dead_letters=letters)
    return LedgerState(replace(entry, dead_attempt=dead), "older", 5, 9, 9)


MAIN = state(10, "m1", dead="d1")


def batch(begin: int = 10, end: int = 30) -> Write:
    """Return what was decided on the main table."""
    assert MAIN.entry is not None
    begins, ends = (JournalOffsets({"x/a": begin}),), (JournalOffsets({"x/a": end}),)
    return Write(replace(MAIN.entry, begin=begins, end=ends, attempt="m2", parent="m1", txn_version=6))


def planned(dead: LedgerState, main: LedgerState = MAIN, write: Write | None = None) -> Fence | Divert | None:
    return plan(dead, main, write or batch(), table=TABLE, attempt="new")


def test_letters_are_of_the_isolation_of_their_table() -> None:
    """Letters of committed messages are found by acknowledgements, so letters of records do not help."""
    write = batch()
    write = replace(write, entry=replace(write.entry, isolation="read_committed"))
    step = planned(state(None), state(10, "m1"), write)
    assert isinstance(step, Divert)
    assert step.entry.isolation == "read_committed"
    assert step.batch.starts == {"x/a": 0}
    with pytest.raises(DeadLetterError, match="isolationLevel=read_uncommitted, but this query has"):
        planned(state(10), MAIN, write)
    assert MAIN.entry is not None
    other = LedgerState(replace(MAIN.entry, isolation="read_committed", attempt="d1"), "older", 5, 9, 9)
    with pytest.raises(DeadLetterError, match="isolationLevel=read_committed, but this query has"):
        planned(other)


@pytest.mark.parametrize(
    ("dead", "main", "begin", "end", "known"),
    [
        pytest.param(state(10), MAIN, 10, 30, False, id="same end"),
        pytest.param(state(4), MAIN, 4, 30, False, id="behind"),
        pytest.param(state(20), MAIN, 20, 30, True, id="ahead"),
        pytest.param(state(40), MAIN, 40, 40, True, id="far ahead"),
        pytest.param(state(None), state(10, "m1"), 10, 30, False, id="new"),
    ],
)
def test_tables_in_step_split_a_batch(
    dead: LedgerState, main: LedgerState, begin: int, end: int, known: bool
) -> None:
    step = planned(dead, main)
    assert isinstance(step, Divert)
    assert (step.entry.app_id, step.entry.attempt, step.entry.dead_letters) == (
        "app/dead-letters",
        "new",
        TABLE,
    )
    assert step.entry.parent == (dead.entry.attempt if dead.entry else None)
    assert step.entry.txn_version == dead.txn_version + 1
    assert (step.entry.begin, step.entry.end) == (
        (JournalOffsets({"x/a": begin}),),
        (JournalOffsets({"x/a": end}),),
    )
    assert step.may_have_some is known


@pytest.mark.parametrize(
    ("dead", "main"),
    [
        pytest.param(state(20, "d2"), MAIN, id="a crash"),
        pytest.param(state(4, "d0"), MAIN, id="dead letters restored"),
        pytest.param(state(None), MAIN, id="dead letters emptied"),
        pytest.param(state(10, "closing", letters=None), MAIN, id="closed"),
        pytest.param(state(10), state(10, "m1"), id="old release"),
        pytest.param(state(None), state(10, "m1", letters=None), id="switched on"),
        pytest.param(state(10), state(10, "m1", letters="others", dead="d1"), id="from elsewhere"),
    ],
)
def test_a_writer_out_of_step_sets_a_fence(dead: LedgerState, main: LedgerState) -> None:
    """The fence does not move the main table. It names the newest dead letters, which puts both in step."""
    step = planned(dead, main)
    assert isinstance(step, Fence)
    assert main.entry is not None
    fence = step.entry
    assert (fence.begin, fence.end, fence.parent) == (main.entry.end, main.entry.end, "m1")
    assert (fence.attempt, fence.txn_version, fence.is_fence) == ("new", 6, True)
    assert (fence.dead_letters, fence.dead_attempt) == (TABLE, dead.entry.attempt if dead.entry else None)
    assert isinstance(planned(dead, replace(main, entry=fence)), Divert)


def test_a_batch_without_bytes_has_no_dead_letters() -> None:
    assert planned(state(None), write=batch(10, 10)) is None
    named = with_letters(batch(10, 10).entry, TABLE, state(10, "d7"))
    assert (named.dead_letters, named.dead_attempt) == (TABLE, "d7")


def test_a_faster_writer_is_no_reason_to_stop() -> None:
    """The main table decides which writer continues. Only a batch that can never be committed is an error."""
    step = planned(state(10))
    assert isinstance(step, Divert)
    landed = replace(state(30), entry=step.entry, previous="d1", txn_version=6)

    def settled(after: LedgerState) -> Committed | Retry | Refusal:
        return reconcile(state(10), after, step.entry, step.batch, conflict=False)

    assert settled(landed) == Committed()
    assert settled(state(30, "another")) == Retry()
    lost = settled(state(10))
    assert isinstance(lost, Refusal)
    assert isinstance(lost.error, LedgerLostError)


def test_a_restore_in_the_middle_of_a_commit_is_refused() -> None:
    torn = replace(state(30), previous="undone", jumps=(8,))
    about = dead_batch(batch().entry, TABLE)
    with pytest.raises(RestoredError, match=r"AS OF 7 repairs.*restore version 8.*same checkpoint"):
        check_ledger(torn, about)
    with pytest.raises(RestoredError):
        planned(torn)
    check_ledger(state(30), about)


def test_an_entry_that_closes_says_so() -> None:
    known = state(10)
    assert known.entry is not None
    known = replace(known, entry=replace(known.entry, recreated={"x/a": 5}, heads={"x/a": 7}))
    entry = fence_entry(known, batch().entry, "closing")
    assert (entry.recreated, entry.heads) == ({}, {})
    assert (entry.begin, entry.end, entry.parent, entry.dead_letters) == (entry.end, entry.end, "d1", None)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("about", [False, True])
def test_a_fence_keeps_that_rows_may_be_in_a_state(before: bool, about: bool) -> None:
    """The next query has to accept the loss of whatever the last query still had in its state."""
    known = state(10)
    assert known.entry is not None
    known = replace(known, entry=replace(known.entry, stateful=before))
    entry = fence_entry(known, replace(batch().entry, stateful=about), "fence")
    assert entry.stateful == (before or about)


@pytest.mark.parametrize(
    ("end", "ahead"),
    [
        pytest.param(10, False, id="same end"),
        pytest.param(4, False, id="behind"),
        pytest.param(None, False, id="new"),
        pytest.param(20, True, id="ahead"),
    ],
)
def test_dead_letters_are_ahead_by_their_offsets(end: int | None, ahead: bool) -> None:
    """If the letters' ledger is ahead, it may cover letters of bytes that the main table lacks."""
    assert MAIN.entry is not None
    assert is_ahead(state(end, "any"), MAIN.entry) is ahead


def test_older_queries_of_several_sources_leave_places_behind() -> None:
    """A table written by a query of several sources accepts dead letters of the one remaining source."""
    left: Positions = ("another source's", JournalOffsets({"x/a": 3, "x/b": 7}))
    write = batch()
    entry = replace(write.entry, begin=(*write.entry.begin, *left), end=(*write.entry.end, *left))
    step = planned(state(20), write=Write(entry))
    assert isinstance(step, Divert)
    assert (step.entry.begin, step.entry.end) == (
        (JournalOffsets({"x/a": 20}),),
        (JournalOffsets({"x/a": 30}),),
    )
    assert step.may_have_some
    assert not is_ahead(state(30), entry)
    assert is_ahead(state(40), entry)


@pytest.mark.parametrize(
    ("dead", "stateful", "query", "held"),
    [
        pytest.param(20, True, "another", True, id="letters of another query"),
        pytest.param(20, False, "another", False, id="no state"),
        pytest.param(10, True, "another", False, id="no letters ahead"),
        pytest.param(20, True, "query-1", False, id="the batch's own, in an earlier try"),
    ],
)
def test_a_state_does_not_come_to_hold_letters(dead: int, stateful: bool, query: str, held: bool) -> None:
    """Such a query may read bytes that have dead letters only if its batch merged them."""
    write = batch()
    write = Write(replace(write.entry, query_id=query, stateful=stateful, planned_ms=7))
    before = state(dead)
    assert before.entry is not None
    before = replace(before, entry=replace(before.entry, planned_ms=7))
    step = planned(before, write=write)
    assert isinstance(step, Divert)
    assert state_may_hold_letters(step, before, write) is held


def closing(dead: LedgerState, main: LedgerState) -> LedgerEntry | None:
    """The entry of a writer that stops using the dead letters."""
    assert main.entry is not None
    return closing_entry(dead, main.entry, batch().entry, "closing")


def test_dead_letters_whose_entries_were_cleaned_up_are_not_left() -> None:
    """Delta would silently skip the closing entry, whose number is taken, and the letters seem absent."""
    cleaned = LedgerState(table_version=9, truncated=True)
    entry = closing(cleaned, MAIN)
    assert entry is not None
    outcome = reconcile(cleaned, cleaned, entry, dead_batch(batch().entry, TABLE), conflict=False)
    assert isinstance(outcome, Refusal)
    assert isinstance(outcome.error, LedgerLostError)


def test_dead_letters_restored_to_what_was_cleaned_up_are_refused() -> None:
    """The number of an undone entry is known, but Delta would take the next one and double the letters."""
    lost = LedgerState(txn_version=5, table_version=9, truncated=True)
    with pytest.raises(LedgerLostError, match="the history was cleaned up"):
        planned(lost)
    assert isinstance(planned(replace(lost, truncated=False)), Fence)


@pytest.mark.parametrize("version", [-1, 7], ids=["no table", "a table of others"])
def test_the_first_dead_letters_are_closed_too(version: int) -> None:
    """A writer of the first letters decided on no entry, so the closing entry takes that number."""
    none = LedgerState(table_version=version)
    entry, step = closing(none, state(10, "m1")), planned(none, state(10, "m1"))
    assert isinstance(step, Divert)
    assert entry is not None
    assert (entry.app_id, entry.txn_version, entry.parent) == (
        step.entry.app_id,
        step.entry.txn_version,
        None,
    )
    assert entry.begin == entry.end == (JournalOffsets({"x/a": 10}),)
    assert (entry.is_fence, entry.dead_letters) == (True, None)
    after = LedgerState(entry, None, 0, version + 1, version + 1)
    assert reconcile(none, after, step.entry, step.batch, conflict=False) == Retry()


def test_a_table_of_dead_letters_that_is_gone_is_not_made_again() -> None:
    """The main table names the entry of the missing table."""
    assert closing(LedgerState(), MAIN) is None


@pytest.mark.parametrize("arguments", [{}, {"path": "/d", "table": "t"}], ids=["no place", "two places"])
def test_dead_letters_have_one_place(arguments: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="exactly one of path and table"):
        DeadLetters(**arguments)


@pytest.mark.parametrize(
    "table",
    [DeltaTable(path="/a`b", table=None), DeltaTable(path=None, table="c.d")],
    ids=["path", "catalog"],
)
def test_a_table_is_found_by_its_name(table: DeltaTable) -> None:
    """The ledger keeps only names."""
    found = DeltaTable.named(table.name)
    assert (found.path, found.table, found.name) == (table.path, table.table, table.name)
