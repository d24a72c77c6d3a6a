"""How a batch is parted between a table and its dead letters, by the ledgers of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gazette_spark.errors import LedgerLostError, OptionError, RestoredError
from gazette_spark.ledger.dead_letters import (
    DeadLetters,
    Divert,
    Takeover,
    TakeoverState,
    check_fence,
    dead_batch,
    fence_entry,
    pending_from,
    plan,
    reconcile,
)
from gazette_spark.ledger.decision import Again, Landed, Refusal, Write
from gazette_spark.ledger.entry import LedgerEntry, LedgerState, SkippedGap
from gazette_spark.offsets import JournalOffsets
from gazette_spark.table.delta_table import DeltaTable

TABLE = "dead"


def state(end: int | None, attempt: str = "d1", *, letters: str | None = TABLE) -> LedgerState:
    """A table's state whose entry ends at an offset of journal ``x/a``; none if that is None."""
    if end is None:
        return LedgerState()
    at = (JournalOffsets({"x/a": end}),)
    start = (JournalOffsets({"x/a": 0}),)
    entry = LedgerEntry("app", 5, "query-1", 3, start, at, at, attempt, "older", dead_letters=letters)
    return LedgerState(entry, "older", 5, 9, 9)


MAIN = state(10, "m1")


def batch(begin: int = 10, end: int = 30) -> Write:
    """What was decided on the main table."""
    assert MAIN.entry is not None
    begins, ends = (JournalOffsets({"x/a": begin}),), (JournalOffsets({"x/a": end}),)
    return Write(replace(MAIN.entry, begin=begins, end=ends, attempt="m2", parent="m1", txn_version=6))


def planned(
    dead: LedgerState,
    main: LedgerState = MAIN,
    *,
    taken: TakeoverState | None = None,
    write: Write | None = None,
) -> Takeover | Divert | None:
    """The plan for a batch."""
    return plan(dead, main, write or batch(), table=TABLE, taken=taken, attempt="new")


def test_tables_in_step_part_a_batch() -> None:
    """The dead letters' entry is of the main table's bytes, under an app id of its own."""
    step = planned(state(10))
    assert isinstance(step, Divert)
    assert step.pending_from is None
    assert (step.entry.app_id, step.entry.txn_version, step.entry.parent) == ("app/dead-letters", 6, "d1")
    assert (step.entry.begin, step.entry.end) == (batch().entry.begin, batch().entry.end)
    assert (step.entry.dead_letters, step.entry.gaps) == (TABLE, ())


@pytest.mark.parametrize(
    ("dead", "main", "begin", "gaps", "pending"),
    [
        pytest.param(state(20), MAIN, 20, (), 10, id="ahead"),
        pytest.param(state(40), MAIN, 40, (), 10, id="far ahead"),
        pytest.param(state(4), MAIN, 4, (SkippedGap("x/a", 4, 10),), None, id="behind"),
        pytest.param(state(None), MAIN, 10, (), None, id="new"),
        pytest.param(state(10, letters=None), MAIN, 10, (), None, id="closed"),
        pytest.param(state(10), state(10, "m1", letters=None), 10, (), None, id="switched on"),
        pytest.param(state(10), state(10, "m1", letters="others"), 10, (), None, id="from elsewhere"),
    ],
)
def test_a_writer_out_of_step_takes_over_first(
    dead: LedgerState, main: LedgerState, begin: int, gaps: tuple[SkippedGap, ...], pending: int | None
) -> None:
    """A writer first commits an entry that moves nothing, then parts the batch for the bytes left."""
    step = planned(dead, main)
    assert isinstance(step, Takeover)
    assert main.entry is not None
    assert (step.entry.begin, step.entry.end, step.entry.parent) == (main.entry.end, main.entry.end, "m1")
    assert (step.entry.attempt, step.entry.txn_version, step.entry.dead_letters) == ("new", 6, TABLE)
    taken = replace(main, entry=step.entry)
    then = planned(dead, taken, taken=step.taken)
    assert isinstance(then, Divert)
    assert then.entry.begin == (JournalOffsets({"x/a": begin}),)
    assert then.entry.end == (JournalOffsets({"x/a": max(begin, 30)}),)
    assert (then.entry.accepted_gaps, then.pending_from) == (gaps, pending)


