"""A journal that was made again goes on in its table, by an entry that says so."""

from __future__ import annotations

from gazette_spark.ledger.decision import Write, decide
from gazette_spark.ledger.entry import Batch, LedgerEntry, LedgerState, parse_entry
from gazette_spark.offsets import JournalOffsets
from gazette_spark.table.adopt import recreated_entry

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
