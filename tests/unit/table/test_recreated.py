"""Ledgers that begin or go on because an entry says so: of adopted tables, and journals made again."""

from __future__ import annotations

from gazette_spark.audit.tiling import Tiling, check_contiguous
from gazette_spark.errors import TableRefusedError
from gazette_spark.ledger.decision import Allowed, KeptRange, Refusal, Skip, Write, decide
from gazette_spark.ledger.entry import Batch, LedgerEntry, LedgerState, parse_entry
from gazette_spark.offsets import JournalOffsets
from gazette_spark.table.adopt import first_entry, recreated_entry

END = (JournalOffsets({"x/a": 700, "x/b": 40}), JournalOffsets({"x/a": 900}))
ENTRY = LedgerEntry("app", 4, "q", 2, END, END, END, "first", "older", planned_ms=99)


def test_rows_go_on_where_the_new_journal_begins() -> None:
    """Under each source that reads it; all others stay, and the next query continues."""
    entry = recreated_entry(LedgerState(ENTRY, "older", 6, 10, 9), JournalOffsets({"x/a": 5}), "second")
    new = (JournalOffsets({"x/a": 5, "x/b": 40}), JournalOffsets({"x/a": 5}))
    assert (entry.start, entry.begin, entry.end) == (new, new, new)
    assert entry.recreated == {"x/a": 700}
    assert parse_entry(entry.to_json(), "app") == entry
    state = LedgerState(entry, "first", 7, 11, 11)
    end = (JournalOffsets({"x/a": 9, "x/b": 40}), new[1])
    decision = decide(state, Batch("t", "app", "q-2", 1, new, end, planned_ms=101), attempt="mine")
    assert isinstance(decision, Write)
    assert decision.entry.recreated == {}
    assert decision.entry.start == new


def test_an_adopted_ledger_of_committed_messages_says_where_their_query_began() -> None:
    """A query that begins there may trim what the table has; the entries are without a seam."""
    entry = first_entry("app", JournalOffsets({"x/a": 70}, starts={"x/a": 10}), 5, "append")
    assert parse_entry(entry.to_json(), "app") == entry
    assert (entry.isolation, entry.starts, entry.read_through) == ("read_committed", {"x/a": 10}, {"x/a": 70})
    state = LedgerState(entry, None, 5, 10, 10)

    def batch(number: int, begin: int, end: int, since: int = 10) -> Batch:
        ends = (JournalOffsets({"x/a": end}, "" if number else "pinned", starts={"x/a": since}),)
        begins = (JournalOffsets({"x/a": begin}),) if number else ()
        return Batch("t", "app", "q", number, begins, ends, planned_ms=7)

    trim = Allowed(trim=True)
    assert isinstance(decide(state, batch(0, 10, 10), attempt="mine", allowed=trim), Skip)
    made = decide(state, batch(1, 10, 90), attempt="mine", allowed=trim)
    assert isinstance(made, Write)
    assert made.kept == (KeptRange("x/a", 10, 70, 90),)
    refused = decide(state, batch(0, 70, 70, since=20), attempt="mine", allowed=trim)
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, TableRefusedError)
    tiling = check_contiguous("app", [(3, entry), (4, made.entry)], cleaned_up=False)
    assert isinstance(tiling, Tiling)
    [claim] = tiling.claims
    assert (claim.start, claim.end, claim.adopted, claim.committed) == (10, 90, True, True)