@pytest.mark.parametrize(
    ("dead", "main"),
    [
        pytest.param(state(20, "d2"), state(10, "new"), id="dead letters moved"),
        pytest.param(state(20), state(10, "m2"), id="main table moved"),
    ],
)
def test_a_take_over_ends_when_somebody_else_commits(dead: LedgerState, main: LedgerState) -> None:
    """Then there may be another write under way, so it is taken over again."""
    assert isinstance(planned(dead, main, taken=TakeoverState("new", "d1")), Takeover)


def test_a_batch_without_bytes_is_not_parted() -> None:
    """A batch without bytes has no rows, so the dead letters stay as they are."""
    assert planned(state(None), write=batch(10, 10)) is None


def test_a_faster_writer_is_no_reason_to_stop() -> None:
    """Who may go on is decided on the main table; what can never land is an error."""
    step = planned(state(10))
    assert isinstance(step, Divert)
    landed = replace(state(30), entry=step.entry, previous="d1", txn_version=6)

    def settled(after: LedgerState) -> Landed | Again | Refusal:
        return reconcile(state(10), after, step.entry, step.batch, conflict=False)

    assert settled(landed) == Landed()
    assert settled(state(30, "another")) == Again()
    lost = settled(state(10))
    assert isinstance(lost, Refusal)
    assert isinstance(lost.error, LedgerLostError)


def test_a_restore_in_the_middle_of_a_commit_is_refused() -> None:
    """The error names both ways out, neither of which needs a new checkpoint."""
    torn = replace(state(30), previous="undone", jumps=(8,))
    about = dead_batch(batch().entry, TABLE)
    with pytest.raises(RestoredError, match=r"AS OF 7 mends.*restore version 8.*same query checkpoint"):
        check_fence(torn, about)
    with pytest.raises(RestoredError):
        planned(torn)
    check_fence(state(30), about)


def test_an_entry_that_closes_says_so() -> None:
    """It moves nothing and names no table."""
    entry = fence_entry(state(10), batch().entry, "closing", dead_letters=None)
    assert (entry.begin, entry.end, entry.parent, entry.dead_letters) == (entry.end, entry.end, "d1", None)


@pytest.mark.parametrize(
    ("end", "since"),
    [
        pytest.param(10, None, id="in step"),
        pytest.param(4, None, id="behind"),
        pytest.param(None, None, id="new"),
        pytest.param(20, 10, id="ahead"),
    ],
)
def test_pending_bytes_begin_where_the_main_table_ends(end: int | None, since: int | None) -> None:
    """Pending bytes begin where the main table ends, if the dead letters go further."""
    assert MAIN.entry is not None
    assert pending_from(state(end), MAIN.entry) == since


@pytest.mark.parametrize("arguments", [{}, {"path": "/d", "table": "t"}], ids=["no place", "two places"])
def test_dead_letters_have_one_place(arguments: dict[str, str]) -> None:
    """Dead letters have either a path or a table."""
    with pytest.raises(OptionError, match="exactly one of path and table"):
        DeadLetters(**arguments)


@pytest.mark.parametrize(
    "table",
    [DeltaTable(path="/a`b", table=None), DeltaTable(path=None, table="c.d")],
    ids=["path", "catalog"],
)
def test_a_table_is_found_by_its_name(table: DeltaTable) -> None:
    """The ledger keeps names only."""
    found = DeltaTable.named(table.name)
    assert (found.path, found.table, found.name) == (table.path, table.table, table.name)
